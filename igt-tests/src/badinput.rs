// SPDX-License-Identifier: GPL-2.0

//! Bad input for each call of [`crate::describe`].
//!
//! A [`Scene`] has one of each thing that a call may need, so a valid argument can be made. Then
//! each field in turn gets each value that the kernel has to refuse, also in the structures that
//! the argument points to, and each pointer is one to nowhere. After that nothing may have changed,
//! and the valid argument has to be accepted, wherever it is: in memory of the process, in a mapping
//! of the object that the call is about, and in a page that userfaultfd supplies while the kernel
//! waits for it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use crate::debugfs::Counter;
use crate::describe::{make, Call, Field, File, Kind, Layout, Source, Thing, NOWHERE};
use crate::drm::{ioctl, ioctl_raw, DmaBuf, Drm, Gem};
use crate::fuzz::arena;
use crate::igt::say;
use crate::map::{Map, PAGE};
use crate::misc;
use crate::pci::PciDevice;
use crate::peer::{Mode, Peer};
use crate::rebind::Unbinding;
use crate::signals::open_files;
use crate::userfault::Missing;
use crate::{expect_errno, uapi, Outcome, Stop, SysError};

/// Four pages of the process that calls may change, of which the last one cannot be accessed. There
/// is nothing behind them: a range that is far too long must not reach memory that this process
/// shares with its parent, where it would stay in VRAM.
const MEMORY: u64 = arena::START as u64;

/// What calls may need.
pub struct Scene<'a> {
    /// The file that is called.
    pub fd: RawFd,
    /// Handles by [`Thing`], and handles that were closed, or that only another file has.
    pub handles: [(u64, u64); 3],
    /// Other files, by kind.
    pub files: Vec<(File, RawFd)>,
    /// A mapping of a device, whose content may change.
    pub device: Option<&'a Map>,
    /// Makes a handle that a call may close.
    pub another: Option<&'a dyn Fn(Thing) -> Result<u64, SysError>>,
    /// Prepares a call, before each time that it is to succeed.
    pub prepare: Option<&'a dyn Fn(&Call) -> Outcome>,
    /// What has to be possible while a call waits for memory of its process.
    pub meanwhile: Option<&'a dyn Fn() -> Outcome>,
    /// What must be the same after refused calls.
    pub state: &'a dyn Fn() -> Result<Vec<u64>, Stop>,
    scratch: Map,
    used: usize,
}

impl Source for Scene<'_> {
    fn number(&mut self, _end: u64) -> u64 {
        0
    }

    fn odd(&mut self) -> bool {
        false
    }

    fn handle(&mut self, thing: Thing) -> u64 {
        self.handles[thing as usize].0
    }

    fn fd(&mut self, kind: File) -> i32 {
        let known = self.files.iter().find(|(known, _)| *known == kind);
        known.map_or(-1, |(_, fd)| *fd)
    }

    fn memory(&mut self) -> u64 {
        MEMORY
    }

    fn place(&mut self, bytes: &[u8]) -> u64 {
        let at = self.room(bytes.len());
        write(at, bytes);
        at
    }

    fn room(&mut self, len: usize) -> u64 {
        let at = self.scratch.page_address(0) + self.used as u64;
        self.used += len.next_multiple_of(64).max(64);
        assert!(self.used <= self.scratch.len(), "there is no room");
        at
    }

    fn count(&mut self) -> u64 {
        1
    }
}

/// Writes bytes to the scratch memory of a scene, or a mapping of a device.
fn write(at: u64, bytes: &[u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        // SAFETY: the address is one of a mapping that the scene has, and that has the room.
        unsafe { (at as *mut u8).add(index).write_volatile(*byte) };
    }
}

/// Reads bytes from there.
fn read(at: u64, len: usize) -> Vec<u8> {
    // SAFETY: as above.
    (0..len)
        .map(|index| unsafe { (at as *const u8).add(index).read_volatile() })
        .collect()
}

impl<'a> Scene<'a> {
    /// For a file, without anything else.
    pub fn new(fd: RawFd, state: &'a dyn Fn() -> Result<Vec<u64>, Stop>) -> Result<Self, SysError> {
        Ok(Self {
            fd,
            handles: [(0, 0); 3],
            files: Vec::new(),
            device: None,
            another: None,
            prepare: None,
            meanwhile: None,
            state,
            scratch: Map::private(256 * PAGE)?,
            used: 0,
        })
    }

