// SPDX-License-Identifier: GPL-2.0

//! An RDMA device moves bytes between VRAM of two GPUs and system memory, as each class of
//! importer.

use std::collections::VecDeque;

use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::fabric::{Fabric, CLASSES};
use vvram_tests::fixture::{patterns, placed, Expect};
use vvram_tests::heap;
use vvram_tests::map::PAGE64;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::rdma::{bandwidth, exercise, Buffer, Model, Op, Part};
use vvram_tests::verbs::{expect_status, At, Failure, Pair, Status};
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, uapi, Outcome, Stop};

const SIZE: u64 = 8 * PAGE64;
const EXPORT: u32 = EITHER | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;

/// How a request ended.
type Tried = Result<(), Failure>;

/// Both GPUs, each with the first RDMA device.
fn fabrics() -> Result<Vec<Fabric>, Stop> {
    let fabrics = PciDevice::vvrams()
        .into_iter()
        .map(Fabric::open_on)
        .collect::<Result<Vec<_>, _>>()?;
    match fabrics.len() {
        2 => Ok(fabrics),
        count => fail!("expected two GPUs, saw {count}"),
    }
}

/// An object of vvram that is registered.
struct Registered<'a> {
    fabric: &'a Fabric,
    object: Gem<'a>,
    buffer: Buffer<'a>,
    system: bool,
}

impl<'a> Registered<'a> {
    /// The RDMA device of `by` registers all regions, because a key is valid on one device only.
    fn new(by: &'a Fabric, fabric: &'a Fabric, name: &str, system: bool) -> Result<Self, Stop> {
        let flags = if system { uapi::CREATE_SYSTEM } else { EITHER };
        let object = fabric.drm.create_flags(SIZE, flags)?;
        let buffer = Buffer::shared(&by.nic, name, object.export()?)?;
        Ok(Self {
            fabric,
            object,
            buffer,
            system,
        })
    }

    /// Checks the path of the RDMA device, and the placement of the object.
    fn check(&self, class: Mode) -> Outcome {
        let fabric = self.fabric;
        let (want, place) = if fabric.expect == Expect::Refused {
            let reason = uapi::REASON_NO_ROUTE;
            (fabric.in_system(class, true, reason), SYSTEM)
        } else if self.system {
            let reason = uapi::REASON_SYSTEM_ONLY;
            (fabric.in_system(class, true, reason), SYSTEM)
        } else {
            (fabric.in_vram(class, true), VRAM)
        };
        fabric.check_attached(&self.object, &[want])?;
        placed(&self.object, place)?;
        if place == VRAM {
            // Each page is found through the BAR.
            fabric.bar.locate(self.buffer.map())?;
        }
        Ok(())
    }
}

/// Each pair of memories, each operation, every byte.
fn all_pairs(class: Mode) -> Outcome {
    let fabrics = fabrics()?;
    let by = &fabrics[0];
    by.choose(class)?;
    let objects = [
        Registered::new(by, &fabrics[0], "vram", false)?,
        Registered::new(by, &fabrics[1], "vram of the other GPU", false)?,
        Registered::new(by, &fabrics[0], "system memory of the GPU", true)?,
    ];
    let others = [
        Buffer::shared(&by.nic, "heap", heap::allocate(SIZE)?)?,
        Buffer::host(&by.nic, "host", SIZE)?,
    ];
    let buffers: Vec<_> = objects.iter().map(|o| &o.buffer).chain(&others).collect();
    let pair = Pair::new(&by.nic)?;
    check!(by.nic.atomics(), "the device has no atomic operations");
    let (mut seed, mut count) = (patterns().0.word(0), 0);
    let mut each = |from: Part<'_>, to: Part<'_>| -> Outcome {
        for object in &objects {
            object.check(class)?;
        }
        seed = seed.wrapping_add(100);
        let moved = exercise(&pair, from, to, seed)?;
        println!("{from} -> {to}: {moved} bytes");
        count += 1;
        Ok(())
    };
    for from in &buffers {
        for to in &buffers {
            if from.name() == to.name() {
                let (first, second) = Part::halves(from);
                each(first, second)?;
            } else {
                each(Part::whole(from), Part::whole(to))?;
            }
        }
    }
    check_eq!(count, buffers.len() * buffers.len(), "pairs");
    for object in &objects {
        object.check(class)?;
    }
    Ok(())
}

