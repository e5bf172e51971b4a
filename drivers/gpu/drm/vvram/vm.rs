// SPDX-License-Identifier: GPL-2.0

//! Address spaces of clients, like those of a GPU with page tables.
//!
//! The device has no page tables. The tables here are kept by software and only [`read`] walks
//! them. They are a model for the driver of a device with page tables. An entry has the address of
//! a page: an offset in VRAM, an address of system memory, or the DMA address of the device for a
//! buffer of another device. It is filled with the reservation of the object held. When an object
//! leaves its place, the GEM layer calls [`Mappings`]. This finds the mappings of the object by its
//! number in the list of all mappings of the device and clears their entries.
//!
//! Cleared entries are filled again when the client uses the address space. This is done by
//! [`read`], as the driver of a GPU validates all objects before a job begins. A copy between
//! objects is no such use: the engine gets the places of the objects and not addresses of a client.
//!
//! # Locking
//!
//! From the outside to the inside: the space of a client, the reservation of an object, the list of
//! all mappings, the entries of a space. The last two are taken in paths to the signal of fences,
//! so no memory is allocated with them held.

use kernel::{
    dma_resv::Usage,
    drm::{
        self,
        exec::Flag,
        gem::{
            mappings::Address,
            ttm::ioctl::whole_pages,
            BaseObject,
            LockedObject, //
        },
        ttm::{
            OpCtx,
            Place, //
        },
        vram::MemType,
        Ioctl,
        Registered, //
    },
    new_mutex,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    seq_file::SeqFile,
    seq_print,
    sizes::SZ_64M,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    uaccess::{
        UserPtr,
        UserSlice, //
    },
    uapi, //
};

use crate::{
    driver::{
        BoundData,
        VvramDevice,
        VvramDriver, //
    },
    file::{
        check,
        File, //
    },
    gem::Bo, //
};

/// The size of an address space in bytes.
pub(crate) const SIZE: u64 = SZ_64M as u64;

/// The number of pages in an address space.
const PAGES: usize = SZ_64M >> PAGE_SHIFT;

/// The key of a mapping in the list of all mappings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    object: u64,
    space: u64,
    first: usize,
}

/// The entries of an address space. Each page has one.
#[pin_data]
struct Table {
    #[pin]
    entries: Mutex<KVVec<Option<Address>>>,
}

/// A part of an object in an address space.
struct Mapping {
    table: Arc<Table>,
    /// The first page of the address space.
    first: usize,
    pages: usize,
    /// The offset in the object.
    offset: u64,
    /// The object has moved or is about to move. The entries must be filled before the next use.
    evicted: Atomic<bool>,
}

impl Mapping {
    /// Fills the entries with the addresses of the object.
    fn fill(&self, dev: &VvramDevice<Registered>, object: &mut LockedObject<'_, Bo>) -> Result {
        let ctx = &mut OpCtx::interruptible();
        let is_import = object.object().as_import().is_some();

        if !is_import && !matches!(object.mem_type(), Some(MemType::Vram | MemType::Tt)) {
            // The object may have been swapped out.
            object.validate(&[Place::TT], ctx)?;
        }
        let placed = object.placed(dev, ctx)?;

        let mut entries = self.table.entries.lock();
        for (page, entry) in entries
            .iter_mut()
            .skip(self.first)
            .take(self.pages)
            .enumerate()
        {
            let at = self.offset + ((page as u64) << PAGE_SHIFT);

            *entry = Some(placed.page(at)?.0);
        }
        self.evicted.store(false, Relaxed);
        Ok(())
    }

    fn clear(&self) {
        let mut entries = self.table.entries.lock();

        for entry in entries.iter_mut().skip(self.first).take(self.pages) {
            *entry = None;
        }
    }

    /// Returns the number of present entries and the number of those with another address than the
    /// object.
    fn checked(&self, mut is_at: impl FnMut(u64, Address) -> bool) -> (usize, usize) {
        let entries = self.table.entries.lock();
        let (mut present, mut wrong) = (0, 0);

        for (page, entry) in entries.iter().skip(self.first).take(self.pages).enumerate() {
            let at = self.offset + ((page as u64) << PAGE_SHIFT);

            if let Some(address) = entry {
                present += 1;
                wrong += usize::from(!is_at(at, *address));
            }
        }
        (present, wrong)
    }
}

