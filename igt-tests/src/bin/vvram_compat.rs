// SPDX-License-Identifier: GPL-2.0

//! The ioctls of 32-bit programs: all of them, with the same result as those of 64 bits.

use vvram_tests::bar_export::{self, Exporter};
use vvram_tests::compat;
use vvram_tests::drm::{ioctl, Attachment, Drm, EITHER};
use vvram_tests::fence::SyncObj;
use vvram_tests::fixture::{cpu_reads, patterns, peer_reads, peer_writes, Expect, Fixture};
use vvram_tests::heap;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::memory;
use vvram_tests::peer::{check_table, Mode, Peer};
use vvram_tests::uapi::{self, VvramGemCopy, VvramGemCreate};
use vvram_tests::{
    check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome, Stop, SysError,
};

/// `struct drm_version` of 32 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Version32 {
    major: i32,
    minor: i32,
    patchlevel: i32,
    name_len: u32,
    name: u32,
    date_len: u32,
    date: u32,
    desc_len: u32,
    desc: u32,
}

/// The kernel handles the calls as those of a 32-bit program.
fn entry() -> Outcome {
    check!(
        compat::is_available(),
        "the kernel has no system calls of 32 bits"
    );
    let drm = Drm::open()?;
    let request = uapi::ioc(3, u64::from(b'd'), 0, std::mem::size_of::<Version32>());
    let what = || "VERSION of 32 bits".to_string();
    let version = |version: &mut Version32| ioctl(drm.fd(), request, version, what);
    // A 64-bit program does not have this structure: the fields are at other offsets.
    let mut seen = Version32::default();
    let plain = version(&mut seen);
    check!(
        plain.is_err() || seen.name_len != 5,
        "a call of 64 bits understands {seen:?}"
    );
    let _on = compat::on();
    let mut seen = Version32::default();
    version(&mut seen)?;
    check_eq!(
        (seen.major, seen.minor, seen.name_len, seen.desc_len),
        (1, 0, 5, 21),
        "what VERSION of 32 bits says"
    );
    Ok(())
}

/// Makes all calls in both ways, and compares the results.
fn same(both: impl Fn() -> Result<Vec<String>, Stop>) -> Outcome {
    let wide = both()?;
    let narrow = {
        let _on = compat::on();
        both()?
    };
    check!(!wide.is_empty(), "nothing was compared");
    for (wide, narrow) in wide.iter().zip(&narrow) {
        check_eq!(narrow, wide, "what a call of 32 bits gave");
    }
    check_eq!(narrow.len(), wide.len(), "calls");
    Ok(())
}

/// An error, without the words that differ.
fn errno<T: std::fmt::Debug>(what: &str, result: Result<T, SysError>) -> String {
    match result {
        Ok(value) => format!("{what} succeeded: {value:?}"),
        Err(error) => format!("{what}: errno {}", error.errno),
    }
}

