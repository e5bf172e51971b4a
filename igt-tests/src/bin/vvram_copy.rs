// SPDX-License-Identifier: GPL-2.0

//! Copies between objects, wherever they are.

use std::time::Duration;

use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fence::{SyncObj, Timeline};
use vvram_tests::fixture::{patterns, squeeze, works};
use vvram_tests::foreign::{make, Foreign, Kind, KINDS};
use vvram_tests::fragment;
use vvram_tests::heap;
use vvram_tests::map::{Map, PAGE64};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::proc::Child;
use vvram_tests::rdma::Model;
use vvram_tests::rebind::Unbinding;
use vvram_tests::uapi::{DrmGetCap, SyncEntry, VvramGemCopy};
use vvram_tests::{check, check_eq, check_ok, drm, expect_errno, igt_main, uapi, Outcome, Stop};

const PAGES: usize = 4;
const SIZE: u64 = PAGES as u64 * PAGE64;
const LIMIT: Duration = Duration::from_secs(20);

/// Where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Vram,
    System,
    Foreign(Kind),
}

const PLACES: [Place; 5] = [
    Place::Vram,
    Place::System,
    Place::Foreign(Kind::Heap),
    Place::Foreign(Kind::Udmabuf),
    Place::Foreign(Kind::Vgem),
];

/// An object of `SIZE` bytes, with its mapping.
struct Side<'a> {
    object: Gem<'a>,
    map: Map,
    place: Place,
    _foreign: Option<Foreign>,
}

impl<'a> Side<'a> {
    #[track_caller]
    fn new(drm: &'a Drm, place: Place) -> Result<Self, Stop> {
        let (object, foreign) = match place {
            Place::Vram => (drm.create(SIZE)?, None),
            Place::System => (drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?, None),
            Place::Foreign(kind) => {
                let foreign = make(kind, PAGES)?;
                (drm.import(&foreign.buffer)?, Some(foreign))
            }
        };
        Ok(Self {
            map: object.map()?,
            object,
            place,
            _foreign: foreign,
        })
    }

    /// Checks that the object is where it was created; in VRAM, that every page is in the BAR.
    #[track_caller]
    fn placed(&self, bar: &Bar) -> Outcome {
        let want = match self.place {
            Place::Vram => uapi::PLACEMENT_VRAM,
            Place::System => uapi::PLACEMENT_SYSTEM,
            Place::Foreign(_) => uapi::PLACEMENT_IMPORTED,
        };
        check_eq!(self.object.info()?.placement, want, "placement");
        if self.place == Place::Vram {
            bar.locate(&self.map)?;
        }
        Ok(())
    }
}

#[track_caller]
fn holds(map: &Map, pattern: Pattern, what: &str) -> Outcome {
    check_ok!(map.verify(pattern), "{what}");
    Ok(())
}

/// Copies whole objects from each kind of memory to each.
fn placements() -> Outcome {
    let bar = Bar::open(&PciDevice::vvram()?)?;
    let drm = Drm::open()?;
    let (a, b) = patterns();
    for (index, from) in PLACES.into_iter().enumerate() {
        for to in PLACES {
            let (src, dst) = (Side::new(&drm, from)?, Side::new(&drm, to)?);
            let pattern = a.derive(index as u64);
            src.map.fill(pattern);
            dst.map.fill(b);
            drm.copy((&src.object, 0), (&dst.object, 0), SIZE)?
                .finish()?;
            holds(&dst.map, pattern, &format!("from {from:?} to {to:?}"))?;
            holds(&src.map, pattern, &format!("source, {from:?} to {to:?}"))?;
            src.placed(&bar)?;
            dst.placed(&bar)?;
        }
    }
    Ok(())
}

