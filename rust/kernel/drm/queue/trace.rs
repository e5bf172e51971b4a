// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tracepoints of jobs.
//!
//! The functions are neither generic nor inlined, so that modules need no symbol of tracepoints.
//!
//! C header: [`include/trace/events/drm_queue.h`](srctree/include/trace/events/drm_queue.h)

use super::{
    job::Id, //
    scheduler::Name,
};
use crate::prelude::*;

/// The C side of the tracepoints.
// The arguments of the macro are the parameters of the functions that it makes, which are unsafe.
#[allow(clippy::macro_metavars_in_unsafe)]
mod raw {
    use crate::ffi::{
        c_char,
        c_int, //
    };

    crate::declare_trace! {
        /// # Safety
        ///
        /// `ring` must be a NUL terminated string.
        pub(super) unsafe fn drm_queue_submit(
            ring: *const c_char,
            context: u64,
            seqno: u64,
            dependencies: u32,
            external: bool,
        );
        /// # Safety
        ///
        /// `ring` must be a NUL terminated string.
        pub(super) unsafe fn drm_queue_run(ring: *const c_char, context: u64, seqno: u64);
        /// # Safety
        ///
        /// `ring` must be a NUL terminated string.
        pub(super) unsafe fn drm_queue_started(ring: *const c_char, context: u64, seqno: u64);
        /// # Safety
        ///
        /// `ring` must be a string.
        pub(super) unsafe fn drm_queue_done(
            ring: *const c_char,
            context: u64,
            seqno: u64,
            ret: c_int,
        );
    }
}

/// Traces that a job is in its queue, with the number of its dependencies that have not signalled.
#[inline(never)]
pub(super) fn submit(ring: &Name, id: Id, dependencies: u32, external: bool) {
    // SAFETY: A name ends with a NUL.
    unsafe { raw::drm_queue_submit(ring.as_ptr(), id.context, id.seqno, dependencies, external) }
}

/// Traces that a job begins.
#[inline(never)]
pub(super) fn run(ring: &Name, id: Id) {
    // SAFETY: As in `submit()`.
    unsafe { raw::drm_queue_run(ring.as_ptr(), id.context, id.seqno) }
}

/// Traces that the driver has begun with a job, and has rung the doorbell if the hardware has one.
/// The job may be done already.
#[inline(never)]
pub(super) fn started(ring: &Name, id: Id) {
    // SAFETY: As in `submit()`.
    unsafe { raw::drm_queue_started(ring.as_ptr(), id.context, id.seqno) }
}

/// Traces that a job has ended, or was cancelled before it has begun.
#[inline(never)]
pub(super) fn done(ring: &Name, id: Id, result: Result) {
    let ret = match result {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    };

    // SAFETY: As in `submit()`.
    unsafe { raw::drm_queue_done(ring.as_ptr(), id.context, id.seqno, ret) }
}
