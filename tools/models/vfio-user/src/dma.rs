// SPDX-License-Identifier: GPL-2.0

//! The DMA mappings of the client: the addresses that a device may access, and their places.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::Weak;

use crate::memory::Memory;
use crate::memory::PAGE;
use crate::message::errno;

/// Bits of the flags of a mapping.
pub const READ: u32 = 1;
pub const WRITE: u32 = 2;

/// The place of an address.
pub enum Place<'a> {
    /// In memory that is mapped here as well, at an offset.
    Memory(&'a Memory, u64),
    /// In memory that only the client reaches.
    Client,
}

struct Entry {
    /// The last address, since the end may be 2^64.
    last: u64,
    /// How many mappings were made before.
    number: u64,
    flags: u32,
    place: Option<(Arc<Memory>, u64)>,
}

/// A file that is mapped as a whole: one mapping of guest memory serves all entries with parts of
/// it.
struct Mapped {
    device: u64,
    inode: u64,
    memory: Weak<Memory>,
}

/// The mappings, by their first addresses. None overlaps another one.
#[derive(Default)]
pub struct Table {
    entries: BTreeMap<u64, Entry>,
    /// How many mappings were made.
    made: u64,
    files: Vec<Mapped>,
}

impl Table {
    /// Maps addresses to a part of a file, or to memory that only the client reaches.
    ///
    /// Older mappings there are unmapped.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that is empty, goes beyond 2^64 or, in the file, beyond its end, and
    /// for one that is not of whole pages.
    pub fn map(
        &mut self,
        first: u64,
        bytes: u64,
        flags: u32,
        file: Option<(&File, u64)>,
    ) -> Result<(), u32> {
        let offset = file.map_or(0, |(_, offset)| offset);
        if !(first | bytes | offset).is_multiple_of(PAGE) {
            return Err(errno::EINVAL);
        }
        let last = last(first, bytes).ok_or(errno::EINVAL)?;
        let place = match file {
            None => None,
            Some((file, offset)) => {
                let end = offset.checked_add(bytes).ok_or(errno::EINVAL)?;
                if file.metadata().map_err(|_| errno::EINVAL)?.len() < end {
                    return Err(errno::EINVAL);
                }
                // A file that cannot be mapped here, such as a read-only one, is reached through
                // the client.
                self.memory(file, end).map(|memory| (memory, offset))
            }
        };
        self.unmap(first, bytes);
        let number = self.made;
        self.made += 1;
        self.entries.insert(
            first,
            Entry {
                last,
                number,
                flags,
                place,
            },
        );
        Ok(())
    }

    /// The mapping of a file, of which at least so many bytes are needed.
    fn memory(&mut self, file: &File, bytes: u64) -> Option<Arc<Memory>> {
        let metadata = file.metadata().ok()?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        self.files.retain(|mapped| mapped.memory.strong_count() > 0);
        let known = self
            .files
            .iter()
            .filter(|mapped| (mapped.device, mapped.inode) == (device, inode))
            .filter_map(|mapped| mapped.memory.upgrade())
            .find(|memory| memory.bytes() >= bytes);
        if known.is_some() {
            return known;
        }
        let memory = Arc::new(Memory::of_file(file).ok()?);
        self.files.push(Mapped {
            device,
            inode,
            memory: Arc::downgrade(&memory),
        });
        Some(memory)
    }

    /// Unmaps addresses, whether they are mapped or not. Of a mapping that is only covered in part
    /// the rest stays.
    pub fn unmap(&mut self, first: u64, bytes: u64) {
        // A size of 0 means the whole address space, as the size of 2^64 does not fit.
        let end = last(first, bytes).unwrap_or(u64::MAX);
        let hit: Vec<u64> = self
            .entries
            .range(..=end)
            .rev()
            .take_while(|(_, entry)| entry.last >= first)
            .map(|(&start, _)| start)
            .collect();
        for start in hit {
            let Some(entry) = self.entries.remove(&start) else {
                continue;
            };
            if entry.last > end {
                let place = entry
                    .place
                    .as_ref()
                    .map(|(memory, offset)| (memory.clone(), offset + (end + 1 - start)));
                self.entries.insert(
                    end + 1,
                    Entry {
                        last: entry.last,
                        number: entry.number,
                        flags: entry.flags,
                        place,
                    },
                );
            }
            if start < first {
                self.entries.insert(
                    start,
                    Entry {
                        last: first - 1,
                        ..entry
                    },
                );
            }
        }
    }

    /// Forgets all mappings.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.files.clear();
    }

    /// How many mappings were made so far.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Whether an address is mapped by one of the first so many mappings that were made.
    pub fn is_of(&self, made: u64, address: u64) -> bool {
        let entry = self.entries.range(..=address).next_back();
        entry.is_some_and(|(_, entry)| entry.last >= address && entry.number < made)
    }

    /// The place of an address, and the number of bytes from there that are mapped in one piece, at
    /// most as many as given; none if it is not mapped for that access.
    pub fn find(&self, address: u64, bytes: u64, access: u32) -> Option<(Place<'_>, u64)> {
        let (start, entry) = self.entries.range(..=address).next_back()?;
        if entry.last < address || entry.flags & access != access {
            return None;
        }
        let bytes = bytes.min((entry.last - address).saturating_add(1));
        let place = match &entry.place {
            Some((memory, offset)) => Place::Memory(memory, offset + (address - start)),
            None => Place::Client,
        };
        Some((place, bytes))
    }
}

