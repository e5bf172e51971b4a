// SPDX-License-Identifier: GPL-2.0

//! Export, import and CPU access of dma-bufs.

use std::time::Duration;

use vvram_tests::drm::{prime_import, reason_name, DmaBuf, Drm};
use vvram_tests::fixture::patterns;
use vvram_tests::foreign::Vgem;
use vvram_tests::map::{Map, PAGE, PAGE64};
use vvram_tests::proc::{Child, Steps};
use vvram_tests::socket::{receive_fd, send_fd, sockets};
use vvram_tests::uapi;
use vvram_tests::{check, check_eq, check_ok, expect_errno, fail, igt_main, Outcome};

const LIMIT: Duration = Duration::from_secs(20);

fn same_inode() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(2 * PAGE64)?;
    let (one, two) = (object.export()?, object.export()?);
    check!(one.fd() != two.fd(), "two exports gave the same fd");
    check_eq!(two.inode()?, one.inode()?, "inode of the second export");
    let inode = one.inode()?;
    drop((one, two));
    check_eq!(
        object.export()?.inode()?,
        inode,
        "inode of an export after the fds were closed"
    );
    let other = drm.create(2 * PAGE64)?;
    check!(
        other.export()?.inode()? != inode,
        "two objects have the same dma-buf"
    );
    Ok(())
}

fn self_import() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let object = drm.create(2 * PAGE64)?;
    let buffer = object.export()?;
    for _ in 0..3 {
        check_eq!(
            drm.import_handle(buffer.fd())?,
            object.handle(),
            "handle of a self-import on the same file"
        );
    }
    drm.await_vram_free(free - 2 * PAGE64)?;
    check!(
        object.attachments()?.is_empty(),
        "a self-import should not attach: {:?}",
        object.attachments()?
    );
    // There is one handle, so one close is enough.
    let handle = object.leak();
    drm.close(handle)?;
    expect_errno("a second close", drm.close(handle), libc::EINVAL)?;
    drop(buffer);
    drm.await_vram_free(free)?;
    Ok(())
}

fn second_file() -> Outcome {
    let drm = Drm::open()?;
    let other = drm.reopen()?;
    let free = drm.vram_free()?;
    let (a, b) = patterns();
    let object = drm.create(4 * PAGE64)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    let import = other.import(&buffer)?;
    check!(
        object.attachments()?.is_empty(),
        "the device has attached to its own buffer"
    );
    drm.await_vram_free(free - 4 * PAGE64)?;
    let import_map = import.map()?;
    check_ok!(
        import_map.verify(a),
        "the second file does not see the first file's bytes"
    );
    import_map.fill(b);
    check_ok!(
        map.verify(b),
        "the first file does not see the second file's bytes"
    );
    check_eq!(
        import.export()?.inode()?,
        buffer.inode()?,
        "inode of the dma-buf the second file exports"
    );
    drop((map, buffer));
    object.close()?;
    check_ok!(
        import_map.verify(b),
        "after the first file closed its handle"
    );
    drm.await_vram_free(free - 4 * PAGE64)?;
    drop(import_map);
    import.close()?;
    drm.await_vram_free(free)?;
    Ok(())
}

fn close_handle_then_import() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, _) = patterns();
    let object = drm.create(4 * PAGE64)?;
    object.map()?.fill(a);
    let buffer = object.export()?;
    object.close()?;
    drm.await_vram_free(free - 4 * PAGE64)?;
    let again = drm.import(&buffer)?;
    check_ok!(
        again.map()?.verify(a),
        "imported after the handle was closed"
    );
    again.close()?;
    drop(buffer);
    drm.await_vram_free(free)?;
    Ok(())
}

fn close_file_then_import() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, _) = patterns();
    let buffer = {
        let other = drm.reopen()?;
        let object = other.create(4 * PAGE64)?;
        object.map()?.fill(a);
        object.export()?
    };
    drm.await_vram_free(free - 4 * PAGE64)?;
    let again = drm.import(&buffer)?;
    check_ok!(
        again.map()?.verify(a),
        "imported after the exporting file was closed"
    );
    drop(buffer);
    again.close()?;
    drm.await_vram_free(free)?;
    Ok(())
}

fn fd_passing() -> Outcome {
    let (a, b) = patterns();
    let (ours, theirs) = sockets()?;
    let checked = Steps::new()?;
    // Forked before the buffer exists, so the child gets it only by the file descriptor.
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let buffer = DmaBuf::new(receive_fd(&theirs)?);
        check_eq!(buffer.size()?, 4 * PAGE64, "size of the dma-buf received");
        let object = drm.import(&buffer)?;
        let map = object.map()?;
        check_ok!(
            map.verify(a),
            "the receiver does not see the sender's bytes"
        );
        map.fill(b);
        checked.done()?;
        Ok(())
    })?;
    let drm = Drm::open()?;
    let object = drm.create(4 * PAGE64)?;
    let map = object.map()?;
    map.fill(a);
    let buffer = object.export()?;
    send_fd(&ours, buffer.fd())?;
    checked.wait("the receiver", LIMIT)?;
    child.join("the receiver", LIMIT)?;
    check_ok!(
        map.verify(b),
        "the sender does not see the receiver's bytes"
    );
    Ok(())
}

