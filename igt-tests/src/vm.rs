// SPDX-License-Identifier: GPL-2.0

//! The address space of an open file, and all address spaces in debugfs.

use crate::debugfs::{words, DebugFs};
use crate::drm::{again, ioctl, Drm, Gem};
use crate::faults::Faults;
use crate::foreign::{self, Foreign, Kind};
use crate::map::PAGE;
use crate::sweeps::USUAL;
use crate::uapi::{self, VmBind, VvramVmRead};
use crate::{Outcome, Stop, SysError};

/// A mapping in an address space, as debugfs shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The number of the address space.
    pub space: u64,
    /// The number of the object.
    pub object: u64,
    /// First address.
    pub addr: u64,
    /// First byte of the object.
    pub offset: u64,
    /// Pages.
    pub pages: u64,
    /// Entries that are present.
    pub present: u64,
    /// Entries that have another address than the object.
    pub wrong: u64,
    /// The object has moved since they were filled.
    pub evicted: bool,
}

fn parse(line: &str) -> Option<Mapping> {
    let words = words(line);
    let number = |name: &str| words.get(name)?.parse().ok();
    let hex = |name: &str| u64::from_str_radix(words.get(name)?.strip_prefix("0x")?, 16).ok();
    Some(Mapping {
        space: number("space")?,
        object: number("object")?,
        addr: hex("addr")?,
        offset: hex("offset")?,
        pages: number("pages")?,
        present: number("present")?,
        wrong: number("wrong")?,
        evicted: number("evicted")? == 1,
    })
}

/// All mappings of a device. The driver compares each present entry with the address of the object.
///
/// # Errors
///
/// Fails the subtest if an entry is wrong, or the file cannot be parsed.
#[track_caller]
pub fn mappings(debugfs: &DebugFs) -> Result<Vec<Mapping>, Stop> {
    let text = debugfs.read("spaces")?;
    let Some(all) = text.lines().map(parse).collect::<Option<Vec<_>>>() else {
        fail!("not a list of mappings:\n{text}");
    };
    match all.iter().find(|mapping| mapping.wrong != 0) {
        None => Ok(all),
        Some(mapping) => Err(Stop::fail(format_args!(
            "entries lead elsewhere than to the object: {mapping:?}"
        ))),
    }
}

/// The only mapping of an object.
///
/// # Errors
///
/// As for the list, or if there is not just one.
#[track_caller]
pub fn mapping_of(debugfs: &DebugFs, object: u64) -> Result<Mapping, Stop> {
    let mut all = mappings(debugfs)?;
    all.retain(|mapping| mapping.object == object);
    match all.as_slice() {
        [mapping] => Ok(*mapping),
        _ => Err(Stop::fail(format_args!(
            "expected one mapping of object {object}, saw {all:?}"
        ))),
    }
}

/// Checks that the only mapping of an object has all entries, or none.
///
/// # Errors
///
/// Fails the subtest if it does not.
#[track_caller]
pub fn shown(debugfs: &DebugFs, object: u64, present: bool) -> Outcome {
    let mapping = mapping_of(debugfs, object)?;
    let want = if present { mapping.pages } else { 0 };
    check_eq!(mapping.present, want, "entries of object {object}");
    check_eq!(mapping.evicted, !present, "evicted, of object {object}");
    Ok(())
}

impl Drm {
    /// VM_BIND with a given argument.
    pub fn vm_bind_raw(&self, given: VmBind) -> Result<(), SysError> {
        again(|| {
            let mut argument = given;
            ioctl(self.fd(), uapi::VVRAM_VM_BIND, &mut argument, || {
                format!("VM_BIND({given:?})")
            })?;
            Ok(())
        })
    }

    /// Maps all of an object at an address.
    pub fn vm_bind(&self, object: &Gem<'_>, address: u64) -> Result<(), SysError> {
        self.vm_bind_raw(VmBind {
            address,
            size: object.size(),
            handle: object.handle(),
            ..Default::default()
        })
    }

