// SPDX-License-Identifier: GPL-2.0

//! Files, io_uring and fio with buffers in VRAM, and calls that refuse such buffers.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use vvram_tests::disk::{cached, pinned, Direct, Disk, Ext4, Part, Way};
use vvram_tests::drm::{Drm, Gem};
use vvram_tests::fixture::{patterns, Expect};
use vvram_tests::igt::say;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::uapi::{CREATE_DIRECT_IO, CREATE_VRAM};
use vvram_tests::{check, check_eq, check_ok, expect_errno, igt_main, Outcome, SysError};

const LEN: usize = 64 * PAGE;

fn create(drm: &Drm, len: usize) -> Result<Gem<'_>, SysError> {
    drm.create_flags(len as u64, CREATE_VRAM | CREATE_DIRECT_IO)
}

fn ext4() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let mounted = Ext4::mounted()?;
    let (a, b) = patterns();
    let object = create(&drm, LEN)?;
    let map = object.map()?;
    let before = pinned()?;

    // A file that was written through the page cache is read straight to VRAM.
    let (from, to) = (mounted.file("from"), mounted.file("to"));
    let mut data = vec![0; LEN];
    a.fill(&mut data, 0);
    fs::write(&from, &data).map_err(|error| SysError::io("write(from)", &error))?;
    map.fill(b);
    Direct::open(&from, false)?.transfer(Way::Read, Part::all(&map), 0)?;
    check_ok!(map.verify(a), "read from ext4");

    // The other direction.
    map.fill(b);
    let file = Direct::open(&to, true)?;
    file.transfer(Way::Write, Part::all(&map), 0)?;
    // SAFETY: a plain system call on an fd that is open.
    check_eq!(unsafe { libc::fsync(file.fd()) }, 0, "fsync()");
    let data = cached(&to, 0, LEN)?;
    check_ok!(b.verify(&data, 0), "written to ext4");
    check_eq!(pinned()?, before, "pages that stay pinned");
    Ok(())
}

/// fio with verification: it writes from VRAM, reads back to it, and compares.
fn fio() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let object = create(&drm, 1 << 20)?;
    let offset = drm.mmap_offset(object.handle())?;
    // SAFETY: a plain system call on an fd that is open; programs inherit the new one.
    let fd = unsafe { libc::dup(drm.fd()) };
    check!(fd >= 0, "dup()");
    let before = pinned()?;
    let mut command = Command::new("fio");
    command
        .args([
            "--name=vram",
            "--ioengine=io_uring",
            "--direct=1",
            "--thread",
        ])
        .args(["--rw=randwrite", "--bs=16k", "--size=4m", "--iodepth=8"])
        .args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ])
        .arg(format!("--filename={}", disk.path().display()))
        .arg(format!("--mem=mmapshared:{}", drm.path().display()))
        .env("LD_PRELOAD", "/lab/bin/libfio_buffer.so")
        .env("VVRAM_FD", fd.to_string())
        .env("VVRAM_OFFSET", offset.to_string());
    let output = command.stdin(Stdio::null()).output();
    // SAFETY: nothing else owns the fd.
    unsafe { libc::close(fd) };
    let output = output.map_err(|error| SysError::io("fio", &error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    say(&text);
    check!(
        output.status.success() && text.contains("err= 0"),
        "fio: {}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    check_eq!(pinned()?, before, "pages that stay pinned");
    // The buffers of fio were in the object, which has the bytes that fio has written last.
    let map = object.map()?;
    let written = (0..map.len() / 8)
        .filter(|word| map.read(*word) != 0)
        .count();
    check!(written > 1000, "{written} words of the object are not zero");
    Ok(())
}

/// An io_uring whose entries are not used.
struct Ring(i32);

impl Ring {
    fn new() -> Result<Self, SysError> {
        // struct io_uring_params, with all fields zero.
        let mut params = [0u32; 30];
        // SAFETY: the structure has 120 bytes.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
        if fd < 0 {
            return Err(SysError::last("io_uring_setup()"));
        }
        Ok(Self(fd as i32))
    }

    /// Registers a buffer, which needs a long-term pin of its pages.
    fn register(&self, part: Part) -> Result<(), SysError> {
        const IORING_REGISTER_BUFFERS: u32 = 0;
        let buffer = libc::iovec {
            iov_base: part.address() as *mut libc::c_void,
            iov_len: part.len(),
        };
        // SAFETY: one valid structure.
        let status = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.0,
                IORING_REGISTER_BUFFERS,
                &raw const buffer,
                1,
            )
        };
        if status < 0 {
            return Err(SysError::last("io_uring_register(BUFFERS)"));
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: nothing else owns the fd.
        unsafe { libc::close(self.0) };
    }
}

fn fixed() -> Outcome {
    let drm = Drm::open()?;
    let object = create(&drm, PAGE)?;
    let map = object.map()?;
    map.write(0, 1);
    let before = pinned()?;
    let result = Ring::new()?.register(Part::all(&map));
    expect_errno("a fixed buffer in VRAM", result, libc::EREMOTEIO)?;
    check_eq!(pinned()?, before, "pages that stay pinned");
    // The positive control.
    let ram = Map::private(PAGE)?;
    Ring::new()?.register(Part::all(&ram))?;
    Ok(())
}

/// Calls other than direct I/O do not get the pages.
fn refused() -> Outcome {
    let drm = Drm::open()?;
    let object = create(&drm, PAGE)?;
    let map = object.map()?;
    map.write(0, 1);
    let address = map.address().as_ptr().cast::<libc::c_void>();
    let before = pinned()?;
    let memory = fs::File::open("/proc/self/mem").map_err(|error| SysError::io("mem", &error))?;
    let error = memory.read_exact_at(&mut [0; 8], address as u64).err();
    let errno = error.and_then(|error| error.raw_os_error());
    check_eq!(errno, Some(libc::EIO), "the error of /proc/self/mem");
    let there = libc::iovec {
        iov_base: address,
        iov_len: PAGE,
    };

    let (read, write) = {
        let mut fds = [0; 2];
        // SAFETY: the pointer is valid for a write of two ints.
        check_eq!(unsafe { libc::pipe(fds.as_mut_ptr()) }, 0, "pipe()");
        (fds[0], fds[1])
    };
    // SAFETY: as above.
    let count = unsafe { libc::vmsplice(write, &raw const there, 1, 0) };
    let errno = SysError::last("").errno;
    // SAFETY: nothing else owns the fds.
    unsafe { (libc::close(read), libc::close(write)) };
    check_eq!(count, -1, "vmsplice()");
    check_eq!(errno, libc::EREMOTEIO, "its error");

    let offset = drm.mmap_offset(object.handle())? as libc::off_t;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let private = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            prot,
            libc::MAP_PRIVATE,
            drm.fd(),
            offset,
        )
    };
    check_eq!(private, libc::MAP_FAILED, "a private mapping");
    check_eq!(SysError::last("").errno, libc::EINVAL, "its error");
    check_eq!(pinned()?, before, "pages that stay pinned");
    Ok(())
}

