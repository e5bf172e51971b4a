// SPDX-License-Identifier: GPL-2.0

//! Unloading modules while their files, mappings, dma-bufs or sync files are open.

use std::fs;
use std::process::Command;
use std::time::Duration;

use vvram_tests::bar_export::{self, Exporter};
use vvram_tests::drm::Drm;
use vvram_tests::edu;
use vvram_tests::fence::Timeline;
use vvram_tests::fixture::{cpu_reads, patterns, works, Fixture};
use vvram_tests::map::{PAGE, PAGE64};
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::queue::copy_after;
use vvram_tests::rebind::{delete_module, module_users as users, reload, Unbound};
use vvram_tests::reloads;
use vvram_tests::uapi::{self, DMA_BUF_SYNC_WRITE as WRITE};
use vvram_tests::{check, check_eq, expect_errno, igt_main, Outcome};

/// The name that the core returns instead of the driver's for a fence that has signalled.
const SIGNALLED: &str = "detached-driver";

/// Checks that a module cannot be unloaded, neither by the system call nor by modprobe.
#[track_caller]
fn stays(module: &str, what: &str) -> Outcome {
    expect_errno(
        &format!("unloading {module} while there is {what}"),
        delete_module(module),
        libc::EWOULDBLOCK,
    )?;
    let status = Command::new("modprobe").args(["-q", "-r", module]).status();
    check!(
        status.as_ref().is_ok_and(|status| !status.success()),
        "modprobe -r {module} while there is {what}: {status:?}"
    );
    check!(
        users(module).is_some_and(|users| users > 0),
        "{what} is no user of {module}: {:?}",
        users(module)
    );
    Ok(())
}

/// The drivers match devices of one vendor, so that no module is loaded, and no probe called, for a
/// device of a class that others have too.
fn aliases() -> Outcome {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let text = fs::read_to_string(format!("/lib/modules/{}/modules.alias", release.trim()))
        .unwrap_or_default();
    for module in ["avram", "edu_peer", "mgpu", "vvram"] {
        let aliases: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("alias pci:"))
            .filter_map(|line| line.strip_suffix(&format!(" {module}")))
            .collect();
        check!(
            !aliases.is_empty() && aliases.iter().all(|alias| !alias.contains("v*d")),
            "{module} is loaded for {aliases:?}"
        );
    }
    Ok(())
}

/// Waits until a module has no users, because the release of closed files may be delayed.
#[track_caller]
fn unused(module: &str, what: &str) -> Outcome {
    let none = misc::poll(Duration::from_secs(5), || {
        (users(module) == Some(0)).then_some(())
    });
    check!(
        none.is_some(),
        "{module} has {:?} users after {what} was closed",
        users(module)
    );
    Ok(())
}

/// Each thing that keeps vvram loaded, by itself.
fn vvram() -> Outcome {
    let (a, _) = patterns();
    unused("vvram", "all")?;
    let card = Drm::open_card()?;
    stays("vvram", "a file of the card node")?;
    drop(card);
    unused("vvram", "the card node")?;

    let drm = Drm::open()?;
    stays("vvram", "a file of the render node")?;
    let map = {
        let object = drm.create(PAGE64)?;
        object.map()?
    };
    drop(drm);
    map.fill(a);
    stays("vvram", "a mapping")?;
    cpu_reads(&map, a, &[0])?;
    drop(map);
    unused("vvram", "the mapping")?;

    let buffer = Drm::open()?.create(PAGE64)?.export()?;
    stays("vvram", "a dma-buf")?;
    let map = buffer.map()?;
    drop(buffer);
    map.fill(a);
    stays("vvram", "a mapping of a dma-buf")?;
    cpu_reads(&map, a, &[0])?;
    drop(map);
    unused("vvram", "the dma-buf")?;
    reload("vvram", &[])?;
    works()
}

/// Two users: when one of them is gone, the other one still keeps the module, in any order.
fn two_holders() -> Outcome {
    for file_first in [false, true] {
        let drm = Drm::open()?;
        let buffer = drm.create(PAGE64)?.export()?;
        stays("vvram", "a file and a dma-buf")?;
        if file_first {
            drop(drm);
            stays("vvram", "a dma-buf")?;
            drop(buffer);
        } else {
            drop(buffer);
            stays("vvram", "a file")?;
            drop(drm);
        }
        unused("vvram", "both")?;
    }
    // An importer keeps the dma-buf when the file descriptor is closed, mapped or not, also after
    // an unbind.
    let fixture = Fixture::with_route()?;
    let peers = [fixture.peer.reopen()?, fixture.peer.reopen()?];
    {
        let buffer = fixture.drm.create(PAGE64)?.export()?;
        peers[0].attach_and_map(&buffer, Mode::Dynamic)?;
        peers[1].attach(&buffer, Mode::Revocable)?;
    }
    let gpu = fixture.gpu.clone();
    drop(fixture);
    stays("vvram", "two importers")?;
    Unbound::new(&gpu)?.rebind()?;
    stays("vvram", "two importers of a dma-buf that was revoked")?;
    let [first, second] = peers;
    first.detach()?;
    stays("vvram", "one importer")?;
    second.detach()?;
    drop((first, second));
    unused("vvram", "the importers")?;
    reload("vvram", &[])?;
    works()
}

