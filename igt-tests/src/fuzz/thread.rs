// SPDX-License-Identifier: GPL-2.0

//! A thread that makes random calls, and what it remembers of their results.

use std::fs;
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::arena::{self, Ferry, BLOCK, BLOCKS, MEMORY, READ_WRITE, ROOM};
use super::calls::{table, Core, Op, UNLISTED};
use super::corpus::{Step, Words, SEQUENCE};
use super::coverage::Trace;
use super::world::{World, FILES, FIRST_CHILD, LOGS, MINE};
use crate::describe::{self, make, Call, File, Kind, Source, Thing, ALWAYS, MOST, NOWHERE};
use crate::drm::driver_name;
use crate::map::PAGE;
use crate::misc::mix;
use crate::socket::{receive_fd, send_fd};
use crate::uapi::{self, VvramGemMmapOffset};
use crate::SysError;

/// What the threads of a phase may do.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether drivers are unbound meanwhile. Importers that keep their mappings hold that up, which
    /// is finding F7, so they are not used then.
    pub unbinds: bool,
    /// Whether allocations fail on purpose.
    pub faults: bool,
    /// The two ends of a socket of all processes.
    pub sockets: [RawFd; 2],
    /// A disk, opened for direct I/O.
    pub disk: Option<RawFd>,
}

/// Files of edu_peer at most: the check of the DMA API warns if one page is mapped more than seven
/// times, and each file may map the same buffer.
const PEERS: usize = 4;

/// The bit in the number of a call that is to leave something useful for others: it has no wrong
/// value.
pub const USEFUL: u64 = 1 << 63;

/// A thread that makes calls.
#[derive(Debug)]
pub struct Thread {
    world: &'static World,
    rules: Rules,
    number: usize,
    trace: Option<Trace>,
    random: Words,
    ferry: Ferry,
    nth: Option<fs::File>,
    /// Whether an allocation is about to fail.
    armed: bool,
    /// How much of the room is in use.
    used: usize,
    /// One of so many values is wrong, or none.
    wrong: u64,
    /// Whether the call is to leave something useful.
    useful: bool,
    /// The file that is called, or was called last.
    file: Option<usize>,
    /// Whether this is a child of a thread.
    child: bool,
}

/// Whether a kind of file has a call.
fn fits(call: &Call, kind: u32) -> bool {
    call.on.iter().any(|on| *on as u32 == kind)
}

impl Thread {
    /// Of a number, which is that of its log and its room, on the calling thread.
    ///
    /// # Errors
    ///
    /// Any error of the system calls.
    pub fn new(
        world: &'static World,
        rules: Rules,
        number: usize,
        trace: Option<Trace>,
    ) -> Result<Self, SysError> {
        if let Some(trace) = &trace {
            trace.enable()?;
        }
        let path = "/proc/thread-self/fail-nth";
        let nth = fs::File::options().read(true).write(true).open(path);
        Ok(Self {
            world,
            rules,
            number,
            trace,
            random: Words::new(&Step::new(0, None)),
            ferry: Ferry::new()?,
            nth: nth.ok().filter(|_| rules.faults),
            armed: false,
            used: 0,
            wrong: 0,
            useful: false,
            file: None,
            child: false,
        })
    }

    /// Makes a call, and keeps it if it has reached a new place.
    pub fn step(&mut self, step: Step) {
        let Step { seed, op, .. } = step;
        self.random = Words::new(&step);
        self.useful = seed & USEFUL != 0;
        // More than half of the calls have no wrong value at all.
        self.wrong = match self.random.pick(&[0, 0, 0, 40, 12]) {
            _ if self.useful => 0,
            wrong => wrong,
        };
        self.used = 0;
        let log = self.world.log(self.number);
        log.begin(&step);
        name_thread(table().name(op));
        if let Some(trace) = &self.trace {
            trace.clear();
        }
        let begin = describe::monotonic();
        let errno = self.call(&step);
        let time = (describe::monotonic() - begin) / 1000;
        log.end(errno);
        self.world.count(op).note(errno, time);
        self.world.calls.fetch_add(1, Ordering::Relaxed);
        let places = self.trace.as_ref().map(Trace::reached);
        if places.is_some_and(|places| self.world.places.note(places) > 0) {
            let last = log.last(SEQUENCE as u64);
            let last: Vec<_> = last.into_iter().map(|(step, _)| step).collect();
            self.world.corpus.keep(&last, self.random.drawn());
        }
    }

