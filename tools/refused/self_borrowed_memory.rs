// SPDX-License-Identifier: GPL-2.0

//! The data of device-private memory cannot borrow from itself: its fields are dropped one by one.

use core::marker::PhantomData;
use kernel::{
    drm::{
        self,
        pagemap::{
            Driver,
            Linear,
            Segments, //
        },
        vram::Allocation, //
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
struct Svm<D>(PhantomData<fn() -> D>);

impl<D: drm::Driver + 'static> Driver for Svm<D> {
    type Drm = D;
    type Data<'a> = Data<'a>;
    type Alloc = Allocation;
    type View = Linear;

    fn alloc(_drm: &drm::Device<D>, data: &Data<'_>, _size: usize) -> Result<Allocation> {
        let mut slot = data.slot.lock();

        *slot = None;
        #[cfg(refused)]
        {
            // refused: lifetime may not live long enough
            *slot = Some(&data.bytes);
        }
        Err(ENOMEM)
    }

    fn offset(_alloc: &Allocation) -> Option<u64> {
        None
    }

    fn copy_to_dev(_data: &Data<'_>, _segments: Segments<'_>) -> Result {
        Ok(())
    }

    fn copy_to_ram(_data: &Data<'_>, _segments: Segments<'_>) -> Result {
        Ok(())
    }
}
