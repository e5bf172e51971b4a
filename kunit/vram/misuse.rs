// SPDX-License-Identifier: GPL-2.0

//! Importers and exporters that misuse a buffer, and importers that outlive the exporter.
//!
//! The exporter exports ranges of a BAR, and the importer is the device of the BAR itself, which
//! reaches it on every machine by the rules of PCI. No device uses an address.

use kernel::prelude::*;

#[kunit_tests(dma_buf_export)]
mod tests {
    use crate::{
        bench::{
            with_device,
            Gone,
            BAR,
            PAGE, //
        },
        importer::{
            late,
            revocable,
            Pinner, //
        },
        waits::{
            work,
            Meanwhile, //
        },
        worker::{
            pause,
            soon, //
        }, //
    };
    use kernel::{
        bindings,
        device::{
            Bound,
            Device, //
        },
        devres,
        dma::DataDirection,
        dma_buf::{
            exporter::{
                exporter_of,
                exports::ExportsHandle,
                mapping::{
                    Mapping,
                    RangeList, //
                },
                with_exporter,
                AttachRequest,
                Attached,
                LockedBuffer,
                MapRequest, //
            },
            importer::LockedAttachment,
            peer::{
                require_path,
                PeerPath,
                Route,
                RouteError, //
            },
            vmap::VMap,
            Attachment,
            DmaBuf,
            Exporter,
            Exports,
            Ops,
            StaticAttachment, //
        },
        dma_resv::Usage,
        error::{
            from_err_ptr,
            to_result, //
        },
        faux,
        new_mutex,
        page::PAGE_SIZE,
        pci::{
            self,
            p2pdma::{
                MapType,
                Provider, //
            }, //
        },
        prelude::*,
        sync::{
            aref::ARef,
            atomic::{
                Atomic,
                Relaxed, //
            },
            Arc,
            Mutex, //
        },
        time::{
            delay::fsleep,
            Delta,
            Instant,
            Monotonic, //
        },
        types::CovariantForLt, //
    };

