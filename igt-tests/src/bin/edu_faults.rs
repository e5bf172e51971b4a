// SPDX-License-Identifier: GPL-2.0

//! A peer that does not do what it should, and one that does several things at once: the modelled
//! edu, which is told what to do wrong.
//!
//! What the device does not do has to be an error, or to be seen in the bytes: a transfer that has
//! not happened must not look like one that has.

use std::time::Duration;

use vvram_tests::drm::{DmaBuf, Drm};
use vvram_tests::edu::{Edu, Error};
use vvram_tests::fixture::{
    cpu_reads, patterns, peer_reads, peer_writes, share, works, Expect, Fixture,
};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::rebind::Unbinding;
use vvram_tests::uapi::{
    self, DMA_BUF_SYNC_END as END, DMA_BUF_SYNC_READ as READ, DMA_BUF_SYNC_WRITE as WRITE,
};
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(20);
/// How many pages the buffers have.
const PAGES: usize = 4;
/// For how long the driver waits for a transfer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Later than any test ends, in ms.
const NEVER: u32 = 3_600_000;
const DRIVER: &str = "edu_peer";

/// A buffer in system memory with a pattern, which a peer is attached to.
struct Setup {
    peer: Peer,
    buffer: DmaBuf,
    map: Map,
    a: Pattern,
    b: Pattern,
}

impl Setup {
    fn new() -> Result<Self, Stop> {
        let (a, b) = patterns();
        let (drm, peer) = (Drm::open()?, Peer::open()?);
        let object = drm.create_flags((PAGES * PAGE) as u64, uapi::CREATE_SYSTEM)?;
        let buffer = object.export()?;
        let map = buffer.map()?;
        buffer.sync(READ | WRITE)?;
        map.fill(a);
        buffer.sync(READ | WRITE | END)?;
        peer.attach_and_map(&buffer, Mode::Static)?;
        Ok(Self {
            peer,
            buffer,
            map,
            a,
            b,
        })
    }

    /// Compares pages of the buffer, as the CPU sees them, with a pattern.
    fn has(&self, pattern: Pattern, pages: &[usize]) -> Outcome {
        self.buffer.sync(READ)?;
        cpu_reads(&self.map, pattern, pages)?;
        Ok(self.buffer.sync(READ | END)?)
    }

    /// Reads the first page by the device, whose bytes have to be all the same.
    fn read_one_byte(&self) -> Result<u8, Stop> {
        let mut data = vec![0u8; PAGE];
        self.peer.read(0, &mut data)?;
        check!(
            data.iter().all(|byte| *byte == data[0]),
            "the device read several bytes"
        );
        Ok(data[0])
    }

    /// Checks that the device does its work again.
    fn recovers(&self) -> Outcome {
        peer_reads(&self.peer, self.a, &[3])?;
        peer_writes(&self.peer, self.b, &[3])?;
        self.has(self.b, &[3])
    }
}

fn happened(edu: &Edu, before: u64, count: u64) -> Outcome {
    check_eq!(edu.faults() - before, count, "errors of the device");
    Ok(())
}

/// A transfer that does not finish is stopped, and the device can be used again.
fn timeout() -> Outcome {
    let edu = Edu::open()?;
    let it = Setup::new()?;
    let before = edu.faults();
    // The first transfer brings the bytes to the device.
    edu.inject(Error::Hang, 1, 1);
    let mut data = vec![0u8; PAGE];
    it.b.fill(&mut data, 0);
    expect_errno("a write", it.peer.write(0, &data), libc::ETIMEDOUT)?;
    happened(&edu, before, 1)?;
    it.has(it.a, &[0, 1, 2, 3])?;
    it.recovers()?;
    // The same in the background, with a fence.
    edu.inject(Error::Hang, 3, 1);
    it.peer
        .submit_write(0, &[data.as_slice(), &data].concat())?;
    let fence = it.buffer.sync_file(READ)?;
    check_eq!(fence.status()?, 0, "status of the fence of a transfer");
    check!(fence.wait(LIMIT)?, "the fence does not signal");
    check_eq!(fence.status()?, -libc::ETIMEDOUT, "status of the fence");
    expect_errno("FINISH", it.peer.finish_write(), libc::ETIMEDOUT)?;
    happened(&edu, before, 2)?;
    it.has(it.b, &[0])?;
    it.has(it.a, &[1, 2])?;
    works()
}

