// SPDX-License-Identifier: GPL-2.0

//! Memory of processes that the peer accesses by its addresses.

use std::fs;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use crate::dmirror::{Mirror, TestHmm};
use crate::drm::ioctl;
use crate::edu;
use crate::fixture::{patterns, Expect};
use crate::iommu::{is_ram, Way};
use crate::map::{Map, PAGE};
use crate::misc;
use crate::pattern::Pattern;
use crate::pci::PciDevice;
use crate::peer::Peer;
use crate::uapi::{
    self, EduPeerMemoryMeasure, EduPeerMemoryQuery, EduPeerMemoryRegister, EduPeerTransfer,
};
use crate::{Outcome, Stop, SysError};

/// The result of a transfer: how many bytes it has moved, and its error.
pub type Moved = (u64, Result<(), SysError>);

impl Peer {
    /// Registers a range of addresses of this process.
    pub fn register_range(&self, address: u64, size: u64) -> Result<(), SysError> {
        let mut argument = EduPeerMemoryRegister {
            address,
            size,
            ..Default::default()
        };
        ioctl(
            self.fd(),
            uapi::EDU_PEER_IOC_MEMORY_REGISTER,
            &mut argument,
            || format!("EDU_PEER_IOC_MEMORY_REGISTER({address:#x}, {size:#x})"),
        )?;
        Ok(())
    }

    /// Registers a mapping of this process.
    pub fn register(&self, map: &Map) -> Result<(), SysError> {
        self.register_range(map.address().as_ptr() as u64, map.len() as u64)
    }

    /// Ends the registration.
    pub fn unregister(&self) -> Result<(), SysError> {
        self.simple(
            uapi::EDU_PEER_IOC_MEMORY_UNREGISTER,
            "EDU_PEER_IOC_MEMORY_UNREGISTER",
        )
    }

    /// MEMORY_TRANSFER with a given argument.
    ///
    /// # Safety
    ///
    /// As for [`crate::drm::ioctl_raw`]: the kernel may write to the address, and the device to the
    /// registered memory.
    pub unsafe fn memory_transfer_raw(&self, argument: &mut EduPeerTransfer) -> Moved {
        let given = *argument;
        let result = ioctl(
            self.fd(),
            uapi::EDU_PEER_IOC_MEMORY_TRANSFER,
            argument,
            || format!("EDU_PEER_IOC_MEMORY_TRANSFER({given:x?})"),
        );
        (argument.length, result.map(drop))
    }

    /// Makes the device read from registered memory; it may move fewer bytes than requested.
    pub fn memory_try_read(&self, offset: u64, data: &mut [u8]) -> Moved {
        let mut argument = EduPeerTransfer {
            offset,
            length: data.len() as u64,
            data: data.as_mut_ptr() as u64,
            direction: uapi::EDU_PEER_DIRECTION_READ,
            pad: 0,
        };
        // SAFETY: the slice is mutable, and has that length.
        unsafe { self.memory_transfer_raw(&mut argument) }
    }

    /// Makes the device write to registered memory, which is accessed as a [`Map`]; it may move
    /// fewer bytes than requested.
    pub fn memory_try_write(&self, offset: u64, data: &[u8]) -> Moved {
        let mut argument = EduPeerTransfer {
            offset,
            length: data.len() as u64,
            data: data.as_ptr() as u64,
            direction: uapi::EDU_PEER_DIRECTION_WRITE,
            pad: 0,
        };
        // SAFETY: the kernel only reads the slice.
        unsafe { self.memory_transfer_raw(&mut argument) }
    }

    /// MEMORY_QUERY with a given argument.
    pub fn memory_query_raw(&self, argument: &mut EduPeerMemoryQuery) -> Result<(), SysError> {
        let given = *argument;
        ioctl(self.fd(), uapi::EDU_PEER_IOC_MEMORY_QUERY, argument, || {
            format!("EDU_PEER_IOC_MEMORY_QUERY({given:x?})")
        })?;
        Ok(())
    }

    /// How the device reaches a page.
    pub fn memory_page(&self, page: usize) -> Result<EduPeerMemoryQuery, SysError> {
        let mut argument = EduPeerMemoryQuery {
            offset: (page * PAGE) as u64,
            flags: uapi::EDU_PEER_MEMORY_QUERY_MAP,
            ..Default::default()
        };
        self.memory_query_raw(&mut argument)?;
        Ok(argument)
    }

    /// MEMORY_MEASURE with a given argument.
    pub fn memory_measure_raw(&self, argument: &mut EduPeerMemoryMeasure) -> Result<(), SysError> {
        let given = *argument;
        ioctl(
            self.fd(),
            uapi::EDU_PEER_IOC_MEMORY_MEASURE,
            argument,
            || format!("EDU_PEER_IOC_MEMORY_MEASURE({given:x?})"),
        )?;
        Ok(())
    }

