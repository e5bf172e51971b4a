// SPDX-License-Identifier: GPL-2.0

//! The buffers exported by a bound driver.
//!
//! A dma-buf lives as long as its file, so it may outlive the exporting driver: importers may hold
//! addresses of a device that is going away. [`Exports`] is the list of a driver's buffers. When it
//! is dropped or the driver is unbound, all of them are revoked:
//!
//! 1. New attachments, pins and mappings fail (`ENODEV`).
//! 2. Pages mapped by processes are unmapped and the mappings of importers are invalidated.
//! 3. The driver waits for the fences of work on the buffers.
//! 4. The driver waits for mappings of the device's own memory without a limit: a non-revocable
//!    importer, such as most RDMA devices, keeps its addresses until it is done. A message names
//!    it. A PCI device removed by surprise accesses nothing any more, so mappings still held by its
//!    driver are not waited for.
//!
//! System memory stays as long as the buffer, so its mappings are not waited for.
//!
//! # Locking
//!
//! No other lock is taken under the list's mutex. The list owns no references to the buffers: a
//! buffer removes itself from the list before it is freed and waits for a revocation working on it.
//! The list is linked through the buffers, so that adding a buffer needs no memory.

use super::{
    buffer::{
        links_of,
        Buffer, //
    },
    user::UserMappings,
    BoundOf,
    Exporter, //
};
use crate::dma_buf::DmaBuf;
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
use crate::pci;
use crate::{
    bindings,
    device,
    devres::{
        Early,
        Turn, //
    },
    dma_resv::Usage,
    error::from_err_ptr,
    module::this_module,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    },
    types::CovariantForLt, //
};
use core::{
    cell::Cell,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};

/// The interval in milliseconds between checks for importers removed by surprise during the wait
/// for mappings: such a removal ends no mapping.
const LOOK_MS: u32 = 2_000;
/// The time in milliseconds from the first message about an importer to the next. It doubles with
/// each message up to the maximum.
const REMIND_MS: i64 = 10_000;
const REMIND_MAX_MS: i64 = 600_000;

/// The place of a buffer on a list. Guarded by the mutex of the list.
pub(super) struct Links {
    previous: Cell<*mut bindings::dma_buf>,
    next: Cell<*mut bindings::dma_buf>,
    /// How many [`Kept`] keep the buffer from being freed.
    held: Cell<usize>,
}

impl Links {
    pub(super) const fn new() -> Self {
        Self {
            previous: Cell::new(ptr::null_mut()),
            next: Cell::new(ptr::null_mut()),
            held: Cell::new(0),
        }
    }
}

/// The first buffer of a list, or null.
///
/// # Invariants
///
/// All buffers linked from it by [`Links`] are valid and were exported by [`Exports`] of the same
/// list. They are linked in both directions.
struct First(*mut bindings::dma_buf);

// SAFETY: The buffers and their links may be used from any task holding the mutex of the list.
unsafe impl Send for First {}

/// A list of dma-bufs with the youngest first.
#[pin_data]
pub(super) struct Registry {
    #[pin]
    first: Mutex<First>,

    /// Woken when a [`Kept`] is dropped and no longer keeps its buffer from being freed.
    #[pin]
    released: CondVar,

    /// Whether the buffers were revoked.
    closed: Atomic<bool>,

    /// Taken to wait for `unmapped`; nests in no other lock than a reservation.
    #[pin]
    waiting: Mutex<()>,

    /// Woken when the last mapping of a revoked buffer is gone.
    #[pin]
    unmapped: CondVar,
}

