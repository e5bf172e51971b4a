// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows of an [`Aperture`] for peer and CPU access to objects in VRAM.
//!
//! An object has at most one window, for its place in VRAM. Its holders are:
//!
//! - Importers: from the first mapping until the last mapping that was not invalidated is unmapped.
//! - Page faults: from the first one until the page table entries are zapped. This happens if the
//!   object moves or is freed, if the device is suspended or unplugged, or if the window is
//!   evicted. Unmapping the object from a process is not enough.
//! - Kernel mappings: each until it is unmapped. The object is pinned for the same time.
//!
//! The first holder creates the window, the others share it, and it is closed with the last one. If
//! the aperture is full, windows are evicted, the least recently used first:
//!
//! 1. Windows held only by page faults. The page table entries for them are zapped and the next
//!    access creates another window.
//! 2. Windows of importers without a pin of the object, idle ones first. The importers are
//!    invalidated and their work in progress is waited for. The next use maps the object again.
//!
//! So neither an importer nor a single access of a process keeps the aperture from others. Pinned
//! windows stay. So do the windows of objects that an importer uses together with the object and
//! has reserved with it. If nothing can be evicted, an importer and a kernel mapping get `ENOSPC`
//! unless the object can move to system memory. A page fault moves it there or ends in `SIGBUS`.
//!
//! An importer that is not done with its window in time loses it later. The window is not shared
//! any more, so the importer waits for its own work before it has another one.
//!
//! If one instruction of a process accesses two objects, it makes no progress while the aperture
//! has room for only one of them: each fault evicts the other window. The process can be killed.
//!
//! The windows of importers and kernel mappings stay while the device is suspended. If the device
//! then loses the entries of the aperture, its driver writes them again at the resume.
//!
//! # Locking
//!
//! The reservation of the object is held when its window is created, shared and closed. An eviction
//! only tries to take the reservation of the other object, unless the same task has it already.
//! [`Maker`] comes after the reservation. Importers are invalidated with it, so an importer must
//! not map a buffer while it holds a lock that its invalidation takes. Only two cases close a
//! window without the reservation, which another task may have: the free of an object, and an
//! unplug for the remaining windows.
//!
//! Mirrors `nouveau_ttm_io_mem_reserve()`, which evicts under a mutex taken by each fault.
//!
//! [`Aperture`]: crate::drm::gem::aperture::Aperture