    fn call(&self, call: &Call, at: u64) -> Result<i32, SysError> {
        let what = || format!("{} with {:x?}", call.name, self.words(call, at));
        // SAFETY: the argument, and what its pointers refer to, are in the scratch memory, or
        // nowhere.
        unsafe { ioctl_raw(self.fd, call.request, at, what) }
    }

    /// The argument, for messages.
    fn words(&self, call: &Call, at: u64) -> Vec<(&'static str, u64)> {
        let start = self.scratch.page_address(0);
        if !(start..start + self.scratch.len() as u64).contains(&at) {
            return vec![("at", at)];
        }
        let bytes = read(at, call.argument.size);
        call.argument
            .fields
            .iter()
            .map(|field| (field.name, field.get(&bytes)))
            .collect()
    }

    /// A valid argument, in scratch memory.
    fn valid(&mut self, call: &Call) -> Result<(Vec<u8>, u64), Stop> {
        // What is beyond a structure has to be zero.
        write(self.scratch.page_address(0), &vec![0; self.used]);
        self.used = 0;
        let closes = call
            .argument
            .fields
            .iter()
            .find_map(|field| match field.kind {
                Kind::Closes(thing, _) => Some(thing),
                _ => None,
            });
        let kept = self.handles;
        if let (Some(thing), Some(another)) = (closes, self.another) {
            self.handles[thing as usize].0 = another(thing)?;
        }
        let bytes = make(&call.argument, self);
        self.handles = kept;
        let at = self.place(&bytes);
        Ok((bytes, at))
    }

    /// Makes each bad call, then the valid one in each kind of memory, after which the state is as
    /// before.
    ///
    /// # Errors
    ///
    /// Fails the subtest if a call has another result, or if a bad one has changed something.
    pub fn check(&mut self, call: &Call, before: &Vec<u64>) -> Outcome {
        if let Some(prepare) = self.prepare {
            prepare(call)?;
        }
        let files = open_files();
        let (bytes, at) = self.valid(call)?;
        let mut bad = self.fields(call, &call.argument, at, at)?;
        for address in NOWHERE {
            if call.argument.size > 0 {
                let result = self.call(call, address);
                expect_errno("an argument that is nowhere", result, libc::EFAULT)?;
                bad += 1;
            }
        }
        let name = call.name;
        check_eq!(read(at, bytes.len()), bytes, "the argument of {name}");
        self.succeeds(call, at)?;
        self.in_device(call)?;
        self.read_only(call)?;
        self.behind_userfault(call)?;
        check_eq!(open_files(), files, "open files after {name}");
        let mut after = (self.state)()?;
        misc::poll(Duration::from_secs(5), || {
            after = (self.state)().ok()?;
            (after == *before).then_some(())
        });
        check_eq!(after, *before, "the state after {name}");
        say(&format!("    {}: {bad} bad arguments", call.name));
        Ok(())
    }

    /// Each bad value of each field of a structure at an address; the argument is at another one.
    fn fields(&self, call: &Call, layout: &Layout, argument: u64, at: u64) -> Result<u32, Stop> {
        let bytes = read(at, layout.size);
        let mut bad = 0;
        for field in layout.fields {
            for (value, errno) in self.refused(field, field.get(&bytes)) {
                let mut changed = bytes.clone();
                field.set(&mut changed, value);
                write(at, &changed);
                let what = format!("{}: {} is {value:#x}", call.name, field.name);
                expect_errno(&what, self.call(call, argument), errno)?;
                bad += 1;
            }
            write(at, &bytes);
            if let Kind::Array {
                of,
                stride,
                read: true,
                ..
            } = field.kind
            {
                let element = field.get(&bytes);
                bad += self.fields(call, of, argument, element)?;
                if !stride.is_empty() {
                    // A longer structure is accepted if all that is unknown is zero.
                    let stride = layout.field(stride);
                    let mut longer = bytes.clone();
                    stride.set(&mut longer, of.size as u64 + 8);
                    write(at, &longer);
                    let kept = read(element + of.size as u64, 8);
                    write(element + of.size as u64, &[0, 0, 0, 0, 0, 0, 0, 1]);
                    let what = format!("{}: {} has an unknown field", call.name, field.name);
                    expect_errno(&what, self.call(call, argument), libc::E2BIG)?;
                    write(element + of.size as u64, &kept);
                    write(at, &bytes);
                    bad += 1;
                }
            }
        }
        Ok(bad)
    }

