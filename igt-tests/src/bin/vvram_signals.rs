// SPDX-License-Identifier: GPL-2.0

//! Signals that arrive while a process waits: for a fence, for a move, for a lock, for mappings.
//!
//! Each call is made three times. A signal with a handler ends it with EINTR. If the handler was
//! installed with SA_RESTART, the call goes on waiting and succeeds. A fatal signal ends it with
//! the process. The signal is sent when the process sleeps in the expected function.

use std::time::{Duration, Instant};

use vvram_tests::debugfs::{difference, Counter, DebugFs};
use vvram_tests::drm::{DmaBuf, Drm, Gem, EITHER};
use vvram_tests::edu;
use vvram_tests::fence::{SyncObj, Timeline};
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, placed, share, works, Fixture};
use vvram_tests::heap;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Exit, Steps};
use vvram_tests::rebind::Unbinding;
use vvram_tests::signals::{
    asleep, await_sleep, catch, caught, interrupt, kill, restart, sleeps_in,
};
use vvram_tests::uapi::{
    self, EduPeerTransfer, SyncEntry, VvramGemCopy, DMA_BUF_SYNC_END as END,
    DMA_BUF_SYNC_READ as READ, DMA_BUF_SYNC_WRITE as WRITE,
};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome, Stop, SysError,
};

const LIMIT: Duration = Duration::from_secs(20);
/// The functions in which the kernel waits for a fence, and for the lock that an ioctl of DRM
/// takes: stacks do not show the functions of the lock itself.
const FENCE: &str = "dma_fence_default_wait";
const LOCK: &str = "drm_ioctl_kernel";
/// The function in which it waits for room in the queue of a client, `Queue::permit`.
const ROOM: &str = "6permit";
/// As much as one asynchronous transfer moves, for which a slow edu takes more than 3 s.
const LONG: usize = uapi::EDU_PEER_SUBMIT_MAX;

/// A copy of a whole object that is made to wait.
struct Copy<'a> {
    drm: &'a Drm,
    src: Gem<'a>,
    dst: Gem<'a>,
    from: Map,
    to: Map,
    /// Where the fence of the copy goes.
    out: SyncObj,
}

impl<'a> Copy<'a> {
    fn new(drm: &'a Drm) -> Result<Self, Stop> {
        let (src, dst) = (
            drm.create_flags(2 * PAGE64, EITHER)?,
            drm.create_flags(2 * PAGE64, EITHER)?,
        );
        let (from, to) = (src.map()?, dst.map()?);
        Ok(Self {
            drm,
            src,
            dst,
            from,
            to,
            out: SyncObj::new(drm.fd())?,
        })
    }

    fn run(&self, ins: &[SyncEntry]) -> Result<(), SysError> {
        let argument = VvramGemCopy {
            src: self.src.handle(),
            dst: self.dst.handle(),
            size: 2 * PAGE64,
            ..Default::default()
        };
        self.drm.copy_syncs(&argument, ins, &[self.out.sync(0)])
    }

    /// The same, without a place for the fence.
    fn run_only(&self, ins: &[SyncEntry]) -> Result<(), SysError> {
        let argument = VvramGemCopy {
            src: self.src.handle(),
            dst: self.dst.handle(),
            size: 2 * PAGE64,
            ..Default::default()
        };
        self.drm.copy_syncs(&argument, ins, &[])
    }
}

/// A wait for room in the queue of a client, whose copies wait for a fence of their arguments, or
/// for an implicit fence of an object. No lock is held meanwhile.
fn copy_room() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let free = drm.vram_free()?;
    for implicit in [false, true] {
        let copy = Copy::new(&drm)?;
        copy.from.fill(a);
        copy.to.fill(b);
        let timeline = Timeline::new()?;
        let fence = timeline.fence(1)?;
        let object = SyncObj::of(drm.fd(), &fence)?;
        let ins = if implicit {
            copy.dst.export()?.add_fence(WRITE, &fence)?;
            vec![]
        } else {
            vec![object.sync(0)]
        };
        for _ in 0..uapi::COPIES_MAX {
            copy.run_only(&ins)?;
        }
        let call = || copy.run(&ins);
        interrupt(ROOM, call, || Ok(()))?;
        kill(ROOM, call)?;
        restart(ROOM, call, || {
            // Another client has room, and gets the locks.
            let other = Drm::open()?;
            let (one, two) = (other.create(PAGE64)?, other.create(PAGE64)?);
            other.copy((&one, 0), (&two, 0), PAGE64)?.finish()?;
            copy.src.info()?;
            cpu_reads(&copy.to, b, &[0, 1])?;
            Ok(timeline.step()?)
        })?;
        copy.dst.export()?.sync(READ)?;
        cpu_reads(&copy.to, a, &[0, 1])?;
    }
    drm.await_vram_free(free)
}

