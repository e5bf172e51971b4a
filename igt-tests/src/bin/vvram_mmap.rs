// SPDX-License-Identifier: GPL-2.0

//! CPU access through mmap on the DRM fd.

use std::fs;
use std::process::Command;
use std::time::Duration;

use vvram_tests::drm::Drm;
use vvram_tests::fixture::patterns;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::proc::{Child, Exit, Steps};
use vvram_tests::rebind::Unbound;
use vvram_tests::uapi::VvramGemMmapOffset;
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, fragment, igt_main, skip, Outcome,
};

const WORDS: usize = PAGE / 8;

fn write_readback() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    for pages in [1, 2, 17, 512] {
        let object = drm.create(pages * PAGE64)?;
        let map = object.map()?;
        map.fill(a);
        check_ok!(map.verify(a), "{pages} pages");
    }
    Ok(())
}

fn in_vram() -> Outcome {
    let drm = Drm::open()?;
    let bar = Bar::open(&PciDevice::vvram()?)?;
    let (a, b) = patterns();
    let object = drm.create(16 * PAGE64)?;
    let map = object.map()?;
    let layout = bar.locate(&map)?;
    map.fill(a);
    for page in 0..object.pages() {
        for word in 0..WORDS {
            let at = layout.offset(page) + 8 * word as u64;
            check_eq!(
                bar.word(at),
                a.word((page * WORDS + word) as u64),
                "VRAM at {at:#x}, which is page {page} of the object"
            );
        }
    }
    // The other direction: the mapping shows the bytes that arrive in VRAM.
    for page in 0..object.pages() {
        let at = layout.offset(page) as usize / 8;
        for word in 0..WORDS {
            bar.map()
                .write(at + word, b.word((page * WORDS + word) as u64));
        }
    }
    check_ok!(map.verify(b), "written through the BAR");
    Ok(())
}

fn multi_range() -> Outcome {
    let drm = Drm::open()?;
    let bar = Bar::open(&PciDevice::vvram()?)?;
    let (a, _) = patterns();
    let ragged = fragment::create(&drm, &bar, 96 * PAGE64, 6)?;
    let map = ragged.object.map()?;
    map.fill(a);
    for page in 0..ragged.object.pages() {
        for word in [0, WORDS - 1] {
            let at = ragged.layout.offset(page) + 8 * word as u64;
            check_eq!(
                bar.word(at),
                a.word((page * WORDS + word) as u64),
                "VRAM at {at:#x}, which is page {page} of the object"
            );
        }
    }
    if let Err(mismatch) = map.verify(a) {
        fail!("{mismatch}");
    }
    Ok(())
}

fn two_mappings() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let object = drm.create(4 * PAGE64)?;
    let (one, two) = (object.map()?, object.map()?);
    one.fill(a);
    check_ok!(two.verify(a), "the second mapping does not show the first");
    two.fill(b);
    check_ok!(one.verify(b), "the first mapping does not show the second");
    Ok(())
}

fn objects_apart() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let (one, two) = (drm.create(4 * PAGE64)?, drm.create(4 * PAGE64)?);
    let (map_one, map_two) = (one.map()?, two.map()?);
    map_one.fill(a);
    map_two.fill(b);
    for (map, pattern) in [(&map_one, a), (&map_two, b)] {
        check_ok!(map.verify(pattern), "objects share VRAM");
    }
    Ok(())
}

fn part() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let object = drm.create(4 * PAGE64)?;
    object.map()?.fill(a);
    let offset = drm.mmap_offset(object.handle())?;
    let map = Map::new(drm.fd(), offset, 2 * PAGE)?;
    check_ok!(map.verify(a), "the first half");
    Ok(())
}

fn beyond_size() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(4 * PAGE64)?;
    let offset = drm.mmap_offset(object.handle())?;
    for pages in [5, 6, 64, 8192] {
        expect_errno(
            &format!("mapping {pages} pages of an object of 4"),
            Map::new(drm.fd(), offset, pages * PAGE),
            libc::EINVAL,
        )?;
    }
    expect_errno(
        "mapping 4 pages from the second one on",
        Map::new(drm.fd(), offset + PAGE64, 4 * PAGE),
        libc::EINVAL,
    )?;
    Ok(())
}

fn offset_bad() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(PAGE64)?;
    let offset = drm.mmap_offset(object.handle())?;
    object.close()?;
    for (what, offset) in [
        ("offset 0", 0),
        ("the offset of a closed object", offset),
        ("an offset of no object", 0x7fff_ffff_f000),
    ] {
        let result = Map::new(drm.fd(), offset, PAGE);
        expect_errno(&format!("mmap at {what}"), result, libc::EINVAL)?;
    }
    Ok(())
}

fn other_file() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(PAGE64)?;
    let offset = drm.mmap_offset(object.handle())?;
    let other = drm.reopen()?;
    expect_errno(
        "mmap on a file that has no handle for the object",
        Map::new(other.fd(), offset, PAGE),
        libc::EACCES,
    )?;
    Ok(())
}

fn nonzero_input() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(PAGE64)?;
    for (pad, offset) in [(1, 0), (u32::MAX, 0), (0, 1), (0, u64::MAX)] {
        let mut argument = VvramGemMmapOffset {
            handle: object.handle(),
            pad,
            offset,
        };
        let what = format!("GEM_MMAP_OFFSET with {argument:?}");
        expect_errno(&what, drm.mmap_offset_raw(&mut argument), libc::EINVAL)?;
    }
    Ok(())
}

