// SPDX-License-Identifier: GPL-2.0

//! Importers of each class, of objects of a device that sleeps.

use crate::drm::{DmaBuf, Drm, Gem, EITHER};
use crate::fixture::{peer_reads, peer_writes, placed};
use crate::map::{Map, PAGE};
use crate::pattern::Pattern;
use crate::peer::{Mode, Peer};
use crate::{uapi, Outcome, Stop};

/// The pages of an object.
const PAGES: usize = 4;

/// An object with a pattern in it, and its importer.
struct Held<'a> {
    mode: Mode,
    flags: u32,
    object: Gem<'a>,
    map: Map,
    pattern: Pattern,
    peer: Peer,
    _buffer: DmaBuf,
    placement: u32,
    table: Vec<uapi::EduPeerSegment>,
    invalidations: u64,
}

/// Importers of each class.
pub struct Importers<'a>(Vec<Held<'a>>);

impl<'a> Importers<'a> {
    /// Makes them. Without a route from the peer to VRAM there are none of objects that are in VRAM
    /// only.
    pub fn new(drm: &'a Drm, peer: &Peer, has_route: bool, seed: Pattern) -> Result<Self, Stop> {
        let only = uapi::CREATE_VRAM;
        let modes = [
            (Mode::Static, EITHER),
            (Mode::NoP2p, EITHER),
            (Mode::Dynamic, EITHER),
            (Mode::Pinned, EITHER),
            (Mode::Revocable, EITHER),
            (Mode::Dynamic, only),
            (Mode::Pinned, only),
        ];
        let mut all = Vec::new();
        for (index, (mode, flags)) in modes.into_iter().enumerate() {
            if flags == only && !has_route {
                continue;
            }
            let object = drm.create_flags((PAGES * PAGE) as u64, flags)?;
            let (map, pattern) = (object.map()?, seed.derive(index as u64));
            map.fill(pattern);
            placed(&object, uapi::PLACEMENT_VRAM)?;
            let (buffer, peer) = (object.export()?, peer.reopen()?);
            peer.attach_and_map(&buffer, mode)?;
            all.push(Held {
                mode,
                flags,
                placement: object.info()?.placement,
                table: peer.table()?,
                invalidations: peer.status()?.invalidations,
                object,
                map,
                pattern,
                peer,
                _buffer: buffer,
            });
        }
        Ok(Self(all))
    }

    /// Checks, after the system slept, which importers were notified, that the others have their
    /// addresses, and that each reads and writes the object where it was before.
    ///
    /// `check` is called with an importer that has mapped its object again, and with the mapping of
    /// the object by this process.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that is not so, and the errors of `check`.
    #[track_caller]
    pub fn check(&self, other: Pattern, check: impl Fn(&Peer, &Map) -> Outcome) -> Outcome {
        for held in &self.0 {
            let (mode, peer) = (held.mode, &held.peer);
            let invalidated = peer.status()?.invalidations - held.invalidations;
            let in_vram = held.placement == uapi::PLACEMENT_VRAM;
            let leaves = in_vram && held.flags == EITHER && !mode.needs_pin();
            println!(
                "{mode:?} {:#x}: placement {}, {invalidated} invalidations",
                held.flags, held.placement
            );
            check_eq!(
                invalidated > 0,
                leaves,
                "whether the mapping of {mode:?} was invalidated"
            );
            if leaves {
                peer.map()?;
                check(peer, &held.map)?;
            } else {
                check_eq!(peer.table()?, held.table, "the table of {mode:?}");
            }
            peer_reads(peer, held.pattern, &[0, PAGES - 1])?;
            peer_writes(peer, other, &[2])?;
            peer_reads(peer, other, &[2])?;
            check_ok!(
                held.map.verify_pages(other, 2, 1),
                "what the CPU reads of the object of {mode:?}"
            );
            check_eq!(
                held.object.info()?.placement,
                held.placement,
                "placement of the object of {mode:?}"
            );
        }
        Ok(())
    }
}
