// SPDX-License-Identifier: GPL-2.0

//! The data of device-private memory, which devres keeps, cannot borrow from data that is dropped
//! earlier.

use kernel::{
    drm::{
        devres::Unregistered,
        pagemap::{
            Driver,
            Registration, //
        }, //
    },
    page::PAGE_SIZE,
    prelude::*, //
};

static LASTING: u32 = 1;

#[expect(dead_code)]
fn register<T>(drm: &Unregistered<'_, '_, T::Drm>) -> Result
where
    T: for<'a> Driver<Data<'a> = &'a u32>,
{
    let _first = Registration::<T>::new(drm, PAGE_SIZE, None, Ok(&LASTING))?;

    #[cfg(refused)]
    {
        let local = 2;
        // refused: E0597
        let _second = Registration::<T>::new(drm, PAGE_SIZE, None, Ok(&local))?;
    }
    Ok(())
}
