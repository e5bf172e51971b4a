// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Places for objects.
//!
//! C header: [`include/drm/ttm/ttm_placement.h`](srctree/include/drm/ttm/ttm_placement.h)

use crate::{
    bindings,
    drm::vram::{
        Domain,
        MemType, //
    },
    page::PAGE_SHIFT,
    prelude::*, //
};
use core::ops::Deref;

impl Domain {
    /// Returns the places for an object that is new or used again.
    pub const fn places(self) -> [Place; 3] {
        self.places_in(Place::VRAM)
    }

    /// As [`Self::places`], with `vram` as the suitable part of VRAM.
    pub(crate) const fn places_in(self, vram: Place) -> [Place; 3] {
        let (first, last) = match self {
            Self::Vram => (vram, vram),
            Self::System => (Place::TT, Place::TT),
            Self::Either => (vram, Place::TT.fallback()),
        };

        [
            first.evicting(Victims::Unused),
            first.evicting(Victims::Own),
            last,
        ]
    }
}

/// The objects that may be evicted for an object (see [`Place::evicting`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Victims {
    /// None.
    None,
    /// Objects used by no client and no other device.
    Unused,
    /// Objects used by no other device. If clients use an evicted object, the eviction depends on
    /// their work and new objects of all clients depend on the eviction.
    Own,
    /// All. If another device uses an object, its eviction waits for the device with the
    /// reservation held.
    All,
}

/// Flags of places unknown to TTM and not checked by it.
const UNUSED: u32 = 1 << 31;
const OWN: u32 = 1 << 30;

/// A place for an object, `struct ttm_place`.
///
/// Objects are given a list of places. The places are tried in order: first without and then with
/// the eviction of other objects.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::ttm::{
///         Place,
///         Victims, //
///     },
///     drm::vram::MemType,
///     page::PAGE_SIZE, //
/// };
///
/// // In VRAM if there is room, else in system memory; no object is evicted for it.
/// let either = [Place::VRAM.evicting(Victims::None), Place::TT];
/// assert_eq!(either[0].mem_type(), MemType::Vram);
///
/// // In the first megabyte.
/// let low = Place::VRAM.below(1 << 20);
/// assert!(low.contains(0, 1 << 20));
/// assert!(!low.contains(1 << 20, PAGE_SIZE as u64));
/// assert!(Place::VRAM.contains(1 << 20, PAGE_SIZE as u64));
/// ```
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Place(pub(crate) bindings::ttm_place);

// SAFETY: A place is a description by numbers.
unsafe impl Send for Place {}

// SAFETY: As for `Send`.
unsafe impl Sync for Place {}

impl Place {
    /// Returns the list of places for TTM. It borrows them without a lifetime.
    pub(crate) fn list(places: &[Self]) -> bindings::ttm_placement {
        bindings::ttm_placement {
            // CAST: There are few places.
            num_placement: places.len() as u32,
            placement: places.as_ptr().cast(),
        }
    }

    /// Anywhere in VRAM.
    pub const VRAM: Self = Self::new(MemType::Vram);
    /// System memory accessible to devices.
    pub const TT: Self = Self::new(MemType::Tt);
    /// System memory not accessed by any device.
    pub const SYSTEM: Self = Self::new(MemType::System);

    const fn new(mem_type: MemType) -> Self {
        Self(bindings::ttm_place {
            fpfn: 0,
            lpfn: 0,
            mem_type: mem_type.as_raw(),
            flags: 0,
        })
    }

    const fn with(mut self, flag: u32) -> Self {
        self.0.flags |= flag;
        self
    }

    /// Only some objects may be evicted for it. The default is [`Victims::All`].
    pub const fn evicting(mut self, victims: Victims) -> Self {
        self.0.flags &= !(bindings::TTM_PL_FLAG_DESIRED | UNUSED | OWN);
        self.with(match victims {
            Victims::None => bindings::TTM_PL_FLAG_DESIRED,
            Victims::Unused => UNUSED,
            Victims::Own => OWN,
            Victims::All => 0,
        })
    }

    /// Only used once all places without eviction were tried.
    pub const fn fallback(self) -> Self {
        self.with(bindings::TTM_PL_FLAG_FALLBACK)
    }

    /// The object is in one piece.
    pub const fn contiguous(self) -> Self {
        self.with(bindings::TTM_PL_FLAG_CONTIGUOUS)
    }

    /// The object is put at the end of the memory.
    pub const fn top_down(self) -> Self {
        self.with(bindings::TTM_PL_FLAG_TOPDOWN)
    }

    /// Below byte offset `end` of VRAM; the rest of a page is not used.
    ///
    /// System memory has no offsets and is all alike.
    pub const fn below(mut self, end: u64) -> Self {
        self.0.lpfn = end >> PAGE_SHIFT;
        if self.0.lpfn == 0 {
            // Select no page because a limit of 0 would mean all pages.
            self.0.fpfn = 1;
            self.0.lpfn = 1;
        }
        self
    }

    /// Returns the kind of memory.
    pub const fn mem_type(&self) -> MemType {
        match MemType::from_raw(self.0.mem_type) {
            Some(mem_type) => mem_type,
            // There is no constructor for another kind.
            None => MemType::System,
        }
    }

