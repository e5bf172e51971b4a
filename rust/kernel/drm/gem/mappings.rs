// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Device page tables: calls to the driver before the address of an object becomes wrong.
//!
//! A driver for a device with page tables implements [`Mappings`] for its objects and names the
//! implementation in the class: [`TtmObject::MAPPINGS`](drm::gem::ttm::TtmObject::MAPPINGS) or
//! [`VramObject::MAPPINGS`](super::vram::VramObject::MAPPINGS). It gets the addresses of an object
//! from [`LockedObject::placed`] with the reservation held and the device registered. From then on
//! the layer calls the driver before an address becomes wrong:
//!
//! - The object moves to or from VRAM or becomes swappable. [`evicted`](Mappings::evicted) comes
//!   before any wait. [`zap`](Mappings::zap) comes after the wait and before the copy is queued.
//! - The exporter of an imported buffer invalidates it. `evicted` is called inside the exporter's
//!   call and must not wait. `zap` is called when the fences that the buffer had then have
//!   signalled, before it is unmapped. Until then any use of the buffer fails with `EAGAIN`;
//!   [`Import::await_unused`](super::Import::await_unused) waits for the fences.
//! - The importing device is unbound: both are called in sequence before the buffer is unmapped.
//! - The DRM device is unplugged: both are called before the registration data is dropped.
//!
//! For an immovable object only the last case occurs. For a movable object the layer records
//! whether addresses were given out since the last `zap` and omits the calls if not.
//!
//! - A move failing after `evicted` leaves the object in place with valid page table entries. A
//!   move failing after `zap` leaves it in place without entries. Neither call has to be undone:
//!   the next use of the object asks for its addresses again.
//! - A suspended device keeps its entries. An object leaving VRAM is zapped as in any move; an
//!   object staying in VRAM is restored to the same place.
//! - There is no call for discarded content because TTM never discards the content of an object.
//! - No calls are made for ghosts, which TTM leaves behind for objects that moved or are being
//!   freed.
//!
//! # Jobs
//!
//! The addresses of an object may be known before its content has arrived. A job depends on the
//! [`Usage::Kernel`] fences of all its objects and adds its own fence to their reservations. Moves
//! wait for this fence. The job also keeps `LockedObject::arrival()` and does not begin if the
//! content was lost: the memory may have content of its last owner.
//!
//! Jobs queued earlier on the same page table have neither. If there may be such jobs, the driver
//! waits for the fences of the object before it writes entries. It waits without a reservation: it
//! leaves the round of `drm::exec` and tries again after the wait.
//! `drivers/gpu/drm/mgpu/vm/round.rs` does so. `drivers/gpu/drm/vvram/vm.rs` is a short example. An
//! unplug does not wait for jobs.
//!
//! [`Usage::Kernel`]: crate::dma_resv::Usage::Kernel
//!
//! # Locking
//!
//! Both calls are made with the reservation of the object held. `zap` is also subject to the rules
//! for fence signalling: it takes no reservation, allocates no memory and takes no lock under which
//! other code does either. lockdep checks this.

use super::{
    DriverAllocImpl,
    DriverObject,
    IntoGEMObject,
    LockedObject, //
};
use crate::{
    bindings,
    dma_buf::fence::SignallingSection,
    drm::{
        self,
        devres::while_registered, //
    },
    prelude::*, //
};
use core::marker::PhantomData;

/// The registration data of the driver of an object.
pub type RegistrationData<'a, T> =
    <<T as DriverObject>::Driver as drm::Driver>::RegistrationData<'a>;

/// A driver with page tables for its objects.
///
/// A page table holds a reference to each of its objects. No calls are made for an object whose
/// last reference is gone.
///
/// Both calls may come more than once for one move and for an object that is in no page table. See
/// [`LockedObject::placed`] for an example.
pub trait Mappings: DriverObject {
    /// The object is about to leave its place: new work must not use its addresses.
    ///
    /// Called after importers were notified and before any wait. Sets flags; must not wait.
    fn evicted(reg: &RegistrationData<'_, Self>, object: &LockedObject<'_, DriverAllocImpl<Self>>);

    /// The object leaves its place: no page table entry may lead there when this returns.
    ///
    /// Called after the wait for the fences in the reservation. If the device is unplugged or
    /// unbound, there is no such wait and work that still uses the addresses faults. Afterwards the
    /// memory is unmapped or given to other objects. Clears the entries and makes the device
    /// invalidate its cache of them once for each page table. May sleep within the rules of the
    /// [module](self).
    ///
    /// The device is active if the object moves to or from VRAM. It may be suspended if system
    /// memory is about to be swapped out or a buffer of another device is invalidated. Then the
    /// entries have to be cleared before the device uses them again.
    fn zap(reg: &RegistrationData<'_, Self>, object: &LockedObject<'_, DriverAllocImpl<Self>>);
}

