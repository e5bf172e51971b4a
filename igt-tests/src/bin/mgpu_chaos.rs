// SPDX-License-Identifier: GPL-2.0

//! Two modelled GPUs that do at random all that their interface permits, while objects move, rings
//! and devices are reset, drivers are unbound, and devices are unplugged and removed by surprise.
//!
//! Meanwhile the engines of both GPUs and a peer use the objects. After each step all bytes of all
//! objects are compared: each object has a pattern for each time that it was written. All random
//! numbers follow from the seed of the run and from the number of a round, which also chooses the
//! seeds of the devices.

use std::cell::OnceCell;
use std::time::Duration;

use vvram_tests::compute::{sum, Bench, Op, HUGE, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{Gem, EITHER};
use vvram_tests::failure::Events;
use vvram_tests::fixture::{patterns, peer_reads, peer_writes, placed, setting, Expect};
use vvram_tests::map::{Map, PAGE64};
use vvram_tests::mgpu::{replug, set_bound, Chaos, Error, Mgpu, COMPUTE, COPY, DRIVER};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::Child;
use vvram_tests::rebind::Unbinding;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, skip, uapi, Outcome, Stop, SysError,
};

const LIMIT: Duration = Duration::from_secs(40);
/// The pages of the objects of a GPU.
const PAGES: [u64; 4] = [8, 3, 16, 1];
const MOST: u64 = 16;
/// The object that stays in VRAM, and that no other device uses. The others may move.
const LOCAL: usize = 0;
/// The object that the peer maps as well.
const SHARED: usize = 1;
/// The GPU that can be unplugged.
const LAST: usize = 1;
/// How many ms the first entries of the rings take longer in a step, so that jobs are under way.
const LATE: u32 = 20;
const SHORT: u32 = 3;
/// After how many steps the reports of the devices are looked at, and the progress is printed.
const OFTEN: usize = 50;

/// Where an address space maps an object of its own GPU, one of the other GPU, and the source of
/// writes.
const fn own(index: usize) -> u64 {
    HUGE * (1 + index as u64)
}
const fn theirs(index: usize) -> u64 {
    HUGE * (16 + index as u64)
}
const SOURCE: u64 = 32 * HUGE;

const fn bytes(index: usize) -> u64 {
    PAGES[index] * PAGE64
}

/// What happens to a GPU in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An object moves, and maybe back.
    Move,
    /// A ring has to be reset.
    Ring(u32),
    /// The driver has to reset the device, as the reset of the ring is not done: it waits for that
    /// for some seconds.
    Device,
    /// The PCI core resets the device.
    Function,
    /// The PCI driver is unbound, or the DRM driver, and bound again.
    Unbind,
    Auxiliary,
    /// The device is unplugged, or removed by surprise, and plugged in again.
    Unplug,
    Vanish,
}

/// How often each kind of step is done.
type Shares = [(Kind, u64)];

const FEW: &Shares = &[
    (Kind::Move, 25),
    (Kind::Ring(COPY), 2),
    (Kind::Ring(COMPUTE), 2),
    (Kind::Function, 1),
];

/// In `make soak` there are 20 rounds of these 500 steps: 9,000 moves, 600 resets of rings, 200
/// of devices, 140 unbinds and 60 removals.
const MANY: &Shares = &[
    (Kind::Move, 450),
    (Kind::Ring(COPY), 15),
    (Kind::Ring(COMPUTE), 15),
    (Kind::Device, 1),
    (Kind::Function, 9),
    (Kind::Unbind, 4),
    (Kind::Auxiliary, 3),
    (Kind::Unplug, 2),
    (Kind::Vanish, 1),
];

/// The number of all steps.
const fn total(shares: &Shares) -> u64 {
    let (mut sum, mut index) = (0, 0);
    while index < shares.len() {
        sum += shares[index].1;
        index += 1;
    }
    sum
}

const _: () = assert!(total(MANY) == 500);

impl Kind {
    /// Whether all objects of the GPU end with their files.
    fn ends_files(self) -> bool {
        matches!(
            self,
            Self::Unbind | Self::Auxiliary | Self::Unplug | Self::Vanish
        )
    }

