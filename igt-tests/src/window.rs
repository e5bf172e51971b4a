// SPDX-License-Identifier: GPL-2.0

//! Marks for the profiler of instructions, `tools/profile/profile.c`.
//!
//! For the processor they are no-operations, so a program may always have them.

use std::arch::asm;

/// Calls `body` between a mark for its begin and one for its end.
pub fn of<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: `nopl 'prof'(%rax)` accesses nothing. The compiler does not know that, and so keeps
    // it before the calls in `body`.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x80, 0x70, 0x72, 0x6f, 0x66") };
    let result = body();
    // SAFETY: `nopl 'prog'(%rax)`.
    unsafe { asm!(".byte 0x0f, 0x1f, 0x80, 0x70, 0x72, 0x6f, 0x67") };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_passed_on() {
        assert_eq!(of(|| 7), 7);
    }
}