use super::{
    list::{
        Maker,
        NewEntry,
        Shared, //
    },
    ApertureHook,
    Holder,
    Wait,
    Windows, //
};
use crate::{
    bindings,
    dma_buf::exporter::{
        self,
        mapping::RangeList, //
    },
    dma_resv::DmaResv,
    drm::{
        self,
        gem::{
            BaseObject,
            DriverObject,
            LockedObject, //
        },
        vram::Ranges, //
    },
    prelude::*,
    sync::{
        aref::{
            ARef,
            AlwaysRefCounted, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Jiffies,
        Msecs, //
    }, //
};
use core::ptr::NonNull;

/// How often a task retries while other tasks are in its way.
const PATIENCE: usize = 32;

/// How long an eviction waits for the work of importers in milliseconds.
const IMPORTERS: Msecs = 5_000;

/// The same for a page fault. An unplug waits for page faults.
const IMPORTERS_OF_FAULT: Msecs = 50;

/// A class of objects with windows.
///
/// # Safety
///
/// - [`Self::buffer`] returns null or the dma-buf of the object, which is of an exporter in Rust
///   and shares the reservation of the object.
/// - [`Self::object_at`] returns objects of the same device.
/// - The holders of a window change with the reservation of its object held unless the object is
///   being freed or the device is unplugged.
pub(in crate::drm::gem) unsafe trait Windowed:
    BaseObject + AlwaysRefCounted
{
    /// The driver's part of an object.
    type Data: DriverObject;

    /// The driver's functions.
    const HOOK: ApertureHook<Self::Data>;

    /// Returns the windows of the device.
    fn windows(&self) -> &Windows;

    /// Returns the number of the object, its key in the list of windows.
    fn number(&self) -> u64;

    /// Returns the object of the device with a number unless it is being freed.
    fn object_at(&self, number: u64) -> Option<ARef<Self>>;

    /// Returns where in VRAM the object is.
    fn place<'a>(object: &'a LockedObject<'_, Self>) -> Option<&'a Ranges>;

    /// Returns the dma-buf of the object.
    fn buffer(object: &LockedObject<'_, Self>) -> *mut bindings::dma_buf;

    /// Returns whether the kernel or an importer has pinned the object.
    fn is_fixed(object: &LockedObject<'_, Self>) -> bool;

    /// Waits at most `limit` for work of importers on the object. Interruptible for a page fault.
    ///
    /// # Errors
    ///
    /// `ETIME` if it is not done then and `ERESTARTSYS` if a signal arrived.
    fn await_importers(object: &LockedObject<'_, Self>, limit: Jiffies, wait: Wait) -> Result;

    /// Traces an invalidation of the importers.
    fn trace_invalidation(object: &LockedObject<'_, Self>);

    /// Removes the object from the page tables of processes.
    fn zap(object: &LockedObject<'_, Self>) {
        let _ = object;
    }
}

/// Why an object has no window.
pub(in crate::drm::gem) enum NoWindow {
    /// The aperture is full.
    Full,
    /// Other tasks have reserved or use the objects with evictable windows, or are creating
    /// windows, or the device is busy.
    Busy,
    /// The driver cannot create the window or memory has run out.
    Failed(Error),
}

impl From<NoWindow> for Error {
    /// Converts the error for a caller at the end of its wait for other tasks.
    fn from(why: NoWindow) -> Error {
        match why {
            NoWindow::Full => ENOSPC,
            NoWindow::Busy => ETIMEDOUT,
            NoWindow::Failed(e) => e,
        }
    }
}

/// The result of an attempt to evict a window.
enum Eviction {
    /// A window was evicted and there is more room.
    Done,
    /// Other tasks have reserved or use the objects with evictable windows.
    Busy,
    /// There is no evictable window.
    Nothing,
}

/// The windows searched in turn for one to evict.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Windows held only by page faults.
    Faults,
    /// Windows of idle importers.
    Idle,
    /// Windows of importers.
    Importers,
}

/// Returns the device of an object.
fn device<O: Windowed>(obj: &O) -> &drm::Device<<O::Data as DriverObject>::Driver> {
    // SAFETY: The device of a valid object is valid and of this driver.
    unsafe { drm::Device::from_raw((*obj.as_raw()).dev) }
}

/// Returns the ranges of the window of an object in VRAM: its present window or a new one. `holder`
/// becomes a holder of it. Sleeps.
///
/// Waits for some time for other tasks that block an eviction.
///
/// # Errors
///
/// - `ENOSPC` if the aperture is full.
/// - `ETIMEDOUT` if other tasks or the device are in the way for too long.
/// - `EINVAL` if the object is not in VRAM.
/// - `ENODEV` if the driver is not bound any more.
/// - `ENOMEM` and those of the driver.
pub(in crate::drm::gem) fn window<O: Windowed>(
    object: &LockedObject<'_, O>,
    holder: Holder,
) -> Result<Arc<RangeList>> {
    for attempt in 0..PATIENCE {
        match try_window(object, holder, Wait::Long) {
            Err(NoWindow::Busy) => fsleep(Delta::from_millis(1 << attempt.min(3))),
            ret => return Ok(ret?),
        }
    }
    Ok(try_window(object, holder, Wait::Long)?)
}

/// As [`window`], but with a single attempt.
pub(in crate::drm::gem) fn try_window<O: Windowed>(
    object: &LockedObject<'_, O>,
    holder: Holder,
    wait: Wait,
) -> Result<Arc<RangeList>, NoWindow> {
    let (windows, id) = (object.obj.windows(), object.obj.number());
    let vram = O::place(object).ok_or(NoWindow::Failed(EINVAL))?;

    match windows.hold(id, holder) {
        Shared::Window(ranges) => return Ok(ranges),
        Shared::Nothing => (),
        Shared::Condemned => {
            await_importers(object, wait)?;
            leave(object);
            // The task that has waited longer for the room comes first.
            return Err(NoWindow::Busy);
        }
    }

    let mut new = Some(NewEntry::reserve().map_err(NoWindow::Failed)?);
    // The last reference to an object may wait for its work. Others must not wait for that.
    let mut passed = KVec::new();
    let mut maker = match wait {
        // It can be tried again.
        Wait::Short => windows.try_maker().ok_or(NoWindow::Busy)?,
        Wait::Long => windows.maker(),
    };
    if windows.is_closed() {
        return Err(NoWindow::Busy);
    }

    loop {
        let mut made = None;
        let ret = O::HOOK.map(device(object.obj), vram, wait, &mut |open| {
            if let Some(new) = new.take() {
                made = Some(open.ranges.clone());
                maker.add(id, open, holder, new);
            }
        });

        match (ret, made) {
            (Ok(()), Some(ranges)) => return Ok(ranges),
            (Ok(()), None) => return Err(NoWindow::Failed(EINVAL)),
            // Evicting other windows does not help.
            (Err(e), _) if e == E2BIG => return Err(NoWindow::Full),
            (Err(e), _) if e == ENOSPC => (),
            (Err(e), _) if e == EBUSY => return Err(NoWindow::Busy),
            (Err(e), _) => return Err(NoWindow::Failed(e)),
        }

        match evict(object, &mut maker, &mut passed, wait)? {
            Eviction::Done => (),
            Eviction::Busy => return Err(NoWindow::Busy),
            Eviction::Nothing if maker.is_about_to_grow() => return Err(NoWindow::Busy),
            Eviction::Nothing => return Err(NoWindow::Full),
        }
    }
}

/// Evicts the least recently used window held only by page faults, or else the least recently used
/// one of importers. The visited objects are added to `passed`.
fn evict<O: Windowed>(
    object: &LockedObject<'_, O>,
    maker: &mut Maker<'_>,
    passed: &mut KVec<ARef<O>>,
    wait: Wait,
) -> Result<Eviction, NoWindow> {
    let mut ret = Eviction::Nothing;
    // Other tasks may use windows again as fast as this visits them.
    let newest = maker.last_use();

    for turn in [Turn::Faults, Turn::Idle, Turn::Importers] {
        let mut after = 0;

        while let Some((id, used)) = maker.least_recently_used(turn != Turn::Faults, after) {
            if used > newest {
                return Ok(Eviction::Busy);
            }
            after = used;

            passed
                .reserve(1, GFP_KERNEL)
                .map_err(|e| NoWindow::Failed(e.into()))?;
            // An object that is being freed loses its window soon.
            let Some(other) = object.obj.object_at(id) else {
                ret = Eviction::Busy;
                continue;
            };
            let evicted = evict_window_of(object, &other, maker, turn, wait);

            // There is room.
            let _ = passed.push(other, GFP_KERNEL);
            match evicted? {
                Eviction::Done => return Ok(Eviction::Done),
                Eviction::Busy => ret = Eviction::Busy,
                Eviction::Nothing => (),
            }
        }
    }
    Ok(ret)
}

/// Evicts the window of another object. Windows of importers stay if the importers have pinned the
/// object or use it together with the object that the window is for.
///
/// # Errors
///
/// [`NoWindow`] if importers are not done with the window. It is not shared any more.
fn evict_window_of<O: Windowed>(
    object: &LockedObject<'_, O>,
    other: &O,
    maker: &mut Maker<'_>,
    turn: Turn,
    wait: Wait,
) -> Result<Eviction, NoWindow> {
    // SAFETY: The reservations of valid objects are valid.
    let (resv, own) = unsafe {
        (
            DmaResv::from_raw((*other.as_raw()).resv),
            DmaResv::from_raw((*object.obj.as_raw()).resv),
        )
    };
    // Private objects may share a reservation.
    let is_held = core::ptr::eq(resv, own) || resv.is_locked_with(own);
    let _guard = if is_held {
        None
    } else {
        match resv.try_lock() {
            Some(guard) => Some(guard),
            None => return Ok(Eviction::Busy),
        }
    };
    // SAFETY: The reservation is held until the end of the function: by the guard, or by the caller
    // with both objects reserved.
    let held = unsafe { LockedObject::assume(other) };

    // The holders may have changed before.
    match maker.holders(other.number()) {
        Some((_, true)) => return Ok(Eviction::Nothing),
        Some((true, false)) => {
            if turn == Turn::Faults {
                return Ok(Eviction::Busy);
            }
            // A caller that uses both at once would evict them by turns for ever.
            if is_held || O::is_fixed(&held) {
                return Ok(Eviction::Nothing);
            }
            if turn == Turn::Idle && O::await_importers(&held, 0, wait).is_err() {
                return Ok(Eviction::Busy);
            }
            O::zap(&held);
            invalidate(&held);
            if let Err(why) = await_importers(&held, wait) {
                maker.condemn(other.number());
                return Err(why);
            }
        }
        Some((false, false)) => O::zap(&held),
        None => return Ok(Eviction::Busy),
    }
    leave(&held);
    Ok(Eviction::Done)
}

/// Invalidates the importers of an object.
fn invalidate<O: Windowed>(object: &LockedObject<'_, O>) {
    if let Some(buf) = NonNull::new(O::buffer(object)) {
        O::trace_invalidation(object);
        // SAFETY: It is the dma-buf of the object. They share the reservation, which is held.
        unsafe { bindings::dma_buf_invalidate_mappings(buf.as_ptr()) };
    }
}

/// Waits for the work of invalidated importers.
fn await_importers<O: Windowed>(object: &LockedObject<'_, O>, wait: Wait) -> Result<(), NoWindow> {
    let limit = match wait {
        Wait::Long => IMPORTERS,
        Wait::Short => IMPORTERS_OF_FAULT,
    };

    O::await_importers(object, msecs_to_jiffies(limit), wait).map_err(|_| match wait {
        Wait::Long => NoWindow::Failed(ETIMEDOUT),
        Wait::Short => NoWindow::Busy,
    })
}

/// Closes the window of an object after its last access. Importers may not have unmapped it yet.
fn leave<O: Windowed>(object: &LockedObject<'_, O>) {
    if let Some(buf) = NonNull::new(O::buffer(object)) {
        // SAFETY: It is the dma-buf of the object. They share the reservation, which is held. The
        // memory is still there.
        unsafe { exporter::retire(buf.as_ptr()) };
    }
    // An importer that unmapped during the invalidation has closed the window.
    close(object.obj);
}

/// Removes a holder of the window of an object. The window is closed with the last one. Sleeps.
pub(in crate::drm::gem) fn release<O: Windowed>(obj: &O, holder: Holder) {
    O::HOOK.close(device(obj), obj.windows(), obj.number(), Some(holder));
}

/// Closes the window of an object that leaves its place or is freed. The window is not accessed any
/// more. Sleeps.
pub(in crate::drm::gem) fn close<O: Windowed>(obj: &O) {
    O::HOOK.close(device(obj), obj.windows(), obj.number(), None);
}
