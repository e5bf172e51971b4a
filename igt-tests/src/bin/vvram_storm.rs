// SPDX-License-Identifier: GPL-2.0

//! Eviction under load: VRAM oversubscribed four times, by eight clients, under two peers.

use std::time::Duration;

use vvram_tests::crowd::{client, four_times, Usage, EITHER, PIECE};
use vvram_tests::drm::Drm;
use vvram_tests::peer::Mode;
use vvram_tests::proc::Child;
use vvram_tests::scene::{patterns, peer_reads, peer_writes, Expect, Scene};
use vvram_tests::{check, igt_main, Outcome};

const CLIENTS: u64 = 8;
const MOVES: u64 = 10_000;

fn eviction() -> Outcome {
    let drm = Drm::open()?;
    let usage = Usage::now(&drm)?;
    let count = four_times(&drm)? / CLIENTS;
    let (seed, _) = patterns();
    let mut children = Vec::new();
    for index in 0..CLIENTS {
        let seed = seed.word(index);
        children.push(Child::spawn(move || {
            client(&Drm::open()?, count, seed, |round| {
                Ok(round < MOVES / CLIENTS)
            })
        })?);
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

    let moved = usage.moved()?;
    println!("{moved} moves of {PIECE} bytes, {transfers} verified transfers of each peer");
    check!(moved >= MOVES, "{moved} moves are too few");
    usage.check_back()
}

igt_main! {
    "eviction", "10,000 moves, every byte verified, nothing left", eviction;
}