/// Copies of any ranges of bytes, also inside of one object, compared with the same copy in an
/// array.
fn offsets() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let mut numbers = Lcg::new(misc::nonce());
    let mut sides = Vec::new();
    for (index, place) in PLACES.into_iter().enumerate() {
        let side = Side::new(&drm, place)?;
        let pattern = a.derive(index as u64);
        side.map.fill(pattern);
        let mut bytes = vec![0u8; SIZE as usize];
        pattern.fill(&mut bytes, 0);
        sides.push((side, bytes));
    }
    for round in 0..300 {
        let from = numbers.below(sides.len() as u64) as usize;
        let to = numbers.below(sides.len() as u64) as usize;
        let limit = match round % 3 {
            0 => 16,
            1 => PAGE64,
            _ => SIZE,
        };
        let size = 1 + numbers.below(limit);
        let src = numbers.below(SIZE - size + 1);
        let dst = numbers.below(SIZE - size + 1);
        let what = format!("{size} bytes from {src} of {from} to {dst} of {to}");
        let result = drm.copy(
            (&sides[from].0.object, src),
            (&sides[to].0.object, dst),
            size,
        );
        if from == to && src.abs_diff(dst) < size {
            expect_errno(&what, result, libc::EINVAL)?;
            continue;
        }
        result?.finish()?;
        let range = |at: u64| at as usize..(at + size) as usize;
        let bytes = sides[from].1[range(src)].to_vec();
        sides[to].1[range(dst)].copy_from_slice(&bytes);
        let (side, oracle) = &sides[to];
        for (index, want) in oracle.chunks_exact(8).enumerate() {
            let seen = side.map.read(index).to_le_bytes();
            check!(
                seen == want,
                "{what}: at {} expected {want:x?}, saw {seen:x?}",
                8 * index
            );
        }
    }
    Ok(())
}

/// Two objects that import the same buffer have the same memory.
fn imported_twice() -> Outcome {
    let (card, other) = (Drm::open_card()?, Drm::open_card()?);
    let (a, _) = patterns();
    let heap = heap::allocate(SIZE)?;
    let map = heap.map()?;
    map.fill(a);
    let first = card.import(&heap)?;
    let name = card.flink(&first)?;
    // These are two objects, because this client has not imported the buffer before.
    let (second, first) = (other.import(&heap)?, other.gem_open(name)?);
    check!(
        first.info()?.id != second.info()?.id,
        "one object was imported twice"
    );
    for (src, dst, size) in [(0, 0, SIZE), (0, 1, 2), (PAGE64 - 1, PAGE64, 2)] {
        expect_errno(
            &format!("{size} bytes from {src} to {dst} of one buffer"),
            other.copy((&first, src), (&second, dst), size),
            libc::EINVAL,
        )?;
    }
    holds(&map, a, "after refused copies")?;
    other
        .copy((&first, 0), (&second, SIZE / 2), SIZE / 2)?
        .finish()?;
    for index in 0..SIZE as usize / 8 {
        let want = a.word((index % (SIZE as usize / 16)) as u64);
        check_eq!(map.read(index), want, "word {index}");
    }
    Ok(())
}

/// Ranges of one object may touch, but not overlap.
fn overlap() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    for place in PLACES {
        let side = Side::new(&drm, place)?;
        side.map.fill(a);
        for (src, dst, size) in [
            (0, 0, 1),
            (0, 0, SIZE),
            (0, 1, 2),
            (1, 0, 2),
            (0, PAGE64, PAGE64 + 1),
            (PAGE64 - 1, PAGE64, 2),
        ] {
            expect_errno(
                &format!("{size} bytes from {src} to {dst} of one object, {place:?}"),
                drm.copy((&side.object, src), (&side.object, dst), size),
                libc::EINVAL,
            )?;
        }
        holds(&side.map, a, "after refused copies")?;
        drm.copy((&side.object, 0), (&side.object, SIZE / 2), SIZE / 2)?
            .finish()?;
        for index in 0..SIZE as usize / 8 {
            let want = a.word((index % (SIZE as usize / 16)) as u64);
            check_eq!(side.map.read(index), want, "word {index}, {place:?}");
        }
    }
    Ok(())
}

/// An object that is in many ranges of VRAM, at odd offsets.
fn fragmented() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let bar = Bar::open(&gpu)?;
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let ragged = fragment::create(&drm, &bar, 8 * PAGE64, 4)?;
    let map = ragged.object.map()?;
    let system = drm.create_flags(8 * PAGE64, uapi::CREATE_SYSTEM)?;
    let other = system.map()?;
    map.fill(a);
    other.fill(b);
    drm.copy((&ragged.object, 0), (&system, 0), 8 * PAGE64)?
        .finish()?;
    holds(&other, a, "from VRAM in pieces")?;
    other.fill(b);
    let (first, size) = (24, 7 * PAGE64 + 8);
    drm.copy((&system, first), (&ragged.object, first), size)?
        .finish()?;
    let moved = Model::new(a).with_copy(b, first, first, size);
    check_ok!(moved.verify(&map), "VRAM in pieces");
    // The pieces of one side end at other offsets than the pages of the other side.
    map.fill(a);
    drm.copy((&system, 0), (&ragged.object, first), size)?
        .finish()?;
    let moved = Model::new(a).with_copy(b, 0, first, size);
    check_ok!(moved.verify(&map), "from other offsets");
    Ok(())
}

