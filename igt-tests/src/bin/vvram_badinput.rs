// SPDX-License-Identifier: GPL-2.0

//! Arguments that no caller should give, for each ioctl of [`vvram_tests::describe`] that needs no
//! modelled GPU. There is a second GPU, which can be unbound while a call waits.

use std::os::fd::AsRawFd;
use std::time::Duration;
use vvram_tests::auxiliary::{Card, Module, Split};
use vvram_tests::badinput::{check_all, nothing, unbinds, wrong, Gpu, Scene, FOREIGN};
use vvram_tests::bar_export::Exporter;
use vvram_tests::describe::{Call, File, Thing};
use vvram_tests::drm::{ioctl_raw, Drm, EITHER};
use vvram_tests::edu;
use vvram_tests::fixture::{share, Expect};
use vvram_tests::heap;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::uapi;
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome};

/// Unbinds the second GPU.
fn other_gpu() -> Outcome {
    let all = PciDevice::vvrams();
    check_eq!(all.len(), 2, "GPUs");
    unbinds(&all[1])
}

fn gpu() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create_flags(4 * PAGE as u64, EITHER)?;
    let import = drm.import(&heap::allocate(PAGE as u64)?)?;
    let gpu = Gpu::new(&drm, &object)?;
    let prepare = |call: &Call| {
        // Nothing is bound at address 0, except for a read from there.
        let _ = drm.vm_unbind(0, PAGE as u64);
        if call.request == uapi::VVRAM_VM_READ {
            drm.vm_bind_raw(uapi::VmBind {
                size: PAGE as u64,
                handle: object.handle(),
                ..Default::default()
            })?;
        }
        Ok(())
    };
    // Memory that has migrated to VRAM stays there.
    let state = || {
        let svm = drm.svm_vram()?;
        gpu.state(svm)
    };
    let another = |thing| gpu.another(thing);
    let mut scene = gpu.scene(&state)?;
    scene.prepare = Some(&prepare);
    scene.another = Some(&another);
    scene.meanwhile = Some(&other_gpu);
    let is_info = |call: &Call| call.request == uapi::VVRAM_PEER_IMPORT_INFO;
    check_all(&mut scene, File::Vvram, |call| !is_info(call))?;
    scene.handles[Thing::Gem as usize].0 = import.handle().into();
    check_all(&mut scene, File::Vvram, is_info)
}

fn avram() -> Outcome {
    let module = Module::load()?;
    let split = Split::new(&module, &PciDevice::vvram()?)?;
    let (card, other) = (Card::open(split.gpu())?, Card::open(split.gpu())?);
    let handle = card.create(4 * PAGE as u64)?;
    for _ in 0..FOREIGN {
        other.create(PAGE as u64)?;
    }
    let (buffer, null, peer) = (card.export(handle)?, nothing()?, Peer::open()?);
    // A refusal is listed as well.
    let _ = peer.attach(&buffer, Mode::Dynamic);
    let state = || {
        let next = card.create(PAGE as u64)?;
        card.close(next)?;
        Ok(vec![next.into(), card.attachments(handle)?.len() as u64])
    };
    let another = |_| Ok(card.create(PAGE as u64)?.into());
    let mut scene = Scene::new(card.fd(), &state)?;
    scene.handles[Thing::Gem as usize] = (handle.into(), FOREIGN);
    scene.files = vec![(File::Buffer, buffer.fd()), wrong(&null)];
    scene.another = Some(&another);
    scene.meanwhile = Some(&other_gpu);
    check_all(&mut scene, File::Avram, |_| true)?;
    drop((card, other, buffer, peer));
    split.undo()
}

fn peer() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    // In VRAM for a dynamic importer, and in system memory for a static one.
    let object = drm.create_flags(PAGE as u64, EITHER)?;
    let (map, buffer) = (object.map()?, object.export()?);
    let peer = Peer::open()?;
    let (memory, null) = (Map::private(PAGE)?, nothing()?);
    let prepare = |call: &Call| {
        let _ = peer.finish_read(&mut []);
        let _ = peer.finish_write();
        let _ = peer.detach();
        peer.attach(&buffer, Mode::Dynamic)?;
        // What is there already is refused.
        let _ = peer.register(&memory);
        match call.request {
            uapi::EDU_PEER_IOC_ATTACH => peer.detach()?,
            uapi::EDU_PEER_IOC_UNPIN => peer.pin()?,
            uapi::EDU_PEER_IOC_UNMAP | uapi::EDU_PEER_IOC_TABLE => peer.map()?,

            uapi::EDU_PEER_IOC_FINISH => peer.submit_read(0, 64)?,
            uapi::EDU_PEER_IOC_MEMORY_REGISTER => peer.unregister()?,
            _ => {}
        }
        Ok(())
    };
    let state = || {
        let entries = object.attachments()?;
        Ok(vec![
            entries.iter().filter(|entry| entry.refused()).count() as u64
        ])
    };
    let mut scene = Scene::new(peer.fd(), &state)?;
    scene.files = vec![(File::Buffer, buffer.fd()), wrong(&null)];
    scene.device = Some(&map);
    scene.prepare = Some(&prepare);
    scene.meanwhile = Some(&other_gpu);
    check_all(&mut scene, File::Peer, |_| true)
}

fn bar_export() -> Outcome {
    let exporter = Exporter::new()?;
    let file = exporter.open()?;
    let state = || Ok(Vec::new());
    let mut scene = Scene::new(file.as_raw_fd(), &state)?;
    scene.meanwhile = Some(&other_gpu);
    check_all(&mut scene, File::Bar, |_| true)
}

