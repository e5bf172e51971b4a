// SPDX-License-Identifier: GPL-2.0

//! Address spaces of the device whose objects move.

use crate::bench::{
    Driver,
    Object,
    PAGE, //
};
use kernel::{
    drm::{
        gem::{
            mappings::Address,
            LockedObject, //
        },
        gpuvm::*, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// How many pages a VM has.
const PAGES: u64 = 8192;

/// An entry of a page table: an object, an offset in it, and its address.
#[derive(Clone, Copy)]
struct Entry {
    object: u64,
    at: u64,
    address: Address,
}

struct Entries {
    pages: KVVec<Option<Entry>>,
    /// The number of invalidations of the cached entries.
    invalidations: u32,
}

/// A page table. All of its memory is allocated at the start, so it can be written under any lock.
#[pin_data]
pub(crate) struct Table {
    #[pin]
    entries: Mutex<Entries>,
}

impl Table {
    fn new() -> Result<Arc<Self>> {
        let entries = Entries {
            pages: KVVec::from_elem(None, PAGES as usize, GFP_KERNEL)?,
            invalidations: 0,
        };

        Arc::pin_init(
            pin_init!(Self {
                entries <- new_mutex!(entries),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `f` with each entry of a range, and the bytes before it.
    fn each(&self, range: &MappedRange, mut f: impl FnMut(&mut Option<Entry>, u64)) {
        let first = (range.va.start / PAGE) as usize;
        let count = ((range.va.end - range.va.start) / PAGE) as usize;
        let mut entries = self.entries.lock();

        for (index, entry) in entries.pages[first..first + count].iter_mut().enumerate() {
            f(entry, index as u64 * PAGE);
        }
    }
}

/// The kind of VM.
pub(crate) struct Vm;

impl DriverGpuVm for Vm {
    type Driver = Driver;
    type Object = Object;
    type VaData = ();
    type VmBoData = Arc<Table>;
    type SmContext<'ctx> = KVec<GpuVaAlloc<Self>>;

    const EVICTABLE: Evictable<Self> = evictable();

    fn sm_step_map<'op>(
        &mut self,
        op: OpMap<'op, Self>,
        vas: &mut KVec<GpuVaAlloc<Self>>,
    ) -> Result<OpMapped<'op, Self>> {
        Ok(op.insert(vas.pop().ok_or(ENOMEM)?, ()))
    }

    fn sm_step_unmap<'op>(
        &mut self,
        op: OpUnmap<'op, Self>,
        _vas: &mut KVec<GpuVaAlloc<Self>>,
    ) -> Result<OpUnmapped<'op, Self>> {
        let va = op.va();
        let range = MappedRange {
            va: va.range(),
            gem_offset: va.gem_offset(),
        };

        va.vm_bo().data().each(&range, |entry, _| *entry = None);
        Ok(op.remove().0)
    }

    fn sm_step_remap<'op>(
        &mut self,
        _op: OpRemap<'op, Self>,
        _vas: &mut KVec<GpuVaAlloc<Self>>,
    ) -> Result<OpRemapped<'op, Self>> {
        Err(EOPNOTSUPP)
    }
}

/// Clears the entries of an object that is about to move.
pub(crate) fn zap(object: &LockedObject<'_, Object>) {
    object.for_each_vm::<Vm>(|mapped| {
        for range in mapped.ranges() {
            mapped.data().each(&range, |entry, _| *entry = None);
        }
        mapped.data().entries.lock().invalidations += 1;
    });
}

