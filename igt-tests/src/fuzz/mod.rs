// SPDX-License-Identifier: GPL-2.0

//! The fuzzer: random calls by several processes and threads that share files, handles and memory.
//!
//! Everything is derived from one seed. A thread makes one call after the other; each of them has a
//! number, from which all its choices are made, together with the files, handles and mappings that
//! exist at that time. A *program* is the list of these numbers for each thread, so it can be
//! repeated ([`worker::Plan::program`]), and a shorter list is a program as well, which is how a
//! finding is shortened. Threads race, so a repetition is as likely as the first run to meet a race,
//! and not certain to.
//!
//! If the kernel has kcov, every second time a thread varies calls that have reached new places of
//! our code instead of making a new one. What is recorded of a call is what was done, so these
//! programs are repeated and shortened in the same way.
//!
//! - [`world`]: the memory that all processes share: open files with their handles, counters, and
//!   the last calls of each thread, which survive the process and are written to the results while
//!   the program runs, so that they survive the guest, too.
//! - [`arena`]: the addresses that calls may map, unmap and pass to the kernel, and nothing else of
//!   the process.
//! - [`calls`]: which calls there are, and how often each one is made.
//! - [`corpus`]: calls as numbers, their variations, and those that are kept.
//! - [`coverage`]: the places that they have reached.
//! - [`thread`]: makes them, and remembers what they leave behind.
//! - [`worker`]: the processes.
//! - [`root`]: what an administrator does meanwhile.
//! - [`phase`]: a run, what must be as before at its end, and its findings.
//!
//! A finding is a complaint in the kernel log, an error that [`crate::describe`] does not list,
//! something that is left at the end, or a task that does not end.

pub mod arena;
pub mod calls;
pub mod corpus;
pub mod coverage;
pub mod phase;
pub mod root;
pub mod thread;
pub mod worker;
pub mod world;