/// Copies follow objects that move before, between and after them.
fn moving() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let src = drm.create_flags(SIZE, EITHER)?;
    let dst = drm.create_flags(SIZE, EITHER)?;
    let (src_map, dst_map) = (src.map()?, dst.map()?);
    for round in 0..4 {
        let pattern = a.derive(round);
        src_map.fill(pattern);
        dst_map.fill(b);
        // The test does not wait between these copies.
        let there = drm.copy((&src, 0), (&dst, 0), SIZE)?;
        let taken = squeeze(&drm)?;
        check_eq!(
            (src.info()?.placement, dst.info()?.placement),
            (uapi::PLACEMENT_SYSTEM, uapi::PLACEMENT_SYSTEM),
            "placements with VRAM full"
        );
        there.finish()?;
        holds(
            &dst_map,
            pattern,
            &format!("evicted after it, round {round}"),
        )?;

        dst_map.fill(b);
        let half = drm.copy((&src, 0), (&dst, SIZE / 2), SIZE / 2)?;
        drop(taken);
        let rest = drm.copy((&src, SIZE / 2), (&dst, 0), SIZE / 2)?;
        rest.finish()?;
        check!(half.poll(0)?, "a later copy is done before an earlier one");
        for index in 0..SIZE as usize / 8 {
            let from = (index + SIZE as usize / 16) % (SIZE as usize / 8);
            check_eq!(
                dst_map.read(index),
                pattern.word(from as u64),
                "word {index} in round {round}"
            );
        }
    }
    Ok(())
}

/// A chain of copies is done in its order, without a wait between them.
fn chain() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let mut sides = Vec::new();
    for place in PLACES.into_iter().cycle().take(15) {
        sides.push(Side::new(&drm, place)?);
    }
    for round in 0..3 {
        let pattern = a.derive(round);
        sides[0].map.fill(pattern);
        let mut last = None;
        for pair in sides.windows(2) {
            last = Some(drm.copy((&pair[0].object, 0), (&pair[1].object, 0), SIZE)?);
        }
        if let Some(last) = last {
            last.finish()?;
        }
        for (index, side) in sides.iter().enumerate() {
            holds(
                &side.map,
                pattern,
                &format!("link {index}, {:?}", side.place),
            )?;
        }
    }
    Ok(())
}

/// An object that is closed before its copy is done exists until then.
fn closed() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, _) = patterns();
    for place in PLACES {
        let dst = Side::new(&drm, Place::System)?;
        let src = Side::new(&drm, place)?;
        src.map.fill(a);
        let fence = drm.copy((&src.object, 0), (&dst.object, 0), SIZE)?;
        drop(src);
        drm.create(SIZE)?.map()?.set(!0);
        fence.finish()?;
        holds(&dst.map, a, &format!("a closed source, {place:?}"))?;
    }
    drm.await_vram_free(free)
}

fn argument(src: &Gem<'_>, dst: &Gem<'_>) -> VvramGemCopy {
    VvramGemCopy {
        src: src.handle(),
        dst: dst.handle(),
        size: SIZE,
        ..Default::default()
    }
}

/// The fence of a copy in a sync object, which another copy waits for.
fn syncobj() -> Outcome {
    let drm = Drm::open()?;
    let mut cap = DrmGetCap {
        capability: uapi::DRM_CAP_SYNCOBJ,
        value: 0,
    };
    drm::ioctl(drm.fd(), uapi::DRM_IOCTL_GET_CAP, &mut cap, || {
        "GET_CAP(SYNCOBJ)".to_string()
    })?;
    check_eq!(cap.value, 1, "DRM_CAP_SYNCOBJ");
    let (a, _) = patterns();
    for place in PLACES {
        let (x, y, z) = (
            Side::new(&drm, Place::Vram)?,
            Side::new(&drm, place)?,
            Side::new(&drm, Place::System)?,
        );
        x.map.fill(a);
        let (first, second) = (SyncObj::new(drm.fd())?, SyncObj::new(drm.fd())?);
        expect_errno("a wait without a fence", first.wait(0), libc::EINVAL)?;
        drm.copy_syncs(&argument(&x.object, &y.object), &[], &[first.sync(0)])?;
        drm.copy_syncs(
            &argument(&y.object, &z.object),
            &[first.sync(0)],
            &[second.sync(0)],
        )?;
        second.wait(i64::MAX)?;
        first.wait(0)?;
        holds(&z.map, a, &format!("by way of {place:?}"))?;
    }
    Ok(())
}