/// One transfer writes to RAM and to VRAM.
fn mixed() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let disk = Disk::open()?;
    let (a, b) = patterns();
    let object = create(&drm, 4 * PAGE)?;
    let (vram, ram) = (object.map()?, Map::private(4 * PAGE)?);
    vram.fill(b);
    ram.fill(b);
    disk.fill(a, 0, 4 * PAGE)?;
    let at = |map: &Map, page: usize| libc::iovec {
        iov_base: Part::of(map, page * PAGE, PAGE).address() as *mut libc::c_void,
        iov_len: PAGE,
    };
    let parts = [at(&ram, 0), at(&vram, 1), at(&ram, 2), at(&vram, 3)];
    // SAFETY: the structures are valid, and the mappings are accessed with volatile accesses only.
    let count = unsafe { libc::preadv(disk.direct.fd(), parts.as_ptr(), 4, 0) };
    check_eq!(count, 4 * PAGE as isize, "bytes that were read");
    for page in 0..4 {
        let (first, second) = if page % 2 == 0 { (a, b) } else { (b, a) };
        for (map, pattern, what) in [(&ram, first, "RAM"), (&vram, second, "VRAM")] {
            check_ok!(map.verify_pages(pattern, page, 1), "{what}");
        }
    }
    Ok(())
}

/// Nothing of the file is in the page cache after direct I/O.
fn uncached() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let mounted = Ext4::mounted()?;
    let object = create(&drm, LEN)?;
    let map = object.map()?;
    map.fill(patterns().0);
    let path = mounted.file("file");
    Direct::open(&path, true)?.transfer(Way::Write, Part::all(&map), 0)?;
    let file = fs::File::open(&path).map_err(|error| SysError::io("open(file)", &error))?;
    check_eq!(in_cache(&file)?, 0, "pages of the file in the page cache");
    // The positive control.
    fs::read(&path).map_err(|error| SysError::io("read(file)", &error))?;
    check_eq!(
        in_cache(&file)?,
        LEN as u64 / PAGE as u64,
        "pages after a plain read"
    );
    Ok(())
}

/// How many pages of a file the page cache has.
fn in_cache(file: &fs::File) -> Result<u64, SysError> {
    const SYS_CACHESTAT: libc::c_long = 451;
    // struct cachestat_range: all of the file; struct cachestat: the first number is nr_cache.
    let range = [0u64; 2];
    let mut stat = [0u64; 5];
    // SAFETY: both structures have these sizes.
    let status = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            stat.as_mut_ptr(),
            0,
        )
    };
    if status < 0 {
        return Err(SysError::last("cachestat()"));
    }
    Ok(stat[0])
}

igt_main! {
    "ext4", "a file system reads to VRAM and writes from it", ext4;
    "uncached", "the page cache has no part in it", uncached;
    "fio", "fio with io_uring verifies what it reads to VRAM", fio;
    "mixed", "one read to RAM and VRAM", mixed;
    "fixed", "EREMOTEIO for fixed buffers of io_uring", fixed;
    "refused", "what is not direct I/O gets no page", refused;
}
