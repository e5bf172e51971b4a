// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The registration of device-private pages of a device.

use super::{
    Driver,
    PageMap, //
};
use crate::{
    device::{
        self,
        Bound, //
    },
    devres::{
        Early,
        Turn, //
    },
    drm,
    pci::p2pdma::BarPages,
    prelude::*, //
};
use core::{
    marker::PhantomData,
    mem,
    ops::Deref,
    ptr::NonNull, //
};

/// The device-private memory of a device until the value is dropped or the driver is unbound.
///
/// The drop and the unbind both move all memory back, drop the allocations, remove the pages and
/// then remove the pages of the BAR, in this order. Both wait for pages in use without a limit.
///
/// `'a` is the time for which the device is bound to its driver.
#[must_use = "the memory moves back when this is dropped"]
pub struct Registration<'a, T: Driver> {
    // Owned by `_early`.
    pages: NonNull<PageMap<T>>,
    _early: Early<Pin<KBox<PageMap<T>>>>,
    _p: PhantomData<&'a PageMap<T>>,
}

// SAFETY: A `PageMap` may be used from any task. So may its owner.
unsafe impl<T: Driver> Send for Registration<'_, T> {}

// SAFETY: As for `Send`.
unsafe impl<T: Driver> Sync for Registration<'_, T> {}

impl<'a, T: Driver> Registration<'a, T> {
    /// Creates the pages of `size` bytes of memory of `drm`. They cost 64 bytes for each 4 KiB.
    ///
    /// `bar` has the pages of the BAR used by other devices to access the memory. It also has the
    /// places where the memory is visible. Without a visible place the memory moves back before
    /// another device accesses it.
    ///
    /// If `data` borrows from resources acquired before, these are released after this.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the BAR belongs neither to the parent of `drm` nor to the parent of its
    ///   parent, or if `size` is 0 or not a multiple of the page size.
    /// - `ENOMEM` if memory runs out, and the errors of `data` and of `memremap_pages()`.
    pub fn new(
        drm: &drm::devres::Unregistered<'_, 'a, T::Drm>,
        size: usize,
        bar: Option<(BarPages<'a>, T::View)>,
        data: impl PinInit<T::Data<'a>, Error>,
    ) -> Result<Self> {
        let parent: &'a device::Device<Bound> = drm.parent().as_ref();

        if let Some((pages, _)) = &bar {
            let owner: &device::Device<Bound> = pages.device().as_ref();
            // SAFETY: The parent of a registered device does not change.
            let parents = unsafe { [parent.as_raw(), (*parent.as_raw()).parent] };

            // An auxiliary device is removed before the driver of its parent is unbound.
            if !parents.contains(&owner.as_raw()) {
                return Err(EINVAL);
            }
        }

        let bar = bar.map(|(pages, view)| {
            // SAFETY: Lifetimes do not change the layout. The value is only used until devres drops
            // it. Until then the device is still bound and so is the device of the BAR.
            let pages = unsafe { mem::transmute::<BarPages<'a>, BarPages<'static>>(pages) };

            (pages, view)
        });
        // SAFETY: As above. `'a` is that of an `Unregistered`, so the data can only borrow from the
        // bound device. The device-managed resources behind such a borrow were acquired before the
        // value. They are released after it, because the value goes early. Functions of `T` do not
        // see the longer lifetime.
        let data = unsafe { pin_init::cast_pin_init::<T::Data<'a>, T::Data<'static>, Error>(data) };
        // SAFETY: The device is valid. Devres drops the value in time.
        let pages = KBox::pin_init(
            unsafe { PageMap::<T>::new(drm.as_raw(), size, bar, data) }?,
            GFP_KERNEL,
        )?;

        Ok(Self {
            pages: NonNull::from(&*pages),
            _early: Early::new(parent, Turn::Callbacks, Ok::<_, Error>(pages))?,
            _p: PhantomData,
        })
    }
}

impl<T: Driver> Deref for Registration<'_, T> {
    type Target = PageMap<T>;

    #[inline]
    fn deref(&self) -> &PageMap<T> {
        // SAFETY: It is kept until `self` is dropped or the driver is unbound. The unbind is after
        // the lifetime of `self`.
        unsafe { self.pages.as_ref() }
    }
}
