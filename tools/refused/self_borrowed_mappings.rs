// SPDX-License-Identifier: GPL-2.0

//! The functions of a driver that get its registration data cannot let it borrow from itself.

use core::marker::PhantomData;
use kernel::{
    drm::{
        self,
        gem::{
            mappings::Mappings,
            DriverAllocImpl,
            DriverObject,
            LockedObject, //
        }, //
    },
    prelude::*,
    sync::Mutex, //
};

#[pin_data]
struct Data<'a> {
    bytes: KVec<u8>,
    #[pin]
    slot: Mutex<Option<&'a KVec<u8>>>,
}

#[expect(dead_code)]
struct Bo<D>(PhantomData<fn() -> D>);

impl<D: drm::Driver + 'static> DriverObject for Bo<D> {
    type Driver = D;
    type Args = ();

    fn new(_dev: &drm::Device<D>, _size: usize, _args: ()) -> impl PinInit<Self, Error> {
        Ok(Self(PhantomData))
    }
}

impl<D> Mappings for Bo<D>
where
    D: for<'a> drm::Driver<RegistrationData<'a> = Data<'a>> + 'static,
{
    fn evicted(data: &Data<'_>, _object: &LockedObject<'_, DriverAllocImpl<Self>>) {
        let mut slot = data.slot.lock();

        *slot = None;
        #[cfg(refused)]
        {
            // refused: lifetime may not live long enough
            *slot = Some(&data.bytes);
        }
        let _ = &data.bytes;
    }

    fn zap(_data: &Data<'_>, _object: &LockedObject<'_, DriverAllocImpl<Self>>) {}
}
