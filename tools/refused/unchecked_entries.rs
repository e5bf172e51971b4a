// SPDX-License-Identifier: GPL-2.0

//! The entries of a range of a process cannot be read before they were checked with the lock held.

use kernel::mm::{
    hmm::Faulted,
    interval_notifier::Mirror, //
};

#[expect(dead_code)]
fn count<T: Mirror>(faulted: Faulted<'_, T>) -> usize {
    // refused: E0599
    #[cfg(refused)]
    return faulted.entries().len();

    #[cfg(not(refused))]
    faulted.lock().map_or(0, |checked| checked.entries().len())
}