fn pinned() -> Outcome {
    all_pairs(Mode::Pinned)
}

fn revocable() -> Outcome {
    all_pairs(Mode::Revocable)
}

fn dynamic() -> Outcome {
    all_pairs(Mode::Dynamic)
}

/// A registration comes with an attachment, and goes with it.
fn attachments() -> Outcome {
    let fabric = Fabric::with_route()?;
    for class in CLASSES {
        fabric.choose(class)?;
        let object = fabric.drm.create_flags(SIZE, EITHER)?;
        let pinned = fabric.drm.counter(Counter::VramPinned)?;
        let shared = object.export()?;
        let access = fabric.nic.all_access();
        let one = fabric.nic.register(shared.fd(), 0, SIZE, None, access)?;
        let two = fabric
            .nic
            .register(shared.fd(), PAGE64, PAGE64, None, access)?;
        let entry = fabric.in_vram(class, true);
        fabric.check_attached(&object, &[entry.clone(), entry.clone()])?;
        let held = fabric.drm.counter(Counter::VramPinned)? - pinned;
        check_eq!(
            held,
            if class.needs_pin() { SIZE } else { 0 },
            "pinned VRAM as {class:?}"
        );
        one.close()?;
        fabric.check_attached(&object, &[entry])?;
        two.close()?;
        fabric.check_attached(&object, &[])?;
        check_eq!(
            fabric.drm.counter(Counter::VramPinned)?,
            pinned,
            "pinned VRAM after that"
        );
    }
    Ok(())
}

/// A part of a buffer at an address of the caller's: nothing outside of it can be reached.
fn part() -> Outcome {
    let fabric = Fabric::with_route()?;
    let nic = &fabric.nic;
    const OFFSET: u64 = 2 * PAGE64 + 24;
    const LEN: u64 = 3 * PAGE64 + 100;
    for class in CLASSES {
        fabric.choose(class)?;
        let (a, b) = patterns();
        let object = fabric.drm.create_flags(SIZE, EITHER)?;
        let (map, shared) = (object.map()?, object.export()?);
        map.fill(a);
        let iova = 0x7000_0000_0000 + 24;
        let region = nic.register(shared.fd(), OFFSET, LEN, Some(iova), nic.all_access())?;
        fabric.check_attached(&object, &[fabric.in_vram(class, true)])?;
        placed(&object, VRAM)?;
        fabric.bar.locate(&map)?;
        let host = Buffer::host(nic, "host", SIZE)?;
        host.fill(b)?;
        let pair = Pair::new(nic)?;
        pair.write((host.region(), 0), (&region, 0), LEN as u32)?;
        host.fill(a)?;
        let verify = |when: &str| -> Outcome {
            let written = Model::new(a).with_copy(b, 0, OFFSET, LEN);
            check_ok!(written.verify(&map), "{when}, as {class:?}");
            Ok(())
        };
        verify("after a write to all of it")?;
        let remote = &[Status::REMOTE_ACCESS][..];
        // Soft RoCE reports the second status if a bound is exceeded, for any kind of memory.
        let local = &[Status::LOCAL_PROTECTION, Status::LOCAL_OPERATION];
        let own = (host.region(), 0);
        type Request<'a> = (
            &'a str,
            &'a [Status],
            &'a dyn Fn(&Pair<'_>, At<'_>, u32) -> Tried,
        );
        let requests: [Request<'_>; 4] = [
            ("a write to", remote, &|p, at, len| p.write(own, at, len)),
            ("a read of", remote, &|p, at, len| p.read(at, own, len)),
            ("a write from", local, &|p, at, len| p.write(at, own, len)),
            ("a read into", local, &|p, at, len| p.read(own, at, len)),
        ];
        for (at, len) in [(LEN - 8, 16), (LEN, 1), (u64::MAX, 1)] {
            for (what, status, request) in requests {
                expect_status(
                    &format!("{what} {len} bytes at {at:#x} of {LEN:#x} as {class:?}"),
                    request(&Pair::new(nic)?, (&region, at), len),
                    status,
                )?;
            }
        }
        // The last word that begins inside of the region ends outside of it.
        expect_status(
            &format!("an addition at the end as {class:?}"),
            Pair::new(nic)?.fetch_add(own, (&region, LEN & !7), 1),
            remote,
        )?;
        verify("after requests outside of it")?;
        check_ok!(host.map().verify(a), "a byte from outside of it came here");
    }
    Ok(())
}

