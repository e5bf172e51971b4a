// SPDX-License-Identifier: GPL-2.0

//! Page tables: three levels of 512 entries, in system memory.

use std::collections::BTreeMap;

use vfio_user::memory::PAGE;

/// Bits of a virtual address.
pub const BITS: u32 = 39;
/// Bytes of the largest page.
const LARGEST: u64 = 2 << 20;
const ENTRIES: u64 = 512;

const VALID: u64 = 1 << 0;
const READ_ONLY: u64 = 1 << 1;
const VRAM: u64 = 1 << 2;
const LEAF: u64 = 1 << 3;
const ADDRESS: u64 = ((1 << 52) - 1) & !(PAGE - 1);
const RESERVED: u64 = !(ADDRESS | VALID | READ_ONLY | VRAM | LEAF);

/// The place of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an offset in VRAM.
    Vram(u64),
    /// At a bus address.
    Bus(u64),
}

impl Place {
    /// The place so many bytes further.
    pub fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Vram(offset) => Self::Vram(offset.wrapping_add(bytes)),
            Self::Bus(address) => Self::Bus(address.wrapping_add(bytes)),
        }
    }
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Nothing,
    /// The bus address of a table of the next level.
    Table(u64),
    Page {
        place: Place,
        read_only: bool,
    },
    /// An entry that breaks the rules, so that nothing is mapped.
    Wrong,
}

/// A step of a walk: an entry of a table, or the root of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The first virtual address that the entry stands for, and bytes.
    pub start: u64,
    pub bytes: u64,
    pub says: Says,
}

impl Step {
    /// The root of a context, or zero.
    pub fn root(root: u64) -> Self {
        Self {
            start: 0,
            bytes: 1 << BITS,
            says: match root {
                0 => Says::Nothing,
                _ if root & !ADDRESS != 0 => Says::Wrong,
                _ => Says::Table(root),
            },
        }
    }

    /// The entry for an address, of a level whose entries stand for so many bytes.
    pub fn new(address: u64, bytes: u64, entry: u64) -> Self {
        Self {
            start: address & !(bytes - 1),
            bytes,
            says: says(bytes, entry),
        }
    }

    /// Whether nothing is mapped at its addresses.
    pub fn is_nothing(&self) -> bool {
        matches!(self.says, Says::Nothing | Says::Wrong)
    }
}

/// Whether a valid entry has bits that have to be zero.
pub fn has_reserved(entry: u64) -> bool {
    entry & VALID != 0 && entry & RESERVED != 0
}

fn says(bytes: u64, entry: u64) -> Says {
    if entry & VALID == 0 {
        return Says::Nothing;
    }
    let address = entry & ADDRESS;
    if has_reserved(entry) {
        return Says::Wrong;
    }
    if entry & LEAF == 0 {
        return match bytes > PAGE && entry & VRAM == 0 {
            true => Says::Table(address),
            false => Says::Wrong,
        };
    }
    if bytes > LARGEST || !address.is_multiple_of(bytes) {
        return Says::Wrong;
    }
    Says::Page {
        place: match entry & VRAM {
            0 => Place::Bus(address),
            _ => Place::Vram(address),
        },
        read_only: entry & READ_ONLY != 0,
    }
}

/// Goes on from a step to the entry for an address that points to no table. One function gives the
/// word at a bus address, and one is called with each of these steps and the place of its entry.
pub fn walk<E>(
    from: Step,
    address: u64,
    mut load: impl FnMut(u64) -> Result<u64, E>,
    mut see: impl FnMut(Step, u64),
) -> Result<Step, E> {
    let mut step = from;
    if address >> BITS != 0 {
        step.says = Says::Nothing;
    }
    while let Says::Table(table) = step.says {
        let bytes = step.bytes / ENTRIES;
        let at = table + address / bytes % ENTRIES * 8;
        step = Step::new(address, bytes, load(at)?);
        see(step, at);
    }
    Ok(step)
}

/// The content of the tables of the aperture for a range.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Pages of VRAM by pages of the aperture.
    pub pages: BTreeMap<u64, u64>,
    /// Entries that may not be there, with their addresses.
    pub wrong: Vec<(u64, u64)>,
}

/// The limits of an aperture.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Bytes of VRAM.
    pub vram: u64,
    /// The first address that is looked at, and the last one.
    pub first: u64,
    pub last: u64,
}

/// Reads the tables of the aperture, by a function that gives the words of a table at a bus
/// address.
pub fn view<E>(
    root: Step,
    limits: Limits,
    mut table: impl FnMut(u64) -> Result<[u64; ENTRIES as usize], E>,
) -> Result<View, E> {
    let mut view = View::default();
    descend(root, limits, &mut table, &mut view)?;
    Ok(view)
}