fn fd_in_flight() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, _) = patterns();
    let (ours, theirs) = sockets()?;
    let object = drm.create(4 * PAGE64)?;
    object.map()?.fill(a);
    let buffer = object.export()?;
    send_fd(&ours, buffer.fd())?;
    // Only the message in the socket holds a reference to the buffer now.
    drop(buffer);
    object.close()?;
    drm.await_vram_free(free - 4 * PAGE64)?;
    let buffer = DmaBuf::new(receive_fd(&theirs)?);
    let object = drm.import(&buffer)?;
    check_ok!(object.map()?.verify(a), "imported from flight");
    Ok(())
}

fn seek() -> Outcome {
    let drm = Drm::open()?;
    for size in [1u64, PAGE64, 7 * PAGE64 - 1] {
        let object = drm.create(size)?;
        let buffer = object.export()?;
        check_eq!(
            buffer.seek(0, libc::SEEK_END)?,
            size.div_ceil(PAGE64) * PAGE64,
            "lseek(SEEK_END) of an object of {size} bytes"
        );
        check_eq!(buffer.seek(0, libc::SEEK_SET)?, 0, "lseek(SEEK_SET)");
        expect_errno(
            "lseek(SEEK_CUR)",
            buffer.seek(0, libc::SEEK_CUR),
            libc::EINVAL,
        )?;
        expect_errno("lseek to 1", buffer.seek(1, libc::SEEK_SET), libc::EINVAL)?;
    }
    Ok(())
}

fn dmabuf_mmap() -> Outcome {
    let drm = Drm::open()?;
    let (a, b) = patterns();
    let object = drm.create(4 * PAGE64)?;
    let map = object.map()?;
    let buffer = object.export()?;
    let other = buffer.map()?;
    buffer.sync(uapi::DMA_BUF_SYNC_WRITE)?;
    other.fill(a);
    buffer.sync(uapi::DMA_BUF_SYNC_WRITE | uapi::DMA_BUF_SYNC_END)?;
    check_ok!(map.verify(a), "written through the dma-buf");
    map.fill(b);
    buffer.sync(uapi::DMA_BUF_SYNC_READ)?;
    check_ok!(other.verify(b), "read through the dma-buf");
    buffer.sync(uapi::DMA_BUF_SYNC_READ | uapi::DMA_BUF_SYNC_END)?;
    // From the middle, and past the end.
    let tail = Map::new(buffer.fd(), 2 * PAGE64, 2 * PAGE)?;
    check_eq!(
        tail.read(0),
        b.word(2 * PAGE64 / 8),
        "first word of a mapping from the third page on"
    );
    for (offset, pages) in [(0, 5), (2, 3), (4, 1), (1 << 40, 1)] {
        expect_errno(
            &format!("mapping {pages} pages of a dma-buf of 4 from page {offset} on"),
            Map::new(buffer.fd(), offset * PAGE64, pages * PAGE),
            libc::EINVAL,
        )?;
    }
    Ok(())
}

fn dmabuf_mmap_outlives() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (a, _) = patterns();
    let object = drm.create(4 * PAGE64)?;
    let buffer = object.export()?;
    let map = buffer.map()?;
    drop(buffer);
    object.close()?;
    map.fill(a);
    let other = drm.create(4 * PAGE64)?;
    other.map()?.set(!0);
    check_ok!(map.verify(a), "a mapping that outlives handle and fd");
    drm.await_vram_free(free - 8 * PAGE64)?;
    other.close()?;
    drop(map);
    drm.await_vram_free(free)?;
    Ok(())
}

fn read_only() -> Outcome {
    let drm = Drm::open()?;
    let (a, _) = patterns();
    let object = drm.create(2 * PAGE64)?;
    object.map()?.fill(a);
    let buffer = drm.export(object.handle(), uapi::DRM_CLOEXEC)?;
    let map = Map::with_prot(buffer.fd(), 0, 2 * PAGE, libc::PROT_READ)?;
    check_ok!(map.verify(a), "a dma-buf exported without DRM_RDWR");
    expect_errno(
        "a writable mapping of a dma-buf exported without DRM_RDWR",
        buffer.map(),
        libc::EACCES,
    )?;
    Ok(())
}

fn sync_ioctl() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(PAGE64)?;
    let buffer = object.export()?;
    let (read, write) = (uapi::DMA_BUF_SYNC_READ, uapi::DMA_BUF_SYNC_WRITE);
    for direction in [read, write, read | write] {
        for _ in 0..2 {
            buffer.sync(direction)?;
            buffer.sync(direction | uapi::DMA_BUF_SYNC_END)?;
        }
    }
    for flags in [0, uapi::DMA_BUF_SYNC_END, 8 | read, 1 << 63 | read] {
        let what = format!("DMA_BUF_IOCTL_SYNC with flags {flags:#x}");
        expect_errno(&what, buffer.sync(flags), libc::EINVAL)?;
    }
    Ok(())
}