/// A device that does not even stop is cut off from memory, and no driver is bound until it has
/// stopped.
fn stuck() -> Outcome {
    let pci = PciDevice::edu()?;
    let edu = Edu::open()?;
    {
        let it = Setup::new()?;
        edu.inject(Error::Stuck, 0, 1);
        let mut data = vec![0u8; PAGE];
        for (round, errno) in [libc::ETIMEDOUT, libc::EIO, libc::EIO].iter().enumerate() {
            expect_errno(&format!("read {round}"), it.peer.read(0, &mut data), *errno)?;
            check!(
                data.iter().all(|byte| *byte == 0),
                "a read that failed returned bytes"
            );
            check!(!pci.is_master()?, "it is a bus master");
        }
    }
    let gone = Unbinding::start(&pci)?.finish(LIMIT)?;
    expect_errno("a bind", pci.bind(DRIVER), libc::EBUSY)?;
    check!(!pci.is_master()?, "it is a bus master without a driver");
    edu.forgive();
    gone.rebind()?;
    drop(edu);
    works()
}

/// Bus mastering begins and ends with the driver.
fn unbound() -> Outcome {
    let pci = PciDevice::edu()?;
    check!(pci.is_master()?, "it is no bus master");
    let gone = Unbinding::start(&pci)?.finish(LIMIT)?;
    check!(!pci.is_master()?, "it is a bus master without a driver");
    gone.rebind()?;
    check!(pci.is_master()?, "it is no bus master after a rebind");
    works()
}

/// A transfer that takes longer than most is done, and of one that takes too long nothing arrives
/// when its time has come.
fn late() -> Outcome {
    let edu = Edu::open()?;
    let it = Setup::new()?;
    edu.delay(TIMEOUT / 4);
    peer_writes(&it.peer, it.b, &[1])?;
    it.has(it.b, &[1])?;
    edu.delay(Duration::ZERO);
    let mut data = vec![0u8; PAGE];
    it.b.fill(&mut data, 0);
    let finished = edu.finished();
    edu.delay(TIMEOUT + TIMEOUT / 4);
    expect_errno("a write", it.peer.write(0, &data), libc::ETIMEDOUT)?;
    std::thread::sleep(TIMEOUT / 2);
    check_eq!(edu.finished(), finished, "transfers that were finished");
    it.has(it.a, &[0, 2])?;
    edu.delay(Duration::ZERO);
    it.recovers()
}

/// Writes that do not arrive are seen by who compares the bytes.
fn dropped_writes() -> Outcome {
    let edu = Edu::open()?;
    let it = Setup::new()?;
    let before = edu.faults();
    edu.inject(Error::NoWrite, 0, 1);
    peer_writes(&it.peer, it.b, &[0, 1])?;
    happened(&edu, before, 1)?;
    it.has(it.a, &[0])?;
    it.has(it.b, &[1])?;
    // What the device has read does not reach the driver: it must not return what it returned
    // before.
    peer_reads(&it.peer, it.a, &[0])?;
    edu.inject(Error::NoWrite, 0, 1);
    it.read_one_byte()?;
    happened(&edu, before, 2)?;
    it.recovers()
}

/// Reads that do not arrive are seen as well.
fn dropped_reads() -> Outcome {
    let edu = Edu::open()?;
    let it = Setup::new()?;
    let before = edu.faults();
    // The device has the bytes of the same page of before, which must not look like those it read.
    peer_reads(&it.peer, it.a, &[0])?;
    edu.inject(Error::NoRead, 1, 1);
    let one = it.read_one_byte()?;
    edu.inject(Error::NoRead, 1, 1);
    let other = it.read_one_byte()?;
    check!(one != other, "two reads returned {one:#x}");
    happened(&edu, before, 2)?;
    // The bytes of the driver do not reach the device, which writes those of the page before.
    peer_writes(&it.peer, it.b, &[1])?;
    edu.inject(Error::NoRead, 0, 1);
    let mut data = vec![0u8; PAGE];
    it.b.fill(&mut data, 2 * PAGE64);
    it.peer.write(2 * PAGE64, &data)?;
    happened(&edu, before, 3)?;
    it.b.fill(&mut data, PAGE64);
    it.buffer.sync(READ)?;
    for (at, byte) in data.iter().enumerate() {
        check_eq!(it.map.byte(2 * PAGE + at), *byte, "byte {at} of page 2");
    }
    it.buffer.sync(READ | END)?;
    it.recovers()
}

/// Reads that a bridge answers with ones.
fn ones() -> Outcome {
    let edu = Edu::open()?;
    let it = Setup::new()?;
    edu.inject(Error::Ones, 1, 1);
    check_eq!(it.read_one_byte()?, 0xff, "what the device read");
    it.recovers()
}

