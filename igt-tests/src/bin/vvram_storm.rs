// SPDX-License-Identifier: GPL-2.0

//! Eviction under load: VRAM oversubscribed four times, by eight clients, under two peers.

use std::time::Duration;

use vvram_tests::drm::{Drm, Gem};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc::{self, meminfo, Lcg};
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::Mode;
use vvram_tests::proc::Child;
use vvram_tests::scene::{patterns, peer_reads, peer_writes, Expect, Scene};
use vvram_tests::{check, check_eq, fail, igt_main, uapi, Outcome, Stop};

const CLIENTS: u64 = 8;
const PIECE: u64 = 4 * PAGE as u64;
const EITHER: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM;
const MOVES: u64 = 10_000;

/// An object that is mapped, and what is in it.
type Filled<'a> = (Gem<'a>, Map, Pattern);

fn filled(drm: &Drm, pattern: Pattern) -> Result<Filled<'_>, Stop> {
    let object = drm.create_flags(PIECE, EITHER)?;
    let map = object.map()?;
    if let Err(mismatch) = map.verify_value(0) {
        fail!("a new object is not zero: {mismatch}");
    }
    map.fill(pattern);
    Ok((object, map, pattern))
}

/// Looks at its objects in no order, and replaces each of them: a new one evicts others.
fn client(count: u64, seed: u64, rounds: u64) -> Outcome {
    let drm = Drm::open()?;
    let mut random = Lcg::new(seed);
    let mut objects = Vec::new();
    for index in 0..count {
        objects.push(filled(&drm, Pattern::new(seed ^ index))?);
    }
    for round in 0..rounds {
        let index = random.below(count) as usize;
        let (object, map, pattern) = &objects[index];
        if let Err(mismatch) = map.verify(*pattern) {
            fail!(
                "round {round}, object {index}, {:?}: {mismatch}",
                object.info()?
            );
        }
        objects[index] = filled(&drm, Pattern::new(random.word()))?;
    }
    for (index, (object, map, pattern)) in objects.iter().enumerate() {
        if let Err(mismatch) = map.verify(*pattern) {
            fail!(
                "at the end, object {index}, {:?}: {mismatch}",
                object.info()?
            );
        }
    }
    Ok(())
}

fn eviction() -> Outcome {
    let drm = Drm::open()?;
    let size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let free = drm.vram_free()?;
    let pages = meminfo("GPUActive");
    let moves = drm.getparam(uapi::PARAM_MOVES)?;
    let count = 4 * size / PIECE / CLIENTS;
    let (seed, _) = patterns();
    let mut children = Vec::new();
    for index in 0..CLIENTS {
        let seed = seed.word(index);
        children.push(Child::spawn(move || client(count, seed, MOVES / CLIENTS))?);
    }

    let mut transfers = 0;
    if Expect::get()? != Expect::Refused {
        let scene = Scene::open()?;
        let mut peers = Vec::new();
        for mode in [Mode::Dynamic, Mode::Pinned] {
            let object = scene.drm.create_flags(PIECE, EITHER)?;
            let buffer = object.export()?;
            let peer = scene.peer.reopen()?;
            peer.attach(&buffer, mode)?;
            if mode.needs_pin() {
                peer.pin()?;
            }
            peers.push((object, peer));
        }
        while children.iter_mut().any(|child| child.ended().is_none()) {
            for (index, (_, peer)) in peers.iter().enumerate() {
                let pattern = seed.derive(2 * transfers + index as u64);
                let page = (transfers % 4) as usize;
                peer_writes(peer, pattern, &[page])?;
                peer_reads(peer, pattern, &[page])?;
            }
            transfers += 1;
        }
        check!(
            transfers >= 4,
            "the peers were there for {transfers} transfers only"
        );
    }
    for (index, child) in children.iter_mut().enumerate() {
        child.join(&format!("client {index}"), Duration::from_secs(600))?;
    }
    drop(children);

    let moved = drm.getparam(uapi::PARAM_MOVES)? - moves;
    println!("{moved} moves of {PIECE} bytes, {transfers} verified transfers of each peer");
    check!(moved >= MOVES, "{moved} moves are too few");
    drm.await_vram_free(free)?;
    check_eq!(
        drm.getparam(uapi::PARAM_VRAM_PINNED)?,
        0,
        "pinned VRAM at the end"
    );
    // The kernel adds up what each processor counts once a second.
    let back = misc::poll(Duration::from_secs(5), || {
        (meminfo("GPUActive") == pages).then_some(())
    });
    check!(
        back.is_some(),
        "system memory of objects: {pages:?} kB before, {:?} kB after",
        meminfo("GPUActive")
    );
    Ok(())
}

igt_main! {
    "eviction", "10,000 moves, every byte verified, nothing left", eviction;
}