    /// The values that a field must not have, with those that only the scene knows.
    fn refused(&self, field: &Field, valid: u64) -> Vec<(u64, i32)> {
        let mut all = field.refused(valid);
        match field.kind {
            Kind::Handle(thing, errno)
            | Kind::Optional(thing, errno)
            | Kind::Closes(thing, errno) => all.push((self.handles[thing as usize].1, errno)),
            Kind::Fd(_, _, other) => all.push((self.scratch_fd(), other)),
            Kind::Array { .. } | Kind::Bytes(..) => {
                all.push((MEMORY + 3 * PAGE as u64, libc::EFAULT));
            }
            _ => {}
        }
        all
    }

    /// A file of a kind that no call takes.
    fn scratch_fd(&self) -> u64 {
        let known = self.files.iter().find(|(kind, _)| *kind == File::Bar);
        known.map_or(0, |(_, fd)| *fd as u64)
    }

    fn succeeds(&mut self, call: &Call, at: u64) -> Outcome {
        let result = self.call(call, at)?;
        let bytes = read(at, call.argument.size);
        self.undo(&call.argument, &bytes);
        if call.opens {
            // SAFETY: the kernel made a new fd that nothing else owns.
            unsafe { libc::close(result) };
        }
        Ok(())
    }

    /// Closes what a call has made.
    fn undo(&self, layout: &Layout, bytes: &[u8]) {
        for field in layout.fields {
            let value = field.get(bytes);
            match field.kind {
                Kind::Opens if value != 0 => {
                    // SAFETY: as above.
                    unsafe { libc::close(value as i32) };
                }
                // An import of what the file has gives the handle that it has.
                Kind::Makes(thing, _) if value != self.handles[thing as usize].0 => {
                    thing.close(self.fd, value as u32);
                }
                Kind::Array { of, read: true, .. } => {
                    self.undo(of, &read(value, of.size));
                }
                _ => {}
            }
        }
    }

    /// The argument and all arrays are in a mapping of a device.
    fn in_device(&mut self, call: &Call) -> Outcome {
        let Some(device) = self.device.filter(|_| call.argument.size > 0) else {
            return Ok(());
        };
        let (mut bytes, _) = self.prepared(call)?;
        let start = device.page_address(0);
        let mut at = start + 1024;
        for field in call.argument.fields {
            if let Kind::Array { of, .. } = field.kind {
                let element = read(field.get(&bytes), of.size);
                write(at, &element);
                field.set(&mut bytes, at);
                at += 256;
            }
        }
        write(start, &bytes);
        self.succeeds(call, start)
    }

    /// The argument cannot be written to, which is no error if nothing is written back. The core of
    /// DRM writes the whole argument back otherwise.
    fn read_only(&mut self, call: &Call) -> Outcome {
        let makes = |field: &Field| {
            matches!(
                field.kind,
                Kind::Makes(..) | Kind::Opens | Kind::Closes(..) | Kind::Array { read: true, .. }
            )
        };
        let (written, kind) = (call.request >> 31 & 1 == 1, call.request >> 8 & 0xff);
        let fields = call.argument.fields;
        if fields.is_empty() || fields.iter().any(makes) || written && kind != u64::from(b'd') {
            return Ok(());
        }
        let (bytes, _) = self.prepared(call)?;
        let page = Map::anonymous(PAGE)?;
        write(page.page_address(0), &bytes);
        page.protect(0..1, libc::PROT_READ)?;
        let result = self.call(call, page.page_address(0));
        match written {
            true => expect_errno(&format!("{} read only", call.name), result, libc::EFAULT),
            false => Ok(result.map(drop)?),
        }
    }

    /// The argument is in a page that is supplied while the call waits for it, and then each part of
    /// the memory of the process to which it points. Another GPU can be unbound meanwhile.
    fn behind_userfault(&mut self, call: &Call) -> Outcome {
        if call.argument.size == 0 {
            return Ok(());
        }
        let (bytes, _) = self.prepared(call)?;
        let page = Map::private(PAGE)?;
        self.waits(call, page.page_address(0), &page, &bytes)?;
        for field in call.argument.fields {
            let (len, is_read) = match field.kind {
                Kind::Array { of, read, .. } => (of.size, read),
                Kind::Bytes(_, read) => (8, read),
                // Other calls do not access it.
                Kind::Memory if call.request == uapi::VVRAM_SVM_EVICT => (PAGE, false),
                _ => continue,
            };
            let (mut bytes, at) = self.prepared(call)?;
            let content = match is_read {
                true => read(field.get(&bytes), len),
                false => Vec::new(),
            };
            let page = Map::private(PAGE)?;
            field.set(&mut bytes, page.page_address(0));
            write(at, &bytes);
            self.waits(call, at, &page, &content)?;
        }
        Ok(())
    }