    /// The status that a job may end with if this happens to a GPU.
    fn permits(self, gpu: usize, job: &Job) -> &'static [i32] {
        let is_own = job.by == gpu;
        match self {
            Self::Ring(ring) if is_own && job.ring == ring => &[1, -libc::EIO],
            Self::Device | Self::Function if is_own => &[1, -libc::EIO],
            Self::Unbind | Self::Auxiliary | Self::Unplug if is_own => &[1, -libc::ECANCELED],
            Self::Vanish if is_own => &[1, -libc::EIO, -libc::ENODEV],
            // What the other GPU reads where no device answers depends on the bus.
            Self::Vanish => &[1, -libc::EIO],
            _ => &[1],
        }
    }
}

/// An object, and what it contains.
struct Object<'a> {
    gem: Gem<'a>,
    map: Map,
    base: Pattern,
    /// The number of the write that it has the pattern of.
    generation: u64,
    /// The number of a write that has failed since: any words may be of it.
    doubt: Option<u64>,
}

impl Object<'_> {
    fn pattern(&self, generation: u64) -> Pattern {
        self.base.derive(generation)
    }

    fn now(&self) -> Pattern {
        self.pattern(self.generation)
    }

    /// Compares all bytes.
    fn verify(&self) -> Outcome {
        // The access to an object that is lost would end in a signal, and in no message.
        check_ok!(self.map.try_read(0), "its first word");
        let old = self.now();
        let Some(next) = self.doubt else {
            check_ok!(self.map.verify(old), "generation {}", self.generation);
            return Ok(());
        };
        let new = self.pattern(next);
        for index in 0..self.map.len() / 8 {
            let (word, at) = (self.map.read(index), index as u64);
            check!(
                [old.word(at), new.word(at)].contains(&word),
                "word {index} is {word:#018x}, neither of generation {} nor of {next}, whose write \
                 has failed",
                self.generation
            );
        }
        Ok(())
    }
}

/// Memory of the system, as large as the largest object.
struct Area<'a> {
    gem: Gem<'a>,
    map: Map,
}

impl<'a> Area<'a> {
    fn new(gpu: &'a Mgpu) -> Result<Self, SysError> {
        let gem = gpu.drm.create_flags(MOST * PAGE64, uapi::CREATE_SYSTEM)?;
        let map = gem.map()?;
        Ok(Self { gem, map })
    }
}

/// A GPU with its objects, and with what its engines and a peer use.
struct Side<'a> {
    gpu: &'a Mgpu,
    objects: Vec<Object<'a>>,
    /// The objects of the other GPU that may move, as imported.
    imports: Vec<Gem<'a>>,
    bench: Bench<'a>,
    source: Area<'a>,
    sink: Area<'a>,
    /// Maps the shared object.
    peer: Peer,
    /// How many objects had lost their content before.
    losses: u64,
}

impl<'a> Side<'a> {
    fn new(gpu: &'a Mgpu) -> Result<Self, Stop> {
        let bench = Bench::new(gpu)?;
        let (x, _) = patterns();
        let mut objects = Vec::new();
        for index in 0..PAGES.len() {
            let places = if index == LOCAL {
                uapi::CREATE_VRAM
            } else {
                EITHER
            };
            let gem = gpu.drm.create_flags(bytes(index), places)?;
            let object = Object {
                map: gem.map()?,
                gem,
                base: x.derive(index as u64),
                generation: 0,
                doubt: None,
            };
            object.map.fill(object.now());
            bench.vm.bind(&object.gem, own(index))?;
            objects.push(object);
        }
        let (source, sink) = (Area::new(gpu)?, Area::new(gpu)?);
        bench.vm.bind(&source.gem, SOURCE)?;
        let peer = Peer::open()?;
        peer.attach_and_map(&objects[SHARED].gem.export()?, Mode::Dynamic)?;
        Ok(Self {
            gpu,
            objects,
            imports: Vec::new(),
            bench,
            source,
            sink,
            peer,
            losses: gpu.drm.counter(Counter::Losses)?,
        })
    }

    /// How often the rings were reset.
    fn resets(&self) -> Result<[u64; 2], SysError> {
        let drm = &self.gpu.drm;
        Ok([
            drm.counter(Counter::CopyResets)?,
            drm.counter(Counter::ComputeResets)?,
        ])
    }

