// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The debugfs files to read and limit the VRAM use of peers.
//!
//! A driver calls [`add_files`] in [`debugfs_init`](drm::Driver::debugfs_init). The files are:
//!
//! - `buffers`: a line for each object and below it a line for each attached or recently refused
//!   importer. For an exported object it names the dma-buf by its inode and its name, or the name
//!   of the client if the dma-buf has none. It also names the exporting DRM client and process as
//!   of the export. `visible` is the number of bytes in CPU-visible VRAM. An object is an `orphan`
//!   if only its importers keep it: no handle and no file descriptor is left. Blanks and
//!   non-printable bytes of names are shown as `\x20`.
//! - `usage`: how much CPU-visible VRAM is in use, how many objects are exported, how many
//!   importers are attached to them, and how many of these to orphans.
//! - `counters`: how often importers did not get peer-to-peer memory, by reason, and how often the
//!   content of an object was moved.
//! - `unrevocable`: the policy for non-revocable importers and the amount they have pinned.
//!   `accept`, `refuse` or a limit in bytes can be written.
//!
//! # Locking
//!
//! The files take the reservation of one object at a time.

use super::{
    backing::with_reserved,
    flags,
    importers::listing_of,
    origin::Process,
    vram_or_fail,
    AttachmentInfo,
    Backing,
    Client,
    Event,
    GemExport,
    Object,
    PeerObject,
    Reason,
    Unrevocable, //
};
use crate::{
    dma_buf::{
        self,
        exporter::assume_exporter_of,
        DmaBuf, //
    },
    drm::{
        self,
        debugfs::{
            number,
            Dir,
            File, //
        },
        gem::{
            BaseObject,
            DriverObject,
            IntoGEMObject,
            LockedObject, //
        },
        vram::{
            Domain,
            MemType, //
        },
        Registered, //
    },
    fmt,
    prelude::*,
    seq_file::SeqFile,
    seq_print,
    time::{
        Instant,
        Monotonic, //
    }, //
};
use core::marker::PhantomData;

type DriverOf<T> = <T as DriverObject>::Driver;
type Device<T> = drm::Device<DriverOf<T>, Registered>;

