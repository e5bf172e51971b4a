// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Windows of an [`Aperture`] through which peers and the CPU see objects in VRAM.
//!
//! An object has at most one window, for its place in VRAM. Its holders are:
//!
//! - importers, from the first mapping until the last one that was not invalidated is unmapped,
//! - page faults: from the first one until the entries of page tables are zapped, which happens if
//!   the object moves, or is freed, if the device is suspended or unplugged, or if the window is
//!   evicted; unmapping the object from a process is not enough,
//! - mappings of the kernel, each until it is unmapped. The object is pinned for the same time.
//!
//! The first holder makes the window, the others share it, and it is closed with the last one. If
//! the aperture is full, windows are evicted, the least recently used first:
//!
//! 1. those that only page faults hold: the entries of page tables that lead there are zapped, and
//!    the next access makes another window,
//! 2. those of importers that have not pinned the object, idle ones first. They are invalidated,
//!    and what they have started is waited for. The next use maps the object again.
//!
//! So neither a process that has accessed an object once nor an importer keeps the aperture from
//! others. What is pinned stays, and so does what an importer uses together with the object, so
//! that it has reserved both. If nothing can be evicted, an importer and a mapping of the kernel
//! get `ENOSPC`, unless the object can be moved to system memory; a page fault moves it there, or
//! ends in `SIGBUS`.
//!
//! An importer that is not done with its window in time loses it later: nobody shares the window
//! any more, so that the importer waits for its own work before it has another one.
//!
//! A process that accesses two objects by one instruction makes no progress if the aperture has
//! room for one of them only: each fault evicts the other window. The process can be killed.
//!
//! The windows of importers and of mappings of the kernel stay while the device is suspended. If it
//! loses the entries of the aperture then, its driver writes them again when it resumes.
//!
//! # Locking
//!
//! The reservation of the object is held when its window is made, shared and closed. To evict the
//! window of another object takes the reservation of that object, which is only tried, unless the
//! same task has it already. [`Maker`] comes after the reservation. Importers are invalidated with
//! it, so an importer must not map a buffer while it holds a lock that its invalidation takes. Only
//! two cases close a window without the reservation, which another task may have: an object that is
//! being freed, and an unplug, which closes the windows that remain.
//!
//! Mirrors `nouveau_ttm_io_mem_reserve()`, which evicts under a mutex that each fault takes.
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

/// How often a task tries again that other tasks are in the way of.
const PATIENCE: usize = 32;

/// How long an eviction waits for the work of importers, in milliseconds.
const IMPORTERS: Msecs = 5_000;

/// The same for a page fault, which an unplug waits for.
const IMPORTERS_OF_FAULT: Msecs = 50;