/// A wait for the end of a copy to the buffer of another device, which waits for a fence: a signal
/// cancels the copy.
fn copy_to_import() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let heap = heap::allocate(2 * PAGE64)?;
    let there = heap.map()?;
    let import = drm.import(&heap)?;
    let object = drm.create(2 * PAGE64)?;
    object.map()?.fill(a);
    there.fill(b);
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let argument = VvramGemCopy {
        src: object.handle(),
        dst: import.handle(),
        size: 2 * PAGE64,
        ..Default::default()
    };
    let (object, out) = (SyncObj::of(drm.fd(), &fence)?, SyncObj::new(drm.fd())?);
    let call = || drm.copy_syncs(&argument, &[object.sync(0)], &[out.sync(0)]);
    let untouched = || cpu_reads(&there, b, &[0, 1]);
    interrupt(FENCE, call, untouched)?;
    kill(FENCE, call)?;
    untouched()?;
    restart(FENCE, call, || {
        untouched()?;
        Ok(timeline.step()?)
    })?;
    cpu_reads(&there, a, &[0, 1])
}

/// A wait for the fences of the buffer of another exporter, because the copy is an access by the
/// CPU.
fn copy_import() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let heap = heap::allocate(2 * PAGE64)?;
    let there = heap.map()?;
    let import = drm.import(&heap)?;
    let object = drm.create(2 * PAGE64)?;
    let map = object.map()?;
    there.fill(a);
    map.fill(b);
    let timeline = Timeline::new()?;
    heap.add_fence(WRITE, &timeline.fence(1)?)?;
    let call = || drm.copy((&import, 0), (&object, 0), 2 * PAGE64).map(drop);
    interrupt(FENCE, call, || Ok(()))?;
    kill(FENCE, call)?;
    cpu_reads(&map, b, &[0, 1])?;
    restart(FENCE, call, || Ok(timeline.step()?))?;
    object.export()?.sync(READ)?;
    cpu_reads(&map, a, &[0, 1])
}

/// A pin that has to move an object while a copy uses it.
fn pin() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, _) = patterns();
    let free = fixture.drm.vram_free()?;
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.fill(a);
    let id = object.info()?.id;
    debugfs.force(id, "system")?;
    let buffer = object.export()?;
    let timeline = Timeline::new()?;
    buffer.add_fence(READ, &timeline.fence(1)?)?;
    let peer = &fixture.peer;
    peer.attach(&buffer, Mode::Pinned)?;
    let call = || peer.pin();
    let before = debugfs.counters()?;

    let untouched = || {
        placed(&object, uapi::PLACEMENT_SYSTEM)?;
        check_eq!(object.info()?.pinned, 0, "pinned after the signal");
        let pinned = fixture.drm.counter(Counter::VramPinned)?;
        check_eq!(pinned, 0, "pinned VRAM after the signal");
        fixture.drm.await_vram_free(free)?;
        fixture.check_only(&object, Mode::Pinned, false, false)
    };
    interrupt(FENCE, call, untouched)?;
    kill(FENCE, call)?;
    untouched()?;
    let counted = difference(&before, &debugfs.counters()?);
    let none = ("pin-refused".to_string(), "none".to_string(), 2);
    check_eq!(counted, [none], "what was counted");
    restart(FENCE, call, || Ok(timeline.step()?))?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    check_eq!(object.info()?.pinned, 1, "pinned");
    peer.map()?;
    fixture.check_table(peer, &map)?;
    peer_reads(peer, a, &[1])?;
    peer.detach()?;
    drop((map, object, buffer));
    fixture.drm.await_vram_free(free)
}

