// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The copy ioctl of clients.

use super::{
    checked,
    queue,
    Object,
    Part, //
};
use crate::{
    dma::DataDirection,
    dma_buf::fence::Fence,
    drm::{
        self,
        file::DriverFile,
        gem::{
            ttm::{
                ClientOf,
                TtmObject, //
            },
            BaseObject, //
        },
        queue::LazyQueue,
        syncobj::SyncArray,
        ttm::CopyQueue, //
    },
    prelude::*,
    sync::aref::ARef, //
};

/// The argument of an ioctl for copies between objects, read from the uAPI of the driver.
///
/// `drivers/gpu/drm/vvram/copy.rs` is an example.
pub struct CopyArgs {
    /// The handle of the source and the offset of the first byte.
    pub src: (u32, u64),
    /// The handle of the target and the offset of the first byte.
    pub dst: (u32, u64),
    /// The number of bytes to copy.
    pub size: u64,
    /// The fences that the copy depends on.
    pub ins: SyncArray,
    /// The targets of the fence of the copy.
    pub outs: SyncArray,
}

impl CopyArgs {
    /// Copies for the client `file` and puts the fence of the copy into its targets.
    ///
    /// `copies` has the queue of the client; `make` creates it for the first copy. The copy depends
    /// on `ins` and on the fences in the reservations. It is queued in the section that an unplug
    /// waits for. Before and after that section, this waits interruptibly, with no lock held:
    ///
    /// - for space in the queue;
    /// - for work on an import at the place it had before its exporter moved it, if page tables of
    ///   this device still show that place;
    /// - for a copy by the CPU to or from the buffer of another device. Such a copy is an access by
    ///   the CPU, and its begin waits for the work of devices. Ending a write access makes the
    ///   bytes visible to devices. It takes the reservation, and no fence can stand for it. So when
    ///   this returns, a copy to such a buffer is done and the access ended. Its fence keeps the
    ///   exporter from moving the buffer. As for other accesses by the CPU, readers of the buffer
    ///   do not wait for it.
    ///
    /// A copy from the buffer of another device also depends on work added after the begin of the
    /// access.
    ///
    /// If this returns an error, nothing was copied. It takes the reservations of both objects. No
    /// other may be held.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if page tables show an invalidated import and other work that uses it was added
    ///   meanwhile.
    /// - `EINVAL` if `size` is 0, a part is not inside of its object or the parts overlap. Also if
    ///   the exporter of an import has no mappings for the kernel.
    /// - `ENODEV` if this driver or that of an import's exporter is no longer bound.
    /// - `EIO` if a failed move has lost the content of an object. If the loss is found later, the
    ///   fence signals with `EIO` and the target loses its content, too.
    /// - `ERESTARTSYS` or `EINTR` if a signal arrived.
    /// - `ENOMEM` if memory runs out.
    /// - `ENOENT` if there is no object with a handle.
    /// - The errors of `make`, of the exporter of an import, of [`SyncArray::fences`] and of
    ///   [`SyncArray::places`].
    pub fn serve<T: TtmObject>(
        self,
        dev: &drm::Device<T::Driver, drm::Ioctl>,
        file: &ClientOf<T>,
        copies: &LazyQueue<CopyQueue<T::Ring>>,
        make: impl FnOnce(
            &drm::Device<T::Driver, drm::Registered>,
            &<T::Driver as drm::Driver>::RegistrationData<'_>,
        ) -> Result<CopyQueue<T::Ring>>,
    ) -> Result
    where
        <T::Driver as drm::Driver>::File: DriverFile<Driver = T::Driver>,
    {
        let (src, dst) = (
            Object::<T>::lookup_handle(file, self.src.0)?,
            Object::<T>::lookup_handle(file, self.dst.0)?,
        );
        let from = Part {
            object: &*src,
            offset: self.src.1,
        };
        let to = Part {
            object: &*dst,
            offset: self.dst.1,
        };
        checked(dev, &from, &to, self.size)?;

        let fences = self.ins.fences(file)?;
        let places = self.outs.places(file)?;
        let copies = copies.get_or_make(dev, make)?;

        src.await_unused()?;
        dst.await_unused()?;
        let (reading, writing) = (
            from.access(DataDirection::FromDevice)?,
            to.access(DataDirection::ToDevice)?,
        );
        // Last, so tasks waiting for space in the queue do not wait for the above as well.
        let permit = copies.permit()?;

        let accesses = [reading.as_ref(), writing.as_ref()];
        let client = Some((copies, permit));
        let fence = {
            let guard = dev.registration_guard().ok_or(ENODEV)?;

            queue(&guard, (&from, &to, self.size), accesses, client, &fences)?
        };

        if let Some(access) = &writing {
            await_write(&fence, copies)?;
            access.end();
        }
        places.put(&fence);
        Ok(())
    }
}

/// Waits for a copy to the buffer of another device.
///
/// # Errors
///
/// Nothing was copied then.
///
/// - `ERESTARTSYS` if a signal arrived before the copy has begun.
/// - `ENODEV` if the copy was cancelled because the device was unplugged.
fn await_write<R: drm::queue::RingOps>(fence: &ARef<Fence>, copies: &CopyQueue<R>) -> Result {
    let ret = fence.wait(true);

    if ret.is_err() && copies.cancel(fence) {
        return ret;
    }
    // Once the copy has begun, it depends only on the engine and must not fail any more. The wait
    // is not interruptible, so it does not fail.
    let _ = fence.wait(false);
    if fence.status() == Some(Err(ECANCELED)) {
        return Err(ENODEV);
    }
    Ok(())
}
