// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies of bytes between objects.
//!
//! The engine of the device does the copy after the earlier copies of the same client. The copy
//! depends on the writes to the source and on all work on the target, both of this device and of
//! others. The fence of the copy is then in both reservations: moves of the objects and other
//! devices wait for it.
//!
//! An engine that does DMA reaches the buffer of another device by the addresses of its mapping for
//! the device. The mapping is kept until the copy is done. This needs the driver's
//! [`Mappings`](crate::drm::gem::Mappings). For other engines the buffer is mapped into the kernel.
//! dma-buf has no mapping of a part: a short copy may take as long as a copy of the whole buffer.
//! Overlapping copies share one mapping. It ends soon after the last copy. Kept for the next copy
//! it would be a non-revocable pin.
//!
//! # Locking
//!
//! [`copy`] and [`CopyArgs::serve`] take the reservations of both objects. No other may be held.

mod args;

pub use self::args::CopyArgs;

use super::{
    moves::side_of,
    placed::pieces,
    Import,
    LockedObject,
    Object,
    TtmObject, //
};
use crate::{
    bindings,
    dma::DataDirection,
    dma_buf::fence::{
        AnyFence,
        Fence, //
    },
    dma_resv::{
        DmaResv,
        LockedResv,
        Usage, //
    },
    drm::{
        self,
        exec::Flag,
        gem::{
            BaseObject,
            IntoGEMObject, //
        },
        queue::Permit,
        ttm::{
            Blit,
            CopyQueue,
            CpuAccess,
            Engine,
            Loss,
            OpCtx,
            Place,
            Request,
            Side,
            VmappedImport,
            Work, //
        },
        vram::MemType, //
    },
    error::to_result,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};
use core::ptr;

/// The part of an object from `offset` on.
pub struct Part<'a, T: TtmObject> {
    /// The object.
    pub object: &'a Object<T>,
    /// The offset of the first byte.
    pub offset: u64,
}

impl<T: TtmObject> Part<'_, T> {
    /// Returns the offset of the first of `size` bytes.
    fn at(&self, dev: &drm::Device<T::Driver>, size: usize) -> Result<usize> {
        let at = usize::try_from(self.offset)?;
        let end = at.checked_add(size).ok_or(EINVAL)?;
        // SAFETY: The device of an object does not change.
        let same = unsafe { (*self.object.as_raw()).dev } == dev.as_raw();

        if same && size > 0 && end <= self.object.size() {
            Ok(at)
        } else {
            Err(EINVAL)
        }
    }

    /// Returns whether both are parts of the same memory: of one object, or of one buffer of
    /// another device imported twice.
    fn is_same_memory(&self, other: &Self) -> bool {
        let buffer = |part: &Self| {
            part.object
                .as_import()
                .map(|import| import.dma_buf().as_raw())
        };

        ptr::eq(self.object, other.object)
            || buffer(self).is_some_and(|buf| Some(buf) == buffer(other))
    }

    /// Whether engines reach the buffer of another device by DMA.
    const BY_DMA: bool =
        <T::Engine<'static, 'static> as Engine>::DMA && Object::<T>::CALLER.is_some();

    /// Lets the CPU access the buffer of another device and waits for conflicting work. Returns
    /// `None` if the object belongs to this device or if the CPU does not do the copy.
    ///
    /// # Errors
    ///
    /// - `ERESTARTSYS` if a signal arrived.
    /// - The errors of the exporter.
    fn access(&self, dir: DataDirection) -> Result<Option<Arc<CpuAccess>>> {
        self.object
            .as_import()
            .filter(|_| !Self::BY_DMA)
            .map(|import| CpuAccess::begin(import.dma_buf(), dir))
            .transpose()
    }

    /// Returns the memory of the object. `locked` is the object itself or another one with the same
    /// reservation.
    fn side(
        &self,
        locked: &mut LockedObject<'_, Object<T>>,
        access: Option<&Arc<CpuAccess>>,
        ctx: &mut OpCtx,
    ) -> Result<Side> {
        match (self.object.as_import(), access) {
            (Some(import), Some(access)) => {
                return vmapped(import, access, &mut locked.resv());
            }
            // The fence of the copy keeps the mapping.
            (Some(import), None) => {
                return import.map_shown(&mut locked.resv(), pieces).map(Side::Peer);
            }
            (None, _) => (),
        }
        // A private object may share a reservation with the other object.
        // SAFETY: The reservation of a valid object is valid.
        let resv = unsafe { DmaResv::from_raw((*self.object.as_raw()).resv) };
        if !locked.resv().is_for(resv) {
            return Err(EINVAL);
        }
        // SAFETY: Its reservation is held. No other code uses it while `locked` is borrowed.
        let mut locked = unsafe { LockedObject::assume(self.object) };

        if !matches!(locked.mem_type(), Some(MemType::Vram | MemType::Tt)) {
            // The object may have been swapped out.
            locked.validate(&[Place::TT], ctx)?;
        }
        locked.check_content()?;
        locked.touch();
        let bo = locked.bo();
        // SAFETY: The object is valid, and its reservation is held. It has a resource. It has a
        // `ttm` if the resource is system memory.
        unsafe {
            if locked.mem_type() == Some(MemType::Tt) {
                to_result(bindings::ttm_bo_populate(bo, &mut ctx.0))?;
            }
            side_of(locked.ttm(), bo, (*bo).resource)
        }
    }

    /// Returns the record of a loss of the content or [`None`] if another device has the content.
    fn loss(&self) -> Option<Arc<Loss>> {
        let object = self.object;

        object.as_import().is_none().then(|| object.loss.clone())
    }
}