    /// Returns the first page and the one after the last. The latter is [`u64::MAX`] if there is no
    /// limit.
    const fn pages(&self) -> (u64, u64) {
        if self.0.lpfn == 0 {
            (self.0.fpfn, u64::MAX)
        } else {
            (self.0.fpfn, self.0.lpfn)
        }
    }

    /// Returns the range of offsets in bytes, limited to the memory size `size`.
    pub(in crate::drm) const fn range(&self, size: u64) -> (u64, u64) {
        let (first, last) = self.pages();
        let end = if last > size >> PAGE_SHIFT {
            size
        } else {
            last << PAGE_SHIFT
        };
        let start = if first > end >> PAGE_SHIFT {
            end
        } else {
            first << PAGE_SHIFT
        };

        (start, end)
    }

    /// Returns whether `len` bytes at `offset` are inside the place.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        let (first, last) = self.pages();

        offset >> PAGE_SHIFT >= first
            && offset
                .checked_add(len)
                .is_some_and(|end| end.div_ceil(1 << PAGE_SHIFT) <= last)
    }

    /// Returns whether `len` bytes at `offset` overlap with the place.
    pub(in crate::drm) fn intersects(&self, offset: u64, len: u64) -> bool {
        let (first, last) = self.pages();

        offset >> PAGE_SHIFT < last
            && offset
                .checked_add(len)
                .is_some_and(|end| end.div_ceil(1 << PAGE_SHIFT) > first)
    }

    /// Returns which objects may be evicted for it.
    pub(in crate::drm) fn victims(&self) -> Victims {
        if self.0.flags & bindings::TTM_PL_FLAG_DESIRED != 0 {
            Victims::None
        } else if self.0.flags & UNUSED != 0 {
            Victims::Unused
        } else if self.0.flags & OWN != 0 {
            Victims::Own
        } else {
            Victims::All
        }
    }

    pub(in crate::drm) fn is_contiguous(&self) -> bool {
        self.0.flags & bindings::TTM_PL_FLAG_CONTIGUOUS != 0
    }

    pub(in crate::drm) fn is_top_down(&self) -> bool {
        self.0.flags & bindings::TTM_PL_FLAG_TOPDOWN != 0
    }

    /// # Safety
    ///
    /// `raw` must be valid for `'a`.
    pub(in crate::drm) unsafe fn from_raw<'a>(raw: *const bindings::ttm_place) -> &'a Self {
        // SAFETY: `Place` is a transparent wrapper.
        unsafe { &*raw.cast() }
    }
}

/// The maximum number of places for an object at a time.
pub(crate) const MAX_PLACES: usize = 4;

/// Some places in the order in which they are tried.
pub(crate) struct Places {
    // One more for `without_eviction()`.
    places: [Place; MAX_PLACES + 1],
    count: usize,
}

impl Places {
    /// Returns those of `places` with room for `size` bytes. `size_of` returns the size of a kind
    /// of memory.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there are no places or more than [`MAX_PLACES`]. Without a place TTM would
    ///   discard the content.
    /// - `ENOSPC` if no place has room.
    pub(in crate::drm) fn fitting(
        places: &[Place],
        size: u64,
        size_of: impl Fn(MemType) -> u64,
    ) -> Result<Self> {
        if places.is_empty() || places.len() > MAX_PLACES {
            return Err(EINVAL);
        }

        let mut found = Self {
            places: [places[0]; MAX_PLACES + 1],
            count: 0,
        };
        for place in places {
            let (start, end) = place.range(size_of(place.mem_type()));

            if size <= end - start {
                found.places[found.count] = *place;
                found.count += 1;
            }
        }
        if found.count == 0 {
            return Err(ENOSPC);
        }
        Ok(found)
    }

    /// Returns the same places without eviction. If they have no room, the object is put in system
    /// memory that no device accesses.
    pub(crate) fn without_eviction(&self) -> Self {
        let mut places = self.places;

        for place in &mut places[..self.count] {
            *place = place.evicting(Victims::None);
        }
        places[self.count] = Place::SYSTEM.fallback();
        Self {
            places,
            count: self.count + 1,
        }
    }
}

impl Deref for Places {
    type Target = [Place];

    fn deref(&self) -> &[Place] {
        &self.places[..self.count]
    }
}

/// Whether and how an operation that moves objects may wait, `struct ttm_operation_ctx`.
#[repr(transparent)]
pub struct OpCtx(pub(crate) bindings::ttm_operation_ctx);

impl OpCtx {
    /// A signal ends a wait with `ERESTARTSYS`.
    pub fn interruptible() -> Self {
        let mut ctx = Self::uninterruptible();

        ctx.0.interruptible = true;
        ctx
    }

    /// Signals do not end a wait.
    pub fn uninterruptible() -> Self {
        Self(pin_init::zeroed())
    }

    /// The operation does not wait: it returns `EBUSY` for a busy object and does not move it.
    pub fn without_waiting() -> Self {
        let mut ctx = Self::uninterruptible();

        ctx.0.no_wait_gpu = true;
        ctx
    }

    pub(crate) fn is_interruptible(&self) -> bool {
        self.0.interruptible
    }

    /// Returns how many bytes were moved.
    pub fn bytes_moved(&self) -> u64 {
        self.0.bytes_moved
    }
}
