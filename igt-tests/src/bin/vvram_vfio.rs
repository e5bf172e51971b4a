// SPDX-License-Identifier: GPL-2.0

//! Ranges of a BAR as dma-bufs of vfio-pci, in place of vvram.

use vvram_tests::drm::DmaBuf;
use vvram_tests::fixture::{leads_to, patterns, peer_reads, peer_writes, works, Expect};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::rebind::Unbound;
use vvram_tests::vfio::Vfio;
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome, Stop};

/// The BAR of ivshmem that shows the memory.
const MEMORY: u32 = 2;
/// Pages in the order of the buffer: two adjacent ones, and one before them.
const PAGES: [u64; 3] = [9, 10, 3];

/// The device with vfio-pci in place of its own driver, and a buffer of its BAR.
struct VfioBar {
    buffer: DmaBuf,
    vfio: Vfio,
    bar: Bar,
    // Dropped last; the drop binds the old driver again.
    _own: Unbound,
}

impl VfioBar {
    fn new() -> Result<Self, Stop> {
        let gpu = PciDevice::vvram()?;
        let own = Unbound::new(&gpu)?;
        let vfio = Vfio::open(&gpu)?;
        let buffer = vfio.export(MEMORY, &PAGES.map(|page| (page * PAGE64, PAGE64)))?;
        Ok(Self {
            buffer,
            vfio,
            bar: Bar::open(&gpu)?,
            _own: own,
        })
    }

    /// Makes a peer, which has the buffer mapped, write all of it, and reads the bytes through the
    /// BAR by the CPU.
    fn written_by(&self, peer: &Peer, round: u64) -> Outcome {
        let pattern = patterns().0.derive(round);
        leads_to(peer, &self.bar, &PAGES)?;
        peer_writes(peer, pattern, &[2, 0, 1])?;
        for (page, at) in PAGES.iter().enumerate() {
            check_eq!(
                self.bar.word(at * PAGE64),
                pattern.word((page * PAGE / 8) as u64),
                "first word of page {at} in round {round}"
            );
        }
        peer_reads(peer, pattern, &[0, 1, 2])
    }
}

/// Each mapping leads to the BAR.
fn again() -> Outcome {
    let bar = VfioBar::new()?;
    let peer = Peer::open()?;
    peer.attach(&bar.buffer, Mode::Dynamic)?;
    if Expect::get()? == Expect::Refused {
        expect_errno("map without a route", peer.map(), libc::EINVAL)?;
    } else {
        for round in 0..3 {
            peer.map()?;
            bar.written_by(&peer, round)?;
            peer.unmap()?;
        }
    }
    drop((peer, bar));
    works()
}

/// Each attachment has a scatter table of its own.
fn several() -> Outcome {
    Expect::get()?.need_route()?;
    let bar = VfioBar::new()?;
    let peers = [Peer::open()?, Peer::open()?, Peer::open()?];
    for (peer, mode) in peers
        .iter()
        .zip([Mode::Dynamic, Mode::Revocable, Mode::Dynamic])
    {
        peer.attach_and_map(&bar.buffer, mode)?;
    }
    for (round, peer) in (0..).zip(&peers) {
        bar.written_by(peer, round)?;
    }
    let [first, second, _] = &peers;
    first.unmap()?;
    second.detach()?;
    first.map()?;
    for (round, peer) in (3..).zip([&peers[2], first]) {
        bar.written_by(peer, round)?;
    }
    Ok(())
}

/// While the memory of the device is disabled no importer has a mapping, and afterwards all
/// importers can map again.
fn revoked() -> Outcome {
    Expect::get()?.need_route()?;
    let bar = VfioBar::new()?;
    let peer = Peer::open()?;
    peer.attach(&bar.buffer, Mode::Dynamic)?;
    for round in 0..2 {
        peer.map()?;
        bar.written_by(&peer, round)?;
        let invalidated = peer.status()?.invalidations;
        bar.vfio.set_memory(false)?;
        check!(
            peer.status()?.invalidations > invalidated,
            "the importer was not notified: {:?}",
            peer.status()?
        );
        expect_errno("map without memory", peer.map(), libc::ENODEV)?;
        expect_errno(
            "attach without memory",
            Peer::open()?.attach(&bar.buffer, Mode::Dynamic),
            libc::ENODEV,
        )?;
        bar.vfio.set_memory(true)?;
    }
    peer.map()?;
    bar.written_by(&peer, 2)
}

igt_main! {
    "again", "a buffer that is mapped again leads to the same place", again;
    "several", "each attachment has a table of its own", several;
    "revoked", "a revoked buffer cannot be mapped until it is given back", revoked;
}