fn export_flags() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(PAGE64)?;
    for flags in [1, 4, 0x800, 0x8000_0000] {
        expect_errno(
            &format!("PRIME_HANDLE_TO_FD with flags {flags:#x}"),
            drm.export(object.handle(), flags),
            libc::EINVAL,
        )?;
    }
    // SAFETY: plain system calls on fds that are open.
    let flag = |buffer: &DmaBuf| unsafe { libc::fcntl(buffer.fd(), libc::F_GETFD) };
    let plain = drm.export(object.handle(), uapi::DRM_RDWR)?;
    check_eq!(flag(&plain), 0, "fd flags without DRM_CLOEXEC");
    let closing = drm.export(object.handle(), uapi::DRM_RDWR | uapi::DRM_CLOEXEC)?;
    check_eq!(
        flag(&closing),
        libc::FD_CLOEXEC,
        "fd flags with DRM_CLOEXEC"
    );
    Ok(())
}

fn import_bad_fd() -> Outcome {
    let drm = Drm::open()?;
    for fd in [-1, i32::MIN, 1 << 20] {
        expect_errno(
            &format!("PRIME_FD_TO_HANDLE of fd {fd}"),
            drm.import_handle(fd),
            libc::EBADF,
        )?;
    }
    expect_errno(
        "PRIME_FD_TO_HANDLE of the DRM fd itself",
        drm.import_handle(drm.fd()),
        libc::EINVAL,
    )?;
    Ok(())
}

fn import_elsewhere() -> Outcome {
    let vgem = Vgem::open()?;
    let drm = Drm::open()?;
    let object = drm.create(PAGE64)?;
    let buffer = object.export()?;
    // vgem attaches without importer ops, and is not a PCI device.
    expect_errno(
        "an import into vgem",
        prime_import(vgem.fd(), buffer.fd()),
        libc::EOPNOTSUPP,
    )?;
    let list = object.attachments()?;
    let [entry] = list.as_slice() else {
        fail!("one refusal was expected, PEER_ATTACHMENTS lists {list:?}");
    };
    check!(
        entry.refused() && entry.reason == uapi::REASON_NO_OPT_IN && entry.distance == -1,
        "expected a refusal for reason no-opt-in at distance -1, saw {} in {entry:?}",
        reason_name(entry.reason)
    );
    check_eq!(
        entry.flags,
        0,
        "flags of an importer that has no importer ops"
    );
    Ok(())
}

fn export_killed() -> Outcome {
    let drm = Drm::open()?;
    let free = drm.vram_free()?;
    let (ours, theirs) = sockets()?;
    let (a, _) = patterns();
    let mut child = Child::spawn(|| {
        let drm = Drm::open()?;
        let object = drm.create(4 * PAGE64)?;
        object.map()?.fill(a);
        send_fd(&theirs, object.export()?.fd())?;
        vvram_tests::proc::sleep_forever()
    })?;
    let buffer = DmaBuf::new(receive_fd(&ours)?);
    child.kill()?;
    let object = drm.import(&buffer)?;
    check_ok!(
        object.map()?.verify(a),
        "after the exporting process was killed"
    );
    object.close()?;
    drop(buffer);
    drm.await_vram_free(free)?;
    Ok(())
}

igt_main! {
    "same-inode", "every export of an object is the same dma-buf", same_inode;
    "self-import", "the same file gets the same handle and nothing attaches", self_import;
    "second-file", "another file gets the same object and sees its bytes", second_file;
    "close-handle-then-import", "the fd alone keeps the bytes", close_handle_then_import;
    "close-file-then-import", "the fd outlives the DRM file", close_file_then_import;
    "fd-passing", "a process that gets the fd by a unix socket shares the bytes", fd_passing;
    "fd-in-flight", "an fd in a socket keeps the bytes", fd_in_flight;
    "seek", "lseek tells the size and nothing else", seek;
    "dmabuf-mmap", "mmap on the dma-buf, coherent with the DRM mapping", dmabuf_mmap;
    "dmabuf-mmap-outlives", "its mapping keeps the VRAM", dmabuf_mmap_outlives;
    "read-only", "without DRM_RDWR there is no writable mapping", read_only;
    "sync-ioctl", "DMA_BUF_IOCTL_SYNC takes valid flags only", sync_ioctl;
    "export-flags", "DRM_CLOEXEC and DRM_RDWR and no others", export_flags;
    "import-bad-fd", "EBADF, EINVAL", import_bad_fd;
    "import-elsewhere", "vgem may not have VRAM, and the refusal says why", import_elsewhere;
    "export-killed", "the fd outlives a killed exporter process", export_killed;
}