    fn call(&mut self, step: &Step) -> i32 {
        let result = match table().op(step.op) {
            Op::Ioctl(call) => self.ioctl(call, step),
            Op::Core(core) => self.core(core),
        };
        match result {
            Ok(()) => 0,
            Err(errno) => errno,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn find(&mut self, is: impl Fn(u32) -> bool) -> Option<usize> {
        let from = self.below(FILES as u64) as usize;
        MINE.find(from, |number| is(self.world.open(number).kind()))
    }

    /// A file that has a call: often the one of the last call, so that calls build on each other.
    fn file_for(&mut self, call: &Call) -> Option<usize> {
        let again = self.useful || self.below(2) == 0;
        let last = self.file.filter(|last| {
            again && MINE.fd(*last).is_some() && fits(call, self.world.open(*last).kind())
        });
        last.or_else(|| self.find(|kind| fits(call, kind)))
    }

    fn ioctl(&mut self, call: &'static Call, step: &Step) -> Result<(), i32> {
        let number = self.file_for(call).ok_or(libc::EBADF)?;
        let open = self.world.open(number);
        // Another thread may close the file, and open another one with its number.
        let epoch = open.epoch();
        let fd = MINE.fd(number).ok_or(libc::EBADF)?;
        if !fits(call, open.kind()) {
            return Err(libc::EBADF);
        }
        self.file = Some(number);
        let mut bytes = make(&call.argument, self);
        self.keep_to_rules(call, &mut bytes);
        let at = self.argument(&bytes);
        self.inject();
        // SAFETY: the kernel accesses the argument, and what its pointers refer to, which is in the
        // arena or nowhere.
        let result = unsafe { libc::ioctl(fd, call.request, at) };
        let errno = if result < 0 { last_errno() } else { 0 };
        self.eject();
        if errno != 0 {
            let listed = ALWAYS.contains(&errno) || call.errors.contains(&errno);
            let known = UNLISTED
                .iter()
                .any(|(name, errors)| *name == call.name && errors.contains(&errno));
            let same = || {
                MINE.fd(number) == Some(fd)
                    && open.epoch() == epoch
                    && kind_of(fd).is_some_and(|kind| kind as u32 == open.kind())
            };
            if !listed && !known && same() {
                self.world.note_odd(errno, step);
            }
            return Err(errno);
        }
        if call.opens {
            self.register(result);
        }
        if let Some(bytes) = self.ferry.get(at, call.argument.size) {
            self.harvest(&call.argument, &bytes, number, fd);
        }
        Ok(())
    }

    /// Leaves out what is known to be wrong.
    fn keep_to_rules(&mut self, call: &Call, bytes: &mut [u8]) {
        if call.request == uapi::EDU_PEER_IOC_ATTACH && self.rules.unbinds {
            let mode = call.argument.field("mode");
            if mode.get(bytes) == u64::from(uapi::EDU_PEER_MODE_LATE) {
                mode.set(bytes, u64::from(uapi::EDU_PEER_MODE_DYNAMIC));
            }
        }
        if call.request == uapi::BAR_EXPORT_IOC_EXPORT {
            // Ranges that overlap make edu_peer log an error for each map, which is finding F7.
            let count = call.argument.field("count").get(bytes).min(MOST);
            let at = call.argument.field("ranges").get(bytes) as usize;
            for index in 0..count {
                let offset = (index * 32 * PAGE as u64).to_le_bytes();
                if NOWHERE.contains(&(at as u64))
                    || !self.ferry.put(at + 16 * index as usize, &offset)
                {
                    break;
                }
            }
        }
    }

    /// Puts an argument somewhere.
    fn argument(&mut self, bytes: &[u8]) -> usize {
        if self.odd() && self.below(4) == 0 {
            let nowhere = self.below(NOWHERE.len() as u64) as usize;
            return NOWHERE[nowhere] as usize;
        }
        self.place(bytes) as usize
    }

    /// Sometimes lets one of the next allocations of this thread fail.
    fn inject(&mut self) {
        if self.nth.is_some() && self.below(3) == 0 {
            let n = 1 + self.below(48);
            if let Some(nth) = &mut self.nth {
                self.armed = nth.write_all(n.to_string().as_bytes()).is_ok();
            }
        }
    }

    fn eject(&mut self) {
        if let Some(nth) = self.nth.as_mut().filter(|_| self.armed) {
            self.armed = false;
            let mut text = [0; 16];
            let len = nth.read_at(&mut text, 0).unwrap_or(0);
            let _ = nth.write_all(b"0");
            // It counts down to zero.
            if text[..len].starts_with(b"0") {
                self.world.injected.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Notes the handles and files that a call has made or closed.
    fn harvest(&mut self, layout: &describe::Layout, bytes: &[u8], number: usize, fd: RawFd) {
        let open = self.world.open(number);
        for field in layout.fields {
            let value = field.get(bytes);
            match field.kind {
                Kind::Makes(thing, _) if value != 0 && !open.add(thing, value) => {
                    thing.close(fd, value as u32);
                }
                Kind::Closes(thing, _) => open.remove(thing, value),
                Kind::Opens => self.register(value as i32),
                _ => {}
            }
        }
    }

    /// Adds a new file.
    fn register(&self, fd: RawFd) {
        if fd > 2 && !is_known(fd) {
            register(self.world, fd);
        }
    }

    fn core(&mut self, core: Core) -> Result<(), i32> {
        match core {
            Core::Open => self.open(),
            Core::Dup => {
                let number = self.find(|_| true).ok_or(libc::EBADF)?;
                let fd = MINE.fd(number).ok_or(libc::EBADF)?;
                // SAFETY: a plain system call.
                let copy = done(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) })?;
                self.register(copy);
                Ok(())
            }
            Core::Close => {
                // Some files stay.
                if MINE.len() < 40 && self.below(4) != 0 {
                    return Err(libc::EBUSY);
                }
                let number = self.find(|_| true).ok_or(libc::EBADF)?;
                let fd = MINE.take(self.world, number).ok_or(libc::EBADF)?;
                // SAFETY: the file was opened for random calls.
                done(unsafe { libc::close(fd) }).map(drop)
            }
            Core::Send => {
                let number = self.find(|_| true).ok_or(libc::EBADF)?;
                let fd = MINE.fd(number).ok_or(libc::EBADF)?;
                self.borrowed(0, |socket| send_fd(socket, fd))
            }
            Core::Receive => {
                let mut got = None;
                self.borrowed(1, |socket| {
                    got = Some(receive_fd(socket)?.into_raw_fd());
                    Ok(())
                })?;
                self.register(got.unwrap_or(-1));
                Ok(())
            }
            Core::MapObject => self.map_object(),
            Core::MapBuffer => {
                let number = self
                    .find(|kind| kind == File::Buffer as u32)
                    .ok_or(libc::EBADF)?;
                let fd = MINE.fd(number).ok_or(libc::EBADF)?;
                // SAFETY: a plain system call.
                let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) }.max(0) as usize;
                self.map_device(fd, 0, size)
            }
            Core::MapMemory => {
                let at = arena::page(0..MEMORY, self.random.word());
                let end = arena::block(MEMORY);
                let len = PAGE << self.below(7);
                let kind =
                    self.random
                        .pick(&[libc::MAP_PRIVATE, libc::MAP_PRIVATE, libc::MAP_SHARED]);
                let prot = self
                    .random
                    .pick(&[READ_WRITE, READ_WRITE, READ_WRITE, libc::PROT_READ]);
                let flags = kind | libc::MAP_ANONYMOUS;
                arena::map(at, len.min(end - at), prot, flags, -1, 0).map_err(|error| error.errno)
            }
            Core::Unmap => self.with_pages(0..BLOCKS, |at, len, _| {
                // SAFETY: the pages belong to the blocks.
                unsafe { libc::munmap(at, len) }
            }),
            Core::Remap => self.remap(),
            Core::Protect => self.with_pages(0..BLOCKS, |at, len, random| {
                let prot = random.pick(&[READ_WRITE, READ_WRITE, libc::PROT_READ, libc::PROT_NONE]);
                // SAFETY: as above.
                unsafe { libc::mprotect(at, len, prot) }
            }),
            Core::Advise => self.advise(),
            Core::Touch => {
                let at =
                    arena::page(0..BLOCKS, self.random.word()) + self.below(PAGE as u64) as usize;
                let worked = match self.below(2) {
                    0 => arena::reads(at),
                    _ => arena::writes(at, 0x77),
                };
                if worked {
                    Ok(())
                } else {
                    Err(libc::EFAULT)
                }
            }
            Core::Carry => {
                let at = arena::page(0..BLOCKS - 2, self.random.word());
                let len = self.below(2 * PAGE as u64) as usize;
                let worked = match self.below(2) {
                    0 => self.ferry.get(at, len).is_some(),
                    _ => self.ferry.put(at, &vec![0x33; len]),
                };
                if worked {
                    Ok(())
                } else {
                    Err(libc::EFAULT)
                }
            }
            Core::DiskRead | Core::DiskWrite => {
                let disk = self.rules.disk.ok_or(libc::ENXIO)?;
                let at = arena::page(0..BLOCKS - 1, self.random.word()) as *mut libc::c_void;
                let len = PAGE << self.below(4);
                let offset = (self.below(256) * PAGE as u64) as libc::off_t;
                // SAFETY: the memory belongs to the blocks.
                let moved = unsafe {
                    match core {
                        Core::DiskRead => libc::pread(disk, at, len, offset),
                        _ => libc::pwrite(disk, at, len, offset),
                    }
                };
                if moved < 0 {
                    Err(last_errno())
                } else {
                    Ok(())
                }
            }
            Core::Fork => self.fork(),
            Core::Poll => {
                let number = self.find(|_| true).ok_or(libc::EBADF)?;
                let events = self.random.pick(&[libc::POLLIN, libc::POLLOUT]);
                let mut poll = libc::pollfd {
                    fd: MINE.fd(number).ok_or(libc::EBADF)?,
                    events,
                    revents: 0,
                };
                let time = self.below(20) as i32;
                // SAFETY: the kernel writes the events.
                done(unsafe { libc::poll(&mut poll, 1, time) }).map(drop)
            }
            Core::Seek => {
                let number = self
                    .find(|kind| kind == File::Buffer as u32)
                    .ok_or(libc::EBADF)?;
                let fd = MINE.fd(number).ok_or(libc::EBADF)?;
                let whence = self
                    .random
                    .pick(&[libc::SEEK_SET, libc::SEEK_END, libc::SEEK_CUR]);
                // SAFETY: a plain system call.
                let end = unsafe { libc::lseek(fd, 0, whence) };
                if end < 0 {
                    Err(last_errno())
                } else {
                    Ok(())
                }
            }
            Core::Fdinfo => {
                let number = self.find(|_| true).ok_or(libc::EBADF)?;
                let fd = MINE.fd(number).ok_or(libc::EBADF)?;
                let text = fs::read(format!("/proc/self/fdinfo/{fd}"));
                text.map(drop)
                    .map_err(|error| error.raw_os_error().unwrap_or(0))
            }
            Core::Event => {
                // SAFETY: a plain system call.
                let fd = done(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
                self.register(fd);
                Ok(())
            }
            Core::Stray => self.stray(),
            Core::Sleep => {
                let time = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: self.below(3_000_000) as i64,
                };
                // SAFETY: the kernel reads the time.
                done(unsafe { libc::nanosleep(&time, std::ptr::null_mut()) }).map(drop)
            }
        }
    }

    fn borrowed(
        &self,
        end: usize,
        call: impl FnOnce(&OwnedFd) -> Result<(), SysError>,
    ) -> Result<(), i32> {
        // SAFETY: the socket is open until the process ends; it is not closed here.
        let socket = unsafe { OwnedFd::from_raw_fd(self.rules.sockets[end]) };
        let result = call(&socket).map_err(|error| error.errno);
        std::mem::forget(socket);
        result
    }

    fn open(&mut self) -> Result<(), i32> {
        let nodes: Vec<_> = ["/dev/dri", "/dev"]
            .iter()
            .flat_map(|dir| devices(dir))
            .collect();
        if nodes.is_empty() {
            return Err(libc::ENOENT);
        }
        let at = self.below(nodes.len() as u64) as usize;
        self.inject();
        let fd = open_node(&nodes[at]);
        self.eject();
        self.register(fd?);
        Ok(())
    }

    fn map_object(&mut self) -> Result<(), i32> {
        let of = [File::Vvram as u32, File::Mgpu as u32];
        let number = self.find(|kind| of.contains(&kind)).ok_or(libc::EBADF)?;
        let fd = MINE.fd(number).ok_or(libc::EBADF)?;
        self.file = Some(number);
        let mut argument = VvramGemMmapOffset {
            handle: self.handle(Thing::Gem) as u32,
            ..Default::default()
        };
        // SAFETY: the argument is that of the request.
        done(unsafe { libc::ioctl(fd, uapi::VVRAM_GEM_MMAP_OFFSET, &raw mut argument) })?;
        self.map_device(fd, argument.offset, BLOCK)
    }

    fn map_device(&mut self, fd: RawFd, offset: u64, size: usize) -> Result<(), i32> {
        let block = MEMORY + self.below((BLOCKS - MEMORY) as u64) as usize;
        // Mostly not more than there is.
        let len = PAGE << (self.below(2) * self.below(5));
        let len = match self.below(8) {
            0 => len,
            _ => len.min(size.max(PAGE)),
        };
        let prot = self
            .random
            .pick(&[READ_WRITE, READ_WRITE, READ_WRITE, libc::PROT_READ]);
        let flags = match self.below(12) {
            0 => libc::MAP_PRIVATE,
            1 => libc::MAP_SHARED | libc::MAP_POPULATE,
            _ => libc::MAP_SHARED,
        };
        // MAP_POPULATE is as MADV_POPULATE_READ, but prints nothing.
        self.inject();
        let result = arena::map(arena::block(block), len, prot, flags, fd, offset);
        self.eject();
        result.map_err(|error| error.errno)
    }

    fn with_pages(
        &mut self,
        blocks: std::ops::Range<usize>,
        call: impl FnOnce(*mut libc::c_void, usize, &mut Words) -> i32,
    ) -> Result<(), i32> {
        let end = arena::block(blocks.end);
        let at = match self.below(2) {
            // The begin of a block, where mappings of devices are.
            0 => arena::block(blocks.start + self.below(blocks.len() as u64) as usize),
            _ => arena::page(blocks, self.random.word()),
        };
        let len = (PAGE << self.below(7)).min(end - at);
        done(call(at as *mut libc::c_void, len, &mut self.random)).map(drop)
    }

    fn remap(&mut self) -> Result<(), i32> {
        let blocks = self.random.pick(&[(0, MEMORY), (MEMORY, BLOCKS)]);
        let [from, to] = [(); 2].map(|()| {
            arena::block(blocks.0 + self.random.below((blocks.1 - blocks.0) as u64) as usize)
        });
        // With a length of 0 a second mapping of the same pages is made. Of a private one the kernel
        // warns, which is finding F8.
        let old = PAGE << self.below(5);
        let new = PAGE << self.below(5);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are blocks, as long as a block at most.
        const { assert!(PAGE << 4 <= BLOCK) };
        let base =
            unsafe { libc::mremap(from as *mut _, old, new, flags, to as *mut libc::c_void) };
        if base == libc::MAP_FAILED {
            Err(last_errno())
        } else {
            Ok(())
        }
    }

    /// Without MADV_WIPEONFORK: a child's copy of memory that was moved makes mm warn when it is
    /// split, which is finding F9.
    fn advise(&mut self) -> Result<(), i32> {
        let memory = self.below(2) == 0;
        let blocks = if memory { 0..MEMORY } else { MEMORY..BLOCKS };
        let any = [
            libc::MADV_DONTNEED,
            libc::MADV_DONTNEED,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
            libc::MADV_WILLNEED,
        ];
        let only = [
            libc::MADV_FREE,
            libc::MADV_HUGEPAGE,
            libc::MADV_NOHUGEPAGE,
            libc::MADV_COLLAPSE,
            libc::MADV_POPULATE_READ,
            libc::MADV_POPULATE_WRITE,
        ];
        let advice = match self.below(2) {
            0 if memory => self.random.pick(&only),
            _ => self.random.pick(&any),
        };
        self.with_pages(blocks, |at, len, _| {
            // SAFETY: the pages belong to the blocks.
            unsafe { libc::madvise(at, len, advice) }
        })
    }

    fn fork(&mut self) -> Result<(), i32> {
        // A child of a child, or too many, would take the time of all others.
        let children = &self.world.children;
        let number = children.fetch_add(1, Ordering::Relaxed) as usize;
        if self.child || number >= LOGS - FIRST_CHILD {
            children.fetch_sub(1, Ordering::Relaxed);
            return Err(libc::EAGAIN);
        }
        let seed = self.random.word();
        // SAFETY: the child makes system calls and allocates memory, which the C library permits
        // after a fork, and ends without running anything that belongs to other threads.
        let pid = unsafe { libc::fork() };
        if pid != 0 {
            if pid < 0 {
                children.fetch_sub(1, Ordering::Relaxed);
            }
            return done(pid).map(drop);
        }
        // SAFETY: a plain system call.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        self.child = true;
        self.trace = None;
        self.nth = None;
        self.number = FIRST_CHILD + number;
        if let Ok(ferry) = Ferry::new() {
            // The other one is in use by the parent.
            std::mem::forget(std::mem::replace(&mut self.ferry, ferry));
            for index in 0..20 {
                if !self.world.stopped() {
                    self.step(Step::new(mix(seed, index), None));
                }
            }
        }
        children.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) }
    }

    fn stray(&mut self) -> Result<(), i32> {
        let number = self.find(|_| true).ok_or(libc::EBADF)?;
        let fd = MINE.fd(number).ok_or(libc::EBADF)?;
        let kind = self.world.open(number).kind();
        let dri = [File::Vvram as u32, File::Mgpu as u32, File::Avram as u32];
        let request = if dri.contains(&kind) {
            // Other ioctls of the core are not of this project.
            let number = uapi::DRM_COMMAND_BASE + self.below(16);
            uapi::ioc(
                self.below(4),
                u64::from(b'd'),
                number,
                8 * self.below(9) as usize,
            )
        } else {
            uapi::ioc(
                self.below(4),
                0xed,
                self.below(0x24),
                8 * self.below(7) as usize,
            )
        };
        // Zeroes, so no pointer is one to memory.
        let at = self.room(PAGE);
        self.ferry.put(at as usize, &[0; 128]);
        // SAFETY: the kernel accesses the room.
        done(unsafe { libc::ioctl(fd, request, at) }).map(drop)
    }
}

