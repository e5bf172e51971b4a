// SPDX-License-Identifier: GPL-2.0

//! `p2p doctor`: settings of a machine that prevent peer-to-peer transfers.

use serde_json::{json, Value};

use crate::decide::{decide, Forwards};
use crate::files::{Blind, Root};
use crate::hosts;
use crate::hosts::Version;
use crate::kernel;
use crate::machine::{Device, Kind, Machine};
use crate::table::{bytes, Table};
use crate::topo;
use crate::watch::EVENTS;
use crate::why;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is as it should be.
    Fine,
    /// There is something to do.
    ToDo,
    /// It cannot be seen.
    Unknown,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::ToDo => "to do",
            Self::Unknown => "unknown",
        }
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct Check {
    /// The subject of the check.
    pub what: String,
    /// Its result.
    pub state: State,
    /// The finding, or the advice.
    pub text: String,
}

/// Options of the kernel, and the features that need them.
const OPTIONS: [(&str, &str); 5] = [
    ("PCI_P2PDMA", "nothing is peer to peer without it"),
    ("DMA_SHARED_BUFFER", "buffers cannot be shared without it"),
    (
        "HMM_MIRROR",
        "devices cannot follow memory of processes without it",
    ),
    (
        "DEVICE_PRIVATE",
        "memory of processes cannot be in VRAM without it",
    ),
    ("ZONE_DEVICE", "direct I/O to VRAM needs its struct pages"),
];
/// Drivers, an option that each of them needs, and the reason.
const DRIVER_OPTIONS: [(&str, &str, &str); 2] = [
    (
        "amdgpu",
        "HSA_AMD_P2P",
        "without it ROCm does not let GPUs access each other's memory",
    ),
    (
        "mlx5_core",
        "INFINIBAND_ON_DEMAND_PAGING",
        "without it mlx5 refuses to register dma-bufs",
    ),
];
/// Options that only some kernels have, and that must be on there.
const OLD_OPTIONS: [(&str, &str); 1] = [(
    "DMABUF_MOVE_NOTIFY",
    "without it importers get buffers in system memory only",
)];
/// PCI drivers whose RDMA devices register dma-bufs in Linux 7.3, and the modules that make these
/// devices.
const RDMA_DRIVERS: [(&str, &str); 8] = [
    ("mlx5_core", "mlx5_ib"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("efa", "efa"),
    ("bnxt_en", "bnxt_re"),
    ("mana", "mana_ib"),
    ("ionic", "ionic_rdma"),
];
/// The first version of Linux in which the RDMA devices of a PCI driver are known to register
/// dma-bufs. Between [`RDMA_FIRST`] and that it is unknown.
const RDMA_SINCE: [(&str, Version); 5] = [
    ("mlx5_core", RDMA_FIRST),
    ("ice", (6, 3)),
    ("i40e", (6, 3)),
    ("efa", (5, 16)),
    ("bnxt_en", (6, 6)),
];
/// The first version of Linux that has the command to register a dma-buf: with an older one no
/// driver does.
const RDMA_FIRST: Version = (5, 12);
/// Parameters of the kernel's command line that are relevant.
const PARAMETERS: [&str; 10] = [
    "pci",
    "iommu",
    "intel_iommu",
    "amd_iommu",
    "iommu.passthrough",
    "iommu.strict",
    "pcie_acs_override",
    "swiotlb",
    "pcie_ports",
    "lockdown",
];
const LIBRARIES: [&str; 4] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
];
/// Of a kernel that does not say which sizes a BAR offers, a BAR of this size may be too small.
const SMALL_BAR: u64 = 256 << 20;
const RESIZE: &str = "turn on Above 4G Decoding and Resizable BAR in the BIOS";
const SECURITYFS: &str = "sys/kernel/security";

/// All checks.
pub fn look(root: &Root, machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    options(machine, &mut checks);
    parameters(root, &mut checks);
    lockdown(root, machine, &mut checks);
    iommu(machine, &mut checks);
    routes(root, machine, &mut checks);
    gpus(root, machine, &mut checks);
    rdma(root, machine, &mut checks);
    views(root, &mut checks);
    checks
}