/// Maps the buffer of another device for this one and for the kernel.
///
/// The first mapping makes the exporter move the buffer to memory reachable by this device, as for
/// a device that does the copy itself. The second keeps it there, because the CPU does the copy.
/// The move may be pending: the copy depends on it.
fn vmapped(import: &Import, access: &Arc<CpuAccess>, resv: &mut LockedResv<'_>) -> Result<Side> {
    import.map(resv)?;
    VmappedImport::new(access.clone(), resv).map(Side::Mapped)
}

/// Copies `size` bytes for the kernel and returns the fence of the copy.
///
/// As for a client ([`CopyArgs::serve`]), but the copy is one of the kernel's jobs. They go first,
/// and their number is not bounded. It waits for the work of other devices on the objects with the
/// reservations held, because the end of the ring waits for the copy.
///
/// # Errors
///
/// The errors of [`CopyArgs::serve`] except for those of its arrays of fences.
///
/// # Examples
///
/// ```
/// use kernel::{
///     drm::{
///         self,
///         gem::{
///             self,
///             ttm::{
///                 Object,
///                 Part,
///                 TtmObject, //
///             }, //
///         }, //
///     },
///     page::PAGE_SIZE,
///     prelude::*, //
/// };
///
/// /// Copies the first page of an object to the second one, and waits for it.
/// fn repeat<T: TtmObject>(
///     dev: &drm::Device<T::Driver, drm::Registered>,
///     object: &Object<T>,
/// ) -> Result {
///     let first = Part { object, offset: 0 };
///     let second = Part {
///         object,
///         offset: PAGE_SIZE as u64,
///     };
///
///     gem::ttm::copy(dev, &first, &second, PAGE_SIZE as u64)?.wait(true)
/// }
/// ```
pub fn copy<T: TtmObject>(
    dev: &drm::Device<T::Driver, drm::Registered>,
    from: &Part<'_, T>,
    to: &Part<'_, T>,
    size: u64,
) -> Result<ARef<Fence>> {
    checked(dev, from, to, size)?;
    let (reading, writing) = (
        from.access(DataDirection::FromDevice)?,
        to.access(DataDirection::ToDevice)?,
    );
    let accesses = [reading.as_ref(), writing.as_ref()];
    let fence = queue(dev, (from, to, size), accesses, None, &[])?;

    if let Some(access) = &writing {
        // The wait is not interruptible, so it does not fail.
        let _ = fence.wait(false);
        access.end();
    }
    Ok(fence)
}

