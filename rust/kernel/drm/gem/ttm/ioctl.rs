// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What ioctls of drivers with TTM have in common.
//!
//! [`peer::ioctl`] has the ioctls that need no TTM.

use super::Object;
use crate::{
    drm::{
        self,
        file::DriverFile,
        gem::{
            peer::{
                self,
                PeerObject, //
            },
            BaseObject, //
        },
        ttm::{
            ClientOf,
            TtmObject, //
        },
        Ioctl, //
    },
    page::PAGE_SIZE,
    prelude::*,
    uapi, //
};
use core::ops::Range;

/// Serves an ioctl with `struct drm_peer_import_info`: returns how the device reaches a buffer that
/// it imported. Takes the reservation of the buffer.
///
/// # Errors
///
/// See the header.
pub fn import_info<T: TtmObject + PeerObject<Class = Object<T>>>(
    dev: &drm::Device<T::Driver, Ioctl>,
    args: &mut uapi::drm_peer_import_info,
    file: &ClientOf<T>,
) -> Result<u32>
where
    <T::Driver as drm::Driver>::File: DriverFile<Driver = T::Driver>,
{
    if args.path != 0 || args.reason != 0 || args.segments != 0 || args.invalidations != 0 {
        return Err(EINVAL);
    }

    let object = Object::<T>::lookup_handle(file, args.handle)?;
    let info = peer::import_info::<T>(dev, object.as_import().ok_or(EINVAL)?)?;

    if let Some(outcome) = info.outcome {
        args.path = outcome.path.code();
        args.reason = outcome.reason.code();
    }
    args.segments = info.segments;
    args.invalidations = info.invalidations;
    Ok(0)
}

/// Returns the range of `size` bytes from `start` on, of addresses or of an object.
///
/// # Errors
///
/// `EINVAL` if the range is not made of whole pages, is empty, or goes beyond `end`.
pub fn whole_pages(start: u64, size: u64, end: u64) -> Result<Range<u64>> {
    let after = start.checked_add(size).ok_or(EINVAL)?;

    if (start | size) % PAGE_SIZE as u64 == 0 && size > 0 && after <= end {
        Ok(start..after)
    } else {
        Err(EINVAL)
    }
}