    /// An event of a buffer; a test compares their order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Event {
        Attach,
        Detach,
        Pinned,
        Unpinned,
        Map,
        Unmap,
        Begin,
        End,
        Revoke,
        Release,
    }

    use Event::*;

    /// The state that a test shares with its buffer.
    struct Shared {
        events: Pin<KBox<Mutex<KVec<Event>>>>,
        /// The ranges of the buffer. A test replaces them to move the buffer.
        ranges: Pin<KBox<Mutex<Arc<RangeList>>>>,
        /// The event that fails.
        fails: Pin<KBox<Mutex<Option<Event>>>>,
        /// Whether the exporter makes a mapping that it does not return.
        wasteful: Atomic<bool>,
    }

    impl Shared {
        fn new(ranges: Arc<RangeList>) -> Result<Arc<Self>> {
            Ok(Arc::new(
                Self {
                    events: KBox::pin_init(new_mutex!(KVec::new()), GFP_KERNEL)?,
                    ranges: KBox::pin_init(new_mutex!(ranges), GFP_KERNEL)?,
                    fails: KBox::pin_init(new_mutex!(None), GFP_KERNEL)?,
                    wasteful: Atomic::new(false),
                },
                GFP_KERNEL,
            )?)
        }

        /// Records an event, or makes it fail.
        fn note(&self, event: Event) -> Result {
            if *self.fails.lock() == Some(event) {
                return Err(ENXIO);
            }
            self.events.lock().push(event, GFP_KERNEL)?;
            Ok(())
        }

        /// Records an event that cannot fail.
        fn note_end(&self, event: Event) {
            let _ = self.note(event);
        }

        /// Returns the events since the last call.
        fn events(&self) -> KVec<Event> {
            core::mem::take(&mut *self.events.lock())
        }
    }

    /// The buffer: a part of the BAR.
    struct Part(Arc<Shared>);

    static OPS: Ops<Part> = Ops::new();

    #[vtable]
    impl Exporter for Part {
        type Bound = CovariantForLt!(Provider<'_>);
        type Prepared = ();
        type Attachment = ();

        const NAME: &'static CStr = c"part";
        const OPS: &'static Ops<Self> = &OPS;

        fn prepare_attach(&self) {}

        fn attach(
            &self,
            cx: &LockedBuffer<'_, Self>,
            req: &mut AttachRequest<'_>,
            _prepared: (),
        ) -> Result {
            require_path(cx.bound(), req)?;
            self.0.note(Attach)
        }

        fn detach(&self, _buf: &DmaBuf, _attachment: ()) {
            self.0.note_end(Detach);
        }

        fn pin(&self, _cx: &LockedBuffer<'_, Self>, _at: &Attached<'_, Self>) -> Result {
            self.0.note(Pinned)
        }

        fn unpin(&self, _buf: &DmaBuf, _at: &Attached<'_, Self>) {
            self.0.note_end(Unpinned);
        }

        fn map<'r>(
            &self,
            _cx: &LockedBuffer<'_, Self>,
            at: &MapRequest<'r, Self>,
            dir: DataDirection,
        ) -> Result<Mapping<'r>> {
            let ranges = self.0.ranges.lock().clone();
            if self.0.wasteful.load(Relaxed) {
                at.map_mmio(|bound| Ok(*bound), &ranges, dir)?;
                let none = at.map_mmio(|bound| Ok(*bound), &ranges, DataDirection::None);
                if none.err() != Some(EINVAL) {
                    return Err(EBADE);
                }
            }
            let mapping = at.map_mmio(|bound| Ok(*bound), &ranges, dir)?;

            self.0.note(Map)?;
            Ok(mapping)
        }

        fn unmap(&self, _at: &Attached<'_, Self>) {
            self.0.note_end(Unmap);
        }

        fn begin_cpu_access(&self, _cx: &LockedBuffer<'_, Self>, _dir: DataDirection) -> Result {
            self.0.note(Begin)
        }

        fn end_cpu_access(&self, _cx: &LockedBuffer<'_, Self>, _dir: DataDirection) -> Result {
            self.0.note(End)
        }

        fn revoke(&self) {
            self.0.note_end(Revoke);
        }

        fn release(&self) {
            self.0.note_end(Release);
        }
    }

    fn exports(pdev: &pci::Device<Bound>) -> Result<Exports<'_, Part>> {
        Exports::new(pdev, |pdev: &pci::Device<Bound>| pdev.p2pdma_provider(BAR))
    }

    /// Returns a list of `count` pages from page `first` of the BAR on.
    fn pages(pdev: &pci::Device<Bound>, first: u64, count: u64) -> Result<Arc<RangeList>> {
        RangeList::in_bar(&pdev.p2pdma_provider(BAR)?, [(first * PAGE, count * PAGE)])
    }

    /// Exports two pages.
    fn export_buffer(
        pdev: &pci::Device<Bound>,
        exports: &Exports<'_, Part>,
    ) -> Result<(Arc<Shared>, ARef<DmaBuf>)> {
        let shared = Shared::new(pages(pdev, 4, 2)?)?;
        let buf = exports.export(Part(shared.clone()), 2 * PAGE_SIZE, 0)?;

        Ok((shared, buf))
    }

    /// Returns the offset in the BAR of the mapping, and its length, both in pages.
    ///
    /// The device reaches its own BAR by bus addresses, which are those of the BAR.
    fn mapped(pdev: &pci::Device<Bound>, at: &LockedAttachment<'_>) -> Result<(u64, u64)> {
        let start = pdev.resource_start(BAR)?;
        let table = at.mapping().ok_or(ENOENT)?;
        let first = table.iter().next().ok_or(ENOENT)?;

        let len: u64 = table.iter().map(|entry| entry.dma_len()).sum();

        // The segment limit of a device that has none of its own is 64 KiB.
        check_eq!(table.iter().count() as u64, len.div_ceil(64 << 10));
        Ok(((first.dma_address() - start) / PAGE, len / PAGE))
    }

    #[test]
    fn one_mapping_at_a_time() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;

            at.with(|at| {
                at.map(DataDirection::ToDevice)?;
                // A second call for the same direction returns the mapping; another direction is
                // refused.
                at.map(DataDirection::ToDevice)?;
                for dir in [DataDirection::FromDevice, DataDirection::Bidirectional] {
                    check_eq!(at.map(dir).err(), Some(EBUSY));
                }
                check_eq!(mapped(pdev, at)?, (4, 2));
                check_eq!(&shared.events()[..], [Attach, Map]);

                at.unmap();
                check!(at.mapping().is_none());
                at.unmap();
                check_eq!(&shared.events()[..], [Unmap]);
                at.map(DataDirection::FromDevice)?;
                check_eq!(mapped(pdev, at)?, (4, 2));
                check_eq!(&shared.events()[..], [Map]);
                Ok(())
            })?;

            // Each of two attachments has a mapping.
            let other = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;
            other.with(|at| at.map(DataDirection::ToDevice).map(|_| ()))?;
            with_exporter(&buf, |_: &Part, cx| {
                check!(cx.attachments().map(|at| at.maps()).eq([1, 1]));
                Ok(())
            })?;

            // The detach of an importer unmaps its mapping.
            drop(at);
            drop(other);
            check_eq!(
                &shared.events()[..],
                [Attach, Map, Unmap, Detach, Unmap, Detach]
            );
            Ok(())
        })
    }

    #[test]
    fn pins_are_balanced() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;
            let pins = || {
                with_exporter(&buf, |_: &Part, cx| {
                    Ok(cx.attachments().map(|at| at.pins()).sum::<usize>())
                })
            };

            at.with(|at| {
                // An importer that cannot be revoked gets no mapping without a pin.
                check_eq!(at.map(DataDirection::ToDevice).err(), Some(EINVAL));
                at.unpin();
                check_eq!(&shared.events()[..], [Attach]);

                *shared.fails.lock() = Some(Pinned);
                check_eq!(at.pin(), Err(ENXIO));
                check!(!at.is_pinned());
                *shared.fails.lock() = None;
                at.unpin();
                check_eq!(shared.events().len(), 0);

                at.pin()?;
                at.pin()?;
                check!(at.is_pinned());
                at.map(DataDirection::ToDevice)?;
                check_eq!(&shared.events()[..], [Pinned, Map]);
                Ok(())
            })?;
            check_eq!(pins()?, 1);

            // The unpin unmaps the mapping first.
            at.with(|at| {
                at.unpin();
                check!(at.mapping().is_none() && !at.is_pinned());
                at.unpin();
                check_eq!(at.map(DataDirection::ToDevice).err(), Some(EINVAL));
                Ok(())
            })?;
            check_eq!(&shared.events()[..], [Unmap, Unpinned]);
            check_eq!(pins()?, 0);

            // The detach unmaps and unpins as well.
            at.with(|at| {
                at.pin()?;
                at.map(DataDirection::ToDevice).map(|_| ())
            })?;
            drop(at);
            check_eq!(&shared.events()[..], [Pinned, Map, Unmap, Unpinned, Detach]);
            Ok(())
        })
    }

    #[test]
    fn gone_importer_is_not_waited_for() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), Pinner)?;

            at.with(|at| {
                at.pin()?;
                at.map(DataDirection::Bidirectional).map(|_| ())
            })?;
            check!(!pdev.is_disconnected());
            let gone = Gone::new(pdev);
            check!(pdev.is_disconnected());

            // The drop does not wait for the mapping of an importer on a device that is gone.
            drop(exports);
            check_eq!(&shared.events()[..], [Attach, Pinned, Map, Revoke]);
            drop(gone);
            at.with(|at| {
                check!(at.mapping().is_some());
                Ok(())
            })?;
            drop(at);
            check_eq!(&shared.events()[..], [Unmap, Unpinned, Detach]);
            Ok(())
        })
    }

    #[test]
    fn importer_may_go_while_it_is_waited_for() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (_, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf, pdev.as_ref(), Pinner)?;

            at.with(|at| {
                at.pin()?;
                at.map(DataDirection::Bidirectional).map(|_| ())
            })?;
            let other: ARef<pci::Device> = pdev.into();
            let start = Instant::<Monotonic>::now();
            let goes = Meanwhile::new(move || {
                fsleep(Delta::from_millis(300));
                Gone::new(&other)
            })?;
            drop(exports);
            // The wait has reported the importer once.
            check!(start.elapsed() < Delta::from_secs(8));
            drop((goes.end()?, at));
            Ok(())
        })
    }

    /// Whether a buffer was revoked before a resource of the driver went: 0 if none has gone.
    static WENT: Atomic<u32> = Atomic::new(0);

    /// A resource that a callback of the buffer could use. It keeps the buffer, and the list.
    struct Resource {
        shared: Arc<Shared>,
        _buf: ARef<DmaBuf>,
        _exports: ExportsHandle<Part>,
    }

    impl Drop for Resource {
        fn drop(&mut self) {
            let is_revoked = self.shared.events().contains(&Revoke);

            WENT.store(if is_revoked { 1 } else { 2 }, Relaxed);
        }
    }

    /// A driver may acquire a resource after its list of buffers, and something that is not its own
    /// may keep the list.
    #[test]
    fn buffers_are_revoked_before_any_resource_goes() -> Result {
        WENT.store(0, Relaxed);
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let later = Resource {
                shared,
                _buf: buf,
                _exports: exports.into_handle(),
            };

            devres::register::<Resource, Error>(pdev.as_ref(), Ok(later), GFP_KERNEL)
        })?;
        check_eq!(WENT.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn failed_mapping_leaves_nothing() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), late())?;

            // The exporter fails after it has mapped, and drops its mapping.
            *shared.fails.lock() = Some(Map);
            at.with(|at| {
                check_eq!(at.map(DataDirection::ToDevice).err(), Some(ENXIO));
                check!(at.mapping().is_none());
                at.unmap();
                Ok(())
            })?;
            with_exporter(&buf, |_: &Part, cx| {
                check_eq!(cx.attachments().map(|at| at.maps()).sum::<usize>(), 0);
                Ok(())
            })?;
            check_eq!(&shared.events()[..], [Attach]);

            // There is no mapping that the revocation would wait for.
            drop(exports);
            drop(at);
            check_eq!(&shared.events()[..], [Revoke, Detach]);
            Ok(())
        })
    }

    #[test]
    fn ranges_are_checked() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;
            let start = pdev.resource_start(BAR)?;
            let len = pdev.resource_len(BAR)?;
            let map = |first: u64, len: u64| {
                let mut list = RangeList::new();
                list.push(first, len)?;
                *shared.ranges.lock() = Arc::new(list, GFP_KERNEL)?;

                at.with(|at| {
                    let ret = at.map(DataDirection::ToDevice).map(|_| ());

                    at.unmap();
                    ret
                })
            };

            check_eq!(map(start, 2 * PAGE), Ok(()));
            check_eq!(map(start + len - 2 * PAGE, 2 * PAGE), Ok(()));
            // The range is before the BAR, across its start, across its end, behind it, and at the
            // end of the address space.
            for first in [
                0,
                start - 2 * PAGE,
                start - PAGE,
                start + len - PAGE,
                start + len,
                u64::MAX - 2 * PAGE + 1 - PAGE,
            ] {
                check_eq!(map(first, 2 * PAGE), Err(EINVAL));
            }
            // The length is not that of the buffer.
            for len in [PAGE, 3 * PAGE] {
                check_eq!(map(start, len), Err(EINVAL));
            }
            // The list is empty.
            *shared.ranges.lock() = Arc::new(RangeList::new(), GFP_KERNEL)?;
            at.with(|at| {
                check_eq!(at.map(DataDirection::ToDevice).err(), Some(EINVAL));
                Ok(())
            })?;

            // Only one of two ranges is outside of the BAR.
            let mut list = RangeList::new();
            list.push(start, PAGE)?;
            list.push(start + len, PAGE)?;
            *shared.ranges.lock() = Arc::new(list, GFP_KERNEL)?;
            at.with(|at| {
                check_eq!(at.map(DataDirection::ToDevice).err(), Some(EINVAL));
                Ok(())
            })
        })
    }

    #[test]
    fn offsets_are_checked() -> Result {
        with_device(|pdev| {
            let provider = pdev.p2pdma_provider(BAR)?;
            let (start, len) = (pdev.resource_start(BAR)?, pdev.resource_len(BAR)?);

            check_eq!(provider.phys_addr(0, len), Ok(start));
            check_eq!(provider.phys_addr(len, 0), Ok(start + len));
            for (offset, length) in [
                (0, len + 1),
                (1, len),
                (len, 1),
                (len + 1, 0),
                (u64::MAX, 1),
                (1, u64::MAX),
                (u64::MAX, u64::MAX),
            ] {
                check_eq!(provider.phys_addr(offset, length), Err(EINVAL));
            }

            let in_bar = |offset, len| RangeList::in_bar(&provider, [(offset, len)]);
            check!(in_bar(len - PAGE, PAGE)?
                .iter()
                .eq([(start + len - PAGE, PAGE)]));
            for (offset, length) in [
                (0, 0),
                (len, 0),
                (1, PAGE),
                (PAGE / 2, PAGE),
                (0, PAGE + 1),
                (0, PAGE / 2),
                (len - PAGE, 2 * PAGE),
                (len, PAGE),
                (u64::MAX - PAGE + 1, PAGE),
            ] {
                check_eq!(in_bar(offset, length).err(), Some(EINVAL));
            }

            // BAR 1 is empty, and there is none behind BAR 5.
            for bar in [1, 6, u32::MAX] {
                check_eq!(pdev.p2pdma_provider(bar).err(), Some(EINVAL));
            }
            check_eq!(pdev.p2pdma_provider(0)?.bar_len(), pdev.resource_len(0)?);
            Ok(())
        })
    }

    #[test]
    fn client_has_to_be_a_pci_device() -> Result {
        with_device(|pdev| {
            let provider = pdev.p2pdma_provider(BAR)?;
            let faux = faux::Registration::new(c"vram_kunit", None)?;
            let client: &Device<Bound> = faux.as_ref().as_ref();

            check_eq!(provider.map_type(client), MapType::NOT_SUPPORTED);
            check_eq!(provider.distance(client), None);
            check_eq!(provider.distance_many(&[pdev.as_ref(), client]), None);

            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            check_eq!(
                Attachment::new(buf.clone(), client, revocable()).err(),
                Some(EOPNOTSUPP)
            );
            // The device of the BAR is a peer, but a static importer does not opt in to
            // peer-to-peer memory.
            check_eq!(
                StaticAttachment::new(buf.clone(), pdev.as_ref()).err(),
                Some(EOPNOTSUPP)
            );
            check_eq!(shared.events().len(), 0);

            let route = Route {
                opted_in: true,
                pci: false,
                map_type: provider.map_type(client),
            };
            check_eq!(route.path(), Err(RouteError::NotPci));
            let peer = Route {
                pci: true,
                map_type: provider.map_type(pdev.as_ref()),
                ..route
            };
            check_eq!(peer.path(), Ok(PeerPath::Bus));
            // An unsupported type of P2P mapping is not a route.
            let unknown = Route {
                map_type: MapType::NOT_SUPPORTED,
                ..peer
            };
            check_eq!(unknown.path(), Err(RouteError::NoRoute));
            Ok(())
        })
    }

    #[test]
    fn table_follows_the_buffer() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;

            // Each mapping has the ranges of the buffer at that moment, in each direction, even if
            // another list has the same place.
            for (place, dir) in [
                (4, DataDirection::ToDevice),
                (4, DataDirection::FromDevice),
                (9, DataDirection::FromDevice),
                (4, DataDirection::Bidirectional),
                (0, DataDirection::Bidirectional),
                (0, DataDirection::ToDevice),
            ] {
                let moved = pages(pdev, place, 2)?;

                for again in [false, true] {
                    if !again {
                        *shared.ranges.lock() = moved.clone();
                    }
                    at.with(|at| {
                        at.map(dir)?;
                        check_eq!(mapped(pdev, at)?, (place, 2));
                        at.unmap();
                        Ok(())
                    })?;
                }
            }

            // The buffer is in two pieces, and then in one again.
            let provider = pdev.p2pdma_provider(BAR)?;
            *shared.ranges.lock() = RangeList::in_bar(&provider, [(8 * PAGE, PAGE), (0, PAGE)])?;
            at.with(|at| {
                let table = at.map(DataDirection::ToDevice)?;
                let start = pdev.resource_start(BAR)?;

                check!(table
                    .iter()
                    .map(|entry| (entry.dma_address() - start, entry.dma_len()))
                    .eq([(8 * PAGE, PAGE), (0, PAGE)]));
                at.unmap();
                Ok(())
            })?;
            *shared.ranges.lock() = pages(pdev, 7, 2)?;
            at.with(|at| {
                at.map(DataDirection::ToDevice)?;
                check_eq!(mapped(pdev, at)?, (7, 2));
                Ok(())
            })
        })
    }

    #[test]
    fn no_direction_is_refused() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;

            at.with(|at| {
                check_eq!(at.map(DataDirection::None).err(), Some(EINVAL));
                check!(at.mapping().is_none());
                Ok(())
            })?;
            check_eq!(&shared.events()[..], [Attach]);
            Ok(())
        })
    }

    /// Returns how many mappings the attachments of a buffer have.
    fn maps(buf: &DmaBuf) -> Result<usize> {
        with_exporter(buf, |_: &Part, cx| {
            Ok(cx.attachments().map(|at| at.maps()).sum())
        })
    }

    /// An importer in C that pins a buffer, and calls the operations of the exporter as the core
    /// does.
    struct Foreign {
        buf: ARef<DmaBuf>,
        attach: *mut bindings::dma_buf_attachment,
    }

    impl Foreign {
        const OPS: &'static bindings::dma_buf_attach_ops = &bindings::dma_buf_attach_ops {
            allow_peer2peer: true,
            invalidate_mappings: None,
        };

        fn new(buf: &ARef<DmaBuf>, dev: &Device<Bound>) -> Result<Self> {
            // SAFETY: The buffer and the device are valid, and the table is static.
            let attach = from_err_ptr(unsafe {
                bindings::dma_buf_dynamic_attach(
                    core::ptr::from_ref(&**buf).cast_mut().cast(),
                    core::ptr::from_ref(dev).cast_mut().cast(),
                    Self::OPS,
                    core::ptr::null_mut(),
                )
            })?;
            let this = Self {
                buf: buf.clone(),
                attach,
            };

            let _guard = buf.resv().lock();
            // SAFETY: The attachment is valid, and the reservation is held.
            to_result(unsafe { bindings::dma_buf_pin(attach) })?;
            Ok(this)
        }

        fn ops(&self) -> &bindings::dma_buf_ops {
            // SAFETY: The attachment and its buffer are valid.
            unsafe { &*(*(*self.attach).dmabuf).ops }
        }

        fn map(&self) -> Result<*mut bindings::sg_table> {
            let map = self.ops().map_dma_buf.ok_or(EINVAL)?;
            let _guard = self.buf.resv().lock();

            // SAFETY: The attachment is valid, and the reservation is held.
            from_err_ptr(unsafe { map(self.attach, bindings::dma_data_direction::DMA_TO_DEVICE) })
        }

        fn unmap(&self, sgt: *mut bindings::sg_table) -> Result {
            let unmap = self.ops().unmap_dma_buf.ok_or(EINVAL)?;
            let _guard = self.buf.resv().lock();

            // SAFETY: The attachment is valid, and the reservation is held. The exporter checks the
            // table.
            unsafe {
                unmap(
                    self.attach,
                    sgt,
                    bindings::dma_data_direction::DMA_TO_DEVICE,
                )
            };
            Ok(())
        }

        fn unpin(&self) {
            let _guard = self.buf.resv().lock();

            // SAFETY: The attachment is valid and pinned, and the reservation is held.
            unsafe { bindings::dma_buf_unpin(self.attach) };
        }
    }

    impl Drop for Foreign {
        fn drop(&mut self) {
            // SAFETY: The attachment is valid, and not used any more.
            unsafe { bindings::dma_buf_detach((*self.attach).dmabuf, self.attach) };
        }
    }

    #[test]
    fn mappings_without_a_user_are_gone() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Foreign::new(&buf, pdev.as_ref())?;

            // An importer in C may have two mappings.
            let (first, second) = (at.map()?, at.map()?);
            check_eq!(maps(&buf)?, 2);
            at.unmap(first)?;
            at.unmap(second)?;
            check_eq!(maps(&buf)?, 0);

            // A mapping that the exporter made before it failed is undone.
            shared.wasteful.store(true, Relaxed);
            *shared.fails.lock() = Some(Map);
            check_eq!(at.map().err(), Some(ENXIO));
            check_eq!(maps(&buf)?, 0);

            // A mapping that the exporter made and did not return is undone.
            *shared.fails.lock() = None;
            let sgt = at.map()?;
            check_eq!(maps(&buf)?, 1);
            shared.wasteful.store(false, Relaxed);
            let other = at.map()?;
            check_eq!(maps(&buf)?, 2);
            at.unmap(sgt)?;
            at.unmap(other)?;
            check_eq!(maps(&buf)?, 0);
            at.unpin();
            Ok(())
        })
    }

    #[test]
    fn importer_forgets_what_it_has() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Foreign::new(&buf, pdev.as_ref())?;

            at.map()?;
            drop(at);
            check_eq!(
                &shared.events()[..],
                [Attach, Pinned, Map, Unmap, Unpinned, Detach]
            );
            // The drop does not wait: there is no mapping.
            drop(exports);
            check_eq!(&shared.events()[..], [Revoke]);
            Ok(())
        })
    }

    #[test]
    fn revoked_buffer_does_nothing_new() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;
            at.with(|at| {
                at.pin()?;
                at.map(DataDirection::ToDevice).map(|_| ())
            })?;

            check_eq!(at.importer().0.load(Relaxed), 0);
            drop(exports);
            check_eq!(at.importer().0.load(Relaxed), 1);
            check_eq!(
                &shared.events()[..],
                [Attach, Pinned, Map, Revoke, Unmap, Unpinned]
            );
            at.with(|at| {
                check!(at.mapping().is_none() && !at.is_pinned());
                check_eq!(at.map(DataDirection::ToDevice).err(), Some(ENODEV));
                check_eq!(at.pin(), Err(ENODEV));
                at.unmap();
                at.unpin();
                Ok(())
            })?;
            for dir in [DataDirection::FromDevice, DataDirection::ToDevice] {
                check_eq!(buf.begin_cpu_access(dir), Err(ENODEV));
                check_eq!(buf.end_cpu_access(dir), Err(ENODEV));
            }
            check_eq!(VMap::new(buf.clone()).err(), Some(EINVAL));
            check_eq!(
                Attachment::new(buf.clone(), pdev.as_ref(), revocable()).err(),
                Some(ENODEV)
            );
            check_eq!(with_exporter(&buf, |_: &Part, _| Ok(())), Err(ENODEV));
            check!(exporter_of::<Part>(&buf).is_some());
            check_eq!(shared.events().len(), 0);

            // A detach still works.
            drop(at);
            check_eq!(&shared.events()[..], [Detach]);
            Ok(())
        })
    }

    #[test]
    fn revocation_waits_for_mappings() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let at = Arc::new(
                Attachment::new(buf.clone(), pdev.as_ref(), late())?,
                GFP_KERNEL,
            )?;
            let revoked = Arc::pin_init(new_mutex!(false), GFP_KERNEL)?;
            at.with(|at| at.map(DataDirection::ToDevice).map(|_| ()))?;

            let (late, is_revoked, note) = (at.clone(), revoked.clone(), shared.clone());
            let gone = Meanwhile::new(move || {
                soon(|| note.events.lock().contains(&Revoke));
                pause();
                // The mapping is invalidated, but it still exists, and the revocation still waits
                // for it.
                late.with(|at| {
                    let state = (at.mapping().is_none(), *is_revoked.lock());
                    at.unmap();
                    Ok(state)
                })
            })?;
            drop(exports);
            *revoked.lock() = true;
            check_eq!(&shared.events()[..], [Attach, Map, Revoke, Unmap]);
            check_eq!(gone.end()?, Ok((true, false)));
            drop(at);
            Ok(())
        })
    }

    #[test]
    fn cpu_access_comes_after_devices() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;
            let _ = shared.events();

            for (usage, dir, waits) in [
                (Usage::Kernel, DataDirection::FromDevice, true),
                (Usage::Write, DataDirection::FromDevice, true),
                (Usage::Read, DataDirection::FromDevice, false),
                (Usage::Bookkeep, DataDirection::FromDevice, false),
                (Usage::Write, DataDirection::ToDevice, true),
                (Usage::Read, DataDirection::ToDevice, true),
                (Usage::Read, DataDirection::Bidirectional, true),
                (Usage::Bookkeep, DataDirection::Bidirectional, false),
            ] {
                let job = work(&mut buf.resv().lock().locked(), usage)?;
                let of = buf.clone();
                let begun = Meanwhile::new(move || of.begin_cpu_access(dir))?;
                if waits {
                    pause();
                    check!(!begun.is_over());
                    check_eq!(shared.events().len(), 0);
                    job.signal(Ok(()));
                    check_eq!(begun.end()?, Ok(()));
                } else {
                    check_eq!(begun.end()?, Ok(()));
                    job.signal(Err(EIO));
                }
                check_eq!(&shared.events()[..], [Begin]);
                buf.end_cpu_access(dir)?;
                check_eq!(&shared.events()[..], [End]);
            }

            // An error of the exporter is returned to the caller.
            *shared.fails.lock() = Some(Begin);
            check_eq!(buf.begin_cpu_access(DataDirection::FromDevice), Err(ENXIO));
            *shared.fails.lock() = Some(End);
            check_eq!(buf.end_cpu_access(DataDirection::FromDevice), Err(ENXIO));
            Ok(())
        })
    }

    #[test]
    fn cpu_access_comes_after_what_was_late() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (shared, buf) = export_buffer(pdev, &exports)?;

            // The access waits for the reservation first; there is no fence yet.
            let mut guard = buf.resv().lock();
            let of = buf.clone();
            let begun = Meanwhile::new(move || of.begin_cpu_access(DataDirection::FromDevice))?;
            pause();
            let job = work(&mut guard.locked(), Usage::Write)?;
            drop(guard);
            pause();
            check!(!begun.is_over());
            check_eq!(shared.events().len(), 0);

            job.signal(Ok(()));
            check_eq!(begun.end()?, Ok(()));
            check_eq!(&shared.events()[..], [Begin]);
            buf.end_cpu_access(DataDirection::FromDevice)
        })
    }

    #[test]
    fn locked_view_is_of_its_buffer() -> Result {
        with_device(|pdev| {
            let exports = exports(pdev)?;
            let (_, buf) = export_buffer(pdev, &exports)?;
            let (_, other) = export_buffer(pdev, &exports)?;
            let at = Attachment::new(buf.clone(), pdev.as_ref(), revocable())?;

            {
                let mut guard = other.resv().lock();
                check_eq!(at.locked(&mut guard.locked()).err(), Some(EINVAL));
            }
            // An attempt that must not wait fails while the reservation is held.
            {
                let _guard = buf.resv().lock();
                check_eq!(at.try_with(|_| Ok(())), Err(EAGAIN));
            }
            check_eq!(at.try_with(|_| Err::<(), _>(EXDEV)), Err(EXDEV));
            check!(buf.resv().try_lock().is_some());

            for size in [0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1] {
                let shared = Shared::new(pages(pdev, 0, 1)?)?;
                check_eq!(exports.export(Part(shared), size, 0).err(), Some(EINVAL));
            }
            Ok(())
        })
    }
}
