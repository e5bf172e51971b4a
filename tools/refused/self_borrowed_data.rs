// SPDX-License-Identifier: GPL-2.0

//! The registration data of a DRM device cannot borrow from itself: its fields are dropped one by
//! one.

use kernel::{
    drm::{
        Device,
        Driver,
        Registered, //
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
fn fill<D>(dev: &Device<D, Registered>)
where
    D: for<'a> Driver<RegistrationData<'a> = Data<'a>>,
{
    dev.registration_data_with(|data| {
        let mut slot = data.slot.lock();

        *slot = None;
        #[cfg(refused)]
        {
            // refused: lifetime may not live long enough
            *slot = Some(&data.bytes);
        }
        let _ = &data.bytes;
    });
}