/// Buffers that cannot be registered, and the reasons.
fn refused() -> Outcome {
    let fabric = Fabric::open()?;
    let nic = &fabric.nic;
    let access = nic.all_access();
    for class in CLASSES {
        fabric.choose(class)?;
        let object = fabric.drm.create_flags(SIZE, EITHER)?;
        let shared = object.export()?;
        let fd = shared.fd();
        for (what, fd, offset, len, iova, errno) in [
            ("more than there is", fd, 0, SIZE + PAGE64, 0, libc::EINVAL),
            ("behind the end", fd, SIZE, PAGE64, SIZE, libc::EINVAL),
            ("nothing", fd, 0, 0, 0, libc::EINVAL),
            (
                "more than 64 bits",
                fd,
                PAGE64,
                u64::MAX,
                PAGE64,
                libc::EINVAL,
            ),
            (
                "at another offset in the page",
                fd,
                8,
                PAGE64,
                16,
                libc::EINVAL,
            ),
            (
                "what is no dma-buf",
                fabric.drm.fd(),
                0,
                PAGE64,
                0,
                libc::EINVAL,
            ),
            ("what is not open", 1000, 0, PAGE64, 0, libc::EBADF),
        ] {
            expect_errno(
                &format!("registering {what} as {class:?}"),
                nic.register(fd, offset, len, Some(iova), access),
                errno,
            )?;
            fabric.check_attached(&object, &[])?;
        }
        if fabric.expect == Expect::Refused {
            // For an object that is exported in VRAM or not at all, the registration fails with the
            // reason of the refusal.
            let object = fabric.drm.create_flags(SIZE, EXPORT)?;
            let shared = object.export()?;
            expect_errno(
                &format!("registering VRAM without a route as {class:?}"),
                nic.register(shared.fd(), 0, SIZE, None, access),
                libc::EOPNOTSUPP,
            )?;
            fabric.check_attached(&object, &[fabric.refused(class, uapi::REASON_NO_ROUTE)])?;
            placed(&object, VRAM)?;
        }
    }
    Ok(())
}

/// A region of a dma-buf has no on-demand paging, so there is nothing to prefetch.
fn prefetch() -> Outcome {
    let fabric = Fabric::open()?;
    let nic = &fabric.nic;
    for class in CLASSES {
        fabric.choose(class)?;
        let object = fabric.drm.create_flags(SIZE, EITHER)?;
        let shared = object.export()?;
        let region = nic.register(shared.fd(), 0, SIZE, None, nic.all_access())?;
        expect_errno(
            &format!("prefetching as {class:?}"),
            region.prefetch(PAGE64 as u32),
            libc::EINVAL,
        )?;
    }
    Ok(())
}