/// The address of a part of an object, for a page table of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// An offset in VRAM.
    Vram(u64),
    /// The physical address of system memory, for engines without DMA to system memory:
    /// [`Engine::DMA`](drm::ttm::Engine::DMA).
    System(u64),
    /// The DMA address of system memory or of a buffer of another device.
    Dma(u64),
}

impl Address {
    /// Returns the address `bytes` behind this one in the same part of the object.
    #[inline]
    pub fn after(self, bytes: u64) -> Self {
        match self {
            Self::Vram(at) => Self::Vram(at + bytes),
            Self::System(at) => Self::System(at + bytes),
            Self::Dma(at) => Self::Dma(at + bytes),
        }
    }
}

/// Returns the address of offset `at` in consecutive pieces, given by their addresses and lengths.
pub(super) fn address_at(pieces: impl Iterator<Item = (u64, u64)>, mut at: u64) -> Option<u64> {
    for (address, len) in pieces {
        if at < len {
            return Some(address + at);
        }
        at -= len;
    }
    None
}

/// A call of [`Mappings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Evicted,
    Zap,
}

/// The state of the device during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The device has to be registered.
    Registered,
    /// The device was unplugged and its registration data still exists.
    Unplugged,
}

/// Makes a call for an object, unless its last reference is gone.
///
/// Returns `ENODEV` if `when` needs a registered device and the device is not registered.
///
/// # Safety
///
/// The GEM object must be of the class that the function was created for. Its memory must be valid
/// and its reservation held. `When::Unplugged` must be true.
pub(crate) type Caller = unsafe fn(*mut bindings::drm_gem_object, Call, When) -> Result;

/// The calls of [`Mappings`] as a constant of the class of objects.
pub struct MappingHooks<T: DriverObject> {
    caller: Option<Caller>,
    _p: PhantomData<fn(T)>,
}

impl<T: DriverObject> MappingHooks<T> {
    /// For drivers without page tables.
    pub const NONE: Self = Self {
        caller: None,
        _p: PhantomData,
    };

    /// Returns the function for the calls.
    #[inline]
    pub(crate) const fn caller(&self) -> Option<Caller> {
        self.caller
    }
}

/// Returns the calls of a driver with page tables.
pub const fn mapping_hooks<T: Mappings>() -> MappingHooks<T> {
    MappingHooks {
        caller: Some(call::<T>),
        _p: PhantomData,
    }
}

/// # Safety
///
/// See [`Caller`].
unsafe fn call<T: Mappings>(gem: *mut bindings::drm_gem_object, call: Call, when: When) -> Result {
    // SAFETY: By the safety requirements.
    let dev = unsafe { (*gem).dev };

    match when {
        // SAFETY: The device of an object is valid and of `T::Driver`; the rest is promised.
        When::Registered => unsafe {
            while_registered::<T::Driver, _>(dev, |reg| {
                with_reference::<T>(gem, call, reg);
                Ok(())
            })
        },
        When::Unplugged => {
            // SAFETY: The device is valid and of `T::Driver`. It was registered, and its data stays
            // until this returns.
            let dev: &drm::Device<T::Driver, drm::Registered> =
                unsafe { drm::Device::from_raw(dev) };

            // SAFETY: As promised by the caller.
            dev.registration_data_with(|reg| unsafe { with_reference::<T>(gem, call, reg) });
            Ok(())
        }
    }
}

/// # Safety
///
/// The requirements of [`Caller`], with a DRM device to which the caller has a reference.
unsafe fn with_reference<T: Mappings>(
    gem: *mut bindings::drm_gem_object,
    call: Call,
    reg: &RegistrationData<'_, T>,
) {
    // The driver may take references, so this function needs one of its own.
    // SAFETY: The memory of the object is valid.
    if unsafe { bindings::kref_get_unless_zero(&raw mut (*gem).refcount) } == 0 {
        return;
    }

    {
        // SAFETY: The object is one of this class, and valid until the reference is put.
        let object: &DriverAllocImpl<T> = unsafe { IntoGEMObject::from_raw(gem) };
        // SAFETY: As promised by the caller.
        let held = unsafe { LockedObject::assume(object) };

        match call {
            Call::Evicted => T::evicted(reg, &held),
            Call::Zap => {
                let _section = SignallingSection::begin();

                T::zap(reg, &held);
            }
        }
    }

    // This may be the last reference: freeing the object does not take the reservation, and there
    // is another reference to the device.
    // SAFETY: The reference was taken above.
    unsafe { bindings::drm_gem_object_put(gem) };
}