/// The wait of a map for fences before a move of the object cannot be interrupted, because some
/// importers map where they cannot handle that. A signal takes effect after the wait.
fn map_foreign() -> Outcome {
    let fixture = Fixture::with_route()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.fill(a);
    debugfs.write("move", &format!("{} system", object.info()?.id))?;
    let buffer = object.export()?;
    let timeline = Timeline::new()?;
    buffer.add_fence(READ, &timeline.fence(1)?)?;
    let peer = &fixture.peer;
    peer.attach(&buffer, Mode::Dynamic)?;
    let told = Steps::new()?;
    let mut child = Child::spawn(|| {
        // The wait of the map for its own move after that can be interrupted; then the call is
        // restarted.
        catch(&told, true)?;
        peer.map()?;
        check_eq!(caught(), 1, "signals when the map is done");
        Ok(())
    })?;
    await_sleep(&mut child, FENCE, "D")?;
    child.signal(libc::SIGUSR1);
    std::thread::sleep(Duration::from_millis(100));
    check!(
        sleeps_in(&child, FENCE, "D") && !told.is_done()?,
        "a signal woke the map; {}",
        child.whereabouts()
    );
    timeline.step()?;
    child.join("the map", LIMIT)?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    fixture.check_only(&object, Mode::Dynamic, false, true)?;
    fixture.check_table(peer, &map)?;
    peer_reads(peer, a, &[0, 1])
}

/// Queues copies that take the engine about the given time, and behind them a copy from the object,
/// for which moves of the object wait.
fn backlog(drm: &Drm, object: &Gem<'_>, time: Duration) -> Outcome {
    const FEW: u32 = 8;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)? / 4;
    let (src, dst) = (drm.create(size)?, drm.create(size)?);
    let few = || -> Outcome {
        for _ in 1..FEW {
            drm.copy((&src, 0), (&dst, 0), size)?;
        }
        drm.copy((&src, 0), (&dst, 0), size)?.finish()
    };
    few()?;
    let start = Instant::now();
    few()?;
    let each = (start.elapsed() / FEW).as_nanos().max(1);
    let rounds = (time.as_nanos() / each).clamp(1, 10_000);
    // One client has room for only some of the copies.
    let most = u128::from(uapi::COPIES_MAX) - 2;
    for _ in 0..rounds.saturating_sub(most) {
        drm.copy((&src, 0), (&dst, 0), size)?;
    }
    for _ in 0..rounds.min(most) {
        drm.copy((&src, 0), (&dst, 0), size)?;
    }
    drm.copy((object, 0), (&dst, 0), PAGE64)?;
    println!("{rounds} copies of {each} ns were queued");
    Ok(())
}

/// A map, a pin and a page fault that wait for the end of a move.
///
/// False if the move was over before all signals were sent.
fn move_under_way(fixture: &Fixture, time: Duration) -> Result<bool, Stop> {
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let (a, _) = patterns();
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let map = object.map()?;
    map.fill(a);
    let id = object.info()?.id;
    debugfs.force(id, "system")?;
    let buffer = object.export()?;
    let peers = [
        (Mode::Dynamic, fixture.peer.reopen()?),
        (Mode::Pinned, fixture.peer.reopen()?),
    ];
    for (mode, peer) in &peers {
        peer.attach(&buffer, *mode)?;
    }
    backlog(&fixture.drm, &object, time)?;
    debugfs.write("move", &format!("{id} vram"))?;

    let call = |(mode, peer): &(Mode, Peer)| match mode {
        Mode::Pinned => peer.pin(),
        _ => peer.map(),
    };
    for pair in &peers {
        for fatal in [false, true] {
            let told = Steps::new()?;
            let mut child = Child::spawn(|| {
                catch(&told, false)?;
                expect_errno("the call at a signal", call(pair), libc::EINTR)
            })?;
            if !asleep(&mut child, FENCE, "S")? {
                println!("{:?} ended with {:?}", pair.0, child.ended());
                return Ok(false);
            }
            if fatal {
                child.kill()?;
            } else {
                child.signal(libc::SIGUSR1);
                child.join("the call that a signal ends", LIMIT)?;
            }
        }
    }
    // The page fault of a process is repeated after the handler, and waits again.
    let told = Steps::new()?;
    let mut child = Child::spawn(|| {
        catch(&told, false)?;
        map.read(0);
        fail!("the access did not wait for the move");
    })?;
    for round in 0..2 {
        if !asleep(&mut child, FENCE, "S")? {
            println!("access {round} ended with {:?}", child.ended());
            return Ok(false);
        }
        if round == 0 {
            child.signal(libc::SIGUSR1);
            told.wait("the handler", LIMIT)?;
        } else {
            child.kill()?;
        }
    }

    // The interrupted calls have left nothing behind.
    for (mode, peer) in &peers {
        let flags = peer.status()?.flags;
        check_eq!(
            flags,
            uapi::EDU_PEER_STATUS_ATTACHED,
            "flags in mode {mode:?} after the signals"
        );
    }
    check_eq!(object.info()?.pinned, 0, "pinned after the signals");
    let pinned = fixture.drm.counter(Counter::VramPinned)?;
    check_eq!(pinned, 0, "pinned VRAM after the signals");

    let (told, early) = (Steps::new()?, Steps::new()?);
    let mut again = Child::spawn(|| {
        catch(&told, true)?;
        call(&peers[0])?;
        if caught() == 0 {
            early.done()?;
        }
        let signal = misc::poll(LIMIT, || (caught() > 0).then_some(()));
        check!(signal.is_some(), "there was no signal");
        check_eq!(caught(), 1, "signals");
        Ok(())
    })?;
    if !asleep(&mut again, FENCE, "S")? {
        println!("the second map ended with {:?}", again.ended());
        return Ok(false);
    }
    again.signal(libc::SIGUSR1);
    told.wait("the handler", LIMIT)?;
    again.join("the map that is restarted", LIMIT)?;
    if early.is_done()? {
        println!("the second map ended before the signal");
        return Ok(false);
    }
    peers[1].1.pin()?;
    placed(&object, uapi::PLACEMENT_VRAM)?;
    fixture.check_table(&peers[0].1, &map)?;
    peer_reads(&peers[0].1, a, &[0])?;
    cpu_reads(&map, a, &[0, 1])?;
    Ok(true)
}

