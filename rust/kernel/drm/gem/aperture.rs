// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows for peer and CPU access to VRAM that the BAR does not show at all times.
//!
//! A BAR with page tables of its own, an aperture, shows VRAM only in windows created by a driver.
//! Such a driver implements [`Aperture`] for its objects and names the implementation in the class:
//! [`TtmObject::APERTURE`] or [`VramObject::APERTURE`].
//!
//! An object has at most one window, for its present place. Its holders are importers that have
//! mapped the object, page faults of processes and kernel mappings (vmap). The first holder creates
//! the window and the others share it. The driver closes it after the last one:
//!
//! - A moving object loses its window before it leaves its place, when the fences of its importers
//!   have signalled. It gets another window for its new place.
//! - If the aperture is full, unpinned windows are closed: first those held only by page faults,
//!   then those of importers. The least recently used ones come first. The importers are
//!   invalidated as before a move and their work is waited for. They map the object again when they
//!   need it. A driver with TTM limits pins, so that neither importers nor the kernel take all of
//!   the aperture: see [`PinShares`](crate::drm::gem::ttm::PinShares).
//! - If one instruction of a process accesses two objects, it makes no progress while the aperture
//!   has room for only one of them.
//! - A failed mapping leaves no window. Neither does an importer that detaches without an unmap.
//! - An unbind of the driver first revokes importers. It then closes the remaining windows before
//!   the registration data is dropped.
//!
//! The CPU also sees objects of [`gem::ttm`](crate::drm::gem::ttm) through windows. An object has
//! one while the kernel maps it. The first page fault creates one until the object moves or is
//! freed. A suspend, an unplug and an object in need of the window close it as well. An unmap by
//! the process does not close it. The CPU does not access objects of
//! [`gem::vram`](crate::drm::gem::vram).
//!
//! With windows, the `visible` bytes of [`Vram`](crate::drm::gem::peer::Vram::visible) have three
//! uses: statistics count them as visible, the limits of pins are shares of them, and objects of
//! `gem::vram` are placed there first. Copies by the CPU, such as those of
//! [`CpuEngine`](crate::drm::ttm::CpuEngine), use the [`Layout`](crate::drm::vram::Layout) instead
//! of windows. A device without permanently visible VRAM needs an engine of its own.
//!
//! `gem.rs` and `aperture.rs` of `drivers/gpu/drm/mgpu` are an example.
//!
//! Without an [`Aperture`] all VRAM within reach of peers and the CPU is in the BAR at all times,
//! in its own order or in that of a [`Layout`](crate::drm::vram::Layout), and windows cost nothing.
//!
//! [`TtmObject::APERTURE`]: crate::drm::gem::ttm::TtmObject::APERTURE
//! [`VramObject::APERTURE`]: crate::drm::gem::vram::VramObject::APERTURE

mod list;
pub(super) mod windows;

use self::list::OpenWindow;
pub(crate) use self::list::{
    Holder,
    Windows, //
};
use crate::{
    dma_buf::exporter::mapping::RangeList,
    drm::{
        self,
        devres::while_registered,
        gem::{
            mappings::RegistrationData,
            peer::{
                Backing,
                PeerObject, //
            },
            DriverObject, //
        },
        vram::Ranges, //
    },
    pci::p2pdma::Provider,
    prelude::*, //
};
use core::any::Any;

/// A driver with a BAR that shows VRAM through windows.
pub trait Aperture: PeerObject {
    /// The driver's part of a window, until [`Self::unmap`] gets it back.
    type Window: Send + 'static;

    /// Returns how many bytes of the BAR windows can have at most. By default all of it.
    ///
    /// A larger object gets no window: [`Self::map`] is not called and no window is dropped. An
    /// importer gets system memory if the object may move there and otherwise `EOPNOTSUPP`. The
    /// reason is [`OutsideBar`](crate::drm::gem::peer::Reason::OutsideBar) in both cases. Page
    /// faults and kernel mappings end as with a full aperture.
    fn size(reg: &RegistrationData<'_, Self>) -> u64 {
        let _ = reg;
        u64::MAX
    }