fn add(checks: &mut Vec<Check>, what: &str, state: State, text: impl Into<String>) {
    checks.push(Check {
        what: what.to_string(),
        state,
        text: text.into(),
    });
}

/// The options of the kernel.
fn options(machine: &Machine, checks: &mut Vec<Check>) {
    let kconfig = &machine.kconfig;
    if !kconfig.blind().is_empty() {
        let text = format!("the configuration cannot be read: {}", kconfig.blind());
        add(checks, "kernel", State::Unknown, text);
        return;
    }
    let old = OLD_OPTIONS.iter().filter(|(name, _)| kconfig.knows(name));
    let drivers: Vec<_> = DRIVER_OPTIONS
        .iter()
        .filter(|(driver, ..)| is_bound(machine, driver))
        .map(|(_, name, why)| (*name, *why))
        .collect();
    for (name, why) in OPTIONS.iter().chain(old).chain(&drivers) {
        match kconfig.value(name) {
            Some("n") | None => add(
                checks,
                "kernel",
                State::ToDo,
                format!("boot a kernel with CONFIG_{name}: {why}"),
            ),
            Some(value) => add(
                checks,
                "kernel",
                State::Fine,
                format!("CONFIG_{name}={value}"),
            ),
        }
    }
}

/// Whether a device is bound to a driver.
fn is_bound(machine: &Machine, driver: &str) -> bool {
    let mut devices = machine.devices.values();
    devices.any(|it| it.driver.as_deref() == Some(driver))
}

/// The option that a driver needs and that the kernel lacks.
fn lacks(machine: &Machine, driver: &str) -> Option<&'static str> {
    let options = DRIVER_OPTIONS.iter().filter(|it| it.0 == driver);
    options
        .map(|it| it.1)
        .find(|name| machine.kconfig.is_set(name) == Some(false))
}

/// The relevant parameters of the command line.
fn parameters(root: &Root, checks: &mut Vec<Check>) {
    match root.text("proc/cmdline") {
        Ok(text) => {
            let ours = |word: &&str| PARAMETERS.contains(&word.split('=').next().unwrap_or(""));
            let found: Vec<_> = text.split_whitespace().filter(ours).collect();
            let all = match found.is_empty() {
                true => "none about PCI or the IOMMU".to_string(),
                false => found.join(" "),
            };
            add(checks, "kernel parameters", State::Fine, all);
            let forces = |word: &&&str| {
                let value = word.strip_prefix("swiotlb=");
                value.is_some_and(|it| it.split(',').any(|part| part == "force"))
            };
            for word in found.iter().filter(forces) {
                let text = format!(
                    "boot without {word}: it makes the kernel copy all DMA to system memory, and \
                     direct I/O to VRAM through a host bridge then never ends"
                );
                add(checks, "kernel parameters", State::ToDo, text);
            }
        }
        Err(why) => {
            let text = format!("/proc/cmdline: {why}");
            add(checks, "kernel parameters", State::Unknown, text);
        }
    }
}

/// Whether the kernel keeps programs from mapping BARs.
fn lockdown(root: &Root, machine: &Machine, checks: &mut Vec<Check>) {
    const OFF: &str = "off: programs of root can map BARs";
    let (state, text) = match root.text(&format!("{SECURITYFS}/lockdown")) {
        // The active level is in brackets.
        Ok(text) if text.contains("[none]") => (State::Fine, OFF.to_string()),
        Ok(text) => {
            let active = text.split(['[', ']']).nth(1).unwrap_or(&text).to_string();
            let events = match &*active {
                "confidentiality" => ", and p2p watch sees no events",
                _ => "",
            };
            let text = format!(
                "{active}: drivers are not concerned, but no program can map a BAR, as p2p-rdma \
                 does{events}; Secure Boot or lockdown= turns it on"
            );
            (State::Fine, text)
        }
        Err(Blind::Absent) => {
            let is_mounted = root.names(SECURITYFS).is_ok_and(|it| !it.is_empty());
            let has_none = machine.kconfig.is_set("SECURITY_LOCKDOWN_LSM") == Some(false);
            match is_mounted || has_none {
                true => (State::Fine, OFF.to_string()),
                false => (
                    State::Unknown,
                    format!("mount -t securityfs securityfs /{SECURITYFS}, to see it"),
                ),
            }
        }
        Err(why) => (State::Unknown, format!("/{SECURITYFS}/lockdown: {why}")),
    };
    add(checks, "lockdown", state, text);
}