fn descend<E>(
    above: Step,
    limits: Limits,
    read: &mut impl FnMut(u64) -> Result<[u64; ENTRIES as usize], E>,
    view: &mut View,
) -> Result<(), E> {
    let Says::Table(table) = above.says else {
        return Ok(());
    };
    let bytes = above.bytes / ENTRIES;
    for (number, entry) in (0..).zip(read(table)?) {
        let first = above.start + number * bytes;
        if first > limits.last || first + (bytes - 1) < limits.first {
            continue;
        }
        let step = Step::new(first, bytes, entry);
        match step.says {
            Says::Nothing => (),
            Says::Table(_) => descend(step, limits, read, view)?,
            Says::Page {
                place: Place::Vram(offset),
                read_only: false,
            } if offset + bytes <= limits.vram => {
                let pages = bytes / PAGE;
                let (page, vram) = (first / PAGE, offset / PAGE);
                view.pages.extend(
                    (0..pages)
                        .map(|i| (page + i, vram + i))
                        .filter(|(page, _)| {
                            (limits.first / PAGE..=limits.last / PAGE).contains(page)
                        }),
                );
            }
            Says::Page { .. } | Says::Wrong => view.wrong.push((first, entry)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::convert::Infallible;

    const HUGE: u64 = 2 << 20;
    const SECOND: u64 = 0x2000;
    const THIRD: u64 = 0x3000;

    /// Tables whose root is at 0x1000, with entries of the other two.
    fn tables(entries: &[(u64, u64)]) -> HashMap<u64, u64> {
        let mut tables = HashMap::from([(0x1000, SECOND | VALID), (SECOND, THIRD | VALID)]);
        tables.extend(entries.iter().copied());
        tables
    }

    fn found(entries: &[(u64, u64)], address: u64) -> Option<Step> {
        let tables = tables(entries);
        let load = |at| Ok::<u64, Infallible>(tables.get(&at).copied().unwrap_or(0));
        let step = walk(Step::root(0x1000), address, load, |_, _| ()).unwrap();
        (!step.is_nothing()).then_some(step)
    }

    #[test]
    fn pages_are_found() {
        let entry = 0x12_3456_7000 | VALID | LEAF;
        let leaf = Step {
            start: 0x5000,
            bytes: PAGE,
            says: Says::Page {
                place: Place::Bus(0x12_3456_7000),
                read_only: false,
            },
        };
        assert_eq!(found(&[(THIRD + 5 * 8, entry)], 0x5123), Some(leaf));
        assert_eq!(found(&[(THIRD + 5 * 8, entry)], 0x6000), None);
        let vram = Step {
            says: Says::Page {
                place: Place::Vram(0x12_3456_7000),
                read_only: true,
            },
            ..leaf
        };
        let entry = entry | VRAM | READ_ONLY;
        assert_eq!(found(&[(THIRD + 5 * 8, entry)], 0x5fff), Some(vram));
    }

    #[test]
    fn two_megabytes_are_found() {
        let entry = (3 * HUGE) | VALID | LEAF | VRAM;
        let leaf = found(&[(SECOND + 8, entry)], HUGE + 77).unwrap();
        assert_eq!((leaf.start, leaf.bytes), (HUGE, HUGE));
        let place = Place::Vram(3 * HUGE);
        let read_only = false;
        assert_eq!(leaf.says, Says::Page { place, read_only });
    }

    #[test]
    fn wrong_entries_are_not_mapped() {
        for (at, entry, address) in [
            // Not valid, a table in the last level, a table in VRAM, a leaf that is not aligned.
            (THIRD, LEAF, 0),
            (THIRD, VALID, 0),
            (SECOND + 8, THIRD | VALID | VRAM, HUGE),
            (SECOND + 8, PAGE | VALID | LEAF, HUGE),
            // A leaf in the first level.
            (0x1008, VALID | LEAF, 1 << 30),
            // Bits that have to be zero.
            (THIRD, VALID | LEAF | 1 << 52, 0),
            (THIRD, VALID | LEAF | 1 << 63, 0),
            (THIRD, VALID | LEAF | 1 << 4, 0),
            (SECOND, THIRD | VALID | 1 << 62, 0),
        ] {
            assert_eq!(found(&[(at, entry)], address), None, "{entry:#x}");
        }
        assert_eq!(found(&[(THIRD, VALID | LEAF)], 1 << BITS), None);
        assert!(found(&[(THIRD, VALID | LEAF)], 0).is_some());
    }

    fn seen(entries: &[(u64, u64)], first: u64, last: u64) -> View {
        let tables = tables(entries);
        let limits = Limits {
            vram: 4 * HUGE,
            first,
            last,
        };
        view(Step::root(0x1000), limits, |at| {
            Ok::<_, Infallible>(std::array::from_fn(|i| {
                tables.get(&(at + 8 * i as u64)).copied().unwrap_or(0)
            }))
        })
        .unwrap()
    }

    #[test]
    fn the_aperture_is_seen_in_its_range() {
        let entries = [
            (THIRD, (7 * PAGE) | VALID | LEAF | VRAM),
            (THIRD + 8, (9 * PAGE) | VALID | LEAF | VRAM),
            (THIRD + 16, (8 * PAGE) | VALID | LEAF | VRAM),
            (SECOND + 8, HUGE | VALID | LEAF | VRAM),
        ];
        let all = seen(&entries, 0, 4 * HUGE - 1);
        assert_eq!(all.pages.len(), 3 + 512);
        assert_eq!(all.pages[&1], 9);
        assert_eq!(all.pages[&1023], 1023);
        let some = seen(&entries, PAGE, 2 * PAGE - 1);
        assert_eq!(some.pages, BTreeMap::from([(1, 9)]));
        let edge = seen(&entries, 2 * PAGE + 1, HUGE);
        assert_eq!(edge.pages, BTreeMap::from([(2, 8), (512, 512)]));
        assert!(all.wrong.is_empty());
    }

    #[test]
    fn rules_of_the_aperture() {
        let wrong = [
            (7 * PAGE) | VALID | LEAF,
            (7 * PAGE) | VALID | LEAF | VRAM | READ_ONLY,
            (4 * HUGE) | VALID | LEAF | VRAM,
            (7 * PAGE) | VALID,
            (7 * PAGE) | VALID | LEAF | VRAM | 1 << 52,
        ];
        let entries: Vec<(u64, u64)> = (0..).map(|i| THIRD + 8 * i).zip(wrong).collect();
        let view = seen(&entries, 0, u64::MAX);
        assert!(view.pages.is_empty());
        let told: Vec<(u64, u64)> = (0..).map(|i| i * PAGE).zip(wrong).collect();
        assert_eq!(view.wrong, told);
    }
}