impl Registry {
    /// Not inlined into modules: the names of the lock classes stay at one address.
    #[inline(never)]
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                // INVARIANT: There is no buffer.
                first <- crate::new_mutex!(First(ptr::null_mut()), "dma_buf::Registry"),
                released <- crate::new_condvar!("dma_buf::Registry::released"),
                closed: Atomic::new(false),
                waiting <- crate::new_mutex!((), "dma_buf::Registry::waiting"),
                unmapped <- crate::new_condvar!("dma_buf::Registry::unmapped"),
            }),
            GFP_KERNEL,
        )
    }

    /// Puts a buffer on the list.
    ///
    /// # Safety
    ///
    /// `buf` must be a buffer created for this list and must be on no list. It must stay valid
    /// until [`Self::remove`].
    unsafe fn insert(&self, buf: *mut bindings::dma_buf) {
        let mut first = self.first.lock();
        let next = first.0;

        // INVARIANT: The buffer is linked to the one after it and is the first.
        // SAFETY: As promised by the caller and by the type invariant; the mutex is held.
        unsafe {
            links_of(buf).next.set(next);
            if !next.is_null() {
                links_of(next).previous.set(buf);
            }
        }
        first.0 = buf;
    }

    /// Removes a buffer from the list.
    ///
    /// Called during the release of the buffer before any part of it is freed. Waits for a
    /// revocation working on the buffer. This revocation does not wait for mappings because the
    /// last of them is gone before the release.
    ///
    /// # Safety
    ///
    /// The buffer must be on the list.
    pub(super) unsafe fn remove(&self, buf: *mut bindings::dma_buf) {
        let mut first = self.first.lock();
        // SAFETY: As promised by the caller; the links are only accessed with the mutex held.
        let links = unsafe { links_of(buf) };

        while links.held.get() != 0 {
            self.released.wait(&mut first);
        }

        let (previous, next) = (links.previous.get(), links.next.get());
        // INVARIANT: The neighbours of the buffer are linked to each other.
        // SAFETY: By the type invariant they are valid.
        unsafe {
            if previous.is_null() {
                first.0 = next;
            } else {
                links_of(previous).next.set(next);
            }
            if !next.is_null() {
                links_of(next).previous.set(previous);
            }
        }
    }

    /// Returns the buffer following `after`, or the first one, and keeps it from being freed.
    ///
    /// A reference cannot be taken: the file of a buffer may be gone while an `O_PATH` descriptor
    /// keeps the dentry and so the buffer.
    fn next(&self, after: Option<&Kept<'_>>) -> Option<Kept<'_>> {
        let first = self.first.lock();
        let buf = match after {
            None => first.0,
            // SAFETY: By the type invariant it is on the list; the mutex is held.
            Some(held) => unsafe { links_of(held.buf) }.next.get(),
        };
        if buf.is_null() {
            return None;
        }

        // SAFETY: By the type invariant it is valid; the mutex is held.
        let links = unsafe { links_of(buf) };
        links.held.set(links.held.get() + 1);
        // INVARIANT: The buffer was just marked as kept once more.
        Some(Kept {
            registry: self,
            buf,
        })
    }

    /// Wakes the wait for the mappings of a buffer: the last one is gone.
    pub(super) fn wake_waiter(&self) {
        // The waiter rechecks the count of mappings under this lock.
        let _guard = self.waiting.lock();

        self.unmapped.notify_all();
    }
}

/// A buffer on a list, kept from being freed.
///
/// # Invariants
///
/// `buf` is a dma-buf on the list of `registry`, and marked as kept.
struct Kept<'a> {
    registry: &'a Registry,
    buf: *mut bindings::dma_buf,
}

impl Kept<'_> {
    fn buf(&self) -> &DmaBuf {
        // SAFETY: By the type invariant the release of the buffer has not got past
        // `Registry::remove()`, so all of it is valid. No `ARef` is created from the reference.
        unsafe { DmaBuf::from_raw(self.buf) }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let first = self.registry.first.lock();

        // SAFETY: By the type invariant it is on the list; the mutex is held.
        let links = unsafe { links_of(self.buf) };
        links.held.set(links.held.get() - 1);
        drop(first);
        self.registry.released.notify_all();
    }
}

/// The value owned by devres. Dropping it revokes all buffers before devres releases any resource
/// that a callback of a buffer could use.
struct Revocation<E: Exporter> {
    dev: ARef<device::Device>,
    registry: Arc<Registry>,
    // Dropped after the buffers were revoked.
    bound: BoundOf<'static, E>,
}

// SAFETY: `Exports::new()` creates the value and requires `bound` to be `Send`; the other fields
// are.
unsafe impl<E: Exporter> Send for Revocation<E> {}

// SAFETY: As for `Send`, of `Sync`.
unsafe impl<E: Exporter> Sync for Revocation<E> {}

impl<E: Exporter> Revocation<E> {
    fn for_each(&self, mut f: impl FnMut(&DmaBuf, &Buffer<E>)) {
        let mut next = self.registry.next(None);

        while let Some(held) = next {
            // SAFETY: Only buffers exported with the table of `E` are on the list.
            f(held.buf(), unsafe { Buffer::of(held.buf()) });
            // A kept buffer stays on the list.
            next = self.registry.next(Some(&held));
        }
    }

