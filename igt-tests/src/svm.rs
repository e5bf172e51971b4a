// SPDX-License-Identifier: GPL-2.0

//! Memory of this process in VRAM, and the location of its pages.
//!
//! A device-private page has an entry in the page table that is not present, like a page that is
//! swapped out, but of another type. So `/proc/self/pagemap`, read by root, tells exactly which pages
//! are on a device, and reading it does not move them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::debugfs::Counter;
use crate::drm::{ioctl, Drm};
use crate::map::{Map, PAGE};
use crate::pattern::Pattern;
use crate::uapi::{self, VvramSvmRange};
use crate::{Outcome, Stop, SysError};

const PAGEMAP: &str = "/proc/self/pagemap";
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// The type of an entry that is not present. The first types are the numbers of swap areas, of which
/// the tests have one at most.
const TYPE: u64 = 0x1f;
const SWAP_AREA: u64 = 0;

/// Where a page of a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is not populated.
    Nowhere,
    /// In system memory.
    Ram,
    /// In the memory of a device.
    Device,
    /// Swapped out.
    Swap,
}

/// The location of each page of a mapping.
pub fn places(map: &Map) -> Result<Vec<Place>, SysError> {
    let fail = |error: std::io::Error| SysError::io(PAGEMAP, &error);
    let file = File::open(PAGEMAP).map_err(fail)?;
    let mut entries = vec![0; map.pages() * 8];
    file.read_exact_at(&mut entries, map.page_address(0) / PAGE as u64 * 8)
        .map_err(fail)?;
    let place = |entry: &[u8]| match u64::from_le_bytes(entry.try_into().unwrap_or_default()) {
        entry if entry & PRESENT != 0 => Place::Ram,
        entry if entry & SWAPPED != 0 && entry & TYPE == SWAP_AREA => Place::Swap,
        entry if entry & SWAPPED != 0 => Place::Device,
        _ => Place::Nowhere,
    };
    Ok(entries.chunks_exact(8).map(place).collect())
}

/// How many pages of a mapping are on a device.
pub fn resident(map: &Map) -> Result<usize, SysError> {
    let is_there = |place: &&Place| **place == Place::Device;
    Ok(places(map)?.iter().filter(is_there).count())
}

/// Fails unless exactly these pages are on the device, and the others are not.
///
/// # Errors
///
/// As above, or any error of the file.
#[track_caller]
pub fn check_places(map: &Map, on_device: impl Fn(usize) -> bool) -> Outcome {
    for (page, place) in places(map)?.into_iter().enumerate() {
        if on_device(page) != (place == Place::Device) {
            fail!("page {page} of {} is in {place:?}", map.pages());
        }
    }
    Ok(())
}

/// Fails unless some pages have a pattern.
#[track_caller]
pub fn holds(who: &str, map: &Map, pattern: Pattern, pages: Range<usize>) -> Outcome {
    map.verify_pages(pattern, pages.start, pages.len())
        .map_err(|mismatch| Stop::fail(format_args!("{who}: {mismatch}")))
}

/// Memory of this process that is filled with a pattern, at a multiple of 2 MiB.
pub fn filled(pages: usize, pattern: Pattern) -> Result<Map, SysError> {
    let map = Map::private_aligned(pages * PAGE, HUGE * PAGE)?;
    map.advise(0..pages, libc::MADV_NOHUGEPAGE)?;
    map.fill(pattern);
    Ok(map)
}

/// How many pages a huge page has.
pub const HUGE: usize = 512;

impl Drm {
    fn svm(&self, request: u64, name: &str, addr: u64, size: u64) -> Result<(), SysError> {
        let mut argument = VvramSvmRange {
            address: addr,
            size,
            ..Default::default()
        };
        ioctl(self.fd(), request, &mut argument, || {
            format!("{name}({addr:#x}, {size:#x})")
        })?;
        Ok(())
    }

    /// SVM_MIGRATE of any range.
    pub fn svm_migrate_at(&self, addr: u64, size: u64) -> Result<(), SysError> {
        self.svm(uapi::VVRAM_SVM_MIGRATE, "SVM_MIGRATE", addr, size)
    }

    /// Migrates pages of a mapping to VRAM.
    pub fn svm_migrate(&self, map: &Map, pages: Range<usize>) -> Result<(), SysError> {
        let size = (pages.len() * PAGE) as u64;
        self.svm_migrate_at(map.page_address(pages.start), size)
    }

    /// Migrates pages of a mapping to VRAM one by one, so that each of them moves back alone. Fails
    /// unless exactly these pages are in VRAM then.
    #[track_caller]
    pub fn svm_migrate_each(&self, map: &Map, pages: &[usize]) -> Outcome {
        for page in pages {
            self.svm_migrate(map, *page..page + 1)?;
        }
        check_places(map, |page| pages.contains(&page))
    }

    /// SVM_EVICT of any range.
    pub fn svm_evict_at(&self, addr: u64, size: u64) -> Result<(), SysError> {
        self.svm(uapi::VVRAM_SVM_EVICT, "SVM_EVICT", addr, size)
    }

    /// Moves pages of a mapping to system memory.
    pub fn svm_evict(&self, map: &Map, pages: Range<usize>) -> Result<(), SysError> {
        let size = (pages.len() * PAGE) as u64;
        self.svm_evict_at(map.page_address(pages.start), size)
    }

    /// How much VRAM holds memory of processes, in bytes.
    pub fn svm_vram(&self) -> Result<u64, SysError> {
        self.counter(Counter::SvmVram)
    }

    /// How many pages of processes were moved back so far.
    pub fn svm_moved_back(&self) -> Result<u64, SysError> {
        self.counter(Counter::SvmMovedBack)
    }
}
