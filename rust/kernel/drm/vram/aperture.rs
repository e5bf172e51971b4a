// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows through which peers and the CPU see VRAM that the BAR does not show at all times.
//!
//! A device whose BAR has page tables of its own, an aperture, shows VRAM only where a driver has
//! made a window. Such a driver implements [`Aperture`] for its objects and names the
//! implementation in the class: [`TtmObject::APERTURE`] or [`VramObject::APERTURE`].
//!
//! A window for peers exists from before the first of them maps an object until after the last of
//! these mappings is unmapped:
//!
//! - All importers of an object share one window for its place in VRAM.
//! - An object that moves gets another window for its new place. An importer that has not unmapped
//!   yet keeps the old window meanwhile, but accesses nothing through it any more. The memory may
//!   belong to another object by then, which gets a window of its own: a driver whose device shows
//!   memory at one place only must remove it from the old window.
//! - A table of an importer is not cached for its next mapping, because the window is dropped with
//!   it.
//! - A mapping that fails leaves no window, nor does an importer that detaches without an unmap.
//! - When the driver is unbound, [`Exports`] is dropped first: after that there is no window.
//!
//! The CPU sees objects of [`gem::ttm`](crate::drm::gem::ttm) through windows as well: an object
//! has one while the kernel maps it (vmap), and from the first page fault until it moves, or until
//! the window is needed for another object. It is the window of the importers, if they have one.
//! The CPU does not access objects of [`gem::vram`](crate::drm::gem::vram).
//!
//! With windows, the `visible` bytes of [`setup`](crate::drm::gem::vram::Device::setup) are the
//! bytes that statistics count as seen, and the place where an object of `gem::vram` is put first.
//! Copies by the CPU, such as those of [`CpuEngine`](crate::drm::ttm::CpuEngine), use the
//! [`Layout`](super::Layout) instead of windows.
//!
//! Without an [`Aperture`] all VRAM that peers and the CPU reach is in the BAR at all times, in its
//! own order or in that of a [`Layout`](super::Layout), and windows cost nothing.
//!
//! [`TtmObject::APERTURE`]: crate::drm::ttm::TtmObject::APERTURE
//! [`VramObject::APERTURE`]: crate::drm::gem::vram::VramObject::APERTURE
//! [`Exports`]: crate::drm::gem::peer::Exports

use super::Ranges;
#[cfg(CONFIG_RUST_DRM_TTM)]
use crate::bindings;
use crate::{
    dma_buf::mapping::RangeList,
    drm::{
        self,
        devres::while_registered,
        gem::{
            mappings::RegistrationData,
            peer::PeerObject,
            DriverObject, //
        }, //
    },
    prelude::*,
    sync::Arc, //
};

/// A driver whose BAR shows VRAM through windows.
pub trait Aperture: DriverObject {
    /// A window: the memory that [`Self::map`] shows is in the BAR until the value is dropped.
    ///
    /// The drop invalidates the entries of the aperture and waits for that. It may sleep; it takes
    /// no reservation and allocates no memory. It is called with the reservation of the object
    /// held. If it makes room for another object, the reservation of that object is held as well,
    /// and for a page fault the `mmap_lock`. It is called without a reservation if the object is
    /// freed, or if only page faults held the window when the device was unplugged. The device may
    /// be suspended, or have been removed by surprise: then neither peers nor the CPU access the
    /// window any more.
    ///
    /// The windows of importers and of mappings of the kernel outlive a time in which the device
    /// is suspended. If it loses the entries of the aperture then, its driver writes them again
    /// when it resumes.
    ///
    /// The value owns all that the drop needs, such as a reference to the state of the aperture.
    /// All windows are dropped before the registration data is, except for its list of exported
    /// buffers, which waits for the windows of importers and of their mappings by the kernel. A
    /// mapping by the kernel that does not belong to an exported buffer keeps its window until it
    /// is unmapped.
    type Window: Send + Sync + 'static;

    /// Returns how many bytes windows can have of the BAR at most: by default all of it.
    ///
    /// An object that is larger gets no window: [`Self::map`] is not called, and no window is
    /// dropped. An importer gets system memory if the object may move there, and else `EOPNOTSUPP`,
    /// in both cases with the reason [`OutsideBar`](crate::drm::gem::peer::Reason::OutsideBar).
    /// Page faults and mappings of the kernel end as if the aperture was full.
    fn size(reg: &RegistrationData<'_, Self>) -> u64 {
        let _ = reg;
        u64::MAX
    }