/// All ioctls of vvram.
fn vvram() -> Outcome {
    let fixture = Fixture::open()?;
    let drm = &fixture.drm;
    let (a, b) = patterns();
    let heap = heap::allocate(2 * PAGE64)?;
    same(|| {
        let mut seen = Vec::new();
        for param in 0..=8 {
            seen.push(format!(
                "{param}: {}",
                errno("GETPARAM", drm.getparam(param))
            ));
        }
        for what in [EITHER, uapi::CREATE_SYSTEM, 1 << 20, EITHER | 1 << 20, 0] {
            let mut argument = VvramGemCreate::new(PAGE64 + 1, what);
            let made = drm.create_raw(&mut argument);
            if made.is_ok() {
                drm.close(argument.handle)?;
            }
            seen.push(format!("{} {}", errno("CREATE", made), argument.size));
        }
        let size = (1u64 << 40) + PAGE64;
        seen.push(errno("CREATE of much", drm.create(size).map(drop)));

        let (src, dst) = (
            drm.create_flags(2 * PAGE64, EITHER)?,
            drm.create(2 * PAGE64)?,
        );
        let (from, to) = (src.map()?, dst.map()?);
        from.fill(a);
        to.fill(b);
        for object in [&src, &dst] {
            let mut info = object.info()?;
            (info.handle, info.id) = (0, 0);
            seen.push(format!("{info:?}"));
        }
        seen.push(errno("INFO of nothing", drm.info(0xdead)));
        seen.push(errno("MMAP_OFFSET of nothing", drm.mmap_offset(0xdead)));

        drm.copy((&src, 0), (&dst, PAGE64), PAGE64)?.finish()?;
        cpu_reads(&to, b, &[0])?;
        check_eq!(to.read(PAGE / 8), from.read(0), "first word of the copy");
        let sync = SyncObj::new(drm.fd())?;
        let mut copy = VvramGemCopy {
            src: src.handle(),
            dst: dst.handle(),
            size: PAGE64,
            ..Default::default()
        };
        let (one, two) = (sync.sync(1), sync.sync(2));
        drm.copy_syncs(&copy, &[], &[one, two])?;
        seen.push(format!("last point {}", sync.last_point()?));
        sync.wait_point(2, i64::MAX)?;
        cpu_reads(&to, a, &[0])?;
        drm.copy_syncs(&copy, &[one, two], &[sync.sync(0)])?;
        sync.wait(i64::MAX)?;
        let none = drm.copy_syncs(&copy, &[two], &[]);
        seen.push(errno("a copy after no point", none));
        copy.size = u64::MAX;
        seen.push(errno("a copy of too much", drm.copy_raw(&copy)));

        let import = drm.import(&heap)?;
        let mut info = import.import_info()?;
        info.handle = 0;
        info.segments = 0;
        info.invalidations = 0;
        seen.push(format!("{info:?}"));
        seen.push(errno("IMPORT of its own", src.import_info().map(drop)));

        let buffer = dst.export()?;
        check_eq!(
            drm.import_handle(buffer.fd())?,
            dst.handle(),
            "handle of its own export"
        );
        let refused = fixture.peer.attach(&buffer, Mode::Static);
        seen.push(errno("a refused importer", refused));
        let list: Vec<Attachment> = dst.attachments()?;
        seen.push(format!("{list:?}"));
        seen.push(errno("ATTACHMENTS of nothing", drm.attachments(0xdead)));
        for handle in [dst.handle(), 0, 0xdead] {
            let flags = Mode::Dynamic.attachment_flags();
            let query = drm.query(handle, flags, &fixture.edu);
            let query = query.map(|query| uapi::PeerQuery { handle: 0, ..query });
            seen.push(errno("QUERY", query));
        }
        seen.push(errno("CLOSE of nothing", drm.close(0xdead)));
        Ok(seen)
    })
}