/// All kinds of waits for a move.
fn moving() -> Outcome {
    let fixture = Fixture::with_route()?;
    let free = fixture.drm.vram_free()?;
    for time in [1, 4, 16] {
        let done = move_under_way(&fixture, Duration::from_secs(time))?;
        fixture.drm.await_vram_free(free)?;
        if done {
            return Ok(());
        }
    }
    fail!("the moves were over before the signals were sent")
}

/// A new object needs the VRAM of another one while a copy uses that.
fn create() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let victim = drm.create_flags(2 * PAGE64, EITHER)?;
    let map = victim.map()?;
    map.fill(a);
    let timeline = Timeline::new()?;
    victim.export()?.add_fence(READ, &timeline.fence(1)?)?;
    let free = drm.vram_free()?;
    let call = || drm.create(size).map(drop);
    let untouched = || {
        placed(&victim, uapi::PLACEMENT_VRAM)?;
        drm.await_vram_free(free)
    };
    interrupt(FENCE, call, untouched)?;
    kill(FENCE, call)?;
    untouched()?;
    restart(FENCE, call, || Ok(timeline.step()?))?;
    placed(&victim, uapi::PLACEMENT_SYSTEM)?;
    cpu_reads(&map, a, &[0, 1])
}

/// A transfer that has to wait for other fences before it starts.
fn submit() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let timeline = Timeline::new()?;
    shared.buffer.add_fence(WRITE, &timeline.fence(1)?)?;
    let peer = &fixture.peer;
    peer.attach(&shared.buffer, Mode::Dynamic)?;
    let call = || peer.submit_read(0, PAGE);
    let idle = || {
        let busy = peer.status()?.flags & uapi::EDU_PEER_STATUS_BUSY;
        check_eq!(busy, 0, "busy after the signal");
        let ended = peer.finish_read(&mut [0; 16]);
        expect_errno("the end of no transfer", ended, libc::EINVAL)
    };
    interrupt(FENCE, call, idle)?;
    kill(FENCE, call)?;
    idle()?;
    restart(FENCE, call, || Ok(timeline.step()?))?;
    let mut data = vec![0u8; PAGE];
    check_eq!(peer.finish_read(&mut data)?, PAGE64, "bytes that were read");
    check_ok!(a.verify(&data, 0), "the peer read");
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)
}