/// Checks the parts of a copy of `size` bytes and returns their offsets and the size.
///
/// # Errors
///
/// `EINVAL`: see [`CopyArgs::serve`].
fn checked<T: TtmObject>(
    dev: &drm::Device<T::Driver>,
    from: &Part<'_, T>,
    to: &Part<'_, T>,
    size: u64,
) -> Result<(usize, usize, usize)> {
    let size = usize::try_from(size)?;
    let (from_at, to_at) = (from.at(dev, size)?, to.at(dev, size)?);

    if from.is_same_memory(to) && from_at.abs_diff(to_at) < size {
        return Err(EINVAL);
    }
    Ok((from_at, to_at, size))
}

/// Queues a copy of `size` bytes that depends on `fences`: either for `client`
/// ([`CopyArgs::serve`]) or for the kernel ([`copy`]).
///
/// `accesses` are those of the CPU to the source and to the target if these are imports.
fn queue<T: TtmObject>(
    dev: &drm::Device<T::Driver, drm::Registered>,
    (from, to, size): (&Part<'_, T>, &Part<'_, T>, u64),
    [reading, writing]: [Option<&Arc<CpuAccess>>; 2],
    client: Option<(&CopyQueue<T::Ring>, Permit)>,
    fences: &[ARef<AnyFence>],
) -> Result<ARef<Fence>> {
    let (from_at, to_at, size) = checked(dev, from, to, size)?;
    let ttm = T::ttm(dev);
    // The kernel's copies must not hold up moves.
    let waits = client.is_none();
    let (copies, mut permit) = client.unzip();

    ttm.exec(Flag::Interruptible | Flag::IgnoreDuplicates, |exec| {
        let ctx = &mut OpCtx::interruptible();
        let mut first = from.object.lock(exec)?.ok_or(EALREADY)?;
        // `None` if both objects have the same reservation.
        let mut second = to.object.lock(exec)?;

        let from_side = from.side(&mut first, reading, ctx)?;
        let target = second.as_mut().unwrap_or(&mut first);
        let to_side = to.side(target, writing, ctx)?;

        // No other task adds a fence any more.
        let mut read = first.resv();
        let mut written = second.as_mut().map(|second| second.resv());
        let read_conflicts = if written.is_some() {
            Usage::Write
        } else {
            Usage::Read
        };
        if waits {
            ttm.wait_for_others(&read, read_conflicts)?;
            if let Some(written) = &written {
                ttm.wait_for_others(written, Usage::Read)?;
            }
        }
        let mut after = KVec::new();
        let mut external = false;
        for fence in fences.iter().filter(|fence| !fence.is_signaled()) {
            external = true;
            after.push(fence.clone(), GFP_KERNEL)?;
        }
        external |= ttm.add_dependencies(&read, read_conflicts, &mut after)?;
        if let Some(written) = &written {
            external |= ttm.add_dependencies(written, Usage::Read, &mut after)?;
        }

        let write_usage = if writing.is_some() {
            Usage::Bookkeep
        } else {
            Usage::Write
        };
        let read_usage = if written.is_some() {
            Usage::Read
        } else {
            write_usage
        };
        let read = read.reserve_fences(1)?;
        let written = written
            .as_mut()
            .map(|written| written.reserve_fences(1))
            .transpose()?;

        // `exec()` keeps the device active until this point.
        let runtime_guard = from.object.runtime_guard_if_active();
        // SAFETY: The parts were checked. Pages stay until the fence signals, because it is added
        // to the reservation of their object unless the submission fails.
        let blit = unsafe { Blit::new((from_side, from_at), (to_side, to_at), size) };
        let request = Request {
            work: Work::Copy(blit),
            runtime_guard,
            after,
            external,
            in_order: false,
            from: from.loss(),
            to: to.loss(),
        };
        // The closure is called again only if there was no space for a fence, and this is found
        // before this point.
        let client = match copies {
            Some(copies) => Some((copies, permit.take().ok_or(EAGAIN)?)),
            None => None,
        };
        let fence = dev.registration_data_with(|reg| ttm.submit(reg, request, client))?;

        for slot in read {
            slot.add_fence(&fence, read_usage);
        }
        for slot in written.into_iter().flatten() {
            slot.add_fence(&fence, write_usage);
        }
        Ok(fence)
    })
}
