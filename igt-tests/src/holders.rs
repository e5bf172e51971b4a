// SPDX-License-Identifier: GPL-2.0

//! The limits of pins of a GPU, and its policies for importers that cannot be revoked.
//!
//! Each function fails the subtest if it finds something else than it says.

use std::time::Duration;

use crate::debugfs::{difference, words, Counter, DebugFs};
use crate::drm::{Attachment, Drm, Gem, EITHER};
use crate::fixture::{
    in_system_memory, patterns, peer_reads, peer_writes, placed, works_on, Fixture,
};
use crate::gpu::Gpu;
use crate::map::PAGE;
use crate::misc;
use crate::peer::{Mode, Peer};
use crate::rebind::{with_parameters_of, Unbinding, Unbound};
use crate::user::without_memory_lock;
use crate::{expect_errno, uapi, Outcome, Stop};

const ONLY: u32 = uapi::CREATE_VRAM;
const SIZE: u64 = 4 * PAGE as u64;
const LAST: usize = 3;
const LIMIT: Duration = Duration::from_secs(20);

/// The policy of a device; the drop of this restores the default.
struct Policy(DebugFs);

impl Policy {
    fn set(fixture: &Fixture, policy: &str) -> Result<Self, Stop> {
        let debugfs = fixture.debugfs()?;
        debugfs.write("unrevocable", policy)?;
        Ok(Self(debugfs))
    }

    fn word(&self, name: &str) -> Result<Option<String>, Stop> {
        let text = self.0.read("unrevocable")?;
        Ok(words(&text).get(name).map(|word| (*word).to_string()))
    }

    #[track_caller]
    fn held(&self, want: u64) -> Outcome {
        self.0.held(want)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let _ = self.0.write("unrevocable", "accept");
    }
}

/// The only attachment or refusal of an object.
#[track_caller]
fn only(object: &Gem<'_>) -> Result<Attachment, Stop> {
    let list = object.attachments()?;
    check_eq!(list.len(), 1, "attachments and refusals: {list:?}");
    Ok(list[0].clone())
}

/// Importers that cannot be revoked get system memory, or are refused where that is not possible.
/// Other importers are not affected.
pub fn refuse<G: Gpu>() -> Outcome {
    let fixture = G::with_route()?;
    let policy = Policy::set(&fixture, "refuse")?;
    let (a, b) = patterns();
    let peer = &fixture.peer;
    let before = policy.0.counters()?;
    check_eq!(
        policy.word("policy")?,
        Some("refuse".to_string()),
        "the policy"
    );

    let either = fixture.drm.create_flags(SIZE, EITHER)?;
    let (map, buffer) = (either.map()?, either.export()?);
    map.fill(a);
    peer.attach_and_map(&buffer, Mode::Pinned)?;
    let entry = only(&either)?;
    check_eq!(entry.path, uapi::PATH_SYSTEM, "path");
    check_eq!(entry.reason, uapi::REASON_NOT_REVOCABLE, "reason");
    placed(&either, uapi::PLACEMENT_SYSTEM)?;
    in_system_memory(&fixture, peer)?;
    peer_reads(peer, a, &[0, LAST])?;
    peer_writes(peer, b, &[1])?;
    policy.held(0)?;
    peer.detach()?;

    let vram = fixture.drm.create_flags(SIZE, ONLY)?;
    let shared = vram.export()?;
    let attached = peer.attach(&shared, Mode::Pinned);
    fixture.check_refused(&vram, attached, Mode::Pinned, uapi::REASON_NOT_REVOCABLE)?;
    for mode in [Mode::Dynamic, Mode::Revocable] {
        let object = fixture.drm.create_flags(SIZE, EITHER)?;
        let (map, buffer) = (object.map()?, object.export()?);
        map.fill(b);
        peer.attach_and_map(&buffer, mode)?;
        fixture.check_only(&object, mode, mode.needs_pin(), true)?;
        fixture.check_table(peer, &map)?;
        peer_reads(peer, b, &[0, LAST])?;
        policy.held(0)?;
        peer.detach()?;
    }
    let entry = |event: &str, reason: &str| (event.to_string(), reason.to_string(), 1);
    check_eq!(
        difference(&before, &policy.0.counters()?),
        [
            entry("attach-refused", "not-revocable"),
            entry("attach-system", "not-revocable"),
            entry("map-system", "not-revocable"),
            entry("moves", "-")
        ],
        "counters"
    );
    Ok(())
}