/// The last address of a range that is not empty and ends at 2^64 or before.
fn last(first: u64, bytes: u64) -> Option<u64> {
    first.checked_add(bytes.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64) -> (Memory, File) {
        let memory = Memory::shared(c"test", bytes).unwrap();
        let file = File::from(memory.file().unwrap().try_clone_to_owned().unwrap());
        (memory, file)
    }

    /// The place of an address in memory, and the number of bytes that are mapped from there.
    fn at(table: &Table, address: u64) -> Option<(u64, u64)> {
        match table.find(address, u64::MAX, READ)? {
            (Place::Memory(_, offset), bytes) => Some((offset, bytes)),
            (Place::Client, bytes) => Some((u64::MAX, bytes)),
        }
    }

    #[test]
    fn what_is_mapped_is_found() {
        let (memory, file) = file(0x4000);
        let mut table = Table::default();
        table
            .map(0x1_0000, 0x2000, READ, Some((&file, 0x1000)))
            .unwrap();
        assert_eq!(at(&table, 0xffff), None);
        assert_eq!(at(&table, 0x1_0000), Some((0x1000, 0x2000)));
        assert_eq!(at(&table, 0x1_1fff), Some((0x2fff, 1)));
        assert_eq!(at(&table, 0x1_2000), None);
        assert!(table.find(0x1_0000, 1, WRITE).is_none());
        let Some((Place::Memory(same, offset), 8)) = table.find(0x1_0008, 8, READ) else {
            panic!("it is mapped");
        };
        memory.store(0x1008, 99);
        assert_eq!(same.load(offset), 99);
    }

    #[test]
    fn a_part_is_unmapped() {
        let (_, file) = file(0x4000);
        let mut table = Table::default();
        table
            .map(0x1000, 0x4000, READ | WRITE, Some((&file, 0)))
            .unwrap();
        table.unmap(0x2000, 0x1000);
        assert_eq!(at(&table, 0x1000), Some((0, 0x1000)));
        assert_eq!(at(&table, 0x2000), None);
        assert_eq!(at(&table, 0x3000), Some((0x2000, 0x2000)));
        assert!(table.find(0x3000, 1, WRITE).is_some());
    }

    #[test]
    fn more_may_be_unmapped_than_there_is() {
        let mut table = Table::default();
        table.map(0x1000, 0x1000, READ, None).unwrap();
        table.map(0x5000, 0x1000, READ, None).unwrap();
        table.unmap(0, 0x3000);
        assert_eq!(at(&table, 0x1000), None);
        assert_eq!(at(&table, 0x5000), Some((u64::MAX, 0x1000)));
        table.unmap(0, u64::MAX);
        assert_eq!(at(&table, 0x5000), None);
    }

    #[test]
    fn the_end_of_all_addresses_is_an_address() {
        let mut table = Table::default();
        table.map(u64::MAX - 0xfff, 0x1000, READ, None).unwrap();
        assert_eq!(at(&table, u64::MAX), Some((u64::MAX, 1)));
        assert_eq!(
            table.map(u64::MAX - 0xfff, 0x2000, READ, None),
            Err(errno::EINVAL)
        );
        assert_eq!(table.map(0, 0, READ, None), Err(errno::EINVAL));
        table.unmap(0x8000_0000_0000_0000, u64::MAX);
        assert_eq!(at(&table, u64::MAX), None);
    }

    #[test]
    fn files_have_an_end() {
        let (_, file) = file(0x2000);
        let mut table = Table::default();
        for (offset, bytes) in [
            (0, 0x3000),
            (0x1000, 0x2000),
            (u64::MAX - 0xfff, 0x1000),
            (0, 0x1008),
            (8, 0x1000),
        ] {
            assert_eq!(
                table.map(0, bytes, READ, Some((&file, offset))),
                Err(errno::EINVAL)
            );
        }
    }

    #[test]
    fn a_file_is_mapped_once() {
        let (_, file) = file(0x3000);
        let mut table = Table::default();
        for page in 0..3 {
            let place = Some((&file, page * 0x1000));
            table.map(page * 0x10000, 0x1000, READ, place).unwrap();
        }
        assert_eq!(table.files.len(), 1);
    }

    #[test]
    fn mappings_are_told_apart_by_their_time() {
        let mut table = Table::default();
        table.map(0x1000, 0x3000, READ, None).unwrap();
        let made = table.made();
        table.unmap(0x2000, 0x1000);
        table.map(0x2000, 0x1000, READ, None).unwrap();
        let of = |made| [0, 0x1000, 0x2000, 0x3fff, 0x4000].map(|at| table.is_of(made, at));
        assert_eq!(of(made), [false, true, false, true, false]);
        assert_eq!(of(table.made()), [false, true, true, true, false]);
    }

    #[test]
    fn the_last_mapping_counts() {
        let (_, file) = file(0x3000);
        let mut table = Table::default();
        table.map(0, 0x3000, READ, Some((&file, 0))).unwrap();
        table.map(0x1000, 0x1000, READ, None).unwrap();
        assert_eq!(at(&table, 0), Some((0, 0x1000)));
        assert_eq!(at(&table, 0x1000), Some((u64::MAX, 0x1000)));
        assert_eq!(at(&table, 0x2000), Some((0x2000, 0x1000)));
    }
}