/// A class of objects that the device shows through windows.
///
/// # Safety
///
/// - [`Self::buffer`] returns null or the dma-buf of the object, an exporter in Rust, which shares
///   its reservation.
/// - [`Self::object_at`] returns objects of the same device.
/// - The holders of a window change with the reservation of its object held, unless the object is
///   being freed, or the device unplugged.
pub(in crate::drm::gem) unsafe trait Windowed:
    BaseObject + AlwaysRefCounted
{
    /// The driver's part of an object.
    type Data: DriverObject;

    /// The driver's functions.
    const HOOK: ApertureHook<Self::Data>;

    /// Returns the windows of the device.
    fn windows(&self) -> &Windows;

    /// Returns the number of the object, by which the windows are listed.
    fn number(&self) -> u64;

    /// Returns the object of the device with a number, unless it is being freed.
    fn object_at(&self, number: u64) -> Option<ARef<Self>>;

    /// Returns where in VRAM the object is.
    fn place<'a>(object: &'a LockedObject<'_, Self>) -> Option<&'a Ranges>;

    /// Returns the dma-buf of the object.
    fn buffer(object: &LockedObject<'_, Self>) -> *mut bindings::dma_buf;

    /// Returns whether the kernel or an importer has pinned the object.
    fn is_fixed(object: &LockedObject<'_, Self>) -> bool;

    /// Waits for work of importers on the object, for `limit` at most. Can be interrupted if that
    /// is the limit of a page fault.
    ///
    /// # Errors
    ///
    /// `ETIME` if it is not done then, `ERESTARTSYS` if a signal arrived.
    fn await_importers(object: &LockedObject<'_, Self>, limit: Jiffies, wait: Wait) -> Result;

    /// Traces that importers are invalidated.
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
    /// Other tasks have reserved the objects whose windows could be evicted, or use them, or are
    /// making windows, or the device is busy.
    Busy,
    /// The driver cannot make it, or memory has run out.
    Failed(Error),
}

impl From<NoWindow> for Error {
    /// Converts the error for a caller that has waited for other tasks as long as it does.
    fn from(why: NoWindow) -> Error {
        match why {
            NoWindow::Full => ENOSPC,
            NoWindow::Busy => ETIMEDOUT,
            NoWindow::Failed(e) => e,
        }
    }
}

/// The result of the attempt to evict a window.
enum Eviction {
    /// A window was evicted, so there is more room.
    Done,
    /// Other tasks have reserved the objects whose windows could be evicted, or use them.
    Busy,
    /// There is no window that could be evicted.
    Nothing,
}

/// The windows that are looked at in turn, to evict one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Those that only page faults hold.
    Faults,
    /// Those of importers that do nothing.
    Idle,
    /// Those of importers.
    Importers,
}

/// Returns the device of an object.
fn device<O: Windowed>(obj: &O) -> &drm::Device<<O::Data as DriverObject>::Driver> {
    // SAFETY: The device of a valid object is valid, and of this driver.
    unsafe { drm::Device::from_raw((*obj.as_raw()).dev) }
}

/// Returns the ranges of the window that shows an object, which is in VRAM: the window that it has,
/// or a new one. `holder` becomes a holder of it. Sleeps.
///
/// Waits for some time for other tasks that block an eviction.
///
/// # Errors
///
/// - `ENOSPC` if the aperture is full.
/// - `ETIMEDOUT` if other tasks or the device are in the way for too long.
/// - `EINVAL` if the object is not in VRAM.
/// - `ENODEV` if the driver is not bound any more, `ENOMEM`, and those of the driver.
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

/// Does what [`window`] does, but tries once.
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
            // The task that has wanted the room for longer comes first.
            return Err(NoWindow::Busy);
        }
    }

    let mut new = Some(NewEntry::reserve().map_err(NoWindow::Failed)?);
    // The last reference to an object may wait for its work, for which others must not wait.
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

/// Evicts the least recently used window of those that only page faults hold, or else of those of
/// importers. The objects that it has looked at are added to `passed`.
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

/// Evicts the window of another object, unless importers have it, and have pinned the object or use
/// it together with the one that the window is for.
///
/// # Errors
///
/// [`NoWindow`] if importers are not done with the window, which nobody shares any more.
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
    // SAFETY: The reservation is held until the end of the function, by the guard, or by the
    // caller, which has reserved both objects.
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
        // SAFETY: It is the dma-buf of the object, whose reservation, which they share, is held.
        unsafe { bindings::dma_buf_invalidate_mappings(buf.as_ptr()) };
    }
}

/// Waits for the work of importers that were invalidated.
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

/// Closes the window of an object that nobody accesses any more, although importers may not have
/// unmapped it.
fn leave<O: Windowed>(object: &LockedObject<'_, O>) {
    if let Some(buf) = NonNull::new(O::buffer(object)) {
        // SAFETY: It is the dma-buf of the object, whose reservation, which they share, is held.
        // The memory is still there.
        unsafe { exporter::retire(buf.as_ptr()) };
    }
    // An importer that has unmapped in the invalidation has closed the window.
    close(object.obj);
}

/// Removes a holder of the window of an object, which is closed with the last one. Sleeps.
pub(in crate::drm::gem) fn release<O: Windowed>(obj: &O, holder: Holder) {
    O::HOOK.close(device(obj), obj.windows(), obj.number(), Some(holder));
}

/// Closes the window of an object that leaves its place, or is freed. Nobody accesses it any more.
/// Sleeps.
pub(in crate::drm::gem) fn close<O: Windowed>(obj: &O) {
    O::HOOK.close(device(obj), obj.windows(), obj.number(), None);
}