/// A wait for the end of a transfer, which goes on when the wait is interrupted.
fn finish() -> Outcome {
    let _slow = edu::slow()?;
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, LONG / PAGE)?;
    shared.map.fill(a);
    let peer = &fixture.peer;
    peer.attach(&shared.buffer, Mode::Dynamic)?;
    peer.submit_read(0, LONG)?;
    let call = || {
        let mut data = vec![0u8; LONG];
        let moved = peer.finish_read(&mut data)?;
        if moved != LONG as u64 || a.verify(&data, 0).is_err() {
            return Err(SysError::new("FINISH with all bytes", 0));
        }
        Ok(())
    };
    interrupt(FENCE, call, || {
        let busy = peer.status()?.flags & uapi::EDU_PEER_STATUS_BUSY;
        check_eq!(busy, uapi::EDU_PEER_STATUS_BUSY, "busy after the signal");
        Ok(())
    })?;
    kill(FENCE, call)?;
    // The other waiters were not affected.
    restart(FENCE, call, || Ok(()))
}

/// A signal ends a transfer between two pieces, also with SA_RESTART, and the call returns how many
/// bytes were moved.
fn transfer() -> Outcome {
    let _slow = edu::slow()?;
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 16)?;
    shared.map.fill(a);
    let peer = &fixture.peer;
    peer.attach(&shared.buffer, Mode::Dynamic)?;
    for restart in [false, true] {
        let told = Steps::new()?;
        let mut child = Child::spawn(|| {
            catch(&told, restart)?;
            let mut data = vec![0u8; 16 * PAGE];
            let mut argument = EduPeerTransfer {
                offset: 0,
                length: data.len() as u64,
                data: data.as_mut_ptr() as u64,
                direction: uapi::EDU_PEER_DIRECTION_READ,
                pad: 0,
            };
            // SAFETY: the memory is as long as the argument says.
            let result = unsafe { peer.transfer_raw(&mut argument) };
            expect_errno("the transfer at a signal", result, libc::EINTR)?;
            let moved = argument.length as usize;
            check!(
                (PAGE..16 * PAGE).contains(&moved) && moved.is_multiple_of(PAGE),
                "{moved} bytes were moved before the signal"
            );
            check_ok!(a.verify(&data[..moved], 0), "the peer read");
            check!(
                data[moved..].iter().all(|byte| *byte == 0),
                "there is more than the {moved} bytes that were moved"
            );
            Ok(())
        })?;
        await_sleep(&mut child, "sys_ioctl", "SD")?;
        child.signal(libc::SIGUSR1);
        child.join("the transfer", LIMIT)?;
    }
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    peer_reads(peer, a, &[15])
}

/// The begin of an access by the CPU.
fn cpu_access() -> Outcome {
    let drm = Drm::open()?;
    for flags in [uapi::CREATE_VRAM, uapi::CREATE_SYSTEM] {
        let buffer = drm.create_flags(PAGE64, flags)?.export()?;
        let timeline = Timeline::new()?;
        buffer.add_fence(READ, &timeline.fence(1)?)?;
        // An access that only reads has nothing to wait for.
        buffer.sync(READ)?;
        buffer.sync(READ | END)?;
        let call = || buffer.sync(WRITE);
        interrupt(FENCE, call, || Ok(()))?;
        kill(FENCE, call)?;
        restart(FENCE, call, || Ok(timeline.step()?))?;
        buffer.sync(WRITE | END)?;
    }
    Ok(())
}

/// Makes a child hold the reservation of a buffer until the timeline steps: it waits for a fence of
/// the timeline with the reservation held.
fn hold(peer: &Peer, buffer: &DmaBuf, timeline: &Timeline) -> Result<Child, Stop> {
    buffer.add_fence(WRITE, &timeline.fence(1)?)?;
    peer.attach(buffer, Mode::Dynamic)?;
    let mut holder = Child::spawn(|| Ok(peer.submit_read(0, PAGE)?))?;
    await_sleep(&mut holder, FENCE, "S")?;
    Ok(holder)
}

/// A wait for a reservation that another task holds for long. The EINTR of DRM is not restarted by
/// the kernel, but by libdrm.
fn lock() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    let timeline = Timeline::new()?;
    let peer = &fixture.peer;
    let mut holder = hold(peer, &shared.buffer, &timeline)?;
    let call = || shared.object.info().map(drop);
    interrupt(LOCK, call, || Ok(()))?;
    kill(LOCK, call)?;
    let told = Steps::new()?;
    let mut child = Child::spawn(|| {
        catch(&told, true)?;
        expect_errno("GEM_INFO at a signal", call(), libc::EINTR)?;
        // The call is repeated, as libdrm does.
        Ok(call()?)
    })?;
    await_sleep(&mut child, LOCK, "S")?;
    child.signal(libc::SIGUSR1);
    told.wait("the handler", LIMIT)?;
    await_sleep(&mut child, LOCK, "S")?;
    timeline.step()?;
    child.join("GEM_INFO", LIMIT)?;
    holder.join("the holder", LIMIT)?;
    peer.finish_read(&mut [0; PAGE])?;
    peer.detach()?;
    fixture.check_none(&shared.object)
}

