// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The place of an object for page tables of the device.
//!
//! See [`gem::mappings`](crate::drm::gem::mappings).
//!
//! # Locking
//!
//! The reservation of the object is held.
//!
//! C header: [`include/drm/ttm/ttm_tt.h`](srctree/include/drm/ttm/ttm_tt.h)

use super::{
    LockedObject,
    Object,
    ObjectGuard,
    TtmObject, //
};
use crate::{
    bindings,
    drm::{
        self,
        gem::{
            mappings::{
                address_at,
                Address,
                Call,
                Caller,
                When, //
            },
            BaseObject,
            IntoGEMObject, //
        },
        ttm::{
            OpCtx,
            Segments, //
        },
        vram::{
            MemType,
            Range,
            Ranges, //
        }, //
    },
    error::to_result,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    scatterlist::SGTable, //
};
use core::ptr::NonNull;

/// The place of an object while its reservation is held and it does not move.
pub struct Placed<'a>(Spot<'a>);

enum Spot<'a> {
    Vram(&'a Ranges),
    Pages(&'a [*mut bindings::page]),
    /// Memory that the device reaches by DMA; offsets are DMA addresses.
    Dma(KVVec<Range>),
}

impl Placed<'_> {
    /// Returns the address of offset `at` of the object and the number of contiguous bytes from
    /// there on. Returns [`None`] behind the end.
    pub fn address(&self, at: u64) -> Option<(Address, u64)> {
        match &self.0 {
            Spot::Vram(vram) => piece(vram.ranges(), at).map(|(at, len)| (Address::Vram(at), len)),
            Spot::Pages(pages) => page_address(pages, at),
            Spot::Dma(pieces) => piece(pieces, at).map(|(at, len)| (Address::Dma(at), len)),
        }
    }

    /// Returns the address of the page at offset `at` of the object and the number of contiguous
    /// bytes from there on, for an entry of a page table that maps a whole page.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such page or if its bytes are no page of the memory: the segments of
    /// an imported buffer may begin and end inside of pages.
    pub fn page(&self, at: u64) -> Result<(Address, u64)> {
        let (address, len) = self.address(at).ok_or(EINVAL)?;
        let (Address::Vram(start) | Address::Dma(start) | Address::System(start)) = address;

        if start % PAGE_SIZE as u64 != 0 || len < PAGE_SIZE as u64 {
            return Err(EINVAL);
        }
        Ok((address, len))
    }
}

/// Returns the offset for `at` in a list of ranges and the number of contiguous bytes there.
fn piece(ranges: &[Range], at: u64) -> Option<(u64, u64)> {
    // OVERFLOW: Ranges are inside of the object and of VRAM or the address space of the device.
    let range = ranges.get(ranges.partition_point(|r| r.at + r.len <= at))?;
    let skip = at - range.at;

    Some((range.offset + skip, range.len - skip))
}

fn page_address(pages: &[*mut bindings::page], at: u64) -> Option<(Address, u64)> {
    let page = *pages.get(usize::try_from(at >> PAGE_SHIFT).ok()?)?;
    let skip = at % PAGE_SIZE as u64;

    // SAFETY: The pages of an object are valid.
    let phys = unsafe { bindings::page_to_phys(page) };
    Some((Address::System(phys + skip), PAGE_SIZE as u64 - skip))
}

/// Returns the pieces of a table in the order of the buffer with their DMA addresses.
pub(super) fn pieces(table: &SGTable) -> Result<KVVec<Range>> {
    ranges(
        table
            .iter()
            .map(|entry| (entry.dma_address(), entry.dma_len())),
    )
}

/// Returns consecutive pieces given by their DMA addresses and lengths.
fn ranges(pieces: impl Iterator<Item = (u64, u64)>) -> Result<KVVec<Range>> {
    let (mut ranges, mut at) = (KVVec::<Range>::new(), 0);

    for (offset, len) in pieces {
        match ranges.last_mut() {
            // OVERFLOW: Pieces are inside of the address space of the device.
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => ranges.push(Range { at, offset, len }, GFP_KERNEL)?,
        }
        at += len;
    }
    Ok(ranges)
}

impl<T: TtmObject> Object<T> {
    pub(super) const CALLER: Option<Caller> = T::MAPPINGS.caller();
}

