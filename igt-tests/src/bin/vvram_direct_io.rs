// SPDX-License-Identifier: GPL-2.0

//! A disk that reads files straight to VRAM, and writes them from there.

use std::path::Path;
use std::process::Command;

use vvram_tests::debugfs::Counter;
use vvram_tests::disk::{load, pinned, Direct, Disk, Part, Way};
use vvram_tests::drm::{Drm, Gem};
use vvram_tests::fixture::{mapped_by_peer, patterns, placed, Expect, Fixture};
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::uapi::{self, CREATE_DIRECT_IO, CREATE_SYSTEM, CREATE_VRAM};
use vvram_tests::{check_eq, check_ok, expect_errno, igt_main, Outcome, Stop, SysError};

/// More than a bio has segments.
const MANY: usize = 300;

fn create(drm: &Drm, pages: usize) -> Result<Gem<'_>, SysError> {
    drm.create_flags((pages * PAGE) as u64, CREATE_VRAM | CREATE_DIRECT_IO)
}

/// Does a transfer between disk and VRAM, and checks its result.
#[track_caller]
fn check_transfer(disk: &Disk, way: Way, part: Part, offset: u64) -> Result<bool, Stop> {
    let before = pinned()?;
    let result = disk.direct.transfer(way, part, offset);
    check_eq!(pinned()?, before, "pages that stay pinned after a transfer");
    if Expect::get()? == Expect::Refused {
        expect_errno("a transfer without a route", result, libc::EINVAL)?;
        return Ok(false);
    }
    result?;
    Ok(true)
}

fn verify(map: &Map, pattern: Pattern, what: &str) -> Outcome {
    check_ok!(map.verify(pattern), "{what}");
    Ok(())
}

fn read() -> Outcome {
    let fixture = Fixture::open()?;
    let disk = Disk::open()?;
    let (a, b) = patterns();
    for pages in [1, 2, MANY] {
        let object = create(&fixture.drm, pages)?;
        let map = object.map()?;
        map.fill(b);
        disk.fill(a, 0, pages * PAGE)?;
        if !check_transfer(&disk, Way::Read, Part::all(&map), 0)? {
            verify(&map, b, "VRAM after a read that was refused")?;
            continue;
        }
        placed(&object, uapi::PLACEMENT_VRAM)?;
        verify(&map, a, "VRAM as the CPU sees it")?;
        let layout = fixture.bar.locate(&map)?;
        fixture.check_vram(&layout, a, &[0, pages / 2, pages - 1])?;
        // Another device reads the same bytes.
        let buffer = object.export()?;
        mapped_by_peer(&buffer, a, &[0, pages - 1])?;
    }
    Ok(())
}

fn write() -> Outcome {
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let (a, b) = patterns();
    for pages in [1, 2, MANY] {
        let object = create(&drm, pages)?;
        let map = object.map()?;
        map.fill(a);
        disk.fill(b, 0, pages * PAGE)?;
        let is_there = check_transfer(&disk, Way::Write, Part::all(&map), 0)?;
        disk.verify(if is_there { a } else { b }, 0, pages * PAGE)?;
        placed(&object, uapi::PLACEMENT_VRAM)?;
    }
    Ok(())
}

fn parts() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let (a, b) = patterns();
    let object = create(&drm, 8)?;
    let map = object.map()?;
    disk.fill(a, 0, 8 * PAGE)?;
    // From the middle of a page to the middle of another one.
    for (at, len) in [(512, 512), (PAGE - 512, 1024), (PAGE + 1536, 4 * PAGE)] {
        map.fill(b);
        disk.direct
            .transfer(Way::Read, Part::of(&map, at, len), at as u64)?;
        for word in 0..map.len() / 8 {
            let inside = (at..at + len).contains(&(8 * word));
            let want = if inside { a } else { b }.word(word as u64);
            check_eq!(map.read(word), want, "word {word}, {len} bytes at {at}");
        }
    }
    Ok(())
}

fn ordinary() -> Outcome {
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let plain = drm.create(PAGE64)?;
    let direct = create(&drm, 1)?;
    let buffer = direct.export()?;
    for (what, map) in [
        ("an object without the flag", plain.map()?),
        ("a dma-buf", buffer.map()?),
    ] {
        map.write(0, 1);
        let result = disk.direct.transfer(Way::Read, Part::all(&map), 0);
        expect_errno(&format!("a read to {what}"), result, libc::EFAULT)?;
    }
    Ok(())
}

/// A loop device, until this is dropped.
struct Loop(String);

impl Loop {
    #[track_caller]
    fn of(path: &Path) -> Result<Self, Stop> {
        load("loop")?;
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(path)
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(Self(
                String::from_utf8_lossy(&output.stdout).trim().to_string(),
            )),
            other => Err(Stop::fail(format_args!("losetup: {other:?}"))),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

/// A disk without the feature refuses VRAM, and so does a loop device on top of a disk with it.
fn without_feature() -> Outcome {
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let object = create(&drm, 1)?;
    let (map, ram) = (object.map()?, Map::private(PAGE)?);
    let on_top = Loop::of(disk.path())?;
    // The root of the guest is a virtio disk.
    for path in ["/dev/vda", &on_top.0] {
        let device = Direct::open(path.as_ref(), false)?;
        let before = pinned()?;
        let what = format!("a read of {path} to VRAM");
        let result = device.transfer(Way::Read, Part::all(&map), 0);
        expect_errno(&what, result, libc::EREMOTEIO)?;
        check_eq!(pinned()?, before, "pages that stay pinned");
        // The positive control.
        device.transfer(Way::Read, Part::all(&ram), 0)?;
    }
    Ok(())
}

fn elsewhere() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create_flags(PAGE64, CREATE_VRAM | CREATE_SYSTEM | CREATE_DIRECT_IO)?;
    let buffer = object.export()?;
    let peer = Peer::open()?;
    peer.attach(&buffer, Mode::NoP2p)?;
    peer.pin()?;
    placed(&object, uapi::PLACEMENT_SYSTEM)?;
    expect_errno(
        "mapping what is pinned elsewhere",
        object.map(),
        libc::EBUSY,
    )?;
    check_eq!(drm.counter(Counter::VramPinned)?, 0, "pinned VRAM");
    peer.unpin()?;
    object.map()?.write(0, 1);
    placed(&object, uapi::PLACEMENT_VRAM)
}

fn create_flags() -> Outcome {
    let drm = Drm::open()?;
    let both = CREATE_VRAM | CREATE_SYSTEM | CREATE_DIRECT_IO;
    let object = drm.create_flags(PAGE64, both)?;
    check_eq!(object.info()?.what(), both, "what GEM_INFO says");
    let result = drm.create_flags(PAGE64, CREATE_SYSTEM | CREATE_DIRECT_IO);
    expect_errno("direct I/O without VRAM", result, libc::EINVAL)?;
    Ok(())
}

igt_main! {
    "read", "a disk reads to VRAM; EINVAL without a route", read;
    "write", "a disk writes from VRAM; EINVAL without a route", write;
    "parts", "parts of pages", parts;
    "ordinary", "EFAULT for other mappings of VRAM", ordinary;
    "without-feature", "EREMOTEIO for a disk that cannot do it", without_feature;
    "elsewhere", "EBUSY for an object that is pinned in system memory", elsewhere;
    "create-flags", "the flag needs VRAM, and GEM_INFO has it", create_flags;
}
