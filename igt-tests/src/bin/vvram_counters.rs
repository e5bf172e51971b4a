// SPDX-License-Identifier: GPL-2.0

//! Each counter of fallbacks and refusals, counted by one action that changes no other counter.
//!
//! KUnit tests two others, in the suite `vram_exported`: not-pci, which needs an importer that takes
//! peer-to-peer memory and is not a PCI device, and suspended, which needs a resume that fails.

use vvram_tests::debugfs::{difference, DebugFs};
use vvram_tests::drm::{DmaBuf, Gem, EITHER};
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{placed, squeeze_idle, Expect, Fixture};
use vvram_tests::map::PAGE64;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::rebind::{with_parameters, Unbound};
use vvram_tests::signals::{await_sleep, catch};
use vvram_tests::uapi::{self, DMA_BUF_SYNC_READ as READ};
use vvram_tests::{check_eq, expect_errno, igt_main, Outcome, Stop, SysError};

const EXPORT: u32 = EITHER | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
const ONLY: u32 = uapi::CREATE_VRAM;

/// A device whose counters are checked.
struct Counted {
    fixture: Fixture,
    debugfs: DebugFs,
}

impl Counted {
    #[track_caller]
    fn new(fixture: Fixture) -> Result<Self, Stop> {
        Ok(Self {
            debugfs: DebugFs::open(&fixture.gpu)?,
            fixture,
        })
    }

    /// Checks that an action counts once, under one reason, and changes no other counter. Moves are
    /// ignored.
    #[track_caller]
    fn once(
        &self,
        event: &str,
        reason: &str,
        action: impl FnOnce() -> Result<(), Stop>,
    ) -> Outcome {
        self.counts(&[(event, reason)], action)
    }

    /// As [`Self::once`], for several counters.
    #[track_caller]
    fn counts(&self, want: &[(&str, &str)], action: impl FnOnce() -> Result<(), Stop>) -> Outcome {
        let before = self.debugfs.counters()?;
        action()?;
        let mut seen = difference(&before, &self.debugfs.counters()?);
        seen.retain(|(event, _, _)| event != "moves");
        let entry = |(event, reason): &(&str, &str)| (event.to_string(), reason.to_string(), 1);
        let want: Vec<_> = want.iter().map(entry).collect();
        if seen == want {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "expected {want:?} to be counted, saw {seen:?}"
        )))
    }

    fn object(&self, flags: u32) -> Result<(Gem<'_>, DmaBuf), SysError> {
        let object = self.fixture.drm.create_flags(2 * PAGE64, flags)?;
        let buffer = object.export()?;
        Ok((object, buffer))
    }

    fn peer(&self) -> Result<Peer, SysError> {
        self.fixture.peer.reopen()
    }

    /// Attaches a new importer.
    fn attached(&self, buffer: &DmaBuf, mode: Mode) -> Result<Peer, SysError> {
        let peer = self.peer()?;
        peer.attach(buffer, mode)?;
        Ok(peer)
    }

    /// Expects an attach to be refused.
    #[track_caller]
    fn refused(&self, buffer: &DmaBuf, mode: Mode) -> Outcome {
        let attached = self.peer()?.attach(buffer, mode);
        expect_errno("an attach", attached, libc::EOPNOTSUPP)
    }
}

/// Importers that do not take peer-to-peer memory.
fn no_opt_in() -> Outcome {
    let c = Counted::new(Fixture::open()?)?;
    for mode in [Mode::Static, Mode::NoP2p] {
        for flags in [ONLY, EXPORT] {
            let (_object, buffer) = c.object(flags)?;
            c.once("attach-refused", "no-opt-in", || c.refused(&buffer, mode))?;
        }
        let (_object, buffer) = c.object(EITHER)?;
        let peer = c.peer()?;
        c.once("attach-system", "no-opt-in", || {
            peer.attach(&buffer, mode)?;
            Ok(())
        })?;
        for _ in 0..2 {
            c.once("map-system", "no-opt-in", || Ok(peer.map()?))?;
            c.counts(&[], || Ok(peer.unmap()?))?;
        }
        c.counts(&[], || Ok(peer.detach()?))?;
    }
    Ok(())
}

