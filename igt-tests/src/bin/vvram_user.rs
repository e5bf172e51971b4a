// SPDX-License-Identifier: GPL-2.0

//! Callers that are not root: the calls that they may make, and the files that their modes protect.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vvram_tests::debugfs::{mounted, open_for, Counter, DebugFs};
use vvram_tests::drm::{ioctl, Drm, Gem, EITHER};
use vvram_tests::fdinfo::FdInfo;
use vvram_tests::fence::SyncObj;
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, peer_writes, placed, Expect, Fixture};
use vvram_tests::map::PAGE64;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::proc::Child;
use vvram_tests::user::{self, become_nobody};
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome};

const LIMIT: Duration = Duration::from_secs(20);

/// The files of a device in debugfs, with their modes.
const FILES: [(&str, u32); 6] = [
    ("buffers", 0o400),
    ("counters", 0o400),
    ("memory", 0o400),
    ("move", 0o200),
    ("pin_limit", 0o600),
    ("svm", 0o400),
];

/// Runs a function as the user nobody, in a process of its own.
fn as_nobody(what: &str, body: impl FnOnce() -> Outcome) -> Outcome {
    let mut child = Child::spawn(|| {
        become_nobody()?;
        body()
    })?;
    child.join(what, LIMIT)
}

/// Checks that a file cannot be opened, neither for reading nor for writing.
#[track_caller]
fn refused(path: &Path) -> Outcome {
    for (read, write) in [(true, false), (false, true), (true, true)] {
        let what = format!("opening {} as nobody", path.display());
        expect_errno(&what, open_for(path, read, write), libc::EACCES)?;
    }
    Ok(())
}

/// Makes every call of the device that needs no privilege, and checks the results.
fn works_with(drm: &Drm) -> Outcome {
    let (a, _) = patterns();
    check!(drm.getparam(uapi::PARAM_VRAM_SIZE)? > 0, "there is no VRAM");
    let objects: Vec<Gem<'_>> = [uapi::CREATE_VRAM, EITHER, uapi::CREATE_SYSTEM]
        .into_iter()
        .map(|flags| drm.create_flags(2 * PAGE64, flags))
        .collect::<Result<_, _>>()?;
    for (object, placement) in objects.iter().zip([
        uapi::PLACEMENT_VRAM,
        uapi::PLACEMENT_VRAM,
        uapi::PLACEMENT_SYSTEM,
    ]) {
        placed(object, placement)?;
    }
    objects[0].map()?.fill(a);
    for pair in objects.windows(2) {
        drm.copy((&pair[0], 0), (&pair[1], 0), 2 * PAGE64)?
            .finish()?;
        cpu_reads(&pair[1].map()?, a, &[0, 1])?;
    }
    let buffer = objects[0].export()?;
    cpu_reads(&buffer.map()?, a, &[0, 1])?;
    check_eq!(
        drm.import_handle(buffer.fd())?,
        objects[0].handle(),
        "handle of its own export"
    );
    check_eq!(objects[0].attachments()?, [], "attachments");
    expect_errno(
        "PEER_IMPORT_INFO of its own object",
        objects[0].import_info(),
        libc::EINVAL,
    )?;
    drop(SyncObj::new(drm.fd())?);
    check_eq!(
        FdInfo::of(drm)?.bytes("drm-total-vram0")?,
        4 * PAGE64,
        "VRAM in fdinfo"
    );
    Ok(())
}

/// A user who may open the render node can make all calls of a client, and sees nothing of other
/// clients.
fn render() -> Outcome {
    let root = Drm::open()?;
    let mine = root.create(PAGE64)?;
    let path = root.path().to_path_buf();
    check_eq!(user::mode(&path)? & 0o007, 0, "mode of the node for others");
    as_nobody("opening the render node", || refused(&path))?;
    let open = user::Mode::set(&path, 0o666)?;
    as_nobody("a client that is nobody", || {
        let drm = Drm::open_path(&path)?;
        for handle in [mine.handle(), 1] {
            let unknown = drm.info(handle);
            expect_errno("the handle of another client", unknown, libc::ENOENT)?;
        }
        works_with(&drm)
    })?;
    drop(open);
    // Also with a file that root has opened.
    let given = root.reopen()?;
    as_nobody("a client with the file of root", || works_with(&given))
}

/// On the card node the user nobody is not the DRM master, and need not be.
fn card() -> Outcome {
    let root = Drm::open_card()?;
    let path = root.path().to_path_buf();
    check_eq!(user::mode(&path)? & 0o007, 0, "mode of the node for others");
    as_nobody("opening the card node", || refused(&path))?;
    let _open = user::Mode::set(&path, 0o666)?;
    as_nobody("a client of the card node", || {
        let drm = Drm::open_path(&path)?;
        for (request, what) in [
            (uapi::DRM_IOCTL_SET_MASTER, "SET_MASTER"),
            (uapi::DRM_IOCTL_DROP_MASTER, "DROP_MASTER"),
        ] {
            let result = ioctl(drm.fd(), request, &mut (), || what.to_string());
            expect_errno(what, result, libc::EACCES)?;
        }
        let mut magic = 1u32;
        let result = ioctl(drm.fd(), uapi::DRM_IOCTL_AUTH_MAGIC, &mut magic, || {
            "AUTH_MAGIC".to_string()
        });
        expect_errno("AUTH_MAGIC", result, libc::EACCES)?;
        works_with(&drm)
    })
}

