// SPDX-License-Identifier: GPL-2.0

//! A description of every ioctl that reaches the code of this project: those of vvram, mgpu, avram,
//! edu_peer and bar_export, and those of the core for GEM handles, PRIME, dma-bufs, sync files and
//! sync objects.
//!
//! Each structure is described once, field by field: what the kernel reads there, which values it
//! accepts, and with which error it refuses the others. Offsets and widths are those of the
//! structures in [`crate::uapi`], so they cannot differ from what the other tests pass. Three
//! things are made of the description:
//!
//! - valid arguments ([`make`]), of random values and of handles and files that exist,
//! - all arguments that differ from a valid one in a field that is wrong ([`Field::refused`]), with
//!   the error that the uAPI documents: `vvram_badinput` and `mgpu_badinput` make each of these calls,
//! - arguments in which some fields are wrong by chance, for the program `fuzz_calls`, which also looks
//!   at the errors: one that is not listed here is a finding.

use std::os::fd::RawFd;

use crate::compute;
use crate::drm::{gem_close, ioctl};
use crate::uapi::{self, DrmSyncobj};

mod buffers;
mod core;
mod gpus;
mod peers;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum File {
    /// A DRM file of vvram.
    Vvram = 1,
    /// A DRM file of mgpu.
    Mgpu,
    /// A DRM file of avram.
    Avram,
    /// A file of edu_peer.
    Peer,
    /// A file of bar_export.
    Bar,
    /// A dma-buf.
    Buffer,
    /// A sync file.
    SyncFile,
    /// A sync object as a file.
    SyncObject,
    /// An eventfd.
    Event,
}

/// What a handle of a DRM file stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thing {
    /// An object.
    Gem,
    /// A sync object.
    Syncobj,
    /// An address space of the compute engine.
    Vm,
}

impl Thing {
    /// Closes a handle, if the file has it.
    pub fn close(self, fd: RawFd, handle: u32) {
        let what = || format!("closing {self:?} {handle}");
        // What is gone already needs no close.
        let _ = match self {
            Self::Gem => gem_close(fd, handle).map(|()| 0),
            Self::Syncobj => {
                let mut argument = DrmSyncobj { handle, flags: 0 };
                ioctl(fd, uapi::DRM_IOCTL_SYNCOBJ_DESTROY, &mut argument, what)
            }
            Self::Vm => {
                let mut argument = compute::VmDestroy { vm: handle, pad: 0 };
                ioctl(fd, compute::VM_DESTROY, &mut argument, what)
            }
        };
    }
}

/// What a field is for.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Must be zero: reserved, or a result.
    Zero,
    /// The kernel does not check it.
    Free,
    /// Flags: a mask of those that are defined.
    Flags(u64),
    /// Flags, at least one of the mask.
    Some(u64),
    /// Flags, at least one of the first mask.
    Access(u64, u64),
    /// A number from 1 to this one.
    Rounds(u64),
    /// One number, which the call is described for, and some that are refused.
    Is(u64, &'static [u64]),
    /// A number below this one.
    Below(u64),
    /// A handle, and the error for one that is unknown.
    Handle(Thing, i32),
    /// A handle or zero, and the error for one that is unknown.
    Optional(Thing, i32),
    /// A handle that the call closes, and the error for one that is unknown.
    Closes(Thing, i32),
    /// Where the call puts a new handle; whether it has to be zero.
    Makes(Thing, bool),
    /// A file, the error for a number that is none, and for a file of another kind.
    Fd(File, i32, i32),
    /// Where the call puts a new file.
    Opens,
    /// The size of a new object in bytes. Zero is refused.
    Object,
    /// A number of bytes: the unit, and the error for more than there can be. Zero is refused, and so
    /// is what exceeds all numbers together with where it begins.
    Size(u64, i32),
    /// A number of bytes, which may also be zero, and the error for more than there can be.
    Length(i32),
    /// Where in an object, a file or a mapping of the device: the unit.
    Offset(u64),
    /// A whole page of the memory of the process.
    Memory,
    /// An address in an address space of a device: the unit, or 0 if it is not checked.
    Virtual(u64),
    /// A user pointer to structures: which, and the fields with their number and the bytes from
    /// one to the next; whether the kernel reads them.
    Array {
        /// The structure.
        of: &'static Layout,
        /// The field with the number.
        count: &'static str,
        /// The field with the distance, if there is one.
        stride: &'static str,
        /// Whether the kernel reads them, or writes them.
        read: bool,
        /// Whether a null pointer stands for zeroes.
        null: bool,
    },
    /// A user pointer to bytes, and the field with their number; whether the kernel reads them.
    Bytes(&'static str, bool),
    /// How many structures an [`Kind::Array`] has, and how many it may have. Zero is refused if the
    /// flag is set.
    Count(u64, bool),
    /// The bytes from one structure of an [`Kind::Array`] to the next, and the size of the first
    /// version.
    Stride(u64),
    /// A point in time.
    Time,
    /// A point of a timeline.
    Point,
}

/// A field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Where it begins.
    pub offset: usize,
    /// Its size in bytes.
    pub width: usize,
    /// What it is for.
    pub kind: Kind,
}