    /// Times the page faults of the first `pages` pages.
    pub fn memory_measure(
        &self,
        pages: usize,
        flags: u32,
    ) -> Result<EduPeerMemoryMeasure, SysError> {
        let mut argument = EduPeerMemoryMeasure {
            length: (pages * PAGE) as u64,
            flags,
            ..Default::default()
        };
        self.memory_measure_raw(&mut argument)?;
        Ok(argument)
    }

    /// The counters of the registration.
    pub fn memory_counters(&self) -> Result<EduPeerMemoryQuery, SysError> {
        let mut argument = EduPeerMemoryQuery::default();
        self.memory_query_raw(&mut argument)?;
        Ok(argument)
    }
}

/// Fails unless a transfer moved all bytes of some pages.
///
/// # Errors
///
/// Fails the subtest, or any error of the transfer.
#[track_caller]
pub fn complete((moved, result): Moved, pages: usize) -> Outcome {
    result?;
    check_eq!(moved, (pages * PAGE) as u64, "bytes moved");
    Ok(())
}

/// Fails unless a transfer ended with an error after some pages.
///
/// # Errors
///
/// Fails the subtest if it went on, or failed earlier or in another way.
#[track_caller]
pub fn ended(what: &str, (moved, result): Moved, pages: usize, errno: i32) -> Outcome {
    crate::expect_errno(what, result, errno)?;
    check_eq!(moved, (pages * PAGE) as u64, "bytes moved by {what}");
    Ok(())
}

/// Makes the device read pages of registered memory, and compares them with a pattern.
///
/// # Errors
///
/// Fails the subtest if a page reads differently, or any error of the transfer.
#[track_caller]
pub fn reads(peer: &Peer, pattern: Pattern, pages: &[usize]) -> Outcome {
    for page in pages {
        let offset = (page * PAGE) as u64;
        let mut data = vec![0xa5; PAGE];
        complete(peer.memory_try_read(offset, &mut data), 1)?;
        check_ok!(
            pattern.verify(&data, offset),
            "the peer read page {page} of the process"
        );
    }
    Ok(())
}

/// Makes the device write a pattern to pages of registered memory.
///
/// # Errors
///
/// Fails the subtest if not all bytes were moved, or any error of the transfer.
#[track_caller]
pub fn writes(peer: &Peer, pattern: Pattern, pages: &[usize]) -> Outcome {
    for page in pages {
        let offset = (page * PAGE) as u64;
        complete(peer.memory_try_write(offset, &bytes(pattern, *page, 1)), 1)?;
    }
    Ok(())
}

/// The bytes of a pattern in some pages.
pub fn bytes(pattern: Pattern, first: usize, count: usize) -> Vec<u8> {
    let mut data = vec![0; count * PAGE];
    pattern.fill(&mut data, (first * PAGE) as u64);
    data
}

/// The expected kind of a page of the GPU.
pub fn kind_of(expect: Expect) -> u32 {
    match expect {
        Expect::Bus => uapi::EDU_PEER_MEMORY_KIND_BUS,
        Expect::HostBridge => uapi::EDU_PEER_MEMORY_KIND_HOST_BRIDGE,
        Expect::Refused => uapi::EDU_PEER_MEMORY_KIND_SYSTEM,
    }
}

/// Checks how the device reaches a page, and that its DMA address is in system memory, or in the
/// BAR of the GPU.
///
/// # Errors
///
/// Fails the subtest if the kind or the address is another one.
#[track_caller]
pub fn reached(peer: &Peer, page: usize, kind: u32) -> Outcome {
    let seen = peer.memory_page(page)?;
    check_eq!(seen.kind, kind, "how page {page} is reached");
    check!(
        seen.dma_address != 0 && seen.dma_address.is_multiple_of(PAGE as u64),
        "page {page} has the address {:#x}",
        seen.dma_address
    );
    let range = (seen.dma_address, PAGE as u64);
    let way = Way::of(&PciDevice::named(peer.name()))?;
    let places = way.resolve(&[range]).map_err(Stop::fail)?;
    let (start, len) = PciDevice::vvram()?.bar(2)?;
    let in_bar = |at: u64| (start..start + len).contains(&at);
    check!(
        way == Way::Straight || !in_bar(seen.dma_address),
        "behind an IOMMU page {page} has the address {:#x} of the BAR",
        seen.dma_address
    );
    for (at, len) in places.into_iter().flatten() {
        let there = if kind == uapi::EDU_PEER_MEMORY_KIND_SYSTEM {
            is_ram((at, len))?
        } else {
            in_bar(at)
        };
        check!(
            there,
            "page {page}, reached in way {kind}, is at {at:#x}; BAR 2 starts at {start:#x}"
        );
    }
    Ok(())
}

/// A thread of this process that makes the device move bytes.
#[derive(Debug)]
pub struct Mover(AtomicI32);

