// SPDX-License-Identifier: GPL-2.0

//! The NVMe disk, read and written with O_DIRECT to and from memory of any kind.

use std::fs;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::thread;
use std::time::Duration;

use crate::map::{Map, PAGE};
use crate::misc;
use crate::pattern::Pattern;
use crate::pci::PciDevice;
use crate::qmp::Monitor;
use crate::{Outcome, Stop, SysError};

/// Its name in QEMU.
pub const DRIVE: &str = "disk";
const PATH: &str = "/dev/nvme0n1";
const MOUNT: &str = "/tmp/disk";

/// Loads a module of the kernel.
///
/// # Errors
///
/// Fails the subtest if it does not load.
#[track_caller]
pub fn load(module: &str) -> Result<(), Stop> {
    let status = Command::new("modprobe").arg(module).status();
    check!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "modprobe {module}: {status:?}"
    );
    Ok(())
}

/// Runs a command.
///
/// # Errors
///
/// Fails the subtest with the output of the command if it fails.
#[track_caller]
pub fn run(command: &mut Command) -> Result<String, Stop> {
    let output = command.stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Err(Stop::fail(format_args!(
            "{command:?}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))),
        Err(error) => Err(Stop::fail(format_args!("{command:?}: {error}"))),
    }
}

/// Part of a mapping, as the buffer of a read or a write.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    address: usize,
    len: usize,
}

impl Part {
    /// All of a mapping.
    pub fn all(map: &Map) -> Self {
        Self::of(map, 0, map.len())
    }

    /// Some bytes of a mapping.
    pub fn of(map: &Map, at: usize, len: usize) -> Self {
        assert!(
            at + len <= map.len(),
            "{len} bytes at {at} are outside the mapping"
        );
        Self {
            address: map.address().as_ptr() as usize + at,
            len,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.address
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

/// A file that is read and written by direct I/O.
#[derive(Debug)]
pub struct Direct {
    file: File,
    path: PathBuf,
}

impl Direct {
    /// Opens a file, which is made if it is a regular one.
    pub fn open(path: &Path, writable: bool) -> Result<Self, SysError> {
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .create(writable)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| SysError::io(format!("open({})", path.display()), &error))?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
        })
    }

    /// The file descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Reads to memory, or writes from it, all bytes at once.
    ///
    /// The memory need not exist: then the kernel returns an error.
    ///
    /// # Errors
    ///
    /// Any error of the call, and EIO if not all bytes were moved.
    pub fn transfer(&self, way: Way, part: Part, offset: u64) -> Result<(), SysError> {
        transfer(self.fd(), way, part, offset).map_err(|errno| {
            SysError::new(
                format!(
                    "{way:?}({}, {part:?}, offset={offset:#x})",
                    self.path.display()
                ),
                errno,
            )
        })
    }

    /// Makes a transfer in a thread, which sends the result: 0 or an errno.
    pub fn spawn(&self, way: Way, part: Part, offset: u64) -> Receiver<i32> {
        let (fd, (send, receive)) = (self.fd(), channel());
        thread::spawn(move || {
            let errno = transfer(fd, way, part, offset).err().unwrap_or(0);
            let _ = send.send(errno);
        });
        receive
    }

    /// As [`Self::spawn`], and waits until the pages are pinned.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it has not begun to wait within 20 seconds.
    #[track_caller]
    pub fn start(&self, way: Way, part: Part, offset: u64) -> Result<Receiver<i32>, Stop> {
        let begun = pinned()?;
        let receive = self.spawn(way, part, offset);
        let pages = (part.len / PAGE) as i64;
        let begun = misc::poll(Duration::from_secs(20), || {
            (pinned().ok()? >= begun + pages).then_some(())
        });
        match begun {
            Some(()) => Ok(receive),
            None => Err(Stop::fail(format_args!(
                "a transfer does not pin {pages} pages: {:?}",
                receive.try_recv()
            ))),
        }
    }
}

fn transfer(fd: RawFd, way: Way, part: Part, offset: u64) -> Result<(), i32> {
    let at = offset as libc::off_t;
    // SAFETY: the kernel checks the address; it writes to a mapping that is accessed with volatile
    // accesses only, or to no mapping of the program.
    let count = unsafe {
        match way {
            Way::Read => libc::pread(fd, part.address as *mut libc::c_void, part.len, at),
            Way::Write => libc::pwrite(fd, part.address as *const libc::c_void, part.len, at),
        }
    };
    if count < 0 {
        return Err(SysError::last("").errno);
    }
    if count as usize == part.len {
        Ok(())
    } else {
        Err(libc::EIO)
    }
}

/// A number in /proc/vmstat.
///
/// # Errors
///
/// Fails the subtest if it is not there.
#[track_caller]
pub fn vmstat(name: &str) -> Result<i64, Stop> {
    misc::add_up_counters();
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.parse().ok())?
    });
    value.ok_or_else(|| Stop::fail(format_args!("/proc/vmstat has no {name}")))
}

/// How many pages are pinned for I/O right now, of all processes.
#[track_caller]
pub fn pinned() -> Result<i64, Stop> {
    Ok(vmstat("nr_foll_pin_acquired")? - vmstat("nr_foll_pin_released")?)
}

