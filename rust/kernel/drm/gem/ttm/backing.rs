// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The answers of objects that TTM moves to the questions of the export policy.

use super::{
    Device,
    Held,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    device,
    dma_buf::{
        exporter::mapping::RangeList,
        DmaBuf, //
    },
    drm::{
        self,
        gem::{
            aperture::Holder,
            peer::{
                Backing,
                Client,
                Counters,
                Holders,
                PeerObject,
                Vram, //
            },
            BaseObject, //
        },
        ttm::{
            OpCtx,
            Place, //
        },
        vram::{
            Domain,
            MemType,
            Ranges, //
        }, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

// SAFETY: Only `set_exported()` writes the cell `exported`. `move_object()` invalidates the dma-buf
// and waits for the fences before an object moves, and pages stay until then.
unsafe impl<T: TtmObject + PeerObject<Class = Object<T>>> Backing for Object<T> {
    type Data = T;
    type Vram = Device<T>;

    const HAS_WINDOWS: bool = T::APERTURE.is_some();

    #[inline]
    fn data(&self) -> &T {
        self
    }

    #[inline]
    fn vram_of(data: &<T::Driver as drm::Driver>::Data) -> &Device<T> {
        T::ttm(data)
    }

    #[inline]
    fn vram(&self) -> &Device<T> {
        self.ttm()
    }

    #[inline]
    fn owner(&self) -> &device::Device {
        self.ttm().owner()
    }

    #[inline]
    fn id(&self) -> u64 {
        Object::id(self)
    }

    #[inline]
    fn domain(&self) -> Domain {
        T::domain(self)
    }

    #[inline]
    fn residence(&self) -> Option<MemType> {
        Object::residence(self)
    }

    #[inline]
    fn mem_type(object: &Held<'_, Self>) -> Option<MemType> {
        object.mem_type()
    }

    fn bytes_seen(object: &Held<'_, Self>) -> u64 {
        object.bytes_seen()
    }

    fn client(object: &Held<'_, Self>) -> Client {
        object.client()
    }

    #[inline]
    fn is_pinned(object: &Held<'_, Self>) -> bool {
        object.is_pinned()
    }

    fn can_be_seen(object: &Held<'_, Self>) -> bool {
        if T::APERTURE.is_some() {
            return T::APERTURE.fits(object.drm(), object.obj.size() as u64);
        }

        match object.vram() {
            Some(vram) if object.is_pinned() => vram.is_below(object.visible()),
            // The object can be moved.
            _ => {
                let first = object.obj.ttm().allocator().start();

                object.obj.size() as u64 <= object.visible().saturating_sub(first)
            }
        }
    }

    #[inline]
    fn is_seen(object: &Held<'_, Self>) -> bool {
        object
            .vram()
            .is_some_and(|vram| vram.is_below(object.visible()))
    }

    fn bring(
        object: &mut Held<'_, Self>,
        domain: Domain,
        interruptible: bool,
        patient: bool,
    ) -> Result {
        let ctx = &mut if interruptible {
            OpCtx::interruptible()
        } else {
            OpCtx::uninterruptible()
        };
        // A window can show any part of VRAM to peers.
        let vram = if T::APERTURE.is_some() {
            Place::VRAM
        } else {
            Place::VRAM.below(object.visible())
        };
        let [unused, own, last] = domain.places_in(vram);
        // Importers wait for other devices rather than to get system memory.
        let places: &[Place] = match domain {
            Domain::Either => &[unused, own, vram, last],
            _ => &[unused, own, last],
        };

        if patient {
            object.validate_patiently(places, ctx)
        } else {
            object.validate(places, ctx)
        }
    }

    #[inline]
    fn touch(object: &Held<'_, Self>) {
        object.touch();
    }

    fn charge(object: &mut Held<'_, Self>) -> Result {
        object.charge()
    }

    fn uncharge(object: &mut Held<'_, Self>) {
        object.uncharge_unpinned();
    }

    fn pin(object: &mut Held<'_, Self>) -> Result {
        object.pin_raw()
    }

    fn unpin(object: &mut Held<'_, Self>) {
        object.unpin_raw();
    }

    #[inline]
    fn vram_ranges<'a>(object: &'a Held<'_, Self>) -> Result<&'a Ranges> {
        // An importer does not check the error of a fence.
        object.settle_content()?;
        object.vram().ok_or(EINVAL)
    }

    fn window(object: &Held<'_, Self>) -> Result<Arc<RangeList>> {
        object.window(Holder::Importers)
    }

    fn release_window(object: &Held<'_, Self>) {
        object.obj.release_window(Holder::Importers);
    }

    fn pages<'a>(object: &'a mut Held<'_, Self>) -> Result<&'a [*mut bindings::page]> {
        Ok(object.pages(&mut OpCtx::uninterruptible())?.as_slice())
    }

    fn flush(object: &Held<'_, Self>) -> Result {
        object.flush()
    }

    #[inline]
    fn exported(object: &Held<'_, Self>) -> *mut bindings::dma_buf {
        object.exported()
    }

    unsafe fn set_exported(object: &mut Held<'_, Self>, buf: *mut bindings::dma_buf) {
        // SAFETY: As promised by the caller.
        unsafe { object.set_exported(buf) };
    }

    fn imported(&self) -> Option<&DmaBuf> {
        self.as_import().map(|import| import.dma_buf())
    }

    unsafe fn import(
        dev: &drm::Device<T::Driver, drm::Ioctl>,
        buf: ARef<DmaBuf>,
    ) -> Result<ARef<Self>> {
        let args = T::import_args().ok_or(EINVAL)?;

        // SAFETY: As promised by the caller.
        unsafe { Self::import(dev, buf, args) }
    }
}

impl<T: TtmObject> Vram<Object<T>> for Device<T> {
    #[inline]
    fn counters(&self) -> &Counters {
        self.peers()
    }

    #[inline]
    fn holders(&self) -> &Holders {
        Device::holders(self)
    }

    #[inline]
    fn visible(&self) -> u64 {
        Device::visible(self)
    }

    fn object_from(&self, id: u64) -> Option<ARef<Object<T>>> {
        Device::object_from(self, id)
    }

    fn moves(&self) -> u64 {
        Device::moves(self)
    }
}
