// SPDX-License-Identifier: GPL-2.0

//! Memory regions whose buffer moves, is revoked, or loses its device.
//!
//! In any case a request completes, either with the bytes where the buffer is now, or with a
//! protection error.

use std::time::{Duration, Instant};

use vvram_tests::debugfs::{Counter, DebugFs};
use vvram_tests::drm::{DmaBuf, Drm, Gem, EITHER};
use vvram_tests::fabric::{Fabric, CLASSES};
use vvram_tests::fixture::{patterns, placed, squeeze_idle, works, Expect};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::misc::{self, soak, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::proc::{Child, KernelLog, Steps};
use vvram_tests::rdma::{self, Buffer};
use vvram_tests::rebind::{Unbinding, Unbound};
use vvram_tests::verbs::{expect_status, Config, Failure, Pair, Region, Status};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, uapi, Outcome, Stop, SysError,
};

const SIZE: u64 = 8 * PAGE64;
const VRAM: u32 = uapi::PLACEMENT_VRAM;
const SYSTEM: u32 = uapi::PLACEMENT_SYSTEM;
const LIMIT: Duration = Duration::from_secs(20);

/// An object that may be in VRAM and is registered.
struct Registered<'a> {
    object: Gem<'a>,
    buffer: Buffer<'a>,
}

impl<'a> AsRef<Region<'a>> for Registered<'a> {
    fn as_ref(&self) -> &Region<'a> {
        self.buffer.region()
    }
}

type Setup<'a> = rdma::Setup<'a, Registered<'a>>;

fn register(fabric: &Fabric, class: Mode) -> Result<Setup<'_>, Stop> {
    fabric.choose(class)?;
    let object = fabric.drm.create_flags(SIZE, EITHER)?;
    let buffer = Buffer::shared(&fabric.nic, "vram", object.export()?)?;
    fabric.check_attached(&object, &[fabric.in_vram(class, true)])?;
    placed(&object, VRAM)?;
    let registered = Registered { object, buffer };
    Ok(Setup::of(&fabric.nic, registered, SIZE)?)
}

#[track_caller]
fn holds(buffer: &Buffer<'_>, pattern: Pattern) -> Outcome {
    check_ok!(
        buffer.map().verify(pattern),
        "{} holds something else",
        buffer.name()
    );
    Ok(())
}

/// A region that is not pinned follows its buffer out of VRAM, and back.
fn follows() -> Outcome {
    let fabric = Fabric::with_route()?;
    let class = Mode::Dynamic;
    let (a, b) = patterns();
    let setup = register(&fabric, class)?;
    let (object, buffer) = (&setup.target.object, &setup.target.buffer);
    setup.write(a)?;
    fabric.bar.locate(buffer.map())?;
    holds(buffer, a)?;

    let taken = squeeze_idle(&fabric.drm)?;
    placed(object, SYSTEM)?;
    fabric.check_attached(object, &[fabric.in_vram(class, false)])?;
    holds(buffer, a)?;
    setup.write(b)?;
    placed(object, SYSTEM)?;
    let reason = uapi::REASON_NO_VRAM;
    fabric.check_attached(object, &[fabric.in_system(class, true, reason)])?;
    holds(buffer, b)?;
    // The new owner of this VRAM sees none of its old content.
    for other in &taken {
        check_ok!(
            other.map()?.verify_value(0),
            "a byte went to where the buffer was"
        );
    }

    // A mapped object stays in system memory until a move is requested.
    drop(taken);
    let id = object.info()?.id;
    DebugFs::open(&fabric.gpu)?.write("move", &format!("{id} vram"))?;
    fabric.check_attached(object, &[fabric.in_vram(class, false)])?;
    setup.write(a)?;
    placed(object, VRAM)?;
    fabric.check_attached(object, &[fabric.in_vram(class, true)])?;
    fabric.bar.locate(buffer.map())?;
    holds(buffer, a)?;
    setup.read(a)
}