    /// Waits until there is no mapping of `buf` and logs the importers that have one.
    fn wait_unmapped(&self, buf: &DmaBuf, buffer: &Buffer<E>) {
        let (waiter, unmapped) = (&self.registry.waiting, &self.registry.unmapped);
        let since = Instant::<Monotonic>::now();
        let (mut remind, mut remind_at) = (REMIND_MS, 0);
        let mut waiting = waiter.lock();

        while buffer.mappings() > 0 {
            drop(waiting);
            let waited = since.elapsed();
            let is_due = waited.as_millis() >= remind_at;
            if is_due {
                remind_at = waited.as_millis() + remind;
                remind = (remind * 2).min(REMIND_MAX_MS);
            }
            if !has_holders(&self.dev, buf, buffer, is_due.then_some(waited)) {
                return;
            }
            waiting = waiter.lock();

            let mut left = msecs_to_jiffies(LOOK_MS);
            while buffer.mappings() > 0 && left > 0 {
                // An uninterruptible sleep would be reported as a hung task.
                match unmapped.wait_interruptible_timeout(&mut waiting, left) {
                    CondVarTimeoutResult::Woken { jiffies } => left = jiffies,
                    CondVarTimeoutResult::Timeout => left = 0,
                    CondVarTimeoutResult::Signal { jiffies } => {
                        // The memory must not be released because of a signal. The signal stays
                        // pending, so the next wait would return at once.
                        drop(waiting);
                        fsleep(Delta::from_millis(100));
                        waiting = waiter.lock();
                        left = jiffies.saturating_sub(msecs_to_jiffies(100));
                    }
                }
            }
        }
    }

    fn close(&self) {
        self.registry.closed.store(true, Relaxed);
        self.revoke_all();
    }

    /// Revokes all buffers on the list and waits until they are unmapped.
    fn revoke_all(&self) {
        // All buffers are revoked before the first wait.
        self.for_each(|buf, buffer| buffer.revoke(buf));
        self.for_each(|buf, buffer| {
            // A wait that is not interruptible does not fail.
            let _ = buf.resv().wait(Usage::Bookkeep, false);
            self.wait_unmapped(buf, buffer);
        });
    }
}

impl<E: Exporter> Drop for Revocation<E> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns whether a device was removed by surprise and so accesses nothing any more.
#[cfg(all(CONFIG_PCI, CONFIG_64BIT))]
fn is_disconnected(dev: &device::Device) -> bool {
    <&pci::Device>::try_from(dev).is_ok_and(pci::Device::is_disconnected)
}

/// Returns false: only PCI reports a surprise removal.
#[cfg(not(all(CONFIG_PCI, CONFIG_64BIT)))]
fn is_disconnected(_dev: &device::Device) -> bool {
    false
}

/// Returns whether a buffer of `dev` has mappings to wait for. If `waited` is given, logs their
/// holders and the time waited so far.
fn has_holders<E: Exporter>(
    dev: &device::Device,
    buf: &DmaBuf,
    buffer: &Buffer<E>,
    waited: Option<Delta>,
) -> bool {
    let _guard = buf.resv().lock();
    let size = buf.size();
    let mut others = buffer.mappings();
    let mut waits = false;
    let mut log = |name: &CStr| {
        waits = true;
        if let Some(waited) = waited {
            dev_notice!(
                dev,
                "waiting for {}, which has mapped a revoked dma-buf of {} bytes, since {} s\n",
                name,
                size,
                waited.as_millis() / 1000
            );
        }
    };

    // SAFETY: The reservation is held, and `buffer` belongs to `buf`.
    for at in unsafe { buffer.attachments(buf) } {
        let maps = at.peer_maps();

        others = others.saturating_sub(maps);
        if maps > 0 && !is_disconnected(at.device()) {
            log(at.device().name());
        }
    }
    if others > 0 {
        log(c"the kernel (vmap)");
    }
    waits
}

/// The buffers exported by a bound driver.
///
/// `'bound` is the lifetime of the driver's binding. Dropping the list revokes the buffers and
/// waits until they are unmapped. At the latest this happens when the driver is unbound, even if
/// the value was forgotten.
///
/// # Invariants
///
/// `bound` points to the value in `revocation`.
pub struct Exports<'bound, E: Exporter> {
    registry: Arc<Registry>,
    bound: NonNull<BoundOf<'static, E>>,
    revocation: Early<Revocation<E>>,
    _p: PhantomData<(&'bound (), BoundOf<'bound, E>)>,
}

