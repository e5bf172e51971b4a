// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A list of jobs.

use super::job::Node;
use crate::prelude::*;
use core::ptr;

/// Jobs in the order of their addition. Adding one does not allocate.
///
/// # Invariants
///
/// `first` is null or the first job, `last` the last one, and each job points to the next. All of
/// them came from [`KBox::into_raw`] and belong to the value.
pub(super) struct Fifo {
    first: *mut Node,
    last: *mut Node,
    len: usize,
}

// SAFETY: The value owns the jobs, which are `Send`.
unsafe impl Send for Fifo {}

impl Fifo {
    pub(super) const fn new() -> Self {
        // INVARIANT: There is no job.
        Self {
            first: ptr::null_mut(),
            last: ptr::null_mut(),
            len: 0,
        }
    }

    /// Returns how many jobs there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the first job.
    pub(super) fn first(&self) -> Option<&Node> {
        // SAFETY: By the type invariant it is valid unless it is null, and not changed or removed
        // while the value is borrowed.
        unsafe { self.first.as_ref() }
    }

    /// Appends a job.
    pub(super) fn push(&mut self, node: KBox<Node>) {
        let node = KBox::into_raw(node);

        // INVARIANT: The job is the last one now, and the one before it points to it.
        // SAFETY: By the type invariant the last job is valid, and so is the new one. No other code
        // has a reference to either.
        unsafe {
            (*node).next = ptr::null_mut();
            if self.last.is_null() {
                self.first = node;
            } else {
                (*self.last).next = node;
            }
        }
        self.last = node;
        self.len += 1;
    }

    /// Removes the first job.
    pub(super) fn pop(&mut self) -> Option<KBox<Node>> {
        if self.first.is_null() {
            return None;
        }

        let node = self.first;
        self.len -= 1;
        // INVARIANT: The next job is the first now.
        // SAFETY: By the type invariant the job is valid, and belongs to the value.
        unsafe {
            self.first = (*node).next;
            if self.first.is_null() {
                self.last = ptr::null_mut();
            }
            Some(KBox::from_raw(node))
        }
    }

    /// Removes the first job for which `is` returns true.
    pub(super) fn remove(&mut self, is: impl Fn(&Node) -> bool) -> Option<KBox<Node>> {
        let mut all = core::mem::replace(self, Self::new());
        let mut found = None;

        while let Some(node) = all.pop() {
            if found.is_none() && is(&node) {
                found = Some(node);
            } else {
                self.push(node);
            }
        }
        found
    }

    /// Appends all jobs of another list.
    pub(super) fn append(&mut self, other: &mut Self) {
        while let Some(node) = other.pop() {
            self.push(node);
        }
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