/// A structure.
#[derive(Debug)]
pub struct Layout {
    /// Its size.
    pub size: usize,
    /// Its fields, which fill it.
    pub fields: &'static [Field],
    /// Corrects fields that depend on others.
    pub fix: fn(&mut [u8]),
}

/// An ioctl.
#[derive(Debug)]
pub struct Call {
    /// Its name in C. A suffix after a space tells apart several uses of one number.
    pub name: &'static str,
    /// Its number.
    pub request: u64,
    /// The kinds of files that have it.
    pub on: &'static [File],
    /// The errors that it may have beside [`ALWAYS`].
    pub errors: &'static [i32],
    /// Its argument.
    pub argument: Layout,
    /// Whether it returns a file.
    pub opens: bool,
}

/// The errors that any call may have: of arguments, and because a device, a file, memory or time
/// runs out.
pub const ALWAYS: [i32; 8] = [
    libc::EINVAL,
    libc::EFAULT,
    libc::ENOMEM,
    libc::EBADF,
    libc::ENOTTY,
    libc::ENODEV,
    libc::EINTR,
    libc::EMFILE,
];

/// No field depends on others.
fn unchanged(_: &mut [u8]) {}

const fn width<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// A structure of the library, and what its fields are for.
macro_rules! layout {
    ($structure:ty, $fix:path, { $($($field:ident).+ : $kind:expr),* $(,)? }) => {
        $crate::describe::Layout {
            size: size_of::<$structure>(),
            fields: &[$($crate::describe::Field {
                name: stringify!($($field).+),
                offset: std::mem::offset_of!($structure, $($field).+),
                width: $crate::describe::width(|it: &$structure| &it.$($field).+),
                kind: $kind,
            }),*],
            fix: $fix,
        }
    };
    ($structure:ty, { $($fields:tt)* }) => {
        $crate::describe::layout!($structure, $crate::describe::unchanged, { $($fields)* })
    };
}

/// A call: its name, its number, the kinds of its files, its errors, and its argument.
macro_rules! call {
    ($name:literal, $request:expr, $on:expr, [$($error:ident)*], $argument:expr) => {
        $crate::describe::Call {
            name: $name,
            request: $request,
            on: &$on,
            errors: &[$(libc::$error),*],
            argument: $argument,
            opens: false,
        }
    };
}

use {call, layout};

/// The argument of a call that has none.
pub(crate) const NOTHING: Layout = Layout {
    size: 0,
    fields: &[],
    fix: unchanged,
};

/// All calls.
pub fn calls() -> impl Iterator<Item = &'static Call> {
    let all = [gpus::CALLS, peers::CALLS, core::CALLS, buffers::CALLS];
    all.into_iter().flatten()
}

/// A number of a structure.
pub fn get(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    let width = width.min(8);
    word[..width].copy_from_slice(&bytes[offset..offset + width]);
    u64::from_le_bytes(word)
}

