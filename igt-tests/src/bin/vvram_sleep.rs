// SPDX-License-Identifier: GPL-2.0

//! VRAM that loses its content when the device is suspended, and suspend of the system.
//!
//! vvram fills VRAM with a byte when it is suspended. If an object has that byte afterwards,
//! its content was lost.

use vvram_tests::asleep::Importers;
use vvram_tests::auxiliary::{Module, Split};
use vvram_tests::bar_export::Exporter;
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fixture::{
    cpu_reads, in_system_memory, patterns, peer_reads, peer_writes, placed, works, Fixture,
};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::Mode;
use vvram_tests::power::{self, lossy, Auto};
use vvram_tests::{check_eq, igt_main, uapi, Outcome, Stop};

const ONLY: u32 = uapi::CREATE_VRAM;
const PAGES: usize = 4;
/// The content of VRAM after a suspend.
const LOST: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// An object with a pattern in it, which begins in VRAM.
struct Filled<'a> {
    object: Gem<'a>,
    map: Map,
    pattern: Pattern,
}

impl<'a> Filled<'a> {
    fn new(drm: &'a Drm, flags: u32, pattern: Pattern) -> Result<Self, Stop> {
        let object = drm.create_flags((PAGES * PAGE) as u64, flags)?;
        let map = object.map()?;
        map.fill(pattern);
        placed(&object, uapi::PLACEMENT_VRAM)?;
        Ok(Self {
            object,
            map,
            pattern,
        })
    }

    #[track_caller]
    fn verify(&self, placement: u32) -> Outcome {
        placed(&self.object, placement)?;
        for page in 0..PAGES {
            cpu_reads(&self.map, self.pattern, &[page])?;
        }
        placed(&self.object, placement)
    }
}

/// An object that cannot leave VRAM is restored at its place, and the other objects are in system
/// memory.
fn runtime_lost() -> Outcome {
    lossy(|| {
        let gpu = PciDevice::vvram()?;
        let (drm, bar) = (Drm::open()?, Bar::open(&gpu)?);
        let (a, b) = patterns();
        let only = Filled::new(&drm, ONLY, a)?;
        let exported = Filled::new(&drm, ONLY, b)?;
        let either = Filled::new(&drm, EITHER, a.derive(1))?;
        let _buffer = exported.object.export()?;
        let layout = bar.locate(&only.map)?;
        let auto = Auto::new(&gpu)?;
        for round in 0..3 {
            auto.sleeps("before VRAM is looked at")?;
            check_eq!(bar.word(layout.offset(0)), LOST, "VRAM in round {round}");
            only.verify(uapi::PLACEMENT_VRAM)?;
            exported.verify(uapi::PLACEMENT_VRAM)?;
            either.verify(uapi::PLACEMENT_SYSTEM)?;
            check_eq!(
                bar.locate(&only.map)?.ranges(),
                layout.ranges(),
                "the place of what was put back"
            );
        }
        Ok(())
    })
}

/// An importer whose mapping is invalidated gets system memory while the content of VRAM is lost,
/// and VRAM afterwards.
fn runtime_lost_mapped() -> Outcome {
    vvram_tests::fixture::Expect::get()?.need_route()?;
    lossy(|| {
        let fixture = Fixture::open()?;
        let (a, b) = patterns();
        let filled = Filled::new(&fixture.drm, EITHER, a)?;
        let buffer = filled.object.export()?;
        let peer = &fixture.peer;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        fixture.check_table(peer, &filled.map)?;
        let auto = Auto::new(&fixture.gpu)?;
        auto.sleeps("while an importer has VRAM that can be revoked")?;
        check_eq!(peer.status()?.invalidations, 1, "invalidations");
        auto.sleeps_through("a map and a transfer", || {
            peer.map()?;
            in_system_memory(&fixture, peer)?;
            peer_reads(peer, a, &[0, PAGES - 1])?;
            peer_writes(peer, b, &[1])
        })?;
        drop(auto);
        peer.detach()?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        fixture.check_table(peer, &filled.map)?;
        peer_reads(peer, a, &[0, PAGES - 1])?;
        peer_reads(peer, b, &[1])
    })
}

/// Suspends the system with an importer of each class, and checks what the importers have
/// afterwards.
fn system() -> Outcome {
    let fixture = Fixture::open()?;
    let has_route = fixture.expect.need_route().is_ok();
    let (seed, other) = patterns();
    let importers = Importers::new(&fixture.drm, &fixture.peer, has_route, seed)?;
    let alone = Filled::new(&fixture.drm, ONLY, other)?;

    for _ in 0..2 {
        power::system_sleep()?;
    }

    alone.verify(uapi::PLACEMENT_VRAM)?;
    importers.check(other, |peer, map| fixture.check_table(peer, map).map(drop))
}

fn system_kept() -> Outcome {
    system()?;
    works()
}

fn system_lost() -> Outcome {
    lossy(system)
}

/// A driver whose objects are in VRAM only, and that does not save them.
fn avram() -> Outcome {
    let module = Module::load()?;
    let split = Split::new(&module, &PciDevice::vvram()?)?;
    power::no_system_sleep()?;
    split.undo()?;
    works()
}

/// A driver that does not know what the memory of its device is.
fn bar_export() -> Outcome {
    let exporter = Exporter::new()?;
    power::no_system_sleep()?;
    drop(exporter);
    works()
}

igt_main! {
    "runtime-lost", "objects have their bytes although VRAM lost them", runtime_lost;
    "runtime-lost-mapped", "an importer goes on in system memory while VRAM is lost",
        runtime_lost_mapped;
    "system-kept", "the system sleeps with importers of every class", system_kept;
    "system-lost", "the system sleeps, and VRAM loses its content", system_lost;
    "avram", "the system does not sleep, because avram would lose what is in VRAM", avram;
    "bar-export", "nor does it with bar_export", bar_export;
}