/// Importers that take peer-to-peer memory: nothing is counted if there is a route, and otherwise
/// no-route is.
fn no_route() -> Outcome {
    let c = Counted::new(Fixture::open()?)?;
    for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
        let (_only, only_buffer) = c.object(ONLY)?;
        let (_either, buffer) = c.object(EITHER)?;
        let peer = c.peer()?;
        let attach = || {
            peer.attach(&buffer, mode)?;
            Ok(())
        };
        let map = || Ok(peer.pin_and_map(mode)?);
        if c.fixture.expect == Expect::Refused {
            c.once("attach-refused", "no-route", || {
                c.refused(&only_buffer, mode)
            })?;
            c.once("attach-system", "no-route", attach)?;
            c.once("map-system", "no-route", map)?;
        } else {
            c.counts(&[], || {
                let other = c.attached(&only_buffer, mode)?;
                Ok(other.pin_and_map(mode)?)
            })?;
            c.counts(&[], attach)?;
            c.counts(&[], map)?;
        }
    }
    Ok(())
}

/// A peer shares an object with an importer that needs system memory.
fn other_importer() -> Outcome {
    let c = Counted::new(Fixture::with_route()?)?;
    let (object, buffer) = c.object(EITHER)?;
    let peer = c.attached(&buffer, Mode::Dynamic)?;
    let other = c.attached(&buffer, Mode::NoP2p)?;
    c.once("map-system", "other-importer", || Ok(peer.map()?))?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    c.once("map-system", "no-opt-in", || Ok(other.map()?))?;
    // When the other importer is gone, the peer gets VRAM again.
    other.detach()?;
    peer.unmap()?;
    c.counts(&[], || Ok(peer.map()?))?;
    placed(&object, uapi::PLACEMENT_VRAM)
}

/// No room in VRAM.
fn no_vram() -> Outcome {
    let c = Counted::new(Fixture::with_route()?)?;
    let (_either, buffer) = c.object(EITHER)?;
    let (_export, export_buffer) = c.object(EXPORT)?;
    let peer = c.attached(&buffer, Mode::Dynamic)?;
    let pinning = c.attached(&buffer, Mode::Pinned)?;
    let strict = c.attached(&export_buffer, Mode::Dynamic)?;
    let strict_pin = c.attached(&export_buffer, Mode::Pinned)?;
    let taken = squeeze_idle(&c.fixture.drm)?;
    c.once("map-system", "no-vram", || Ok(peer.map()?))?;
    c.once("map-refused", "no-vram", || {
        expect_errno("a map", strict.map(), libc::ENOSPC)
    })?;
    c.once("pin-refused", "no-vram", || {
        expect_errno("a pin", strict_pin.pin(), libc::ENOSPC)
    })?;
    // An object that may be in system memory is pinned there, and later importers get
    // pinned-elsewhere.
    c.counts(&[], || Ok(pinning.pin()?))?;
    c.once("map-system", "pinned-elsewhere", || Ok(pinning.map()?))?;
    drop(taken);
    c.counts(&[], || Ok(strict.map()?))
}

/// Objects of system memory.
fn system_only() -> Outcome {
    let c = Counted::new(Fixture::with_route()?)?;
    let (_object, buffer) = c.object(uapi::CREATE_SYSTEM)?;
    let peer = c.peer()?;
    c.once("attach-system", "system-only", || {
        peer.attach(&buffer, Mode::Dynamic)?;
        Ok(())
    })?;
    c.once("map-system", "system-only", || Ok(peer.map()?))
}

/// The object is pinned where the importer cannot use it: in VRAM, and in system memory by an
/// importer or by the kernel.
fn pinned_elsewhere() -> Outcome {
    let c = Counted::new(Fixture::with_route()?)?;
    {
        let (_object, buffer) = c.object(EITHER)?;
        let pinning = c.attached(&buffer, Mode::Pinned)?;
        pinning.pin()?;
        c.once("attach-refused", "pinned-elsewhere", || {
            c.refused(&buffer, Mode::NoP2p)
        })?;
    }
    {
        let (_object, buffer) = c.object(EITHER)?;
        let early = c.attached(&buffer, Mode::Dynamic)?;
        let system = c.attached(&buffer, Mode::Static)?;
        system.map()?;
        let late = c.peer()?;
        c.once("attach-system", "pinned-elsewhere", || {
            late.attach(&buffer, Mode::Dynamic)?;
            Ok(())
        })?;
        c.once("map-system", "pinned-elsewhere", || Ok(late.map()?))?;
        c.once("map-system", "other-importer", || Ok(early.map()?))?;
    }
    let (object, buffer) = c.object(EXPORT)?;
    let peer = c.attached(&buffer, Mode::Dynamic)?;
    let pinning = c.attached(&buffer, Mode::Pinned)?;
    let id = object.info()?.id;
    let taken = squeeze_idle(&c.fixture.drm)?;
    let kernel = c.attached(&buffer, Mode::Cpu)?;
    kernel.map()?;
    drop(taken);
    check_eq!(object.info()?.pinned, 1, "object {id} pinned by the kernel");
    c.once("map-refused", "pinned-elsewhere", || {
        expect_errno("a map", peer.map(), libc::EOPNOTSUPP)
    })?;
    c.once("pin-refused", "pinned-elsewhere", || {
        expect_errno("a pin", pinning.pin(), libc::EOPNOTSUPP)
    })?;
    c.once("attach-refused", "pinned-elsewhere", || {
        c.refused(&buffer, Mode::Dynamic)
    })
}

