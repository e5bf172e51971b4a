// SPDX-License-Identifier: GPL-2.0

//! Registrations while VRAM is oversubscribed, so that objects have to move.

use std::time::{Duration, Instant};

use vvram_tests::clients::{client, too_many, Usage, PIECE};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Drm, Gem, EITHER};
use vvram_tests::fabric::{Fabric, CLASSES};
use vvram_tests::fixture::{patterns, placed, squeeze_idle};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc::{slower, soak, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::Mode;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::rdma::Buffer;
use vvram_tests::verbs::{expect_status, Pair, Region, Status};
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, uapi, Outcome, Stop};

/// The flags of objects that importers get in VRAM or not at all.
const EXPORT: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
const CYCLES: u64 = 40;
/// The number of regions that exist at the same time, and of those that are never replaced.
const ALIVE: usize = 32;
const KEPT: usize = 8;
/// The part of VRAM that the objects share. The object that has not been used for longest is
/// evicted, so a region moves after about as many moves as there is room for objects.
const SHARED: u64 = 8;
/// How often a region must be found to have moved since its last use, where it can move.
const FOLLOWED: u64 = 5;
/// The time limit for these moves, whose number depends on the scheduler.
const TIME: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(30);
const NICE: i32 = 5;

/// A buffer that is registered, and the pattern that it must have.
struct Held<'a> {
    object: Gem<'a>,
    map: Map,
    region: Region<'a>,
    pattern: Pattern,
    /// The location in VRAM, if the object must stay there.
    place: Option<Vec<(u64, u64)>>,
}

/// The data for the uses of regions, and the counters.
struct Work<'a> {
    fabric: &'a Fabric,
    class: Mode,
    pair: Pair<'a>,
    host: Buffer<'a>,
    random: Lcg,
    /// How often a region was found to have moved.
    moved: u64,
    /// The numbers of uses after which the region was in VRAM, and in system memory.
    vram: u64,
    system: u64,
}

impl<'a> Work<'a> {
    /// Creates and registers an object, and makes the NIC write to it.
    fn register(&mut self) -> Result<Held<'a>, Stop> {
        let (fabric, class) = (self.fabric, self.class);
        let object = fabric.drm.create_flags(PIECE, EITHER)?;
        let map = object.map()?;
        let shared = object.export()?;
        let access = fabric.nic.all_access();
        let region = fabric.nic.register(shared.fd(), 0, PIECE, None, access)?;
        let mut held = Held {
            object,
            map,
            region,
            pattern: patterns().0,
            place: None,
        };
        if class.needs_pin() {
            held.place = Some(fabric.bar.locate(&held.map)?.ranges());
        }
        self.write(&mut held)?;
        Ok(held)
    }

    /// Makes the NIC write another pattern.
    fn write(&mut self, held: &mut Held<'_>) -> Outcome {
        held.pattern = Pattern::new(self.random.word());
        self.host.fill(held.pattern)?;
        let (from, to) = ((self.host.region(), 0), (&held.region, 0));
        self.pair.write(from, to, PIECE as u32)?;
        self.look(held)
    }

    /// Makes the NIC read, and compares these bytes and those that the CPU reads.
    fn read(&mut self, held: &Held<'_>) -> Outcome {
        // Only a move invalidates the mapping of a region.
        let list = held.object.attachments()?;
        if list == [self.fabric.in_vram(self.class, false)] {
            self.moved += 1;
        }
        self.host.fill(patterns().0)?;
        let (from, to) = ((&held.region, 0), (self.host.region(), 0));
        self.pair.read(from, to, PIECE as u32)?;
        for (who, map) in [("the device", self.host.map()), ("the CPU", &held.map)] {
            check_ok!(map.verify(held.pattern), "{who}, {:?}", held.object.info()?);
        }
        self.look(held)
    }

    /// Checks the path and the placement of a region that was just used.
    fn look(&mut self, held: &Held<'_>) -> Outcome {
        let (fabric, object) = (self.fabric, &held.object);
        let before = object.attachments()?;
        let place = object.info()?.placement;
        let after = object.attachments()?;
        let in_vram = [fabric.in_vram(self.class, true)];
        let no_room = fabric.in_system(self.class, true, uapi::REASON_NO_VRAM);
        if let Some(ranges) = &held.place {
            check_eq!(before, in_vram, "the attachment");
            check_eq!(place, uapi::PLACEMENT_VRAM, "the placement");
            check_eq!(fabric.bar.locate(&held.map)?.ranges(), *ranges, "the place");
            self.vram += 1;
        } else if before == in_vram && after == in_vram {
            // A region that is mapped before and after has not moved in between.
            check_eq!(place, uapi::PLACEMENT_VRAM, "the placement");
            self.vram += 1;
        } else if before == [no_room] && after == before {
            check_eq!(place, uapi::PLACEMENT_SYSTEM, "the placement");
            self.system += 1;
        } else {
            fabric.check_attached(object, &[fabric.in_vram(self.class, false)])?;
        }
        Ok(())
    }
}