/// A region that is pinned keeps its place when other objects need VRAM.
fn stays() -> Outcome {
    let fabric = Fabric::with_route()?;
    for class in [Mode::Pinned, Mode::Revocable] {
        let (a, b) = patterns();
        let setup = register(&fabric, class)?;
        let (object, buffer) = (&setup.target.object, &setup.target.buffer);
        setup.write(a)?;
        let before = fabric.bar.locate(buffer.map())?.ranges();
        let taken = squeeze_idle(&fabric.drm)?;
        placed(object, VRAM)?;
        holds(buffer, a)?;
        setup.write(b)?;
        holds(buffer, b)?;
        let after = fabric.bar.locate(buffer.map())?.ranges();
        check_eq!(after, before, "its place as {class:?}");
        fabric.check_attached(object, &[fabric.in_vram(class, true)])?;
        let id = object.info()?.id;
        expect_errno(
            "moving it",
            DebugFs::open(&fabric.gpu)?.write("move", &format!("{id} system")),
            libc::EBUSY,
        )?;
        drop(taken);
    }
    Ok(())
}

/// Checks that no request reaches a region that was revoked, and that each request completes.
fn denied(fabric: &Fabric, setup: &Setup<'_>) -> Outcome {
    let (a, _) = patterns();
    let host = &setup.host;
    host.fill(a)?;
    let (gone, own) = ((setup.target.buffer.region(), 0), (host.region(), 0));
    let len = SIZE as u32;
    let (remote, local) = (Status::REMOTE_ACCESS, Status::LOCAL_PROTECTION);
    type Request<'a> = (
        &'a str,
        Status,
        &'a dyn Fn(&Pair<'_>) -> Result<(), Failure>,
    );
    let requests: [Request<'_>; 9] = [
        ("a write to it", remote, &|p| p.write(own, gone, len)),
        ("a read of it", remote, &|p| p.read(gone, own, len)),
        ("a write from it", local, &|p| p.write(gone, own, len)),
        ("a read into it", local, &|p| p.read(own, gone, len)),
        ("a send from it", local, &|p| p.send(gone, own, len)),
        ("an addition to it", remote, &|p| p.fetch_add(own, gone, 1)),
        ("an exchange in it", remote, &|p| {
            p.compare_swap(own, gone, 0, 1)
        }),
        ("an old value for it", local, &|p| {
            p.fetch_add(gone, (own.0, SIZE - 8), 0)
        }),
        ("a send to it", Status::REMOTE_OPERATION, &|p| {
            p.send(own, gone, len)
        }),
    ];
    for (what, status, request) in requests {
        let result = request(&Pair::new(&fabric.nic)?);
        if what == "a send to it" {
            let receiver = result.as_ref().err().and_then(Failure::receiver);
            check_eq!(
                receiver,
                Some(local),
                "the status that the receiver of {what} got"
            );
        }
        expect_status(what, result, &[status])?;
    }
    // None of the old content of the region has arrived.
    holds(host, a)
}

/// The driver is unbound while a region exists: the region cannot be used from then on, also after
/// a rebind.
fn revoked() -> Outcome {
    for class in [Mode::Revocable, Mode::Dynamic] {
        let fabric = Fabric::with_route()?;
        let setup = register(&fabric, class)?;
        setup.write(patterns().0)?;
        let gone = Unbound::new(&fabric.gpu)?;
        denied(&fabric, &setup)?;
        let again = || -> Outcome {
            let fd = setup.target.buffer.dma_buf().map_or(-1, DmaBuf::fd);
            let region = fabric
                .nic
                .register(fd, 0, SIZE, None, fabric.nic.all_access());
            expect_errno("registering it again", region, libc::ENODEV)
        };
        again()?;
        gone.rebind()?;
        again()?;
        // All VRAM belongs to the new device now, and has no old content.
        let drm = Drm::open()?;
        let taken = squeeze_idle(&drm)?;
        denied(&fabric, &setup)?;
        for object in &taken {
            check_ok!(object.map()?.verify_value(0), "a request got to VRAM");
        }
        setup.target.buffer.close()?;
    }
    works_with_nic()
}

/// The unbind waits for a region that cannot be revoked, and logs the name of the RDMA device. The
/// region can be used until it is deregistered.
fn waited_for() -> Outcome {
    let fabric = Fabric::with_route()?;
    let (a, b) = patterns();
    // This object has not been used before.
    let setup = register(&fabric, Mode::Pinned)?;
    setup.target.buffer.fill(a)?;
    let mut log = KernelLog::open()?;
    let mut unbinding = Unbinding::start(&fabric.gpu)?;
    let message = format!("waiting for {}", fabric.device.name());
    log.await_line(&message, LIMIT)?;
    check!(unbinding.child.ended().is_none(), "the unbind did not wait");
    // A real NIC could still do DMA.
    setup.read(a)?;
    setup.write(b)?;
    setup.read(b)?;
    check!(unbinding.child.ended().is_none(), "the unbind did not wait");
    setup.target.buffer.close()?;
    unbinding.finish(LIMIT)?.rebind()?;
    works_with_nic()
}