    /// Unmaps a range of addresses.
    pub fn vm_unbind(&self, address: u64, size: u64) -> Result<(), SysError> {
        self.vm_bind_raw(VmBind {
            op: uapi::BIND_UNMAP,
            address,
            size,
            ..Default::default()
        })
    }

    /// VM_READ with a given argument.
    ///
    /// # Errors
    ///
    /// Any error of the ioctl.
    ///
    /// # Safety
    ///
    /// The address must be that of memory of this size that may be overwritten, or not be mapped.
    pub unsafe fn vm_read_raw(&self, given: VvramVmRead) -> Result<(), SysError> {
        again(|| {
            let mut argument = given;
            ioctl(self.fd(), uapi::VVRAM_VM_READ, &mut argument, || {
                format!("VM_READ({given:?})")
            })?;
            Ok(())
        })
    }

    /// Reads bytes by their addresses, with `VM_READ_*`.
    pub fn vm_read(&self, address: u64, size: usize, flags: u32) -> Result<Vec<u8>, SysError> {
        let mut bytes = vec![0x5a; size];
        let argument = VvramVmRead {
            address,
            size: size as u64,
            data: bytes.as_mut_ptr() as u64,
            flags,
            pad: 0,
        };
        // SAFETY: the vector has this many bytes.
        unsafe { self.vm_read_raw(argument) }?;
        Ok(bytes)
    }
}

/// A file with an object of four pages, or with the buffer of a heap.
struct Unbound {
    handle: u32,
    drm: Drm,
    _foreign: Option<Foreign>,
}

impl Unbound {
    fn new(flags: Option<u32>) -> Result<Self, Stop> {
        let drm = Drm::open()?;
        let foreign = match flags {
            None => Some(foreign::make(Kind::Heap, 4)?),
            Some(_) => None,
        };
        let handle = match &foreign {
            None => drm
                .create_flags(4 * PAGE as u64, flags.unwrap_or_default())?
                .leak(),
            Some(foreign) => drm.import_handle(foreign.buffer.fd())?,
        };
        Ok(Self {
            handle,
            drm,
            _foreign: foreign,
        })
    }

    fn bind(&self) -> Result<(), SysError> {
        self.drm.vm_bind_raw(VmBind {
            size: 4 * PAGE as u64,
            handle: self.handle,
            ..Default::default()
        })
    }
}

/// The calls for address spaces, with each of their allocations and copies failing in turn.
pub fn faults() -> Outcome {
    let mut faults = Faults::new()?;
    for (name, flags) in [
        ("VRAM", Some(uapi::CREATE_VRAM | uapi::CREATE_SYSTEM)),
        ("system memory", Some(uapi::CREATE_SYSTEM)),
        ("a heap", None),
    ] {
        faults.sweep(
            &format!("VM_BIND, {name}"),
            &USUAL,
            || Unbound::new(flags),
            |it| it.bind(),
            |_| Ok(()),
        )?;
        if flags.is_none() {
            continue;
        }
        faults.sweep(
            &format!("VM_READ, {name}"),
            &USUAL,
            || {
                let unbound = Unbound::new(flags)?;
                unbound.bind()?;
                Ok(unbound)
            },
            |it| it.drm.vm_read(1, 2 * PAGE, 0).map(|_| ()),
            |_| Ok(()),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let line = "space=2 object=7 addr=0x1000 offset=0x0 pages=4 present=3 wrong=1 evicted=1";
        let mapping = parse(line).unwrap();
        assert_eq!((mapping.space, mapping.object), (2, 7));
        assert_eq!((mapping.addr, mapping.offset), (0x1000, 0));
        assert_eq!((mapping.pages, mapping.present, mapping.wrong), (4, 3, 1));
        assert!(mapping.evicted);
        assert_eq!(parse("space=2"), None);
    }
}
