// SPDX-License-Identifier: GPL-2.0

//! The modelled GPU goes away while its ring hangs, or is removed by surprise, or is unplugged, while
//! peers have its memory mapped and it has theirs: no task waits for ever.

use std::time::Duration;

use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{holds, replug, Error, Impatient, Mgpu, DRIVER, EITHER};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Peer;
use vvram_tests::rebind::Unbinding;
use vvram_tests::scene::{mapped_by_peer, patterns, peer_reads};
use vvram_tests::syncfile::SyncFile;
use vvram_tests::uapi::COPIES_MAX;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome, Stop};

const SIZE: u64 = 16 * PAGE as u64;
const LIMIT: Duration = Duration::from_secs(40);

/// Waits for copies, of which the first one must not have been done, and returns how they ended.
fn ends(copies: &[SyncFile]) -> Result<Vec<i32>, Stop> {
    let ends = copies
        .iter()
        .map(|copy| {
            check!(copy.wait(LIMIT)?, "a fence does not signal");
            Ok(copy.status()?)
        })
        .collect::<Result<Vec<_>, Stop>>()?;
    check!(ends[0] < 0, "the first copy was done: {ends:?}");
    Ok(ends)
}

/// Lets a peer map memory of `gpu` that has the pattern, and queues jobs of `other` which hang and
/// use that memory.
fn in_use(gpu: &Mgpu, other: &Mgpu, pattern: Pattern) -> Result<(Peer, Vec<SyncFile>), Stop> {
    let object = gpu.drm.create_flags(SIZE, EITHER)?;
    object.map()?.fill(pattern);
    let buffer = object.export()?;
    let peer = mapped_by_peer(&buffer, pattern, &[0, 15])?;
    let (import, ours) = (other.drm.import(&buffer)?, other.drm.create(SIZE)?);
    other.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
    other.inject(Error::Hang, 0)?;
    let copies = (0..20)
        .map(|_| other.drm.copy((&import, 0), (&ours, 0), SIZE))
        .collect::<Result<Vec<_>, _>>()?;
    Ok((peer, copies))
}

/// Both GPUs have jobs that hang and that use the memory of the other GPU, and a peer has mapped
/// memory of both. One of them is unbound.
fn hung() -> Outcome {
    let _impatient = Impatient::new()?;
    let name = {
        let [a, b] = Mgpu::pair()?;
        let (x, _) = patterns();
        let (peer, by_b) = in_use(&a, &b, x)?;
        let (other, by_a) = in_use(&b, &a, x)?;
        let gone = Unbinding::start(&a.pci)?.finish(LIMIT)?;
        ends(&by_b)?;
        ends(&by_a)?;
        check!(
            peer.status()?.invalidations > 0,
            "the mappings of the peer stayed"
        );
        expect_errno("a map after that", peer.map(), libc::ENODEV)?;
        peer_reads(&other, x, &[0, 15])?;
        b.clean()?;
        gone.rebind()?;
        a.pci.clone()
    };
    works(&name)
}

/// Checks that the device works.
fn works(pci: &PciDevice) -> Outcome {
    let gpu = Mgpu::open(pci)?;
    let (x, _) = patterns();
    let (from, to) = (gpu.drm.create(SIZE)?, gpu.drm.create(SIZE)?);
    from.map()?.fill(x);
    gpu.drm.copy((&from, 0), (&to, 0), SIZE)?.finish()?;
    holds(&to, x, "after all")?;
    gpu.clean()
}