impl<T: TtmObject> LockedObject<'_, Object<T>> {
    /// Returns the place of the object for a page table of `dev`. The table may show it until
    /// [`Mappings::zap`](crate::drm::gem::Mappings::zap).
    ///
    /// The object is in VRAM or in device-accessible system memory: see [`Self::validate`]. An
    /// imported buffer is mapped and stays where it is until the reservation is unlocked. The
    /// content may still be on its way there: work that uses the addresses depends on the fences
    /// with usage [`Kernel`](crate::dma_resv::Usage::Kernel) and adds a fence of its own to the
    /// reservation. Earlier work that uses the same page table does not depend on them: if there
    /// may be such work, these fences are waited for before the entries are written.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the object belongs to another device or is in system memory that could be
    ///   swapped out.
    /// - `EIO` if a failed move has lost the content of the object. A pending move may still fail:
    ///   work that uses the addresses keeps [`Self::arrival`] and does not begin if the content was
    ///   lost. A task that has waited for it calls [`Self::check_content`].
    /// - `ENOMEM` if memory runs out.
    /// - `ERESTARTSYS` if a signal arrived.
    /// - The errors of [`Import::map`](super::Import::map).
    ///
    /// # Examples
    ///
    /// A device with one page table of one entry.
    ///
    /// ```
    /// use kernel::{
    ///     drm::{
    ///         self,
    ///         gem::{
    ///             mappings::{
    ///                 Address,
    ///                 RegistrationData, //
    ///             },
    ///             ttm::TtmObject,
    ///             LockedObject,
    ///             Mappings, //
    ///         },
    ///         ttm::OpCtx, //
    ///     },
    ///     prelude::*,
    ///     sync::{
    ///         atomic::{
    ///             Atomic,
    ///             Relaxed, //
    ///         },
    ///         Mutex, //
    ///     }, //
    /// };
    ///
    /// /// A part of the registration data.
    /// #[pin_data]
    /// struct Table {
    ///     /// The object has moved, or is about to.
    ///     stale: Atomic<bool>,
    ///     #[pin]
    ///     entry: Mutex<Option<Address>>,
    /// }
    ///
    /// impl Table {
    ///     /// Called by `Mappings::evicted()`.
    ///     fn evicted(&self) {
    ///         self.stale.store(true, Relaxed);
    ///     }
    ///
    ///     /// Called by `Mappings::zap()`. Then the device invalidates its cached entries.
    ///     fn zap(&self) {
    ///         *self.entry.lock() = None;
    ///     }
    ///
    ///     /// Lets the entry lead to the first page of an object.
    ///     fn show<T: TtmObject>(
    ///         &self,
    ///         dev: &drm::Device<T::Driver, drm::Registered>,
    ///         object: &mut LockedObject<'_, drm::gem::ttm::Object<T>>,
    ///     ) -> Result {
    ///         let placed = object.placed(dev, &mut OpCtx::interruptible())?;
    ///         let (address, _) = placed.address(0).ok_or(EINVAL)?;
    ///
    ///         *self.entry.lock() = Some(address);
    ///         self.stale.store(false, Relaxed);
    ///         Ok(())
    ///     }
    /// }
    /// ```
    pub fn placed(
        &mut self,
        dev: &drm::Device<T::Driver, drm::Registered>,
        ctx: &mut OpCtx,
    ) -> Result<Placed<'_>> {
        let obj = self.obj;

        // An unplug waits until `dev` is released and then clears the flag.
        // SAFETY: The object is valid.
        if unsafe { (*obj.as_raw()).dev } != dev.as_raw() {
            return Err(EINVAL);
        }

        if let Some(import) = &obj.import {
            let pieces = import.map_shown(&mut self.resv(), pieces)?;

            return Ok(Placed(Spot::Dma(pieces)));
        }

        self.check_content()?;
        // SAFETY: The reservation guards the cell and is held.
        unsafe { *obj.shown.get() = true };

        if self.mem_type() == Some(MemType::Vram) {
            return self.vram().map(Spot::Vram).map(Placed).ok_or(EINVAL);
        }

        if self.mem_type() != Some(MemType::Tt) {
            return Err(EINVAL);
        }
        // SAFETY: The object is valid, and its reservation is held.
        to_result(unsafe { bindings::ttm_bo_populate(self.bo(), &mut ctx.0) })?;
        let tt = self.tt().ok_or(EINVAL)?;
        // SAFETY: The `ttm` belongs to the reserved object and has all of its pages.
        match unsafe { obj.ttm().table_of_pages(dev.as_raw(), tt) }? {
            Some(table) => Ok(Placed(Spot::Dma(ranges(Segments::of(&table))?))),
            None => self.populated().map(Spot::Pages).map(Placed).ok_or(EINVAL),
        }
    }

    /// Returns whether offset `at` of the object is at `address` now.
    ///
    /// For checks of a page table: changes nothing and returns no address. If the buffer of another
    /// device was invalidated while work of the device on it is pending, it still counts as being
    /// at its old address.
    pub fn is_at(&mut self, at: u64, address: Address) -> bool {
        let obj = self.obj;
        let found = if let Some(import) = &obj.import {
            import.dma_address(&mut self.resv(), at).map(Address::Dma)
        } else if let Some(vram) = self.vram() {
            vram.offset(at).map(Address::Vram)
        } else if let Some(table) = self.tt().and_then(|tt| obj.ttm().mapped_table(tt)) {
            address_at(Segments::of(&table), at).map(Address::Dma)
        } else {
            self.populated()
                .and_then(|pages| page_address(pages, at))
                .map(|(address, _)| address)
        };

        found == Some(address)
    }

    /// Reads system memory by an address in a page table.
    ///
    /// Moves of the object must be done: see [`Usage::Kernel`](crate::dma_resv::Usage::Kernel).
    ///
    /// # Errors
    ///
    /// - `EFAULT` if offset `at` of the object is not at `address` now or the bytes cross the end
    ///   of a page.
    /// - `EOPNOTSUPP` if `address` is not in system memory of this device.
    pub fn read_system(&self, at: u64, address: Address, to: &mut [u8]) -> Result {
        if !matches!(address, Address::System(_)) {
            return Err(EOPNOTSUPP);
        }

        // CAST: Below the page size.
        let skip = (at % PAGE_SIZE as u64) as usize;
        let pages = self.populated().ok_or(EFAULT)?;
        if page_address(pages, at) != Some((address, (PAGE_SIZE - skip) as u64))
            || to.len() > PAGE_SIZE - skip
        {
            return Err(EFAULT);
        }
        let page = *pages
            .get(usize::try_from(at >> PAGE_SHIFT)?)
            .ok_or(EFAULT)?;

        // SAFETY: The page is one of the object and stays while the reservation is held. The bytes
        // are inside of it. Devices and processes may write to them meanwhile, as to all shared
        // memory.
        unsafe {
            let from = bindings::kmap_local_page(page);

            bindings::memcpy(
                to.as_mut_ptr().cast(),
                from.wrapping_byte_add(skip),
                to.len(),
            );
            bindings::kunmap_local(from);
        }
        Ok(())
    }

    fn tt(&self) -> Option<NonNull<bindings::ttm_tt>> {
        // SAFETY: The object is valid and its reservation held.
        NonNull::new(unsafe { (*self.bo()).ttm })
    }

    /// Returns the pages of an object in device-accessible system memory.
    fn populated(&self) -> Option<&[*mut bindings::page]> {
        if self.mem_type() != Some(MemType::Tt) {
            return None;
        }

        // SAFETY: The object is valid and its reservation held: the array and its pages stay.
        unsafe {
            let tt = (*self.bo()).ttm;

            if tt.is_null() || !bindings::ttm_tt_is_populated(tt) {
                return None;
            }
            Some(core::slice::from_raw_parts(
                (*tt).pages,
                self.obj.size() >> PAGE_SHIFT,
            ))
        }
    }

    /// Returns whether a page table of the device may show the object.
    pub(super) fn is_shown(&self) -> bool {
        // SAFETY: The reservation guards the cell and is held.
        Object::<T>::CALLER.is_some() && unsafe { *self.obj.shown.get() }
    }

    /// Notifies the driver of an upcoming move of the object if a page table may show it.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is just being unplugged. The unplug will notify the driver.
    pub(super) fn notify_evicted(&self) -> Result {
        // SAFETY: The reservation is held, and the device is registered or that is checked.
        unsafe { self.call(Call::Evicted, When::Registered) }
    }

    /// Has the driver clear the entries of its page tables if they may show the object.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::notify_evicted`].
    pub(super) fn zap(&self) -> Result {
        // SAFETY: As in `notify_evicted()`.
        unsafe { self.call(Call::Zap, When::Registered) }
    }

    /// Makes both calls and has the buffer of another device unmapped.
    ///
    /// # Safety
    ///
    /// The device of the object must be unplugged and its registration data still exist.
    pub(super) unsafe fn unplug(&mut self) {
        // An unplugged device does no work, so there is no wait.
        let obj = self.obj;
        if let Some(import) = &obj.import {
            // SAFETY: As promised by the caller.
            unsafe { import.unplugged(&mut self.resv()) };
            return;
        }

        // The calls cannot fail in this state.
        // SAFETY: As promised by the caller.
        unsafe {
            let _ = self.call(Call::Evicted, When::Unplugged);
            let _ = self.call(Call::Zap, When::Unplugged);
        }
    }

    /// # Safety
    ///
    /// `When::Unplugged` must be true.
    unsafe fn call(&self, call: Call, when: When) -> Result {
        let Some(caller) = Object::<T>::CALLER else {
            return Ok(());
        };

        if !self.is_shown() {
            return Ok(());
        }
        // SAFETY: The object is of this class, and its reservation held.
        unsafe { caller(self.obj.as_raw(), call, when) }?;
        if call == Call::Zap {
            // SAFETY: As above.
            unsafe { *self.obj.shown.get() = false };
        }
        Ok(())
    }
}

