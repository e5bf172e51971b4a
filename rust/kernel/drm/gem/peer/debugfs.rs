// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files by which an operator sees, and changes, what peers get.
//!
//! A driver calls [`add_files`] in [`debugfs_init`](drm::Driver::debugfs_init). The files are:
//!
//! - `buffers`: a line for each object, and below it one for each importer: attached, or refused of
//!   late,
//! - `counters`: how often importers did not get peer memory, by reason, and how often the content
//!   of an object was moved,
//! - `pin_limit`: how many bytes of VRAM may be pinned; can be written,
//! - `client_pin_limit`: how many of these on the account of one client; can be written,
//! - `unrevocable`: what importers may have that cannot be told to let go, and what they have pinned;
//!   `accept`, `refuse` and a number of bytes, the limit, can be written,
//! - `move`: moves objects when it is written to.
//!
//! # Locking
//!
//! The files take the reservation of one object at a time and hold no other lock.

use super::{
    attachments,
    flags,
    vram_or_fail,
    AttachmentInfo,
    Event,
    PeerObject,
    Reason,
    Unrevocable, //
};
use crate::{
    drm::{
        self,
        debugfs::{
            Dir,
            File, //
        },
        gem::{
            ttm::Object,
            BaseObject,
            DriverObject, //
        },
        ttm::{
            Domain,
            MemType,
            OpCtx,
            Place, //
        },
        Registered, //
    },
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    str::BStr, //
};
use core::marker::PhantomData;

type DriverOf<T> = <T as DriverObject>::Driver;
type Device<T> = drm::Device<DriverOf<T>, Registered>;

/// Adds the files to the directory of a device.
pub fn add_files<T: PeerObject>(dir: &Dir<'_, DriverOf<T>>) {
    dir.add::<Buffers<T>>();
    dir.add::<CountersFile<T>>();
    dir.add::<PinLimit<T>>();
    dir.add::<ClientPinLimit<T>>();
    dir.add::<UnrevocableFile<T>>();
    dir.add::<Move<T>>();
}

/// The file `buffers`.
struct Buffers<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for Buffers<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"buffers";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let mut next = 0;

        while let Some(obj) = T::ttm(dev).object_from(next) {
            next = obj.id() + 1;
            show_buffer(&obj, m)?;
        }
        Ok(())
    }
}

fn show_buffer<T: PeerObject>(obj: &Object<T>, m: &SeqFile) -> Result {
    let domain = match obj.domain() {
        Domain::Vram => "vram",
        Domain::System => "system",
        Domain::Either => "either",
    };
    let (placement, pinned, exported) = {
        let object = obj.reserve(true)?;
        let placement = match object.mem_type() {
            None => "none",
            Some(MemType::Vram) => "vram",
            Some(MemType::Tt) => "system",
            Some(MemType::System) => "swappable",
        };

        (
            placement,
            u32::from(object.is_pinned()),
            u32::from(!object.exported().is_null()),
        )
    };

    seq_print!(
        m,
        "buffer id={} size={} domain={} vram_or_fail={} placement={} pinned={} exported={}\n",
        obj.id(),
        obj.size(),
        domain,
        u32::from(vram_or_fail::<T>(obj)),
        placement,
        pinned,
        exported
    );
    for info in &attachments(obj)? {
        show_importer(info, m);
    }
    Ok(())
}

fn show_importer(info: &AttachmentInfo, m: &SeqFile) {
    let len = info.name.iter().position(|b| *b == 0);

    seq_print!(
        m,
        "\timporter={} path={} reason={} hops={} flags=",
        BStr::from_bytes(&info.name[..len.unwrap_or(info.name.len())]),
        info.outcome.path.name(),
        info.outcome.reason.name(),
        info.hops()
    );

    let mut separator = "";
    for (flag, name) in [
        (flags::PINNED, "pinned"),
        (flags::MAPPED, "mapped"),
        (flags::DYNAMIC, "dynamic"),
        (flags::REVOCABLE, "revocable"),
        (flags::PEER2PEER, "peer2peer"),
    ] {
        if info.flags & flag != 0 {
            seq_print!(m, "{separator}{name}");
            separator = ",";
        }
    }
    seq_print!(m, "\n");
}

/// The file `counters`.
struct CountersFile<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for CountersFile<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"counters";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let ttm = T::ttm(dev);

        for event in Event::ALL {
            for reason in Reason::ALL {
                let count = ttm.peers().get(event, reason);

                seq_print!(m, "{} {} {count}\n", event.name(), reason.name());
            }
        }
        seq_print!(m, "moves - {}\n", ttm.moves());
        Ok(())
    }
}

/// The file `pin_limit`.
struct PinLimit<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for PinLimit<T> {
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
impl<T: PeerObject> File for ClientPinLimit<T> {
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

/// The file `unrevocable`.
struct UnrevocableFile<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for UnrevocableFile<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"unrevocable";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let holders = T::ttm(dev).holders();

        match holders.policy() {
            Unrevocable::Accept => seq_print!(m, "policy=accept"),
            Unrevocable::Limit(bytes) => seq_print!(m, "policy=limit limit={bytes}"),
            Unrevocable::Refuse => seq_print!(m, "policy=refuse"),
        }
        seq_print!(m, " held={}\n", holders.held());
        Ok(())
    }

    /// Sets the policy. Importers that are attached stay.
    fn write(dev: &Device<T>, text: &str) -> Result {
        let policy = match text {
            "accept" => Unrevocable::Accept,
            "refuse" => Unrevocable::Refuse,
            bytes => Unrevocable::Limit(number(bytes)?),
        };

        T::ttm(dev).holders().set_policy(policy);
        Ok(())
    }
}

/// The file `move`.
struct Move<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for Move<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"move";

    /// `<id> vram` and `<id> system` move one object, and `evict` moves all that can leave VRAM.
    ///
    /// `ENOENT` if there is no such object, `EBUSY` if it is pinned, `EINVAL` if it may not live
    /// there, `ENOSPC` if there is no room.
    fn write(dev: &Device<T>, text: &str) -> Result {
        let ttm = T::ttm(dev);

        if text == "evict" {
            let mut next = 0;

            while let Some(obj) = ttm.object_from(next) {
                next = obj.id() + 1;
                match force(&obj, MemType::Tt) {
                    // Pinned, or to stay in VRAM.
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

/// Moves an object.
fn force<T: PeerObject>(obj: &Object<T>, to: MemType) -> Result {
    let _awake = obj.awake()?;
    let mut object = obj.reserve(true)?;
    let place = match (to, obj.domain()) {
        (MemType::Vram, Domain::Vram | Domain::Either) => Place::VRAM.below(object.visible()),
        (MemType::Tt, Domain::System | Domain::Either) => Place::TT,
        _ => return Err(EINVAL),
    };

    if object.is_pinned() {
        return Err(EBUSY);
    }
    object.validate(&[place], &mut OpCtx::interruptible())
}

/// Reads a number that is at most `max`.
fn number_up_to(text: &str, max: u64) -> Result<u64> {
    let number = number(text)?;

    if number > max {
        return Err(EINVAL);
    }
    Ok(number)
}

/// Reads a number: digits, and nothing else.
fn number(text: &str) -> Result<u64> {
    if text.starts_with('+') {
        return Err(EINVAL);
    }
    text.parse().map_err(|_| EINVAL)
}
