// SPDX-License-Identifier: GPL-2.0

//! Memory of a process for a device that uses it by the addresses of the process.

use crate::{
    anonymous::{
        content,
        Anonymous,
        LARGEST, //
    },
    bench::{
        behind,
        with_device,
        BAR,
        PAGE, //
    },
    edu::with_edu,
    pagemap::Card, //
};
use core::ops::Range;
use kernel::{
    bindings,
    device::{
        Bound,
        Device, //
    },
    mm::{
        hmm::{
            DmaPage,
            Import,
            Request,
            Retry, //
        },
        interval_notifier::{
            IntervalNotifier,
            Mirror, //
        },
        MmWithUser, //
    },
    new_mutex,
    pci,
    pci::p2pdma::MapType,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// The calls of a mirror's `invalidate`, and the range that covers their addresses.
struct Notified {
    calls: Atomic<u64>,
    start: Atomic<usize>,
    end: Atomic<usize>,
}

impl Notified {
    fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(
            Self {
                calls: Atomic::new(0),
                start: Atomic::new(usize::MAX),
                end: Atomic::new(0),
            },
            GFP_KERNEL,
        )?)
    }

    /// Returns the range that covers the addresses that were invalidated since the last call,
    /// [`None`] if there were none.
    fn take(&self) -> Option<Range<usize>> {
        let start = self.start.load(Relaxed);
        let end = self.end.load(Relaxed);

        self.start.store(usize::MAX, Relaxed);
        self.end.store(0, Relaxed);
        (start < end).then_some(start..end)
    }
}

/// A mirror that records which addresses are invalidated.
struct Notes(Arc<Notified>);

impl Mirror for Notes {
    fn invalidate(&mut self, range: Range<usize>) {
        let notified = &self.0;

        notified.calls.add(1, Relaxed);
        notified
            .start
            .store(notified.start.load(Relaxed).min(range.start), Relaxed);
        notified
            .end
            .store(notified.end.load(Relaxed).max(range.end), Relaxed);
    }
}

impl Anonymous {
    fn users(&self) -> Result<ARef<MmWithUser>> {
        self.mm().mmget_not_zero().ok_or(ESRCH)
    }

    /// Returns the addresses of a range of pages.
    fn range(&self, pages: Range<usize>) -> Range<usize> {
        self.addr + pages.start * PAGE as usize..self.addr + pages.end * PAGE as usize
    }

    /// Returns the addresses of all pages.
    fn all(&self) -> Range<usize> {
        self.range(0..self.pages)
    }

    /// Unmaps a range of pages.
    fn unmap(&self, pages: Range<usize>) {
        let range = self.range(pages);

        // SAFETY: The thread has the memory of the process; the test does not access these pages
        // any more.
        unsafe { bindings::vm_munmap(range.start, range.end - range.start) };
    }

    fn import(
        &self,
        dev: &Device<Bound>,
        range: Range<usize>,
        notified: &Arc<Notified>,
    ) -> Result<Import<Notes>> {
        let mm = self.users()?;

        Import::new(dev, &mm, range, Notes(notified.clone()))
    }

    fn notifier(&self, notified: &Arc<Notified>) -> Result<Pin<KBox<IntervalNotifier<Notes>>>> {
        let mm = self.users()?;

        KBox::pin_init(
            IntervalNotifier::new(
                &mm,
                self.all(),
                new_mutex!(Notes(notified.clone()), "vram_kunit::hmm"),
            ),
            GFP_KERNEL,
        )
    }
}

/// Returns the physical addresses of the pages of the process in a range.
fn frames(
    notifier: &IntervalNotifier<Notes>,
    range: Range<usize>,
    request: Request<'_>,
) -> Result<KVec<Option<u64>>> {
    let mut frames = KVec::with_capacity(range.len() / PAGE as usize, GFP_KERNEL)?;

    for entry in notifier.fault_and_lock(range, request)?.entries() {
        // An allocation must not wait while the lock is held.
        frames.push(entry.phys(), GFP_NOWAIT)?;
    }
    Ok(frames)
}

/// Returns whether a page of system memory has the bytes of [`Anonymous::fill`], or zeroes.
fn is_content(phys: u64, seed: Option<u64>, page: usize) -> Result<bool> {
    let mut bytes = KVec::from_elem(0u8, PAGE as usize, GFP_KERNEL)?;

    // SAFETY: System memory is in the linear map, all of which can be read. That there is a page,
    // and that it stays, is what the test is about.
    unsafe {
        bytes
            .as_mut_ptr()
            .copy_from_nonoverlapping(bindings::phys_to_virt(phys).cast(), PAGE as usize)
    };
    Ok(bytes[..] == content(seed, page)?[..])
}