/// Checks that writes that are on their way at the end of a transfer have arrived when its fence
/// signals, and when a call returns.
fn flushed(edu: &Edu, peer: &Peer, map: &Map, buffer: &DmaBuf) -> Outcome {
    let (before, late) = edu.posted();
    let (a, b) = patterns();
    edu.inject(Error::Post, 0, NEVER);
    let mut data = vec![0u8; PAGES * PAGE];
    a.fill(&mut data, 0);
    peer.submit_write(0, &data)?;
    let fence = buffer.sync_file(READ)?;
    check!(fence.wait(LIMIT)?, "the fence does not signal");
    // By the CPU: an access to a register of the device would let them arrive.
    cpu_reads(map, a, &[0, 1, 2, 3])?;
    check_eq!(fence.status()?, 1, "status of the fence");
    check_eq!(
        peer.finish_write()?,
        (PAGES * PAGE) as u64,
        "bytes of the transfer"
    );
    b.fill(&mut data, 0);
    peer.write(0, &data)?;
    cpu_reads(map, b, &[0, 1, 2, 3])?;
    // What was read goes to memory of the driver.
    peer_reads(peer, b, &[0, 1, 2, 3])?;
    let posted = edu.posted();
    edu.forgive();
    check_eq!(
        posted,
        (before + 3 * PAGES as u64, late),
        "writes that a read of a register has flushed, and others"
    );
    Ok(())
}

fn posted() -> Outcome {
    let edu = Edu::open()?;
    let it = Setup::new()?;
    it.buffer.sync(READ | WRITE)?;
    flushed(&edu, &it.peer, &it.map, &it.buffer)?;
    it.buffer.sync(READ | WRITE | END)?;
    if Expect::get()? == Expect::Refused {
        return Ok(());
    }
    let fixture = Fixture::open()?;
    let shared = share(&fixture.drm, PAGES)?;
    fixture.peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    flushed(&edu, &fixture.peer, &shared.map, &shared.buffer)?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)
}

/// Transfers of several files are done at the same time, as many as the device has channels, and
/// each moves its own bytes.
fn parallel() -> Outcome {
    let edu = Edu::open()?;
    let channels = edu.channels() as usize;
    check!(channels > 1, "the device has {channels} channels");
    let all = (0..channels + 2)
        .map(|_| Setup::new())
        .collect::<Result<Vec<_>, _>>()?;
    edu.delay(Duration::from_millis(50));
    edu.most();
    let mut data = vec![0u8; PAGES * PAGE];
    for it in &all {
        it.b.fill(&mut data, 0);
        it.peer.submit_write(0, &data)?;
    }
    for it in &all {
        check_eq!(
            it.peer.finish_write()?,
            (PAGES * PAGE) as u64,
            "bytes of a transfer"
        );
    }
    check_eq!(edu.most() as usize, channels, "transfers at the same time");
    edu.delay(Duration::ZERO);
    for it in &all {
        it.has(it.b, &[0, 1, 2, 3])?;
        peer_reads(&it.peer, it.b, &[0, 3])?;
    }
    // One that hangs does not hold up the others.
    let before = edu.faults();
    edu.inject(Error::Hang, 0, 1);
    all[0].peer.submit_read(0, PAGE)?;
    let hangs = misc::poll(LIMIT, || (edu.faults() > before).then_some(()));
    check!(hangs.is_some(), "the transfer does not begin");
    peer_reads(&all[1].peer, all[1].b, &[0, 3])?;
    let busy = all[0].peer.status()?.flags & uapi::EDU_PEER_STATUS_BUSY;
    check_eq!(busy, uapi::EDU_PEER_STATUS_BUSY, "the one that hangs");
    expect_errno(
        "FINISH",
        all[0].peer.finish_read(&mut data[..PAGE]),
        libc::ETIMEDOUT,
    )?;
    check!(
        edu.reports() == 0,
        "the device has accessed memory that is not mapped"
    );
    Ok(())
}

igt_main! {
    "timeout", "a transfer that hangs ends with ETIMEDOUT, and the device goes on", timeout;
    "stuck", "one that cannot be stopped ends bus mastering", stuck;
    "unbound", "bus mastering ends with the driver", unbound;
    "late", "what comes too late does not come at all", late;
    "dropped-writes", "lost writes are seen in the bytes", dropped_writes;
    "dropped-reads", "lost reads are seen in the bytes", dropped_reads;
    "ones", "reads that are answered with ones", ones;
    "posted", "posted writes have arrived when a fence signals", posted;
    "parallel", "transfers of several files at the same time", parallel;
}