/// How queue pairs are connected if a request is to get no answer.
fn impatient() -> Config {
    Config {
        retries: 4,
        ..Config::default()
    }
}

/// A request to a peer that does not answer fails, in the time that the retries take.
fn dead_peer() -> Outcome {
    let fabric = Fabric::with_route()?;
    for class in CLASSES {
        let mut setup = register(&fabric, class)?;
        setup.pair = Pair::with_config(&fabric.nic, &impatient())?;
        setup.write(patterns().0)?;
        setup.pair.silence()?;
        let (from, to) = (setup.target.buffer.region(), setup.host.region());
        expect_status(
            "a write to a dead peer",
            setup.pair.write((from, 0), (to, 0), SIZE as u32),
            &[Status::NO_ANSWER],
        )?;
    }
    Ok(())
}

/// A region can be deregistered after a request to it has failed because of a full completion
/// queue.
fn full_queue() -> Outcome {
    let fabric = Fabric::with_route()?;
    for class in CLASSES {
        let setup = register(&fabric, class)?;
        let config = Config {
            completions: 1,
            ..impatient()
        };
        let pair = Pair::with_config(&fabric.nic, &config)?;
        let (from, to) = ((setup.host.region(), 0), (setup.target.buffer.region(), 0));
        let _one = pair.post_receive(from, 8)?;
        let _other = pair.post_receive(from, 8)?;
        pair.wait(pair.post_write_imm(from, to, SIZE as u32)?)?;
        expect_status(
            "a write whose completion has no room",
            pair.wait(pair.post_write_imm(from, to, SIZE as u32)?),
            &[Status::NO_ANSWER],
        )?;
        let start = Instant::now();
        setup.target.buffer.close()?;
        let time = start.elapsed();
        check!(
            time < LIMIT * misc::slower(),
            "deregistration took {time:?} as {class:?}"
        );
    }
    Ok(())
}

/// Checks that a new region works.
fn works_with_nic() -> Outcome {
    let fabric = Fabric::open()?;
    for class in CLASSES {
        let (a, _) = patterns();
        let setup = register(&fabric, class)?;
        setup.write(a)?;
        holds(&setup.target.buffer, a)?;
    }
    works()
}