#[kunit_tests(vram_hmm)]
mod tests {
    use super::*;

    /// If the process changes its memory before the mirror is locked, the entries must be read
    /// again.
    #[test]
    fn what_has_changed_is_read_again() -> Result {
        let memory = Anonymous::filled(4, 1)?;
        let notified = Notified::new()?;
        let notifier = memory.notifier(&notified)?;

        // Nothing has changed in between.
        let faulted = notifier.fault(memory.all(), Request::READ)?;
        check!(faulted.lock().is_ok());
        check_eq!(notified.take(), None);

        let faulted = notifier.fault(memory.all(), Request::READ)?;
        memory.unmap(1..2);
        check_eq!(notified.take(), Some(memory.range(1..2)));
        check_eq!(faulted.lock().err(), Some(Retry));

        // The pages are not mapped any more.
        check_eq!(
            notifier.fault(memory.all(), Request::READ).err(),
            Some(EFAULT)
        );
        check!(notifier
            .fault(memory.range(2..4), Request::READ)?
            .lock()
            .is_ok());
        Ok(())
    }

    /// A notifier that is dropped invalidates all addresses of its mirror, once.
    #[test]
    fn a_notifier_that_goes_invalidates_all() -> Result {
        let memory = Anonymous::filled(4, 1)?;
        let notified = Notified::new()?;
        let notifier = memory.notifier(&notified)?;

        check_eq!(notified.take(), None);
        drop(notifier);
        check_eq!(notified.take(), Some(memory.all()));
        check_eq!(notified.calls.load(Relaxed), 1);

        memory.unmap(0..4);
        check_eq!(notified.take(), None);
        Ok(())
    }

    /// An entry is a page of the process, and writable if the request was for writing.
    #[test]
    fn entries_are_the_pages_of_the_process() -> Result {
        let memory = Anonymous::new(4)?;
        let notified = Notified::new()?;
        let notifier = memory.notifier(&notified)?;

        // A snapshot does not fault pages in.
        for _ in 0..2 {
            let checked = notifier.fault_and_lock(memory.all(), Request::SNAPSHOT)?;

            check_eq!(checked.entries().len(), 4);
            check!(!checked
                .entries()
                .iter()
                .any(|entry| entry.is_valid() || entry.is_error()));
        }
        {
            let checked = notifier.fault_and_lock(memory.range(1..3), Request::READ)?;

            check!(checked
                .entries()
                .iter()
                .all(|entry| entry.is_valid() && !entry.is_writable()));
        }
        {
            let checked = notifier.fault_and_lock(memory.all(), Request::WRITE)?;

            check!(checked.entries().iter().all(|entry| entry.is_writable()));
        }

        memory.fill(1)?;
        let all = frames(&notifier, memory.all(), Request::READ)?;
        for (page, phys) in all.iter().enumerate() {
            check!(is_content(phys.ok_or(ENOENT)?, Some(1), page)?);
        }
        // The first entry is that of the first page of the request.
        check_eq!(
            frames(&notifier, memory.range(2..4), Request::READ)?[..],
            all[2..]
        );
        Ok(())
    }

    /// An entry for memory in VRAM is the page of the BAR if the request is for a device that
    /// reaches it; otherwise the memory moves.
    #[test]
    fn memory_of_a_peer_is_its_alias() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let start = pdev.resource_start(BAR)?;
            let pdev: &pci::Device<Bound> = pdev;
            let dev: &Device<Bound> = pdev.as_ref();
            let memory = Anonymous::filled(LARGEST, 1)?;
            let notified = Notified::new()?;
            let notifier = memory.notifier(&notified)?;
            let aliases = |page: usize| Some(start + (LARGEST + page) as u64 * PAGE);

            card.migrate_to(LARGEST as u64 * PAGE, &memory, 0, LARGEST)?;
            check_eq!(notified.take(), Some(memory.all()));

            // A snapshot for no device has no page for memory in VRAM.
            let seen = frames(&notifier, memory.all(), Request::SNAPSHOT)?;
            check!(seen.iter().all(|phys| phys.is_none()));
            for request in [Request::SNAPSHOT, Request::READ, Request::WRITE] {
                let seen = frames(&notifier, memory.all(), request.for_dma_of(dev))?;

                check!(seen
                    .iter()
                    .enumerate()
                    .all(|(page, phys)| *phys == aliases(page)));
                check!(notifier
                    .fault_and_lock(memory.all(), request.for_dma_of(dev))?
                    .entries()
                    .iter()
                    .all(|entry| entry.is_of_peer()));
                // The request is for a part of a large folio.
                let seen = frames(&notifier, memory.range(3..5), request.for_dma_of(dev))?;
                check_eq!(seen[..], [aliases(3), aliases(4)]);
            }
            check_eq!(card.notified.to_ram.load(Relaxed), 0);
            check_eq!(notified.take(), None);
            for page in [0, 1, LARGEST - 1] {
                check!(card.shows((LARGEST + page) as u64 * PAGE, Some(1), page)?);
            }

