// SPDX-License-Identifier: GPL-2.0

//! The policy over a driver that is split in two, whose objects stay in VRAM without TTM.

use std::time::Duration;

use vvram_tests::auxiliary::{self, Card, Module, Split};
use vvram_tests::debugfs::difference;
use vvram_tests::drm::{DmaBuf, Drm};
use vvram_tests::fixture::{leads_to, patterns, peer_reads, peer_writes, works, Expect};
use vvram_tests::foreign::{self, Kind};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::policy::{Gets, Object, Order, Rules, IMPORTERS};
use vvram_tests::rebind;
use vvram_tests::uapi::{self, AvramGemCreate};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop};

const PAGES: usize = 3;
const SIZE: u64 = (PAGES * PAGE) as u64;
const MODES: [Mode; 3] = [Mode::Dynamic, Mode::Revocable, Mode::Pinned];

/// Returns the offsets in the BAR of the pages that have a pattern.
fn located(bar: &Bar, pattern: Pattern) -> Result<Vec<u64>, Stop> {
    (0..PAGES)
        .map(|page| {
            let word = pattern.word((page * PAGE / 8) as u64);
            let found: Vec<_> = (0..bar.len() / PAGE64)
                .filter(|at| bar.word(at * PAGE64) == word)
                .collect();
            check_eq!(found.len(), 1, "places of page {page} in the BAR");
            Ok(found[0])
        })
        .collect()
}

/// Checks that a peer, which has a buffer mapped, reaches VRAM: by its scatter table, and by the
/// bytes.
fn reaches_vram(peer: &Peer, bar: &Bar, round: u64) -> Outcome {
    let pattern = patterns().0.derive(round);
    peer_writes(peer, pattern, &[2, 0, 1])?;
    leads_to(peer, bar, &located(bar, pattern)?)?;
    peer_reads(peer, pattern, &[0, 1, 2])
}

/// Returns the importers of the only object, as debugfs lists them.
fn importers(card: &Card) -> Result<Vec<(String, String)>, Stop> {
    let buffers = card.debugfs()?.buffers()?;
    check_eq!(buffers.len(), 1, "objects in {buffers:?}");
    check!(
        buffers[0].placement == "vram" && buffers[0].domain == "vram" && buffers[0].vram_or_fail,
        "{:?} is not one that stays in VRAM",
        buffers[0]
    );
    check_eq!(
        (buffers[0].pid, buffers[0].visible),
        (std::process::id(), buffers[0].size),
        "process that exported it, and bytes that the CPU sees"
    );
    check!(buffers[0].client > 0, "no client exported {buffers:?}");
    Ok(buffers[0]
        .importers
        .iter()
        .map(|importer| (importer.path.clone(), importer.reason.clone()))
        .collect())
}

fn pair(path: &str, reason: &str) -> (String, String) {
    (path.to_string(), reason.to_string())
}

/// Each class of importer reaches VRAM as the route allows, or is refused with the reason.
fn matrix() -> Outcome {
    let module = Module::load()?;
    let gpu = PciDevice::vvram()?;
    let split = Split::new(&module, &gpu)?;
    let card = Card::open(split.gpu())?;
    let bar = Bar::open(&gpu)?;
    let buffer = card.export(card.create(SIZE)?)?;
    let expect = Expect::get()?;
    let counters = card.debugfs()?.counters()?;
    for (round, mode) in (0..).zip(MODES) {
        let peer = Peer::open()?;
        let attached = peer.attach(&buffer, mode);
        match expect {
            Expect::Refused => {
                expect_errno("attach without a route", attached, libc::EOPNOTSUPP)?;
                check!(
                    importers(&card)?.contains(&pair("refused", "no-route")),
                    "the refusal of {mode:?} is not listed"
                );
            }
            Expect::Bus | Expect::HostBridge => {
                attached?;
                peer.pin_and_map(mode)?;
                reaches_vram(&peer, &bar, round)?;
                let path = if expect == Expect::Bus {
                    "bus"
                } else {
                    "host-bridge"
                };
                check_eq!(importers(&card)?, [pair(path, "none")], "importers");
            }
        }
    }
    // An importer that does not take peer-to-peer memory is refused, whatever its route is.
    for mode in [Mode::NoP2p, Mode::Static] {
        expect_errno(
            "attach without peer-to-peer",
            Peer::open()?.attach(&buffer, mode),
            libc::EOPNOTSUPP,
        )?;
    }
    check_eq!(
        importers(&card)?.pop(),
        Some(pair("refused", "no-opt-in")),
        "the last refusal"
    );
    let refused = |reason: &str, count| ("attach-refused".to_string(), reason.to_string(), count);
    let mut want = vec![refused("no-opt-in", 2)];
    if expect == Expect::Refused {
        want.push(refused("no-route", MODES.len() as u64));
    }
    check_eq!(
        difference(&counters, &card.debugfs()?.counters()?),
        want,
        "what was counted"
    );
    drop((buffer, card));
    split.undo()?;
    works()
}

