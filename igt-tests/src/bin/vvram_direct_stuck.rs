// SPDX-License-Identifier: GPL-2.0

//! Direct I/O to VRAM that never ends by itself.
//!
//! The machine bounces all DMA, which is not possible for the memory of a BAR. If the route goes
//! through the host bridge, the mapping fails as if for want of resources, so the block layer tries
//! again every few milliseconds, with the pages pinned. Neither the process nor the driver of the
//! disk can end that.

use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use vvram_tests::disk::{pinned, Disk, Part, Way};
use vvram_tests::drm::{Drm, Gem};
use vvram_tests::fixture::{patterns, placed, Expect};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::proc::{Child, KernelLog, Steps};
use vvram_tests::rebind::Unbound;
use vvram_tests::uapi::{CREATE_DIRECT_IO, CREATE_VRAM, PLACEMENT_VRAM};
use vvram_tests::{check, check_eq, fail, igt_main, Outcome, Stop, SysError};

const LIMIT: Duration = Duration::from_secs(20);
const PAGES: usize = 32;
const SIZE: usize = PAGES * PAGE;
/// Long enough for many retries of the block layer, which tries every three milliseconds.
const MANY: Duration = Duration::from_millis(500);

fn create(drm: &Drm) -> Result<Gem<'_>, SysError> {
    drm.create_flags(SIZE as u64, CREATE_VRAM | CREATE_DIRECT_IO)
}

/// Starts a read that does not end.
fn start(disk: &Disk, map: &Map) -> Result<Receiver<i32>, Stop> {
    let read = disk.direct.start(Way::Read, Part::all(map), 0)?;
    thread::sleep(MANY);
    check!(read.try_recv().is_err(), "the read has ended by itself");
    check_eq!(pinned()?, PAGES as i64, "pages that are pinned");
    Ok(read)
}

/// Checks that the log names an object of this process, for which the driver has waited.
fn is_named(log: &mut KernelLog, id: u64) -> Outcome {
    let wanted =
        format!("waiting for direct I/O to object {id} of {SIZE} bytes, which vvram_direct_st (");
    let lines = log.lines();
    check!(
        lines.iter().any(|line| line.contains(&wanted)),
        "the driver does not say for whom it waits: {wanted}: {lines:?}"
    );
    Ok(())
}

/// The device goes away while a read is stuck: the read fails, and the device is gone.
fn goes(leave: impl FnOnce(&PciDevice) -> Result<Option<Unbound>, Stop>) -> Outcome {
    check_eq!(Expect::get()?, Expect::HostBridge, "the route");
    let (drm, disk) = (Drm::open()?, Disk::open()?);
    let mut log = KernelLog::open()?;
    let object = create(&drm)?;
    let map = object.map()?;
    let id = object.info()?.id;
    let read = start(&disk, &map)?;
    let unbound = leave(&PciDevice::vvram()?)?;
    check_eq!(
        read.recv_timeout(LIMIT),
        Ok(libc::EINVAL),
        "what came of the read"
    );
    is_named(&mut log, id)?;
    check_eq!(pinned()?, 0, "pages that stay pinned");
    if let Some(unbound) = unbound {
        unbound.rebind()?;
    }
    is_there()
}

/// Checks that the device works, without a peer, because no peer reaches it on this machine.
fn is_there() -> Outcome {
    let drm = Drm::open()?;
    let object = create(&drm)?;
    let (map, (a, _)) = (object.map()?, patterns());
    map.fill(a);
    placed(&object, PLACEMENT_VRAM)?;
    if let Err(mismatch) = map.verify(a) {
        fail!("{mismatch}");
    }
    Ok(())
}

fn unbind() -> Outcome {
    goes(|gpu| Ok(Some(Unbound::new(gpu)?)))
}

/// After a reset mappings are permitted again: the next read is stuck as well.
fn reset() -> Outcome {
    for _ in 0..2 {
        goes(|gpu| {
            let mut child = Child::spawn(|| Ok(gpu.reset()?))?;
            child.join("the reset", LIMIT)?;
            Ok(None)
        })?;
    }
    Ok(())
}

/// A process that is killed in a read that is stuck stays until the device goes.
fn killed() -> Outcome {
    let disk = Disk::open()?;
    let begun = Steps::new()?;
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let object = create(&drm)?;
        let map = object.map()?;
        let read = start(&disk, &map)?;
        begun.done()?;
        let _ = read.recv();
        Ok(())
    })?;
    begun.wait("a process that reads", LIMIT)?;
    child.signal(libc::SIGKILL);
    thread::sleep(MANY);
    if let Some(exit) = child.ended() {
        fail!("the process has left its pages: {exit:?}");
    }
    let unbound = Unbound::new(&PciDevice::vvram()?)?;
    check!(child.wait(LIMIT).is_some(), "{}", child.whereabouts());
    let none = misc::poll(LIMIT, || (pinned().ok()? == 0).then_some(()));
    check!(none.is_some(), "{} pages stay pinned", pinned()?);
    unbound.rebind()?;
    is_there()
}

igt_main! {
    "unbind", "an unbind ends I/O that is tried again for ever, and names the process", unbind;
    "reset", "so does a reset, after which all is as before", reset;
    "killed", "a process that was killed in it goes with the device", killed;
}
