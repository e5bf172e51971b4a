// SPDX-License-Identifier: GPL-2.0

//! An exporter of system memory, written as a driver would write it: without `unsafe`.

use kernel::prelude::*;

#[kunit_tests(dma_buf_pages)]
mod tests {
    use crate::{
        bench::with_device,
        importer::{
            map,
            prompt, //
        },
        memory::{
            available_pages,
            translate,
            Access,
            Mapped,
            Physical,
            Sharing, //
        },
        store::{
            exports,
            Shared,
            Store, //
        },
        waits::Meanwhile, //
    };
    use kernel::{
        device::{
            Bound,
            Device, //
        },
        dma::{
            DataDirection,
            Device as _, //
        },
        dma_buf::{
            exporter::pages::Pages,
            importer::LockedAttachment,
            vmap::VMap,
            Attachment,
            DmaBuf,
            Exports,
            StaticAttachment, //
        },
        faux,
        fs::file::flags,
        page::{
            Page,
            PAGE_SIZE, //
        },
        prelude::*,
        sizes::SZ_64K,
        sync::{
            aref::ARef,
            atomic::Relaxed,
            Arc,
            Completion, //
        }, //
    };

    const COUNT: usize = 3;
    const SIZE: usize = COUNT * PAGE_SIZE;
    const BOTH: DataDirection = DataDirection::Bidirectional;

    /// Returns bytes that no other page of a test has.
    fn bytes(what: &[u8; 7], page: usize) -> [u8; 8] {
        let mut bytes = [page as u8; 8];

        bytes[..7].copy_from_slice(what);
        bytes
    }

    /// Returns the pages of a buffer, no two of which are neighbours in the order of the buffer.
    fn scattered() -> Result<Arc<Pages>> {
        let mut pages = KVec::new();

        for _ in 0..2 * COUNT {
            pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
        }
        Pages::from_pages(pages.into_iter().step_by(2))
    }

    fn export_buffer(exports: &Exports<'_, Store>) -> Result<(Arc<Shared>, ARef<DmaBuf>)> {
        let shared = Shared::new(scattered()?)?;
        let buf = exports.export(Store(shared.clone()), SIZE, flags::O_RDWR)?;

        Ok((shared, buf))
    }

    /// Writes to each page of a buffer by the mapping of the kernel.
    fn fill(buf: &DmaBuf, what: &[u8; 7]) -> Result {
        let map = VMap::new(buf.into())?;

        check!(!map.is_iomem());
        for page in 0..COUNT {
            map.write(page * PAGE_SIZE, &bytes(what, page))?;
        }
        Ok(())
    }