/// The disk.
#[derive(Debug)]
pub struct Disk {
    /// The whole disk, by direct I/O.
    pub direct: Direct,
}

impl Disk {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        load("nvme")?;
        let path = Path::new(PATH);
        if misc::poll(Duration::from_secs(20), || path.exists().then_some(())).is_none() {
            fail!("{PATH} is not there");
        }
        Ok(Self {
            direct: Direct::open(path, true)?,
        })
    }

    /// The path of its node.
    pub fn path(&self) -> &Path {
        &self.direct.path
    }

    /// The PCI device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if sysfs does not name it.
    #[track_caller]
    pub fn device(&self) -> Result<PciDevice, Stop> {
        PciDevice::above(Path::new("/sys/class/nvme/nvme0/device"))
            .ok_or_else(|| Stop::fail("sysfs does not have the device of nvme0"))
    }

    /// Fills some bytes with a pattern, from system memory.
    pub fn fill(&self, pattern: Pattern, offset: u64, len: usize) -> Result<(), SysError> {
        let map = Map::private(len)?;
        map.fill(pattern);
        self.direct.transfer(Way::Write, Part::all(&map), offset)
    }

    /// Compares some bytes with a pattern, read to system memory.
    ///
    /// # Errors
    ///
    /// Fails the subtest if they differ.
    #[track_caller]
    pub fn verify(&self, pattern: Pattern, offset: u64, len: usize) -> Result<(), Stop> {
        let map = Map::private(len)?;
        self.direct.transfer(Way::Read, Part::all(&map), offset)?;
        map.verify(pattern)
            .map_err(|mismatch| Stop::fail(format_args!("on the disk: {mismatch}")))
    }

    /// Holds the disk up until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// Fails the subtest if QEMU does not do it.
    #[track_caller]
    pub fn stall(&self) -> Result<Stalled, Stop> {
        let mut monitor = Monitor::open()?;
        // One byte per second: after a page the disk does nothing for more than an hour.
        monitor.throttle(DRIVE, 1)?;
        let stalled = Stalled { monitor };
        let map = Map::private(PAGE)?;
        self.direct.transfer(Way::Read, Part::all(&map), 0)?;
        Ok(stalled)
    }

    /// Holds the disk up, and starts to read to a part of a mapping.
    #[track_caller]
    pub fn stall_in_read(&self, part: Part) -> Result<StalledRead, Stop> {
        let stalled = self.stall()?;
        Ok(StalledRead {
            read: self.direct.start(Way::Read, part, 0)?,
            stalled,
        })
    }
}

/// A file system on the disk, until this is dropped.
#[derive(Debug)]
pub struct Ext4(());

impl Ext4 {
    /// Makes it, and mounts it.
    ///
    /// # Errors
    ///
    /// Fails the subtest if a command fails.
    #[track_caller]
    pub fn mounted() -> Result<Self, Stop> {
        load("ext4")?;
        // The disk must not be open while it is mounted.
        let disk = Disk::open()?.path().to_path_buf();
        run(Command::new("mkfs.ext4")
            .args(["-F", "-q"])
            .arg(&disk)
            .arg("32M"))?;
        fs::create_dir_all(MOUNT).map_err(|error| SysError::io(MOUNT, &error))?;
        run(Command::new("mount")
            .args(["-t", "ext4"])
            .arg(&disk)
            .arg(MOUNT))?;
        Ok(Self(()))
    }

    /// The path of a file.
    pub fn file(&self, name: &str) -> PathBuf {
        Path::new(MOUNT).join(name)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(MOUNT).status();
    }
}

/// A disk that is held up until this is dropped.
#[derive(Debug)]
pub struct Stalled {
    monitor: Monitor,
}

impl Stalled {
    /// The monitor, to which there can be one connection.
    pub fn monitor(&mut self) -> &mut Monitor {
        &mut self.monitor
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        let _ = self.monitor.throttle(DRIVE, 0);
    }
}

/// A read that a disk has begun, and that is held up until this is dropped.
#[derive(Debug)]
pub struct StalledRead {
    /// The disk.
    pub stalled: Stalled,
    read: Receiver<i32>,
}

impl StalledRead {
    /// Releases the disk, and waits until it has read all bytes.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the read was done before, or if it fails.
    #[track_caller]
    pub fn finish(&mut self) -> Outcome {
        check!(self.read.try_recv().is_err(), "the disk did not wait");
        self.stalled.monitor().throttle(DRIVE, 0)?;
        check_eq!(
            self.read.recv_timeout(Duration::from_secs(20)),
            Ok(0),
            "what came of the read"
        );
        Ok(())
    }
}

/// Reads a part of a file through the page cache, after dropping its pages from there.
pub fn cached(path: &Path, offset: u64, len: usize) -> Result<Vec<u8>, SysError> {
    let fail = |error: std::io::Error| SysError::io(path.display().to_string(), &error);
    let file = File::open(path).map_err(fail)?;
    // SAFETY: a plain system call on an fd that is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let mut data = vec![0; len];
    file.read_exact_at(&mut data, offset).map_err(fail)?;
    Ok(data)
}