/// The modes of all files of the device in debugfs.
fn modes() -> Outcome {
    let debugfs = DebugFs::open(&PciDevice::vvram()?)?;
    for (name, want) in FILES {
        let path = debugfs.path(name);
        let seen = user::mode(&path)?;
        check!(
            seen == want,
            "the mode of {} is {seen:o}, not {want:o}",
            path.display()
        );
    }
    // The files of the DRM core there cannot be written by other users either.
    let dir = debugfs.path(".");
    let entries = fs::read_dir(&dir);
    check!(entries.is_ok(), "{}: {entries:?}", dir.display());
    for entry in entries.into_iter().flatten().flatten() {
        let mode = user::mode(&entry.path())?;
        check!(
            mode & 0o022 == 0,
            "{} has mode {mode:o}",
            entry.path().display()
        );
    }
    // The parameters of the modules can only be set when the modules are loaded.
    for module in ["vvram", "edu_peer", "bar_export"] {
        let dir = PathBuf::from(format!("/sys/module/{module}/parameters"));
        let files: Vec<_> = fs::read_dir(&dir).into_iter().flatten().flatten().collect();
        check!(files.is_empty(), "{} has {files:?}", dir.display());
    }
    Ok(())
}

/// The modes of the files keep the user nobody out, not only that of the directory of debugfs.
fn debugfs() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let drm = Drm::open()?;
    let object = drm.create_flags(PAGE64, EITHER)?;
    let limit = drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?;
    let moves = drm.counter(Counter::Moves)?;
    let debugfs = DebugFs::open(&gpu)?;
    let closed = user::mode(&mounted("debugfs", "/sys/kernel/debug")?)?;
    check_eq!(closed, 0o700, "mode of the root of debugfs");
    let root = user::Mode::set(Path::new("/sys/kernel/debug"), 0o755)?;
    as_nobody("the files in debugfs", || {
        let dir = debugfs.path(".");
        check!(dir.is_dir(), "{} cannot be entered", dir.display());
        for (name, _) in FILES {
            refused(&debugfs.path(name))?;
        }
        Ok(())
    })?;
    drop(root);
    as_nobody("debugfs", || {
        for (name, _) in FILES {
            refused(&debugfs.path(name))?;
        }
        Ok(())
    })?;
    check_eq!(
        drm.getparam(uapi::PARAM_VRAM_PIN_LIMIT)?,
        limit,
        "the limit of pinned VRAM"
    );
    check_eq!(drm.counter(Counter::Moves)?, moves, "moves");
    drop(object);
    Ok(())
}

/// Other users cannot access VRAM through the BAR, and cannot control the driver through sysfs.
fn sysfs() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let device = PathBuf::from("/sys/bus/pci/devices").join(gpu.name());
    as_nobody("the files in sysfs", || {
        for name in ["resource2", "resource2_wc"] {
            let path = device.join(name);
            if path.exists() {
                refused(&path)?;
            }
        }
        for name in [
            "reset",
            "remove",
            "driver_override",
            "driver/unbind",
            "power/control",
        ] {
            let path = device.join(name);
            expect_errno(
                &format!("writing {}", path.display()),
                open_for(&path, false, true),
                libc::EACCES,
            )?;
        }
        Ok(())
    })
}

/// Only root may open the peer; a user who gets the open file and a dma-buf from root can use both.
fn peer() -> Outcome {
    let fixture = Fixture::open()?;
    let path = PathBuf::from(format!("/dev/edu-peer-{}", fixture.peer.name()));
    check_eq!(user::mode(&path)?, 0o600, "mode of the peer's node");
    let (a, b) = patterns();
    let peer = &fixture.peer;
    as_nobody("opening the peer's node", || refused(&path))?;
    let node = fixture.drm.path().to_path_buf();
    let _open = user::Mode::set(&node, 0o666)?;
    as_nobody("a peer in the hands of nobody", || {
        let drm = Drm::open_path(&node)?;
        let object = drm.create(2 * PAGE64)?;
        let map = object.map()?;
        map.fill(a);
        let buffer = object.export()?;
        let attached = peer.attach(&buffer, Mode::Pinned);
        if fixture.expect == Expect::Refused {
            return expect_errno("attaching without a route", attached, libc::EOPNOTSUPP);
        }
        attached?;
        peer.pin_and_map(Mode::Pinned)?;
        fixture.check_only(&object, Mode::Pinned, true, true)?;
        peer_reads(peer, a, &[0])?;
        peer_writes(peer, b, &[1])?;
        cpu_reads(&map, b, &[1])?;
        check_eq!(
            FdInfo::of(&drm)?.bytes("vvram-pinned-vram0")?,
            2 * PAGE64,
            "pinned on behalf of nobody"
        );
        peer.detach()?;
        fixture.check_none(&object)
    })?;
    // The limit of pinned VRAM applies to the user nobody as to root.
    let debugfs = DebugFs::open(&fixture.gpu)?;
    if fixture.expect == Expect::Refused {
        return Ok(());
    }
    let limit = debugfs.read("pin_limit")?;
    debugfs.write("pin_limit", "0")?;
    let over = as_nobody("a pin over the limit", || {
        let drm = Drm::open_path(&node)?;
        let buffer = drm.create_flags(PAGE64, EITHER)?.export()?;
        peer.attach(&buffer, Mode::Pinned)?;
        expect_errno("a pin of nobody", peer.pin(), libc::EDQUOT)?;
        Ok(peer.detach()?)
    });
    debugfs.write("pin_limit", &limit)?;
    over?;
    drop(Peer::open()?);
    Ok(())
}

igt_main! {
    "render", "all calls of a client that may open the render node", render;
    "card", "the same on the card node, without being its master", card;
    "modes", "the modes of the files in debugfs", modes;
    "debugfs", "the files refuse others by themselves", debugfs;
    "sysfs", "the BAR and the driver's files are closed to others", sysfs;
    "peer", "the peer's node is closed, its file can be given away", peer;
}