// SAFETY: `bound` points to a value that is `Send` and `Sync`.
unsafe impl<E: Exporter> Send for Exports<'_, E> {}

// SAFETY: As for `Send`.
unsafe impl<E: Exporter> Sync for Exports<'_, E> {}

impl<'bound, E: Exporter> Exports<'bound, E> {
    /// Creates an empty list for the driver bound to `dev`.
    ///
    /// `bound` creates the data of the bound device for the callbacks. By its generic lifetime it
    /// may borrow from the device only.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out, and the errors of `bound`.
    pub fn new<D>(
        dev: &'bound D,
        bound: impl for<'a> FnOnce(&'a D) -> Result<BoundOf<'a, E>>,
    ) -> Result<Self>
    where
        D: device::AsBusDevice<device::Bound>,
        for<'a> BoundOf<'a, E>: Send + Sync,
    {
        let registry = Registry::new()?;

        let value = core::mem::ManuallyDrop::new(bound(dev)?);
        // SAFETY: Erasing the lifetime does not change the layout; the original is not used again.
        // The value borrows from the bus device only. This device is bound and valid until devres
        // drops the value.
        let value = unsafe { core::mem::transmute_copy::<_, BoundOf<'static, E>>(&value) };

        let revocation = Early::<Revocation<E>>::new::<Error>(
            dev.as_ref(),
            Turn::Callbacks,
            Ok(Revocation {
                dev: {
                    let dev: &device::Device = dev.as_ref();
                    dev.into()
                },
                registry: registry.clone(),
                bound: value,
            }),
        )?;
        // SAFETY: The value was just created and does not move.
        let bound = NonNull::from(unsafe { &(*revocation.as_ptr()).bound });

        // INVARIANT: As above.
        Ok(Self {
            registry,
            bound,
            revocation,
            _p: PhantomData,
        })
    }

    /// Turns the list into a handle for code outside of the driver's callbacks, such as the file
    /// operations of a misc device.
    ///
    /// Its buffers are still revoked when the driver is unbound.
    pub fn into_handle(self) -> ExportsHandle<E> {
        ExportsHandle(Exports {
            registry: self.registry,
            bound: self.bound,
            revocation: self.revocation,
            _p: PhantomData,
        })
    }

    /// Revokes the buffers and waits until they are unmapped, as the drop does. No other buffer may
    /// be exported.
    pub(crate) fn close(&self) {
        // SAFETY: By the type invariant the value is valid until devres drops it. Devres does so
        // after `'bound` has ended or when `self` is dropped.
        unsafe { &*self.revocation.as_ptr() }.close();
    }

    /// Returns the data of the bound device.
    #[inline]
    pub fn bound<'a>(&'a self) -> &'a BoundOf<'a, E> {
        // SAFETY: By the type invariant the pointer is valid until devres drops the value. Devres
        // does so after `'bound` has ended or when `self` is dropped.
        E::Bound::cast_ref(unsafe { self.bound.cast::<BoundOf<'bound, E>>().as_ref() })
    }

    /// Exports a buffer of `size` bytes.
    ///
    /// The buffer has a reservation of its own. `flags` are those of its file: an access mode (such
    /// as `O_RDWR`) and `O_CLOEXEC`.
    ///
    /// Mirrors `dma_buf_export()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `size` is 0 or not a multiple of the page size.
    /// - `ENOENT` if the module is being unloaded.
    /// - `ENOMEM` if memory runs out.
    pub fn export(&self, exporter: E, size: usize, flags: u32) -> Result<ARef<DmaBuf>> {
        // SAFETY: Without a reservation the buffer gets its own.
        unsafe { self.export_with_resv(exporter, size, flags, ptr::null_mut()) }
    }

    /// Exports a buffer sharing the reservation of another object.
    ///
    /// # Safety
    ///
    /// `resv` must be null or point to a reservation that stays valid until `exporter` is dropped.
    pub(crate) unsafe fn export_with_resv(
        &self,
        exporter: E,
        size: usize,
        flags: u32,
        resv: *mut bindings::dma_resv,
    ) -> Result<ARef<DmaBuf>> {
        if size == 0 || size % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }

        // SAFETY: Devres revokes all buffers on the list before it drops the value behind `bound`.
        // The buffer is put on the list below and is not given out until then.
        let buffer = unsafe { Buffer::new(exporter, self.registry.clone(), self.bound) }?;
        // SAFETY: The value is not moved: it stays in its box until the release.
        let buffer = KBox::into_raw(unsafe { Pin::into_inner_unchecked(buffer) });

        let info = bindings::dma_buf_export_info {
            exp_name: E::NAME.as_char_ptr(),
            owner: this_module::<E::OwnerModule>().as_ptr(),
            ops: E::OPS.as_raw(),
            size,
            // CAST: Flags of `open()` fit an `int`.
            flags: flags as i32,
            resv,
            priv_: buffer.cast(),
        };

        // SAFETY: `info` is complete. The table outlives the buffer because it is static and the
        // buffer holds a reference to the module.
        let raw = match from_err_ptr(unsafe { bindings::dma_buf_export(&info) }) {
            Ok(raw) => raw,
            Err(e) => {
                // SAFETY: The core has not taken over the box.
                drop(unsafe { KBox::from_raw(buffer) });
                return Err(e);
            }
        };

        // SAFETY: The pointer is valid and comes with a reference.
        let buf = unsafe { ARef::<DmaBuf>::from_raw(NonNull::new_unchecked(raw.cast())) };

        if E::HAS_PAGES {
            // SAFETY: The buffer was just exported with the table of `E`.
            unsafe { Buffer::<E>::of(&buf) }
                .user
                .populate(UserMappings::new(&buf));
        }

        // SAFETY: The buffer was created for this list above and its release removes it.
        unsafe { self.registry.insert(raw) };
        Ok(buf)
    }
}