/// A device is removed by surprise, with jobs that use the memory of another one, whose jobs use
/// its memory, and with a peer.
fn removed() -> Outcome {
    let _impatient = Impatient::new()?;
    let [a, b] = Mgpu::pair()?;
    let (x, y) = patterns();
    let pci = b.pci.clone();
    {
        let lent = a.drm.create_flags(SIZE, EITHER)?;
        lent.map()?.fill(x);
        let own = b.drm.create_flags(SIZE, EITHER)?;
        let map = own.map()?;
        map.fill(y);
        let system = b.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
        let buffer = own.export()?;
        let _peer = mapped_by_peer(&buffer, y, &[0, 15])?;
        let theirs = b.drm.import(&lent.export()?)?;
        let import = a.drm.import(&buffer)?;
        let ours = a.drm.create(SIZE)?;
        a.drm.copy((&import, 0), (&ours, 0), SIZE)?.finish()?;
        b.drm.copy((&theirs, 0), (&system, 0), SIZE)?.finish()?;
        b.inject(Error::Slow, 300)?;
        let copies = (0..20)
            .map(|_| b.drm.copy((&theirs, 0), (&system, 0), SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        b.inject(Error::Removed, 0)?;
        for end in ends(&copies)? {
            check_eq!(end, -libc::ENODEV, "a copy of a device that is gone");
        }
        // The memory that it has exported cannot be used any more, and its importers go on without.
        let copy = a.drm.copy((&import, 0), (&ours, 0), SIZE);
        if let Ok(copy) = copy {
            check!(
                copy.wait(LIMIT)?,
                "a fence of the other GPU does not signal"
            );
        }
        let more = b.drm.copy((&theirs, 0), (&system, 0), SIZE);
        if let Ok(copy) = more {
            check_eq!(ends(&[copy])?, [-libc::ENODEV], "a copy after that");
        }
        holds(&lent, x, "what was lent to it")?;
    }
    drop(b);
    replug(&pci, Some(DRIVER), LIMIT)?;
    works(&a.pci)?;
    a.clean()?;
    drop(a);
    works(&pci)
}

/// A device is unplugged, with slow jobs that use the memory of another one, whose slow jobs use its
/// memory, and with a peer. Its files stay open.
fn unplugged() -> Outcome {
    let [a, b] = Mgpu::pair()?;
    let (x, y) = patterns();
    let pci = b.pci.clone();
    let (lent, ours) = (a.drm.create_flags(SIZE, EITHER)?, a.drm.create(SIZE)?);
    let (own, mine) = (b.drm.create_flags(SIZE, EITHER)?, b.drm.create(SIZE)?);
    lent.map()?.fill(x);
    own.map()?.fill(y);
    let buffer = own.export()?;
    let peer = mapped_by_peer(&buffer, y, &[0, 15])?;
    let (theirs, import) = (b.drm.import(&lent.export()?)?, a.drm.import(&buffer)?);
    let read = || a.drm.copy((&import, 0), (&ours, 0), SIZE);
    let write = || b.drm.copy((&theirs, 0), (&mine, 0), SIZE);
    read()?.finish()?;
    write()?.finish()?;
    ours.map()?.fill(x);
    b.clean()?;

    let before = peer.status()?.invalidations;
    a.inject(Error::Slow, 50)?;
    b.inject(Error::Slow, 100)?;
    let reads = (0..10).map(|_| read()).collect::<Result<Vec<_>, _>>()?;
    let writes = (0..COPIES_MAX)
        .map(|_| write())
        .collect::<Result<Vec<_>, _>>()?;
    replug(&pci, Some(DRIVER), LIMIT)?;

    // The unplug has waited for what the other GPU reads, and for the jobs in the ring.
    for copy in &reads {
        check_eq!(copy.status()?, 1, "status of a copy of the other GPU");
    }
    let ends = writes
        .iter()
        .map(SyncFile::status)
        .collect::<Result<Vec<_>, _>>()?;
    let done = ends.iter().take_while(|end| **end == 1).count();
    check!(
        done < ends.len() && ends[done..].iter().all(|end| *end == -libc::ECANCELED),
        "how its copies ended: {ends:?}"
    );
    check!(
        peer.status()?.invalidations > before,
        "the mappings of the peer stayed"
    );
    for (what, result) in [
        ("a map of the peer", peer.map()),
        ("a copy of the other GPU", read().map(drop)),
        ("a copy of a file that is left", write().map(drop)),
    ] {
        expect_errno(what, result, libc::ENODEV)?;
    }
    a.inject(Error::Slow, 0)?;
    holds(&ours, y, "what the other GPU has read")?;
    holds(&lent, x, "what was lent to it")?;
    Mgpu::open(&pci)?.inject(Error::Slow, 0)?;
    works(&pci)?;
    works(&a.pci)?;
    a.clean()
}

igt_main! {
    "hung", "of two that hang one is unbound, with peers", hung;
    "unplugged", "one is unplugged, with jobs and peers", unplugged;
    "removed", "one is removed by surprise, with jobs and peers", removed;
}
