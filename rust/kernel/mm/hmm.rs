// SPDX-License-Identifier: GPL-2.0

//! Memory of a process for devices using it by the addresses of the process.
//!
//! [`IntervalNotifier::fault`] reads the page table of a process and has pages faulted in. It takes
//! no reference to a page: its result is valid until the notifier is called, which may be before it
//! returns. So it returns a [`Faulted`], of which nothing can be read. [`Faulted::lock`] takes the
//! lock of the mirror and checks whether the notifier was called. It returns either [`Retry`] or a
//! [`Checked`], whose entries are valid as long as it exists.
//!
//! An [`Import`] does all of this for a device doing DMA. It maps the pages. It unmaps them when
//! the process changes them and when the device is unbound. Pages in the memory of another device
//! stay there if the device reaches them in a BAR. Otherwise they migrate to system memory.
//!
//! The [`Mirror`] of an [`Import`] is the driver's state of the range: a page table or a list of
//! transfers. [`Mirror::invalidate`] stops the device. The process waits for it. The closure of
//! [`Import::access`] enters the addresses or starts the transfer. It allocates nothing because the
//! mirror is locked. `drivers/misc/edu_peer/memory.rs` is an example: the transfer of a page is
//! over when the closure returns. A driver with page tables and no DMA by `struct hmm_dma_map` uses
//! an [`IntervalNotifier`] itself.
//!
//! # Examples
//!
//! If a device is idle whenever the mirror is not locked, it has nothing to stop:
//!
//! ```
//! use core::ops::Range;
//! use kernel::{
//!     device::{
//!         Bound,
//!         Device, //
//!     },
//!     mm::{
//!         hmm::Import,
//!         interval_notifier::Mirror,
//!         MmWithUser, //
//!     },
//!     prelude::*, //
//! };
//!
//! struct Engine;
//!
//! impl Engine {
//!     fn send(&mut self, addr: u64) -> Result {
//!         // Returns when the device has read the page.
//!         # let _ = addr;
//!         Ok(())
//!     }
//! }
//!
//! impl Mirror for Engine {
//!     fn invalidate(&mut self, _range: Range<usize>) {}
//! }
//!
//! fn import(
//!     dev: &Device<Bound>,
//!     mm: &MmWithUser,
//!     range: Range<usize>,
//! ) -> Result<Import<Engine>> {
//!     Import::new(dev, mm, range, Engine)
//! }
//!
//! fn send(import: &Import<Engine>, range: Range<usize>) -> Result {
//!     import.access(range, false, |engine, pages| {
//!         pages.iter().try_for_each(|page| engine.send(page.addr))
//!     })?
//! }
//! ```
//!
//! # Locking
//!
//! See [`interval_notifier`](super::interval_notifier#locking).
//!
//! C headers: [`include/linux/hmm.h`](srctree/include/linux/hmm.h),
//! [`include/linux/hmm-dma.h`](srctree/include/linux/hmm-dma.h)

use super::{
    interval_notifier::{
        IntervalNotifier,
        Mirror, //
    },
    Mm,
    MmWithUser, //
};
use crate::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    devres::Devres,
    error::to_result,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    pci::p2pdma::MapType,
    prelude::*,
    sync::{
        aref::ARef,
        lock::{
            mutex::MutexBackend,
            Guard, //
        },
        Arc,
        LockClassKey,
        Mutex, //
    },
    time::msecs_to_jiffies, //
};
use core::{
    ops::Range,
    ptr, //
};

const VALID: usize = bindings::hmm_pfn_flags_HMM_PFN_VALID;
const WRITE: usize = bindings::hmm_pfn_flags_HMM_PFN_WRITE;
const ERROR: usize = bindings::hmm_pfn_flags_HMM_PFN_ERROR;
const P2PDMA: usize = bindings::hmm_pfn_flags_HMM_PFN_P2PDMA;
const P2PDMA_BUS: usize = bindings::hmm_pfn_flags_HMM_PFN_P2PDMA_BUS;
const DMA_MAPPED: usize = bindings::hmm_pfn_flags_HMM_PFN_DMA_MAPPED;
const FLAGS: usize = bindings::hmm_pfn_flags_HMM_PFN_FLAGS;

/// How many pages one call may have: the allocator warns of arrays of 2 GiB and more.
// CAST: The maximum is positive.
const PAGES_MAX: usize = i32::MAX as usize / size_of::<DmaPage>();

/// The request of a caller for each page of a range.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Flags for each page, `enum hmm_pfn_flags`.
    pages: usize,
    /// The device whose DMA they are for.
    dma_dev: Option<&'a Device>,
}

