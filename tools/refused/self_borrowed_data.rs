// SPDX-License-Identifier: GPL-2.0

//! The registration data of a DRM device cannot borrow from itself: its fields are dropped one by
//! one.

use kernel::{
    drm::{
        devres::Registration,
        Driver, //
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
fn fill<D>(registration: &Registration<D>)
where
    D: for<'a> Driver<RegistrationData<'a> = Data<'a>>,
{
    registration.with_data(|data| {
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