fn pressure(class: Mode) -> Outcome {
    let fabric = Fabric::with_route()?;
    fabric.choose(class)?;
    let usage = Usage::now(&fabric.drm)?;
    let size = fabric.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let taken = fabric.drm.create(size - size / SHARED)?;
    let mut random = Lcg::new(patterns().0.word(0));
    let (seed, count) = (random.word(), too_many(size / SHARED));
    let (full, enough) = (Steps::new()?, Steps::new()?);
    let mut child = Child::spawn(|| {
        // Registrations have priority over the processes that move objects, which move enough
        // anyway.
        // SAFETY: a plain system call.
        unsafe { libc::nice(NICE) };
        client(&Drm::open_on(&fabric.gpu)?, count, seed, |round| {
            if round == 0 {
                full.done()?;
            }
            Ok(!enough.is_done()?)
        })
    })?;
    let (cycles, followed) = (CYCLES * soak(), FOLLOWED * soak());
    let time = TIME * slower() * soak() as u32;
    full.wait("VRAM that is full", LIMIT)?;
    let before = usage.moved()?;
    let mut work = Work {
        fabric: &fabric,
        class,
        pair: Pair::new(&fabric.nic)?,
        host: Buffer::host(&fabric.nic, "host", PIECE)?,
        random,
        moved: 0,
        vram: 0,
        system: 0,
    };
    let mut alive = Vec::new();
    let mut count = 0;
    let start = Instant::now();
    loop {
        if alive.len() < ALIVE {
            alive.push(work.register()?);
            count += 1;
        } else {
            let index = work.random.below(ALIVE as u64) as usize;
            work.read(&alive[index])?;
            if index < KEPT {
                work.write(&mut alive[index])?;
            } else {
                alive.swap_remove(index).region.close()?;
            }
        }
        let follows = class.needs_pin() || work.moved >= followed;
        if count >= cycles && follows && usage.moved()? - before >= cycles {
            break;
        }
        check!(
            start.elapsed() < time,
            "not enough after {time:?}: {count} registrations, {} moves, {} regions found moved",
            usage.moved()? - before,
            work.moved
        );
    }
    let moves = usage.moved()? - before;
    for held in alive {
        work.read(&held)?;
        held.region.close()?;
    }
    enough.done()?;
    child.join("the client", LIMIT)?;
    println!(
        "{count} registrations as {class:?}, {moves} moves, 0 wrong bytes; regions found moved {}, then in VRAM {}, in system memory {}",
        work.moved, work.vram, work.system
    );
    if class.needs_pin() {
        check_eq!(work.moved, 0, "regions that moved");
    }
    check!(
        work.vram >= cycles,
        "only {} uses were seen to be in VRAM",
        work.vram
    );
    drop((work, taken));
    usage.check_back()
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

/// The verbs call fails when the limit of pinned VRAM is reached; after a deregistration there is
/// room for another region.
fn quota() -> Outcome {
    let fabric = Fabric::with_route()?;
    let drm = &fabric.drm;
    let limit = drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
    let size = (limit / 4).next_multiple_of(PAGE as u64);
    let access = fabric.nic.all_access();
    let host = Buffer::host(&fabric.nic, "host", PAGE as u64)?;
    let pair = Pair::new(&fabric.nic)?;
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
        let pinned = drm.counter(Counter::VramPinned)?;
        check_eq!(pinned, regions.len() as u64 * size, "pinned VRAM");
        check!(pinned <= limit, "{pinned} is more than {limit}");
        let index = regions.len();
        placed(&objects[index], uapi::PLACEMENT_VRAM)?;
        fabric.check_attached(&objects[index], &[])?;

        // The registration of a dynamic region needs no pin.
        fabric.choose(Mode::Dynamic)?;
        let next = &shared[index];
        let region = fabric.nic.register(next.fd(), 0, size, None, access)?;
        let entry = fabric.in_vram(Mode::Dynamic, true);
        fabric.check_attached(&objects[index], &[entry])?;
        placed(&objects[index], uapi::PLACEMENT_VRAM)?;
        check_eq!(
            drm.counter(Counter::VramPinned)?,
            pinned,
            "pinned VRAM with a dynamic region"
        );
        // An access needs a pin, and fails because of the limit.
        let pattern = patterns().0;
        host.fill(pattern)?;
        pair.write((host.region(), 0), (&region, 0), PAGE as u32)?;
        placed(&objects[index], uapi::PLACEMENT_SYSTEM)?;
        check_ok!(
            objects[index].map()?.verify_pages(pattern, 0, 1),
            "in system memory"
        );
        let only = drm.create(size)?;
        let shared_only = only.export()?;
        let vram = fabric
            .nic
            .register(shared_only.fd(), 0, size, None, access)?;
        expect_status(
            "a write to what may not be elsewhere",
            Pair::new(&fabric.nic)?.write((host.region(), 0), (&vram, 0), PAGE as u32),
            &[Status::REMOTE_ACCESS],
        )?;
        placed(&only, uapi::PLACEMENT_VRAM)?;
        vram.close()?;
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

/// An object that is exported in VRAM or not at all cannot be registered while there is no room in
/// VRAM, and can when there is.
fn no_room() -> Outcome {
    let fabric = Fabric::with_route()?;
    let drm = &fabric.drm;
    for class in CLASSES {
        fabric.choose(class)?;
        let object = drm.create_flags(PIECE, EXPORT)?;
        let shared = object.export()?;
        let register = || {
            let access = fabric.nic.all_access();
            fabric.nic.register(shared.fd(), 0, PIECE, None, access)
        };
        let taken = squeeze_idle(drm)?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        expect_errno(
            &format!("registering without room as {class:?}"),
            register(),
            libc::ENOSPC,
        )?;
        fabric.check_attached(&object, &[])?;
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        drop(taken);
        let region = register()?;
        fabric.check_attached(&object, &[fabric.in_vram(class, true)])?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
        region.close()?;
    }
    Ok(())
}

igt_main! {
    "pinned", "pinned regions keep their place, every byte verified", pinned;
    "revocable", "the same of regions that can be revoked", revocable;
    "dynamic", "dynamic ones follow, every byte verified", dynamic;
    "no-room", "ENOSPC of the verbs call for VRAM that is full", no_room;
    "quota", "EDQUOT of the verbs call at the limit of pinned VRAM", quota;
}