/// How the IOMMU treats addresses.
fn iommu(machine: &Machine, checks: &mut Vec<Check>) {
    let mut domains: Vec<_> = machine
        .devices
        .values()
        .filter_map(|it| it.domain.clone())
        .collect();
    domains.sort();
    domains.dedup();
    let has_groups = machine.devices.values().any(|it| it.group.is_some());
    match (has_groups, domains.is_empty()) {
        (false, _) => add(
            checks,
            "IOMMU",
            State::Fine,
            "none is in use: devices use physical addresses",
        ),
        (true, true) => add(
            checks,
            "IOMMU",
            State::Unknown,
            format!(
                "it is in use; the types of its domains cannot be read: {}",
                machine.as_root
            ),
        ),
        (true, false) => {
            let translates = domains.iter().any(|it| it.starts_with("DMA"));
            let what = match translates {
                true => "devices use IOVAs through the host, bus addresses below one switch",
                false => "devices use physical addresses",
            };
            let text = format!("domains of type {}: {what}", domains.join(" and "));
            add(checks, "IOMMU", State::Fine, text);
        }
    }
}

/// The routes between the devices that exchange data.
fn routes(root: &Root, machine: &Machine, checks: &mut Vec<Check>) {
    let topo = topo::look(root, machine, topo::Which::default());
    let mattering = |it: &Device| !matches!(it.kind, Kind::Other | Kind::Bridge);
    let pairs = machine
        .devices
        .values()
        .filter(|it| mattering(it))
        .flat_map(|a| {
            let later = machine.devices.range(a.address..).skip(1).map(|it| it.1);
            later.filter(|b| mattering(b)).map(move |b| (a, b))
        });
    // Ports that redirect, by whether the host forwards.
    let (mut forwarded, mut blocked, mut doubtful) = (Vec::new(), Vec::new(), Vec::new());
    let mut hidden = Vec::new();
    let (mut refused, mut open, mut unseen, mut good) = (Vec::new(), Vec::new(), 0, 0);
    for (a, b) in pairs {
        let decision = decide(machine, a, b);
        hidden.extend(&decision.unseen);
        let through = decision.host.as_ref().map(|it| &it.forwards);
        let ports = match through {
            Some(Forwards::No) => &mut blocked,
            Some(Forwards::Unknown(_)) => &mut doubtful,
            _ => &mut forwarded,
        };
        ports.extend(decision.redirects.iter().map(|it| it.0));
        match (decision.path.is_peer(), through) {
            (true, _) => good += 1,
            (false, Some(Forwards::No)) if decision.unseen.is_empty() => {
                refused.push(format!("{} and {}", a.label(), b.label()));
            }
            (false, _) if decision.is_without_p2pdma => {}
            (false, _) if decision.unseen.is_empty() => {
                open.push(format!("{} and {}", a.label(), b.label()));
            }
            (false, _) => unseen += 1,
        }
    }
    for list in [&mut forwarded, &mut blocked, &mut doubtful, &mut hidden] {
        list.sort();
        list.dedup();
    }
    if good > 0 {
        add(
            checks,
            "routes",
            State::Fine,
            format!(
                "{} of devices {} peer to peer",
                counted(good, "pair"),
                if good == 1 { "is" } else { "are" }
            ),
        );
    }
    if !blocked.is_empty() {
        let names: Vec<_> = blocked.iter().map(ToString::to_string).collect();
        let in_grub = why::in_grub(names.len()).map_or(String::new(), |it| format!("; {it}"));
        let text = format!(
            "{} {} requests of peers to the host, which does not forward them; if no guest has one \
             of the devices, boot with pci=disable_acs_redir={}{in_grub}",
            names.join(", "),
            send(names.len()),
            names.join(";")
        );
        add(checks, "ACS", State::ToDo, text);
    }
    if !forwarded.is_empty() {
        let text = format!(
            "{} {} requests of peers to the host bridge: slower, but peer to peer; see p2p why",
            counted(forwarded.len(), "port"),
            send(forwarded.len())
        );
        add(checks, "ACS", State::Fine, text);
    }
    if !doubtful.is_empty() {
        let text = format!(
            "{} {} requests of peers to the host bridge, and it is not known whether it forwards \
             them: see p2p why",
            counted(doubtful.len(), "port"),
            send(doubtful.len())
        );
        add(checks, "ACS", State::Unknown, text);
    }
    let redirects = [&forwarded, &blocked, &doubtful];
    if redirects.iter().all(|it| it.is_empty()) && hidden.is_empty() {
        add(
            checks,
            "ACS",
            State::Fine,
            "no port redirects between GPUs, NICs and drives",
        );
    }
    if !hidden.is_empty() {
        let text = format!(
            "the ACS bits of {} cannot be read: {}",
            counted(hidden.len(), "port"),
            machine.as_root
        );
        add(checks, "ACS", State::Unknown, text);
    }
    if !refused.is_empty() {
        let text = format!("no route: {}: see p2p why", some(&refused));
        add(checks, "routes", State::ToDo, text);
    }
    if unseen > 0 {
        let pairs = counted(unseen, "pair");
        let text = format!("{pairs} cannot be judged: {}", machine.as_root);
        add(checks, "routes", State::Unknown, text);
    }
    if !open.is_empty() {
        let text = format!(
            "it is not known whether the host forwards: {}: see p2p why",
            some(&open)
        );
        add(checks, "routes", State::Unknown, text);
    }
    for note in topo.notes.iter().filter(|it| it.contains("please report")) {
        add(checks, "routes", State::ToDo, note.clone());
    }
}