fn offset_stable() -> Outcome {
    let drm = Drm::open()?;
    let (one, two) = (drm.create(PAGE64)?, drm.create(PAGE64)?);
    let offset = drm.mmap_offset(one.handle())?;
    check_eq!(
        drm.mmap_offset(one.handle())?,
        offset,
        "the offset, asked for twice"
    );
    check!(
        drm.mmap_offset(two.handle())? != offset,
        "two objects have the same offset {offset:#x}"
    );
    Ok(())
}

fn after_close() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, _) = patterns();
    let object = drm.create(4 * PAGE64)?;
    let map = object.map()?;
    map.fill(a);
    object.close()?;
    drm.await_vram_free(free - 4 * PAGE64)?;
    // Objects that are created now must not get the same VRAM.
    let others: Vec<_> = (0..8)
        .map(|_| drm.create(4 * PAGE64))
        .collect::<Result<_, _>>()?;
    for other in &others {
        other.map()?.set(!0);
    }
    check_ok!(map.verify(a), "the mapping of a closed object");
    drop(others);
    drop(map);
    drm.await_vram_free(free)?;
    Ok(())
}

fn fork_shares() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let object = drm.create(2 * PAGE64)?;
    let map = object.map()?;
    map.fill(a);
    let mut child = Child::spawn(|| {
        check_ok!(map.verify(a), "in the child");
        map.fill(b);
        Ok(())
    })?;
    child.join("the child", Duration::from_secs(20))?;
    check_ok!(map.verify(b), "in the parent");
    Ok(())
}

fn write_combined() -> Outcome {
    const LIST: &str = "/sys/kernel/debug/x86/pat_memtype_list";
    if fs::metadata(LIST).is_err() {
        // The mount is left in place, which does no harm in a test guest.
        let _ = Command::new("mount")
            .args(["-t", "debugfs", "debugfs", "/sys/kernel/debug"])
            .status();
    }
    let Ok(list) = fs::read_to_string(LIST) else {
        skip!("{LIST} cannot be read: no debugfs, or no PAT on this CPU");
    };
    drop(list);
    let drm = Drm::open()?;
    let (start, _) = PciDevice::vvram()?.bar(2)?;
    let object = drm.create(PAGE64)?;
    let map = object.map()?;
    map.write(0, 1);
    let list = fs::read_to_string(LIST).unwrap_or_default();
    let needle = format!("{start:x}");
    let found = list
        .lines()
        .any(|line| line.contains(&needle) && line.contains("write-combining"));
    check!(
        found,
        "no write-combining memory type is reserved for BAR 2 at {start:#x}, so pages are mapped uncached:\n{list}"
    );
    Ok(())
}

fn after_unbind() -> Outcome {
    const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;
    let gpu = PciDevice::vvram()?;
    let (ready, unbound, stale, rebound) =
        (Steps::new()?, Steps::new()?, Steps::new()?, Steps::new()?);
    let limit = Duration::from_secs(30);
    // An access to a mapping from before the unbind fails, because its pages are not mapped any
    // more.
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let object = drm.create(4 * PAGE64)?;
        let map = object.map()?;
        map.set(0x0dd_ba11);
        let untouched = object.map()?;
        ready.done()?;
        unbound.wait("the unbind", limit)?;
        let fresh = object.map();
        check!(
            fresh.is_err_and(|error| error.errno == libc::ENODEV),
            "a new mapping after the unbind should fail with ENODEV"
        );
        stale.done()?;
        rebound.wait("the rebind", limit)?;
        for map in [&map, &untouched] {
            let pid = Child::spawn(|| {
                for word in 0..map.len() / 8 {
                    check!(
                        map.read(word) != SECRET,
                        "a stale mapping reads VRAM that belongs to a new object"
                    );
                    map.write(word, 0x57a1_e000_57a1_e000);
                }
                Ok(())
            });
            let exit = pid?.wait(limit);
            check!(
                exit == Some(Exit::Signal(libc::SIGBUS)),
                "touching a stale mapping: expected SIGBUS, saw {exit:?}"
            );
        }
        Ok(())
    })?;
    ready.wait("the child's mapping", limit)?;
    let gone = Unbound::new(&gpu)?;
    unbound.done()?;
    stale.wait("the child's look at the unbound device", limit)?;
    gone.rebind()?;
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let object = drm.create(free)?;
    let map = object.map()?;
    map.set(SECRET);
    rebound.done()?;
    child.join("the process with the stale mapping", limit)?;
    check_ok!(
        map.verify_value(SECRET),
        "a mapping from before the unbind reaches VRAM that belongs to a new object"
    );
    Ok(())
}

igt_main! {
    "write-readback", "what the CPU writes it reads back, page by page", write_readback;
    "in-vram", "the mapping and VRAM behind the BAR are the same bytes", in_vram;
    "multi-range", "an object over six ranges maps in the right order", multi_range;
    "two-mappings", "two mappings of one object are coherent", two_mappings;
    "objects-apart", "two objects never share VRAM", objects_apart;
    "part", "a part of an object can be mapped", part;
    "beyond-size", "EINVAL", beyond_size;
    "offset-bad", "EINVAL for offsets of nothing", offset_bad;
    "other-file", "EACCES for a file without a handle", other_file;
    "nonzero-input", "EINVAL for nonzero pad and offset", nonzero_input;
    "offset-stable", "one offset per object", offset_stable;
    "after-close", "a mapping keeps the VRAM of a closed object", after_close;
    "fork", "a child process shares the mapping", fork_shares;
    "write-combined", "BAR 2 is reserved as write-combining", write_combined;
    "after-unbind", "SIGBUS in a mapping from before an unbind, mapped pages and others", after_unbind;
}
