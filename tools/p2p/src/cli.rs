// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::{value_parser, Arg, ArgAction, Command};

const ABOUT: &str = "Shows why a transfer between PCI devices is or is not peer to peer";
const LONG_ABOUT: &str = "\
Shows why a transfer between PCI devices is or is not peer to peer: how each GPU, NIC, drive or \
other bus master reaches the memory of each other one, what decides, and what to do about it.

Where the driver of a device answers (PEER_QUERY on its render node) the answer is the kernel's own. For \
any other device it follows from sysfs, by the rules of drivers/pci/p2pdma.c of Linux 7.3: the PCI \
tree, the ACS bits in configuration space, the processor and the host bridge. An answer that \
depends on files that cannot be read is unknown.

Root is needed to see ACS bits, debugfs and the processes of others. Without it each command says \
what it could not see.";
const STATUS: &str = "\
Exit status:
  0  done; with why: it is peer to peer; with doctor: no action is needed
  1  with why: it is not peer to peer; with doctor: an action is needed
  2  the command line is wrong, or no device has that name
  3  there is nothing to look at: no PCI devices, no source of buffers, no tracepoints (a copy has none)
  4  with why: the answer is unknown, because of unreadable files or another kernel version
  5  any other error";

fn no_driver() -> Arg {
    Arg::new("sysfs-only")
        .long("sysfs-only")
        .action(ArgAction::SetTrue)
        .help("Do not query drivers: a query may resume a suspended device")
}

/// The command line of the program.
pub fn command() -> Command {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("N")
            .value_parser(value_parser!(u64))
            .help(help)
    };
    let memory = Arg::new("MEMORY").help(
        "The device that has the memory: 0000:03:00.0, renderD128, mlx5_0, nvme0, eth0, or a path \
         in /dev or /sys",
    );
    let device = Arg::new("DEVICE").help("The device that accesses it");
    Command::new("p2p")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .after_help(STATUS)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(
            Arg::new("json")
                .long("json")
                .global(true)
                .action(ArgAction::SetTrue)
                .help("Print JSON; watch prints an object for each event, on a line of its own"),
        )
        .arg(
            Arg::new("sysfs")
                .long("sysfs")
                .global(true)
                .value_name("ROOT")
                .help(
                    "Look at sys, proc, boot, usr/lib and etc/passwd below this folder, not at \
                     this machine",
                ),
        )
        .subcommand(
            Command::new("topo")
                .about("Show how each device reaches the memory of each other one")
                .arg(
                    Arg::new("all")
                        .long("all")
                        .action(ArgAction::SetTrue)
                        .help(
                            "Show all PCI functions, also bridges and functions without bus \
                             mastering",
                        ),
                )
                .arg(no_driver()),
        )
        .subcommand(
            Command::new("why")
                .about("Show the path between two devices, what decides, and what to do about it")
                .arg(memory.clone().required(true))
                .arg(device.clone().required(true))
                .arg(no_driver()),
        )
        .subcommand(
            Command::new("ls")
                .about("List buffers, the processes that have them, and their importers"),
        )
        .subcommand(
            Command::new("watch")
                .about(
                    "Print attaches, maps, moves and fallbacks as they happen; a line with ! is a \
                     fallback, a refusal or an error",
                )
                .arg(number("count", "End after so many events"))
                .arg(number("seconds", "End after so many seconds")),
        )
        .subcommand(
            Command::new("doctor").about("Check the machine: each line is ok, or says what to do"),
        )
        .subcommand(
            Command::new("report")
                .about(
                    "Print the output of doctor, topo and ls for a bug report, and that of why for \
                     two devices, without names and numbers that identify the machine",
                )
                .arg(memory.requires("DEVICE"))
                .arg(device),
        )
}