/// Attaches one importer of a pair, and compares PEER_QUERY, the result of the attach, and the
/// rules.
#[track_caller]
fn attached(
    card: &Card,
    (handle, buffer): (u32, &DmaBuf),
    mode: Mode,
    want: Gets,
) -> Result<Option<Peer>, Stop> {
    let answer = card.query(handle, mode.attachment_flags(), &PciDevice::edu()?)?;
    let peer = Peer::open()?;
    let result = peer.attach(buffer, mode);
    let list = card.attachments(handle)?;
    // Attachments come first, the oldest one first, then refusals.
    let entry = match &result {
        Ok(_) => list.iter().rfind(|entry| entry.path != uapi::PATH_REFUSED),
        Err(_) => list.last(),
    };
    let Some(entry) = entry else {
        fail!("nothing is listed after {result:?} in mode {mode:?}");
    };
    check_eq!(
        ((answer.path, answer.reason), (entry.path, entry.reason)),
        ((want.path, want.reason), (want.path, want.reason)),
        "path and reason in mode {mode:?}, as asked for before and as attached"
    );
    check_eq!(answer.distance, entry.distance, "distance in mode {mode:?}");
    if want.path == uapi::PATH_REFUSED {
        expect_errno("a refused attach", result, libc::EOPNOTSUPP)?;
        return Ok(None);
    }
    result?;
    Ok(Some(peer))
}

/// Each pair of classes, in both orders: one importer does not change what the other one gets.
fn pairs() -> Outcome {
    let module = Module::load()?;
    let gpu = PciDevice::vvram()?;
    let split = Split::new(&module, &gpu)?;
    let card = Card::open(split.gpu())?;
    let bar = Bar::open(&gpu)?;
    let rules = Rules {
        route: match Expect::get()? {
            Expect::Refused => None,
            route => Some(route.path()),
        },
    };
    let (seed, _) = patterns();
    let mut round = 0;
    for first in IMPORTERS {
        for second in IMPORTERS {
            for order in [Order::Early, Order::Late] {
                let handle = card.create(SIZE)?;
                let buffer = card.export(handle)?;
                let want = rules.both(Object::Vram, order, first, second);
                let Some(other) = want.second else {
                    fail!("the rules say nothing of a second importer");
                };
                let one = attached(&card, (handle, &buffer), first, want.first)?;
                if let (Some(peer), Order::Late) = (&one, order) {
                    peer.pin_and_map(first)?;
                }
                let two = attached(&card, (handle, &buffer), second, other)?;
                if let (Some(peer), Order::Early) = (&one, order) {
                    peer.pin_and_map(first)?;
                }
                if let Some(peer) = &two {
                    peer.pin_and_map(second)?;
                }
                let peers: Vec<_> = one.iter().chain(&two).collect();
                if let [writer, reader] = peers[..] {
                    round += 1;
                    let pattern = seed.derive(round);
                    peer_writes(writer, pattern, &[0, 1, 2])?;
                    peer_reads(reader, pattern, &[1])?;
                    let places = located(&bar, pattern)?;
                    for peer in [writer, reader] {
                        leads_to(peer, &bar, &places)?;
                        check_eq!(
                            peer.status()?.invalidations,
                            0,
                            "invalidations in {first:?} and {second:?}, {order:?}"
                        );
                    }
                }
                drop((one, two, buffer));
                card.close(handle)?;
            }
        }
    }
    check_eq!(card.debugfs()?.buffers()?, [], "objects that are left");
    drop(card);
    split.undo()?;
    works()
}

