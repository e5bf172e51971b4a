// SPDX-License-Identifier: GPL-2.0

//! The man page is generated from the command line: with `P2P_MAN=1` this test writes it anew. The
//! README says how to run it with the crates of the lab, which this needs.

use std::fs;
use std::path::Path;

use clap_mangen::Man;
use p2p::cli;

const GLOBAL: &str = r"
.PP
The options \-\-json and \-\-sysfs hold for each of the commands below, and can be before or after
its name. The value of an option is in the part about options of each command.
";
const FAILURES: &str = r"
.PP
The reason for a status of 2, 3 or 5 is on standard error, also with \-\-json. Standard output may
be empty then, so that a script has to look at the status first.
";
const REST: &str = r"
.SH EXAMPLES
Why is the transfer from this GPU to that NIC slow?
.PP
.RS 4
p2p why renderD128 mlx5_0
.RE
.PP
Which importer keeps this buffer in system memory?
.PP
.RS 4
p2p ls
.RE
.SH REASONS
Why a transfer is not peer to peer, as drivers report it:
.TP
no-opt-in
The driver of the importer does not take peer-to-peer memory. Only that driver can change it.
.TP
not-pci
The importer is not a PCI device.
.TP
no-route
The host bridge is not known to forward between its ports, or ACS redirects: see p2p why.
.TP
outside-bar
The BAR shows only a part of VRAM. Turn on Resizable BAR in the BIOS.
.TP
suspended
The device of the exporter was suspended. Set its power/control to on, and attach again.
.TP
other-importer
Another importer of the buffer has one of the reasons above: see p2p ls.
.TP
no-vram
Other buffers need VRAM more. The next mapping tries again.
.TP
system-only
The buffer was made for system memory.
.TP
not-revocable
The importer cannot be revoked, and the exporter does not give VRAM to such importers.
.TP
no-window
The exporter shows VRAM through windows, and had no room for another one.
.TP
encoded
The buffer is compressed or encrypted in VRAM, so that other devices cannot read it there.
.TP
pinned-elsewhere
The buffer is pinned where this importer does not reach it, or in system memory.
.TP
quota
A pin over the limit of the exporter.
.SH FILES
.TP
.I /sys/bus/pci/devices
the PCI tree, configuration spaces, IOMMU groups
.TP
.I /dev/dri/renderD*
drivers that answer: PEER_QUERY and PEER_ATTACHMENTS of include/uapi/drm/drm_peer.h
.TP
.I /sys/kernel/debug/dri/*/buffers, /sys/kernel/debug/dma_buf/bufinfo, /proc/*/fdinfo
buffers, their importers and the processes that have them
.TP
.I /sys/kernel/tracing/events/drm_peer
the tracepoints; watch has an instance of its own, which is gone when it ends
.TP
.I /proc/config.gz, /boot/config-*
the configuration of the kernel
.SH SEE ALSO
.BR lspci (8)
";

fn page() -> String {
    let mut page = Vec::new();
    let command = cli::command();
    let man = Man::new(command.clone());
    man.render_title(&mut page).unwrap();
    man.render_name_section(&mut page).unwrap();
    man.render_synopsis_section(&mut page).unwrap();
    man.render_description_section(&mut page).unwrap();
    man.render_options_section(&mut page).unwrap();
    page.extend(GLOBAL.trim_start().bytes());
    for sub in command.get_subcommands() {
        let mut part = Vec::new();
        let name = format!("p2p {}", sub.get_name());
        // All of them have the options above, as GLOBAL says.
        let man = Man::new(sub.clone().bin_name(&name).disable_help_flag(true));
        man.render_synopsis_section(&mut part).unwrap();
        man.render_description_section(&mut part).unwrap();
        if sub.get_arguments().next().is_some() {
            man.render_options_section(&mut part).unwrap();
        }
        let text = String::from_utf8(part).unwrap().replace(".SH ", ".SS ");
        page.extend(format!(".SH \"{}\"\n{text}", name.to_uppercase()).bytes());
    }
    man_status(&command, &mut page);
    page.extend(REST.trim_start().bytes());
    let page = String::from_utf8(page).unwrap();
    // Each part begins with the same definitions, of which one is enough.
    let is_definition = |line: &str| line.starts_with(".ie ") || line.starts_with(".el ");
    let mut text = String::from(".\\\" SPDX-License-Identifier: GPL-2.0\n");
    for (number, line) in page.lines().enumerate() {
        if number < 2 || !is_definition(line) {
            text += line.trim_end();
            text += "\n";
        }
    }
    text
}

/// The exit status, which the help has at its end.
fn man_status(command: &clap::Command, page: &mut Vec<u8>) {
    let text = command.get_after_help().unwrap().to_string();
    page.extend(b".SH \"EXIT STATUS\"\n");
    for line in text.lines().skip(1) {
        let (status, meaning) = line.trim().split_once("  ").unwrap();
        page.extend(format!(".TP\n{status}\n{meaning}\n").bytes());
    }
    page.extend(FAILURES.trim_start().bytes());
}

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("p2p.1");
    let want = page();
    if std::env::var_os("P2P_MAN").is_some() {
        fs::write(&path, &want).unwrap();
    }
    let have = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        have == want,
        "p2p.1 is not what the command line says, or clap_mangen is not that of the lab: see README"
    );
}

#[test]
fn each_option_is_in_it() {
    let page = page()
        .replace("\\-", "-")
        .replace("\\fB", "")
        .replace("\\fR", "");
    let command = cli::command();
    for sub in command.get_subcommands() {
        assert!(page.contains(&format!("P2P {}", sub.get_name().to_uppercase())));
        for option in sub.get_arguments().filter_map(|it| it.get_long()) {
            assert!(
                page.contains(&format!("--{option}")),
                "--{option} of {}",
                sub.get_name()
            );
        }
    }
    for status in 0..=5 {
        assert!(
            page.contains(&format!(".TP\n{status}\n")),
            "exit status {status}"
        );
    }
}
