// SPDX-License-Identifier: GPL-2.0

//! The buffers that a bound driver has lent.
//!
//! A dma-buf lives for as long as somebody has its file, so it may outlive the driver that exported
//! it, and importers may hold addresses of a device that is going away. [`Exports`] is the list of a
//! driver's buffers. When it is dropped, or the driver unbound, it takes all of them back:
//!
//! 1. no new attachment, pin or mapping is made (`ENODEV`),
//! 2. importers are told that their mappings are void,
//! 3. fences of work on the buffers are waited for,
//! 4. mappings are waited for, without a limit: an importer that cannot be told to let go, as most
//!    RDMA devices cannot, keeps its addresses until it is done. A message names it.
//!
//! # Locking
//!
//! The list's mutex is not held while another lock is taken. The list does not own references to
//! the buffers; a buffer takes itself off the list before it is freed.

use super::{
    exporter::{
        Buffer,
        Exporter, //
    },
    DmaBuf, //
};
use crate::{
    bindings,
    device,
    devres::Devres,
    dma_resv::Usage,
    error::from_err_ptr,
    module::this_module,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        aref::ARef,
        Arc,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// How often the wait for mappings names who it is waiting for, in milliseconds.
const REMIND_MS: u32 = 10_000;

/// The addresses of the dma-bufs on a list.
#[pin_data]
pub(super) struct Registry {
    /// An address on the list is that of a dma-buf whose release has not returned.
    #[pin]
    bufs: Mutex<RBTree<usize, ()>>,
}

impl Registry {
    /// Not inlined into modules: the name of the lock class stays at one address.
    #[inline(never)]
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                bufs <- crate::new_mutex!(RBTree::new(), "dma_buf::Registry"),
            }),
            GFP_KERNEL,
        )
    }

    fn insert(&self, buf: *mut bindings::dma_buf) -> Result {
        // Memory is not allocated with the mutex held.
        let node = RBTreeNode::new(buf as usize, (), GFP_KERNEL)?;

        self.bufs.lock().insert(node);
        Ok(())
    }

    /// Takes a buffer off the list; called while it is released.
    pub(super) fn remove(&self, buf: *mut bindings::dma_buf) {
        self.bufs.lock().remove(&(buf as usize));
    }

    /// Returns the first buffer above the address `after` that is not being released.
    fn next(&self, mut after: usize) -> Option<ARef<DmaBuf>> {
        let bufs = self.bufs.lock();

        loop {
            let cursor = bufs.cursor_lower_bound(&after.checked_add(1)?)?;
            let key = *cursor.current().0;

            // SAFETY: While the mutex is held, a buffer on the list is not freed.
            if let Some(buf) = unsafe { get_active(key as *mut bindings::dma_buf) } {
                return Some(buf);
            }
            after = key;
        }
    }
}

/// Takes a reference to a dma-buf unless its file is being released.
///
/// # Safety
///
/// `ptr` must point to a dma-buf whose release has not returned.
unsafe fn get_active(ptr: *mut bindings::dma_buf) -> Option<ARef<DmaBuf>> {
    // SAFETY: The dma-buf is valid. Its file may be freed already if somebody still holds the
    // dentry; `get_file_active()` is made for that.
    let file = unsafe { bindings::get_file_active(&raw mut (*ptr).file) };
    let file = NonNull::new(file)?;

    // The memory of a file may have become another file. Then that is what the reference is for.
    // SAFETY: A reference to `file` is held, so it is valid.
    if ptr::eq(unsafe { (*file.as_ptr()).private_data }, ptr.cast()) {
        // SAFETY: The reference to the file is the reference to the dma-buf.
        Some(unsafe { ARef::from_raw(NonNull::new_unchecked(ptr.cast())) })
    } else {
        // SAFETY: The reference was taken above.
        unsafe { bindings::fput(file.as_ptr()) };
        None
    }
}

/// What devres owns: dropping it takes all buffers back.
struct Revocation<E: Exporter> {
    registry: Arc<Registry>,
    // Dropped after the buffers were taken back.
    bound: E::Bound<'static>,
}