    /// Checks that an object cannot be copied.
    fn refuses(&self, gem: &Gem<'_>, what: &str) -> Outcome {
        let errors = [libc::EIO, libc::ENODEV];
        match self.gpu.drm.copy((gem, 0), (&self.sink.gem, 0), PAGE64) {
            Ok(copy) => {
                check!(copy.wait(LIMIT)?, "{what}: its fence does not signal");
                let status = copy.status()?;
                check!(errors.contains(&-status), "{what} has ended with {status}");
            }
            Err(error) => check!(errors.contains(&error.errno), "{what}: {error}"),
        }
        Ok(())
    }
}

/// A job that is under way.
#[derive(Debug)]
struct Job {
    fence: SyncFile,
    /// The GPU and the ring that do it.
    by: usize,
    ring: u32,
    /// The GPU and the number of the object that it uses.
    of: usize,
    index: usize,
    effect: Effect,
}

#[derive(Clone, Copy, Debug)]
enum Effect {
    /// The object has the pattern of this generation.
    Written(u64),
    /// The sink has a pattern.
    Copied(Pattern),
    /// The results have a sum.
    Summed(u64),
}

/// Open files of both GPUs. Those of a GPU that is gone stay open as well.
struct Files(Vec<OnceCell<Mgpu>>);

impl Files {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| OnceCell::new()).collect())
    }

    fn open(&self, pci: &PciDevice) -> Result<&Mgpu, Stop> {
        let Some(slot) = self.0.iter().find(|slot| slot.get().is_none()) else {
            fail!("there are more than {} files", self.0.len());
        };
        // The nodes of a device that has just come appear one after the other.
        let gpu = match misc::poll(LIMIT, || Mgpu::open(pci).ok()) {
            Some(gpu) => gpu,
            None => Mgpu::open(pci)?,
        };
        Ok(slot.get_or_init(|| gpu))
    }
}

/// Both GPUs.
struct World<'a> {
    files: &'a Files,
    pcis: &'a [PciDevice; 2],
    sides: [Side<'a>; 2],
    random: Lcg,
    /// The number of the last write.
    generations: u64,
}

impl<'a> World<'a> {
    fn new(files: &'a Files, pcis: &'a [PciDevice; 2], random: Lcg) -> Result<Self, Stop> {
        let [first, last] = pcis;
        let mut this = Self {
            files,
            pcis,
            sides: [
                Side::new(files.open(first)?)?,
                Side::new(files.open(last)?)?,
            ],
            random,
            generations: 0,
        };
        this.link(0)?;
        this.link(1)?;
        Ok(this)
    }

    /// Imports the objects of the other GPU.
    fn link(&mut self, by: usize) -> Outcome {
        for index in LOCAL + 1..PAGES.len() {
            let import = {
                let buffer = self.sides[1 - by].objects[index].gem.export()?;
                self.sides[by].gpu.drm.import(&buffer)?
            };
            self.sides[by].bench.vm.bind(&import, theirs(index))?;
            self.sides[by].imports.push(import);
        }
        self.reaches(by)
    }

    /// Checks that a GPU reaches the objects of the other one in VRAM, peer to peer.
    fn reaches(&self, by: usize) -> Outcome {
        let theirs = &self.sides[1 - by];
        let path = Expect::get()?.path();
        for (object, import) in theirs.objects[LOCAL + 1..]
            .iter()
            .zip(&self.sides[by].imports)
        {
            theirs.gpu.force(&object.gem, "vram")?;
            let info = import.import_info()?;
            check_eq!(
                (info.path, info.reason),
                (path, uapi::REASON_NONE),
                "path and reason of an import of GPU {by}"
            );
            placed(&object.gem, uapi::PLACEMENT_VRAM)?;
        }
        Ok(())
    }

    /// The handle and the address by which a GPU knows an object.
    fn known(&self, by: usize, of: usize, index: usize) -> (&Gem<'a>, u64) {
        let side = &self.sides[by];
        if by == of {
            (&side.objects[index].gem, own(index))
        } else {
            (&side.imports[index - LOCAL - 1], theirs(index))
        }
    }