/// All mappings of the objects of a device.
#[pin_data]
pub(crate) struct Mapped {
    #[pin]
    list: Mutex<RBTree<Key, Arc<Mapping>>>,
    spaces: Atomic<u64>,
}

impl Mapped {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                list <- new_mutex!(RBTree::new(), "vvram::mapped"),
                spaces: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Calls `f` with each mapping of an object.
    fn each(&self, object: u64, mut f: impl FnMut(&Key, &Mapping)) {
        let list = self.list.lock();
        let mut from = Key {
            object,
            space: 0,
            first: 0,
        };

        while let Some(cursor) = list.cursor_lower_bound(&from) {
            let (key, mapping) = cursor.current();
            if key.object != object {
                break;
            }
            f(key, mapping);
            from = *key;
            from.first += 1;
        }
    }

    /// Makes the next use of the mappings of an object fill their entries again.
    pub(crate) fn evicted(&self, object: u64) {
        self.each(object, |_, mapping| mapping.evicted.store(true, Relaxed));
    }

    /// Clears all entries of an object.
    pub(crate) fn zap(&self, object: u64) {
        self.each(object, |_, mapping| mapping.clear());
    }

    /// Prints the mappings of an object with its reservation held.
    fn print(&self, m: &SeqFile, object: u64, mut is_at: impl FnMut(u64, Address) -> bool) {
        self.each(object, |key, mapping| {
            let (present, wrong) = mapping.checked(&mut is_at);

            seq_print!(
                m,
                "space={} object={object} addr={:#x} offset={:#x} pages={} present={present} \
                 wrong={wrong} evicted={}\n",
                key.space,
                mapping.first << PAGE_SHIFT,
                mapping.offset,
                mapping.pages,
                u8::from(mapping.evicted.load(Relaxed))
            );
        });
    }
}

/// A mapping with a reference to its object.
struct Bound {
    object: ARef<Bo>,
    mapping: Arc<Mapping>,
}

/// An address space.
struct Space {
    mapped: Arc<Mapped>,
    id: u64,
    table: Arc<Table>,
    bound: RBTree<usize, Bound>,
}

impl Space {
    fn new(mapped: &Arc<Mapped>) -> Result<Self> {
        let mut entries = KVVec::new();

        entries.resize(PAGES, None, GFP_KERNEL_ACCOUNT)?;
        Ok(Self {
            mapped: mapped.clone(),
            id: mapped.spaces.fetch_add(1, Relaxed) + 1,
            table: Arc::pin_init(
                pin_init!(Table {
                    entries <- new_mutex!(entries, "vvram::entries"),
                }),
                GFP_KERNEL_ACCOUNT,
            )?,
            bound: RBTree::new(),
        })
    }

    fn key(&self, object: u64, first: usize) -> Key {
        Key {
            object,
            space: self.id,
            first,
        }
    }

    /// Returns the mapping of a page.
    fn at(&self, page: usize) -> Option<&Bound> {
        self.bound.values().find(|bound| {
            let mapping = &bound.mapping;

            (mapping.first..mapping.first + mapping.pages).contains(&page)
        })
    }

    /// Returns whether a mapping has one of the pages from `first` up to `end`.
    fn has_any(&self, first: usize, end: usize) -> bool {
        self.bound.values().any(|bound| {
            let mapping = &bound.mapping;

            mapping.first < end && first < mapping.first + mapping.pages
        })
    }

