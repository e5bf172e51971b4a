// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files for an operator: they move objects, limit pins and show the memory use of all clients.
//!
//! A driver calls [`add_files`] in [`debugfs_init`](drm::Driver::debugfs_init). The files are:
//!
//! - `pin_limit`: how many bytes of VRAM may be pinned; writable.
//! - `client_pin_limit`: how many of these bytes may be charged to one client; writable.
//! - `move`: moves objects when written to.
//! - `memory`: the use of all clients together, see below. Clients must not see the activity of
//!   others, so these numbers are for the administrator only.
//!
//! # The file `memory`
//!
//! Each line is a name and a decimal number:
//!
//! - `free`: unallocated VRAM in bytes.
//! - `pinned`: VRAM charged as pinned in bytes.
//! - `referenced`: VRAM in bytes that no process maps for direct I/O any more, but that is not free
//!   because direct I/O still accesses it.
//! - `quarantined`: VRAM in bytes that could not be cleared and is not allocated before the next
//!   reset.
//! - `dma_mapped`: system memory mapped for the engines in bytes.
//! - `lost`: how many objects have lost their content because a job failed.
//! - `done_again`: how many jobs the CPU did instead of an engine.
//!
//! # Locking
//!
//! The files take the reservation of one object at a time.

use super::{
    Object,
    TtmObject, //
};
use crate::{
    drm::{
        self,
        debugfs::{
            number,
            Dir,
            File, //
        },
        gem::DriverObject,
        ttm::{
            OpCtx,
            Place, //
        },
        vram::{
            Domain,
            MemType, //
        },
        Registered, //
    },
    prelude::*,
    seq_file::SeqFile,
    seq_print, //
};
use core::marker::PhantomData;

type DriverOf<T> = <T as DriverObject>::Driver;
type Device<T> = drm::Device<DriverOf<T>, Registered>;

/// Adds the files to the directory of a device.
pub fn add_files<T: TtmObject>(dir: &Dir<'_, DriverOf<T>>) {
    dir.add::<PinLimit<T>>();
    dir.add::<ClientPinLimit<T>>();
    dir.add::<Move<T>>();
    dir.add::<Memory<T>>();
}

/// The file `pin_limit`.
struct PinLimit<T>(PhantomData<T>);

#[vtable]
impl<T: TtmObject> File for PinLimit<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"pin_limit";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        seq_print!(m, "{}\n", T::ttm(dev).pin_limit());
        Ok(())
    }

    /// Sets the limit in bytes, at most the size of VRAM.
    fn write(dev: &Device<T>, text: &str) -> Result {
        let ttm = T::ttm(dev);

        ttm.set_pin_limit(number_up_to(text, ttm.vram_size())?);
        Ok(())
    }
}

/// The file `client_pin_limit`.
struct ClientPinLimit<T>(PhantomData<T>);

#[vtable]
impl<T: TtmObject> File for ClientPinLimit<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"client_pin_limit";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let ttm = T::ttm(dev);

        seq_print!(m, "{}\n", ttm.client_pin_limit().min(ttm.pin_limit()));
        Ok(())
    }

    /// Sets the limit in bytes, at most the size of VRAM.
    fn write(dev: &Device<T>, text: &str) -> Result {
        let ttm = T::ttm(dev);

        ttm.set_client_pin_limit(number_up_to(text, ttm.vram_size())?);
        Ok(())
    }
}

/// The file `move`.
struct Move<T>(PhantomData<T>);

#[vtable]
impl<T: TtmObject> File for Move<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"move";

    /// `<id> vram` and `<id> system` move one object. `evict` moves all evictable objects out of
    /// VRAM.
    ///
    /// - `ENOENT` if there is no such object.
    /// - `EBUSY` if it is pinned.
    /// - `EINVAL` if it may not live there.
    /// - `ENOSPC` if there is no space.
    fn write(dev: &Device<T>, text: &str) -> Result {
        let ttm = T::ttm(dev);

        if text == "evict" {
            let mut next = 0;

            while let Some(obj) = ttm.object_from(next) {
                next = obj.id() + 1;
                match force(&obj, MemType::Tt) {
                    // The object is pinned or has to stay in VRAM.
                    Err(e) if e == EBUSY || e == EINVAL => (),
                    ret => ret?,
                }
            }
            return Ok(());
        }

        let (id, place) = text.split_once(' ').ok_or(EINVAL)?;
        let to = match place {
            "vram" => MemType::Vram,
            "system" => MemType::Tt,
            _ => return Err(EINVAL),
        };
        let obj = ttm.object(number(id)?).ok_or(ENOENT)?;

        force(&obj, to)
    }
}

/// The file `memory`.
struct Memory<T>(PhantomData<T>);

#[vtable]
impl<T: TtmObject> File for Memory<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"memory";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let ttm = T::ttm(dev);

        seq_print!(m, "free {}\n", ttm.vram_free());
        seq_print!(m, "pinned {}\n", ttm.pinned());
        seq_print!(m, "referenced {}\n", ttm.referenced());
        seq_print!(m, "quarantined {}\n", ttm.allocator().quarantined());
        seq_print!(m, "dma_mapped {}\n", ttm.dma_mapped());
        seq_print!(m, "lost {}\n", ttm.losses());
        seq_print!(m, "done_again {}\n", ttm.done_again());
        Ok(())
    }
}

/// Moves an object.
fn force<T: TtmObject>(obj: &Object<T>, to: MemType) -> Result {
    let _runtime_guard = obj.runtime_guard()?;
    let mut object = obj.reserve(true)?;
    let place = match (to, obj.domain()) {
        (MemType::Vram, Domain::Vram | Domain::Either) => Place::VRAM.below(object.visible()),
        (MemType::Tt, Domain::System | Domain::Either) => Place::TT,
        _ => return Err(EINVAL),
    };

    if object.is_pinned() {
        return Err(EBUSY);
    }
    object
        .view()
        .validate_patiently(&[place], &mut OpCtx::interruptible())
}

/// Parses a number up to `max`.
fn number_up_to(text: &str, max: u64) -> Result<u64> {
    let number = number(text)?;

    if number > max {
        return Err(EINVAL);
    }
    Ok(number)
}
