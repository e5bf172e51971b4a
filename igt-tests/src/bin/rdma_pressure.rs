// SPDX-License-Identifier: GPL-2.0

//! Thousands of registrations while VRAM is oversubscribed and forced to move.

use std::collections::VecDeque;
use std::time::Duration;

use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{Drm, Gem};
use vvram_tests::fabric::Fabric;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc::{meminfo, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::proc::Child;
use vvram_tests::rdma::Buffer;
use vvram_tests::scene::{patterns, placed};
use vvram_tests::verbs::{Pair, Region};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, uapi, Outcome, Stop, SysError};

const PIECE: u64 = 4 * PAGE as u64;
const EITHER: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM;
const CYCLES: u64 = 1_000;
/// Regions that are alive at once.
const ALIVE: usize = 16;

/// Wants more VRAM than there is, has others moved out, and looks at what it has, until it is
/// killed.
fn client(gpu: &PciDevice, seed: u64) -> Outcome {
    let drm = Drm::open_on(gpu)?;
    let debugfs = DebugFs::open(gpu)?;
    let count = drm.getparam(uapi::PARAM_VRAM_SIZE)? / (16 * PIECE);
    let mut random = Lcg::new(seed);
    let mut objects: Vec<Option<(Gem<'_>, Map, Pattern)>> = (0..count).map(|_| None).collect();
    loop {
        let index = random.below(count) as usize;
        if let Some((object, map, pattern)) = &objects[index] {
            if let Err(mismatch) = map.verify(*pattern) {
                fail!("object {index}, {:?}: {mismatch}", object.info()?);
            }
        }
        let pattern = Pattern::new(random.word());
        let object = drm.create_flags(16 * PIECE, EITHER)?;
        let map = object.map()?;
        map.fill(pattern);
        objects[index] = Some((object, map, pattern));
        if random.below(16) == 0 {
            debugfs.write("move", "evict")?;
        }
    }
}

/// A buffer that is registered, and what it has to hold.
struct Held<'a> {
    object: Gem<'a>,
    map: Map,
    region: Region<'a>,
    pattern: Pattern,
    places: Vec<(u64, u64)>,
}

impl<'a> Held<'a> {
    /// Creates, registers, and lets the device write.
    fn new(
        fabric: &'a Fabric,
        class: Mode,
        pair: &Pair<'_>,
        host: &Buffer<'_>,
        pattern: Pattern,
    ) -> Result<Self, Stop> {
        let object = fabric.drm.create_flags(PIECE, EITHER)?;
        let map = object.map()?;
        let shared = object.export()?;
        let region = fabric
            .nic
            .register(shared.fd(), 0, PIECE, None, fabric.nic.all_access())?;
        host.fill(pattern)?;
        pair.write((host.region(), 0), (&region, 0), PIECE as u32)?;
        let places = if class.needs_pin() {
            fabric.check_attached(&object, &[fabric.in_vram(class, true)])?;
            placed(&object, uapi::PLACEMENT_VRAM)?;
            fabric.bar.locate(&map)?.ranges()
        } else {
            Vec::new()
        };
        Ok(Self {
            object,
            map,
            region,
            pattern,
            places,
        })
    }

    /// Checks place and bytes, as the device and as the CPU see them, and gives it up.
    fn finish(self, fabric: &Fabric, pair: &Pair<'_>, host: &Buffer<'_>) -> Outcome {
        if !self.places.is_empty() {
            placed(&self.object, uapi::PLACEMENT_VRAM)?;
            check_eq!(
                fabric.bar.locate(&self.map)?.ranges(),
                self.places,
                "the place"
            );
        }
        pair.read((&self.region, 0), (host.region(), 0), PIECE as u32)?;
        for (who, map) in [("the device", host.map()), ("the CPU", &self.map)] {
            if let Err(mismatch) = map.verify(self.pattern) {
                fail!("{who}, {:?}: {mismatch}", self.object.info()?);
            }
        }
        Ok(self.region.close()?)
    }
}