/// Changes a number of a structure. The bytes beyond eight are not changed.
pub fn set(bytes: &mut [u8], offset: usize, width: usize, value: u64) {
    let width = width.min(8);
    bytes[offset..offset + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

impl Layout {
    /// A field by its name.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn field(&self, name: &str) -> &Field {
        let found = self.fields.iter().find(|field| field.name == name);
        found.unwrap_or_else(|| panic!("there is no field {name}"))
    }
}

impl Field {
    /// Its value in a structure.
    pub fn get(&self, bytes: &[u8]) -> u64 {
        get(bytes, self.offset, self.width)
    }

    /// Changes its value.
    pub fn set(&self, bytes: &mut [u8], value: u64) {
        set(bytes, self.offset, self.width, value);
    }

    /// The largest value.
    pub fn most(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.width.min(8))
    }

    /// The values that the kernel has to refuse if all other fields are as in a valid argument, and
    /// the errors. Handles and files that do not exist are among them, but not those of others.
    pub fn refused(&self, valid: u64) -> Vec<(u64, i32)> {
        use libc::{EFAULT, EINVAL};
        let top = self.most() / 2 + 1;
        let bits = |mask: u64| {
            let bits = (0..8 * self.width as u64).map(|bit| 1 << bit);
            bits.filter(move |bit| bit & mask == 0)
                .map(move |bit| (valid | bit, EINVAL))
        };
        let errors = |values: &[u64], errno: i32| -> Vec<_> {
            values.iter().map(|value| (*value, errno)).collect()
        };
        match self.kind {
            Kind::Zero | Kind::Makes(_, true) => errors(&[1, top], EINVAL),
            Kind::Flags(mask) => bits(mask).collect(),
            Kind::Some(mask) => bits(mask).chain([(0, EINVAL)]).collect(),
            Kind::Access(some, more) => {
                let none = errors(&[0, more], EINVAL);
                bits(some | more).chain(none).collect()
            }
            Kind::Rounds(most) => errors(&[0, most + 1, self.most()], EINVAL),
            Kind::Is(_, others) => errors(others, EINVAL),
            Kind::Below(end) => errors(&[end, top, self.most()], EINVAL),
            Kind::Handle(_, errno) | Kind::Closes(_, errno) => {
                errors(&[0, 0xdead, top, self.most()], errno)
            }
            Kind::Optional(_, errno) => errors(&[0xdead, top, self.most()], errno),
            Kind::Fd(_, none, _) => errors(&[9999, top, self.most()], none),
            Kind::Size(unit, beyond) => {
                let mut all = errors(&[0], EINVAL);
                if unit > 1 {
                    all.extend(errors(&[valid - 1, valid + 1], EINVAL));
                }
                all.push((1 << 63, beyond));
                all.extend(errors(&[u64::MAX - unit + 1, u64::MAX], EINVAL));
                all
            }
            Kind::Object => {
                let mut all = errors(&[0], EINVAL);
                all.extend(errors(&[1 << 32, 1 << 63, u64::MAX], libc::ENOSPC));
                all
            }
            Kind::Length(beyond) => errors(&[1 << 32, 1 << 63, u64::MAX], beyond),
            Kind::Virtual(0) => Vec::new(),
            Kind::Offset(unit) | Kind::Virtual(unit) => {
                let far = [1 << 32, 1 << 63, u64::MAX - unit + 1, u64::MAX];
                // An address space may be that large.
                let skip = usize::from(matches!(self.kind, Kind::Virtual(_)));
                let mut all = errors(&far[skip..], EINVAL);
                if unit > 1 {
                    all.extend(errors(&[valid + 1, valid + unit - 1], EINVAL));
                }
                all
            }
            Kind::Memory => errors(&[valid - 1, valid + 1], EINVAL),
            Kind::Array { null: true, .. } => errors(&NOWHERE[1..], EFAULT),
            Kind::Array { .. } | Kind::Bytes(..) => errors(&NOWHERE, EFAULT),
            Kind::Count(most, some) => {
                let least: &[u64] = if some { &[0] } else { &[] };
                let mut all = errors(least, EINVAL);
                if most < self.most() {
                    all.extend(errors(&[most + 1, top, self.most()], EINVAL));
                }
                all
            }
            Kind::Stride(least) => {
                let bad = [0, least - 8, least - 1, least + 4, 4104, top, self.most()];
                errors(&bad, EINVAL)
            }
            Kind::Free | Kind::Makes(_, false) | Kind::Opens | Kind::Time | Kind::Point => {
                Vec::new()
            }
        }
    }
}