#[kunit_tests(vram_gpuvm)]
mod tests {
    use super::{
        Driver,
        Entry,
        Object,
        Table,
        Vm,
        PAGE,
        PAGES, //
    };
    use crate::{
        bench::{
            export,
            fill,
            holds,
            mem_type,
            validate,
            with_device,
            Card,
            Step, //
        },
        waits::job, //
    };
    use kernel::{
        dma_resv::Usage,
        drm::{
            self,
            exec::Flag,
            gem::{
                self,
                BaseObject,
                LockedObject,
                SharedResv, //
            },
            gpuvm::*,
            ttm::{
                OpCtx,
                Place, //
            },
            vram::{
                Domain,
                MemType, //
            }, //
        },
        prelude::*,
        sync::{
            aref::ARef,
            Arc, //
        }, //
    };

    /// Writes the entries of a range with the current place of an object.
    fn write(
        table: &Table,
        range: &MappedRange,
        object: &mut LockedObject<'_, Object>,
        dev: &drm::Device<Driver, drm::Registered>,
    ) -> Result {
        let id = object.object().id();
        let placed = object.placed(dev, &mut OpCtx::uninterruptible())?;

        table.each(range, |entry, skip| {
            let at = range.gem_offset + skip;

            *entry = placed.address(at).map(|(address, _)| Entry {
                object: id,
                at,
                address,
            });
        });
        Ok(())
    }

