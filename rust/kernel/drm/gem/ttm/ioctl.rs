// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Common parts of the ioctls of drivers with TTM.
//!
//! [`peer::ioctl`](crate::drm::gem::peer::ioctl) has the ioctls that need no TTM.

use super::{
    ClientOf,
    Object,
    TtmObject, //
};
use crate::{
    dma_buf::exporter::with_exporter_of,
    drm::{
        self,
        file::DriverFile,
        gem::{
            peer::GemExport,
            BaseObject, //
        },
        Ioctl, //
    },
    page::PAGE_SIZE,
    prelude::*,
    uapi, //
};
use core::ops::Range;

/// Serves an ioctl with `struct drm_peer_import_info`: maps an imported buffer unless it is mapped
/// already, and returns how the device reaches it.
///
/// The ioctl must be outside of the section that an unplug waits for: it may wait for work of any
/// device before it enters the section. Takes the reservation of the buffer.
///
/// # Errors
///
/// See the header.
pub fn import_info<T: TtmObject>(
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
    let import = object.as_import().ok_or(EINVAL)?;
    import.await_unused()?;

    let _guard = dev.registration_guard().ok_or(ENODEV)?;
    import.with_mapping(|at| {
        let segments = at.mapping().map_or(0, |table| table.iter().count());

        match with_exporter_of(at, |export: &GemExport<T>, cx, at| {
            Ok(export.outcome_now(cx, at))
        }) {
            Ok(outcome) => {
                args.path = outcome.path.code();
                args.reason = outcome.reason.code();
            }
            // The exporter is of another class and cannot be asked.
            Err(e) if e == EINVAL => (),
            Err(e) => return Err(e),
        }
        args.segments = segments.try_into()?;
        args.invalidations = import.invalidations();
        Ok(0)
    })
}

/// Returns the range of `size` bytes of addresses or of an object, from `start` on.
///
/// # Errors
///
/// `EINVAL` if the range is empty, does not consist of whole pages or goes beyond `end`.
pub fn whole_pages(start: u64, size: u64, end: u64) -> Result<Range<u64>> {
    let after = start.checked_add(size).ok_or(EINVAL)?;

    if (start | size) % PAGE_SIZE as u64 == 0 && size > 0 && after <= end {
        Ok(start..after)
    } else {
        Err(EINVAL)
    }
}