impl<'a> Request<'a> {
    /// The current state of the page table. No page is faulted in.
    pub const SNAPSHOT: Self = Self {
        pages: 0,
        dma_dev: None,
    };
    /// Readable pages.
    pub const READ: Self = Self {
        pages: bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT,
        dma_dev: None,
    };
    /// Readable and writable pages.
    pub const WRITE: Self = Self {
        pages: Self::READ.pages | bindings::hmm_pfn_flags_HMM_PFN_REQ_WRITE,
        dma_dev: None,
    };

    /// The same, but device memory of another device stays there if the DMA of `dma_dev` reaches it
    /// in a BAR. Its entry has the page of the BAR: see [`Entry::is_of_peer`].
    #[inline]
    #[must_use]
    pub const fn for_dma_of(self, dma_dev: &'a Device) -> Self {
        Self {
            dma_dev: Some(dma_dev),
            ..self
        }
    }
}

/// The entry of a process for the address of a page.
///
/// It is neither copied nor moved, because it is only valid while it is borrowed from a
/// [`Checked`].
#[repr(transparent)]
pub struct Entry(usize);

impl Entry {
    /// Returns whether there is a readable page.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.0 & VALID != 0
    }

    /// Returns whether there is a readable and writable page.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.0 & (VALID | WRITE) == VALID | WRITE
    }

    /// Returns whether a device cannot have a page here.
    #[inline]
    pub fn is_error(&self) -> bool {
        self.0 & ERROR != 0
    }

    /// Returns whether this is a BAR page in place of one in the memory of another device. It must
    /// be mapped as memory of a peer.
    #[inline]
    pub fn is_of_peer(&self) -> bool {
        self.0 & (VALID | P2PDMA) == VALID | P2PDMA
    }

    /// Returns the physical address of the page, or [`None`] if there is no page.
    #[inline]
    pub fn phys(&self) -> Option<u64> {
        // CAST: Page frame numbers are of this type.
        self.is_valid()
            .then_some(((self.0 & !FLAGS) as u64) << PAGE_SHIFT)
    }
}

/// The process has changed its memory at the addresses, so they have to be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry;

/// The entries of some addresses of a process. They may be outdated.
#[must_use = "nothing was checked yet"]
pub struct Faulted<'a, T: Mirror> {
    notifier: &'a IntervalNotifier<T>,
    entries: KVVec<Entry>,
    seq: usize,
}

/// The entries of some addresses of a process. They stay valid as long as the value exists: the
/// process waits for it before it changes them.
#[must_use = "the mirror is locked"]
pub struct Checked<'a, T: Mirror> {
    mirror: Guard<'a, T, MutexBackend>,
    entries: KVVec<Entry>,
}

impl<T: Mirror> IntervalNotifier<T> {
    /// Returns how many pages are in a range of addresses.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if it is empty, does not consist of whole pages or is not in the range of the
    ///   notifier.
    /// - `ENOMEM` if it has more pages than [`PAGES_MAX`].
    fn count(&self, range: &Range<usize>) -> Result<usize> {
        let (all, Range { start, end }) = (self.range(), range.clone());

        if start >= end || (start | end) % PAGE_SIZE != 0 || start < all.start || end > all.end {
            return Err(EINVAL);
        }
        let pages = (end - start) / PAGE_SIZE;
        if pages > PAGES_MAX {
            return Err(ENOMEM);
        }
        Ok(pages)
    }

    /// Reads the entries of the process at the addresses `range` and has pages faulted in according
    /// to `request`. May sleep. The caller must not hold the `mmap_lock` of the process.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `range` is empty, does not consist of whole pages or is not in the range of
    ///   the notifier.
    /// - `ESRCH` if the process has exited.
    /// - `EFAULT` if the process has no device-accessible memory there.
    /// - `EPERM` if the process may not write there.
    /// - `EBUSY` if the process has changed the addresses repeatedly.
    /// - `EINTR` if the task is killed, `ENOMEM` if memory runs out.
    pub fn fault(&self, range: Range<usize>, request: Request<'_>) -> Result<Faulted<'_, T>> {
        let count = self.count(&range)?;
        let Range { start, end } = range;
        let mut entries = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            entries.push(Entry(0), GFP_KERNEL)?;
        }

        // SAFETY: The notifier has a reference to the memory.
        let mm = unsafe { Mm::from_raw((*self.as_raw()).mm) };
        let _users = mm.mmget_not_zero().ok_or(ESRCH)?;
        let mut raw = bindings::hmm_range {
            notifier: self.as_raw(),
            notifier_seq: 0,
            start,
            end,
            hmm_pfns: entries.as_mut_ptr().cast(),
            default_flags: request.pages,
            pfn_flags_mask: 0,
            dev_private_owner: ptr::null_mut(),
            flags: 0,
            dma_dev: request.dma_dev.map_or(ptr::null_mut(), Device::as_raw),
        };

        // SAFETY: The structure is valid and has an entry for each page. The memory has users and
        // the device is borrowed.
        to_result(unsafe {
            bindings::hmm_range_fault_unlocked_timeout(
                &mut raw,
                msecs_to_jiffies(bindings::HMM_RANGE_DEFAULT_TIMEOUT),
            )
        })?;
        Ok(Faulted {
            notifier: self,
            entries,
            seq: raw.notifier_seq,
        })
    }