/// A sync file does not keep vvram loaded, also that of a copy that waits for a fence. Its fence
/// signals before the module is unloaded, and can be queried afterwards.
fn sync_file() -> Outcome {
    let timeline = Timeline::new()?;
    let fence = timeline.fence(1)?;
    let (done, pending, waits) = {
        let drm = Drm::open()?;
        let size = drm.getparam(uapi::PARAM_VRAM_SIZE)? / 4;
        let (src, dst) = (drm.create(size)?, drm.create(size)?);
        let done = drm.copy((&src, 0), (&dst, 0), PAGE64)?;
        done.finish()?;
        let pending: Vec<_> = (0..16)
            .map(|_| drm.copy((&src, 0), (&dst, 0), size))
            .collect::<Result<_, _>>()?;
        let waits = copy_after(&drm, (&src, &dst), &[&fence])?;
        check_eq!(
            (waits.status()?, waits.drivers()?),
            (0, vec!["ttm".to_string()]),
            "status and driver of a copy that waits"
        );
        (done, pending, waits)
    };
    let unloaded = misc::poll(Duration::from_secs(5), || delete_module("vvram").ok());
    let gone = users("vvram").is_none();
    let mut status = Vec::new();
    for copy in pending.iter().chain([&waits, &done]) {
        status.push((copy.status()?, copy.drivers()?));
    }
    check!(!fence.poll(0)?, "the fence of the test has signalled");
    let loaded = Command::new("modprobe").arg("vvram").status();
    check!(
        unloaded.is_some() && gone,
        "vvram cannot be unloaded while there are sync files"
    );
    check!(
        loaded.as_ref().is_ok_and(|status| status.success()),
        "modprobe vvram: {loaded:?}"
    );
    // The copies that had not begun when the file was closed were cancelled.
    let cancelled = status.iter().skip_while(|seen| seen.0 == 1).count() - 1;
    let begun = status.len() - 1 - cancelled;
    for (index, seen) in status.iter().enumerate() {
        let want = if index < begun || index == status.len() - 1 {
            1
        } else {
            -libc::ECANCELED
        };
        check_eq!(
            *seen,
            (want, vec![SIGNALLED.to_string()]),
            "status and driver of fence {index} without its module"
        );
    }
    check!(cancelled > 0, "the copy that waits is done");
    timeline.step()?;
    drop((done, pending, waits));
    works()
}

/// Each thing that keeps edu_peer loaded, and a sync file, which does not.
fn edu_peer() -> Outcome {
    unused("edu_peer", "all")?;
    let fixture = Fixture::with_route()?;
    stays("edu_peer", "a file")?;
    let object = fixture.drm.create(4 * PAGE64)?;
    let buffer = object.export()?;
    fixture.peer.attach(&buffer, Mode::Dynamic)?;
    let slow = edu::slow()?;
    fixture.peer.submit_read(0, 4 * PAGE)?;
    let fence = buffer.sync_file(WRITE)?;
    check_eq!(fence.drivers()?, ["edu_peer"], "driver of the fence");
    stays("edu_peer", "a transfer")?;
    let Fixture { peer, drm, .. } = &fixture;
    check_eq!(drm.attachments(object.handle())?.len(), 1, "attachments");
    let other = Peer::open()?;
    drop(other);
    peer.finish_read(&mut [0; 4 * PAGE])?;
    drop(fence);
    // The detach comes in the middle of this transfer.
    peer.submit_read(0, 4 * PAGE)?;
    let fence = buffer.sync_file(WRITE)?;
    check_eq!(fence.status()?, 0, "status of the fence of a transfer");
    peer.detach()?;
    drop(slow);
    stays("edu_peer", "a file that has nothing")?;
    let list = object.attachments()?;
    check!(list.is_empty(), "{list:?} is attached");
    drop((buffer, object));
    drop(fixture);
    unused("edu_peer", "the file")?;
    let unloaded = misc::poll(Duration::from_secs(5), || delete_module("edu_peer").ok());
    let (status, drivers) = (fence.status()?, fence.drivers()?);
    let loaded = Command::new("modprobe").arg("edu_peer").status();
    check!(
        unloaded.is_some(),
        "edu_peer cannot be unloaded while there is a sync file"
    );
    check!(
        loaded.as_ref().is_ok_and(|status| status.success()),
        "modprobe edu_peer: {loaded:?}"
    );
    check_eq!(status, -libc::ECANCELED, "status of the fence");
    check_eq!(drivers, [SIGNALLED], "driver of the fence");
    works()
}

/// A dma-buf keeps bar_export loaded, also when the device has another driver by now.
fn bar_export() -> Outcome {
    let exporter = Exporter::new()?;
    let file = exporter.open()?;
    stays("bar_export", "a file")?;
    let buffer = bar_export::export(&file, bar_export::MEMORY, 0, PAGE64)?;
    drop(file);
    stays("bar_export", "a dma-buf")?;
    drop(exporter);
    stays("bar_export", "a dma-buf of a device that is unbound")?;
    drop(buffer);
    unused("bar_export", "the dma-buf")?;
    reload("bar_export", &[])?;
    works()
}

/// Both modules are reloaded while clients use them: an open file keeps each, and all calls on it
/// succeed.
fn load() -> Outcome {
    let (gpu, edu) = (PciDevice::vvram()?, PciDevice::edu()?);
    reloads::storm(
        &["vvram", "edu_peer"],
        || Drm::try_open_on(&gpu),
        |module| match module {
            "vvram" => gpu.driver().as_deref() == Some(module),
            _ => edu.driver().as_deref() == Some(module),
        },
    )?;
    works()
}

igt_main! {
    "aliases", "no module is loaded for devices of others", aliases;
    "vvram", "files, mappings and dma-bufs keep vvram loaded", vvram;
    "two-holders", "one of two users is enough to keep it", two_holders;
    "sync-file", "a sync file of a copy outlives vvram", sync_file;
    "edu-peer", "files keep edu_peer loaded, a sync file outlives it", edu_peer;
    "load", "vvram and edu_peer are reloaded while clients use them", load;
    "bar-export", "files and dma-bufs keep bar_export loaded", bar_export;
}