/// Adds the files to the directory of a device.
pub fn add_files<T: PeerObject>(dir: &Dir<'_, DriverOf<T>>) {
    dir.add::<Buffers<T>>();
    dir.add::<Usage<T>>();
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

/// The shown data of an object apart from its importers.
struct Shown {
    placement: &'static str,
    pinned: bool,
    /// Bytes in CPU-visible VRAM.
    visible: u64,
    export: Option<Export>,
}

/// The shown data of an exported object.
struct Export {
    client: Client,
    process: Process,
    /// The name of the dma-buf.
    name: [u8; dma_buf::NAME_LEN],
    /// Only importers keep the dma-buf. Each has a reference of its own. A further reference of an
    /// importer, such as that of a DRM device with a handle, cannot be told from a file descriptor.
    is_orphan: bool,
}

impl Export {
    /// Returns the data of the dma-buf of an object with `attached` attached importers.
    fn of<T: PeerObject>(object: &LockedObject<'_, Object<T>>, attached: usize) -> Option<Self> {
        let buf = Object::<T>::exported(object);

        if buf.is_null() {
            return None;
        }
        // SAFETY: The object knows its dma-buf until the release of the dma-buf, which needs the
        // reservation. No reference is taken because there may be none left. This layer exported
        // the dma-buf for an object of this class.
        let (buf, export, handles) = unsafe {
            let buf = DmaBuf::from_raw(buf);
            let handles = &raw const (*object.object().as_raw()).handle_count;

            (
                buf,
                assume_exporter_of::<GemExport<T>>(buf),
                handles.read_volatile(),
            )
        };

        Some(Self {
            client: Object::<T>::client(object),
            process: export.process,
            name: buf.name(),
            is_orphan: attached > 0
                && handles == 0
                // SAFETY: Each importer has a reference to the file until it has detached. A detach
                // takes the reservation.
                && unsafe { buf.references() } <= attached,
        })
    }
}

/// Collects the data of an object and the list of its importers and recent refusals.
fn look<T: PeerObject>(obj: &Object<T>) -> Result<(Shown, KVec<AttachmentInfo>, u64)> {
    with_reserved(obj, true, |object| {
        let (list, inode) = listing_of::<T>(object)?;
        let state = Object::<T>::state(object);
        let placement = match state.mem_type {
            None => "none",
            Some(MemType::Vram) => "vram",
            Some(MemType::Tt) => "system",
            Some(MemType::System) => "swappable",
        };
        let shown = Shown {
            placement,
            pinned: state.pinned,
            visible: Object::<T>::visible_bytes(object),
            export: Export::of::<T>(object, attached(&list)),
        };

        Ok((shown, list, inode))
    })
}

/// Returns the number of attached importers in a list.
fn attached(list: &[AttachmentInfo]) -> usize {
    list.iter().filter(|info| info.refused_at.is_none()).count()
}

fn show_buffer<T: PeerObject>(obj: &Object<T>, m: &SeqFile) -> Result {
    let domain = match obj.domain() {
        Domain::Vram => "vram",
        Domain::System => "system",
        Domain::Either => "either",
    };
    let (shown, list, inode) = look::<T>(obj)?;

    seq_print!(
        m,
        "buffer id={} size={} domain={} vram_or_fail={} placement={}",
        obj.id(),
        obj.size(),
        domain,
        u32::from(vram_or_fail::<T>(obj)),
        shown.placement
    );
    seq_print!(
        m,
        " visible={} pinned={} exported={} ino={}",
        shown.visible,
        u32::from(shown.pinned),
        u32::from(shown.export.is_some()),
        inode
    );
    if let Some(export) = &shown.export {
        let name = match export.name[0] {
            0 => Word(&export.client.name),
            _ => Word(&export.name),
        };

        seq_print!(
            m,
            " orphan={} client={} name={} pid={} comm={}",
            u32::from(export.is_orphan),
            export.client.id,
            name,
            export.process.pid,
            Word(&export.process.comm)
        );
    }
    seq_print!(m, "\n");

    let now = Instant::now();

    for info in &list {
        show_importer(info, now, m);
    }
    Ok(())
}

/// The file `usage`.
struct Usage<T>(PhantomData<T>);

#[vtable]
impl<T: PeerObject> File for Usage<T> {
    type Driver = DriverOf<T>;

    const NAME: &'static CStr = c"usage";

    fn show(dev: &Device<T>, m: &SeqFile) -> Result {
        let vram = Object::<T>::vram_of(dev);
        let (mut visible, mut exported, mut importers, mut orphaned) = (0, 0, 0, 0);
        let mut next = 0;

        while let Some(obj) = vram.object_from(next) {
            next = obj.id() + 1;
            let (shown, list, _) = look::<T>(&obj)?;
            let count = attached(&list);

            visible += shown.visible;
            if let Some(export) = shown.export {
                exported += 1;
                importers += count;
                if export.is_orphan {
                    orphaned += count;
                }
            }
        }
        seq_print!(
            m,
            "visible={} used={visible} exported={exported}",
            vram.visible()
        );
        seq_print!(m, " attached={importers} orphaned={orphaned}\n");
        Ok(())
    }
}

fn show_importer(info: &AttachmentInfo, now: Instant<Monotonic>, m: &SeqFile) {
    seq_print!(
        m,
        "\timporter={} driver={} path={} reason={} hops={} flags=",
        Word(&info.name),
        Word(&info.driver),
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
    if let Some(age) = info.age(now) {
        seq_print!(m, " age_ms={}", age.as_millis());
    }
    seq_print!(m, "\n");
}

/// A name as one word, without the NUL bytes at its end.
struct Word<'a>(&'a [u8]);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .take_while(|byte| **byte != 0)
            .try_for_each(|byte| match byte {
                b'\\' => write!(f, "\\x5c"),
                byte if byte.is_ascii_graphic() => write!(f, "{}", *byte as char),
                byte => write!(f, "\\x{byte:02x}"),
            })
    }
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

    /// Sets the policy. Attached importers stay.
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