fn buffers() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create_flags(4 * PAGE as u64, EITHER)?;
    let gpu = Gpu::new(&drm, &object)?;
    let state = || gpu.state(0);
    let mut scene = gpu.scene(&state)?;
    for kind in [File::Buffer, File::SyncFile] {
        scene.fd = gpu.fd_of(kind);
        check_all(&mut scene, kind, |_| true)?;
    }
    Ok(())
}

fn drm_numbers() -> Outcome {
    let drm = Drm::open()?;
    let mut words = [0u64; 8];
    let address = words.as_mut_ptr() as u64;
    for nr in 13..0x60 {
        let request = uapi::ioc(3, u64::from(b'd'), uapi::DRM_COMMAND_BASE + nr, 16);
        // SAFETY: the kernel writes to `words`, if at all.
        let result = unsafe {
            ioctl_raw(drm.fd(), request, address, || {
                format!("DRM ioctl {request:#x}")
            })
        };
        expect_errno("a driver ioctl that does not exist", result, libc::EINVAL)?;
    }
    let request = uapi::ioc(3, u64::from(b'e'), uapi::DRM_COMMAND_BASE, 16);
    // SAFETY: as above.
    let result = unsafe { ioctl_raw(drm.fd(), request, address, || "ioctl of type e".to_string()) };
    expect_errno("an ioctl of another type", result, libc::ENOTTY)
}

fn peer_numbers() -> Outcome {
    let peer = Peer::open()?;
    let mut words = [0u64; 8];
    let address = words.as_mut_ptr() as u64;
    for nr in (0..0xf).chain(0x20..0x40) {
        for dir in 0..4 {
            let request = uapi::ioc(dir, 0xed, nr, 16);
            // SAFETY: the kernel writes to `words`, if at all.
            let result = unsafe {
                ioctl_raw(peer.fd(), request, address, || {
                    format!("edu_peer ioctl {request:#x}")
                })
            };
            expect_errno("an ioctl that does not exist", result, libc::ENOTTY)?;
        }
    }
    Ok(())
}

fn peer_not_attached() -> Outcome {
    let peer = Peer::open()?;
    let mut data = [0u8; 8];
    let none = libc::EINVAL;
    expect_errno("detach of nothing", peer.detach(), none)?;
    expect_errno("pin of nothing", peer.pin(), none)?;
    expect_errno("unpin of nothing", peer.unpin(), none)?;
    expect_errno("map of nothing", peer.map(), none)?;
    expect_errno("unmap of nothing", peer.unmap(), none)?;
    expect_errno("table of nothing", peer.table(), none)?;
    expect_errno("timing of nothing", peer.measure(1), none)?;
    expect_errno("a read of nothing", peer.read(0, &mut data), none)?;
    expect_errno("a write to nothing", peer.write(0, &data), none)?;
    expect_errno("submit to nothing", peer.submit_read(0, 8), none)?;
    expect_errno("finish of nothing", peer.finish_read(&mut data), none)?;
    check!(
        peer.status()?.flags == 0,
        "status of nothing: {:?}",
        peer.status()?
    );
    Ok(())
}

/// A transfer that is under way holds up the other calls and is not affected by them, and its
/// result can be had more than once.
fn peer_submit() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let shared = share(&drm, 1)?;
    shared.map.set(0x1111_1111_1111_1111);
    let peer = Peer::open()?;
    peer.attach_and_map(&shared.buffer, Mode::Dynamic)?;
    let busy = libc::EBUSY;
    expect_errno("timing of what is mapped", peer.measure(1), busy)?;
    let mut data = [0u8; 64];
    let _slow = edu::slow_by(Duration::from_secs(1))?;
    peer.submit_read(0, 64)?;
    expect_errno("a second submit", peer.submit_read(0, 64), busy)?;
    expect_errno("unmap during a transfer", peer.unmap(), busy)?;
    expect_errno(
        "a transfer during a transfer",
        peer.read(0, &mut [0; 8]),
        busy,
    )?;
    expect_errno("the other direction", peer.finish_write(), libc::EINVAL)?;
    for _ in 0..2 {
        data.fill(0);
        peer.finish_read(&mut data)?;
        check_eq!(
            data,
            [0x11; 64],
            "what was submitted, after all that was refused"
        );
    }
    // FINISH copies no more bytes than the length on input.
    data.fill(0);
    check_eq!(peer.finish_read(&mut data[..16])?, 64, "bytes moved");
    check_eq!(data[..16], [0x11; 16], "what there was room for");
    check_eq!(data[16..], [0; 48], "what is behind that");
    peer.unmap()?;
    let cost = peer.measure(3)?;
    check!(
        cost.clock < cost.least && cost.least <= cost.most,
        "times of a map and an unmap: {cost:?}"
    );
    check_eq!(
        peer.status()?.flags & uapi::EDU_PEER_STATUS_MAPPED,
        0,
        "mapped after it was timed"
    );
    Ok(())
}

igt_main! {
    "gpu", "each field of the calls of vvram and of the core", gpu;
    "avram", "the same of avram", avram;
    "peer", "the same of edu_peer", peer;
    "bar-export", "the same of bar_export", bar_export;
    "buffers", "the same of dma-bufs and sync files", buffers;
    "drm-numbers", "EINVAL for driver ioctls that do not exist", drm_numbers;
    "peer-numbers", "ENOTTY for peer ioctls that do not exist", peer_numbers;
    "peer-not-attached", "EINVAL for everything but status", peer_not_attached;
    "peer-submit", "a transfer that is under way", peer_submit;
}