/// Addresses at which no process can have anything mapped.
pub const NOWHERE: [u64; 5] = [
    0,
    16,
    0xffff_8000_0000_0000,
    0xffff_ffff_8100_0000,
    u64::MAX - 15,
];

/// What arguments are made of.
pub trait Source {
    /// A number below a limit.
    fn number(&mut self, end: u64) -> u64;
    /// Whether the next value is a wrong one.
    fn odd(&mut self) -> bool;
    /// A handle of the file that is called, or zero.
    fn handle(&mut self, thing: Thing) -> u64;
    /// A file of a kind, or -1.
    fn fd(&mut self, kind: File) -> i32;
    /// The address of a page of the process.
    fn memory(&mut self) -> u64;
    /// Puts bytes into memory, for the kernel to read, and returns the address.
    fn place(&mut self, bytes: &[u8]) -> u64;
    /// Room for bytes that the kernel writes, and returns the address.
    fn room(&mut self, len: usize) -> u64;
    /// How many structures an array has.
    fn count(&mut self) -> u64;
}

/// Makes an argument.
pub fn make(layout: &Layout, source: &mut impl Source) -> Vec<u8> {
    let mut bytes = vec![0; layout.size];
    for field in layout.fields {
        let value = match field.kind {
            Kind::Array { .. } | Kind::Bytes(..) | Kind::Count(..) => continue,
            _ if source.odd() => wrong(field, source),
            _ => right(field, source),
        };
        field.set(&mut bytes, value);
    }
    for field in layout.fields {
        let address = match field.kind {
            Kind::Array {
                of,
                count,
                stride,
                read,
                ..
            } => {
                let count = layout.field(count);
                let stride = match stride {
                    "" => of.size,
                    name => (layout.field(name).get(&bytes) as usize).clamp(of.size, 4096),
                };
                // Two arrays may share the number.
                let number = match count.get(&bytes) {
                    0 => source.count(),
                    set => set.min(MOST),
                };
                let mut all = Vec::with_capacity(stride * number as usize);
                for _ in 0..number {
                    let mut one = make(of, source);
                    one.resize(stride, 0);
                    all.extend(one);
                }
                let number = if source.odd() {
                    wrong(count, source).min(MOST)
                } else {
                    number
                };
                count.set(&mut bytes, number);
                if read {
                    source.place(&all)
                } else {
                    source.room(MOST as usize * stride)
                }
            }
            Kind::Bytes(length, read) => {
                let length = (layout.field(length).get(&bytes) as usize).min(1 << 16);
                if read {
                    source.place(&vec![0x5a; length])
                } else {
                    source.room(length)
                }
            }
            _ => continue,
        };
        let address = if source.odd() {
            NOWHERE[source.number(NOWHERE.len() as u64) as usize]
        } else {
            address
        };
        field.set(&mut bytes, address);
    }
    if !source.odd() {
        (layout.fix)(&mut bytes);
    }
    bytes
}

/// The most structures of an array. The core allocates as many as it is asked for, and warns if
/// they are too many.
pub const MOST: u64 = 70;

const PAGE: u64 = 4096;

