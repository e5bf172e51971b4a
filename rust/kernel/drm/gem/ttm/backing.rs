// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The properties of TTM objects for the export policy.

use super::{
    LockedObject,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
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
                State,
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
unsafe impl<T: TtmObject> Backing for Object<T> {
    type Data = T;

    const HAS_WINDOWS: bool = T::APERTURE.is_some();

    #[inline]
    fn data(&self) -> &T {
        self
    }

    #[inline]
    fn vram_of(data: &<T::Driver as drm::Driver>::Data) -> &Vram<T> {
        T::ttm(data)
    }

    #[inline]
    fn vram(&self) -> &Vram<T> {
        self.ttm()
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
    fn last_placement(&self) -> Option<MemType> {
        Object::last_placement(self)
    }

    #[inline]
    fn state(object: &LockedObject<'_, Self>) -> State {
        let mem_type = object.mem_type();
        let visible = if T::APERTURE.is_some() {
            mem_type == Some(MemType::Vram)
        } else {
            object
                .vram()
                .is_some_and(|vram| vram.is_below(object.visible()))
        };

        State {
            mem_type,
            pinned: object.is_pinned(),
            visible,
        }
    }

    fn visible_bytes(object: &LockedObject<'_, Self>) -> u64 {
        object.visible_bytes()
    }

    fn client(object: &LockedObject<'_, Self>) -> Client {
        object.client()
    }

    fn can_be_visible(object: &LockedObject<'_, Self>) -> bool {
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

    fn migrate(
        object: &mut LockedObject<'_, Self>,
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
        // For importers, prefer a wait for other devices to system memory.
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
    fn touch(object: &LockedObject<'_, Self>) {
        object.touch();
    }

    fn charge(object: &mut LockedObject<'_, Self>) -> Result {
        object.charge()
    }

    fn uncharge(object: &mut LockedObject<'_, Self>) {
        object.uncharge_unpinned();
    }

    fn pin(object: &mut LockedObject<'_, Self>) -> Result {
        object.pin_raw()
    }

    fn unpin(object: &mut LockedObject<'_, Self>) {
        object.unpin_raw();
    }

    #[inline]
    fn vram_ranges<'a>(object: &'a LockedObject<'_, Self>) -> Result<&'a Ranges> {
        // An importer does not check the error of a fence.
        object.settle_content()?;
        object.vram().ok_or(EINVAL)
    }

    fn window(object: &LockedObject<'_, Self>) -> Result<Arc<RangeList>> {
        object.window(Holder::Importers)
    }

    fn release_window(object: &LockedObject<'_, Self>) {
        object.obj.release_window(Holder::Importers);
    }

    fn pages<'a>(object: &'a mut LockedObject<'_, Self>) -> Result<&'a [*mut bindings::page]> {
        Ok(object.pages(&mut OpCtx::uninterruptible())?.as_slice())
    }

    fn flush(object: &LockedObject<'_, Self>) -> Result {
        object.flush()
    }

    #[inline]
    fn exported(object: &LockedObject<'_, Self>) -> *mut bindings::dma_buf {
        object.exported()
    }

    unsafe fn set_exported(object: &mut LockedObject<'_, Self>, buf: *mut bindings::dma_buf) {
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
