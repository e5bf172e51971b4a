// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tracepoints of jobs.
//!
//! The functions are neither generic nor inlined: modules need no tracepoint symbols.
//!
//! C header: [`include/trace/events/drm_queue.h`](srctree/include/trace/events/drm_queue.h)

use super::{
    job::Id,
    scheduler::Name, //
};
use crate::prelude::*;

/// The C side of the tracepoints.
// The arguments of the macro are the parameters of the unsafe functions it creates.
#[allow(clippy::macro_metavars_in_unsafe)]
mod raw {
    use crate::ffi::{
        c_char,
        c_int, //
    };

    crate::declare_trace! {
        /// # Safety
        ///
        /// `ring` must be a NUL-terminated string.
        pub(super) unsafe fn drm_queue_submit(
            ring: *const c_char,
            context: u64,
            seqno: u64,
            dependencies: u32,
            external: bool,
        );
        /// # Safety
        ///
        /// `ring` must be a NUL-terminated string.
        pub(super) unsafe fn drm_queue_run(ring: *const c_char, context: u64, seqno: u64);
        /// # Safety
        ///
        /// `ring` must be a NUL-terminated string.
        pub(super) unsafe fn drm_queue_started(ring: *const c_char, context: u64, seqno: u64);
        /// # Safety
        ///
        /// `ring` must be a NUL-terminated string.
        pub(super) unsafe fn drm_queue_done(
            ring: *const c_char,
            context: u64,
            seqno: u64,
            ret: c_int,
        );
    }
}

/// Traces the submission of a job and the number of its unsignalled dependencies.
#[inline(never)]
pub(super) fn submit(ring: &Name, id: Id, dependencies: u32, external: bool) {
    // SAFETY: A name ends with a NUL.
    unsafe { raw::drm_queue_submit(ring.as_ptr(), id.context, id.seqno, dependencies, external) }
}

/// Traces the start of a job.
#[inline(never)]
pub(super) fn run(ring: &Name, id: Id) {
    // SAFETY: As in `submit()`.
    unsafe { raw::drm_queue_run(ring.as_ptr(), id.context, id.seqno) }
}

/// Traces a job just started by the driver. The doorbell was rung if the hardware has one. The job
/// may already be done.
#[inline(never)]
pub(super) fn started(ring: &Name, id: Id) {
    // SAFETY: As in `submit()`.
    unsafe { raw::drm_queue_started(ring.as_ptr(), id.context, id.seqno) }
}

/// Traces the end of a job or its cancellation before it began.
#[inline(never)]
pub(super) fn done(ring: &Name, id: Id, result: Result) {
    let ret = match result {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    };

    // SAFETY: As in `submit()`.
    unsafe { raw::drm_queue_done(ring.as_ptr(), id.context, id.seqno, ret) }
}
