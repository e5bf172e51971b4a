// SPDX-License-Identifier: GPL-2.0

//! Rate limits for actions that others can cause as often as they like, such as a line in the log.
//!
//! C header: [`include/linux/ratelimit.h`](srctree/include/linux/ratelimit.h)

use crate::{
    bindings,
    prelude::*,
    types::Opaque, //
};

/// A limit of the kernel's default rate: ten times in five seconds.
///
/// # Examples
///
/// ```
/// use kernel::ratelimit::RateLimit;
///
/// let limit = KBox::pin_init(RateLimit::new(c"ratelimit_example"), GFP_KERNEL)?;
///
/// for _ in 0..10 {
///     assert!(limit.allows());
/// }
/// assert!(!limit.allows());
/// # Ok::<(), Error>(())
/// ```
#[pin_data]
pub struct RateLimit {
    name: &'static CStr,
    #[pin]
    state: Opaque<bindings::ratelimit_state>,
}

// SAFETY: The state has a lock of its own. Any task may take it.
unsafe impl Send for RateLimit {}

// SAFETY: As for `Send`.
unsafe impl Sync for RateLimit {}

impl RateLimit {
    /// Creates a limit. The name is for the line in the log about the number of suppressed calls.
    pub fn new(name: &'static CStr) -> impl PinInit<Self> {
        pin_init!(Self {
            name,
            // SAFETY: The memory is valid for a write.
            state <- Opaque::ffi_init(|state| unsafe {
                bindings::ratelimit_default_init(state)
            }),
        })
    }

    /// Returns whether the limit allows the action once more. May be called in any context.
    pub fn allows(&self) -> bool {
        // SAFETY: The state was initialized and the name ends with a NUL.
        unsafe { bindings::___ratelimit(self.state.get(), self.name.as_char_ptr()) != 0 }
    }
}