/// The buffers exported by a driver. It may export more while it is bound.
///
/// # Examples
///
/// ```
/// use kernel::{
///     dma_buf::{
///         exporter::{
///             exports::ExportsHandle,
///             Exporter, //
///         },
///         DmaBuf, //
///     },
///     prelude::*,
///     sync::aref::ARef, //
/// };
///
/// /// Serves an ioctl: exports a page.
/// fn export<E: Exporter>(exports: &ExportsHandle<E>, page: E) -> Result<ARef<DmaBuf>> {
///     exports.with(|exports| exports.export(page, kernel::page::PAGE_SIZE, 0))
/// }
/// ```
pub struct ExportsHandle<E: Exporter>(
    // Private, because this lifetime is not that of the binding: `with()` gives the list out.
    Exports<'static, E>,
);

impl<E: Exporter> ExportsHandle<E> {
    /// Calls `f` with the list if the driver is bound, and holds off its unbind meanwhile.
    ///
    /// Takes the device lock; see [`Device::with_bound`](device::Device::with_bound) for where this
    /// is not possible.
    ///
    /// # Errors
    ///
    /// - `ERESTARTSYS` if a signal arrived during the wait for the device lock.
    /// - `ENODEV` if the driver was unbound, and the errors of `f`.
    pub fn with<R>(&self, f: impl FnOnce(&Exports<'_, E>) -> Result<R>) -> Result<R> {
        self.0.revocation.device().with_bound_by_any(|_bound| {
            // The device may be bound again, but the list belongs to the binding before.
            if self.0.registry.closed.load(Relaxed) {
                return Err(ENODEV);
            }

            // `f` gets a reference with the lifetime of this call. The device is bound for this
            // time: buffers are revoked with the device lock held, and these were not revoked.
            f(&self.0)
        })
    }

    /// Returns whether no buffer may be exported any more because the driver was unbound.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.0.registry.closed.load(Relaxed)
    }

    /// Returns the list without checking that the driver is bound.
    ///
    /// # Safety
    ///
    /// The binding for which the list was created must not end before the reference. No buffer may
    /// be exported once the list was closed.
    pub(crate) unsafe fn assume_bound(&self) -> &Exports<'static, E> {
        &self.0
    }

    /// Revokes the buffers exported so far and waits until they are unmapped, before a reset of the
    /// device. Others may be exported after the reset.
    ///
    /// The context `Core` proves that the device lock is held. This lock holds off [`Self::with`]
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the list is that of another device.
    /// - `ENODEV` if the driver was unbound.
    pub fn revoke(&self, dev: &device::Device<device::Core<'_>>) -> Result {
        self.0.revocation.access(dev)?.revoke_all();
        Ok(())
    }
}
