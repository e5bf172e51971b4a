// SPDX-License-Identifier: GPL-2.0

//! The registration data of an auxiliary device cannot borrow from itself: its fields are dropped
//! one by one.

use kernel::{
    auxiliary::Device,
    device::Bound,
    prelude::*,
    sync::Mutex,
    types::ForLt, //
};

#[pin_data]
struct Data<'a> {
    bytes: KVec<u8>,
    #[pin]
    slot: Mutex<Option<&'a KVec<u8>>>,
}

#[expect(dead_code)]
fn fill(dev: &Device<Bound>) -> Result {
    dev.registration_data_with::<ForLt!(Data<'_>), _>(|data| {
        let data = data.get_ref();
        let mut slot = data.slot.lock();

        *slot = None;
        #[cfg(refused)]
        {
            // refused: lifetime may not live long enough
            *slot = Some(&data.bytes);
        }
        let _ = &data.bytes;
    })
}