/// A value that the kernel may accept.
fn right(field: &Field, source: &mut impl Source) -> u64 {
    match field.kind {
        Kind::Flags(mask) => source.number(u64::MAX) & mask,
        Kind::Some(mask) => match source.number(u64::MAX) & mask {
            0 => 1 << mask.trailing_zeros(),
            some => some,
        },
        Kind::Access(some, more) => match source.number(u64::MAX) & (some | more) {
            none if none & some == 0 => none | some,
            access => access,
        },
        Kind::Rounds(_) => 1 + source.number(4),
        Kind::Is(value, _) => value,
        Kind::Below(end) => source.number(end),
        Kind::Handle(thing, _) | Kind::Optional(thing, _) | Kind::Closes(thing, _) => {
            source.handle(thing)
        }
        Kind::Fd(kind, ..) => source.fd(kind) as u64,
        // Of a byte to 2 MiB, small ones more often.
        Kind::Object => (PAGE << source.number(10)) - source.number(2),
        Kind::Size(1, _) => {
            let most = source.number(10);
            8 * (1 + source.number(1 << most))
        }
        Kind::Size(unit, _) => unit * (1 + source.number(4)),
        Kind::Length(_) => 8 * (1 + source.number(64)),
        Kind::Offset(1) => 8 * source.number(2) * source.number(512),
        Kind::Offset(unit) => unit * source.number(2) * source.number(4),
        Kind::Virtual(_) => PAGE * source.number(32),
        Kind::Memory => source.memory(),
        Kind::Stride(least) => least,
        Kind::Time => match source.number(4) {
            0 | 1 => 0,
            late => monotonic() + late * 10_000_000,
        },
        Kind::Point => source.number(5),
        Kind::Free => source.number(8),
        _ => 0,
    }
}

/// A value that makes no sense, in most cases.
fn wrong(field: &Field, source: &mut impl Source) -> u64 {
    let valid = right(field, source);
    let refused = field.refused(valid);
    match source.number(3) {
        0 if !refused.is_empty() => refused[source.number(refused.len() as u64) as usize].0,
        1 => source.number(u64::MAX) & field.most(),
        _ => EDGES[source.number(EDGES.len() as u64) as usize] & field.most(),
    }
}

/// Numbers at which things tend to break.
pub const EDGES: [u64; 14] = [
    0,
    1,
    2,
    7,
    PAGE - 1,
    PAGE,
    PAGE + 1,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 63,
    u64::MAX,
];

/// The monotonic clock in nanoseconds.
pub fn monotonic() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, layout: &Layout) {
        let mut end = 0;
        for field in layout.fields {
            assert_eq!(field.offset, end, "{name}: {}", field.name);
            end += field.width;
            match field.kind {
                Kind::Array {
                    of, count, stride, ..
                } => {
                    check(name, of);
                    layout.field(count);
                    assert!(
                        stride.is_empty() || layout.field(stride).width == 4,
                        "{name}"
                    );
                }
                Kind::Bytes(length, _) => assert_eq!(layout.field(length).width, 8, "{name}"),
                _ => {}
            }
        }
        assert_eq!(end, layout.size, "{name}: the fields do not fill it");
    }

    #[test]
    fn the_numbers_have_the_sizes_of_structures_that_the_fields_fill() {
        for call in calls() {
            assert_eq!(
                call.request >> 16 & 0x3fff,
                call.argument.size as u64,
                "{}",
                call.name
            );
            check(call.name, &call.argument);
        }
    }

    #[test]
    fn no_file_has_two_calls_of_one_name_or_number() {
        for (index, call) in calls().enumerate() {
            for other in calls().skip(index + 1) {
                assert_ne!(call.name, other.name);
                let both = call.on.iter().any(|kind| other.on.contains(kind));
                let uses = call.name.contains(' ') || other.name.contains(' ');
                assert!(
                    !both || uses || call.request != other.request,
                    "{}",
                    call.name
                );
            }
        }
    }

    #[test]
    fn a_field_refuses_each_bit_that_is_not_defined() {
        let field = |kind| Field {
            name: "",
            offset: 0,
            width: 4,
            kind,
        };
        let refused = field(Kind::Flags(5)).refused(1);
        assert_eq!(refused.len(), 30);
        assert!(
            refused.contains(&(3, libc::EINVAL)) && refused.contains(&(1 | 1 << 31, libc::EINVAL))
        );
        assert_eq!(
            field(Kind::Zero).refused(0),
            [(1, libc::EINVAL), (1 << 31, libc::EINVAL)]
        );
        assert!(field(Kind::Free).refused(0).is_empty());
    }
}
