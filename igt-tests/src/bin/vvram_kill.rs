// SPDX-License-Identifier: GPL-2.0

//! Processes that die by SIGKILL, in every state a buffer can be in.

use std::thread;
use std::time::Duration;

use vvram_tests::drm::{DmaBuf, Drm};
use vvram_tests::edu;
use vvram_tests::fixture::{patterns, peer_reads, peer_writes, share, Expect, Fixture};
use vvram_tests::map::PAGE64;
use vvram_tests::misc;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{sleep_forever, Child, Steps};
use vvram_tests::socket::{receive_fd, send_fd, sockets};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, uapi, Outcome};

const LIMIT: Duration = Duration::from_secs(20);

/// How far the importer got before it died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Reached {
    Attached,
    Pinned,
    Mapped,
    Transfer,
}

/// Goes as far as `reached` says, signals that, and never ends.
fn import(buffer: &DmaBuf, mode: Mode, reached: Reached, there: &Steps) -> Outcome {
    let peer = Peer::open()?;
    peer.attach(buffer, mode)?;
    if reached >= Reached::Pinned && mode.needs_pin() {
        peer.pin()?;
    }
    if reached >= Reached::Mapped {
        peer.map()?;
    }
    there.done()?;
    if reached == Reached::Transfer {
        let mut data = vec![0u8; buffer.size()? as usize];
        loop {
            peer.read(0, &mut data)?;
        }
    }
    sleep_forever()
}

/// Kills an importer, and checks that it leaves nothing behind.
fn killed(mode: Mode, reached: Reached) -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, _) = patterns();
    let shared = share(&fixture.drm, 16)?;
    shared.map.fill(a);
    let there = Steps::new()?;
    let slow = edu::slow()?;
    let mut child = Child::spawn(|| import(&shared.buffer, mode, reached, &there))?;
    there.wait("the importer", LIMIT)?;
    if reached == Reached::Transfer {
        // Sixteen pages take seconds: this is in the middle of one of them.
        thread::sleep(Duration::from_millis(250));
    }
    let pinned = mode.needs_pin() && reached >= Reached::Pinned;
    fixture.check_only(&shared.object, mode, pinned, reached >= Reached::Mapped)?;
    child.kill()?;
    let gone = misc::poll(Duration::from_secs(5), || {
        let list = shared.object.attachments().ok()?;
        list.is_empty().then_some(())
    });
    check!(
        gone.is_some(),
        "the attachment of a killed importer is still there: {:?}",
        shared.object.attachments()?
    );
    check_ok!(shared.map.verify(a), "the buffer changed");
    drop(slow);
    // The device is free for the next one.
    fixture.peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    fixture.check_table(&fixture.peer, &shared.map)?;
    peer_reads(&fixture.peer, a, &[0, 15])?;
    fixture.peer.detach()?;
    fixture.check_none(&shared.object)
}

fn attached() -> Outcome {
    killed(Mode::Dynamic, Reached::Attached)
}

fn pinned() -> Outcome {
    killed(Mode::Pinned, Reached::Pinned)
}

fn dynamic_mapped() -> Outcome {
    killed(Mode::Dynamic, Reached::Mapped)
}

fn pinned_mapped() -> Outcome {
    killed(Mode::Pinned, Reached::Mapped)
}

fn revocable_mapped() -> Outcome {
    killed(Mode::Revocable, Reached::Mapped)
}

fn dynamic_transfer() -> Outcome {
    killed(Mode::Dynamic, Reached::Transfer)
}

fn pinned_transfer() -> Outcome {
    killed(Mode::Pinned, Reached::Transfer)
}

fn all_at_once() -> Outcome {
    let _slow = edu::slow()?;
    let fixture = Fixture::with_route()?;
    let shared = share(&fixture.drm, 4)?;
    let there = Steps::new()?;
    let mut children = Vec::new();
    for (mode, reached) in [
        (Mode::Dynamic, Reached::Attached),
        (Mode::Dynamic, Reached::Transfer),
        (Mode::Pinned, Reached::Pinned),
        (Mode::Pinned, Reached::Mapped),
        (Mode::Revocable, Reached::Mapped),
        (Mode::Revocable, Reached::Transfer),
    ] {
        children.push(Child::spawn(|| {
            import(&shared.buffer, mode, reached, &there)
        })?);
        there.wait("an importer", LIMIT)?;
    }
    check_eq!(
        shared.object.attachments()?.len(),
        children.len(),
        "attachments of all importers"
    );
    for child in &children {
        child.signal(libc::SIGKILL);
    }
    for child in &mut children {
        child.kill()?;
    }
    let gone = misc::poll(Duration::from_secs(5), || {
        let list = shared.object.attachments().ok()?;
        list.is_empty().then_some(())
    });
    check!(
        gone.is_some(),
        "attachments of killed importers are still there: {:?}",
        shared.object.attachments()?
    );
    Ok(())
}