            let seen = frames(&notifier, memory.range(3..5), Request::READ)?;
            check_eq!(card.notified.to_ram.load(Relaxed), LARGEST as u64 * PAGE);
            check_eq!(card.used()?, 0);
            check!(is_content(seen[0].ok_or(ENOENT)?, Some(1), 3)?);
            check!(is_content(seen[1].ok_or(ENOENT)?, Some(1), 4)?);
            Ok(())
        })
    }

    /// Memory that no BAR shows moves to system memory, whichever device it is for.
    #[test]
    fn memory_without_alias_moves() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, false)?;
            let dev: &Device<Bound> = pdev.as_ref();
            let memory = Anonymous::filled(4, 1)?;
            let notifier = memory.notifier(&Notified::new()?)?;

            card.migrate(&memory, 0, 4)?;
            check_eq!(card.used()?, 4 * PAGE);
            let seen = frames(&notifier, memory.all(), Request::READ.for_dma_of(dev))?;
            check_eq!(card.notified.to_ram.load(Relaxed), 4 * PAGE);
            for (page, phys) in seen.iter().enumerate() {
                check!(is_content(phys.ok_or(ENOENT)?, Some(1), page)?);
            }
            Ok(())
        })
    }

    /// The mappings of an import follow the memory to VRAM, and back.
    #[test]
    fn an_import_follows_the_memory() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0, true)?;
            let start = pdev.resource_start(BAR)?;
            let pdev: &pci::Device<Bound> = pdev;
            let dev: &Device<Bound> = pdev.as_ref();
            let memory = Anonymous::filled(8, 1)?;
            let notified = Notified::new()?;
            let import = memory.import(dev, memory.all(), &notified)?;
            let access = |pages: Range<usize>, is_write| -> Result<KVec<DmaPage>> {
                let mut found = KVec::with_capacity(8, GFP_KERNEL)?;

                import.access(memory.range(pages), is_write, |_, pages| {
                    found.extend_from_slice(pages, GFP_NOWAIT)
                })??;
                Ok(found)
            };

            let ram = access(0..8, false)?;
            for (page, found) in ram.iter().enumerate() {
                check_eq!(found.peer, None);
                check!(is_content(behind(pdev, found.addr), Some(1), page)?);
            }
            // The mappings are kept.
            check_eq!(access(0..8, true)?, ram);
            check_eq!(access(3..5, false)?[..], ram[3..5]);
            check_eq!(notified.take(), None);

            card.migrate_to(64 * PAGE, &memory, 4, 4)?;
            check_eq!(notified.take(), Some(memory.range(4..8)));
            for is_write in [false, true] {
                let found = access(2..8, is_write)?;

                check_eq!(found[..2], ram[2..4]);
                for (page, found) in found[2..].iter().enumerate() {
                    check_eq!(found.peer, Some(MapType::BUS_ADDR));
                    check_eq!(found.addr, start + (64 + page) as u64 * PAGE);
                }
            }
            check_eq!(card.notified.to_ram.load(Relaxed), 0);

            // An access by the CPU moves its chunk back.
            check!(memory.holds(Some(1), 5)?);
            check_eq!(card.notified.to_ram.load(Relaxed), 4 * PAGE);
            check_eq!(notified.take(), Some(memory.range(4..8)));
            let found = access(4..8, true)?;
            for (page, found) in found.iter().enumerate() {
                check_eq!(found.peer, None);
                check!(is_content(behind(pdev, found.addr), Some(1), 4 + page)?);
            }
            check!(memory.all_hold(Some(1))?);
            Ok(())
        })
    }

    /// Another device accesses the memory through the BAR if it has a route to it, and otherwise
    /// the memory moves back first.
    #[test]
    fn another_device_accesses_the_memory() -> Result {
        with_edu(|pdev, edu| {
            let card = Card::new(pdev, 0, true)?;
            let kind = pdev.p2pdma_provider(BAR)?.map_type(edu.pdev.as_ref());
            let dev: &Device<Bound> = edu.pdev.as_ref();
            let memory = Anonymous::filled(8, 1)?;
            let notified = Notified::new()?;
            let import = memory.import(dev, memory.all(), &notified)?;
            // The device reads page 5, and writes page 6 without reading it.
            let access = |other| -> Result<Option<MapType>> {
                edu.put(&content(Some(2), other)?);
                import.access(memory.all(), true, |_, pages| {
                    check_eq!(pages.len(), 8);
                    check!(pages.iter().all(|page| page.addr != 0));
                    check_eq!(pages[0].peer, None);
                    check_eq!(pages[6].peer, pages[5].peer);
                    edu.copy(edu.memory(), pages[6].addr)?;
                    edu.copy(pages[5].addr, edu.memory())?;
                    Ok(pages[5].peer)
                })?
            };

            card.migrate_to(64 * PAGE, &memory, 4, 4)?;
            check_eq!(notified.take(), Some(memory.range(4..8)));
            let peer = access(3)?;
            check!(edu.get()?[..] == content(Some(1), 5)?[..]);
            if kind.is_supported() {
                check_eq!(peer, Some(kind));
                check_eq!(card.notified.to_ram.load(Relaxed), 0);
                check_eq!(card.used()?, 4 * PAGE);
                check!(card.shows(65 * PAGE, Some(1), 5)?);
                check!(card.shows(66 * PAGE, Some(2), 3)?);
            } else {
                check_eq!(peer, None);
                check_eq!(card.notified.to_ram.load(Relaxed), 4 * PAGE);
                check_eq!(card.used()?, 0);
            }

            // The CPU sees the writes of the device, and the device sees the memory that has moved
            // back.
            check!(memory.has(6, Some(2), 3)?);
            check!(memory.has(7, Some(1), 7)?);
            check_eq!(card.notified.to_ram.load(Relaxed), 4 * PAGE);
            check_eq!(notified.take(), Some(memory.range(4..8)));
            check_eq!(access(4)?, None);
            check!(edu.get()?[..] == content(Some(1), 5)?[..]);
            check!(memory.has(6, Some(2), 4)?);
            Ok(())
        })
    }

    /// A revoked import has no mappings, gets no new ones, and stays revoked.
    #[test]
    fn a_revoked_import_is_at_an_end() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let dev: &Device<Bound> = pdev.as_ref();
            let memory = Anonymous::filled(4, 1)?;
            let notified = Notified::new()?;
            let import = memory.import(dev, memory.range(1..4), &notified)?;
            let access = |pages| import.access(memory.range(pages), true, |_, _| ()).err();

            check_eq!(import.range(), memory.range(1..4));
            check_eq!(access(1..4), None);
            import.revoke();
            check_eq!(notified.take(), Some(memory.range(1..4)));
            check_eq!(access(1..4), Some(ENODEV));
            check_eq!(access(0..4), Some(EINVAL));

            // The process still uses its memory, and the mirror is still invalidated.
            memory.unmap(2..3);
            check_eq!(notified.take(), Some(memory.range(2..3)));
            import.revoke();
            check_eq!(notified.take(), None);
            check_eq!(access(1..2), Some(ENODEV));
            Ok(())
        })
    }

    /// A mirror is invalidated before it is dropped, unless the import could not be made.
    #[test]
    fn a_mirror_is_notified_at_the_end() -> Result {
        with_device(|pdev| {
            let pdev: &pci::Device<Bound> = pdev;
            let dev: &Device<Bound> = pdev.as_ref();
            let memory = Anonymous::filled(4, 1)?;
            let (notified, end) = (Notified::new()?, memory.addr + 4 * PAGE as usize);
            let import = memory.import(dev, memory.all(), &notified)?;

            {
                let refused = |range| import.access(range, false, |_, _| ()).err();

                check_eq!(refused(end..end), Some(EINVAL));
                check_eq!(refused(end..memory.addr), Some(EINVAL));
                check_eq!(refused(memory.addr + 1..end), Some(EINVAL));
                check_eq!(refused(memory.addr..end - 1), Some(EINVAL));
                check_eq!(refused(memory.addr..end + PAGE as usize), Some(EINVAL));
                check_eq!(refused(memory.addr - PAGE as usize..end), Some(EINVAL));
                check_eq!(refused(memory.all()), None);

                memory.unmap(3..4);
                check_eq!(notified.take(), Some(memory.range(3..4)));
                check_eq!(refused(memory.all()), Some(EFAULT));
                check_eq!(notified.take(), None);
            }
            drop(import);
            check_eq!(notified.take(), Some(memory.all()));

            let refused = |range| memory.import(dev, range, &notified).err();
            check_eq!(refused(end..end), Some(EINVAL));
            check_eq!(refused(memory.addr..end - 1), Some(EINVAL));
            check_eq!(notified.take(), None);
            Ok(())
        })
    }
}