impl<T: TtmObject> ObjectGuard<'_, T> {
    /// Returns the place of the object for a page table of `dev`.
    ///
    /// See [`LockedObject::placed`].
    ///
    /// # Errors
    ///
    /// The errors of [`LockedObject::placed`].
    pub fn placed(
        &mut self,
        dev: &drm::Device<T::Driver, drm::Registered>,
        ctx: &mut OpCtx,
    ) -> Result<Placed<'_>> {
        self.0.placed(dev, ctx)
    }

    /// Returns whether offset `at` of the object is at `address` now.
    ///
    /// See [`LockedObject::is_at`].
    pub fn is_at(&mut self, at: u64, address: Address) -> bool {
        self.0.is_at(at, address)
    }
}

/// # Safety
///
/// Called with an unplugged device of `T::Driver` whose registration data still exists.
pub(super) unsafe fn unplugging_callback<T: TtmObject>(dev: *mut bindings::drm_device) {
    // SAFETY: The device is valid and of `T::Driver`.
    let drm: &drm::Device<T::Driver> = unsafe { drm::Device::from_raw(dev) };
    let ttm = T::ttm(drm);
    let mut next = 0;

    // No page table has an address of an object not yet on the list, and none gets one now.
    while let Some(obj) = ttm.object_from(next) {
        next = obj.id() + 1;
        // The wait is not interruptible, so it does not fail.
        if let Ok(mut object) = obj.reserve(false) {
            // SAFETY: As promised by the caller.
            unsafe { object.view().unplug() };
        }
    }
}

#[kunit_tests(rust_drm_placed)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    fn placed(pieces: &[(u64, u64)]) -> Result<Placed<'static>> {
        Ok(Placed(Spot::Dma(ranges(pieces.iter().copied())?)))
    }

    #[test]
    fn entries_are_for_whole_pages() -> Result {
        let half = PAGE / 2;
        let object = placed(&[
            (16 * PAGE, 2 * PAGE),
            // These two share a page of the object.
            (32 * PAGE, half),
            (40 * PAGE + half, half),
            (48 * PAGE, half),
            // This page is in one piece.
            (48 * PAGE + half, half),
        ])?;
        let at = |page| object.page(page * PAGE);

        assert_eq!(at(0), Ok((Address::Dma(16 * PAGE), 2 * PAGE)));
        assert_eq!(at(1), Ok((Address::Dma(17 * PAGE), PAGE)));
        assert_eq!(at(2), Err(EINVAL));
        assert_eq!(at(3), Ok((Address::Dma(48 * PAGE), PAGE)));
        assert_eq!(at(4), Err(EINVAL));

        let shifted = placed(&[(16 * PAGE + half, 2 * PAGE)])?;
        assert_eq!(shifted.page(0), Err(EINVAL));
        Ok(())
    }
}
