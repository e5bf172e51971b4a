// SPDX-License-Identifier: GPL-2.0

//! Every operation of avram, the driver that is split in two, with each of its allocations and
//! copies failing in turn.

use vvram_tests::auxiliary::{Card, Module, Split, DRIVER};
use vvram_tests::drm::DmaBuf;
use vvram_tests::faults::Faults;
use vvram_tests::fixture::{patterns, peer_reads, peer_writes, works, Expect};
use vvram_tests::map::PAGE;
use vvram_tests::pci::{Bar, PciDevice};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::sweeps::{self, nothing, Once, COPY, NONE, USUAL};
use vvram_tests::{check_eq, igt_main, Outcome, Stop};

const SIZE: u64 = 4 * PAGE as u64;

/// Runs `body` while avram is bound to the GPU, then checks that all VRAM is free, and binds vvram
/// again.
fn split(body: impl FnOnce(&PciDevice) -> Outcome) -> Outcome {
    let module = Module::load()?;
    let gpu = PciDevice::vvram()?;
    let size = Bar::open(&gpu)?.len();
    let split = Split::new(&module, &gpu)?;
    body(split.gpu())?;
    let card = Card::open(split.gpu())?;
    check_eq!(card.debugfs()?.buffers()?, [], "objects that are left");
    let all = card.create(size)?;
    card.close(all)?;
    drop(card);
    split.undo()?;
    works()
}

/// A file of the GPU, and the dma-buf of an object of some pages in it.
struct Exported {
    handle: u32,
    card: Card,
    buffer: DmaBuf,
}

impl Exported {
    fn new(gpu: &PciDevice) -> Result<Self, Stop> {
        let card = Card::open(gpu)?;
        let handle = card.create(SIZE)?;
        let buffer = card.export(handle)?;
        Ok(Self {
            handle,
            card,
            buffer,
        })
    }
}

/// Opening the device, and the ioctls.
fn ioctls() -> Outcome {
    let edu = PciDevice::edu()?;
    split(|gpu| {
        let mut faults = Faults::new()?;
        let kept = Card::open(gpu)?;
        faults.sweep(
            "open, avram",
            &USUAL,
            || Ok(None),
            |card: &mut Option<Card>| {
                *card = Some(kept.reopen()?);
                Ok(())
            },
            nothing,
        )?;
        faults.sweep(
            "GEM_CREATE, avram",
            &USUAL,
            || Card::open(gpu),
            |card| card.create(SIZE).map(drop),
            nothing,
        )?;
        faults.sweep(
            "PRIME_HANDLE_TO_FD, avram",
            &USUAL,
            || {
                let card = Card::open(gpu)?;
                Ok((card.create(SIZE)?, card))
            },
            |(handle, card)| card.export(*handle).map(drop),
            nothing,
        )?;
        faults.sweep(
            "PRIME_FD_TO_HANDLE, avram",
            &USUAL,
            || Ok((Exported::new(gpu)?, Card::open(gpu)?)),
            |(it, card)| card.import(&it.buffer).map(drop),
            nothing,
        )?;
        faults.sweep(
            "PEER_ATTACHMENTS, avram",
            &USUAL,
            || {
                let it = Exported::new(gpu)?;
                let peer = Peer::open()?;
                // An attachment and a refusal are both listed.
                let _ = peer.attach(&it.buffer, Mode::Dynamic);
                Ok((it, peer))
            },
            |(it, _)| it.card.attachments(it.handle).map(drop),
            nothing,
        )?;
        faults.sweep(
            "PEER_QUERY, avram",
            &COPY,
            || Exported::new(gpu),
            |it| {
                let flags = Mode::Dynamic.attachment_flags();
                it.card.query(it.handle, flags, &edu).map(drop)
            },
            nothing,
        )
    })
}

/// The calls of importers, for each class that reaches VRAM.
fn importers() -> Outcome {
    Expect::get()?.need_route()?;
    let (pattern, _) = patterns();
    split(|gpu| {
        let mut faults = Faults::new()?;
        for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
            let open = || Ok((Exported::new(gpu)?, Peer::open()?));
            let attached = || -> Result<_, Stop> {
                let it = open()?;
                it.1.attach(&it.0.buffer, mode)?;
                Ok(it)
            };
            let mapped = || -> Result<_, Stop> {
                let it = attached()?;
                it.1.pin_and_map(mode)?;
                peer_writes(&it.1, pattern, &[3])?;
                Ok((it, Once::default()))
            };
            faults.sweep(
                &format!("attach, avram, {mode:?}"),
                &USUAL,
                open,
                |(it, peer)| peer.attach(&it.buffer, mode).map(drop),
                |(_, peer)| peer.detach(),
            )?;
            faults.sweep(
                &format!("map, avram, {mode:?}"),
                &USUAL,
                || {
                    let it = attached()?;
                    if mode.needs_pin() {
                        it.1.pin()?;
                    }
                    Ok(it)
                },
                |(_, peer)| peer.map(),
                nothing,
            )?;
            faults.sweep(
                &format!("unmap, avram, {mode:?}"),
                &NONE,
                mapped,
                |((_, peer), once)| once.run(|| peer.unmap()),
                nothing,
            )?;
            let ((_it, peer), _) = mapped()?;
            peer_reads(&peer, pattern, &[3])?;
        }
        Ok(())
    })
}

/// The probe of the core driver, which makes the auxiliary device that the DRM driver probes.
fn probe() -> Outcome {
    split(|gpu| sweeps::probe(&mut Faults::new()?, gpu, DRIVER, &USUAL))
}

igt_main! {
    "ioctls", "open, and the ioctls", ioctls;
    "importers", "what importers do", importers;
    "probe", "the probe of both drivers", probe;
}
