// SPDX-License-Identifier: GPL-2.0

//! Contents that depend on the position, so that a page at the wrong place, or a missing one, is
//! always detected.

use std::fmt;

use crate::map::PAGE64;

/// An endless sequence of bytes, chosen by a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

/// The first place where contents differ from what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset in the buffer, in bytes.
    pub offset: u64,
    /// The word that should be there.
    pub want: u64,
    /// The word that is there.
    pub seen: u64,
    /// Words (or bytes of an odd end) that differ.
    pub bad: u64,
    /// Words (or bytes of an odd end) that were compared.
    pub all: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} words differ, first at byte {:#x} (page {}): expected {:#018x}, saw {:#018x}",
            self.bad,
            self.all,
            self.offset,
            self.offset / PAGE64,
            self.want,
            self.seen
        )
    }
}

/// Collects mismatches.
#[derive(Debug, Default)]
pub struct Compare {
    first: Option<(u64, u64, u64)>,
    bad: u64,
    all: u64,
}

impl Compare {
    /// Compares one word at a byte offset.
    #[inline]
    pub fn word(&mut self, offset: u64, want: u64, seen: u64) {
        self.all += 1;
        if want != seen {
            self.bad += 1;
            self.first.get_or_insert((offset, want, seen));
        }
    }

    /// Returns the result.
    ///
    /// # Errors
    ///
    /// The first difference, if there is one.
    pub fn finish(self) -> Result<(), Mismatch> {
        match self.first {
            None => Ok(()),
            Some((offset, want, seen)) => Err(Mismatch {
                offset,
                want,
                seen,
                bad: self.bad,
                all: self.all,
            }),
        }
    }
}

impl Pattern {
    /// The pattern of a seed.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// Another pattern for each index.
    pub const fn derive(self, index: u64) -> Self {
        Self::new(self.seed ^ (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The word at index `index`, that is at byte `8 * index`.
    #[inline]
    pub const fn word(self, index: u64) -> u64 {
        let mut x = self.seed ^ index;
        x ^= x >> 33;
        x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
        x ^= x >> 33;
        x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ (x >> 33)
    }

    /// The byte at an offset.
    #[inline]
    pub const fn byte(self, offset: u64) -> u8 {
        (self.word(offset / 8) >> (8 * (offset % 8))) as u8
    }

    /// Fills a slice with the bytes of the pattern from `offset` on.
    pub fn fill(self, data: &mut [u8], offset: u64) {
        if !offset.is_multiple_of(8) {
            for (at, byte) in (offset..).zip(data) {
                *byte = self.byte(at);
            }
            return;
        }
        let mut words = data.chunks_exact_mut(8);
        let mut index = offset / 8;
        for word in &mut words {
            word.copy_from_slice(&self.word(index).to_le_bytes());
            index += 1;
        }
        for (at, byte) in (8 * index..).zip(words.into_remainder()) {
            *byte = self.byte(at);
        }
    }

    /// Compares a slice with the bytes of the pattern from `offset` on.
    ///
    /// # Errors
    ///
    /// The first difference, if there is one.
    pub fn verify(self, data: &[u8], offset: u64) -> Result<(), Mismatch> {
        let mut compare = Compare::default();
        if !offset.is_multiple_of(8) {
            for (at, byte) in (offset..).zip(data) {
                compare.word(at, self.byte(at).into(), (*byte).into());
            }
            return compare.finish();
        }
        let words = data.chunks_exact(8);
        let rest = words.remainder();
        let mut index = offset / 8;
        for word in words {
            let seen = u64::from_le_bytes(word.try_into().unwrap_or_default());
            compare.word(8 * index, self.word(index), seen);
            index += 1;
        }
        for (at, byte) in (8 * index..).zip(rest) {
            compare.word(at, self.byte(at).into(), (*byte).into());
        }
        compare.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_slice_verifies_and_a_changed_one_does_not() {
        let pattern = Pattern::new(1);
        for offset in [0, 3, 8, 4093] {
            let mut data = [0u8; 61];
            pattern.fill(&mut data, offset);
            assert_eq!(pattern.verify(&data, offset), Ok(()));
            data[60] ^= 0x10;
            let found = pattern.verify(&data, offset).unwrap_err();
            assert_eq!(found.bad, 1);
            assert!(found.offset <= offset + 60 && found.offset + 8 > offset + 60);
        }
    }

    #[test]
    fn pages_and_seeds_differ() {
        let (a, b) = (Pattern::new(1), Pattern::new(2));
        assert_ne!(a.word(0), a.word(512));
        assert_ne!(a.word(0), b.word(0));
        assert_ne!(a.word(0), 0);
    }
}