/// New objects read as zeroes, and VRAM of closed objects is allocated again.
fn reused() -> Outcome {
    let module = Module::load()?;
    Expect::get()?.need_route()?;
    let gpu = PciDevice::vvram()?;
    let split = Split::new(&module, &gpu)?;
    let card = Card::open(split.gpu())?;
    let all = Bar::open(&gpu)?.len();

    expect_errno("too much", card.create(all + 1), libc::ENOSPC)?;
    for round in 0..2 {
        let rest = card.create(all - SIZE)?;
        let mut one = AvramGemCreate {
            size: SIZE - 1,
            ..Default::default()
        };
        card.create_raw(&mut one)?;
        check_eq!(one.size, SIZE, "the size is rounded up");
        expect_errno("one page more", card.create(1), libc::ENOSPC)?;

        let buffer = card.export(one.handle)?;
        let peer = Peer::open()?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        let mut data = vec![0xa5; SIZE as usize];
        for (page, bytes) in data.chunks_mut(PAGE).enumerate() {
            peer.read((page * PAGE) as u64, bytes)?;
        }
        check!(
            data.iter().all(|byte| *byte == 0),
            "VRAM is not zero in round {round}"
        );
        peer_writes(&peer, patterns().0, &[0, 1, 2])?;

        // The dma-buf keeps the object, and importers keep the dma-buf.
        card.close(one.handle)?;
        drop(buffer);
        expect_errno("what a peer has", card.create(SIZE), libc::ENOSPC)?;
        drop(peer);
        card.close(rest)?;
        check_eq!(card.debugfs()?.buffers()?, [], "objects in round {round}");
    }
    Ok(())
}

/// An import of an own dma-buf gives the object itself; buffers of other exporters are refused.
fn imported() -> Outcome {
    let module = Module::load()?;
    let gpu = PciDevice::vvram()?;
    let split = Split::new(&module, &gpu)?;
    let (card, other) = (Card::open(split.gpu())?, Card::open(split.gpu())?);
    let handle = card.create(SIZE)?;
    let buffer = card.export(handle)?;
    check_eq!(
        card.import(&buffer)?,
        handle,
        "the handle of the own object"
    );
    let again = other.import(&buffer)?;
    check_eq!(
        other.export(again)?.inode()?,
        buffer.inode()?,
        "the dma-buf of both"
    );
    check_eq!(card.debugfs()?.buffers()?.len(), 1, "objects");
    check_eq!(
        other.flush(again)?,
        uapi::ORDER_FLUSH,
        "the order of writes"
    );
    expect_errno("a flush of nothing", card.flush(77), libc::ENOENT)?;
    let foreign = foreign::make(Kind::Heap, PAGES)?;
    expect_errno(
        "import of a foreign buffer",
        card.import(&foreign.buffer),
        libc::EINVAL,
    )
}

/// A buffer of a card, and an importer that has mapped it.
struct Mapped {
    peer: Peer,
    buffer: DmaBuf,
    card: Card,
    invalidations: u64,
}

impl Mapped {
    fn new(gpu: &PciDevice, bar: &Bar, round: u64) -> Result<Self, Stop> {
        let card = Card::open(gpu)?;
        let buffer = card.export(card.create(SIZE)?)?;
        let peer = Peer::open()?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        reaches_vram(&peer, bar, round)?;
        Ok(Self {
            invalidations: peer.status()?.invalidations,
            peer,
            buffer,
            card,
        })
    }

    /// Checks that the importer was notified, and that nothing can be done with either any more.
    #[track_caller]
    fn is_gone(&self, why: &str) -> Outcome {
        let status = self.peer.status()?;
        check!(
            status.invalidations > self.invalidations,
            "the importer was not notified: {status:?}"
        );
        expect_errno(&format!("map after {why}"), self.peer.map(), libc::ENODEV)?;
        let created = self.card.create(SIZE);
        expect_errno(&format!("create after {why}"), created, libc::ENODEV)
    }
}