/// A number and a noun, in the plural unless the number is 1.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The verb of a number of ports.
fn send(count: usize) -> &'static str {
    match count {
        1 => "sends",
        _ => "send",
    }
}

/// The first ones of a list, and how many more there are.
fn some(list: &[String]) -> String {
    const SHOWN: usize = 4;
    let first = list[..list.len().min(SHOWN)].join("; ");
    match list.len().checked_sub(SHOWN) {
        None | Some(0) => first,
        Some(more) => format!("{first}; and {more} more"),
    }
}

/// GPUs: drivers and BARs.
fn gpus(root: &Root, machine: &Machine, checks: &mut Vec<Check>) {
    let gpus: Vec<_> = machine.gpus().collect();
    if gpus.is_empty() {
        add(
            checks,
            "GPUs",
            State::ToDo,
            "there is no GPU or accelerator: neither a display nor a DRM device; install one, or \
             export a BAR of another PCI device with bar_export",
        );
    }
    for gpu in gpus {
        let what = format!("GPU {}", gpu.label());
        match &gpu.driver {
            None => add(
                checks,
                &what,
                State::ToDo,
                format!("{}: bind a driver", gpu.address),
            ),
            Some(driver) => {
                let reports = match kernel::driver_of(gpu) {
                    Some(_) => "reports paths and reasons",
                    None => "does not report paths: they follow from sysfs",
                };
                add(
                    checks,
                    &what,
                    State::Fine,
                    format!("driver {driver} {reports}"),
                );
            }
        }
        // VRAM is in the largest BAR. Others may be resizable, too, and need not be larger.
        let of_vram = gpu.bars.iter().max_by_key(|(_, size)| **size);
        let largest = of_vram.map_or(0, |(_, size)| *size);
        let offered = of_vram.and_then(|(bar, _)| offered(root, gpu, *bar));
        let size = bytes(largest);
        match (offered, gpu.space.has_resizable_bar, largest) {
            (Some(most), ..) if most > largest => add(
                checks,
                &what,
                State::ToDo,
                format!(
                    "its largest BAR has {size} and can be resized to {}: {RESIZE}",
                    bytes(most)
                ),
            ),
            (Some(_), ..) => add(
                checks,
                &what,
                State::Fine,
                format!("its largest BAR has {size}, the largest size that it offers"),
            ),
            (None, _, 0) => add(
                checks,
                &what,
                State::ToDo,
                "it has no memory BAR: peers cannot reach it",
            ),
            (None, Some(true), 1..=SMALL_BAR) => add(
                checks,
                &what,
                State::ToDo,
                format!("its largest BAR has {size} and can be resized: {RESIZE}"),
            ),
            (None, None, 1..=SMALL_BAR) => add(
                checks,
                &what,
                State::Unknown,
                format!(
                    "its largest BAR has {size}; whether it is resizable cannot be read: {}",
                    machine.as_root
                ),
            ),
            (None, Some(false), 1..=SMALL_BAR) => add(
                checks,
                &what,
                State::Fine,
                format!(
                    "its largest BAR has {size} and cannot be resized: peers reach no more of its \
                     memory at a time"
                ),
            ),
            _ => add(
                checks,
                &what,
                State::Fine,
                format!("its largest BAR has {size}"),
            ),
        }
    }
    let (_, closed) = kernel::exporters(root, machine);
    for note in closed {
        add(
            checks,
            "GPUs",
            State::ToDo,
            format!("{note}: join the group of the node"),
        );
    }
}