fn refused() -> Outcome {
    let fixture = Fixture::open()?;
    if fixture.expect != Expect::Refused {
        // With a route only static mode is refused.
        return refused_in(&fixture, Mode::Static, uapi::REASON_NO_OPT_IN);
    }
    refused_in(&fixture, Mode::Dynamic, uapi::REASON_NO_ROUTE)
}

/// A refusal stays listed when the importer is gone.
fn refused_in(fixture: &Fixture, mode: Mode, reason: u32) -> Outcome {
    let shared = share(&fixture.drm, 1)?;
    let there = Steps::new()?;
    let mut child = Child::spawn(|| {
        let peer = Peer::open()?;
        expect_errno(
            "attaching",
            peer.attach(&shared.buffer, mode),
            libc::EOPNOTSUPP,
        )?;
        there.done()?;
        sleep_forever()
    })?;
    there.wait("the importer", LIMIT)?;
    child.kill()?;
    let list = shared.object.attachments()?;
    check!(
        list.len() == 1 && list[0].refused() && list[0].reason == reason,
        "expected one refusal for reason {reason}, PEER_ATTACHMENTS lists {list:?}"
    );
    Ok(())
}

/// The process that made the buffer dies; the peer belongs to another one.
fn exporter_owner() -> Outcome {
    let fixture = Fixture::with_route()?;
    let (a, b) = patterns();
    let free = fixture.drm.vram_free()?;
    let (ours, theirs) = sockets()?;
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let shared = share(&drm, 4)?;
        shared.map.fill(a);
        send_fd(&theirs, shared.buffer.fd())?;
        sleep_forever()
    })?;
    let buffer = DmaBuf::new(receive_fd(&ours)?);
    fixture.peer.attach_and_map(&buffer, Mode::Pinned)?;
    child.kill()?;
    // A handle of this process, to list the attachments that the dead process may have left.
    let object = fixture.drm.import(&buffer)?;
    let map = object.map()?;
    fixture.check_only(&object, Mode::Pinned, true, true)?;
    let (_, layout) = fixture.check_table(&fixture.peer, &map)?;
    drop(map);
    object.close()?;
    drop(buffer);
    fixture.drm.await_vram_free(free - 4 * PAGE64)?;
    peer_reads(&fixture.peer, a, &[0, 3])?;
    peer_writes(&fixture.peer, b, &[1])?;
    fixture.check_vram(&layout, b, &[1])?;
    fixture.check_vram(&layout, a, &[0, 2, 3])?;
    fixture.peer.detach()?;
    fixture.drm.await_vram_free(free)?;
    Ok(())
}

/// A process with objects, mappings and dma-bufs dies.
fn creator() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let there = Steps::new()?;
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let mut kept = Vec::new();
        for pages in 1..32 {
            let shared = share(&drm, pages)?;
            shared.map.write(0, 1);
            kept.push((shared.buffer.map()?, shared));
        }
        there.done()?;
        sleep_forever()
    })?;
    there.wait("the creator", LIMIT)?;
    drm.await_vram_free(free - (1..32).sum::<u64>() * PAGE64)?;
    child.kill()?;
    drm.await_vram_free(free)
}

/// A process dies while it creates and closes.
fn busy_creator() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    for round in 0..10 {
        let there = Steps::new()?;
        let mut child = Child::spawn(|| {
            let drm = Drm::open()?;
            there.done()?;
            loop {
                let shared = share(&drm, 64)?;
                shared.map.write(0, 1);
            }
        })?;
        there.wait("the creator", LIMIT)?;
        thread::sleep(Duration::from_millis(3 + 7 * round));
        child.kill()?;
    }
    drm.await_vram_free(free)
}

igt_main! {
    "attached", "an importer that is attached", attached;
    "pinned", "an importer that has pinned", pinned;
    "dynamic-mapped", "a dynamic importer that has mapped", dynamic_mapped;
    "pinned-mapped", "a pinned importer that has mapped", pinned_mapped;
    "revocable-mapped", "a revocable importer that has mapped", revocable_mapped;
    "dynamic-transfer", "a dynamic importer in the middle of a transfer", dynamic_transfer;
    "pinned-transfer", "a pinned importer in the middle of a transfer", pinned_transfer;
    "all-at-once", "six importers of one buffer at once", all_at_once;
    "refused", "an importer that was refused: the record stays", refused;
    "exporter-owner", "the exporting process, while the peer holds the mapping", exporter_owner;
    "creator", "a process with objects, mappings and dma-bufs", creator;
    "busy-creator", "a process in the middle of creating", busy_creator;
}