    /// A VM, whose mappings are removed when it is dropped.
    struct Space<'a> {
        card: &'a Card,
        unique: UniqueRefGpuVm<Vm>,
        vm: ARef<GpuVm<Vm>>,
        resv: SharedResv<Driver>,
        table: Arc<Table>,
    }

    impl<'a> Space<'a> {
        fn new(card: &'a Card) -> Result<Self> {
            let drm = card.drm();
            let resv = SharedResv::new(&drm)?;
            let unique =
                GpuVm::new::<Error, _>(c"vram_kunit", &*drm, &*resv, 0..PAGES * PAGE, 0..0, Vm)?;

            Ok(Self {
                card,
                vm: ARef::from(&*unique),
                unique,
                resv,
                table: Table::new()?,
            })
        }

        /// Makes a private object of `pages` pages in VRAM.
        fn object(&self, pages: u64) -> Result<ARef<Object>> {
            Object::new_in(
                &self.card.drm(),
                &self.resv,
                (pages * PAGE) as usize,
                &[Place::VRAM],
                &mut OpCtx::uninterruptible(),
                Domain::Either.into(),
            )
        }

        /// Maps all of an object at its current place.
        fn bind(&mut self, object: &Object, page: u64) -> Result {
            let vm_bo = self.vm.obtain(object, self.table.clone())?;
            let (vm, table, unique) = (&*self.vm, &*self.table, &mut self.unique);

            self.card.registered(|dev| {
                self.card.ttm().exec(Flag::Interruptible, |ctx| {
                    let mut locked = ctx.lock_vm(vm)?;
                    let mut held = locked.object(object).ok_or(EPROTO)?;
                    let mut vas = KVec::new();

                    vas.push(GpuVaAlloc::new(GFP_KERNEL)?, GFP_KERNEL)?;
                    unique.sm_map(OpMapRequest {
                        addr: page * PAGE,
                        range: object.size() as u64,
                        gem_offset: 0,
                        vm_bo: &vm_bo,
                        context: &mut vas,
                    })?;
                    let range = MappedRange {
                        va: page * PAGE..page * PAGE + object.size() as u64,
                        gem_offset: 0,
                    };
                    write(table, &range, &mut held, dev)
                })
            })
        }

        fn unbind(&mut self) -> Result {
            self.unique.sm_unmap(0, PAGES * PAGE, &mut KVec::new())
        }

        /// Validates the evicted objects of the VM, and returns how many there were.
        fn run(&self, places: &[Place]) -> Result<usize> {
            self.card.registered(|dev| {
                self.card.ttm().exec(Flag::Interruptible, |ctx| {
                    let mut calls = 0;
                    let mut locked = ctx.lock_vm(&self.vm)?;
                    let mut valid = locked.validate(|vm_bo, held| {
                        calls += 1;
                        held.validate(places, &mut OpCtx::interruptible())?;
                        // The ranges are copied first, as the walk holds a lock. Each object has
                        // one range.
                        let mut ranges = KVec::with_capacity(1, GFP_KERNEL)?;
                        vm_bo.for_each_range(|range| {
                            let _ = ranges.push_within_capacity(range);
                        });
                        for range in &ranges {
                            write(&self.table, range, held, dev)?;
                        }
                        Ok(())
                    })?;
                    let fence = job()?;

                    valid.reserve(1)?.next().ok_or(ENOSPC)?.add_fence(
                        fence.fence(),
                        Usage::Bookkeep,
                        Usage::Bookkeep,
                    );
                    fence.signal(Ok(()));
                    Ok(calls)
                })
            })
        }

        /// Returns the number of entries for an object. Fails if one of them has a wrong address.
        fn shown(&self, object: &Object) -> Result<u64> {
            let mut entries = KVVec::new();
            let mut count = 0;

            entries.resize(PAGES as usize, None, GFP_KERNEL)?;
            entries.copy_from_slice(&self.table.entries.lock().pages);
            let mut reserved = object.reserve(false)?;
            for entry in entries.iter().flatten() {
                if entry.object == object.id() {
                    count += 1;
                    if !reserved.is_at(entry.at, entry.address) {
                        return Err(EFAULT);
                    }
                }
            }
            Ok(count)
        }

        /// Returns the number of invalidations since the last call.
        fn invalidations(&self) -> u32 {
            core::mem::take(&mut self.table.entries.lock().invalidations)
        }
    }

    impl Drop for Space<'_> {
        fn drop(&mut self) {
            if self.unbind().is_err() {
                pr_err!("a VM is not empty\n");
            }
            self.vm.deferred_cleanup();
        }
    }

    /// An object is private to one VM, and external to another one.
    #[test]
    fn evicted_object_comes_back_in_both() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let (mut a, mut b) = (Space::new(&card)?, Space::new(&card)?);
            let private = a.object(4)?;
            let other = card.object(2, &[Place::VRAM], Domain::Either)?;

            check!(private.is_private() && !other.is_private());
            fill(&private, 1)?;
            fill(&other, 2)?;
            a.bind(&private, 0)?;
            a.bind(&other, 8)?;
            b.bind(&private, 16)?;
            check_eq!(
                (a.shown(&private)?, a.shown(&other)?, b.shown(&private)?),
                (4, 2, 4)
            );
            check_eq!((a.run(&[Place::VRAM])?, b.run(&[Place::VRAM])?), (0, 0));

            card.control.steps()?;
            validate(&private, &[Place::TT])?;
            check_eq!(
                &card.control.steps()?[..],
                &[Step::Evicted, Step::Zapped, Step::Queued]
            );
            check_eq!(
                (a.shown(&private)?, a.shown(&other)?, b.shown(&private)?),
                (0, 2, 0)
            );
            check_eq!((a.invalidations(), b.invalidations()), (1, 1));

            // The first VM moves the object back, and the second one only writes its entries.
            check_eq!(a.run(&[Place::VRAM])?, 1);
            check_eq!(mem_type(&private)?, Some(MemType::Vram));
            check_eq!((a.shown(&private)?, b.shown(&private)?), (4, 0));
            check_eq!(b.run(&[Place::VRAM])?, 1);
            check_eq!((a.shown(&private)?, b.shown(&private)?), (4, 4));
            check_eq!((a.run(&[Place::VRAM])?, b.run(&[Place::VRAM])?), (0, 0));

            // A VM may also validate objects at the place that they were evicted to.
            validate(&private, &[Place::TT])?;
            validate(&other, &[Place::TT])?;
            check_eq!((a.run(&[Place::TT])?, b.run(&[Place::TT])?), (2, 1));
            check_eq!(
                (a.shown(&private)?, a.shown(&other)?, b.shown(&private)?),
                (4, 2, 4)
            );
            check_eq!(mem_type(&private)?, Some(MemType::Tt));
            check!(holds(&private, Some(1))? && holds(&other, Some(2))?);
            Ok(())
        })
    }

    #[test]
    fn private_object_is_not_exported() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let (a, b) = (Space::new(&card)?, Space::new(&card)?);
            let private = a.object(1)?;

            check_eq!(export(&private).err(), Some(EPERM));
            check!(!a.vm.is_extobj(&private) && b.vm.is_extobj(&private));
            Ok(())
        })
    }

    /// The objects of a VM keep the shared reservation of the VM alive.
    #[test]
    fn object_outlives_vm() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let mut a = Space::new(&card)?;
            let (first, second) = (a.object(2)?, a.object(2)?);

            fill(&first, 1)?;
            a.bind(&first, 0)?;
            validate(&first, &[Place::TT])?;
            drop(a);
            validate(&first, &[Place::VRAM])?;
            check!(holds(&first, Some(1))?);
            drop(first);
            check!(holds(&second, None)?);
            Ok(())
        })
    }

    /// Two objects of more than half of VRAM take turns in it; each is private to another VM.
    #[test]
    fn vms_take_turns() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let pages = card.ttm().vram_free() / PAGE * 5 / 8;
            let (mut a, mut b) = (Space::new(&card)?, Space::new(&card)?);
            let in_a = a.object(pages)?;

            fill(&in_a, 1)?;
            a.bind(&in_a, 0)?;
            let in_b = b.object(pages)?;
            fill(&in_b, 2)?;
            b.bind(&in_b, 0)?;

            for _ in 0..4 {
                check_eq!((a.shown(&in_a)?, b.shown(&in_b)?), (0, pages));
                check_eq!(a.run(&[Place::VRAM])?, 1);
                check_eq!((a.shown(&in_a)?, b.shown(&in_b)?), (pages, 0));
                check_eq!(a.run(&[Place::VRAM])?, 0);
                check_eq!(b.run(&[Place::VRAM])?, 1);
            }
            check!(holds(&in_a, Some(1))? && holds(&in_b, Some(2))?);
            Ok(())
        })
    }

    /// Two objects of more than half of VRAM are private to one VM.
    #[test]
    fn objects_of_a_vm_make_room_for_a_new_one() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let pages = card.ttm().vram_free() / PAGE * 5 / 8;
            let mut a = Space::new(&card)?;
            let first = a.object(pages)?;

            fill(&first, 1)?;
            a.bind(&first, 0)?;
            let second = a.object(pages)?;
            check_eq!(mem_type(&second)?, Some(MemType::Vram));
            check_eq!(mem_type(&first)?, Some(MemType::Tt));
            check_eq!(a.shown(&first)?, 0);
            fill(&second, 2)?;

            // Objects that are validated together do not evict each other.
            check_eq!(a.run(&[Place::VRAM]).err(), Some(ENOSPC));
            check_eq!(a.run(&[Place::VRAM, Place::TT])?, 1);
            check_eq!(mem_type(&second)?, Some(MemType::Vram));
            check_eq!(a.shown(&first)?, pages);
            check!(holds(&first, Some(1))? && holds(&second, Some(2))?);
            Ok(())
        })
    }

    #[test]
    fn copy_between_objects_of_a_vm() -> Result {
        with_device(|pdev| {
            let card = Card::new(pdev, 0)?;
            let a = Space::new(&card)?;
            let (first, second) = (a.object(2)?, a.object(2)?);

            fill(&first, 1)?;
            fill(&second, 2)?;
            let part = |object| gem::ttm::Part { object, offset: 0 };
            card.registered(|dev| {
                gem::ttm::copy(dev, &part(&*first), &part(&*second), 2 * PAGE)?.wait(false)
            })?;
            check!(holds(&first, Some(1))? && holds(&second, Some(1))?);
            Ok(())
        })
    }
}
