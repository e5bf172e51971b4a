// SPDX-License-Identifier: GPL-2.0

//! The least recently used object is evicted; a mere query does not count as a use.

use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fixture::{cpu_reads, patterns, placed, Expect, Fixture};
use vvram_tests::map::{Map, PAGE64};
use vvram_tests::peer::Mode;
use vvram_tests::{check, check_eq, igt_main, uapi, Outcome};

const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;

/// The objects for an action on the older one of two objects.
struct Act<'a> {
    fixture: &'a Fixture,
    older: &'a Gem<'a>,
    map: &'a Map,
    /// An object in system memory, with the same bytes in its only page.
    local: &'a Gem<'a>,
}

/// Two objects fill VRAM, and `act` is done to the older one. Checks which of them is evicted for a
/// third one.
fn leaves(who: &str, act: impl Fn(&Act<'_>) -> Outcome) -> Outcome {
    let fixture = Fixture::open()?;
    let drm = &fixture.drm;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let (a, b) = patterns();
    drm.await_vram_free(size)?;

    let local = drm.create_flags(PAGE64, uapi::CREATE_SYSTEM)?;
    local.map()?.fill(a);
    let older = drm.create_flags(size / 2, EITHER)?;
    older.map()?.fill(a);
    // No page of the object was accessed through this mapping yet.
    let map = older.map()?;
    let newer = drm.create_flags(size / 2, EITHER)?;
    newer.map()?.fill(b);
    placed(&older, VRAM)?;
    placed(&newer, VRAM)?;

    act(&Act {
        fixture: &fixture,
        older: &older,
        map: &map,
        local: &local,
    })?;
    let third = drm.create_flags(size / 2, EITHER)?;
    let (stays, has_left) = if who == "newer" {
        (&older, &newer)
    } else {
        (&newer, &older)
    };
    placed(&third, VRAM)?;
    placed(stays, VRAM)?;
    placed(has_left, SYSTEM)?;
    let last = older.pages() - 1;
    cpu_reads(&map, a, &[0, last])?;
    cpu_reads(&newer.map()?, b, &[0, last])
}

fn nothing() -> Outcome {
    leaves("older", |_| Ok(()))
}

fn copied() -> Outcome {
    for to in [false, true] {
        leaves("newer", |act| {
            let (local, older) = ((act.local, 0), (act.older, 0));
            let (src, dst) = if to { (local, older) } else { (older, local) };
            act.fixture.drm.copy(src, dst, PAGE64)?.finish()
        })?;
    }
    Ok(())
}

fn accessed() -> Outcome {
    leaves("newer", |act| {
        check!(act.map.read(0) != 0, "the object is empty");
        Ok(())
    })
}

fn mapped() -> Outcome {
    Expect::get()?.need_route()?;
    for mode in [Mode::Dynamic, Mode::Pinned] {
        leaves("newer", |act| {
            let peer = &act.fixture.peer;
            peer.attach_and_map(&act.older.export()?, mode)?;
            Ok(peer.detach()?)
        })?;
    }
    Ok(())
}

fn info() -> Outcome {
    leaves("older", |act| {
        check_eq!(act.older.info()?.pinned, 0, "whether it is pinned");
        Ok(())
    })
}

fn attachments() -> Outcome {
    leaves("older", |act| {
        let buffer = act.older.export()?;
        check_eq!(act.older.attachments()?.len(), 0, "attachments");
        drop(buffer);
        Ok(())
    })
}

fn listed() -> Outcome {
    leaves("older", |act| {
        let id = act.older.info()?.id;
        DebugFs::open(&act.fixture.gpu)?.buffer(id)?;
        FdInfo::of(&act.fixture.drm)?;
        Ok(())
    })
}

igt_main! {
    "nothing", "the older one of two objects leaves first", nothing;
    "copied", "copies are use", copied;
    "accessed", "faults are use", accessed;
    "mapped", "mappings and pins of a peer are use", mapped;
    "info", "GEM_INFO is no use", info;
    "attachments", "an export and PEER_ATTACHMENTS are no use", attachments;
    "listed", "debugfs and fdinfo are no use", listed;
}