/// A copy of another process does not begin while its dependency has not signalled. The call itself
/// returns, unless it `waits`, because the CPU is about to access the buffer of another device.
#[track_caller]
fn held_back(
    drm: &Drm,
    timeline: &Timeline,
    (src, dst): (&Side<'_>, &Side<'_>),
    ins: &[SyncEntry],
    waits: bool,
) -> Outcome {
    let (a, b) = patterns();
    src.map.fill(a);
    dst.map.fill(b);
    let mut child = Child::spawn(|| {
        drm.copy_syncs(&argument(&src.object, &dst.object), ins, &[])?;
        Ok(())
    })?;
    if waits {
        let asleep = misc::poll(LIMIT, || (child.state() == Some('S')).then_some(()));
        check!(
            asleep.is_some(),
            "the copy does not wait: {:?}",
            child.state()
        );
    } else {
        child.join("the call", LIMIT)?;
    }
    // All work that does not wait for the dependency is done now.
    let other = Drm::open()?;
    let (one, two) = (other.create(1)?, other.create(1)?);
    other.copy((&one, 0), (&two, 0), 1)?.finish()?;
    holds(&dst.map, b, "before the fence")?;
    check!(
        !waits || child.ended().is_none(),
        "the copy did not wait for the fence"
    );
    timeline.step()?;
    if waits {
        child.join("the copy", LIMIT)?;
    }
    // The copy behind it in the queue is done, so it is done, too.
    drm.copy((&dst.object, 0), (&src.object, 0), SIZE)?
        .finish()?;
    holds(&dst.map, a, "after the fence")
}

/// The fence of a sync file that was put into a sync object holds a copy back.
fn in_sync_file() -> Outcome {
    let drm = Drm::open()?;
    let (src, dst) = (
        Side::new(&drm, Place::System)?,
        Side::new(&drm, Place::Vram)?,
    );
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    check!(!fence.poll(0)?, "the fence of the test has signalled");
    let object = SyncObj::of(drm.fd(), &fence)?;
    held_back(&drm, &timeline, (&src, &dst), &[object.sync(0)], false)
}

/// How often to check for a copy that is under way.
const LOOKS: u32 = 40;

/// Implicit fences: reads wait for writes, writes wait for reads and writes, reads do not wait for
/// reads.
fn implicit() -> Outcome {
    let drm = Drm::open()?;
    let timeline = Timeline::new()?;
    let mut step = 0;
    for place in PLACES {
        let (src, dst) = (Side::new(&drm, place)?, Side::new(&drm, Place::System)?);
        let (read, write) = (uapi::DMA_BUF_SYNC_READ, uapi::DMA_BUF_SYNC_WRITE);
        let (from, to) = (src.object.export()?, dst.object.export()?);
        for (buffer, usage) in [(&from, write), (&to, write), (&to, read)] {
            step += 1;
            buffer.add_fence(usage, &timeline.fence(step)?)?;
            let waits = std::ptr::eq(buffer, &from) && matches!(place, Place::Foreign(_));
            held_back(&drm, &timeline, (&src, &dst), &[], waits)?;
        }

        // A read that is under way does not delay another read.
        let (a, _) = patterns();
        src.map.fill(a);
        step += 1;
        from.add_fence(read, &timeline.fence(step)?)?;
        let copy = drm.copy((&src.object, 0), (&dst.object, 0), SIZE)?;
        copy.finish()?;
        holds(&dst.map, a, "beside a read")?;
        check!(
            !from.sync_file(write)?.poll(0)?,
            "a write would not wait for the read"
        );
        timeline.step()?;
        check!(from.sync_file(write)?.poll(1000)?, "the read is over");
        // The copy that is under way, behind long ones, is a write, and reads wait for it. It may
        // be done before the check.
        let large = 4 << 20;
        let (one, two) = (drm.create(large)?, drm.create(large)?);
        let mut waits = false;
        for _ in 0..LOOKS {
            for _ in 0..3 {
                drm.copy((&one, 0), (&two, 0), large)?;
            }
            drm.copy((&src.object, 0), (&dst.object, 0), SIZE)?;
            waits = !to.sync_file(read)?.poll(0)?;
            if waits {
                break;
            }
        }
        check!(waits, "a read never waits for the copy");
        // The fence of the copy is an implicit fence of the buffer.
        check!(to.sync_file(read)?.poll(20_000)?, "the write of the copy");
    }
    Ok(())
}

