// SPDX-License-Identifier: GPL-2.0

//! Signals of kernel threads.

use kernel::{
    bindings,
    prelude::*, //
};

/// A signal that is pending for this task, a kernel thread, until it is dropped.
pub(crate) struct Signal(());

impl Signal {
    const NUMBER: c_int = 10;

    /// Sends a signal to the task that calls.
    pub(crate) fn new() -> Self {
        // SAFETY: `SIG_KTHREAD`, which lets a kernel thread have a signal, is a number and not the
        // address of a function; nothing calls it. The task is the current one.
        unsafe {
            bindings::kernel_sigaction(Self::NUMBER, handler(2));
            bindings::send_sig(Self::NUMBER, kernel::current!().as_ptr(), 1);
        }
        Self(())
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: As in `new()`, with `SIG_IGN`.
        unsafe {
            bindings::flush_signals(kernel::current!().as_ptr());
            bindings::kernel_sigaction(Self::NUMBER, handler(1));
        }
    }
}

/// Returns `SIG_IGN` for 1 and `SIG_KTHREAD` for 2: numbers in place of functions.
fn handler(number: usize) -> bindings::__sighandler_t {
    // SAFETY: Both are pointers, null excepted, which the number is not.
    unsafe { core::mem::transmute(number) }
}