fn pressure(class: Mode) -> Outcome {
    let fabric = Fabric::with_route()?;
    fabric.choose(class)?;
    let drm = &fabric.drm;
    let (free, pages) = (drm.vram_free()?, meminfo("GPUActive"));
    let moves = drm.getparam(uapi::PARAM_MOVES)?;
    let mut random = Lcg::new(patterns().0.word(0));
    let seed = random.word();
    let mut child = Child::spawn(|| client(&fabric.gpu, seed))?;
    let host = Buffer::host(&fabric.nic, "host", PIECE)?;
    let pair = Pair::new(&fabric.nic)?;
    let mut alive = VecDeque::new();
    let moved = || -> Result<u64, SysError> { Ok(drm.getparam(uapi::PARAM_MOVES)? - moves) };
    let mut count = 0;
    // How much moves meanwhile is up to the scheduler.
    while count < CYCLES || (moved()? < CYCLES && count < 10 * CYCLES) {
        count += 1;
        if alive.len() == ALIVE {
            // Not always the oldest one.
            let index = random.below(ALIVE as u64) as usize;
            if let Some(held) = alive.swap_remove_back(index) {
                Held::finish(held, &fabric, &pair, &host)?;
            }
        }
        let pattern = Pattern::new(random.word());
        alive.push_back(Held::new(&fabric, class, &pair, &host, pattern)?);
    }
    for held in alive {
        held.finish(&fabric, &pair, &host)?;
    }
    let ended = child.ended();
    check!(ended.is_none(), "the client ended by itself: {ended:?}");
    child.kill()?;
    let moved = moved()?;
    println!("{count} registrations as {class:?}, {moved} moves, 0 wrong bytes");
    check!(moved >= CYCLES, "{moved} moves are too few");
    drm.await_vram_free(free)?;
    check_eq!(
        drm.getparam(uapi::PARAM_VRAM_PINNED)?,
        0,
        "pinned VRAM at the end"
    );
    let back = vvram_tests::misc::poll(Duration::from_secs(5), || {
        (meminfo("GPUActive") <= pages).then_some(())
    });
    check!(
        back.is_some(),
        "system memory of objects: {pages:?} kB before, {:?} kB after",
        meminfo("GPUActive")
    );
    Ok(())
}

fn pinned() -> Outcome {
    pressure(Mode::Pinned)
}

fn revocable() -> Outcome {
    pressure(Mode::Revocable)
}

fn dynamic() -> Outcome {
    pressure(Mode::Dynamic)
}

/// The verbs call says that the quota is reached, and a region less is room for another one.
fn quota() -> Outcome {
    let fabric = Fabric::with_route()?;
    let drm = &fabric.drm;
    let limit = drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
    let size = (limit / 4).next_multiple_of(PAGE as u64);
    let access = fabric.nic.all_access();
    for class in [Mode::Pinned, Mode::Revocable] {
        fabric.choose(class)?;
        let objects = (0..5)
            .map(|_| drm.create_flags(size, EITHER))
            .collect::<Result<Vec<_>, _>>()?;
        let shared = objects
            .iter()
            .map(Gem::export)
            .collect::<Result<Vec<_>, _>>()?;
        let mut regions = Vec::new();
        let error = loop {
            let Some(next) = shared.get(regions.len()) else {
                fail!(
                    "all of {} bytes could be pinned, the limit is {limit}",
                    5 * size
                );
            };
            match fabric.nic.register(next.fd(), 0, size, None, access) {
                Ok(region) => regions.push(region),
                Err(error) => break error,
            }
        };
        expect_errno::<()>("one more registration", Err(error), libc::EDQUOT)?;
        let pinned = drm.getparam(uapi::PARAM_VRAM_PINNED)?;
        check_eq!(pinned, regions.len() as u64 * size, "pinned VRAM");
        check!(pinned <= limit, "{pinned} is more than {limit}");
        let index = regions.len();
        placed(&objects[index], uapi::PLACEMENT_VRAM)?;
        fabric.check_attached(&objects[index], &[])?;

        // A dynamic one needs no pin.
        fabric.choose(Mode::Dynamic)?;
        let next = &shared[index];
        let region = fabric.nic.register(next.fd(), 0, size, None, access)?;
        let entry = fabric.in_vram(Mode::Dynamic, true);
        fabric.check_attached(&objects[index], &[entry])?;
        placed(&objects[index], uapi::PLACEMENT_VRAM)?;
        check_eq!(
            drm.getparam(uapi::PARAM_VRAM_PINNED)?,
            pinned,
            "pinned VRAM with a dynamic region"
        );
        region.close()?;

        fabric.choose(class)?;
        if let Some(region) = regions.pop() {
            region.close()?;
        }
        fabric
            .nic
            .register(shared[index].fd(), 0, size, None, access)?
            .close()?;
    }
    Ok(())
}

igt_main! {
    "pinned", "pinned regions keep their place, every byte verified", pinned;
    "revocable", "the same of regions that can be revoked", revocable;
    "dynamic", "dynamic ones follow, every byte verified", dynamic;
    "quota", "EDQUOT of the verbs call at the limit of pinned VRAM", quota;
}