    /// Makes a window that shows an object, which is at `vram`, and appends its pieces in the BAR
    /// to `pieces`, which is empty: by [`RangeList::push_piece`], in the order of the object.
    ///
    /// Called with the reservation of the object held, for a page fault also with the `mmap_lock`,
    /// while the driver is bound and the device active. May sleep.
    ///
    /// The limit of pins bounds the windows of pins of importers and of mappings of the kernel. It
    /// does not bound windows of dynamic mappings of importers: a driver that reserves a part of
    /// the aperture for other uses refuses more with `ENOSPC`.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the aperture is full. Then windows that only page faults hold are dropped, the
    /// least recently used first, and this is called again after each. If all windows have other
    /// holders:
    ///
    /// - An importer gets system memory if the object may move there, and else this error, in both
    ///   cases with the reason [`NoWindow`].
    /// - For a page fault, and for a mapping of the kernel, an object moves to system memory if it
    ///   may. Else the access ends in `SIGBUS`, and the mapping fails with this error.
    ///
    /// `EBUSY` if the device is slow, or is being reset. A page fault is then tried again; all
    /// other callers try again for some time, and get `ENOSPC` in the end.
    ///
    /// Any other error is returned as the error of the mapping; a page fault ends in `SIGBUS`.
    ///
    /// [`NoWindow`]: crate::drm::gem::peer::Reason::NoWindow
    fn map(
        reg: &RegistrationData<'_, Self>,
        vram: &Ranges,
        pieces: &mut RangeList,
    ) -> Result<Self::Window>;
}

type Limit<T> = fn(&drm::Device<<T as DriverObject>::Driver>) -> Result<u64>;
type Mapper<T> = fn(&drm::Device<<T as DriverObject>::Driver>, &Ranges) -> Result<Arc<RangeList>>;

struct Functions<T: DriverObject> {
    limit: Limit<T>,
    map: Mapper<T>,
    #[cfg(CONFIG_RUST_DRM_TTM)]
    of_importers: unsafe fn(*mut bindings::dma_buf) -> Option<Arc<RangeList>>,
}

/// The windows of an [`Aperture`] as a constant of the class of objects.
pub struct ApertureHook<T: DriverObject>(Option<Functions<T>>);

impl<T: DriverObject> ApertureHook<T> {
    /// For drivers whose BAR shows VRAM at all times.
    pub const NONE: Self = Self(None);

    /// Returns whether there are windows.
    #[inline]
    pub(crate) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether an object of `dev` that has `size` bytes can have a window. That is not so
    /// if the driver is not bound any more.
    pub(crate) fn fits(&self, dev: &drm::Device<T::Driver>, size: u64) -> bool {
        self.0
            .as_ref()
            .is_some_and(|functions| (functions.limit)(dev).is_ok_and(|limit| size <= limit))
    }

    /// Returns the ranges of a new window that shows an object of `dev`.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver is not bound any more.
    /// - `E2BIG` if the object does not [fit](Self::fits).
    /// - `EINVAL` if the pieces are not inside the BAR, or not as large as the object, or if there
    ///   are no windows.
    /// - Those of [`Aperture::map`].
    pub(crate) fn map(
        &self,
        dev: &drm::Device<T::Driver>,
        vram: &Ranges,
    ) -> Result<Arc<RangeList>> {
        (self.0.as_ref().ok_or(EINVAL)?.map)(dev, vram)
    }

    /// Returns the ranges of the window through which importers see an object where it is.
    ///
    /// # Safety
    ///
    /// `buf` must be null, or the dma-buf of an object of the class, whose reservation is held.
    #[cfg(CONFIG_RUST_DRM_TTM)]
    pub(crate) unsafe fn of_importers(
        &self,
        buf: *mut bindings::dma_buf,
    ) -> Option<Arc<RangeList>> {
        if buf.is_null() {
            return None;
        }

        // SAFETY: As promised by the caller.
        unsafe { (self.0.as_ref()?.of_importers)(buf) }
    }
}

/// Returns the windows of a driver with an aperture, which are in the BAR of its
/// [exports](PeerObject::exports).
pub const fn aperture_hook<T: Aperture + PeerObject>() -> ApertureHook<T> {
    ApertureHook(Some(Functions {
        limit: limit::<T>,
        map: map::<T>,
        #[cfg(CONFIG_RUST_DRM_TTM)]
        of_importers: drm::gem::peer::window_of_importers::<T>,
    }))
}

/// Returns the size of the largest object that can have a window.
fn limit_of<T: Aperture + PeerObject>(reg: &RegistrationData<'_, T>) -> u64 {
    T::exports(reg).bound().bar_len().min(T::size(reg))
}

fn limit<T: Aperture + PeerObject>(dev: &drm::Device<T::Driver>) -> Result<u64> {
    // SAFETY: The device is valid and of `T::Driver`.
    unsafe { while_registered::<T::Driver, _>(dev.as_raw(), |reg| Ok(limit_of::<T>(reg))) }
}

fn map<T: Aperture + PeerObject>(
    dev: &drm::Device<T::Driver>,
    vram: &Ranges,
) -> Result<Arc<RangeList>> {
    let size = vram.bytes_below(u64::MAX);

    // SAFETY: The device is valid and of `T::Driver`.
    unsafe {
        while_registered::<T::Driver, _>(dev.as_raw(), |reg| {
            if size > limit_of::<T>(reg) {
                return Err(E2BIG);
            }

            let mut pieces = RangeList::new();
            let window = T::map(reg, vram, &mut pieces)?;
            if pieces.size() as u64 != size {
                return Err(EINVAL);
            }
            pieces.move_to_window(T::exports(reg).bound(), window)
        })
    }
}
