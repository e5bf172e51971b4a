// SPDX-License-Identifier: GPL-2.0

//! The common code of the tests.
//!
//! A test never passes only because data happened to arrive: it asserts how the importer reaches
//! the buffer (the path), where the buffer is (the placement, checked through the PCI BAR) and the
//! bytes.

#[macro_use]
mod check;

pub mod asleep;
#[cfg(target_arch = "x86_64")]
pub mod auxiliary;
pub mod badinput;
pub mod bar_export;
pub mod cgroup;
pub mod clients;
#[cfg(target_arch = "x86_64")]
pub mod clock;
pub mod compat;
pub mod compute;
pub mod copy;
pub mod debugfs;
pub mod describe;
pub mod disk;
pub mod dmirror;
pub mod drm;
pub mod edu;
pub mod fabric;
pub mod failure;
pub mod faults;
pub mod fdinfo;
pub mod fence;
#[cfg(target_arch = "x86_64")]
pub mod figures;
pub mod fixture;
pub mod foreign;
pub mod fragment;
#[cfg(target_arch = "x86_64")]
pub mod fuzz;
pub mod gpu;
pub mod heap;
pub mod holders;
pub mod igt;
pub mod invariants;
pub mod iommu;
pub mod map;
pub mod memory;
pub mod mgpu;
pub mod misc;
pub mod names;
pub mod pairs;
pub mod pattern;
pub mod pci;
pub mod peer;
pub mod plug;
pub mod policy;
pub mod power;
pub mod proc;
pub mod qmp;
pub mod queue;
pub mod rdma;
pub mod rebind;
pub mod reloads;
pub mod route;
pub mod signals;
pub mod slab;
pub mod socket;
pub mod spent;
pub mod storm;
pub mod svm;
pub mod swap;
pub mod sweeps;
pub mod syncfile;
pub mod trace;
pub mod uapi;
pub mod user;
pub mod userfault;
pub mod verbs;
pub mod vfio;
pub mod vm;
#[cfg(target_arch = "x86_64")]
pub mod window;

pub use check::{errno_name, expect_errno, Need, Outcome, Stop, SysError};
