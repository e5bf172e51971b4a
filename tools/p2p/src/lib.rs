// SPDX-License-Identifier: GPL-2.0

//! Why a transfer between PCI devices is or is not peer to peer.
//!
//! A [`machine::Machine`] has the content of sysfs and procfs. [`decide`] computes the
//! decision of the kernel from it, by the rules of drivers/pci/p2pdma.c, and [`kernel`]
//! asks drivers that answer themselves. Each command is a module that gathers a
//! structure, and prints it as text or JSON.
//!
//! Nothing is guessed: if the relevant files cannot be read the answer is "unknown",
//! with the possible answers and the reason.

pub mod address;
pub mod ask;
pub mod bufinfo;
pub mod cli;
pub mod config;
pub mod decide;
pub mod doctor;
pub mod drawing;
pub mod files;
pub mod hosts;
pub mod kconfig;
pub mod kernel;
pub mod listing;
pub mod ls;
pub mod machine;
pub mod names;
pub mod processes;
pub mod redact;
pub mod report;
pub mod run;
pub mod table;
pub mod topo;
pub mod trace;
pub mod uapi;
pub mod watch;
pub mod why;