/// An unbind does not wait for importers that have system memory only, and they keep it.
pub fn refuse_unbind<G: Gpu>() -> Outcome {
    let fixture = G::with_route()?;
    let policy = Policy::set(&fixture, "refuse")?;
    let (a, b) = patterns();
    let mut held = Vec::new();
    for mode in [Mode::Pinned, Mode::Static] {
        let object = fixture.drm.create_flags(SIZE, EITHER)?;
        let (buffer, peer) = (object.export()?, fixture.peer.reopen()?);
        object.map()?.fill(a);
        peer.attach_and_map(&buffer, mode)?;
        held.push((object, buffer, peer, mode));
    }
    drop(policy);
    let gone = Unbound::new(&fixture.gpu)?;
    for (_, _, peer, mode) in &held {
        println!("{mode:?}");
        peer_reads(peer, a, &[0, LAST])?;
        peer_writes(peer, b, &[2])?;
        peer_reads(peer, b, &[2])?;
        expect_errno(
            "a second mapping after the unbind",
            fixture.peer.reopen()?.attach(&held[0].1, *mode),
            libc::ENODEV,
        )?;
    }
    gone.rebind()?;
    for (_, _, peer, _) in &held {
        peer_reads(peer, a, &[0, LAST])?;
        peer.detach()?;
    }
    drop(held);
    works_on(&G::fixture()?)
}

/// Importers that cannot be revoked may pin up to a limit; more is refused, before other objects
/// are evicted for it.
pub fn limit<G: Gpu>() -> Outcome {
    let fixture = G::with_route()?;
    let policy = Policy::set(&fixture, &(2 * SIZE - 1).to_string())?;
    let before = policy.0.counters()?;
    let (a, _) = patterns();
    let object = |index: u64| -> Result<_, Stop> {
        let object = fixture.drm.create_flags(SIZE, EITHER)?;
        object.map()?.fill(a.derive(index));
        let buffer = object.export()?;
        Ok((object, buffer))
    };
    let pinned = |buffer| -> Result<Peer, Stop> {
        let peer = fixture.peer.reopen()?;
        peer.attach_and_map(buffer, Mode::Pinned)?;
        Ok(peer)
    };
    let (first, second) = (object(0)?, object(1)?);
    check_eq!(
        policy.word("limit")?,
        Some((2 * SIZE - 1).to_string()),
        "the limit"
    );

    let one = pinned(&first.1)?;
    policy.held(SIZE)?;
    // A second pin of an object pins the same memory.
    let two = pinned(&first.1)?;
    policy.held(SIZE)?;
    let late = fixture.peer.reopen()?;
    late.attach(&second.1, Mode::Pinned)?;
    let [moves, pins] = [Counter::Moves, Counter::VramPinned];
    let [moves, pins] = [fixture.drm.counter(moves)?, fixture.drm.counter(pins)?];
    expect_errno("a pin over the limit", late.pin(), libc::EDQUOT)?;
    check_eq!(
        fixture.drm.counter(Counter::VramPinned)?,
        pins,
        "bytes pinned"
    );
    check_eq!(fixture.drm.counter(Counter::Moves)?, moves, "moves");
    policy.held(SIZE)?;
    check_eq!(
        difference(&before, &policy.0.counters()?),
        [("pin-refused".to_string(), "not-revocable".to_string(), 1)],
        "counters"
    );
    // The limit does not apply to importers that can be revoked.
    let revocable = fixture.peer.reopen()?;
    revocable.attach_and_map(&second.1, Mode::Revocable)?;
    peer_reads(&revocable, a.derive(1), &[0, LAST])?;
    policy.held(SIZE)?;
    drop(one);
    policy.held(SIZE)?;
    peer_reads(&two, a.derive(0), &[0, LAST])?;
    drop(two);
    policy.held(0)?;
    late.pin()?;
    late.map()?;
    placed(&second.0, uapi::PLACEMENT_VRAM)?;
    peer_reads(&late, a.derive(1), &[0, LAST])?;
    policy.held(SIZE)?;
    drop(late);
    policy.held(0)?;
    for bad in ["-1", "some", "refuse ", "1 2"] {
        expect_errno(
            &format!("writing {bad:?}"),
            policy.0.write("unrevocable", bad),
            libc::EINVAL,
        )?;
    }
    Ok(())
}