    /// As [`Self::fault`] and [`Faulted::lock`], repeated until the process does not change the
    /// addresses.
    ///
    /// Only an error or a fatal signal ends it before. A worker gets no signals. So it must call
    /// the two itself and give up at some point.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::fault`].
    pub fn fault_and_lock(
        &self,
        range: Range<usize>,
        request: Request<'_>,
    ) -> Result<Checked<'_, T>> {
        loop {
            if let Ok(checked) = self.fault(range.clone(), request)?.lock() {
                return Ok(checked);
            }
            // SAFETY: The current task is valid.
            if unsafe { bindings::fatal_signal_pending(bindings::get_current()) } != 0 {
                return Err(EINTR);
            }
        }
    }
}

impl<'a, T: Mirror> Faulted<'a, T> {
    /// Locks the mirror and checks that the process has not changed the addresses since.
    ///
    /// # Errors
    ///
    /// [`Retry`] if the process may have changed them.
    pub fn lock(self) -> core::result::Result<Checked<'a, T>, Retry> {
        let mirror = self.notifier.lock();

        // SAFETY: The notifier is valid and the lock taken by the callback is held.
        if unsafe { bindings::mmu_interval_read_retry(self.notifier.as_raw(), self.seq) } {
            return Err(Retry);
        }
        Ok(Checked {
            mirror,
            entries: self.entries,
        })
    }
}

impl<T: Mirror> Checked<'_, T> {
    /// Returns the mirror and an entry for each page of the range.
    #[inline]
    pub fn parts(&mut self) -> (&mut T, &[Entry]) {
        (&mut self.mirror, &self.entries)
    }

    /// Returns an entry for each page of the range.
    #[inline]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// A page of a process for the DMA of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaPage {
    /// The DMA address.
    pub addr: u64,
    /// The kind of the route to the memory of a peer, or [`None`] if the page is in system memory.
    pub peer: Option<MapType>,
}

/// The pages mapped for a device.
///
/// # Invariants
///
/// - `raw` is a map of `dev` with an entry for each of `count` pages.
/// - Pages with flagged entries are mapped. They stay until they are unmapped.
/// - `dev` is bound.
struct DmaMap {
    dev: ARef<Device>,
    raw: bindings::hmm_dma_map,
    count: usize,
}

// SAFETY: The map may be used from any task, by one at a time.
unsafe impl Send for DmaMap {}

impl DmaMap {
    /// # Safety
    ///
    /// The value must be dropped while the device is bound.
    unsafe fn new(dev: &Device<Bound>, count: usize) -> Result<Self> {
        if count == 0 {
            return Err(EINVAL);
        }

        let mut raw = bindings::hmm_dma_map::default();
        // SAFETY: The device is bound and the structure zeroed.
        to_result(unsafe {
            bindings::hmm_dma_map_alloc(dev.as_raw(), &mut raw, count, PAGE_SIZE)
        })?;

        // INVARIANT: The map was just allocated and nothing is mapped. The caller promises that
        // `dev` is bound.
        Ok(Self {
            dev: dev.into(),
            raw,
            count,
        })
    }

    /// # Safety
    ///
    /// `index` must be the index of a page.
    unsafe fn entry(&mut self, index: usize) -> &mut usize {
        // SAFETY: As the caller promises.
        unsafe { &mut *self.raw.pfn_list.add(index) }
    }

