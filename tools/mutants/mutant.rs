// SPDX-License-Identifier: GPL-2.0

//! Mutations of the code, one of which can be on.

extern "C" {
    fn mutant_on(mutant: i32) -> bool;
    fn mutant_allocation(place: i32);
}

/// Returns whether this kernel was booted with this mutation.
#[inline(never)]
pub fn on(mutant: i32) -> bool {
    // SAFETY: The function has no requirements.
    unsafe { mutant_on(mutant) }
}

/// Records that memory is about to be allocated in a place of the code, with these flags.
#[inline(never)]
pub fn allocation<T>(place: i32, flags: T) -> T {
    // SAFETY: The function has no requirements.
    unsafe { mutant_allocation(place) };
    flags
}