impl<E: Exporter> Revocation<E> {
    fn for_each(&self, mut f: impl FnMut(&DmaBuf, &Buffer<E>)) {
        let mut after = 0;

        while let Some(buf) = self.registry.next(after) {
            // SAFETY: Only buffers that were exported with the table of `E` are on the list.
            f(&buf, unsafe { Buffer::of(&buf) });
            after = buf.as_raw() as usize;
        }
    }
}

impl<E: Exporter> Drop for Revocation<E> {
    fn drop(&mut self) {
        // All are told before the first is waited for.
        self.for_each(|buf, buffer| buffer.revoke(buf));
        self.for_each(|buf, buffer| {
            // A wait that is not interruptible does not fail.
            let _ = buf.resv().wait(Usage::Bookkeep, false);
            wait_unmapped(buf, buffer);
        });
    }
}

/// Waits until nobody has a mapping of `buf`, and says who has.
fn wait_unmapped<E: Exporter>(buf: &DmaBuf, buffer: &Buffer<E>) {
    let mut mappings = buffer.mappings().lock();

    while *mappings > 0 {
        let count = *mappings;

        drop(mappings);
        report_holders(buf, count);
        mappings = buffer.mappings().lock();

        let mut left = msecs_to_jiffies(REMIND_MS);
        while *mappings > 0 && left > 0 {
            // An uninterruptible sleep would be reported as a hung task.
            match buffer
                .unmapped()
                .wait_interruptible_timeout(&mut mappings, left)
            {
                CondVarTimeoutResult::Woken { jiffies } => left = jiffies,
                CondVarTimeoutResult::Timeout => left = 0,
                CondVarTimeoutResult::Signal { jiffies } => {
                    // The memory must not be given up because of a signal. It stays pending, so
                    // that the next wait would return at once.
                    drop(mappings);
                    fsleep(Delta::from_millis(100));
                    mappings = buffer.mappings().lock();
                    left = jiffies.saturating_sub(msecs_to_jiffies(100));
                }
            }
        }
    }
}

/// Logs which devices are attached to a buffer that is waited for.
#[inline(never)]
fn report_holders(buf: &DmaBuf, count: usize) {
    let _guard = buf.resv().lock();

    pr_notice!("dma-buf: waiting for {count} mappings of a revoked buffer\n");

    // SAFETY: The dma-buf is valid.
    let head = unsafe { &raw mut (*buf.as_raw()).attachments };
    // SAFETY: The list may be read while the reservation is held.
    let mut next = unsafe { (*head).next };
    while !ptr::eq(next, head) {
        // SAFETY: Every element of the list but its head is the `node` of an attachment.
        let raw = unsafe { crate::container_of!(next, bindings::dma_buf_attachment, node) };
        // SAFETY: An attachment on the list is valid, and its device outlives it.
        let dev: &device::Device = unsafe { device::Device::from_raw((*raw).dev) };

        dev_notice!(dev, "holds a revoked dma-buf\n");

        // SAFETY: The list may be read while the reservation is held.
        next = unsafe { (*next).next };
    }
}

/// The buffers that a bound driver has lent.
///
/// `'bound` is the time for which the driver is bound. Dropping the list takes the buffers back and
/// waits until they are; at the latest this happens when the driver is unbound, even if the value
/// was forgotten.
///
/// # Invariants
///
/// `bound` points to the value in `devres`.
pub struct Exports<'bound, E: Exporter> {
    registry: Arc<Registry>,
    bound: NonNull<E::Bound<'static>>,
    _devres: Devres<Revocation<E>>,
    _p: PhantomData<(&'bound (), E::Bound<'bound>)>,
}

// SAFETY: `bound` points to a value that is `Send` and `Sync`.
unsafe impl<E: Exporter> Send for Exports<'_, E> {}

// SAFETY: As for `Send`.
unsafe impl<E: Exporter> Sync for Exports<'_, E> {}

