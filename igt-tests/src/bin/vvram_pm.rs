// SPDX-License-Identifier: GPL-2.0

//! The device is suspended when nobody needs it, and awake while somebody does.
//!
//! While something is expected to keep it awake, the device is given many times as long as it needs
//! to be suspended: a device that nobody keeps awake is then seen to be suspended.

use vvram_tests::map::PAGE;
use vvram_tests::peer::Mode;
use vvram_tests::power::{Auto, DELAY};
use vvram_tests::rebind::Unbound;
use vvram_tests::scene::{cpu_reads, patterns, peer_reads, share, works, Scene};
use vvram_tests::uapi;
use vvram_tests::{check, check_eq, igt_main, Outcome};

/// Files that are open do not keep it awake; what accesses VRAM wakes it, and finds it as it was.
fn idle() -> Outcome {
    let scene = Scene::open()?;
    let auto = Auto::new(&scene.gpu)?;
    let (a, b) = patterns();
    let shared = share(&scene.drm, 2)?;
    let other = shared.buffer.map()?;
    shared.map.fill(a);
    auto.woken_by("a read of a mapping", || cpu_reads(&shared.map, a, &[0, 1]))?;
    auto.woken_by("a write to a mapping", || {
        shared.map.fill(b);
        Ok(())
    })?;
    auto.woken_by("a read of a mapping of the dma-buf", || {
        cpu_reads(&other, b, &[0, 1])
    })?;
    auto.woken_by("GEM_CREATE", || {
        let object = scene.drm.create(PAGE as u64)?;
        check_eq!(
            object.info()?.placement,
            uapi::PLACEMENT_VRAM,
            "placement of a new object"
        );
        Ok(())
    })?;
    auto.woken_by("the end of an access", || {
        shared.buffer.sync(uapi::DMA_BUF_SYNC_WRITE)?;
        shared
            .buffer
            .sync(uapi::DMA_BUF_SYNC_WRITE | uapi::DMA_BUF_SYNC_END)?;
        Ok(())
    })
}

/// A peer can access VRAM for as long as it is attached.
fn peer() -> Outcome {
    let scene = Scene::with_route()?;
    let auto = Auto::new(&scene.gpu)?;
    let (a, _) = patterns();
    for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
        let shared = share(&scene.drm, 2)?;
        shared.map.fill(a);
        auto.sleeps("while nobody is attached")?;
        scene.peer.attach(&shared.buffer, mode)?;
        auto.stays_awake("while a peer is attached")?;
        scene.peer.pin_and_map(mode)?;
        auto.stays_awake("while a peer has it mapped")?;
        scene.check_only(&shared.object, mode, mode.needs_pin(), true)?;
        peer_reads(&scene.peer, a, &[0, 1])?;
        scene.peer.detach()?;
        auto.sleeps("after the detach")?;
    }
    Ok(())
}

/// One that uses system memory does not need the device.
fn system() -> Outcome {
    let scene = Scene::open()?;
    let auto = Auto::new(&scene.gpu)?;
    let (a, _) = patterns();
    let object = scene
        .drm
        .create_flags(2 * PAGE as u64, uapi::CREATE_SYSTEM)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    scene.peer.attach(&buffer, Mode::Static)?;
    scene.peer.map()?;
    auto.sleeps("while a peer has mapped system memory")?;
    buffer.sync(uapi::DMA_BUF_SYNC_READ)?;
    peer_reads(&scene.peer, a, &[0, 1])?;
    auto.sleeps("after a transfer to system memory")
}

/// A mapping of the kernel keeps it awake.
fn kernel() -> Outcome {
    let scene = Scene::open()?;
    let auto = Auto::new(&scene.gpu)?;
    let (a, _) = patterns();
    let shared = share(&scene.drm, 1)?;
    shared.map.fill(a);
    auto.sleeps("at first")?;
    scene.peer.attach(&shared.buffer, Mode::Cpu)?;
    scene.peer.map()?;
    auto.stays_awake("while the kernel maps VRAM")?;
    peer_reads(&scene.peer, a, &[0])?;
    scene.peer.unmap()?;
    auto.sleeps("when the kernel has unmapped VRAM")
}

/// Unbound and bound again while it is suspended and while it is in use: no count goes wrong.
fn unbind() -> Outcome {
    let scene = Scene::with_route()?;
    let auto = Auto::new(&scene.gpu)?;
    for attached in [false, true] {
        let scene = Scene::open()?;
        let shared = share(&scene.drm, 1)?;
        if attached {
            scene.peer.attach(&shared.buffer, Mode::Dynamic)?;
            scene.peer.map()?;
        }
        if !attached {
            auto.sleeps("before the unbind")?;
        }
        let gone = Unbound::new(&scene.gpu)?;
        gone.rebind()?;
        drop(shared);
        drop(scene);
        rebound(&auto)?;
        works()?;
    }
    Ok(())
}

/// A new binding has the driver's own delay.
fn rebound(auto: &Auto<'_>) -> Outcome {
    check!(
        auto.device().power("autosuspend_delay_ms")? == "1000",
        "the driver did not set its delay"
    );
    auto.device().set_power("autosuspend_delay_ms", DELAY)?;
    auto.sleeps("after the rebind")
}

igt_main! {
    "idle", "suspended while files are open, and woken by accesses to VRAM", idle;
    "peer", "awake while a peer is attached", peer;
    "system", "suspended while a peer uses system memory", system;
    "kernel", "awake while the kernel maps VRAM", kernel;
    "unbind", "counted right over an unbind", unbind;
}