/// Pins over the limit, and one that a signal ends.
fn pins() -> Outcome {
    let c = Counted::new(Fixture::with_route()?)?;
    let (object, buffer) = c.object(EITHER)?;
    let peer = c.attached(&buffer, Mode::Pinned)?;
    let limit = c.debugfs.read("pin_limit")?;
    c.debugfs.write("pin_limit", "4096")?;
    let quota = c.once("pin-refused", "quota", || {
        expect_errno("a pin", peer.pin(), libc::EDQUOT)
    });
    c.debugfs.write("pin_limit", &limit)?;
    quota?;

    let timeline = Timeline::new()?;
    c.debugfs
        .write("move", &format!("{} system", object.info()?.id))?;
    buffer.add_fence(READ, &timeline.fence(1)?)?;
    c.once("pin-refused", "none", || {
        let told = Steps::new()?;
        let mut child = Child::spawn(|| {
            catch(&told, false)?;
            expect_errno("a pin", peer.pin(), libc::EINTR)
        })?;
        await_sleep(&mut child, "dma_fence_default_wait", "S")?;
        child.signal(libc::SIGUSR1);
        child.join("the pin", std::time::Duration::from_secs(20))
    })?;
    timeline.step()?;
    c.counts(&[], || Ok(peer.pin()?))
}

/// A BAR that does not show the object. The driver is bound with another parameter for that.
fn outside_bar() -> Outcome {
    const VISIBLE: u64 = 1 << 20;
    let refused = Expect::get()? == Expect::Refused;
    with_parameters(&[&format!("visible_kib={}", VISIBLE >> 10)], || {
        let c = Counted::new(Fixture::open()?)?;
        // Without a route the reason no-route comes first.
        let reason = if refused { "no-route" } else { "outside-bar" };
        let large = |flags| -> Result<(Gem<'_>, DmaBuf), SysError> {
            let object = c.fixture.drm.create_flags(2 * VISIBLE, flags)?;
            let buffer = object.export()?;
            Ok((object, buffer))
        };
        let (_only, only_buffer) = large(ONLY)?;
        c.once("attach-refused", reason, || {
            c.refused(&only_buffer, Mode::Dynamic)
        })?;
        let (_either, buffer) = large(EITHER)?;
        let peer = c.peer()?;
        c.once("attach-system", reason, || {
            peer.attach(&buffer, Mode::Dynamic)?;
            Ok(())
        })?;
        c.once("map-system", reason, || Ok(peer.map()?))
    })
}

/// Buffers of a device that is gone are not counted by the new device, which begins with zero.
fn device_gone() -> Outcome {
    let fixture = Fixture::open()?;
    let buffer = fixture.drm.create(PAGE64)?.export()?;
    Unbound::new(&fixture.gpu)?.rebind()?;
    let c = Counted::new(Fixture::open()?)?;
    let counters = c.debugfs.counters()?;
    for (key, count) in &counters {
        check_eq!(*count, 0, "{key:?} of a new device");
    }
    c.counts(&[], || {
        let attached = c.peer()?.attach(&buffer, Mode::Dynamic);
        expect_errno("an attach", attached, libc::ENODEV)
    })
}

igt_main! {
    "no-opt-in", "importers that do not take peer-to-peer memory", no_opt_in;
    "no-route", "importers that take it, with a route and without", no_route;
    "other-importer", "a peer beside one that is none", other_importer;
    "no-vram", "no room in VRAM", no_vram;
    "system-only", "objects of system memory", system_only;
    "pinned-elsewhere", "objects that others have pinned", pinned_elsewhere;
    "pins", "pins over the limit, and one that a signal ends", pins;
    "outside-bar", "a BAR that does not show the object", outside_bar;
    "device-gone", "a buffer of a device that is gone", device_gone;
}