    fn bind(
        &mut self,
        dev: &VvramDevice<Registered>,
        object: ARef<Bo>,
        offset: u64,
        first: usize,
        pages: usize,
    ) -> Result {
        let mapping = Arc::new(
            Mapping {
                table: self.table.clone(),
                first,
                pages,
                offset,
                evicted: Atomic::new(true),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let id = object.id();
        let listed = RBTreeNode::new(self.key(id, first), mapping.clone(), GFP_KERNEL_ACCOUNT)?;
        let bound = Bound { object, mapping };
        let bound = RBTreeNode::new(first, bound, GFP_KERNEL_ACCOUNT)?;

        // From here on a move of the object clears the entries.
        self.mapped.list.lock().insert(listed);
        self.bound.insert(bound);
        let filled = self
            .at(first)
            .ok_or(ENOENT)
            .and_then(|bound| bound.with(dev, |_, _| Ok(())));
        if filled.is_err() {
            self.unbind(first);
        }
        filled
    }

    fn unbind(&mut self, first: usize) {
        if let Some(bound) = self.bound.remove(&first) {
            // Until the mapping is removed from the list, a move of the object may clear the
            // entries at the same time. A driver of real page tables must also flush the TLB of the
            // device before it drops the reference to the object.
            bound.mapping.clear();
            self.mapped
                .list
                .lock()
                .remove(&self.key(bound.object.id(), first));
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for (first, bound) in &self.bound {
            self.mapped
                .list
                .lock()
                .remove(&self.key(bound.object.id(), *first));
        }
    }
}

impl Bound {
    /// Calls `f` with the object reserved and its entries filled.
    fn with(
        &self,
        dev: &VvramDevice<Registered>,
        mut f: impl FnMut(&Mapping, &mut LockedObject<'_, Bo>) -> Result,
    ) -> Result {
        dev.ttm.exec(Flag::Interruptible, |exec| {
            let mut object = self.object.lock(exec)?.ok_or(EALREADY)?;

            if self.mapping.evicted.load(Relaxed) {
                self.mapping.fill(dev, &mut object)?;
            }
            f(&self.mapping, &mut object)
        })
    }

    /// Like [`Self::with`] but without filling the entries.
    fn as_is(
        &self,
        dev: &VvramDevice<Registered>,
        mut f: impl FnMut(&Mapping, &mut LockedObject<'_, Bo>) -> Result,
    ) -> Result {
        dev.ttm.exec(Flag::Interruptible, |exec| {
            f(&self.mapping, &mut self.object.lock(exec)?.ok_or(EALREADY)?)
        })
    }
}

/// The address space of a client. It is created for its first mapping.
#[pin_data]
pub(crate) struct Vm {
    #[pin]
    space: Mutex<Option<Space>>,
}

impl Vm {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            space <- new_mutex!(None, "vvram::space"),
        })
    }
}

/// `DRM_IOCTL_VVRAM_VM_BIND`
pub(crate) fn bind(
    dev: &VvramDevice<Ioctl>,
    args: &mut uapi::drm_vvram_vm_bind,
    file: &drm::File<File>,
) -> Result<u32> {
    check(args.pad == 0 && args.flags == 0)?;
    let va = whole_pages(args.address, args.size, SIZE)?;
    // CAST: Both are small.
    let (first, pages) = (
        (va.start >> PAGE_SHIFT) as usize,
        (args.size >> PAGE_SHIFT) as usize,
    );
    let target = match args.op {
        uapi::drm_vvram_bind_op_DRM_VVRAM_BIND_MAP => {
            let object = Bo::lookup_handle(file, args.handle)?;
            let part = whole_pages(args.offset, args.size, object.size() as u64)?;

            // The work may be of any device, so an unplug must not wait for this.
            object.await_unused()?;
            Some((object, part.start))
        }
        uapi::drm_vvram_bind_op_DRM_VVRAM_BIND_UNMAP => {
            check(args.handle == 0 && args.offset == 0)?;
            None
        }
        _ => return Err(EINVAL),
    };

    let guard = dev.registration_guard().ok_or(ENODEV)?;
    let dev = &*guard;
    let mut space = file.inner().get_ref().vm().space.lock();
    if space.is_none() && target.is_some() {
        *space = Some(Space::new(&dev.mapped)?);
    }
    let space = (*space).as_mut().ok_or(ENOENT)?;
    match target {
        Some((object, offset)) => {
            if space.has_any(first, first + pages) {
                return Err(EEXIST);
            }
            space.bind(dev, object, offset, first, pages)?;
        }
        None => {
            let found = space.bound.get(&first).ok_or(ENOENT)?;

            if found.mapping.pages != pages {
                return Err(ENOENT);
            }
            space.unbind(first);
        }
    }
    Ok(0)
}

/// `DRM_IOCTL_VVRAM_VM_READ`
pub(crate) fn read(
    dev: &VvramDevice<Ioctl>,
    args: &mut uapi::drm_vvram_vm_read,
    file: &drm::File<File>,
) -> Result<u32> {
    let end = args.address.checked_add(args.size).ok_or(EINVAL)?;
    if args.pad != 0
        || args.size == 0
        || end > SIZE
        || args.flags & !uapi::DRM_VVRAM_VM_READ_AS_IS != 0
    {
        return Err(EINVAL);
    }

    let to = UserPtr::from_addr(usize::try_from(args.data)?);
    let mut to = UserSlice::new(to, usize::try_from(args.size)?).writer();
    let mut bytes = KVec::from_elem(0u8, PAGE_SIZE, GFP_KERNEL)?;
    let mut at = args.address;

    while at < end {
        // CAST: Both are below the size of an address space.
        let (page, skip) = ((at >> PAGE_SHIFT) as usize, at as usize % PAGE_SIZE);
        let len = (PAGE_SIZE - skip).min((end - at) as usize);
        let bytes = &mut bytes[..len];
        await_import(file, page)?;
        {
            let guard = dev.registration_guard().ok_or(ENODEV)?;
            let dev = &*guard;
            let space = file.inner().get_ref().vm().space.lock();
            let here = space
                .as_ref()
                .and_then(|space| space.at(page))
                .ok_or(EFAULT)?;
            let page_by = |mapping: &Mapping, object: &mut LockedObject<'_, Bo>| {
                dev.registration_data_with(|bound| {
                    read_page(dev, bound, mapping, object, page, skip, &mut *bytes)
                })
            };

            if args.flags & uapi::DRM_VVRAM_VM_READ_AS_IS != 0 {
                here.as_is(dev, page_by)
            } else {
                here.with(dev, page_by)
            }?;
        }
        // The mutex is not held because another process may have to serve the page fault.
        to.write_slice(bytes)?;
        at += len as u64;
    }
    Ok(0)
}

/// Waits for the moves of the import mapped at a page, if there is one, and for work that uses its
/// old place. This may be work of any device, so an unplug must not wait for it.
fn await_import(file: &drm::File<File>, page: usize) -> Result {
    let object = {
        let space = file.inner().get_ref().vm().space.lock();

        space
            .as_ref()
            .and_then(|space| space.at(page))
            .map(|here| here.object.clone())
    };

    if let Some(import) = object.as_ref().and_then(|object| object.as_import()) {
        import.await_unused()?;
        import.dma_buf().resv().wait(Usage::Kernel, true)?;
    }
    Ok(())
}

/// Reads bytes of a page through its entry.
fn read_page(
    dev: &VvramDevice<Registered>,
    bound: &BoundData<'_>,
    mapping: &Mapping,
    object: &mut LockedObject<'_, Bo>,
    page: usize,
    skip: usize,
    to: &mut [u8],
) -> Result {
    // A move of the object may not be done yet. It may fail and lose the content. A move of an
    // import is done by another device and the ioctl has waited for it before.
    let is_import = object.object().as_import().is_some();
    let resv = object.resv();
    if is_import && !resv.resv().test_signaled(Usage::Kernel) {
        return Err(EAGAIN);
    }
    resv.resv().wait(Usage::Kernel, true)?;
    object.check_content()?;

    let entry = mapping.table.entries.lock().get(page).copied().flatten();
    match entry.ok_or(EFAULT)?.after(skip as u64) {
        Address::Vram(at) => {
            let at = dev.ttm.allocator().bar_offset(at).ok_or(EFAULT)?;

            bound.engine.read(at, to)
        }
        address => {
            let in_object = ((page - mapping.first) << PAGE_SHIFT) + skip;

            object.read_system(mapping.offset + in_object as u64, address, to)
        }
    }
}

/// The file `spaces` in debugfs. It shows all mappings with the numbers of present and of wrong
/// entries.
pub(crate) struct Spaces;

#[vtable]
impl drm::debugfs::File for Spaces {
    type Driver = VvramDriver;

    const NAME: &'static CStr = c"spaces";

    fn show(dev: &VvramDevice<Registered>, m: &SeqFile) -> Result {
        let mut next = 0;

        while let Some(object) = dev.ttm.object_from(next) {
            let id = object.id();
            let mut reserved = object.reserve(true)?;

            next = id + 1;
            dev.mapped
                .print(m, id, |at, address| reserved.is_at(at, address));
        }
        Ok(())
    }
}
