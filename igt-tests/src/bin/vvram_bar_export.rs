// SPDX-License-Identifier: GPL-2.0

//! Plain ranges of a BAR as dma-bufs, by the driver bar_export in place of vvram.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use vvram_tests::drm::{ioctl, DmaBuf};
use vvram_tests::map::PAGE;
use vvram_tests::misc;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::{check_table, Mode, Peer};
use vvram_tests::rebind::{Unbinding, Unbound};
use vvram_tests::scene::{patterns, peer_reads, peer_writes, works, Expect};
use vvram_tests::uapi::{self, BarExportRange};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop, SysError};

const DRIVER: &str = "bar_export";
const PAGE64: u64 = PAGE as u64;
/// The BAR of ivshmem that is memory.
const MEMORY: u64 = 2;

/// The device with bar_export in place of its own driver, which has it back when this is dropped.
struct Lent {
    gpu: Overridden,
    // Dropped last: binds the driver from before.
    _own: Unbound,
}

struct Overridden(PciDevice);

impl Drop for Overridden {
    fn drop(&mut self) {
        if self.0.driver().as_deref() == Some(DRIVER) {
            let _ = self.0.unbind(DRIVER);
        }
        let _ = self.0.set_override("");
    }
}

impl Lent {
    #[track_caller]
    fn new() -> Result<Self, Stop> {
        let loaded = Command::new("modprobe").arg(DRIVER).status();
        check!(
            loaded.as_ref().is_ok_and(|status| status.success()),
            "modprobe {DRIVER}: {loaded:?}"
        );
        let gpu = PciDevice::vvram()?;
        let own = Unbound::new(&gpu)?;
        let gpu = Overridden(gpu);
        gpu.0.set_override(DRIVER)?;
        gpu.0.bind(DRIVER)?;
        Ok(Self { gpu, _own: own })
    }

    /// Opens the character device.
    #[track_caller]
    fn open(&self) -> Result<File, Stop> {
        let path = format!("/dev/bar-export-{}", self.gpu.0.name());
        let file = misc::poll(Duration::from_secs(5), || {
            OpenOptions::new().read(true).write(true).open(&path).ok()
        });
        file.ok_or_else(|| Stop::fail(format_args!("there is no {path}")))
    }
}