/// The objects that one client has exported may be pinned up to a limit, whichever process pins.
/// Other clients have their own limits.
pub fn client<G: Gpu>() -> Outcome {
    let fixture = G::with_route()?;
    let debugfs = fixture.debugfs()?;
    let before = debugfs.read("client_pin_limit")?;
    let run = || -> Outcome {
        debugfs.write("client_pin_limit", &SIZE.to_string())?;
        let (one, other) = (fixture.drm.another()?, fixture.drm.another()?);
        let object = |drm| -> Result<_, Stop> {
            let object = Drm::create_flags(drm, SIZE, EITHER)?;
            let buffer = object.export()?;
            Ok((object, buffer))
        };
        let (first, second, foreign) = (object(&one)?, object(&one)?, object(&other)?);
        let attached = |buffer| -> Result<Peer, Stop> {
            let peer = fixture.peer.reopen()?;
            peer.attach(buffer, Mode::Pinned)?;
            Ok(peer)
        };
        let (a, b, c) = (
            attached(&first.1)?,
            attached(&second.1)?,
            attached(&foreign.1)?,
        );
        let pinned = || fixture.drm.counter(Counter::VramPinned);
        a.pin()?;
        debugfs.held(SIZE)?;
        expect_errno("a pin over the limit", b.pin(), libc::EDQUOT)?;
        check_eq!(pinned()?, SIZE, "bytes pinned");
        debugfs.held(SIZE)?;
        c.pin()?;
        check_eq!(pinned()?, 2 * SIZE, "bytes pinned");
        a.unpin()?;
        b.pin()?;
        placed(&second.0, uapi::PLACEMENT_VRAM)?;
        check_eq!(pinned()?, 2 * SIZE, "bytes pinned");
        debugfs.held(2 * SIZE)?;
        drop((a, b, c));
        check_eq!(pinned()?, 0, "bytes pinned");
        debugfs.held(0)?;
        Ok(())
    };
    let outcome = run();
    debugfs.write("client_pin_limit", before.trim())?;
    outcome
}

/// The parameters of the module are the limits and the policy at first, in shares of what the CPU
/// and peers see of VRAM.
pub fn parameter<G: Gpu>() -> Outcome {
    for (percent, policy) in [("0", "refuse"), ("25", "limit")] {
        let parameters = [
            "pin_percent=25",
            "client_pin_percent=10",
            &format!("unrevocable_percent={percent}"),
        ];
        with_parameters_of(G::MODULE, &parameters, || {
            let fixture = G::fixture()?;
            let debugfs = fixture.debugfs()?;
            let seen = fixture.drm.getparam(uapi::PARAM_VRAM_CPU_VISIBLE_SIZE)?;
            for (file, limit) in [("pin_limit", seen / 4), ("client_pin_limit", seen / 10)] {
                check_eq!(debugfs.read(file)?, format!("{limit}\n"), "{file}");
            }
            let text = debugfs.read("unrevocable")?;
            let words = words(&text);
            check_eq!(words.get("policy").copied(), Some(policy), "the policy");
            check_eq!(
                words.get("limit").map(|limit| limit.to_string()),
                (policy == "limit").then(|| (seen / 4).to_string()),
                "the limit"
            );
            check_eq!(words.get("held").copied(), Some("0"), "bytes held");
            Ok(())
        })?;
    }
    works_on(&G::fixture()?)
}

/// With the default policy an unbind waits for importers that cannot be revoked.
pub fn accept<G: Gpu>() -> Outcome {
    let fixture = G::with_route()?;
    let policy = fixture.debugfs()?;
    let text = policy.read("unrevocable")?;
    check_eq!(
        words(&text).get("policy").copied(),
        Some("accept"),
        "the policy"
    );
    let object = fixture.drm.create_flags(SIZE, EITHER)?;
    let buffer = object.export()?;
    fixture.peer.attach_and_map(&buffer, Mode::Pinned)?;
    fixture.check_only(&object, Mode::Pinned, true, true)?;
    let mut unbinding = Unbinding::start(&fixture.gpu)?;
    std::thread::sleep(Duration::from_millis(300));
    check!(
        unbinding.child.ended().is_none(),
        "the unbind did not wait for a mapping of VRAM"
    );
    fixture.peer.detach()?;
    unbinding.finish(LIMIT)?.rebind()?;
    works_on(&G::fixture()?)
}

