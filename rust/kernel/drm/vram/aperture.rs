// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows through which peers see VRAM that the BAR does not show at all times.
//!
//! A device whose BAR has page tables of its own, an aperture, shows VRAM only where a driver has
//! made a window. Such a driver implements [`Aperture`] for its objects and names the
//! implementation in [`PeerObject::APERTURE`]. A window is there for peers from before an object is
//! mapped for the first of them until after the last of these mappings is unmapped:
//!
//! - All importers of an object where it is share one window.
//! - An object that moves gets another window where it is then. An importer that has not unmapped
//!   yet keeps the old one meanwhile.
//! - A table of an importer is not kept for its next mapping, because the window goes with it.
//! - A mapping that fails leaves no window, nor does an importer that detaches without an unmap.
//! - When the driver is unbound, [`Exports`] is dropped first: after that there is no window.
//!
//! Without an [`Aperture`] all of VRAM that peers reach is in the BAR at all times, in its own
//! order or in that of a [`Layout`](super::Layout), and none of this costs anything.
//!
//! Only peers have windows. Page faults and mappings for the kernel go by the layout: they see the
//! `visible` bytes that [`setup`](crate::drm::gem::vram::Device::setup) was told of, which have to
//! be in the BAR at all times, where no window is. With 0 bytes no object in VRAM is visible to the
//! CPU: an object that may be in system memory moves there for a fault or a mapping, and the others
//! fail. What copies by the CPU goes by the layout as well.
//!
//! [`PeerObject::APERTURE`]: crate::drm::gem::peer::PeerObject::APERTURE
//! [`Exports`]: crate::drm::gem::peer::Exports

use super::Ranges;
use crate::{
    dma_buf::mapping::RangeList,
    drm::{
        self,
        devres::while_registered,
        gem::{
            mappings::RegistrationData,
            DriverObject, //
        }, //
    },
    pci::p2pdma::Provider,
    prelude::*,
    sync::Arc, //
};
use core::marker::PhantomData;

/// A driver whose BAR shows VRAM to peers through windows.
pub trait Aperture: DriverObject {
    /// A window: what [`Self::map`] shows is in the BAR until the value is dropped.
    ///
    /// The drop invalidates the entries of the aperture and waits for that. It may sleep, and is
    /// called with the reservation of the object held; it takes no reservation and allocates no
    /// memory. The device may be suspended, or have been removed by surprise: then no peer
    /// accesses the window any more.
    ///
    /// The value has what it needs for that, such as a reference to the state of the aperture. All
    /// windows are dropped before the registration data is, but for its list of exported buffers,
    /// which waits for them.
    type Window: Send + Sync + 'static;

    /// Makes a window that shows an object, which is at `vram`, and appends to `pieces`, which is
    /// empty, where in the BAR it does: by [`RangeList::push_piece`], in the order of the object.
    ///
    /// Called with the reservation of the object held, while the driver is bound. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the aperture is full of windows that are held. The importer gets system memory
    /// then if the object may move there, and else this error, in both cases with the reason
    /// [`NoWindow`]. Any other error is that of the mapping.
    ///
    /// [`NoWindow`]: crate::drm::gem::peer::Reason::NoWindow
    fn map<'a>(
        reg: &'a RegistrationData<'a, Self>,
        vram: &Ranges,
        pieces: &mut RangeList,
    ) -> Result<Self::Window>;
}

type Mapper<T> =
    fn(&drm::Device<<T as DriverObject>::Driver>, &Ranges, &Provider<'_>) -> Result<Arc<RangeList>>;

/// The windows of an [`Aperture`] as a constant of the class of objects.
pub struct ApertureHook<T: DriverObject> {
    mapper: Option<Mapper<T>>,
    _p: PhantomData<fn(T)>,
}

impl<T: DriverObject> ApertureHook<T> {
    /// For drivers whose BAR shows VRAM at all times.
    pub const NONE: Self = Self {
        mapper: None,
        _p: PhantomData,
    };

    /// Tells whether there are windows.
    #[inline]
    pub(crate) const fn is_some(&self) -> bool {
        self.mapper.is_some()
    }

    /// Returns the ranges of a new window that shows an object of `dev` in the BAR of `provider`.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is not bound any more, `EINVAL` if a piece is not inside the BAR, or
    /// if there are no windows, and those of [`Aperture::map`].
    pub(crate) fn map(
        &self,
        dev: &drm::Device<T::Driver>,
        vram: &Ranges,
        provider: &Provider<'_>,
    ) -> Result<Arc<RangeList>> {
        self.mapper.ok_or(EINVAL)?(dev, vram, provider)
    }
}

/// Returns the windows of a driver with an aperture.
pub const fn aperture_hook<T: Aperture>() -> ApertureHook<T> {
    ApertureHook {
        mapper: Some(map::<T>),
        _p: PhantomData,
    }
}

fn map<T: Aperture>(
    dev: &drm::Device<T::Driver>,
    vram: &Ranges,
    provider: &Provider<'_>,
) -> Result<Arc<RangeList>> {
    let mut pieces = RangeList::new();
    // SAFETY: The device is valid and of `T::Driver`.
    let window = unsafe {
        while_registered::<T::Driver, _>(dev.as_raw(), |reg| T::map(reg, vram, &mut pieces))
    }?;

    pieces.move_to_window(provider, window)
}
