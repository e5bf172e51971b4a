// SPDX-License-Identifier: GPL-2.0

//! The check of a scatter table and the lookup of an offset in one.
//!
//! This is arithmetic on addresses. It neither accesses hardware nor takes a lock.

use kernel::{
    fmt,
    page::PAGE_SIZE,
    prelude::*, //
};

/// One piece of memory as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The DMA address of its first byte.
    pub(crate) address: u64,
    /// Its size in bytes.
    pub(crate) length: u64,
}

impl Segment {
    /// The address behind the last byte, or [`None`] if it is past the end of the address space.
    fn end(&self) -> Option<u64> {
        self.address.checked_add(self.length)
    }

    /// The first `len` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are fewer.
    pub(crate) fn start(&self, len: usize) -> Result<Self> {
        // CAST: `usize` fits 64 bits.
        let length = len as u64;

        if length > self.length {
            return Err(EINVAL);
        }
        Ok(Self { length, ..*self })
    }

    fn overlaps(&self, other: &Segment) -> bool {
        match (self.end(), other.end()) {
            (Some(end), Some(other_end)) => self.address < other_end && other.address < end,
            // `check()` refuses a segment that wraps by itself.
            _ => false,
        }
    }

    fn is_page_aligned(&self) -> bool {
        // CAST: A page fits 64 bits.
        (self.address | self.length) % PAGE_SIZE as u64 == 0
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_fmt(fmt!("{:#x}+{:#x}", self.address, self.length))
    }
}

/// An error of a scatter table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A segment has no bytes.
    Empty(Segment),
    /// A segment does not start or end at a page.
    Unaligned(Segment),
    /// A segment passes the end of the address space.
    Wraps(Segment),
    /// A segment covers memory of the driver.
    Foreign(Segment, Segment),
    /// Two segments cover the same memory.
    Overlap(Segment, Segment),
    /// The segments do not add up to the size of the buffer.
    Size {
        /// The sum of the segments, or [`None`] if it does not fit 64 bits.
        sum: Option<u64>,
        /// The size of the buffer.
        size: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(segment) => f.write_fmt(fmt!("segment {} is empty", segment)),
            Self::Unaligned(segment) => {
                f.write_fmt(fmt!("segment {} is not page aligned", segment))
            }
            Self::Wraps(segment) => f.write_fmt(fmt!(
                "segment {} passes the end of the address space",
                segment
            )),
            Self::Foreign(segment, own) => {
                f.write_fmt(fmt!("segment {} covers {} of the driver", segment, own))
            }
            Self::Overlap(a, b) => f.write_fmt(fmt!("segments {} and {} overlap", a, b)),
            Self::Size {
                sum: Some(sum),
                size,
            } => f.write_fmt(fmt!("segments sum up to {:#x} of {:#x} bytes", sum, size)),
            Self::Size { sum: None, size } => f.write_fmt(fmt!(
                "segments sum up to more than 64 bits of {:#x} bytes",
                size
            )),
        }
    }
}

/// Returns the smallest segment that covers all of these, or an empty one if there are none.
fn hull(segments: &[Segment]) -> Segment {
    let address = segments.iter().map(|segment| segment.address).min();
    let end = segments.iter().filter_map(Segment::end).max();
    let (address, end) = (address.unwrap_or(0), end.unwrap_or(0));

    Segment {
        address,
        length: end.saturating_sub(address),
    }
}

/// Checks the table of a buffer of `size` bytes. It must not cover `own`, the memory of the driver.
///
/// Sorts the segments by address because the search for overlaps would be quadratic otherwise.
pub(crate) fn check(segments: &mut [Segment], size: u64, own: &[Segment]) -> Result<(), Fault> {
    let around = hull(own);

    for segment in segments.iter() {
        if segment.length == 0 {
            return Err(Fault::Empty(*segment));
        }
        if !segment.is_page_aligned() {
            return Err(Fault::Unaligned(*segment));
        }
        if segment.end().is_none() {
            return Err(Fault::Wraps(*segment));
        }
        // A table may have many segments and none of them near memory of the driver.
        if segment.overlaps(&around) {
            if let Some(own) = own.iter().find(|own| segment.overlaps(own)) {
                return Err(Fault::Foreign(*segment, *own));
            }
        }
    }

    let sum = segments
        .iter()
        .try_fold(0u64, |sum, segment| sum.checked_add(segment.length));
    if sum != Some(size) {
        return Err(Fault::Size { sum, size });
    }

    segments.sort_unstable_by_key(|segment| segment.address);
    for pair in segments.windows(2) {
        if let [a, b] = pair {
            if a.overlaps(b) {
                return Err(Fault::Overlap(*a, *b));
            }
        }
    }

    Ok(())
}

/// Returns the longest piece of memory that starts at `offset` of the buffer and has at most
/// `limit` bytes in one segment. [`None`] if the segments end before `offset`.
pub(crate) fn locate(
    segments: impl IntoIterator<Item = Segment>,
    offset: u64,
    limit: u64,
) -> Option<Segment> {
    let mut skip = offset;

    for segment in segments {
        if let Some(left) = segment.length.checked_sub(skip).filter(|left| *left > 0) {
            return Some(Segment {
                address: segment.address.checked_add(skip)?,
                length: left.min(limit),
            });
        }
        // Cannot fail: the length is at most `skip` here.
        skip = skip.checked_sub(segment.length)?;
    }

    None
}