/// Many importers map the same pages. dma-debug takes more than seven mappings of one for a leak,
/// unless the exporter says that they share it.
pub fn shared<G: Gpu>() -> Outcome {
    const IMPORTERS: usize = 10;
    let fixture = G::fixture()?;
    let object = fixture.drm.create_flags(SIZE, uapi::CREATE_SYSTEM)?;
    let (pattern, _) = patterns();
    object.map()?.fill(pattern);
    let buffer = object.export()?;
    let mut peers = Vec::new();
    for _ in 0..IMPORTERS {
        let peer = Peer::open()?;
        peer.attach_and_map(&buffer, Mode::Static)?;
        peers.push(peer);
    }
    let list = object.attachments()?;
    let is_mapped = |entry: &&Attachment| entry.flags & uapi::ATTACHMENT_MAPPED != 0;
    let mapped = list.iter().filter(is_mapped).count();
    check_eq!(mapped, IMPORTERS, "mappings: {list:?}");
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    for peer in &peers {
        peer_reads(peer, pattern, &[0, LAST])?;
    }
    Ok(())
}

/// Clients get no more objects that never leave VRAM than they may pin, each of them and all
/// together, unless they may lock memory.
pub fn stay<G: Gpu>() -> Outcome {
    let fixture = G::with_route()?;
    let (drm, peer, debugfs) = (&fixture.drm, &fixture.peer, fixture.debugfs()?);
    let limit = |name: &str| -> Result<u64, Stop> {
        let text = debugfs.read(name)?;
        text.trim()
            .parse()
            .map_err(|_| Stop::fail(format_args!("{name} is {text:?}")))
    };
    // The charge of an object ends when its VRAM is free, which is after the work on it.
    let await_pinned = |want: u64| -> Outcome {
        let pinned = || drm.counter(Counter::VramPinned);
        misc::poll(LIMIT, || (pinned().ok()? == want).then_some(()));
        check_eq!(pinned()?, want, "VRAM that is charged");
        Ok(())
    };
    let (all, own) = (limit("pin_limit")?, limit("client_pin_limit")?);
    let piece = own / 4;
    await_pinned(0)?;
    let clients = [drm.another()?, drm.another()?, drm.another()?];

    let mut kept = without_memory_lock(|| {
        let mut kept: Vec<Gem<'_>> = Vec::new();
        for client in &clients {
            for _ in 0..4 {
                match client.create(piece) {
                    Ok(object) => kept.push(object),
                    Err(error) if error.errno == libc::EDQUOT => break,
                    Err(error) => return Err(error.into()),
                }
            }
            expect_errno("more than a share", client.create(piece), libc::EDQUOT)?;
        }
        Ok(kept)
    })?;
    check_eq!(kept.len() as u64, all / piece, "objects of all clients");
    await_pinned(all / piece * piece)?;
    for object in &kept {
        placed(object, uapi::PLACEMENT_VRAM)?;
    }

    // The first handle decides: one more, of any client, changes nothing, nor does a pin. The end
    // of the object does.
    let shared = kept.pop().ok_or_else(|| Stop::fail("no object"))?;
    let buffer = shared.export()?;
    let other = clients[0].import(&buffer)?;
    peer.attach_and_map(&buffer, Mode::Pinned)?;
    await_pinned(all / piece * piece)?;
    peer.detach()?;
    drop(shared);
    await_pinned(all / piece * piece)?;
    drop((other, buffer));
    await_pinned((all / piece - 1) * piece)?;

    // Objects that may leave, and clients that may lock memory, are not charged.
    let either = without_memory_lock(|| Ok(clients[0].create_flags(all, EITHER)?))?;
    let locked = drm.create(piece)?;
    placed(&locked, uapi::PLACEMENT_VRAM)?;
    let buffer = locked.export()?;
    let other = without_memory_lock(|| Ok(clients[0].import(&buffer)?))?;
    await_pinned((all / piece - 1) * piece)?;
    drop((either, locked, other, kept));
    await_pinned(0)
}