/// A copy that waits for the reservation has done nothing yet, so it can be restarted.
fn locks() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    let other = fixture.drm.create(PAGE64)?;
    let timeline = Timeline::new()?;
    let peer = &fixture.peer;
    let mut holder = hold(peer, &shared.buffer, &timeline)?;
    let call = || {
        let copy = fixture.drm.copy((&shared.object, 0), (&other, 0), PAGE64);
        copy.map(drop)
    };
    interrupt(LOCK, call, || Ok(()))?;
    kill(LOCK, call)?;
    restart(LOCK, call, || {
        timeline.step()?;
        holder.join("the holder", LIMIT)
    })?;
    peer.finish_read(&mut [0; PAGE])?;
    peer.detach()?;
    fixture.check_none(&shared.object)
}

/// The same for the calls of address spaces.
fn lock_spaces() -> Outcome {
    const AT: u64 = 2 * PAGE64;
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 1)?;
    shared.map.fill(a);
    fixture.drm.vm_bind(&shared.object, 0)?;
    let timeline = Timeline::new()?;
    let peer = &fixture.peer;
    let mut holder = hold(peer, &shared.buffer, &timeline)?;
    let read = || fixture.drm.vm_read(0, PAGE, 0).map(drop);
    let bind = || fixture.drm.vm_bind(&shared.object, AT);
    interrupt(LOCK, read, || Ok(()))?;
    interrupt(LOCK, bind, || Ok(()))?;
    kill(LOCK, read)?;
    kill(LOCK, bind)?;
    timeline.step()?;
    holder.join("the holder", LIMIT)?;
    // Nothing was bound by the calls that have failed.
    expect_errno("VM_READ", fixture.drm.vm_read(AT, PAGE, 0), libc::EFAULT)?;
    bind()?;
    for at in [0, AT] {
        check_ok!(
            a.verify(&fixture.drm.vm_read(at, PAGE, 0)?, 0),
            "at {at:#x}"
        );
        fixture.drm.vm_unbind(at, PAGE64)?;
    }
    peer.finish_read(&mut [0; PAGE])?;
    peer.detach()?;
    fixture.check_none(&shared.object)
}

/// A process that waits for the list of attachments can be killed, whoever holds the reservation.
fn lock_list() -> Outcome {
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 1)?;
    let timeline = Timeline::new()?;
    let peer = &fixture.peer;
    let mut holder = hold(peer, &shared.buffer, &timeline)?;
    let mut child = Child::spawn(|| Ok(shared.object.attachments().map(drop)?))?;
    await_sleep(&mut child, LOCK, "SD")?;
    child.signal(libc::SIGKILL);
    let ended = child.wait(Duration::from_millis(500));
    timeline.step()?;
    holder.join("the holder", LIMIT)?;
    check_eq!(
        ended,
        Some(Exit::Signal(libc::SIGKILL)),
        "the end of a process that was killed"
    );
    peer.finish_read(&mut [0; PAGE])?;
    peer.detach()?;
    fixture.check_none(&shared.object)
}

/// An unbind that waits for a mapping goes on waiting after a signal, because the memory must not
/// be freed while it is mapped.
fn unbind() -> Outcome {
    const UNBIND: &str = "unbind_store";
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 2)?;
    shared.map.fill(a);
    let peer = &fixture.peer;
    peer.attach_and_map(&shared.buffer, Mode::Pinned)?;
    let (_, layout) = fixture.check_table(peer, &shared.map)?;
    let driver = fixture.gpu.driver().unwrap_or_default();
    let told = Steps::new()?;
    let mut waits = Child::spawn(|| {
        catch(&told, false)?;
        Ok(fixture.gpu.unbind(&driver)?)
    })?;
    let revoked = misc::poll(LIMIT, || {
        let again = peer.reopen().ok()?.attach(&shared.buffer, Mode::Dynamic);
        again.is_err().then_some(())
    });
    check!(revoked.is_some(), "the buffer is not revoked");
    for signal in [libc::SIGUSR1, libc::SIGTERM, libc::SIGKILL] {
        await_sleep(&mut waits, UNBIND, "SD")?;
        waits.signal(signal);
        peer_reads(peer, a, &[1])?;
        fixture.check_vram(&layout, a, &[0, 1])?;
        check!(
            waits.ended().is_none() && !told.is_done()?,
            "the unbind ended by signal {signal}; {:?}",
            waits.ended()
        );
    }
    peer.unmap()?;
    let exit = waits.wait(LIMIT);
    check!(
        matches!(exit, Some(Exit::Signal(libc::SIGKILL | libc::SIGTERM))),
        "the unbind ended with {exit:?}"
    );
    check_eq!(fixture.gpu.driver(), None, "driver after the unbind");
    peer.detach()?;
    fixture.gpu.bind(&driver)?;
    works()
}