/// Words that are not aligned have no atomic operation: the request is not even posted.
fn misaligned() -> Outcome {
    let fabric = Fabric::open()?;
    let host = Buffer::host(&fabric.nic, "host", PAGE64)?;
    for class in CLASSES {
        fabric.choose(class)?;
        let object = fabric.drm.create_flags(SIZE, EITHER)?;
        let buffer = Buffer::shared(&fabric.nic, "vram", object.export()?)?;
        let pair = Pair::new(&fabric.nic)?;
        let (result, half) = ((host.region(), 0), (buffer.region(), 4));
        expect_errno(
            &format!("adding to half of two words as {class:?}"),
            pair.post_fetch_add(result, half, 1),
            libc::EINVAL,
        )?;
    }
    Ok(())
}

/// Two queue pairs add to one word at the same time, and no addition is lost.
fn concurrent() -> Outcome {
    const ADDITIONS: u64 = 200;
    let fabric = Fabric::with_route()?;
    let host = Buffer::host(&fabric.nic, "host", PAGE64)?;
    let (one, other) = (Pair::new(&fabric.nic)?, Pair::new(&fabric.nic)?);
    for class in CLASSES {
        fabric.choose(class)?;
        let object = fabric.drm.create_flags(SIZE, EXPORT)?;
        let map = object.map()?;
        let buffer = Buffer::shared(&fabric.nic, "vram", object.export()?)?;
        let word = (buffer.region(), 8);
        let mut posted = VecDeque::new();
        for _ in 0..ADDITIONS {
            for (pair, add) in [(&one, 1), (&other, 1 << 32)] {
                posted.push_back((pair, pair.post_fetch_add((host.region(), 0), word, add)?));
            }
            while posted.len() > 64 {
                if let Some((pair, ticket)) = posted.pop_front() {
                    pair.wait(ticket)?;
                }
            }
        }
        for (pair, ticket) in posted {
            pair.wait(ticket)?;
        }
        fabric.check_attached(&object, &[fabric.in_vram(class, true)])?;
        placed(&object, VRAM)?;
        let sum = ADDITIONS << 32 | ADDITIONS;
        check_eq!(map.read(1), sum, "the sum as {class:?}");
    }
    Ok(())
}

/// Many requests at once; prints the rate relative to that of host memory in the same run.
fn speed() -> Outcome {
    const LEN: u64 = 64 * PAGE64;
    let fabric = Fabric::with_route()?;
    fabric.choose(Mode::Pinned)?;
    let object = fabric.drm.create_flags(LEN, EITHER)?;
    let vram = Buffer::shared(&fabric.nic, "vram", object.export()?)?;
    fabric.check_attached(&object, &[fabric.in_vram(Mode::Pinned, true)])?;
    placed(&object, VRAM)?;
    let hosts = [
        Buffer::host(&fabric.nic, "host", LEN)?,
        Buffer::host(&fabric.nic, "other host", LEN)?,
    ];
    let pair = Pair::new(&fabric.nic)?;
    let (from, host, vram) = (
        Part::whole(&hosts[0]),
        Part::whole(&hosts[1]),
        Part::whole(&vram),
    );
    for op in [Op::Write, Op::Read] {
        let reference = bandwidth(&pair, op, from, host, LEN, 1)?;
        for (from, to) in [(from, vram), (vram, host)] {
            let speed = bandwidth(&pair, op, from, to, LEN, 2)?;
            println!(
                "{} {from} -> {to}: {:.1} MB/s, {:.2} of host -> host",
                op.name(),
                speed / 1e6,
                speed / reference
            );
        }
    }
    Ok(())
}

igt_main! {
    "pinned", "all pairs of memories as an importer that stays pinned", pinned;
    "revocable", "all pairs as one that is pinned until it is revoked", revocable;
    "dynamic", "all pairs as one that follows moves", dynamic;
    "attachments", "come and go with regions, and what they pin", attachments;
    "part", "a part of a buffer at another address, and its bounds", part;
    "refused", "what cannot be registered", refused;
    "prefetch", "a region without on-demand paging", prefetch;
    "misaligned", "an atomic operation on a word that is not aligned", misaligned;
    "concurrent", "atomic operations of two queue pairs on one word", concurrent;
    "speed", "many requests at once", speed;
}