    /// Creates a window for an object at `vram`. Appends its pieces in the BAR to the empty
    /// `pieces` by [`RangeList::push_piece`], in the order of the object.
    ///
    /// Called with the reservation of the object held, while the driver is bound and the device
    /// active. May sleep as long as `wait` allows.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the aperture is full. Then windows are closed and this is called again after
    /// each. If all are pinned:
    ///
    /// - An importer gets system memory if the object may move there and otherwise this error. The
    ///   reason is [`NoWindow`] in both cases. Its next mapping tries again unless another importer
    ///   without a window has the object mapped in system memory.
    /// - For a page fault or a kernel mapping an object moves to system memory if it may. Otherwise
    ///   the access ends in `SIGBUS` and the mapping fails with this error.
    ///
    /// `EBUSY` if the device is slow or being reset. A page fault is then tried again. All other
    /// callers try again for some time and in the end go on as above, but with `ETIMEDOUT`.
    ///
    /// Any other error is the error of the mapping; a page fault ends in `SIGBUS`.
    ///
    /// [`NoWindow`]: crate::drm::gem::peer::Reason::NoWindow
    fn map(
        reg: &RegistrationData<'_, Self>,
        vram: &Ranges,
        pieces: &mut RangeList,
        wait: Wait,
    ) -> Result<Self::Window>;

    /// Closes a window: invalidates the entries of the aperture and waits for the invalidation.
    ///
    /// Called with the reservation of the object held unless the object is being freed or the
    /// device was unplugged. If the close makes room for another object, the reservation of that
    /// object is held as well. For a page fault so is the `mmap_lock`. May sleep; takes no
    /// reservation and allocates no memory. The device may be suspended or removed by surprise:
    /// then neither peers nor the CPU access the window any more. An importer that was invalidated
    /// and has not unmapped may still read there by speculation; it discards the data.
    ///
    /// # Errors
    ///
    /// If the device does not answer. The window has no users any more, but the BAR may still show
    /// the memory. The driver creates no other window there until it knows better.
    fn unmap(reg: &RegistrationData<'_, Self>, window: Self::Window) -> Result;
}

/// How long [`Aperture::map`] may wait for the device and other tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For as long as it takes.
    Long,
    /// For some milliseconds. The caller is a page fault, which holds the `mmap_lock` and is tried
    /// again.
    Short,
}

type DeviceOf<T> = drm::Device<<T as DriverObject>::Driver>;

/// Puts a window on the list.
type Add<'a> = dyn FnMut(OpenWindow) + 'a;