    /// Reads the first bytes of a page of a buffer by a mapping of the kernel.
    fn look(buf: &DmaBuf, page: usize) -> Result<[u8; 8]> {
        let mut bytes = [0; 8];

        VMap::new(buf.into())?.read(page * PAGE_SIZE, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the memory that a device accesses by a mapping, page by page.
    ///
    /// DMA addresses are physical addresses without an IOMMU, and differ from them with one.
    fn reached(dev: &Device<Bound>, at: &LockedAttachment<'_>) -> Result<KVec<Physical>> {
        let mut pages = KVec::new();

        for entry in at.mapping().ok_or(ENOENT)?.iter() {
            for offset in (0..entry.dma_len()).step_by(PAGE_SIZE) {
                let addr = entry.dma_address() + offset;
                let (phys, translated) = translate(dev, addr);

                check_eq!(phys == addr, !translated);
                pages.push(Physical::new(phys)?, GFP_KERNEL)?;
            }
        }
        check_eq!(pages.len(), COUNT);
        Ok(pages)
    }

    /// Allocates pages that were freed last, and clears them.
    fn reuse() -> Result<KVec<Page>> {
        let mut pages = KVec::new();

        for _ in 0..64 {
            pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
        }
        Ok(pages)
    }

    #[test]
    fn device_reaches_the_bytes() -> Result {
        with_device(|pdev| {
            let dev = faux::Registration::new(c"vram_kunit", None)?;
            let exports = exports(&dev)?;
            let (shared, buf) = export_buffer(&exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;

            fill(&buf, b"written")?;
            at.with(|at| {
                at.map(BOTH)?;
                for (number, page) in reached(pdev.as_ref(), at)?.iter().enumerate() {
                    check_eq!(page.read(), bytes(b"written", number));
                    page.write(bytes(b"by DMA.", number));
                }
                Ok(())
            })?;

            buf.begin_cpu_access(BOTH)?;
            check_eq!(shared.begun.load(Relaxed), 1);
            for page in 0..COUNT {
                check_eq!(look(&buf, page)?, bytes(b"by DMA.", page));
            }
            buf.end_cpu_access(BOTH)?;
            check_eq!(shared.begun.load(Relaxed), 0);

            // A static attachment, for which the core pins, can map as well.
            drop(at);
            let at = StaticAttachment::new(buf.clone(), pdev.as_ref())?;
            at.with(|at| {
                check!(at.map(DataDirection::ToDevice)?.iter().count() > 0);
                Ok(())
            })
        })
    }

    #[test]
    fn mapped_pages_stay() -> Result {
        with_device(|pdev| {
            let dev = faux::Registration::new(c"vram_kunit", None)?;
            let exports = exports(&dev)?;
            let (shared, buf) = export_buffer(&exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;

            fill(&buf, b"of DMA.")?;
            at.with(|at| {
                at.map(BOTH)?;
                // The exporter may drop its pages while they are mapped.
                drop(shared.pages.lock().take());
                let _others = reuse()?;
                for (number, page) in reached(pdev.as_ref(), at)?.iter().enumerate() {
                    check_eq!(page.read(), bytes(b"of DMA.", number));
                }
                at.unmap();
                check_eq!(at.map(BOTH).err(), Some(ENXIO));
                Ok(())
            })?;

            // A mapping of the kernel keeps the pages as well.
            *shared.pages.lock() = Some(scattered()?);
            fill(&buf, b"vmapped")?;
            let map = VMap::new(buf.clone())?;
            drop(shared.pages.lock().take());
            let _others = reuse()?;
            for page in 0..COUNT {
                check_eq!(look(&buf, page)?, bytes(b"vmapped", page));
            }
            drop(map);
            check_eq!(VMap::new(buf).err(), Some(ENXIO));
            Ok(())
        })
    }

    /// An importer whose entries cannot be as long as a page is refused, without a warning.
    #[test]
    fn entries_shorter_than_a_page_are_refused() -> Result {
        with_device(|pdev| {
            let dev = faux::Registration::new(c"vram_kunit", None)?;
            let exports = exports(&dev)?;
            let (_shared, buf) = export_buffer(&exports)?;
            let at = Attachment::new(buf, pdev.as_ref(), prompt())?;

            let counts = [PAGE_SIZE - 1, PAGE_SIZE].map(|limit| {
                // SAFETY: No other code maps memory for the device, which is being probed.
                unsafe { pdev.dma_set_max_seg_size(limit as u32) };
                at.with(|at| Ok(at.map(BOTH)?.iter().count()))
            });
            // SAFETY: As above. This is the default of a PCI device.
            unsafe { pdev.dma_set_max_seg_size(SZ_64K as u32) };
            check_eq!(counts, [Err(EINVAL), Ok(COUNT)]);
            Ok(())
        })
    }

    #[test]
    fn size_has_to_be_right() -> Result {
        with_device(|pdev| {
            let dev = faux::Registration::new(c"vram_kunit", None)?;
            let exports = exports(&dev)?;
            let (shared, buf) = export_buffer(&exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;

            for size in [SIZE - PAGE_SIZE, SIZE + PAGE_SIZE] {
                *shared.pages.lock() = Some(Pages::new(size, GFP_KERNEL)?);
                check_eq!(map(&at), Err(EINVAL));
                check_eq!(VMap::new(buf.clone()).err(), Some(EINVAL));
            }
            Ok(())
        })
    }

    #[test]
    fn pages_are_given_back() -> Result {
        // A leak of this many pages would show, and the rest of the system still has enough memory.
        const PAGES: usize = 2048;
        const ROUNDS: usize = 16;
        let dev = faux::Registration::new(c"vram_kunit", None)?;
        let exports = exports(&dev)?;
        let before = available_pages();

        for _ in 0..ROUNDS {
            let pages = Pages::new(PAGES * PAGE_SIZE, GFP_KERNEL)?;
            let shared = Shared::new(pages)?;
            let buf = exports.export(Store(shared.clone()), PAGES * PAGE_SIZE, flags::O_RDWR)?;

            // The pages are also freed if a process and the kernel have mapped them.
            let map = Mapped::new(&buf, 0, PAGES, Sharing::Shared)?;
            for page in 0..64 {
                map.write(page * PAGE_SIZE, [1; 8])?;
            }
            check_eq!(look(&buf, 1)?, [1; 8]);
            drop(shared.pages.lock().take());
        }
        check!(before < available_pages() + ROUNDS * PAGES / 2);
        Ok(())
    }

    #[test]
    fn process_shares_the_bytes() -> Result {
        let dev = faux::Registration::new(c"vram_kunit", None)?;
        let exports = exports(&dev)?;
        let (shared, buf) = export_buffer(&exports)?;

        fill(&buf, b"written")?;
        let asked = shared.asked.load(Relaxed);
        let all = Mapped::new(&buf, 0, COUNT, Sharing::Shared)?;
        let last = Mapped::new(&buf, 2, 1, Sharing::Shared)?;
        let own = Mapped::new(&buf, 0, COUNT, Sharing::Private)?;
        check_eq!(
            Mapped::new(&buf, 1, COUNT, Sharing::Shared).err(),
            Some(EINVAL)
        );
        // A page is mapped at its first access, and only once.
        check_eq!(shared.asked.load(Relaxed), asked);
        for page in 0..COUNT {
            for _ in 0..2 {
                check_eq!(all.read(page * PAGE_SIZE)?, bytes(b"written", page));
            }
        }
        check_eq!(shared.asked.load(Relaxed), asked + COUNT as u32);
        check_eq!(last.read(0)?, bytes(b"written", 2));
        // A second fault on a page that is mapped succeeds.
        check_eq!(all.fault(0)?, Access::Works);

        // A write is visible to all mappings, except for private ones that have a copy.
        last.write(0, bytes(b"changed", 9))?;
        check_eq!(all.read(2 * PAGE_SIZE)?, bytes(b"changed", 9));
        check_eq!(look(&buf, 2)?, bytes(b"changed", 9));
        own.write(PAGE_SIZE, bytes(b"copied.", 1))?;
        check_eq!(own.read(PAGE_SIZE)?, bytes(b"copied.", 1));
        check_eq!(all.read(PAGE_SIZE)?, bytes(b"written", 1));
        check_eq!(look(&buf, 1)?, bytes(b"written", 1));

        // A mapped page stays when the exporter drops its pages. The other pages cannot be mapped
        // any more.
        drop(all);
        drop(shared.pages.lock().take());
        let _others = reuse()?;
        check_eq!(last.read(0)?, bytes(b"changed", 9));
        check_eq!(own.read(2 * PAGE_SIZE).err(), Some(EFAULT));
        check_eq!(own.fault(2 * PAGE_SIZE)?, Access::Sigbus);
        Ok(())
    }

    #[test]
    fn too_few_pages_for_a_process() -> Result {
        let dev = faux::Registration::new(c"vram_kunit", None)?;
        let exports = exports(&dev)?;
        let (shared, buf) = export_buffer(&exports)?;

        *shared.pages.lock() = Some(Pages::new(PAGE_SIZE, GFP_KERNEL)?);
        let all = Mapped::new(&buf, 0, COUNT, Sharing::Shared)?;
        check_eq!(all.read(0)?, [0; 8]);
        check_eq!(all.fault(PAGE_SIZE)?, Access::Sigbus);
        check_eq!(all.read(PAGE_SIZE).err(), Some(EFAULT));
        Ok(())
    }

    #[test]
    fn revoked_buffer_raises_sigbus() -> Result {
        let dev = faux::Registration::new(c"vram_kunit", None)?;
        let exports = exports(&dev)?;
        let (_, buf) = export_buffer(&exports)?;
        let (_, other) = export_buffer(&exports)?;

        let maps = [Sharing::Shared, Sharing::Private].map(|sharing| {
            let map = Mapped::new(&buf, 0, COUNT, sharing)?;

            // One page is mapped, one is a private copy, and one was not accessed.
            map.read(0)?;
            map.write(PAGE_SIZE, bytes(b"private", 1))?;
            check_eq!(map.fault(0)?, Access::Works);
            Ok(map)
        });
        let other = Mapped::new(&other, 0, COUNT, Sharing::Shared)?;
        other.write(0, bytes(b"another", 0))?;

        drop(exports);
        for map in maps {
            let map = map?;

            for page in 0..COUNT {
                check_eq!(map.fault(page * PAGE_SIZE)?, Access::Sigbus);
                check_eq!(map.read(page * PAGE_SIZE).err(), Some(EFAULT));
                check_eq!(map.write(page * PAGE_SIZE, [0; 8]), Err(EFAULT));
            }
        }
        check_eq!(other.read(0).err(), Some(EFAULT));
        Ok(())
    }

    #[test]
    fn revoked_buffer_is_not_mapped() -> Result {
        let dev = faux::Registration::new(c"vram_kunit", None)?;
        let exports = exports(&dev)?;
        let (_, buf) = export_buffer(&exports)?;

        drop(exports);
        check_eq!(Mapped::new(&buf, 0, 1, Sharing::Shared).err(), Some(ENODEV));
        check_eq!(VMap::new(buf).err(), Some(ENODEV));
        Ok(())
    }

    #[test]
    fn buffer_lives_as_long_as_an_area_of_it() -> Result {
        let dev = faux::Registration::new(c"vram_kunit", None)?;
        let exports = exports(&dev)?;
        let (shared, buf) = export_buffer(&exports)?;

        fill(&buf, b"written")?;
        let map = Mapped::new(&buf, 1, 1, Sharing::Shared)?;
        drop(buf);
        check_eq!(map.read(0)?, bytes(b"written", 1));
        check_eq!(map.dma_buf().size(), SIZE);
        drop(map);
        // Files are put in the background.
        drop(exports);
        check!(shared.pages.lock().is_some());
        Ok(())
    }

    #[test]
    fn access_during_the_revocation() -> Result {
        let dev = faux::Registration::new(c"vram_kunit", None)?;
        let handle = exports(&dev)?.into_handle();
        let shared = Shared::new(scattered()?)?;
        let size = SIZE;
        // The test does not hold the device lock.
        let store = Store(shared.clone());
        let buf = handle.with(|exports| exports.export(store, size, flags::O_RDWR))?;
        let map = Mapped::new(&buf, 0, COUNT, Sharing::Shared)?;

        // The buffer is revoked while a fault of the process waits for the pages: the page that the
        // fault maps afterwards is unmapped again.
        let asked = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        *shared.slow.lock() = Some(asked.clone());
        let revoked = Meanwhile::new(move || {
            asked.wait_for_completion();
            drop(handle);
        })?;
        check_eq!(map.fault(0)?, Access::Works);
        revoked.end()?;
        check_eq!(shared.asked.load(Relaxed), 1);
        check_eq!(map.read(0).err(), Some(EFAULT));
        check_eq!(map.fault(0)?, Access::Sigbus);
        Ok(())
    }

    #[test]
    fn mappings_are_invalidated() -> Result {
        with_device(|pdev| {
            let dev = faux::Registration::new(c"vram_kunit", None)?;
            let exports = exports(&dev)?;
            let (_, buf) = export_buffer(&exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), prompt())?;

            map(&at)?;
            drop(exports);
            check_eq!(at.importer().0.load(Relaxed), 1);
            at.with(|at| {
                check!(at.mapping().is_none());
                check_eq!(at.map(BOTH).err(), Some(ENODEV));
                Ok(())
            })?;
            check_eq!(VMap::new(buf.clone()).err(), Some(ENODEV));
            check_eq!(buf.begin_cpu_access(BOTH), Err(ENODEV));
            Ok(())
        })
    }
}