fn export(lender: &File, bar: u64, offset: u64, size: u64) -> Result<DmaBuf, SysError> {
    let mut range = BarExportRange { bar, offset, size };
    let fd = ioctl(
        lender.as_raw_fd(),
        uapi::BAR_EXPORT_IOC_EXPORT,
        &mut range,
        || format!("BAR_EXPORT_IOC_EXPORT({bar}, {offset:#x}, {size:#x})"),
    )?;
    // SAFETY: the ioctl returned a new file descriptor, which nobody else has.
    Ok(DmaBuf::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// A peer writes and reads the range, and nothing beside it.
fn peer() -> Outcome {
    Expect::get()?.need_route()?;
    let lent = Lent::new()?;
    let lender = lent.open()?;
    let peer = Peer::open()?;
    let bar = Bar::open(&lent.gpu.0)?;
    let (a, b) = patterns();
    let (offset, pages) = (5 * PAGE64, 3usize);
    let size = pages as u64 * PAGE64;
    let buffer = export(&lender, MEMORY, offset, size)?;
    check_eq!(buffer.size()?, size, "size of the dma-buf");
    peer.attach(&buffer, Mode::Dynamic)?;
    peer.map()?;

    let table = peer.table()?;
    if let Err(text) = check_table(&table, size) {
        fail!("{text}");
    }
    let seen = misc::coalesce(table.iter().map(|s| (s.dma_address, s.length)));
    if PciDevice::named(peer.name()).translated() {
        check_eq!(seen.len(), 1, "IOVA ranges");
    } else {
        check_eq!(
            seen,
            vec![(bar.start() + offset, size)],
            "the scatter table"
        );
    }

    let first = offset as usize / PAGE;
    let map = bar.map();
    map.fill_pages(b, first - 1, pages + 2);
    peer_writes(&peer, a, &[0, 1, 2])?;
    for page in 0..pages {
        let mut data = vec![0u8; PAGE];
        for (at, byte) in data.iter_mut().enumerate() {
            *byte = map.byte((first + page) * PAGE + at);
        }
        if let Err(mismatch) = a.verify(&data, (page * PAGE) as u64) {
            fail!("page {page} of the range in the BAR: {mismatch}");
        }
    }
    for page in [first - 1, first + pages] {
        if let Err(mismatch) = map.verify_pages(b, page, 1) {
            fail!("page {page} of the BAR, beside the range: {mismatch}");
        }
    }
    peer_reads(&peer, a, &[2, 0, 1])?;
    Ok(())
}

/// Who cannot have peer memory, or cannot let go, is refused.
fn refusals() -> Outcome {
    let lent = Lent::new()?;
    let lender = lent.open()?;
    let peer = Peer::open()?;
    let buffer = export(&lender, MEMORY, 0, PAGE64)?;
    let refused = Expect::get()? == Expect::Refused;
    for (mode, fits) in [
        (Mode::Static, false),
        (Mode::NoP2p, false),
        (Mode::Pinned, false),
        (Mode::Revocable, true),
        (Mode::Dynamic, true),
    ] {
        let result = peer.attach(&buffer, mode);
        if fits && !refused {
            result?;
            peer.detach()?;
        } else {
            expect_errno(
                &format!("attach in mode {mode:?}"),
                result,
                libc::EOPNOTSUPP,
            )?;
        }
    }
    Ok(())
}

/// Ranges that are none.
fn badinput() -> Outcome {
    let lent = Lent::new()?;
    let lender = lent.open()?;
    let (_, len) = lent.gpu.0.bar(MEMORY as usize)?;
    for (bar, offset, size) in [
        (MEMORY, 0, 0),
        (MEMORY, 0, PAGE64 - 1),
        (MEMORY, 1, PAGE64),
        (MEMORY, len, PAGE64),
        (MEMORY, 0, len + PAGE64),
        (MEMORY, PAGE64, u64::MAX - PAGE64 + 1),
        // The registers have less than a page.
        (0, 0, PAGE64),
        // There is none.
        (1, 0, PAGE64),
        (6, 0, PAGE64),
        (u64::MAX, 0, PAGE64),
    ] {
        expect_errno(
            &format!("exporting {size:#x} bytes at {offset:#x} of BAR {bar}"),
            export(&lender, bar, offset, size),
            libc::EINVAL,
        )?;
    }
    export(&lender, MEMORY, len - PAGE64, PAGE64)?;
    let mut range = BarExportRange::default();
    expect_errno(
        "an unknown ioctl",
        ioctl(
            lender.as_raw_fd(),
            uapi::BAR_EXPORT_IOC_EXPORT + 1,
            &mut range,
            || "unknown".to_string(),
        ),
        libc::ENOTTY,
    )
}

/// What is lent is taken back when the driver goes, and an old file lends nothing more.
fn unbind() -> Outcome {
    Expect::get()?.need_route()?;
    let lent = Lent::new()?;
    let lender = lent.open()?;
    let peers = [Peer::open()?, Peer::open()?];
    let buffer = export(&lender, MEMORY, 0, 2 * PAGE64)?;
    let (pattern, _) = patterns();
    for (peer, mode) in peers.iter().zip([Mode::Dynamic, Mode::Revocable]) {
        peer.attach(&buffer, mode)?;
        peer.pin_and_map(mode)?;
        peer_writes(peer, pattern, &[1])?;
    }
    let unbinding = Unbinding::start(&lent.gpu.0)?;
    let gone = unbinding.finish(Duration::from_secs(20))?;
    for peer in &peers {
        check!(
            peer.status()?.invalidations > 0,
            "an importer was not told: {:?}",
            peer.status()?
        );
        expect_errno("map without the driver", peer.map(), libc::ENODEV)?;
    }
    expect_errno(
        "export without the driver",
        export(&lender, MEMORY, 0, PAGE64),
        libc::ENODEV,
    )?;
    gone.rebind()?;
    expect_errno(
        "export by a file from before",
        export(&lender, MEMORY, 0, PAGE64),
        libc::ENODEV,
    )?;
    drop(peers);
    expect_errno(
        "attaching a dma-buf from before",
        Peer::open()?.attach(&buffer, Mode::Dynamic),
        libc::ENODEV,
    )?;
    export(&lent.open()?, MEMORY, 0, PAGE64)?;
    drop(lent);
    works()
}

igt_main! {
    "peer", "a peer reads and writes the range, and nothing beside it", peer;
    "refusals", "who cannot have it, or cannot let go, is refused", refusals;
    "badinput", "EINVAL for ranges that are none", badinput;
    "unbind", "what is lent is taken back when the driver goes", unbind;
}
