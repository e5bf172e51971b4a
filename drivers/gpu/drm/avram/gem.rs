// SPDX-License-Identifier: GPL-2.0

//! The objects.

use kernel::{
    drm::{
        self,
        gem::{
            self,
            peer::{
                self,
                PeerObject, //
            },
            vram::VramObject,
            DriverObject, //
        },
        vram::Ranges, //
    },
    prelude::*, //
};

use crate::card::{
    Bound,
    Data,
    Driver, //
};

/// An object. Userspace refers to it by a handle.
pub(crate) type Bo = gem::vram::Object<BoData>;

/// The driver's part of an object: nothing.
pub(crate) struct BoData;

impl DriverObject for BoData {
    type Driver = Driver;
    type Args = ();

    fn new(_dev: &drm::Device<Driver>, _size: usize, _args: ()) -> impl PinInit<Self, Error> {
        Ok::<_, Error>(Self)
    }
}

impl VramObject for BoData {
    fn vram(data: &Data) -> &gem::vram::Device<Self> {
        &data.vram
    }

    fn clear(bound: &Bound<'_>, vram: &Ranges) -> Result {
        bound.window.clear(vram)
    }

    fn flush(bound: &Bound<'_>, vram: &Ranges) {
        bound.window.flush(vram);
    }
}

impl PeerObject for BoData {
    type Class = Bo;

    const OPS: &'static peer::Ops<Self> = kernel::peer_ops!(BoData);
}
