// SPDX-License-Identifier: GPL-2.0

//! Eviction under load: VRAM oversubscribed by eight clients, under two peers.

use std::time::Duration;

use vvram_tests::clients::{client, too_many, Usage, PIECE};
use vvram_tests::drm::{Drm, EITHER};
use vvram_tests::fixture::{patterns, peer_reads, peer_writes, Expect, Fixture};
use vvram_tests::misc;
use vvram_tests::peer::Mode;
use vvram_tests::proc::{Child, Steps};
use vvram_tests::{check, igt_main, uapi, Outcome};

const CLIENTS: u64 = 8;
/// The least number of transfers of each peer.
const TRANSFERS: u64 = 4;
/// How many objects are replaced by new ones, by all clients together. At least every other one of
/// them makes another object move.
const ROUNDS: u64 = 600;

fn eviction() -> Outcome {
    let rounds = ROUNDS * misc::soak();
    let drm = Drm::open()?;
    let usage = Usage::now(&drm)?;
    let count = too_many(drm.getparam(uapi::PARAM_VRAM_SIZE)?) / CLIENTS;
    let (seed, _) = patterns();
    // The clients go on until the peers have done their transfers.
    let enough = Steps::new()?;
    let mut children = Vec::new();
    for index in 0..CLIENTS {
        let seed = seed.word(index);
        children.push(Child::spawn(|| {
            client(&Drm::open()?, count, seed, |round| {
                Ok(round < rounds / CLIENTS || !enough.is_done()?)
            })
        })?);
    }

    let mut transfers = 0;
    if Expect::get()? != Expect::Refused {
        let fixture = Fixture::open()?;
        let mut peers = Vec::new();
        for mode in [Mode::Dynamic, Mode::Pinned] {
            let object = fixture.drm.create_flags(PIECE, EITHER)?;
            let buffer = object.export()?;
            let peer = fixture.peer.reopen()?;
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
            if transfers == TRANSFERS {
                enough.done()?;
            }
        }
    } else {
        enough.done()?;
    }
    for (index, child) in children.iter_mut().enumerate() {
        child.join(&format!("client {index}"), Duration::from_secs(600))?;
    }
    drop(children);

    let moved = usage.moved()?;
    println!("{moved} moves of {PIECE} bytes, {transfers} verified transfers of each peer");
    check!(moved >= rounds / 2, "{moved} moves are too few");
    usage.check_back()
}

igt_main! {
    "eviction", "1,200 objects replaced in full VRAM, every byte verified, nothing left", eviction;
}