    /// Any object that a GPU knows, but not the one that is written.
    fn pick(&mut self, by: usize, written: (usize, usize)) -> (usize, usize) {
        loop {
            let of = self.random.below(2) as usize;
            let index = self.random.below(PAGES.len() as u64) as usize;
            if (of, index) != written && (by == of || index != LOCAL) {
                return (of, index);
            }
        }
    }

    /// Writes the next pattern to an object: by the CPU or by the peer, or begins to do so by an
    /// engine of one of the GPUs.
    fn write(&mut self) -> Result<((usize, usize), Option<Job>), Stop> {
        let of = self.random.below(2) as usize;
        let index = self.random.below(PAGES.len() as u64) as usize;
        let by = match index {
            LOCAL => of,
            _ => self.random.below(2) as usize,
        };
        let way = self.random.below(6);
        self.generations += 1;
        let generation = self.generations;
        let object = &mut self.sides[of].objects[index];
        let pattern = object.pattern(generation);
        if way == 0 || way == 1 && index == SHARED {
            object.generation = generation;
            if way == 0 {
                object.map.fill(pattern);
            } else {
                let pages: Vec<_> = (0..PAGES[SHARED] as usize).collect();
                peer_writes(&self.sides[of].peer, pattern, &pages)?;
            }
            return Ok(((of, index), None));
        }
        let writer = &self.sides[by];
        writer
            .source
            .map
            .fill_pages(pattern, 0, PAGES[index] as usize);
        let (gem, address) = self.known(by, of, index);
        let size = bytes(index);
        let (ring, fence) = if way.is_multiple_of(2) {
            let source = (&writer.source.gem, 0);
            (COPY, writer.gpu.drm.copy(source, (gem, 0), size)?)
        } else {
            let op = Op::copy(SOURCE, address, size);
            (COMPUTE, writer.bench.vm.exec(&[op])?)
        };
        let job = Job {
            fence,
            by,
            ring,
            of,
            index,
            effect: Effect::Written(generation),
        };
        Ok(((of, index), Some(job)))
    }

    /// Begins to read objects by both engines of both GPUs.
    fn read(&mut self, written: (usize, usize)) -> Result<Vec<Job>, Stop> {
        let mut jobs = Vec::new();
        for by in 0..2 {
            for ring in [COPY, COMPUTE] {
                let (of, index) = self.pick(by, written);
                let (side, pattern) = (&self.sides[by], self.sides[of].objects[index].now());
                let (gem, address) = self.known(by, of, index);
                let size = bytes(index);
                let (fence, effect) = if ring == COPY {
                    for word in 0..size as usize / 8 {
                        side.sink.map.write(word, 0);
                    }
                    let copy = side.gpu.drm.copy((gem, 0), (&side.sink.gem, 0), size)?;
                    (copy, Effect::Copied(pattern))
                } else {
                    side.bench.results.write(0, u64::MAX);
                    let job = side
                        .bench
                        .vm
                        .exec(&[Op::checksum(address, size, RESULTS)])?;
                    (job, Effect::Summed(sum(pattern, 0, size / 8)))
                };
                jobs.push(Job {
                    fence,
                    by,
                    ring,
                    of,
                    index,
                    effect,
                });
            }
        }
        Ok(jobs)
    }