impl Source for Thread {
    fn number(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn odd(&mut self) -> bool {
        self.wrong != 0 && self.random.below(self.wrong) == 0
    }

    fn handle(&mut self, thing: Thing) -> u64 {
        let handles = self
            .file
            .map_or(0, |file| self.world.open(file).handles(thing));
        let guess = 1 + self.random.below(4);
        match handles.count_ones() {
            0 => guess,
            count => {
                let mut left = handles;
                for _ in 0..self.random.below(u64::from(count)) {
                    left &= left - 1;
                }
                u64::from(left.trailing_zeros())
            }
        }
    }

    fn fd(&mut self, kind: File) -> i32 {
        let found = self.find(|is| is == kind as u32);
        found.and_then(|number| MINE.fd(number)).unwrap_or(-1)
    }

    fn memory(&mut self) -> u64 {
        let blocks = if self.random.below(8) == 0 {
            0..BLOCKS
        } else {
            0..MEMORY
        };
        arena::page(blocks, self.random.word()) as u64
    }

    fn place(&mut self, bytes: &[u8]) -> u64 {
        // Sometimes in memory that may be missing, read-only, or that of a device.
        if self.random.below(10) == 0 {
            let at = arena::page(0..BLOCKS - 2, self.random.word());
            let at = at + 8 * self.random.below(512) as usize;
            self.ferry.put(at, bytes);
            return at as u64;
        }
        let at = self.room(bytes.len());
        self.ferry.put(at as usize, bytes);
        at
    }

    fn room(&mut self, len: usize) -> u64 {
        let len = len.next_multiple_of(64);
        if self.used + len > ROOM {
            self.used = 0;
        }
        let at = arena::room(self.number) + self.used;
        self.used += len;
        at as u64
    }

    fn count(&mut self) -> u64 {
        match self.random.below(16) {
            0 => self.random.below(MOST),
            _ => self.random.below(4),
        }
    }
}

fn last_errno() -> i32 {
    SysError::last("").errno
}

fn done(result: i32) -> Result<i32, i32> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(result)
    }
}