    /// Maps page `index` of the range. It was just checked to have `entry` and still has it.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if there is no page.
    /// - `EIO` if the page cannot be mapped.
    ///
    /// # Safety
    ///
    /// `index` must be the index of a page. The lock of the mirror must have been held since
    /// `entry` was checked. `state` must have been used for this device only.
    unsafe fn map(
        &mut self,
        index: usize,
        entry: &Entry,
        state: &mut bindings::pci_p2pdma_map_state,
    ) -> Result<DmaPage> {
        if !entry.is_valid() {
            return Err(EFAULT);
        }

        let dev = self.dev.as_raw();
        // SAFETY: As the caller promises.
        let slot = unsafe { self.entry(index) };
        // If a page is mapped already, it is the page of the entry, because it would have been
        // invalidated otherwise. It may have been written to.
        let mapped = if *slot & DMA_MAPPED != 0 {
            *slot & (DMA_MAPPED | P2PDMA | P2PDMA_BUS | WRITE)
        } else {
            0
        };

        *slot = entry.0 & !(DMA_MAPPED | P2PDMA | P2PDMA_BUS) | mapped;
        // SAFETY: The map is that of the device, which is bound. It has a page at the index. The
        // page stays until the mirror is invalidated.
        let addr = unsafe { bindings::hmm_dma_map_pfn(dev, &mut self.raw, index, state) };
        // SAFETY: As the caller promises.
        let slot = unsafe { self.entry(index) };

        // `DMA_MAPPING_ERROR`.
        if addr == bindings::dma_addr_t::MAX {
            *slot = 0;
            return Err(EIO);
        }
        Ok(DmaPage {
            addr,
            peer: if *slot & P2PDMA_BUS != 0 {
                Some(MapType::BUS_ADDR)
            } else if *slot & P2PDMA != 0 {
                Some(MapType::THRU_HOST_BRIDGE)
            } else {
                None
            },
        })
    }

    /// Unmaps some pages after the last access of the device.
    fn unmap(&mut self, pages: Range<usize>) {
        let dev = self.dev.as_raw();

        for index in pages.start..pages.end.min(self.count) {
            // SAFETY: The page is one of the map.
            let old = core::mem::take(unsafe { self.entry(index) });

            if old & DMA_MAPPED == 0 {
                continue;
            }
            // SAFETY: As above. By the type invariants the device is bound and the page stays.
            unsafe {
                *self.entry(index) = old;
                bindings::hmm_dma_unmap_pfn(dev, &mut self.raw, index);
                *self.entry(index) = 0;

                let page = bindings::pfn_to_page(old & !FLAGS);
                // The page of a peer is not backed by a file, nor reclaimed.
                if old & WRITE != 0 && old & (P2PDMA | P2PDMA_BUS) == 0 {
                    bindings::set_page_dirty(page);
                }
            }
        }
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        self.unmap(0..self.count);
        // SAFETY: By the type invariants the map belongs to the device and the device is bound.
        // Nothing is mapped any more.
        unsafe { bindings::hmm_dma_map_free(self.dev.as_raw(), &mut self.raw) };
    }
}

/// The mirror of an [`Import`]: the mapped pages and the mirror of the driver.
struct Mapped<T: Mirror> {
    inner: T,
    /// The start of the range.
    start: usize,
    /// [`None`] once the device is unbound. `inner` knows of no other pages.
    map: Option<DmaMap>,
}

impl<T: Mirror> Mirror for Mapped<T> {
    fn invalidate(&mut self, range: Range<usize>) {
        self.inner.invalidate(range.clone());

        if let Some(map) = &mut self.map {
            // The range is inside that of the notifier and ends at the end of a page.
            map.unmap(
                (range.start - self.start) / PAGE_SIZE
                    ..(range.end - self.start).div_ceil(PAGE_SIZE),
            );
        }
    }
}

impl<T: Mirror> IntervalNotifier<Mapped<T>> {
    /// Stops the device and unmaps everything for good. Waits for an access under way.
    fn revoke(&self) {
        let mut mapped = self.lock();

        if mapped.map.is_some() {
            mapped.inner.invalidate(self.range());
        }
        // With the lock held: as long as it is held, an unbind waits for it.
        mapped.map = None;
    }
}

/// Revokes an import when it is dropped.
struct Revoker<T: Mirror>(Arc<IntervalNotifier<Mapped<T>>>);

impl<T: Mirror> Drop for Revoker<T> {
    fn drop(&mut self) {
        self.0.revoke();
    }
}

/// The lock class of all imports.
// Not inlined, so that it stays in the kernel crate.
#[inline(never)]
fn lock_class() -> Pin<&'static LockClassKey> {
    crate::static_lock_class!()
}