    /// As [`Self::valid`], for a call that is to succeed.
    fn prepared(&mut self, call: &Call) -> Result<(Vec<u8>, u64), Stop> {
        if let Some(prepare) = self.prepare {
            prepare(call)?;
        }
        self.valid(call)
    }

    /// Makes a call that has to wait for a page, and supplies the page.
    fn waits(&self, call: &Call, argument: u64, page: &Map, content: &[u8]) -> Outcome {
        let missing = Missing::new(page, 0)?;
        let (fd, request, name) = (self.fd, call.request, call.name);
        let is_argument = argument == page.page_address(0);
        let done = thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                // SAFETY: the argument is in the page, or what is supplied for it, or points to it.
                unsafe {
                    ioctl_raw(fd, request, argument, || {
                        format!("{name} behind userfaultfd")
                    })
                }
            });
            let waited = missing
                .await_access()
                .and_then(|()| match self.meanwhile.filter(|_| !is_argument) {
                    Some(meanwhile) => meanwhile(),
                    None => Ok(()),
                })
                .map_err(|stop| Stop::fail(format_args!("{name} waits: {}", stop.text())));
            let mut whole = [0; PAGE];
            whole[..content.len()].copy_from_slice(content);
            let supplied = missing.supply_bytes(&whole);
            (waited, supplied, waiting.join())
        });
        // A call that nobody lets go on cannot end, so the page is supplied in any case.
        done.0?;
        done.1?;
        let Ok(result) = done.2 else {
            fail!("the thread has panicked")
        };
        let result = result?;
        self.undo(&call.argument, &read(argument, call.argument.size));
        if call.opens {
            // SAFETY: the kernel made a new fd that nothing else owns.
            unsafe { libc::close(result) };
        }
        Ok(())
    }
}

/// Unbinds the driver of a GPU within two seconds, and binds it again. A call that waits for memory
/// of its process must not hold up an unbind of another device.
pub fn unbinds(gpu: &PciDevice) -> Outcome {
    Unbinding::start(gpu)?
        .finish(Duration::from_secs(2))?
        .rebind()
}

/// Checks all calls of a kind of file.
pub fn check_all(scene: &mut Scene<'_>, kind: File, is: impl Fn(&Call) -> bool) -> Outcome {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let (start, prot) = (MEMORY as usize, arena::READ_WRITE);
    arena::map(start, 3 * PAGE, prot, flags, -1, 0)?;
    arena::map(start + 3 * PAGE, PAGE, libc::PROT_NONE, flags, -1, 0)?;
    // What was freed before may still be on its way.
    let mut before = Vec::new();
    misc::poll(Duration::from_secs(5), || {
        let earlier = std::mem::replace(&mut before, (scene.state)().ok()?);
        thread::sleep(Duration::from_millis(50));
        (earlier == before).then_some(())
    });
    let mut any = false;
    for call in crate::describe::calls().filter(|call| call.on.contains(&kind) && is(call)) {
        any = true;
        scene.check(call, &before)?;
    }
    check!(any, "there is no such call");
    Ok(())
}

/// An open file that is none of any kind.
pub fn nothing() -> Result<std::fs::File, SysError> {
    std::fs::File::open("/dev/null").map_err(|error| SysError::io("open(/dev/null)", &error))
}

/// The number of a file descriptor as an entry of [`Scene::files`] for files of the wrong kind.
pub fn wrong(file: &std::fs::File) -> (File, RawFd) {
    (File::Bar, file.as_raw_fd())
}

/// A DRM file of vvram or mgpu with one of each thing, and another file that has more of them.
#[derive(Debug)]
pub struct Gpu<'a> {
    drm: &'a Drm,
    object: &'a Gem<'a>,
    map: Map,
    buffer: DmaBuf,
    syncobj: u32,
    files: Vec<(File, OwnedFd)>,
    // Has the foreign handles.
    _other: Drm,
    // Attached to the buffer.
    _peer: Peer,
}