impl<'bound, E: Exporter> Exports<'bound, E> {
    /// Makes an empty list for the driver that is bound to `dev`.
    ///
    /// `bound` makes what the callbacks need of the bound device. It may borrow from the device
    /// only, which is what its generic lifetime says.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out, and what `bound` returns.
    pub fn new<D>(
        dev: &'bound D,
        bound: impl for<'a> FnOnce(&'a D) -> Result<E::Bound<'a>>,
    ) -> Result<Self>
    where
        D: AsRef<device::Device<device::Bound>>,
    {
        let registry = Registry::new()?;

        let value = core::mem::ManuallyDrop::new(bound(dev)?);
        // SAFETY: The lifetime is erased, which does not change the layout; the original is not
        // used again. The value borrows from the device for any lifetime in which it is bound, so
        // it is valid until devres drops it.
        let value = unsafe { core::mem::transmute_copy::<_, E::Bound<'static>>(&value) };

        let devres = Devres::<Revocation<E>>::new::<Error>(
            dev.as_ref(),
            Ok(Revocation {
                registry: registry.clone(),
                bound: value,
            }),
        )?;
        let bound = NonNull::from(&devres.access(dev.as_ref())?.bound);

        // INVARIANT: Devres does not move its value.
        Ok(Self {
            registry,
            bound,
            _devres: devres,
            _p: PhantomData,
        })
    }

    /// Returns what was made for the bound device.
    #[inline]
    pub fn bound(&self) -> &E::Bound<'bound> {
        // SAFETY: By the type invariant the pointer is valid until devres drops the value, which
        // is not before `'bound` ends or `self` is dropped.
        unsafe { self.bound.cast().as_ref() }
    }

    /// Lends a buffer of `size` bytes.
    ///
    /// The buffer has a reservation of its own. `flags` are those of its file: an access mode, such
    /// as `O_RDWR`, and `O_CLOEXEC`.
    ///
    /// Mirrors `dma_buf_export()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0.
    /// - `ENOENT` if the module is being unloaded.
    /// - `ENOMEM` if memory runs out.
    pub fn export(&self, exporter: E, size: usize, flags: u32) -> Result<ARef<DmaBuf>> {
        // SAFETY: Without a reservation the buffer gets its own.
        unsafe { self.export_with_resv(exporter, size, flags, ptr::null_mut()) }
    }

    /// Lends a buffer that shares the reservation of another object.
    ///
    /// # Safety
    ///
    /// `resv` must be null, or point to a reservation that stays valid until `exporter` is dropped.
    pub(crate) unsafe fn export_with_resv(
        &self,
        exporter: E,
        size: usize,
        flags: u32,
        resv: *mut bindings::dma_resv,
    ) -> Result<ARef<DmaBuf>> {
        if size == 0 {
            return Err(EINVAL);
        }

        // SAFETY: When the value that `bound` points to is dropped, devres revokes all buffers on
        // the list before; the buffer is on it below, and nobody else has it until then.
        let buffer = unsafe { Buffer::new(exporter, self.registry.clone(), self.bound) }?;
        // SAFETY: The value is not moved: it stays in its box until the release.
        let buffer = KBox::into_raw(unsafe { Pin::into_inner_unchecked(buffer) });

        let info = bindings::dma_buf_export_info {
            exp_name: E::NAME.as_char_ptr(),
            owner: this_module::<E::OwnerModule>().as_ptr(),
            ops: E::ops().as_raw(),
            size,
            // CAST: Flags of `open()` fit an `int`.
            flags: flags as i32,
            resv,
            priv_: buffer.cast(),
        };

        // SAFETY: `info` is complete; the table outlives the buffer, as it is static and the buffer
        // holds a reference to the module.
        let raw = match from_err_ptr(unsafe { bindings::dma_buf_export(&info) }) {
            Ok(raw) => raw,
            Err(e) => {
                // SAFETY: The box was not taken over.
                drop(unsafe { KBox::from_raw(buffer) });
                return Err(e);
            }
        };

        // SAFETY: The pointer is valid and comes with a reference.
        let buf = unsafe { ARef::<DmaBuf>::from_raw(NonNull::new_unchecked(raw.cast())) };

        // On failure the buffer goes away again; nobody has seen it.
        self.registry.insert(raw)?;
        Ok(buf)
    }
}
