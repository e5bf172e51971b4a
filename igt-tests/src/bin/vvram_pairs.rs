// SPDX-License-Identifier: GPL-2.0

//! Pairs of calls on one handle, address space or attachment at the same time.

use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{DmaBuf, Drm, Gem};
use vvram_tests::fixture::{patterns, peer_reads, placed, works, Fixture};
use vvram_tests::map::PAGE64;
use vvram_tests::pairs::{self, balanced, race, Errors, CALLERS};
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::signals::open_files;
use vvram_tests::uapi;
use vvram_tests::{check, check_eq, check_ok, igt_main, Outcome, Stop};

const SIZE: u64 = CALLERS as u64 * PAGE64;

/// What has to be the same at the end: free and pinned VRAM, and open files.
fn account(drm: &Drm) -> Result<(u64, u64, usize), Stop> {
    Ok((
        drm.vram_free()?,
        drm.counter(Counter::VramPinned)?,
        open_files().len(),
    ))
}

fn objects() -> Outcome {
    let drm = Drm::open()?;
    balanced(|| account(&drm), || pairs::of_objects(&drm))
}

/// Checks what an address space has at an address.
#[track_caller]
fn reads(drm: &Drm, address: u64, pattern: Pattern) -> Outcome {
    let bytes = drm.vm_read(address, SIZE as usize, 0)?;
    match pattern.verify(&bytes, 0) {
        Ok(()) => Ok(()),
        Err(mismatch) => Err(Stop::fail(format_args!("VM_READ: {mismatch}"))),
    }
}

/// GEM_CLOSE against VM_BIND, and the end of a binding against VM_READ.
fn spaces() -> Outcome {
    let drm = Drm::open()?;
    let address = |index: usize| index as u64 * SIZE;
    let filled = |pattern| {
        let object = drm.create(SIZE)?;
        object.map()?.fill(pattern);
        Ok::<_, Stop>(object)
    };
    balanced(
        || account(&drm),
        || {
            race(
                "GEM_CLOSE and VM_BIND",
                Errors {
                    call: libc::ENOENT,
                    racing: &[],
                    end: libc::EINVAL,
                    again: false,
                },
                |pattern| Ok((filled(pattern)?, pattern)),
                |it, index| drm.vm_bind(&it.0, address(index)),
                |it| drm.close(it.0.handle()),
                |it, bound| {
                    for (index, _) in bound.iter().enumerate().filter(|(_, b)| b.is_some()) {
                        reads(&drm, address(index), it.1)?;
                        drm.vm_unbind(address(index), SIZE)?;
                    }
                    Ok(())
                },
            )?;
            race(
                "VM_BIND of other addresses, and twice of the same ones",
                Errors {
                    call: 0,
                    racing: &[],
                    end: libc::EEXIST,
                    again: false,
                },
                |pattern| Ok((filled(pattern)?, pattern)),
                |it, index| drm.vm_bind(&it.0, address(index)),
                |it| drm.vm_bind(&it.0, address(CALLERS)),
                |it, _| {
                    for index in 0..=CALLERS {
                        reads(&drm, address(index), it.1)?;
                        drm.vm_unbind(address(index), SIZE)?;
                    }
                    Ok(())
                },
            )?;
            race(
                "VM_BIND, unmap, and VM_READ",
                Errors {
                    call: libc::EFAULT,
                    racing: &[],
                    end: libc::ENOENT,
                    again: false,
                },
                |pattern| {
                    let object = filled(pattern)?;
                    drm.vm_bind(&object, 0)?;
                    Ok(pattern)
                },
                |_, _| drm.vm_read(0, SIZE as usize, 0),
                |_| drm.vm_unbind(0, SIZE),
                |pattern, read| {
                    for bytes in read.iter().flatten() {
                        check_ok!(pattern.verify(bytes, 0), "VM_READ");
                    }
                    Ok(())
                },
            )
        },
    )
}

/// An importer of an object, and its file.
struct Attached<'a> {
    object: Gem<'a>,
    _buffer: DmaBuf,
    peer: Peer,
}