/// The largest size that a BAR offers, in bytes: [`None`] if it is not resizable, or if that cannot
/// be read. Bit n of the file stands for 2^n MiB.
fn offered(root: &Root, device: &Device, bar: usize) -> Option<u64> {
    let path = format!(
        "sys/bus/pci/devices/{}/resource{bar}_resize",
        device.address
    );
    let sizes = u64::from_str_radix(&root.text(&path).ok()?, 16).ok()?;
    1u64.checked_shl(20 + sizes.checked_ilog2()?)
}

/// The first version of Linux that is known to have RDMA devices of a PCI driver register dma-bufs.
fn since(driver: &str) -> Version {
    let known = RDMA_SINCE.iter().find(|it| it.0 == driver);
    known.map_or(hosts::LIST, |it| it.1)
}

/// RDMA devices that register dma-bufs.
fn rdma(root: &Root, machine: &Machine, checks: &mut Vec<Check>) {
    let devices = root.names("sys/class/infiniband").unwrap_or_default();
    if devices.is_empty() {
        let nics = RDMA_DRIVERS
            .iter()
            .filter(|(driver, _)| is_bound(machine, driver));
        let modules: Vec<_> = nics
            .map(|(driver, module)| format!("{module} for {driver}"))
            .collect();
        let (state, text) = match modules.is_empty() {
            true => (State::Fine, "there is no RDMA device".to_string()),
            false => (
                State::Unknown,
                format!(
                    "there is no RDMA device; if the NIC does RDMA, load the RDMA module of its \
                     driver: {}",
                    modules.join(", ")
                ),
            ),
        };
        add(checks, "RDMA", state, text);
        return;
    }
    for name in &devices {
        let what = format!("RDMA {name}");
        // Soft RoCE has no device of its own.
        let is_soft = root
            .real(&format!("sys/class/infiniband/{name}"))
            .is_some_and(|parts| parts.iter().any(|part| part == "virtual"));
        let owner = machine.devices.values().find(|it| {
            it.names
                .iter()
                .any(|it| it.class == "infiniband" && it.name == *name)
        });
        let driver = owner
            .and_then(|it| it.driver.as_deref())
            .unwrap_or_default();
        let registers = RDMA_DRIVERS.iter().any(|it| it.0 == driver);
        match (is_soft, registers, lacks(machine, driver)) {
            (true, ..) => add(
                checks,
                &what,
                State::Unknown,
                "software: that of Linux 7.3 does not register dma-bufs, a patched one may",
            ),
            (false, true, Some(option)) => add(
                checks,
                &what,
                State::ToDo,
                format!("{driver} does not register dma-bufs without CONFIG_{option}"),
            ),
            (false, true, None) if machine.version.is_some_and(|it| it >= since(driver)) => {
                let (major, minor) = since(driver);
                add(
                    checks,
                    &what,
                    State::Fine,
                    format!("{driver} registers dma-bufs in Linux {major}.{minor} and later"),
                );
            }
            (false, true, None) if machine.version.is_some_and(|it| it < RDMA_FIRST) => {
                let (major, minor) = since(driver);
                add(
                    checks,
                    &what,
                    State::ToDo,
                    format!(
                        "{driver} registers dma-bufs in Linux {major}.{minor} and later: boot a \
                         newer kernel, unless that of this distribution has it already"
                    ),
                );
            }
            (false, true, None) => {
                let (major, minor) = since(driver);
                add(
                    checks,
                    &what,
                    State::Unknown,
                    format!(
                        "{driver} registers dma-bufs in Linux {major}.{minor}, but maybe not in \
                         this kernel: try to register one, or boot Linux {major}.{minor} or newer"
                    ),
                );
            }
            (false, false, _) => add(
                checks,
                &what,
                State::ToDo,
                format!(
                    "driver {driver} does not register dma-bufs in Linux 7.3: use a NIC of {}",
                    RDMA_DRIVERS.map(|it| it.0).join(", ")
                ),
            ),
        }
    }
    let library = LIBRARIES.iter().find_map(|folder| {
        let bytes = root.bytes(&format!("{folder}/libibverbs.so.1")).ok()?;
        let name = b"ibv_reg_dmabuf_mr";
        Some(bytes.windows(name.len()).any(|part| part == name))
    });
    match library {
        Some(true) => add(
            checks,
            "RDMA",
            State::Fine,
            "libibverbs has ibv_reg_dmabuf_mr()",
        ),
        Some(false) => add(
            checks,
            "RDMA",
            State::ToDo,
            "libibverbs has no ibv_reg_dmabuf_mr(): install rdma-core 34 or newer",
        ),
        None => add(checks, "RDMA", State::ToDo, "install libibverbs"),
    }
    if root.exists("sys/module/nvidia_peermem") {
        let text = "nvidia_peermem is loaded: registrations through it go without dma-bufs, and \
                    this program does not see them";
        add(checks, "RDMA", State::Fine, text);
    }
}