/// Memory of a process for the DMA of a device by the addresses of the process.
///
/// Pages are mapped when they are first accessed. They are unmapped when they migrate or when the
/// process changes them, for example frees them.
///
/// It may outlive the process and the binding of the device. An unbind waits for an access with the
/// mirror locked. It does not wait for an access whose pages are being faulted in, because the
/// process may delay that without limit.
pub struct Import<T: Mirror> {
    // Dropped first, because it unmaps the pages covered by the notifier.
    _revoker: Devres<Revoker<T>>,
    notifier: Arc<IntervalNotifier<Mapped<T>>>,
    dev: ARef<Device>,
}

impl<T: Mirror> Import<T> {
    /// Imports the addresses `range` of a process for the device `dev`. `mirror` is invalidated
    /// before some of them are unmapped: it stops the DMA of the device to these addresses.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the DMA of the device needs to be synchronized, for example because it is
    ///   bounced.
    /// - `EINVAL` if `range` is empty or does not consist of whole pages.
    /// - `ENOMEM` if memory runs out, `EINTR` if the task is killed.
    pub fn new(
        dev: &Device<Bound>,
        mm: &MmWithUser,
        range: Range<usize>,
        mirror: T,
    ) -> Result<Self> {
        let start = range.start;
        let count = range.end.saturating_sub(start) / PAGE_SIZE;
        let mapped = Mapped {
            inner: mirror,
            start,
            // SAFETY: The revoker drops it while the device is bound. Until there is one, `dev`
            // proves that the device is bound.
            map: Some(unsafe { DmaMap::new(dev, count) }?),
        };
        let notifier = Arc::pin_init(
            IntervalNotifier::new(mm, range, Mutex::new(mapped, c"hmm::Import", lock_class())),
            GFP_KERNEL,
        )?;

        Ok(Self {
            _revoker: Devres::new(dev, Revoker(notifier.clone()))?,
            notifier,
            dev: dev.into(),
        })
    }

    /// Returns the imported addresses.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.notifier.range()
    }

    /// Returns the device, which may be unbound.
    #[inline]
    pub fn device(&self) -> &Device {
        &self.dev
    }

    /// Ends all access as an unbind of the device does. Waits for an access under way.
    pub fn revoke(&self) {
        self.notifier.revoke();
    }

    /// Has the pages of the addresses `range` faulted in according to `request` and maps none of
    /// them.
    ///
    /// # Errors
    ///
    /// The errors of [`IntervalNotifier::fault`].
    pub fn fault(&self, range: Range<usize>, request: Request<'_>) -> Result {
        self.notifier.fault_and_lock(range, request).map(drop)
    }

    /// Maps the addresses `range` and calls `f` with the mirror and the DMA address of each page.
    ///
    /// The addresses are valid while `f` runs and until the mirror is invalidated. `f` is called
    /// with the mirror locked: see [`interval_notifier`](super::interval_notifier#locking).
    ///
    /// Memory of a peer stays where it is if the device reaches it. Unreachable pages migrate to
    /// system memory.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was unbound or the import [revoked](Self::revoke).
    /// - `EIO` if a page cannot be mapped. An example is a page of a BAR mapped by the process and
    ///   unreachable by the device.
    /// - Those of [`IntervalNotifier::fault`].
    pub fn access<R>(
        &self,
        range: Range<usize>,
        is_write: bool,
        f: impl FnOnce(&mut T, &[DmaPage]) -> R,
    ) -> Result<R> {
        let count = self.notifier.count(&range)?;
        let first = (range.start - self.notifier.range().start) / PAGE_SIZE;
        let wanted = if is_write {
            Request::WRITE
        } else {
            Request::READ
        };
        // The memory is allocated without the lock.
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        let mut checked = self
            .notifier
            .fault_and_lock(range, wanted.for_dma_of(&self.dev))?;
        let (mapped, entries) = checked.parts();

        map_all(
            mapped.map.as_mut().ok_or(ENODEV)?,
            first,
            entries,
            &mut pages,
        )?;
        Ok(f(&mut mapped.inner, &pages))
    }
}

/// Maps the pages from the number `first` on. Their entries were checked and are still valid.
fn map_all(
    map: &mut DmaMap,
    first: usize,
    entries: &[Entry],
    pages: &mut KVVec<DmaPage>,
) -> Result {
    let mut state = bindings::pci_p2pdma_map_state::default();

    for (index, entry) in entries.iter().enumerate() {
        // SAFETY: `fault_and_lock()` has checked the range and the guard borrows the entries.
        let page = unsafe { map.map(first + index, entry, &mut state) }?;

        pages.push_within_capacity(page).map_err(|_| EINVAL)?;
    }
    Ok(())
}