/// When the core driver is unbound, importers are revoked, and their mappings are invalid.
fn unbound() -> Outcome {
    let module = Module::load()?;
    Expect::get()?.need_route()?;
    let gpu = PciDevice::vvram()?;
    let bar = Bar::open(&gpu)?;
    let mut left = Vec::new();
    for round in 0..2 {
        let split = Split::new(&module, &gpu)?;
        let mapped = Mapped::new(split.gpu(), &bar, round)?;

        split.undo()?;
        mapped.is_gone("the unbind")?;
        expect_errno(
            "attach after the unbind",
            Peer::open()?.attach(&mapped.buffer, Mode::Dynamic),
            libc::ENODEV,
        )?;
        // Another driver is bound to the device while the old objects still exist.
        left.push(mapped);
        check!(Drm::open()?.vram_free()? > 0, "vvram has no VRAM");
    }
    drop(left);
    works()
}

/// A reset of the device takes everything back, and the DRM driver comes back after it.
fn reset() -> Outcome {
    let module = Module::load()?;
    Expect::get()?.need_route()?;
    let gpu = PciDevice::vvram()?;
    gpu.need_reset()?;
    let bar = Bar::open(&gpu)?;
    let split = Split::new(&module, &gpu)?;
    let mapped = Mapped::new(split.gpu(), &bar, 0)?;

    gpu.reset()?;
    mapped.is_gone("the reset")?;
    let fresh = Mapped::new(split.gpu(), &bar, 1)?;
    drop((mapped, fresh));
    split.undo()?;
    works()
}

/// When only the DRM driver is unbound, importers are revoked; the core driver keeps the VRAM of
/// objects that still exist, and the DRM driver can be bound again.
fn card_unbound() -> Outcome {
    let module = Module::load()?;
    Expect::get()?.need_route()?;
    let gpu = PciDevice::vvram()?;
    let bar = Bar::open(&gpu)?;
    let split = Split::new(&module, &gpu)?;
    let mapped = Mapped::new(split.gpu(), &bar, 0)?;

    auxiliary::set_bound(mapped.card.device(), false)?;
    mapped.is_gone("the unbind")?;
    auxiliary::set_bound(mapped.card.device(), true)?;

    let again = Card::open(split.gpu())?;
    let all = bar.len();
    expect_errno("what the old object has", again.create(all), libc::ENOSPC)?;
    let handle = again.create(SIZE)?;
    let other = again.export(handle)?;
    mapped.peer.detach()?;
    mapped.peer.attach_and_map(&other, Mode::Dynamic)?;
    reaches_vram(&mapped.peer, &bar, 1)?;
    drop((mapped, other));
    again.close(handle)?;
    let handle = again.create(all)?;
    again.close(handle)?;
    drop(again);
    split.undo()?;
    works()
}

/// The module can be unloaded once everything is closed.
fn unloaded() -> Outcome {
    let module = Module::load()?;
    let gpu = PciDevice::vvram()?;
    let split = Split::new(&module, &gpu)?;
    let card = Card::open(split.gpu())?;
    let buffer = card.export(card.create(SIZE)?)?;
    split.undo()?;
    expect_errno(
        "unload with an open file",
        rebind::delete_module(auxiliary::DRIVER),
        libc::EWOULDBLOCK,
    )?;
    drop((buffer, card));
    let gone = misc::poll(Duration::from_secs(5), || {
        rebind::delete_module(auxiliary::DRIVER).ok()
    });
    check!(
        gone.is_some(),
        "the module has {:?} users",
        rebind::module_users(auxiliary::DRIVER)
    );
    works()
}

igt_main! {
    "matrix", "each class of importer gets what the route allows", matrix;
    "pairs", "one importer does not change what another one gets", pairs;
    "reused", "VRAM is zero when it is given out, and given out again", reused;
    "imported", "an own object is recognised, others are not taken", imported;
    "unloaded", "nothing keeps the module when all is closed", unloaded;
    "card-unbound", "the DRM driver can go alone, and come back", card_unbound;
    "unbound", "an unbind of the core takes everything back", unbound;
    "reset", "a reset of the device takes everything back", reset;
}
