// SPDX-License-Identifier: GPL-2.0

//! The entries of a range of a process cannot be read after the lock was released.

use kernel::mm::{
    hmm::Checked,
    interval_notifier::Mirror, //
};

#[expect(dead_code)]
fn count<T: Mirror>(checked: Checked<'_, T>) -> usize {
    let entries = checked.entries();

    // refused: E0505
    #[cfg(refused)]
    drop(checked);

    entries.len()
}
