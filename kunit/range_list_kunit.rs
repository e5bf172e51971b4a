// SPDX-License-Identifier: GPL-2.0

//! KUnit suite for `kernel::dma_buf::exporter::mapping::RangeList`.
//!
//! The property tests compare the list with a model that has no ranges: the sequence of page
//! addresses that were pushed, one by one.

use kernel::prelude::*;

module! {
    type: RangeListKunit,
    name: "range_list_kunit",
    authors: ["The vvram developers"],
    description: "KUnit suite for ranges of peer-to-peer memory",
    license: "GPL",
    params: {
        seed: u32 {
            default: 0,
            description: "Seed of the random blocks (default: a new one each time)",
        },
    },
}

struct RangeListKunit;

impl kernel::Module for RangeListKunit {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}

#[kunit_tests(range_list)]
mod tests {
    use kernel::{
        dma_buf::exporter::mapping::RangeList,
        page::PAGE_SIZE,
        prelude::*, //
    };

    const PAGE: u64 = PAGE_SIZE as u64;

    /// A linear congruential generator: the same cases for the same seed.
    struct Random(u64);

    impl Random {
        /// Begins with the seed of the module parameter, or a new one, and logs it.
        fn new() -> Self {
            let seed = match crate::module_parameters::seed.value() {
                // SAFETY: It may be called from everywhere.
                0 => unsafe { kernel::bindings::get_random_u32() },
                seed => seed,
            };

            pr_info!("seed={seed}\n");
            Self(seed.into())
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    /// Whether `list` covers `pages` in that order, and cannot be written with fewer ranges.
    fn covers(list: &RangeList, pages: &[u64]) -> bool {
        let mut expected = pages.iter();
        let mut previous: Option<(u64, u64)> = None;

        for (start, len) in list.iter() {
            if len == 0 || start % PAGE != 0 || len % PAGE != 0 {
                return false;
            }
            if let Some((before, before_len)) = previous {
                if before + before_len == start {
                    return false;
                }
            }
            for page in (start..start + len).step_by(PAGE_SIZE) {
                if expected.next() != Some(&page) {
                    return false;
                }
            }
            previous = Some((start, len));
        }

        expected.next().is_none() && list.size() == pages.len() * PAGE_SIZE
    }

    #[test]
    fn random_blocks() -> Result {
        let mut random = Random::new();

        for _ in 0..2_000 {
            let mut list = RangeList::new();
            let mut pages = KVec::new();
            let mut next = random.below(64) * PAGE;

            for _ in 0..random.below(16) {
                // Half of the blocks follow the previous one, the others lie anywhere, also below
                // it.
                if random.below(2) == 0 {
                    next = random.below(1 << 20) * PAGE;
                }
                let len = (1 + random.below(8)) * PAGE;

                // Room is reserved before the first range, only for that one, later, or not at all.
                if random.below(4) == 0 {
                    list.reserve(random.below(4) as usize, GFP_KERNEL)?;
                }
                list.push(next, len)?;
                for page in (next..next + len).step_by(PAGE_SIZE) {
                    pages.push(page, GFP_KERNEL)?;
                }
                next += len;
            }

            assert!(covers(&list, &pages));
        }
        Ok(())
    }

    #[test]
    fn empty() {
        let list = RangeList::new();

        assert!(list.is_empty());
        assert_eq!(list.len(), 0);
        assert_eq!(list.size(), 0);
    }

    #[test]
    fn long_ranges_stay_whole() -> Result {
        let mut list = RangeList::new();

        // A range that is too long for one entry is split when the table is made, not here.
        list.push(PAGE, 5 << 30)?;
        list.push(PAGE + (5 << 30), 1 << 40)?;
        assert!(list.iter().eq([(PAGE, (5 << 30) + (1 << 40))]));
        assert_eq!(list.size() as u64, (5 << 30) + (1 << 40));
        Ok(())
    }

    #[test]
    fn many_neighbours_of_48_gib() -> Result {
        let mut list = RangeList::new();
        let block = 64 << 20;

        for i in 0..768 {
            list.push(i * block, block)?;
        }
        assert_eq!(list.size() as u64, 48 << 30);
        assert_eq!(list.len(), 1);
        Ok(())
    }

    #[test]
    fn order_is_that_of_the_buffer() -> Result {
        let mut list = RangeList::new();

        // The second block lies right below the first one: in this order they are not merged.
        list.push(4 * PAGE, PAGE)?;
        list.push(3 * PAGE, PAGE)?;
        assert!(list.iter().eq([(4 * PAGE, PAGE), (3 * PAGE, PAGE)]));
        Ok(())
    }

    #[test]
    fn bad_ranges_are_refused() {
        let mut list = RangeList::new();

        assert!(list.push(0, 0) == Err(EINVAL));
        assert!(list.push(1, PAGE) == Err(EINVAL));
        assert!(list.push(0, PAGE - 1) == Err(EINVAL));
        assert!(list.push(u64::MAX - PAGE + 1, 2 * PAGE) == Err(EOVERFLOW));
        assert!(list.is_empty());
        assert_eq!(list.size(), 0);
    }

    #[test]
    fn sum_does_not_overflow() -> Result {
        let mut list = RangeList::new();

        list.push(0, 1 << 32)?;
        // The sum of both does not fit 64 bits; nothing is appended.
        assert!(list.push(0, u64::MAX - PAGE + 1) == Err(EOVERFLOW));
        assert_eq!(list.size() as u64, 1 << 32);
        assert_eq!(list.len(), 1);
        Ok(())
    }
}
