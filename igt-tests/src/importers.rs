// SPDX-License-Identifier: GPL-2.0

//! Importers of several kinds that use one buffer at the same time.

use crate::drm::{path_name, reason_name, DmaBuf, Drm, Gem};
use crate::fixture::{placed, Expect};
use crate::map::{Map, PAGE};
use crate::pattern::Pattern;
use crate::peer::{Mode, Peer};
use crate::{expect_errno, uapi, Outcome, Stop};

/// An importer.
#[derive(Debug)]
pub enum Importer<'a> {
    /// edu, which maps the buffer until it is invalidated.
    Peer(Peer),
    /// A GPU, of any driver with objects, and an object of its own of the same size.
    Gpu {
        /// The import.
        import: Gem<'a>,
        /// The object, and CPU access to it.
        own: Gem<'a>,
        /// The same.
        map: Map,
        /// Its file.
        drm: &'a Drm,
    },
}

impl<'a> Importer<'a> {
    /// A peer by its PCI name, which follows moves.
    ///
    /// # Errors
    ///
    /// Any error of the attach.
    pub fn peer(name: &str, buffer: &DmaBuf) -> Result<Self, Stop> {
        let peer = Peer::open_name(name)?;
        peer.attach(buffer, Mode::Dynamic)?;
        Ok(Self::Peer(peer))
    }

    /// Another GPU.
    ///
    /// # Errors
    ///
    /// Any error of the ioctls.
    pub fn gpu(drm: &'a Drm, buffer: &DmaBuf) -> Result<Self, Stop> {
        let import = drm.import(buffer)?;
        let own = drm.create(import.size())?;
        let map = own.map()?;
        Ok(Self::Gpu {
            import,
            own,
            map,
            drm,
        })
    }

    /// Maps the buffer, if it is not mapped.
    ///
    /// # Errors
    ///
    /// Any error of the exporter, and fails the subtest if a GPU has another path than `want`.
    #[track_caller]
    pub fn maps(&self, want: u32) -> Outcome {
        match self {
            Self::Peer(peer) => Ok(peer.map()?),
            Self::Gpu { import, .. } => {
                let info = import.import_info()?;
                // It is unknown if the exporter has another driver; the list of attachments has it.
                check!(
                    [want, uapi::PATH_UNKNOWN].contains(&info.path)
                        && info.reason == uapi::REASON_NONE,
                    "path {}, reason {}",
                    path_name(info.path),
                    reason_name(info.reason)
                );
                Ok(())
            }
        }
    }

    /// How often it was told that the buffer moves.
    fn invalidations(&self) -> Result<u64, Stop> {
        Ok(match self {
            Self::Peer(peer) => peer.status()?.invalidations,
            Self::Gpu { import, .. } => import.import_info()?.invalidations,
        })
    }

    /// Begins a read by a peer, whose transfers may take long.
    fn begins(&self) -> Outcome {
        match self {
            Self::Peer(peer) => Ok(peer.submit_read(0, PAGE)?),
            Self::Gpu { .. } => Ok(()),
        }
    }

    /// Reads the buffer, or ends the read of its first page that has begun, and compares the bytes.
    ///
    /// # Errors
    ///
    /// Fails the subtest if a byte differs.
    #[track_caller]
    pub fn reads(&self, pattern: Pattern) -> Outcome {
        let verdict = match self {
            Self::Peer(peer) => {
                let mut bytes = vec![0; PAGE];
                check_eq!(peer.finish_read(&mut bytes)?, PAGE as u64, "bytes read");
                pattern.verify(&bytes, 0)
            }
            Self::Gpu {
                import,
                own,
                map,
                drm,
            } => {
                map.set(0);
                drm.copy((import, 0), (own, 0), import.size())?.finish()?;
                map.verify(pattern)
            }
        };
        verdict.map_err(|mismatch| Stop::fail(format_args!("{self:?} has read: {mismatch}")))
    }

    /// Checks that it cannot use the buffer any more.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it can.
    #[track_caller]
    pub fn is_revoked(&self) -> Outcome {
        match self {
            Self::Peer(peer) => expect_errno("map", peer.map(), libc::ENODEV),
            Self::Gpu { import, .. } => {
                expect_errno("IMPORT_INFO", import.import_info(), libc::ENODEV)
            }
        }
    }
}

/// Checks that importers reach an object of a GPU peer to peer, all of them at once: they map it,
/// read it, follow moves, which `force` makes, and read what was written in between.
///
/// # Errors
///
/// Fails the subtest if that is not so.
#[track_caller]
pub fn use_at_once(
    object: &Gem<'_>,
    map: &Map,
    importers: &[Importer<'_>],
    (x, y): (Pattern, Pattern),
    force: impl Fn(&str) -> Outcome,
) -> Outcome {
    let path = Expect::get()?.path();
    map.fill(x);
    for round in 0..2 {
        let pattern = if round == 0 { x } else { y };
        for importer in importers {
            importer.maps(path)?;
        }
        importers.iter().try_for_each(Importer::begins)?;
        for importer in importers {
            importer.reads(pattern)?;
        }
        placed(object, uapi::PLACEMENT_VRAM)?;
        let list = object.attachments()?;
        check_eq!(list.len(), importers.len(), "attachments: {list:?}");
        for entry in &list {
            check!(
                (entry.path, entry.reason) == (path, uapi::REASON_NONE)
                    && entry.flags & uapi::ATTACHMENT_MAPPED != 0,
                "in round {round}: {entry:?}"
            );
        }
        if round == 1 {
            break;
        }
        let before = counts(importers)?;
        force("system")?;
        placed(object, uapi::PLACEMENT_SYSTEM)?;
        let list = object.attachments()?;
        check!(
            list.iter()
                .all(|entry| entry.flags & uapi::ATTACHMENT_MAPPED == 0),
            "mapped after a move: {list:?}"
        );
        map.fill(y);
        force("vram")?;
        placed(object, uapi::PLACEMENT_VRAM)?;
        for (importer, before) in importers.iter().zip(before) {
            let now = importer.invalidations()?;
            check!(
                now > before,
                "{before} invalidations before a move, {now} after it: {importer:?}"
            );
        }
    }
    Ok(())
}

fn counts(importers: &[Importer<'_>]) -> Result<Vec<u64>, Stop> {
    importers.iter().map(Importer::invalidations).collect()
}