/// Handles that only the other file has.
pub const FOREIGN: u64 = 40;

impl<'a> Gpu<'a> {
    /// For a file and an object of it.
    pub fn new(drm: &'a Drm, object: &'a Gem<'a>) -> Result<Self, Stop> {
        let other = drm.another()?;
        for _ in 0..FOREIGN {
            std::mem::forget(other.create_flags(PAGE as u64, uapi::CREATE_SYSTEM)?);
            create_syncobj(other.fd())?;
        }
        let (map, buffer, peer) = (object.map()?, object.export()?, Peer::open()?);
        // A refusal is listed as well.
        let _ = peer.attach(&buffer, Mode::Dynamic);
        let mut this = Self {
            drm,
            object,
            map,
            buffer,
            syncobj: create_syncobj(drm.fd())?,
            files: Vec::new(),
            _other: other,
            _peer: peer,
        };
        let mut fence = uapi::DmaBufSyncFile {
            flags: uapi::DMA_BUF_SYNC_READ as u32,
            fd: 0,
        };
        let request = uapi::DMA_BUF_IOCTL_EXPORT_SYNC_FILE;
        ioctl(this.buffer.fd(), request, &mut fence, || {
            "EXPORT_SYNC_FILE".to_string()
        })?;
        let mut handle = uapi::DrmSyncobjHandle {
            handle: this.syncobj,
            ..Default::default()
        };
        let request = uapi::DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD;
        ioctl(drm.fd(), request, &mut handle, || {
            "SYNCOBJ_HANDLE_TO_FD".to_string()
        })?;
        // SAFETY: a plain system call.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        for (kind, fd) in [
            (File::SyncFile, fence.fd),
            (File::SyncObject, handle.fd),
            (File::Event, event),
            (File::Bar, std::os::fd::IntoRawFd::into_raw_fd(nothing()?)),
        ] {
            // SAFETY: the kernel made a new fd that nothing else owns.
            this.files.push((kind, unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        Ok(this)
    }

    /// A scene with all of it.
    pub fn scene<'b>(
        &'b self,
        state: &'b dyn Fn() -> Result<Vec<u64>, Stop>,
    ) -> Result<Scene<'b>, SysError> {
        let mut scene = Scene::new(self.drm.fd(), state)?;
        scene.handles[Thing::Gem as usize] = (self.object.handle().into(), FOREIGN);
        scene.handles[Thing::Syncobj as usize] = (self.syncobj.into(), FOREIGN);
        let files = self.files.iter().map(|(kind, fd)| (*kind, fd.as_raw_fd()));
        scene.files = files.chain([(File::Buffer, self.buffer.fd())]).collect();
        scene.device = Some(&self.map);
        Ok(scene)
    }

    /// One of the files.
    pub fn fd_of(&self, kind: File) -> RawFd {
        let found = self.files.iter().find(|(known, _)| *known == kind);
        found.map_or(self.buffer.fd(), |(_, fd)| fd.as_raw_fd())
    }

    /// A new handle.
    pub fn another(&self, thing: Thing) -> Result<u64, SysError> {
        Ok(match thing {
            Thing::Syncobj => create_syncobj(self.drm.fd())?.into(),
            _ => {
                let object = self.drm.create_flags(PAGE as u64, uapi::CREATE_SYSTEM)?;
                let handle = object.handle();
                std::mem::forget(object);
                handle.into()
            }
        })
    }

    /// The next handle, VRAM that is free or has memory of processes, and what others have.
    pub fn state(&self, svm: u64) -> Result<Vec<u64>, Stop> {
        let next = self.drm.create_flags(PAGE as u64, uapi::CREATE_SYSTEM)?;
        let info = self.object.info()?;
        Ok(vec![
            next.handle().into(),
            self.drm.vram_free()? + svm,
            self.drm.counter(Counter::VramPinned)?,
            info.pinned.into(),
            self.object.attachments()?.len() as u64,
        ])
    }
}

/// A sync object whose fence has signalled.
fn create_syncobj(fd: RawFd) -> Result<u32, SysError> {
    let mut argument = uapi::DrmSyncobj {
        handle: 0,
        flags: 1,
    };
    let request = uapi::DRM_IOCTL_SYNCOBJ_CREATE;
    ioctl(fd, request, &mut argument, || "SYNCOBJ_CREATE".to_string())?;
    Ok(argument.handle)
}
