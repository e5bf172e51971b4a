// SPDX-License-Identifier: GPL-2.0

//! The translations that the engines keep, until an INVALIDATE covers them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;

use crate::pages::Says;
use crate::pages::Step;
use crate::pages::BITS;

/// Bytes that the entries of the levels stand for, and a root.
const SIZES: [u64; 4] = [4 << 10, 2 << 20, 1 << 30, 1 << BITS];

/// A translation that is kept.
#[derive(Clone, Copy)]
struct Kept {
    says: Says,
    /// Whether it was reported that its entry has changed.
    reported: bool,
}

/// The translations of all contexts.
#[derive(Default)]
pub struct Tlb {
    /// By context, first address and size.
    kept: Mutex<HashMap<(u32, u64, u64), Kept>>,
    /// Held for reading from the lookup of a translation to the end of the access.
    used: RwLock<()>,
}

impl Tlb {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, u64, u64), Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Translations that are found are not dropped before the guard is.
    pub fn begin(&self) -> RwLockReadGuard<'_, ()> {
        self.used.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last step of those for an address that are kept.
    pub fn find(&self, context: u32, address: u64) -> Option<Step> {
        let kept = self.lock();
        SIZES.iter().find_map(|&bytes| {
            let start = address & !(bytes - 1);
            let says = kept.get(&(context, start, bytes))?.says;
            Some(Step { start, bytes, says })
        })
    }

    /// Keeps a step, unless it is kept already.
    pub fn keep(&self, context: u32, step: Step) {
        let kept = Kept {
            says: step.says,
            reported: false,
        };
        let key = (context, step.start, step.bytes);
        self.lock().entry(key).or_insert(kept);
    }

    /// Drops a step.
    pub fn drop(&self, context: u32, step: Step) {
        self.lock().remove(&(context, step.start, step.bytes));
    }

    /// Notes that it was reported that the entry of a translation has changed; returns false if it
    /// already was.
    pub fn tell(&self, context: u32, step: Step) -> bool {
        match self.lock().get_mut(&(context, step.start, step.bytes)) {
            Some(kept) => !std::mem::replace(&mut kept.reported, true),
            None => false,
        }
    }

    /// Drops the translations of a range of a context, once no access that uses them is in
    /// progress.
    pub fn invalidate(&self, context: u32, start: u64, last: u64) {
        // An access that has looked an entry up keeps it before it ends.
        let _no_access = self.used.write().unwrap_or_else(PoisonError::into_inner);
        self.lock().retain(|&(of, first, bytes), _| {
            of != context || first > last || first + (bytes - 1) < start
        });
    }

    /// Drops all translations.
    pub fn clear(&self) {
        let _no_access = self.used.write().unwrap_or_else(PoisonError::into_inner);
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Place;

    fn leaf(start: u64, bytes: u64) -> Step {
        Step {
            start,
            bytes,
            says: Says::Page {
                place: Place::Vram(start),
                read_only: false,
            },
        }
    }

    #[test]
    fn translations_are_kept_until_they_are_covered() {
        let tlb = Tlb::default();
        let (small, large) = (leaf(0x5000, 4 << 10), leaf(2 << 20, 2 << 20));
        tlb.keep(1, small);
        tlb.keep(1, large);
        tlb.keep(2, small);
        for (context, start, last) in [(3, 0, u64::MAX), (1, 0, 0x4fff), (1, 0x6000, 0x1f_ffff)] {
            tlb.invalidate(context, start, last);
        }
        assert_eq!(tlb.find(1, 0x5fff), Some(small));
        assert_eq!(tlb.find(1, 0x6000), None);
        assert_eq!(tlb.find(1, (4 << 20) - 1), Some(large));
        tlb.invalidate(1, 0x5fff, 0x5fff);
        assert_eq!(tlb.find(1, 0x5fff), None);
        tlb.invalidate(1, 0, 2 << 20);
        assert_eq!(tlb.find(1, (4 << 20) - 1), None);
        assert_eq!(tlb.find(2, 0x5000), Some(small));
        tlb.clear();
        assert_eq!(tlb.find(2, 0x5000), None);
    }

    #[test]
    fn a_change_is_told_once() {
        let tlb = Tlb::default();
        let leaf = leaf(0, 4 << 10);
        assert!(!tlb.tell(1, leaf));
        tlb.keep(1, leaf);
        assert!(tlb.tell(1, leaf));
        assert!(!tlb.tell(1, leaf));
    }
}