/// All ioctls of edu_peer, and the bytes of its transfers.
fn edu_peer() -> Outcome {
    let fixture = Fixture::open()?;
    let (a, b) = patterns();
    same(|| {
        let mut seen = Vec::new();
        let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
        let map = object.map()?;
        map.fill(a);
        let buffer = object.export()?;
        let peer: Peer = fixture.peer.reopen()?;
        seen.push(errno("DETACH of nothing", peer.detach()));
        seen.push(errno("PIN of nothing", peer.pin()));
        seen.push(format!("{:?}", peer.status()?));
        seen.push(format!("{}", peer.attach(&buffer, Mode::Pinned)?));
        seen.push(errno("a second ATTACH", peer.attach(&buffer, Mode::Pinned)));
        seen.push(errno("MAP without a pin", peer.map()));
        peer.pin()?;
        peer.map()?;
        seen.push(format!("{:?}", peer.status()?));
        if fixture.expect != Expect::Refused {
            fixture.check_only(&object, Mode::Pinned, true, true)?;
            fixture.check_table(&peer, &map)?;
        }
        let table = peer.table()?;
        if let Err(text) = check_table(&table, 2 * PAGE64) {
            fail!("{text}");
        }
        seen.push(format!("{} bytes in the table", 2 * PAGE64));
        peer_reads(&peer, a, &[0])?;
        peer_writes(&peer, b, &[1])?;
        cpu_reads(&map, b, &[1])?;
        cpu_reads(&map, a, &[0])?;
        let mut data = vec![0u8; PAGE];
        seen.push(errno("a read outside", peer.read(PAGE64 + 1, &mut data)));

        peer.submit_read(PAGE64, PAGE)?;
        let moved = peer.finish_read(&mut data)?;
        seen.push(format!("{moved} bytes"));
        check_ok!(b.verify(&data, PAGE64), "the peer read");
        a.fill(&mut data, PAGE64);
        peer.submit_write(PAGE64, &data)?;
        seen.push(format!("{} bytes", peer.finish_write()?));
        cpu_reads(&map, a, &[1])?;
        peer.unmap()?;
        seen.push(errno("a second UNMAP", peer.unmap()));
        let cost = peer.measure(3)?;
        check!(
            cost.rounds == 3 && cost.least <= cost.most,
            "MEASURE says {cost:?}"
        );
        seen.push(errno("MEASURE of nothing", peer.measure(0).map(drop)));
        peer.unpin()?;
        seen.push(errno("a second UNPIN", peer.unpin()));
        seen.push(errno("TABLE without a mapping", peer.table().map(drop)));
        seen.push(format!("{:?}", peer.status()?));
        peer.detach()?;
        fixture.check_none(&object)?;

        seen.push(errno("UNREGISTER of nothing", peer.unregister()));
        let memory = Map::private(2 * PAGE)?;
        memory.fill(a);
        peer.register(&memory)?;
        seen.push(errno("a second REGISTER", peer.register(&memory)));
        memory::reached(&peer, 0, uapi::EDU_PEER_MEMORY_KIND_SYSTEM)?;
        memory::reads(&peer, a, &[0])?;
        memory::writes(&peer, b, &[1])?;
        cpu_reads(&memory, b, &[1])?;
        let (moved, result) = peer.memory_try_read(2 * PAGE64, &mut data);
        seen.push(errno(&format!("{moved} bytes outside"), result));
        seen.push(format!("{:?}", peer.memory_counters()?));
        peer.unregister()?;
        Ok(seen)
    })
}

/// The ioctl of bar_export, with an array of ranges above 4 GiB or below.
fn bar_export() -> Outcome {
    let exporter = Exporter::new()?;
    let file = exporter.open()?;
    let (_, size) = exporter.gpu().bar(bar_export::MEMORY as usize)?;
    same(|| {
        let ranges = [(PAGE64, PAGE64), (0, PAGE64)];
        let buffer = bar_export::export_ranges(&file, bar_export::MEMORY, &ranges)?;
        let none = bar_export::export_ranges(&file, bar_export::MEMORY, &[]);
        let outside = bar_export::export(&file, bar_export::MEMORY, size, PAGE64);
        Ok(vec![
            format!("{} bytes", buffer.size()?),
            errno("no ranges", none.map(drop)),
            errno("a range outside", outside.map(drop)),
        ])
    })
}

/// An unknown request fails with ENOTTY or EINVAL, in both ways.
fn unknown() -> Outcome {
    let drm = Drm::open()?;
    let peer = Peer::open()?;
    for on in [false, true] {
        let _on = on.then(compat::on);
        let what = || "no request".to_string();
        let mut argument = 0u64;
        let request = uapi::ioc(3, 0xed, 0x7f, 8);
        let result = ioctl(peer.fd(), request, &mut argument, what);
        expect_errno("no request of edu_peer", result, libc::ENOTTY)?;
        let request = uapi::ioc(3, u64::from(b'd'), uapi::DRM_COMMAND_BASE + 10, 8);
        let result = ioctl(drm.fd(), request, &mut argument, what);
        expect_errno("no request of vvram", result, libc::EINVAL)?;
    }
    Ok(())
}

igt_main! {
    "entry", "the kernel takes the calls for those of 32 bits", entry;
    "vvram", "all ioctls of vvram", vvram;
    "edu-peer", "all ioctls of edu_peer, and the bytes", edu_peer;
    "bar-export", "the ioctl of bar_export", bar_export;
    "unknown", "what is no request", unknown;
}