impl Mover {
    /// Whether the device moves a piece for the thread.
    pub fn is_moving(&self) -> bool {
        let path = format!("/proc/self/task/{}/stack", self.0.load(Ordering::Relaxed));
        // The driver sleeps there only while it waits for the engine that it has started. Stacks do
        // not show the functions of the sleep itself.
        fs::read_to_string(path).is_ok_and(|stack| {
            let is_run = |line: &str| line.contains("8edu_peer6device") && line.contains("3run");
            stack.lines().any(is_run)
        })
    }
}

/// Runs a transfer in another thread, and `body` once the device moves its first piece. Returns the
/// result of the transfer.
///
/// # Errors
///
/// Fails the subtest if the device does not start, and those of `body`.
#[track_caller]
pub fn during(
    transfer: impl FnOnce() -> Moved + Send,
    body: impl FnOnce(&Mover) -> Outcome,
) -> Result<Moved, Stop> {
    let mover = Mover(AtomicI32::new(0));
    let _slow = edu::slow()?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a plain system call.
            mover.0.store(unsafe { libc::gettid() }, Ordering::Relaxed);
            transfer()
        });
        let moving = misc::poll(Duration::from_secs(10), || {
            (mover.is_moving() || thread.is_finished()).then_some(())
        });
        let outcome = if moving.is_some() && !thread.is_finished() {
            body(&mover)
        } else {
            Err(Stop::fail("the device was not seen to move anything"))
        };
        match (thread.join(), outcome) {
            (Ok(moved), Ok(())) => Ok(moved),
            (Ok((moved, result)), Err(stop)) => Err(Stop::fail(format_args!(
                "{}; the transfer moved {moved} bytes: {result:?}",
                stop.text()
            ))),
            (Err(_), _) => Err(Stop::fail("the thread with the transfer panicked")),
        }
    })
}

/// How many pages of this process most tests register.
pub const PAGES: usize = 4;

/// Memory of this process that is registered and filled with a pattern, and another pattern.
#[derive(Debug)]
pub struct Setup {
    /// The peer.
    pub peer: Peer,
    /// The memory.
    pub map: Map,
    /// The pattern in the memory.
    pub a: Pattern,
    /// The other pattern.
    pub b: Pattern,
}

impl Setup {
    /// Registers a mapping.
    #[track_caller]
    pub fn of(map: Map) -> Result<Self, Stop> {
        let (a, b) = patterns();
        let peer = Peer::open()?;
        map.fill(a);
        peer.register(&map)?;
        Ok(Self { peer, map, a, b })
    }

    /// Registers [`PAGES`] pages.
    #[track_caller]
    pub fn new() -> Result<Self, Stop> {
        Self::of(Map::private(PAGES * PAGE)?)
    }

    /// How often the memory was invalidated.
    pub fn invalidations(&self) -> Result<u64, Stop> {
        Ok(self.peer.memory_counters()?.invalidations)
    }
}

/// A setup whose pages are in the memory of the GPU.
///
/// test_hmm is bound to the GPU in place of vvram. Its mirror of this process tells where each page
/// is, and how many pages have moved to system memory because of page faults.
#[derive(Debug)]
pub struct OnDevice<'a> {
    /// The setup.
    pub setup: &'a Setup,
    /// The mirror of this process in test_hmm.
    pub mirror: &'a Mirror,
    /// How the peer reaches the GPU.
    pub expect: Expect,
}

impl OnDevice<'_> {
    /// How many pages of the GPU page faults have moved to system memory so far.
    pub fn faulted(&self) -> Result<u64, Stop> {
        Ok(self.mirror.faulted(&self.setup.map)?)
    }

    /// Fails unless exactly these pages are on the GPU.
    ///
    /// # Errors
    ///
    /// As above, or any error of the ioctl.
    #[track_caller]
    pub fn check_places(&self, on_device: impl Fn(usize) -> bool) -> Outcome {
        self.mirror.check_places(&self.setup.map, on_device)
    }

    /// Compares the bytes in the memory of the GPU.
    ///
    /// # Errors
    ///
    /// Fails the subtest if they differ.
    #[track_caller]
    pub fn device_has(&self, pattern: Pattern, page: usize) -> Outcome {
        let all = self.mirror.read(&self.setup.map)?;
        let at = page * PAGE;
        check_ok!(pattern.verify(&all[at..at + PAGE], at as u64), "the GPU");
        Ok(())
    }
}

/// Runs a test with [`PAGES`] pages of this process in the memory of the GPU.
#[track_caller]
pub fn on_device(body: impl FnOnce(&OnDevice<'_>, &mut TestHmm) -> Outcome) -> Outcome {
    let expect = Expect::get()?;
    let mut hmm = TestHmm::with_memory()?;
    let mirror = Mirror::open()?;
    let setup = Setup::new()?;
    mirror.migrate(&setup.map)?;
    let it = OnDevice {
        setup: &setup,
        mirror: &mirror,
        expect,
    };
    it.check_places(|_| true)?;
    body(&it, &mut hmm)?;
    drop(setup);
    drop(mirror);
    hmm.close()
}
