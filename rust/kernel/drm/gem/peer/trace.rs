// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tracepoints of peer-accessible objects.
//!
//! The functions are neither generic nor inlined. Their callers are instantiated in modules and so
//! need no symbol of the tracepoints. A disabled tracepoint costs a call.
//!
//! C header: [`include/trace/events/drm_peer.h`](srctree/include/trace/events/drm_peer.h)

use crate::{
    bindings,
    device::Device,
    prelude::*, //
};

/// The object has no memory yet; used in place of a `TTM_PL_*`.
pub(crate) const NO_PLACEMENT: u32 = u32::MAX;

/// The object of an event.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) exporter: &'a Device,
    pub(crate) id: u64,
    /// In bytes.
    pub(crate) size: u64,
}

/// An operation of an importer.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    Attach,
    Pin,
    Unpin,
    Map,
    Unmap,
}

/// The C side of the tracepoints.
// The arguments of the macro are the parameters of its functions, which are unsafe.
#[allow(clippy::macro_metavars_in_unsafe)]
mod raw {
    use crate::{
        bindings,
        ffi::c_int, //
    };

    crate::declare_trace! {
        /// # Safety
        ///
        /// Both devices must be valid.
        pub(super) unsafe fn drm_peer_attach(
            exporter: *const bindings::device,
            id: u64,
            size: u64,
            importer: *const bindings::device,
            path: u32,
            reason: u32,
            ret: c_int,
        );
        /// # Safety
        ///
        /// Both devices must be valid.
        pub(super) unsafe fn drm_peer_pin(
            exporter: *const bindings::device,
            id: u64,
            size: u64,
            importer: *const bindings::device,
            path: u32,
            reason: u32,
            ret: c_int,
        );
        /// # Safety
        ///
        /// Both devices must be valid.
        pub(super) unsafe fn drm_peer_unpin(
            exporter: *const bindings::device,
            id: u64,
            size: u64,
            importer: *const bindings::device,
            path: u32,
            reason: u32,
            ret: c_int,
        );
        /// # Safety
        ///
        /// Both devices must be valid.
        pub(super) unsafe fn drm_peer_map(
            exporter: *const bindings::device,
            id: u64,
            size: u64,
            importer: *const bindings::device,
            path: u32,
            reason: u32,
            ret: c_int,
        );
        /// # Safety
        ///
        /// Both devices must be valid.
        pub(super) unsafe fn drm_peer_unmap(
            exporter: *const bindings::device,
            id: u64,
            size: u64,
            importer: *const bindings::device,
            path: u32,
            reason: u32,
            ret: c_int,
        );
        /// # Safety
        ///
        /// The device must be valid.
        pub(super) unsafe fn drm_peer_invalidate(
            exporter: *const bindings::device,
            id: u64,
            size: u64,
            placement: u32,
        );
        /// # Safety
        ///
        /// The device must be valid.
        pub(super) unsafe fn drm_peer_move(
            exporter: *const bindings::device,
            id: u64,
            size: u64,
            from: u32,
            to: u32,
            evict: bool,
            ret: c_int,
        );
    }
}

fn errno(ret: Result) -> c_int {
    match ret {
        Ok(()) => 0,
        Err(e) => e.to_errno(),
    }
}

/// Returns whether `act` is traced. This is cheaper than collecting the arguments of the
/// tracepoint.
#[inline(never)]
pub(crate) fn is_on(act: Act) -> bool {
    macro_rules! is_on {
        ($tracepoint:ident) => {{
            #[cfg(CONFIG_TRACEPOINTS)]
            // SAFETY: The key of a tracepoint is static, and may be looked at at any time.
            let on = unsafe {
                crate::jump_label::static_branch_unlikely!(
                    bindings::$tracepoint,
                    bindings::tracepoint,
                    key
                )
            };
            #[cfg(not(CONFIG_TRACEPOINTS))]
            let on = false;

            on
        }};
    }

    match act {
        Act::Attach => is_on!(__tracepoint_drm_peer_attach),
        Act::Pin => is_on!(__tracepoint_drm_peer_pin),
        Act::Unpin => is_on!(__tracepoint_drm_peer_unpin),
        Act::Map => is_on!(__tracepoint_drm_peer_map),
        Act::Unmap => is_on!(__tracepoint_drm_peer_unmap),
    }
}

/// Traces an actual or attempted `act` of an importer. `path` and `reason` are codes of the peer
/// layer.
#[inline(never)]
pub(crate) fn importer(
    act: Act,
    subject: Subject<'_>,
    importer: &Device,
    path: u32,
    reason: u32,
    ret: Result,
) {
    let Subject { exporter, id, size } = subject;
    let exporter: *const bindings::device = exporter.as_raw();
    let importer: *const bindings::device = importer.as_raw();
    let ret = errno(ret);

    // SAFETY: The devices are valid.
    unsafe {
        match act {
            Act::Attach => raw::drm_peer_attach(exporter, id, size, importer, path, reason, ret),
            Act::Pin => raw::drm_peer_pin(exporter, id, size, importer, path, reason, ret),
            Act::Unpin => raw::drm_peer_unpin(exporter, id, size, importer, path, reason, ret),
            Act::Map => raw::drm_peer_map(exporter, id, size, importer, path, reason, ret),
            Act::Unmap => raw::drm_peer_unmap(exporter, id, size, importer, path, reason, ret),
        }
    }
}

/// Traces the invalidation of the mappings of an object in `placement`, a `TTM_PL_*`.
#[inline(never)]
pub(crate) fn invalidate(subject: Subject<'_>, placement: u32) {
    let Subject { exporter, id, size } = subject;

    // SAFETY: The device is valid.
    unsafe { raw::drm_peer_invalidate(exporter.as_raw(), id, size, placement) }
}

/// Traces a successful or failed move of an object.
#[inline(never)]
pub(crate) fn moved(subject: Subject<'_>, from: u32, to: u32, evict: bool, ret: Result) {
    let Subject { exporter, id, size } = subject;

    // SAFETY: The device is valid.
    unsafe { raw::drm_peer_move(exporter.as_raw(), id, size, from, to, evict, errno(ret)) }
}