#[kunit_tests(edu_peer_table)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_SIZE as u64;

    /// Far from all other addresses of the tests.
    const OWN: Segment = seg(1 << 40, PAGE);
    const ALL: &[Segment] = &[seg(1 << 50, PAGE), OWN];

    const fn seg(address: u64, length: u64) -> Segment {
        Segment { address, length }
    }

    #[test]
    fn a_good_table_passes() {
        // The segments adjoin in any order or end one page before the end of the address space.
        let last = u64::MAX - 2 * PAGE + 1;
        let mut table = [seg(3 * PAGE, PAGE), seg(last, PAGE), seg(0, 3 * PAGE)];

        assert_eq!(check(&mut table, 5 * PAGE, ALL), Ok(()));
        assert_eq!(check(&mut table, 5 * PAGE, &[]), Ok(()));
        // Between memory of the driver.
        assert_eq!(check(&mut [seg(1 << 45, PAGE)], PAGE, ALL), Ok(()));
    }

    #[test]
    fn an_empty_table_has_no_bytes() {
        assert_eq!(check(&mut [], 0, ALL), Ok(()));
        assert_eq!(
            check(&mut [], PAGE, ALL),
            Err(Fault::Size {
                sum: Some(0),
                size: PAGE
            })
        );
    }

    #[test]
    fn the_sum_is_exact() {
        for size in [PAGE, 3 * PAGE] {
            assert_eq!(
                check(&mut [seg(0, PAGE), seg(4 * PAGE, PAGE)], size, ALL),
                Err(Fault::Size {
                    sum: Some(2 * PAGE),
                    size
                })
            );
        }
    }

    #[test]
    fn the_sum_does_not_wrap() {
        let half = 1u64 << 63;

        // The two segments also overlap but the sum is checked first.
        assert_eq!(
            check(&mut [seg(0, half), seg(0, half)], 0, &[seg(half, PAGE)]),
            Err(Fault::Size { sum: None, size: 0 })
        );
    }

    #[test]
    fn bad_segments_are_named() {
        let good = seg(0, PAGE);

        for (bad, fault) in [
            (seg(PAGE, 0), Fault::Empty(seg(PAGE, 0))),
            (seg(PAGE + 1, PAGE), Fault::Unaligned(seg(PAGE + 1, PAGE))),
            (seg(PAGE, PAGE - 1), Fault::Unaligned(seg(PAGE, PAGE - 1))),
            (
                seg(u64::MAX - PAGE + 1, 2 * PAGE),
                Fault::Wraps(seg(u64::MAX - PAGE + 1, 2 * PAGE)),
            ),
            (OWN, Fault::Foreign(OWN, OWN)),
            (
                seg(OWN.address - PAGE, 3 * PAGE),
                Fault::Foreign(seg(OWN.address - PAGE, 3 * PAGE), OWN),
            ),
        ] {
            assert_eq!(check(&mut [good, bad], PAGE + bad.length, ALL), Err(fault));
        }
    }

    #[test]
    fn segments_do_not_overlap() {
        let (a, b, c) = (seg(8 * PAGE, 2 * PAGE), seg(0, PAGE), seg(9 * PAGE, PAGE));

        assert_eq!(
            check(&mut [a, b, c], 4 * PAGE, ALL),
            Err(Fault::Overlap(a, c))
        );
        assert_eq!(check(&mut [a, b], 3 * PAGE, ALL), Ok(()));
        assert_eq!(check(&mut [b, b], 2 * PAGE, ALL), Err(Fault::Overlap(b, b)));
    }

    #[test]
    fn an_offset_is_found() {
        let table = [seg(8 * PAGE, PAGE), seg(PAGE, 2 * PAGE)];

        for (offset, limit, piece) in [
            (0, PAGE, Some(seg(8 * PAGE, PAGE))),
            (0, 1, Some(seg(8 * PAGE, 1))),
            // Ends where the segment does.
            (PAGE - 1, PAGE, Some(seg(9 * PAGE - 1, 1))),
            (PAGE, PAGE, Some(seg(PAGE, PAGE))),
            (2 * PAGE - 1, PAGE, Some(seg(2 * PAGE - 1, PAGE))),
            (3 * PAGE - 1, PAGE, Some(seg(3 * PAGE - 1, 1))),
            (3 * PAGE, PAGE, None),
            (u64::MAX, PAGE, None),
        ] {
            assert_eq!(locate(table, offset, limit), piece);
        }
        assert_eq!(locate([], 0, 1), None);
    }

    /// Compares every byte of a buffer with a list of its addresses.
    #[test]
    fn pieces_cover_the_buffer() {
        let table = [seg(64, 3), seg(16, 1), seg(32, 8)];
        let mut bytes = [0u64; 12];
        let mut n = 0;
        for segment in table {
            for i in 0..segment.length {
                bytes[n] = segment.address + i;
                n += 1;
            }
        }

        for limit in 1..=12u64 {
            let mut offset = 0;
            while offset < 12 {
                let piece = locate(table, offset as u64, limit);
                assert!(piece.is_some());
                let Some(piece) = piece else { return };

                assert!(piece.length >= 1 && piece.length <= limit);
                for i in 0..piece.length {
                    assert_eq!(bytes[offset], piece.address + i);
                    offset += 1;
                }
            }
        }
    }
}