fn badinput() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, _) = patterns();
    let (src, dst) = (
        Side::new(&drm, Place::Vram)?,
        Side::new(&drm, Place::Foreign(KINDS[0]))?,
    );
    dst.map.fill(a);
    let good = argument(&src.object, &dst.object);
    for bad in [
        VvramGemCopy {
            size: SIZE + 1,
            ..good
        },
        VvramGemCopy {
            src_offset: 1,
            ..good
        },
        VvramGemCopy {
            dst_offset: 1,
            ..good
        },
        VvramGemCopy {
            dst_offset: SIZE,
            size: 1,
            ..good
        },
    ] {
        let given = format!("{bad:x?}");
        expect_errno(&given, drm.copy_raw(&bad), libc::EINVAL)?;
        holds(&dst.map, a, &given)?;
    }
    drop((src, dst));
    drm.await_vram_free(free)
}

/// An unbind with copies in the queue: all of their fences signal.
fn unbind() -> Outcome {
    let gpu = PciDevice::vvram()?;
    for place in PLACES {
        let mut fences = Vec::new();
        {
            let drm = Drm::open()?;
            let (src, dst) = (Side::new(&drm, place)?, Side::new(&drm, Place::Vram)?);
            for round in 0..32 {
                let (from, to) = match round % 2 {
                    0 => (&src, &dst),
                    _ => (&dst, &src),
                };
                fences.push(drm.copy((&from.object, 0), (&to.object, 0), SIZE)?);
            }
            let gone = Unbinding::start(&gpu)?.finish(LIMIT)?;
            for fence in &fences {
                fence.finish()?;
            }
            expect_errno(
                "a copy after the unbind",
                drm.copy((&src.object, 0), (&dst.object, 0), SIZE),
                libc::ENODEV,
            )?;
            gone.rebind()?;
        }
        for fence in &fences {
            fence.finish()?;
        }
    }
    works()
}

/// Several processes copy at the same time, in opposite directions, with VRAM too small for all.
fn many() -> Outcome {
    let free = Drm::open()?.vram_free()?;
    let buffers: Vec<_> = (0..2)
        .map(|_| make(Kind::Heap, PAGES))
        .collect::<Result<_, _>>()?;
    let mut children = Vec::new();
    for client in 0..4u64 {
        let buffers = &buffers;
        children.push(Child::spawn(move || {
            let drm = Drm::open()?;
            let (a, _) = patterns();
            let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
            // Both processes of a pair take the same two reservations, in opposite order.
            let shared = [
                drm.import(&buffers[(client % 2) as usize].buffer)?,
                drm.import(&buffers[((client + 1) % 2) as usize].buffer)?,
            ];
            let objects = [
                drm.create_flags(size / 2, EITHER)?,
                drm.create_flags(size / 2, EITHER)?,
            ];
            let maps = [objects[0].map()?, objects[1].map()?];
            for round in 0..3 * misc::soak() {
                let pattern = a.derive(round);
                maps[0].fill_pages(pattern, 0, PAGES);
                drm.copy((&shared[0], 0), (&shared[1], 0), SIZE)?;
                drm.copy((&objects[0], 0), (&objects[1], 0), size / 2)?
                    .finish()?;
                check_ok!(
                    maps[1].verify_pages(pattern, 0, PAGES),
                    "client {client} in round {round}"
                );
            }
            Ok(())
        })?);
    }
    for child in &mut children {
        child.join("one that copies", 2 * LIMIT)?;
    }
    Drm::open()?.await_vram_free(free)
}

igt_main! {
    "placements", "from each kind of memory to each", placements;
    "offsets", "any bytes, compared with a copy by the CPU", offsets;
    "overlap", "ranges of one object may touch, not overlap", overlap;
    "imported-twice", "ranges of one imported buffer may not overlap either", imported_twice;
    "fragmented", "VRAM in pieces", fragmented;
    "moving", "objects that move before and after a copy", moving;
    "chain", "copies are done in their order", chain;
    "closed", "objects that are closed before the copy is done", closed;
    "syncobj", "fences in sync objects", syncobj;
    "in-sync-file", "a sync file holds a copy back", in_sync_file;
    "implicit", "what others do with the objects, and the copy for others", implicit;
    "badinput", "parts that are outside of an object by a byte", badinput;
    "unbind", "all fences signal", unbind;
    "many", "processes in each other's way", many;
}