impl<'a> Attached<'a> {
    fn new(drm: &'a Drm, mode: Mode, pattern: Pattern) -> Result<Self, Stop> {
        let object = drm.create(SIZE)?;
        object.map()?.fill(pattern);
        let (buffer, peer) = (object.export()?, Peer::open()?);
        peer.attach(&buffer, mode)?;
        Ok(Self {
            object,
            _buffer: buffer,
            peer,
        })
    }

    /// After the detach nothing is attached or pinned, and the object is where it was.
    fn is_free(&self) -> Outcome {
        let list = self.object.attachments()?;
        check!(list.is_empty(), "PEER_ATTACHMENTS lists {list:?}");
        placed(&self.object, uapi::PLACEMENT_VRAM)?;
        check_eq!(self.object.info()?.pinned, 0, "pinned");
        Ok(())
    }
}

/// The detach of an importer against each other call on its file.
fn importers() -> Outcome {
    let fixture = Fixture::with_route()?;
    let drm = &fixture.drm;
    // There is no attachment, or it is not mapped or pinned.
    let errors = Errors {
        call: libc::EINVAL,
        racing: &[],
        end: libc::EINVAL,
        again: false,
    };
    balanced(
        || account(drm),
        || {
            race(
                "DETACH and MAP",
                errors,
                |pattern| Attached::new(drm, Mode::Dynamic, pattern),
                |it, _| it.peer.map(),
                |it| it.peer.detach(),
                |it, _| it.is_free(),
            )?;
            race(
                "DETACH and PIN",
                errors,
                |pattern| Attached::new(drm, Mode::Pinned, pattern),
                |it, _| it.peer.pin(),
                |it| it.peer.detach(),
                |it, _| it.is_free(),
            )?;
            race(
                "DETACH and TABLE",
                errors,
                |pattern| {
                    let it = Attached::new(drm, Mode::Revocable, pattern)?;
                    it.peer.pin_and_map(Mode::Revocable)?;
                    Ok(it)
                },
                |it, _| it.peer.table(),
                |it| it.peer.detach(),
                |it, tables| {
                    for table in tables.iter().flatten() {
                        let size: u64 = table.iter().map(|segment| segment.length).sum();
                        check_eq!(size, SIZE, "bytes of a table");
                    }
                    it.is_free()
                },
            )?;
            works()
        },
    )
}

/// GEM_CLOSE against an importer that pins and maps: a dma-buf keeps the object.
fn pins() -> Outcome {
    let fixture = Fixture::with_route()?;
    let drm = &fixture.drm;
    let peers = [fixture.peer.reopen()?, fixture.peer.reopen()?];
    let (a, _) = patterns();
    balanced(
        || account(drm),
        || {
            let mut round = 0;
            race(
                "GEM_CLOSE, PIN and MAP",
                Errors {
                    call: 0,
                    racing: &[],
                    end: libc::EINVAL,
                    again: false,
                },
                |_| {
                    round += 1;
                    let object = drm.create(PAGE64)?;
                    object.map()?.fill(a.derive(round));
                    let buffer = object.export()?;
                    for peer in &peers {
                        peer.attach(&buffer, Mode::Pinned)?;
                    }
                    Ok((object, round))
                },
                |_, index| peers[index].pin_and_map(Mode::Pinned),
                |it| drm.close(it.0.handle()),
                |it, _| {
                    check_eq!(drm.counter(Counter::VramPinned)?, PAGE64, "pinned bytes");
                    // A transfer takes long.
                    if it.1 % 8 == 0 {
                        peer_reads(&peers[1], a.derive(it.1), &[0])?;
                    }
                    for peer in &peers {
                        peer.detach()?;
                    }
                    Ok(())
                },
            )
        },
    )
}

igt_main! {
    "objects", "GEM_CLOSE and SYNCOBJ_DESTROY against what uses the handle", objects;
    "spaces", "GEM_CLOSE and VM_BIND, and the end of a binding and VM_READ", spaces;
    "importers", "the detach of an importer against its other calls", importers;
    "pins", "GEM_CLOSE against pins and maps of importers", pins;
}