fn name_thread(name: &str) {
    let mut text = [0u8; 16];
    let len = name.len().min(15);
    text[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: the name is NUL terminated.
    unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
}

/// Whether a file descriptor is known.
fn is_known(fd: RawFd) -> bool {
    MINE.find(0, |number| MINE.fd(number) == Some(fd)).is_some()
}

/// The nodes of the devices in a folder.
fn devices(dir: &str) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let ours = ["renderD", "edu-peer-", "bar-export-"];
    names
        .filter(|name| ours.iter().any(|ours| name.starts_with(ours)))
        .map(|name| format!("{dir}/{name}"))
        .collect()
}

/// Opens a node.
///
/// # Errors
///
/// The error of open(2).
pub fn open_node(path: &str) -> Result<RawFd, i32> {
    let path = std::ffi::CString::new(path).map_err(|_| libc::EINVAL)?;
    // SAFETY: the path is NUL terminated.
    done(unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })
}

/// Opens all devices, for processes that inherit them.
pub fn open_all(world: &World) {
    for node in ["/dev/dri", "/dev"].iter().flat_map(|dir| devices(dir)) {
        if let Ok(fd) = open_node(&node) {
            register(world, fd);
        }
    }
}

/// What a file descriptor is now, if that is something to be called.
///
/// Numbers of descriptors come from memory that other threads overwrite, and another thread may have
/// closed one and got the number again: what a descriptor was is no proof of what it is.
fn kind_of(fd: RawFd) -> Option<File> {
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let link = link.to_string_lossy();
    let kinds = [
        ("/dmabuf", File::Buffer),
        ("anon_inode:sync_file", File::SyncFile),
        ("anon_inode:syncobj_file", File::SyncObject),
        ("anon_inode:[eventfd]", File::Event),
        ("/dev/edu-peer", File::Peer),
        ("/dev/bar-export", File::Bar),
    ];
    if let Some((_, kind)) = kinds.iter().find(|(prefix, _)| link.starts_with(prefix)) {
        return Some(*kind);
    }
    if !link.starts_with("/dev/dri/") {
        return None;
    }
    match driver_name(fd).as_deref() {
        Ok("vvram") => Some(File::Vvram),
        Ok("mgpu") => Some(File::Mgpu),
        Ok("avram") => Some(File::Avram),
        _ => None,
    }
}

/// Adds a file to those that are called, or closes it if there is no room.
fn register(world: &World, fd: RawFd) {
    // Any other file is not one that a random call has made.
    let Some(kind) = kind_of(fd) else {
        return;
    };
    let many = kind == File::Peer && world.opened(kind) >= PEERS;
    if many || MINE.len() >= FILES / 4 || MINE.add(world, fd, kind).is_none() {
        // SAFETY: the file was opened for random calls.
        unsafe { libc::close(fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_what_it_refers_to_now() {
        // SAFETY: plain system calls.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert_eq!(kind_of(fd), Some(File::Event));
        // SAFETY: the file is a copy of the test's own.
        let other = unsafe { libc::dup2(2, fd) };
        assert_eq!((other, kind_of(fd)), (fd, None));
        // SAFETY: the test has opened it.
        unsafe { libc::close(fd) };
        assert_eq!(kind_of(fd), None);
    }
}