/// Copies that wait for a fence of another driver do not block an unbind, and neither does a client
/// that waits for room in its queue.
fn unbind_in_fence() -> Outcome {
    let fixture = Fixture::open()?;
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let (mut child, mut mover) = {
        let copy = Copy::new(&fixture.drm)?;
        let object = SyncObj::of(fixture.drm.fd(), &fence)?;
        for _ in 0..uapi::COPIES_MAX {
            copy.run_only(&[object.sync(0)])?;
        }
        let call = || copy.run(&[object.sync(0)]);
        let mut child =
            Child::spawn(|| expect_errno("a copy without a device", call(), libc::ENODEV))?;
        await_sleep(&mut child, ROOM, "S")?;
        // A move waits for the copies in the section that the unbind waits for. It may succeed when
        // they are cancelled, and would give up after 15 seconds.
        let (debugfs, id) = (DebugFs::open(&fixture.gpu)?, copy.src.info()?.id);
        let mut mover = Child::spawn(|| {
            let _ = debugfs.force(id, "system");
            Ok(())
        })?;
        await_sleep(&mut mover, FENCE, "SD")?;
        (child, mover)
    };
    // This call waits for the fence before the section that the unbind waits for.
    let heap = heap::allocate(PAGE64)?;
    let mut writer = {
        let second = Drm::open()?;
        let (object, import) = (second.create(PAGE64)?, second.import(&heap)?);
        let argument = VvramGemCopy {
            src: object.handle(),
            dst: import.handle(),
            size: PAGE64,
            ..Default::default()
        };
        let waits = SyncObj::of(second.fd(), &fence)?;
        let mut writer = Child::spawn(|| {
            expect_errno(
                "a copy to an import without a device",
                second.copy_syncs(&argument, &[waits.sync(0)], &[]),
                libc::ENODEV,
            )
        })?;
        await_sleep(&mut writer, FENCE, "S")?;
        writer
    };
    let mut unbinding = Unbinding::start(&fixture.gpu)?;
    let ended = misc::poll(Duration::from_secs(1), || unbinding.child.ended());
    let place = unbinding.child.whereabouts();
    timeline.step()?;
    child.join("the copy", LIMIT)?;
    mover.join("the move", LIMIT)?;
    writer.join("the copy to an import", LIMIT)?;
    unbinding.finish(LIMIT)?.rebind()?;
    check!(
        ended.is_some(),
        "the unbind waited for an external fence; {place}"
    );
    works()
}

igt_main! {
    "copy-room", "a copy that waits for room in the queue of its client", copy_room;
    "copy-to-import", "a copy to an imported buffer that waits for its in-fence", copy_to_import;
    "copy-import", "a copy that waits for the fences of an imported buffer", copy_import;
    "pin", "a pin that waits for others before it moves the object", pin;
    "map-foreign", "a map that waits for others: signals do not end it", map_foreign;
    "moving", "maps, pins and page faults that wait for a move", moving;
    "create", "a new object that waits for the room of another one", create;
    "submit", "a transfer that waits before it starts", submit;
    "finish", "the wait for a transfer", finish;
    "transfer", "a transfer says how far it got", transfer;
    "cpu-access", "the begin of an access by the CPU", cpu_access;
    "lock", "a wait for the reservation", lock;
    "locks", "a copy that waits for the reservation", locks;
    "lock-spaces", "VM_BIND and VM_READ that wait for the reservation", lock_spaces;
    "lock-list", "PEER_ATTACHMENTS that waits for the reservation", lock_list;
    "unbind", "an unbind that waits for a mapping: signals do not end it", unbind;
    "unbind-in-fence", "a copy that waits does not hold up the unbind", unbind_in_fence;
}
