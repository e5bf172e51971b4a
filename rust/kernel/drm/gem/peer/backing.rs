// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The policy's interface to the memory of a class of objects.

use super::{
    trace::Subject,
    Client,
    PeerObject,
    State,
    Vram, //
};
use crate::{
    bindings,
    device,
    dma_buf::{
        exporter::mapping::RangeList,
        DmaBuf, //
    },
    drm::{
        self,
        gem::{
            locked::ObjectGuard,
            BaseObject,
            DriverObject,
            LockedObject, //
        },
        vram::{
            Domain,
            MemType,
            Ranges, //
        }, //
    },
    pm::RuntimeGuard,
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        Arc, //
    }, //
};

type DriverOf<T> = <T as DriverObject>::Driver;
/// The data of the DRM device of an object; outlives the binding.
pub(super) type DataOf<T> = <DriverOf<T> as drm::Driver>::Data;

/// A class of GEM objects with memory for export to peers: [`gem::ttm::Object`], moved by TTM, or
/// the immovable [`gem::vram::Object`].
///
/// # Locking
///
/// Functions with a [`LockedObject`] argument are called with the reservation of the object held.
/// The others are called with the reservation or without any lock.
///
/// # Safety
///
/// - [`Self::exported`] returns the last argument of [`Self::set_exported`], null at first.
/// - Before an object in VRAM or its pages move or are freed, the dma-buf returned by
///   [`Self::exported`] is invalidated by `dma_buf_invalidate_mappings()` with the reservation
///   held, and the fences of the reservation are waited for.
/// - The pages returned by [`Self::pages`] are those of the object until then.
///
/// [`gem::ttm::Object`]: crate::drm::gem::ttm::Object
/// [`gem::vram::Object`]: crate::drm::gem::vram::Object
pub unsafe trait Backing: BaseObject + AlwaysRefCounted + Send + Sync + 'static {
    /// The driver's part of the objects.
    type Data: PeerObject<Class = Self>;
    /// The device shows VRAM through windows of an [aperture](crate::drm::gem::aperture::Aperture).
    const HAS_WINDOWS: bool;

    /// Returns the driver's part of the object.
    fn data(&self) -> &Self::Data;

    /// Returns the VRAM in the data of a DRM device.
    fn vram_of(data: &DataOf<Self::Data>) -> &Vram<Self::Data>;

    /// Returns the VRAM of the device of the object.
    fn vram(&self) -> &Vram<Self::Data>;

    /// Returns the device of the VRAM.
    #[inline]
    fn owner(&self) -> &device::Device {
        self.vram().owner()
    }

    /// Returns the number of the object, unique among all present and past objects of the device.
    fn id(&self) -> u64;

    /// Returns where the object may live. This does not change.
    fn domain(&self) -> Domain;

    /// Returns where the object was after its last move, or [`None`] if it had no memory. Needs no
    /// lock.
    fn last_placement(&self) -> Option<MemType>;

    /// Returns where the object is.
    fn state(object: &LockedObject<'_, Self>) -> State;

    /// Returns how many bytes of the object are in CPU-visible VRAM.
    fn visible_bytes(object: &LockedObject<'_, Self>) -> u64;

    /// Returns the exporting client, or [`Client::NONE`] if there is none or the class does not
    /// record it.
    fn client(object: &LockedObject<'_, Self>) -> Client {
        let _ = object;
        Client::NONE
    }

    /// Returns whether the object is visible to peers in VRAM, or would be after a move or through
    /// a window.
    fn can_be_visible(object: &LockedObject<'_, Self>) -> bool;

    /// Moves the unpinned object to VRAM that peers see directly or through a window of the
    /// aperture, or to device-accessible system memory. Other objects may be evicted from VRAM for
    /// it. With [`Domain::Either`] an object goes to system memory if VRAM is full of non-evictable
    /// objects. May sleep. With `patient` it tries again while other tasks hold evictable objects.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the class does not move objects or the object is imported.
    /// - `ENOSPC` if there is no room.
    /// - `EBUSY` if work on the object, or on an object to evict, takes too long.
    /// - `ERESTARTSYS` if a signal arrived and `interruptible` is set.
    /// - `ENODEV` if the driver is not bound any more, `ENOMEM` if memory runs out.
    fn migrate(
        object: &mut LockedObject<'_, Self>,
        domain: Domain,
        interruptible: bool,
        patient: bool,
    ) -> Result;

    /// Records that the object is used.
    fn touch(object: &LockedObject<'_, Self>) {
        let _ = object;
    }

    /// Charges for the object before a pin in VRAM. Does nothing if it is charged already. If it is
    /// not pinned after all, [`Self::uncharge`] follows.
    ///
    /// # Errors
    ///
    /// `EDQUOT` if the limit is reached.
    fn charge(object: &mut LockedObject<'_, Self>) -> Result {
        let _ = object;
        Ok(())
    }

    /// Undoes [`Self::charge`] if the object is charged and not pinned.
    fn uncharge(object: &mut LockedObject<'_, Self>) {
        let _ = object;
    }

    /// Keeps the object in its place until [`Self::unpin`]. Calls nest.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::charge`], `EIO` if it has lost its content, and `ERESTARTSYS` if a
    /// signal arrived.
    fn pin(object: &mut LockedObject<'_, Self>) -> Result;

    /// Undoes [`Self::pin`].
    fn unpin(object: &mut LockedObject<'_, Self>);

    /// Returns the VRAM ranges of an object in VRAM.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if it is not in VRAM.
    /// - `EIO` if it has lost its content.
    fn vram_ranges<'a>(object: &'a LockedObject<'_, Self>) -> Result<&'a Ranges>;

    /// Returns the ranges of the window that shows an object in VRAM: its present window or a new
    /// one. Importers hold it from then on. May sleep.
    ///
    /// Only called with [`Self::HAS_WINDOWS`].
    ///
    /// # Errors
    ///
    /// - `ENOSPC` if the aperture is full.
    /// - `ETIMEDOUT` if other tasks or the device are in the way for too long.
    /// - `EINVAL` if the object is not in VRAM.
    /// - Those of the driver.
    fn window(object: &LockedObject<'_, Self>) -> Result<Arc<RangeList>>;

    /// Ends the hold of importers on the window. May sleep.
    ///
    /// Only called with [`Self::HAS_WINDOWS`].
    fn release_window(object: &LockedObject<'_, Self>);

    /// Returns the pages of an object in system memory after waiting for moves into them.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if it is in VRAM.
    /// - `EIO` if it has lost its content.
    /// - `ENOMEM` if memory runs out.
    fn pages<'a>(object: &'a mut LockedObject<'_, Self>) -> Result<&'a [*mut bindings::page]> {
        let _ = object;
        Err(EINVAL)
    }

    /// Makes CPU writes to an object in VRAM visible to devices.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is not bound any more.
    fn flush(object: &LockedObject<'_, Self>) -> Result;

    /// Returns the dma-buf of the object; null if there is none.
    fn exported(object: &LockedObject<'_, Self>) -> *mut bindings::dma_buf;

    /// Sets or clears the dma-buf of the object.
    ///
    /// # Safety
    ///
    /// `buf` must be null or a dma-buf sharing the reservation of the object and valid until the
    /// next call of this function.
    unsafe fn set_exported(object: &mut LockedObject<'_, Self>, buf: *mut bindings::dma_buf);

    /// Returns the imported buffer behind the object.
    fn imported(&self) -> Option<&DmaBuf> {
        None
    }

    /// Creates an object standing for a buffer of another device.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the class has no such objects.
    ///
    /// # Safety
    ///
    /// The device lock of the DMA device of `dev` must be held and a driver bound to it.
    unsafe fn import(
        dev: &drm::Device<DriverOf<Self::Data>, drm::Ioctl>,
        buf: ARef<DmaBuf>,
    ) -> Result<ARef<Self>> {
        let _ = (dev, buf);
        Err(EINVAL)
    }
}

/// Returns an object as the subject of a tracepoint.
pub(in crate::drm::gem) fn subject<O: Backing>(obj: &O) -> Subject<'_> {
    Subject {
        exporter: obj.owner(),
        id: obj.id(),
        size: obj.size() as u64,
    }
}

/// Reserves an object. No other reservation may be held.
///
/// # Errors
///
/// `EINTR` if `interruptible` is set and a signal is pending.
pub(in crate::drm::gem) fn with_reserved<O: Backing, R>(
    obj: &O,
    interruptible: bool,
    f: impl FnOnce(&mut LockedObject<'_, O>) -> Result<R>,
) -> Result<R> {
    f(&mut ObjectGuard::new(obj, interruptible)?.view())
}

/// Takes a runtime PM guard of the device of the VRAM. Without it VRAM is out of reach.
///
/// # Errors
///
/// The errors of [`RuntimeGuard::new`].
pub(super) fn runtime_guard<O: Backing>(obj: &O) -> Result<RuntimeGuard> {
    RuntimeGuard::new(obj.owner())
}

/// As [`runtime_guard`], for a task holding a reservation. [`None`] if the device is suspended.
pub(super) fn runtime_guard_if_active<O: Backing>(obj: &O) -> Option<RuntimeGuard> {
    RuntimeGuard::if_active(obj.owner())
}

/// Returns whether an object may be shown elsewhere because its window could not be created: the
/// aperture is full or busy.
pub(in crate::drm::gem) fn is_no_window(e: Error) -> bool {
    e == ENOSPC || e == ETIMEDOUT
}