/// The files that the caller can read.
fn views(root: &Root, checks: &mut Vec<Check>) {
    let filesystems = root.text("proc/filesystems");
    for (what, path, option, so) in [
        (
            "debugfs",
            "sys/kernel/debug",
            "DEBUG_FS",
            "p2p ls does not see all buffers",
        ),
        (
            "tracefs",
            "sys/kernel/tracing",
            "FTRACE",
            "p2p watch sees no events",
        ),
    ] {
        let is_missing = filesystems
            .as_ref()
            .is_ok_and(|text| !text.split_whitespace().any(|word| word == what));
        match root.names(path) {
            Ok(names) if !names.is_empty() => {
                let text = match what == "tracefs" && !root.exists(&format!("{path}/{EVENTS}")) {
                    true => "it can be read; no driver that reports transfers is loaded",
                    false => "it can be read",
                };
                add(checks, what, State::Fine, text);
            }
            Ok(_) | Err(Blind::Absent) => {
                let text = match is_missing {
                    true => format!("boot a kernel with CONFIG_{option}: else {so}"),
                    false => format!("mount -t {what} {what} /{path}: else {so}"),
                };
                add(checks, what, State::ToDo, text);
            }
            Err(why) => add(checks, what, State::Unknown, format!("{why}: {so}")),
        }
    }
}

/// As text.
pub fn text(checks: &[Check]) -> String {
    let mut table = Table::default();
    for check in checks {
        table.row([check.state.name(), &check.what, &check.text]);
    }
    table.text()
}

/// As JSON.
pub fn json(checks: &[Check]) -> Value {
    let lines = checks.iter().map(|it| {
        json!({
            "what": it.what,
            "state": it.state.name(),
            "text": it.text,
        })
    });
    json!({ "checks": lines.collect::<Vec<_>>() })
}

/// The exit status: 1 if there is something to do.
pub fn status(checks: &[Check]) -> u8 {
    u8::from(checks.iter().any(|it| it.state == State::ToDo))
}