/// Moves an object out of VRAM and back, until it is killed. Sets `stays` if the object cannot be
/// moved.
fn disturb(gpu: &PciDevice, id: u64, stays: &Steps) -> Outcome {
    let debugfs = DebugFs::open(gpu)?;
    let mut told = false;
    for place in ["system", "vram"].iter().cycle() {
        match debugfs.write("move", &format!("{id} {place}")) {
            Err(error) if error.errno == libc::EBUSY => {
                if !told {
                    stays.done()?;
                    told = true;
                }
            }
            result => result?,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The buffer moves while writes and reads are under way, and every byte arrives.
fn moving() -> Outcome {
    const DEPTH: u64 = SIZE / PAGE64;
    const ROUNDS: u64 = 30;
    const MOVES: u64 = 10;
    let (enough, moves_wanted) = (ROUNDS * soak(), MOVES * soak());
    let fabric = Fabric::with_route()?;
    for class in CLASSES {
        let setup = register(&fabric, class)?;
        let moves = fabric.drm.counter(Counter::Moves)?;
        let moved = || -> Result<u64, SysError> { Ok(fabric.drm.counter(Counter::Moves)? - moves) };
        let id = setup.target.object.info()?.id;
        let stays = Steps::new()?;
        let mut child = Child::spawn(|| disturb(&fabric.gpu, id, &stays))?;
        let mut random = Lcg::new(patterns().0.word(0));
        let mut rounds = 0;
        // The number of moves meanwhile depends on the scheduler.
        while rounds < enough
            || (!class.needs_pin() && moved()? < moves_wanted && rounds < 5 * enough)
        {
            rounds += 1;
            let pattern = Pattern::new(random.word());
            setup.host.fill(pattern)?;
            let (from, to) = (setup.host.region(), setup.target.buffer.region());
            let posted = (0..DEPTH)
                .map(|page| {
                    let at = page * PAGE64;
                    setup.pair.post_write((from, at), (to, at), PAGE as u32)
                })
                .collect::<Result<Vec<_>, _>>()?;
            for ticket in posted {
                setup.pair.wait(ticket)?;
            }
            holds(&setup.target.buffer, pattern)?;
            if class.needs_pin() {
                placed(&setup.target.object, VRAM)?;
            }
            setup.read(pattern)?;
        }
        if class.needs_pin() {
            stays.wait("a move that is refused", LIMIT)?;
        }
        let ended = child.ended();
        check!(ended.is_none(), "it was not moved any more: {ended:?}");
        child.kill()?;
        let moved = moved()?;
        println!("{class:?}: {rounds} rounds, {moved} moves");
        if class.needs_pin() {
            check_eq!(moved, 0, "moves of what is pinned");
        } else {
            check!(moved >= moves_wanted, "{moved} moves are too few");
        }
    }
    Ok(())
}

/// The driver is unbound while writes are under way: each one completes, and later ones fail.
fn unbound_in_flight() -> Outcome {
    for class in [Mode::Revocable, Mode::Dynamic] {
        let fabric = Fabric::with_route()?;
        let setup = register(&fabric, class)?;
        let (from, to) = (setup.host.region(), setup.target.buffer.region());
        let (mut good, mut bad) = (0, 0);
        let mut unbinding = None;
        while bad == 0 && good < 100_000 {
            let posted = (0..16)
                .map(|_| setup.pair.post_write((from, 0), (to, 0), SIZE as u32))
                .collect::<Result<Vec<_>, _>>()?;
            if good > 0 && unbinding.is_none() {
                unbinding = Some(Unbinding::start(&fabric.gpu)?);
            }
            for ticket in posted {
                match setup.pair.wait(ticket) {
                    Ok(()) if bad == 0 => good += 1,
                    Ok(()) => fail!("a request completed after one had failed"),
                    Err(failure) => {
                        let want = if bad == 0 {
                            Status::REMOTE_ACCESS
                        } else {
                            Status::FLUSHED
                        };
                        bad += 1;
                        expect_status("a write to what is going", Err(failure), &[want])?;
                    }
                }
            }
        }
        println!("{class:?}: {good} requests completed, {bad} failed");
        let Some(unbinding) = unbinding.filter(|_| bad > 0) else {
            fail!("{bad} requests failed, before the unbind or none");
        };
        let gone = unbinding.finish(LIMIT)?;
        denied(&fabric, &setup)?;
        gone.rebind()?;
        setup.target.buffer.close()?;
    }
    works_with_nic()
}

/// A process that is killed leaves nothing behind.
fn killed() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let (free, pinned) = (drm.vram_free()?, drm.counter(Counter::VramPinned)?);
    for class in CLASSES {
        let started = Steps::new()?;
        let mut child = Child::spawn(|| -> Outcome {
            let fabric = Fabric::with_route()?;
            let setup = register(&fabric, class)?;
            setup.write(patterns().0)?;
            started.done()?;
            loop {
                setup.write(patterns().0)?;
            }
        })?;
        started.wait("the first write", LIMIT)?;
        check!(drm.vram_free()? < free, "the process has no VRAM");
        let held = drm.counter(Counter::VramPinned)? - pinned;
        let want = if class.needs_pin() { SIZE } else { 0 };
        // An access to a dynamic region pins the object as long as the access lasts.
        check!(
            held == want || held == SIZE,
            "{held} bytes are pinned as {class:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
        let ended = child.ended();
        check!(ended.is_none(), "the process ended by itself: {ended:?}");
        child.kill()?;
        drm.await_vram_free(free)?;
        let unpinned = misc::poll(LIMIT, || {
            (drm.counter(Counter::VramPinned).ok()? == pinned).then_some(())
        });
        check!(unpinned.is_some(), "VRAM is still pinned");
    }
    works_with_nic()
}

igt_main! {
    "follows", "a dynamic region follows its buffer out of VRAM and back", follows;
    "stays", "a pinned one keeps its place", stays;
    "moving", "writes under way while VRAM is fought for", moving;
    "revoked", "protection errors after an unbind, also after a rebind", revoked;
    "unbound-in-flight", "writes under way while the driver goes", unbound_in_flight;
    "dead-peer", "a request to a peer that does not answer", dead_peer;
    "full-queue", "giving up a region that a request failed with", full_queue;
    "waited-for", "an unbind waits for a region that cannot be revoked", waited_for;
    "killed", "SIGKILL with regions and requests", killed;
}