struct Functions<T: DriverObject> {
    limit: fn(&DeviceOf<T>) -> Result<u64>,
    map: fn(&DeviceOf<T>, &Ranges, Wait, &mut Add<'_>) -> Result,
    close: fn(&DeviceOf<T>, &Windows, u64, Option<Holder>),
    close_all: unsafe fn(&DeviceOf<T>, &Windows),
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

    /// Returns whether an object of `dev` with `size` bytes can have a window. False if the driver
    /// is not bound any more.
    pub(crate) fn fits(&self, dev: &DeviceOf<T>, size: u64) -> bool {
        self.0
            .as_ref()
            .is_some_and(|functions| (functions.limit)(dev).is_ok_and(|limit| size <= limit))
    }

    /// Creates a window for an object of `dev` and passes it to `add` before an unplug could close
    /// all windows.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver is not bound any more.
    /// - `E2BIG` if the object does not [fit](Self::fits).
    /// - `EINVAL` if the pieces are not inside the BAR, if they are not as large as the object, or
    ///   if there are no windows.
    /// - Those of [`Aperture::map`].
    pub(crate) fn map(
        &self,
        dev: &DeviceOf<T>,
        vram: &Ranges,
        wait: Wait,
        add: &mut Add<'_>,
    ) -> Result {
        (self.0.as_ref().ok_or(EINVAL)?.map)(dev, vram, wait, add)
    }

    /// Removes a holder of the window of the object with number `id`. The driver closes the window
    /// after the last holder. Without a `holder` it is closed at once.
    ///
    /// Does nothing if the driver is not bound any more: an unplug closes all windows.
    pub(crate) fn close(
        &self,
        dev: &DeviceOf<T>,
        windows: &Windows,
        id: u64,
        holder: Option<Holder>,
    ) {
        if let Some(functions) = &self.0 {
            (functions.close)(dev, windows, id, holder);
        }
    }

    /// Closes all windows. All importers are revoked.
    ///
    /// # Safety
    ///
    /// `dev` must be unplugged and its registration data must still exist.
    pub(crate) unsafe fn close_all(&self, dev: &DeviceOf<T>, windows: &Windows) {
        if let Some(functions) = &self.0 {
            // SAFETY: As promised by the caller.
            unsafe { (functions.close_all)(dev, windows) };
        }
    }
}

/// Returns the windows of a driver with an aperture. They are in the BAR that shows VRAM.
pub const fn aperture_hook<T: Aperture>() -> ApertureHook<T> {
    ApertureHook(Some(Functions {
        limit: limit::<T>,
        map: map::<T>,
        close: close::<T>,
        close_all: close_all::<T>,
    }))
}

/// Calls `f` with the BAR of the windows and the registration data while the driver is bound.
///
/// # Errors
///
/// `ENODEV` if it is not, and the errors of `f`.
fn with_bar<T: Aperture, R>(
    dev: &DeviceOf<T>,
    f: impl FnOnce(&Provider<'_>, &RegistrationData<'_, T>) -> Result<R>,
) -> Result<R> {
    let vram = T::Class::vram_of(dev);

    // SAFETY: The device is valid and of `T::Driver`. It is registered while the closure runs.
    unsafe {
        while_registered::<T::Driver, _>(dev.as_raw(), |reg| f(vram.provider(dev.as_raw())?, reg))
    }
}

/// Returns the size of the largest object that can have a window.
fn limit_of<T: Aperture>(bar: &Provider<'_>, reg: &RegistrationData<'_, T>) -> u64 {
    bar.bar_len().min(T::size(reg))
}

fn limit<T: Aperture>(dev: &DeviceOf<T>) -> Result<u64> {
    with_bar::<T, _>(dev, |bar, reg| Ok(limit_of::<T>(bar, reg)))
}

fn map<T: Aperture>(dev: &DeviceOf<T>, vram: &Ranges, wait: Wait, add: &mut Add<'_>) -> Result {
    let size = vram.bytes_below(u64::MAX);

    with_bar::<T, _>(dev, |bar, reg| {
        if size > limit_of::<T>(bar, reg) {
            return Err(E2BIG);
        }

        // Allocated first, so that no created window is lost.
        let window = KBox::new(None::<T::Window>, GFP_KERNEL)?;
        let mut pieces = RangeList::new();
        let open = T::map(reg, vram, &mut pieces, wait)?;
        let ranges = if pieces.size() as u64 == size {
            pieces.move_to_bar(bar)
        } else {
            Err(EINVAL)
        };

        match ranges {
            Ok(ranges) => {
                add(OpenWindow {
                    ranges,
                    window: with(window, open) as KBox<dyn Any + Send>,
                });
                Ok(())
            }
            Err(e) => {
                // The first error is returned.
                let _ = T::unmap(reg, open);
                Err(e)
            }
        }
    })
}

/// Puts a value into an empty box.
fn with<W>(mut place: KBox<Option<W>>, value: W) -> KBox<Option<W>> {
    *place = Some(value);
    place
}

/// Makes the driver close a window and ignores its error: the window has no user any more.
fn unmap<T: Aperture>(reg: &RegistrationData<'_, T>, mut window: KBox<dyn Any + Send>) {
    let window = &mut *window as &mut dyn Any;

    if let Some(window) = window.downcast_mut().and_then(Option::take) {
        let _ = T::unmap(reg, window);
    }
}

fn close<T: Aperture>(dev: &DeviceOf<T>, windows: &Windows, id: u64, holder: Option<Holder>) {
    // SAFETY: The device is valid and of `T::Driver`.
    let _ = unsafe {
        while_registered::<T::Driver, _>(dev.as_raw(), |reg| {
            let closing = match holder {
                Some(holder) => windows.release(id, holder),
                None => windows.take(id),
            };

            if let Some(closing) = closing {
                closing.close(|window| unmap::<T>(reg, window));
            }
            Ok(())
        })
    };
}

/// # Safety
///
/// `dev` must be unplugged and its registration data must still exist.
unsafe fn close_all<T: Aperture>(dev: &DeviceOf<T>, windows: &Windows) {
    // SAFETY: The device is valid and of `T::Driver`. It was registered, and its data stays until
    // this returns.
    let dev: &drm::Device<T::Driver, drm::Registered> =
        unsafe { drm::Device::from_raw(dev.as_raw()) };

    dev.registration_data_with(|reg| {
        while let Some(closing) = windows.take_any() {
            closing.close(|window| unmap::<T>(reg, window));
        }
    });
}