    /// Waits for the jobs, and checks how they have ended.
    fn end(&mut self, kind: Kind, gpu: usize, jobs: Vec<Job>) -> Outcome {
        for job in jobs {
            check!(
                job.fence.wait(LIMIT)?,
                "the fence of {job:?} is not signalled"
            );
            let status = job.fence.status()?;
            let permitted = kind.permits(gpu, &job);
            check!(
                permitted.contains(&status),
                "{job:?} has ended with {status}, and not with one of {permitted:?}"
            );
            let is_done = status == 1;
            // The memory of a device that is gone has no content any more.
            let is_readable =
                !(kind.ends_files() && job.by == gpu || kind == Kind::Vanish && job.of == gpu);
            match job.effect {
                Effect::Written(generation) => {
                    let object = &mut self.sides[job.of].objects[job.index];
                    if is_done {
                        object.generation = generation;
                    } else {
                        object.doubt = Some(generation);
                    }
                }
                Effect::Copied(pattern) if is_done && is_readable => {
                    let sink = &self.sides[job.by].sink.map;
                    let seen = sink.verify_pages(pattern, 0, PAGES[job.index] as usize);
                    check_ok!(seen, "what {job:?} has copied");
                }
                Effect::Summed(sum) if is_done && is_readable => {
                    let seen = self.sides[job.by].bench.results.read(0);
                    check_eq!(seen, sum, "the sum of {job:?}");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Moves an object of a GPU, and maybe back.
    fn shift(&mut self, gpu: usize) -> Outcome {
        let index = LOCAL + 1 + self.random.below(PAGES.len() as u64 - 1) as usize;
        let side = &self.sides[gpu];
        let gem = &side.objects[index].gem;
        let moves = side.gpu.drm.counter(Counter::Moves)?;
        let mut to = ["system", "vram"];
        let mut places = [uapi::PLACEMENT_SYSTEM, uapi::PLACEMENT_VRAM];
        if gem.info()?.placement == uapi::PLACEMENT_SYSTEM {
            to.reverse();
            places.reverse();
        }
        let times = 1 + self.random.below(2);
        for (to, place) in to.into_iter().zip(places).take(times as usize) {
            side.gpu.force(gem, to)?;
            placed(gem, place)?;
        }
        let now = side.gpu.drm.counter(Counter::Moves)?;
        check!(now >= moves + times, "{now} moves, there were {moves}");
        Ok(())
    }

    /// Makes what is to happen to a GPU happen to the jobs that follow.
    fn prepare(&mut self, kind: Kind, gpu: usize) -> Outcome {
        let late = match kind {
            Kind::Move if self.random.below(8) == 0 => SHORT,
            Kind::Move => 0,
            _ => LATE,
        };
        if late != 0 {
            for side in &self.sides {
                for ring in [COPY, COMPUTE] {
                    side.gpu.inject_into(ring, Error::Late, late)?;
                }
            }
        }
        let gpu = self.sides[gpu].gpu;
        match kind {
            Kind::Ring(ring) => gpu.inject_into(ring, Error::Fault, 0)?,
            Kind::Device => {
                gpu.inject_into(COPY, Error::NoRingReset, 0)?;
                gpu.inject_into(COPY, Error::Fault, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes a GPU by surprise. What it had in VRAM is lost, which its users are told instead of
    /// other bytes.
    fn vanish(&mut self, gpu: usize, jobs: Vec<Job>) -> Outcome {
        let events = Events::listen()?;
        self.sides[gpu].gpu.inject(Error::Removed, 0)?;
        self.end(Kind::Vanish, gpu, jobs)?;
        let side = &self.sides[gpu];
        // It notices only now that the device is gone if all jobs were done before.
        side.refuses(&side.source.gem, "a copy after the removal")?;
        check_eq!(
            events.wedged(&self.pcis[gpu])?,
            "bus-reset",
            "what helps a device that is gone"
        );
        for (index, object) in side.objects.iter().enumerate() {
            match object.map.try_read(0) {
                Ok(_) => {
                    placed(&object.gem, uapi::PLACEMENT_SYSTEM)?;
                    object.verify()?;
                }
                Err(error) => {
                    check_eq!(error.errno, libc::EFAULT, "a read of object {index}");
                    side.refuses(&object.gem, "a copy of what is lost")?;
                    let is_moved = object.gem.info()?.placement == uapi::PLACEMENT_SYSTEM;
                    if index == SHARED && !is_moved {
                        expect_errno("a map of the peer", side.peer.map(), libc::EIO)?;
                    }
                }
            }
        }
        // What the other one has lost is what its copies from there were to write to.
        let other = &mut self.sides[1 - gpu];
        other.sink = Area::new(other.gpu)?;
        other.losses = other.gpu.drm.counter(Counter::Losses)?;
        Ok(())
    }

    /// Checks that the objects of a GPU are gone with its driver, and that the other one is told
    /// so, which drops its imports.
    fn over(&mut self, gpu: usize) -> Outcome {
        let (goes, other) = (&self.sides[gpu], &self.sides[1 - gpu]);
        let sink = (&goes.sink.gem, 0);
        let copy = goes.gpu.drm.copy((&goes.source.gem, 0), sink, PAGE64);
        expect_errno("an object", goes.gpu.drm.create(PAGE64), libc::ENODEV)?;
        expect_errno("a copy", copy, libc::ENODEV)?;
        expect_errno("a map of the peer", goes.peer.map(), libc::ENODEV)?;
        for import in &other.imports {
            let copy = other
                .gpu
                .drm
                .copy((import, 0), (&other.sink.gem, 0), PAGE64);
            expect_errno("a copy of an import", copy, libc::ENODEV)?;
        }
        for index in LOCAL + 1..PAGES.len() {
            other.bench.vm.unbind(theirs(index), bytes(index))?;
        }
        self.sides[1 - gpu].imports.clear();
        Ok(())
    }

    /// Makes new objects of a GPU whose driver was bound again.
    fn renew(&mut self, gpu: usize) -> Outcome {
        self.sides[gpu] = Side::new(self.files.open(&self.pcis[gpu])?)?;
        self.link(gpu)?;
        self.link(1 - gpu)
    }

    /// Does a step.
    fn step(&mut self, kind: Kind) -> Outcome {
        let gpu = match kind {
            Kind::Unplug | Kind::Vanish => LAST,
            _ => self.random.below(2) as usize,
        };
        let pci = &self.pcis[gpu];
        let mut resets = self.sides[gpu].resets()?;
        self.prepare(kind, gpu)?;
        let (written, job) = self.write()?;
        let mut jobs = self.read(written)?;
        jobs.extend(job);
        match kind {
            Kind::Move => self.shift(gpu)?,
            Kind::Function => {
                Child::spawn(|| Ok(pci.reset()?))?.join("the reset", LIMIT)?;
            }
            Kind::Unbind => {
                let gone = Unbinding::start(pci)?.finish(LIMIT)?;
                self.end(kind, gpu, jobs)?;
                self.over(gpu)?;
                gone.rebind()?;
                return self.renew(gpu);
            }
            Kind::Auxiliary => {
                let device = self.sides[gpu].gpu.device().to_owned();
                let set = |bound| -> Outcome {
                    let what = if bound { "the bind" } else { "the unbind" };
                    Child::spawn(|| Ok(set_bound(&device, bound)?))?.join(what, LIMIT)
                };
                set(false)?;
                let ended = self.end(kind, gpu, jobs).and_then(|()| self.over(gpu));
                // Also after a failure, for the next subtest.
                set(true)?;
                ended?;
                return self.renew(gpu);
            }
            Kind::Unplug | Kind::Vanish => {
                let ended = match kind {
                    Kind::Vanish => self.vanish(gpu, std::mem::take(&mut jobs)),
                    _ => Ok(()),
                };
                replug(pci, Some(DRIVER), LIMIT)?;
                ended?;
                self.end(kind, gpu, jobs)?;
                self.over(gpu)?;
                return self.renew(gpu);
            }
            Kind::Ring(_) | Kind::Device => {}
        }
        self.end(kind, gpu, jobs)?;
        match kind {
            Kind::Ring(ring) => resets[ring as usize] += 1,
            Kind::Device | Kind::Function => resets = resets.map(|count| count + 1),
            _ => {}
        }
        check_eq!(self.sides[gpu].resets()?, resets, "resets of GPU {gpu}");
        Ok(())
    }

    /// Compares all bytes of all objects, also as the peer reads them. None is lost.
    fn verify(&mut self) -> Outcome {
        for (gpu, side) in self.sides.iter_mut().enumerate() {
            for (index, object) in side.objects.iter_mut().enumerate() {
                object.verify().map_err(|stop| {
                    Stop::fail(format_args!("object {index} of GPU {gpu}: {}", stop.text()))
                })?;
                if let Some(next) = object.doubt.take() {
                    object.generation = next;
                    object.map.fill(object.now());
                }
            }
            let pages: Vec<_> = (0..PAGES[SHARED] as usize).collect();
            peer_reads(&side.peer, side.objects[SHARED].now(), &pages)?;
            let losses = side.gpu.drm.counter(Counter::Losses)?;
            check_eq!(losses, side.losses, "lost objects of GPU {gpu}");
        }
        Ok(())
    }

    /// Checks that the peers, which have their objects mapped, are notified when these move.
    fn notifies(&self) -> Outcome {
        for (gpu, side) in self.sides.iter().enumerate() {
            let told = side.peer.status()?.invalidations;
            side.gpu.force(&side.objects[SHARED].gem, "system")?;
            check!(
                side.peer.status()?.invalidations > told,
                "the peer of GPU {gpu} was not notified"
            );
        }
        Ok(())
    }

    /// Checks that no rule of a device was broken since its file was opened.
    fn clean(&self) -> Outcome {
        self.sides.iter().try_for_each(|side| side.gpu.clean())
    }
}

/// Does the steps of a round in random order.
fn round(number: u64, shares: &Shares) -> Outcome {
    let pcis: [PciDevice; 2] = PciDevice::mgpus()
        .try_into()
        .map_err(|gpus| Stop::fail(format_args!("expected two GPUs, saw {gpus:?}")))?;
    let mut seeds = Vec::new();
    for pci in &pcis {
        Mgpu::open(pci)?.inject(Error::Seed, number as u32)?;
        let seed = Chaos::of(pci)?.seed();
        if seed == 0 {
            skip!("{} does all in order", pci.name());
        }
        // Its first seed is a smaller number.
        check_eq!(seed >> 40, number, "the part of the number in {seed:#x}");
        seeds.push(seed);
    }
    println!(
        "round {number} of seed {}, those of the devices are {seeds:?}",
        misc::seed()
    );

    let mut steps = Vec::new();
    for (kind, count) in shares {
        steps.extend((0..*count).map(|_| *kind));
    }
    let mut random = Lcg::new(misc::nonce().wrapping_add(number));
    for left in (1..steps.len()).rev() {
        steps.swap(left, random.below(left as u64 + 1) as usize);
    }
    let ends = steps.iter().filter(|kind| kind.ends_files()).count();
    let files = Files::new(pcis.len() + ends);
    let mut world = World::new(&files, &pcis, random)?;
    for (count, kind) in steps.iter().enumerate() {
        if count % OFTEN == 0 {
            println!("step {count} of {}", steps.len());
            world.clean()?;
        }
        let done = world.step(*kind).and_then(|()| world.verify());
        done.map_err(|stop| {
            Stop::Fail(format!(
                "round {number} of seed {}, {seeds:?}, step {count} of {}, {kind:?}: {}",
                misc::seed(),
                steps.len(),
                stop.text()
            ))
        })?;
    }
    world.reaches(0)?;
    world.reaches(1)?;
    // Maps the objects for the peers.
    world.verify()?;
    world.notifies()?;
    world.verify()?;
    world.clean()
}

/// A few steps of the kinds that are quick.
fn short() -> Outcome {
    round(0, FEW)
}

/// All steps, of as many rounds as [`misc::soak`] says, from the number in `VVRAM_FIRST` on. The
/// devices tell all lies meanwhile that no job has to notice by a fault.
fn long() -> Outcome {
    let first = setting("VVRAM_FIRST").map_or(Ok(0), |first| first.parse());
    let Ok(first) = first else {
        fail!("VVRAM_FIRST is no number");
    };
    let lies = || -> Result<Vec<[u64; Chaos::LIES]>, SysError> {
        let all = PciDevice::mgpus();
        all.iter().map(|pci| Ok(Chaos::of(pci)?.lies())).collect()
    };
    let before = lies()?;
    let mut all = 0;
    for number in first..first + misc::soak() {
        round(number, MANY)?;
        all += total(MANY);
    }
    println!("{all} steps: {MANY:?} in each round");
    for (gpu, (after, before)) in lies()?.iter().zip(&before).enumerate() {
        println!("lies of GPU {gpu}: {after:?}, they were {before:?}");
        for lie in (0..Chaos::LIES).filter(|lie| ![Chaos::NOT_MAPPED, Chaos::LOST].contains(lie)) {
            check!(after[lie] > before[lie], "GPU {gpu} has not told lie {lie}");
        }
    }
    Ok(())
}

igt_main! {
    "short", "a few moves and resets", short;
    "long", "moves, resets, unbinds and removals, of many seeds", long;
}
