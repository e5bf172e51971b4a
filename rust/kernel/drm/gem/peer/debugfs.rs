// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files by which an operator sees, and changes, what peers get.
//!
//! A driver calls [`add_files`] in [`debugfs_init`](drm::Driver::debugfs_init). The files are:
//!
//! - `buffers`: a line for each object, and below it one for each importer: attached, or refused of
//!   late,
//! - `counters`: how often importers did not get peer memory, by reason, and how often the content
//!   of an object was moved,
//! - `unrevocable`: what importers may have that cannot be told to let go, and what they have pinned;
//!   `accept`, `refuse` and a number of bytes, the limit, can be written.
//!
//! # Locking
//!
//! The files take the reservation of one object at a time and hold no other lock.

use super::{
    backing::with_reserved,
    flags,
    listing,
    vram_or_fail,
    AttachmentInfo,
    Backing,
    Event,
    Name,
    Object,
    PeerObject,
    Reason,
    Unrevocable,
    Vram, //
};
use crate::{
    drm::{
        self,
        debugfs::{
            number,
            Dir,
            File, //
        },
        gem::{
            BaseObject,
            DriverObject, //
        },
        vram::{
            Domain,
            MemType, //
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
    dir.add::<UnrevocableFile<T>>();
}

/// The file `buffers`.
struct Buffers<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for Buffers<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"buffers";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let mut next = 0;

        while let Some(obj) = Object::<T>::vram_of(dev).object_from(next) {
            next = obj.id() + 1;
            show_buffer::<T>(&obj, m)?;
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
    let (list, inode) = listing::<T>(obj)?;
    let (placement, pinned, exported) = with_reserved(obj, true, |object| {
        let placement = match Object::<T>::mem_type(object) {
            None => "none",
            Some(MemType::Vram) => "vram",
            Some(MemType::Tt) => "system",
            Some(MemType::System) => "swappable",
        };

        Ok((
            placement,
            u32::from(Object::<T>::is_pinned(object)),
            u32::from(!Object::<T>::exported(object).is_null()),
        ))
    })?;

    seq_print!(
        m,
        "buffer id={} size={} domain={} vram_or_fail={} placement={} pinned={} exported={} ino={}\n",
        obj.id(),
        obj.size(),
        domain,
        u32::from(vram_or_fail::<T>(obj)),
        placement,
        pinned,
        exported,
        inode
    );
    for info in &list {
        show_importer(info, m);
    }
    Ok(())
}

fn show_importer(info: &AttachmentInfo, m: &SeqFile) {
    seq_print!(
        m,
        "\timporter={} driver={} path={} reason={} hops={} flags=",
        text(&info.name),
        text(&info.driver),
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
    if let Some(at) = info.refused_at {
        seq_print!(m, " age_ms={}", at.elapsed().as_millis());
    }
    seq_print!(m, "\n");
}

/// A name without what it is filled up with.
fn text(name: &Name) -> &BStr {
    let len = name.iter().position(|b| *b == 0);

    BStr::from_bytes(&name[..len.unwrap_or(name.len())])
}

/// The file `counters`.
struct CountersFile<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for CountersFile<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"counters";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let vram = Object::<T>::vram_of(dev);

        for event in Event::ALL {
            for reason in Reason::ALL {
                let count = vram.counters().get(event, reason);

                seq_print!(m, "{} {} {count}\n", event.name(), reason.name());
            }
        }
        seq_print!(m, "moves - {}\n", vram.moves());
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
        let holders = Object::<T>::vram_of(dev).holders();

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

        Object::<T>::vram_of(dev).holders().set_policy(policy);
        Ok(())
    }
}
