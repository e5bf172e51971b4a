// SPDX-License-Identifier: GPL-2.0

//! Compares the output of `p2p`, the tool for operators, with what the kernel does: before an
//! attach, in each command, as root and as the user nobody.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use vvram_tests::auxiliary::{Card, Module, Split};
use vvram_tests::bar_export::{self, Exporter};
use vvram_tests::debugfs::{mounted, DebugFs};
use vvram_tests::disk::{Disk, Part, Way};
use vvram_tests::drm::{path_name, reason_name, text, DmaBuf, Drm, Gem, EITHER};
use vvram_tests::fabric::Fabric;
use vvram_tests::fixture::{placed, works, Expect, Fixture};
use vvram_tests::map::PAGE64;
use vvram_tests::mgpu::Mgpu;
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::policy::importer_name;
use vvram_tests::proc::Child;
use vvram_tests::route::{explained_by, Machine};
use vvram_tests::uapi::{self, PeerAddress, PeerAttachment, PeerQuery};
use vvram_tests::user::{self, become_nobody};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, Outcome, Stop, SysError};

/// The path of the tool.
const TOOL: &str = "/lab/bin/p2p";
/// A size that takes more than one page table of the importer.
const LARGE: u64 = (3 << 20) + PAGE64;
/// More importers than there are kinds of them.
const IMPORTERS: usize = 12;
const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(30);
/// The note of `p2p ls` about processes that it may not look into, behind their number.
const HIDDEN: &str = "processes of others are not looked into: run it as root outside a container";
/// The class of an importer that is dynamic, revocable and takes peer-to-peer memory.
const ABLE: u32 =
    uapi::ATTACHMENT_DYNAMIC | uapi::ATTACHMENT_REVOCABLE | uapi::ATTACHMENT_PEER2PEER;
/// The paths that have names.
const PATHS: [u32; 4] = [
    uapi::PATH_PEER_BUS,
    uapi::PATH_PEER_HOST_BRIDGE,
    uapi::PATH_SYSTEM,
    uapi::PATH_REFUSED,
];

/// Runs the tool; returns its exit status, what it prints, and its errors.
#[track_caller]
fn run(arguments: &[&str], nobody: bool) -> Result<(i32, String, String), Stop> {
    let mut command = Command::new(TOOL);
    command.args(arguments);
    if nobody {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command
        .output()
        .map_err(|error| SysError::io(TOOL, &error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.code() {
        Some(status) => Ok((status, text(&output.stdout), text(&output.stderr))),
        None => Err(Stop::fail(format_args!(
            "{arguments:?}: {:?}",
            output.status
        ))),
    }
}

/// Runs the tool; returns its exit status and the JSON that it prints.
#[track_caller]
fn json(arguments: &[&str], nobody: bool) -> Result<(i32, Value), Stop> {
    let (status, out, errors) = run(&[arguments, &["--json"]].concat(), nobody)?;
    match serde_json::from_str(&out) {
        Ok(value) => Ok((status, value)),
        Err(error) => Err(Stop::fail(format_args!(
            "{arguments:?} prints no JSON ({error}): {out}{errors}"
        ))),
    }
}

/// The members of an array.
fn all<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Returns a member that is a string, or an empty string.
fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The pairs of the matrix, by provider and client.
type Pairs = BTreeMap<(String, String), Value>;

/// The matrix of all functions, or of the devices.
#[track_caller]
fn matrix(arguments: &[&str], nobody: bool) -> Result<Pairs, Stop> {
    let (status, mut topo) = json(&[&["topo"], arguments].concat(), nobody)?;
    check_eq!(status, 0, "exit status of topo");
    let of = |pair: &Value| {
        (
            word(pair, "provider").to_string(),
            word(pair, "client").to_string(),
        )
    };
    let pairs = topo["pairs"].as_array_mut().map(std::mem::take);
    let pairs = pairs.unwrap_or_default().into_iter();
    Ok(pairs.map(|pair| (of(&pair), pair)).collect())
}

#[track_caller]
fn pair<'a>(pairs: &'a Pairs, from: &PciDevice, to: &PciDevice) -> Result<&'a Value, Stop> {
    match pairs.get(&(from.name().to_string(), to.name().to_string())) {
        Some(pair) => Ok(pair),
        None => Err(Stop::fail(format_args!(
            "{} and {} are not in the matrix",
            from.name(),
            to.name()
        ))),
    }
}

/// The GPUs whose drivers answer, with a file of each.
#[track_caller]
fn gpus() -> Result<Vec<(PciDevice, Drm)>, Stop> {
    let mut found = Vec::new();
    for gpu in PciDevice::vvrams() {
        let drm = Drm::open_on(&gpu)?;
        found.push((gpu, drm));
    }
    for gpu in PciDevice::mgpus() {
        let mgpu = Mgpu::open(&gpu)?;
        found.push((gpu, mgpu.drm));
    }
    check!(!found.is_empty(), "there is no GPU");
    Ok(found)
}

/// The fields that the tool must print for an answer of the kernel.
fn expected(answer: &PeerQuery) -> Value {
    let name = |at: PeerAddress| {
        let (slot, function) = (at.devfn >> 3, at.devfn & 7);
        format!("{:04x}:{:02x}:{slot:02x}.{function}", at.domain, at.bus)
    };
    let given = |flag: u32, at: PeerAddress| (answer.route & flag != 0).then(|| name(at));
    let host = (answer.host_vendor, answer.host_device);
    serde_json::json!({
        "path": path_name(answer.path),
        "distance": answer.distance,
        "bridge": given(uapi::ROUTE_BRIDGE, answer.bridge),
        "redirect": given(uapi::ROUTE_ACS_REDIRECT, answer.redirect),
        "acs": (answer.acs != 0).then_some(answer.acs),
        "host": (host.0 != 0).then(|| format!("{:04x}:{:04x}", host.0, host.1)),
    })
}

/// The same fields of the answer of the kernel, as the tool prints it.
fn of_kernel(pair: &Value) -> Value {
    let it = &pair["kernel"];
    serde_json::json!({
        "path": it["path"],
        "distance": it["distance"],
        "bridge": it["bridge"],
        "redirect": it["redirect"]["port"],
        "acs": it["redirect"]["acs"],
        "host": it["host"],
    })
}

/// The same fields as the tool derives them from sysfs.
fn of_sysfs(pair: &Value) -> Value {
    let it = &pair["sysfs"];
    serde_json::json!({
        "path": it["path"],
        "distance": it["distance"],
        "bridge": it["bridge"],
        "redirect": it["redirects"][0]["port"],
        "acs": it["redirects"][0]["acs"],
        "host": it["host"]["id"],
    })
}

/// For each pair of PCI functions the result from sysfs is equal to the answer of the kernel, or to
/// the rules where no driver answers.
fn pairs() -> Outcome {
    let pairs = matrix(&["--all"], false)?;
    let devices = PciDevice::everything();
    check_eq!(
        pairs.len(),
        devices.len() * (devices.len() - 1),
        "pairs of {} functions",
        devices.len()
    );
    let (mut asked, mut paths) = (0, BTreeMap::<String, usize>::new());
    for (gpu, drm) in gpus()? {
        for client in devices.iter().filter(|it| **it != gpu) {
            let answer = drm.query(0, ABLE, client)?;
            let (want, pair) = (expected(&answer), pair(&pairs, &gpu, client)?);
            let which = format!("{} for {}", gpu.name(), client.name());
            check_eq!(of_kernel(pair), want, "the kernel's answer: {which}");
            check_eq!(of_sysfs(pair), want, "what sysfs leads to: {which}");
            check_eq!(word(pair, "source"), "kernel", "{which}");
            check_eq!(pair["path"], want["path"], "{which}");
            check_eq!(pair["distance"], want["distance"], "{which}");
            asked += 1;
        }
    }
    let mut machine = Machine::default();
    for provider in &devices {
        for client in devices.iter().filter(|it| *it != provider) {
            let pair = pair(&pairs, provider, client)?;
            let want = expected(&explained_by(&mut machine, provider, client)?);
            let which = format!("{} for {}", provider.name(), client.name());
            check_eq!(of_sysfs(pair), want, "the rules: {which}");
            *paths
                .entry(word(&pair["sysfs"], "path").into())
                .or_default() += 1;
        }
    }
    println!(
        "{} pairs, of which {asked} were asked for: {paths:?}",
        pairs.len()
    );
    Ok(())
}

/// Compares the earlier output of the tool with the result of the attach, for an object that may be
/// in VRAM and its list of importers.
#[track_caller]
fn attached(before: &Value, list: &[PeerAttachment], which: &str) -> Outcome {
    let Some(entry) = list.last() else {
        fail!("{which}: nothing is listed");
    };
    let path = match entry.path {
        // Without peer to peer the importer gets system memory, if the object may be placed there.
        uapi::PATH_SYSTEM => uapi::PATH_REFUSED,
        other => other,
    };
    check_eq!(
        (word(before, "path"), before["distance"].as_i64()),
        (&*path_name(path), Some(entry.distance.into())),
        "{which}: path and distance before; the attach gives {} for {}",
        path_name(entry.path),
        reason_name(entry.reason)
    );
    check_eq!(before["sysfs"]["path"], before["path"], "{which}: sysfs");
    Ok(())
}

/// Whether the tool expects a path from peer to peer.
fn is_peer(before: &Value) -> bool {
    matches!(word(before, "path"), "bus" | "host-bridge")
}

/// For each exporter and each importer the output of the tool before the attach is equal to the
/// result of the attach.
fn attach() -> Outcome {
    let pairs = matrix(&[], false)?;
    let gpus = gpus()?;
    let edu = PciDevice::edu()?;
    let mut count = 0;
    for (gpu, drm) in &gpus {
        let before = pair(&pairs, gpu, &edu)?;
        for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
            for (flags, size) in [(uapi::CREATE_VRAM, PAGE64), (EITHER, LARGE)] {
                let object = drm.create_flags(size, flags)?;
                let buffer = object.export()?;
                let peer = Peer::open()?;
                let outcome = peer.attach(&buffer, mode);
                let which = format!("{} for {} {}", gpu.name(), edu.name(), importer_name(mode));
                attached(before, &object.records()?.0, &which)?;
                let is_peer = is_peer(before);
                check_eq!(
                    outcome.is_ok(),
                    is_peer || flags == EITHER,
                    "{which}: the attach"
                );
                if outcome.is_ok() {
                    peer.pin_and_map(mode)?;
                    let want = match is_peer {
                        true => uapi::PLACEMENT_VRAM,
                        false => uapi::PLACEMENT_SYSTEM,
                    };
                    placed(&object, want)?;
                }
                count += 1;
            }
        }
        for (other, importer) in gpus.iter().filter(|it| it.0 != *gpu) {
            let which = format!("{} for {}", gpu.name(), other.name());
            let object = drm.create_flags(LARGE, EITHER)?;
            let import = importer.import(&object.export()?)?;
            attached(pair(&pairs, gpu, other)?, &object.records()?.0, &which)?;
            drop(import);
            count += 1;
        }
    }
    if Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut it| it.next().is_some())
    {
        count += registered(&pairs)?;
    }
    if !PciDevice::nvmes().is_empty() {
        count += read_by_disk(&pairs)?;
    }
    println!("{count} attaches");
    Ok(())
}

/// The same for regions of an RDMA device; returns how many it has compared.
#[track_caller]
fn registered(pairs: &Pairs) -> Result<usize, Stop> {
    let mut count = 0;
    for gpu in PciDevice::vvrams() {
        let fabric = Fabric::open_on(gpu)?;
        fabric.choose(Mode::Dynamic)?;
        let object = fabric.drm.create_flags(LARGE, EITHER)?;
        let buffer = object.export()?;
        let region = fabric
            .nic
            .register(buffer.fd(), 0, LARGE, None, fabric.nic.all_access());
        let which = format!("{} for {}", fabric.gpu.name(), fabric.device.name());
        let before = pair(pairs, &fabric.gpu, &fabric.device)?;
        attached(before, &object.records()?.0, &which)?;
        drop(region);
        count += 1;
    }
    Ok(count)
}

/// The same for direct I/O of a disk, which fails without a route; returns how many it compared.
#[track_caller]
fn read_by_disk(pairs: &Pairs) -> Result<usize, Stop> {
    let disk = Disk::open()?;
    let device = disk.device()?;
    let gpus = PciDevice::vvrams();
    for gpu in &gpus {
        let drm = Drm::open_on(gpu)?;
        let before = pair(pairs, gpu, &device)?;
        let object = drm.create_flags(PAGE64, uapi::CREATE_VRAM | uapi::CREATE_DIRECT_IO)?;
        let map = object.map()?;
        let outcome = disk.direct.transfer(Way::Read, Part::all(&map), 0);
        check_eq!(outcome.is_ok(), is_peer(before), "a read, for {before}");
        placed(&object, uapi::PLACEMENT_VRAM)?;
    }
    Ok(gpus.len())
}

/// The same for drivers in place of vvram: avram, which the tool asks like vvram, and bar_export,
/// which has no query, so that the tool follows the rules.
fn others() -> Outcome {
    let gpu = PciDevice::vvram()?;
    let edu = PciDevice::edu()?;
    let module = Module::load()?;
    let split = Split::new(&module, &gpu)?;
    let card = Card::open(&gpu)?;
    let pairs = matrix(&[], false)?;
    let before = pair(&pairs, &gpu, &edu)?;
    let answer = card.query(0, ABLE, &edu)?;
    check_eq!(of_kernel(before), expected(&answer), "the answer of avram");
    for mode in [Mode::Dynamic, Mode::Pinned, Mode::Revocable] {
        let handle = card.create(PAGE64)?;
        let buffer = card.export(handle)?;
        let peer = Peer::open()?;
        let outcome = peer.attach(&buffer, mode);
        let which = format!("avram for edu {}", importer_name(mode));
        attached(before, &card.attachments(handle)?, &which)?;
        check_eq!(outcome.is_ok(), is_peer(before), "{which}");
    }
    drop(card);
    split.undo()?;

    let exporter = Exporter::of(&gpu)?;
    let file = exporter.open()?;
    // The device is no bus master now, so that only the whole matrix has it.
    let pairs = matrix(&["--all"], false)?;
    let before = pair(&pairs, &gpu, &edu)?;
    check_eq!(word(before, "source"), "sysfs", "{before}");
    for mode in [Mode::Dynamic, Mode::Revocable] {
        let buffer = bar_export::export(&file, bar_export::MEMORY, 0, PAGE64)?;
        let outcome = Peer::open()?.attach(&buffer, mode);
        let which = format!("bar_export for edu {}: {before}", importer_name(mode));
        check_eq!(outcome.is_ok(), is_peer(before), "{which}");
    }
    drop((file, exporter));
    works()
}

/// Without privileges each cell is the same as for root, or it is unknown and the value for root is
/// among those that it lists.
fn nobody() -> Outcome {
    let truth = matrix(&["--all", "--sysfs-only"], false)?;
    let seen = matrix(&["--all", "--sysfs-only"], true)?;
    check_eq!(seen.len(), truth.len(), "pairs");
    let mut unknown = 0;
    for (which, pair) in &seen {
        let (path, want) = (word(pair, "path"), word(&truth[which], "path"));
        if path == "unknown" {
            let maybe = all(&pair["sysfs"], "maybe");
            check!(
                maybe.iter().any(|it| it == want) && maybe.len() > 1,
                "{which:?} is {want}, and can be {maybe:?}"
            );
            unknown += 1;
        } else {
            check_eq!(path, want, "{which:?}");
        }
        check!(
            PATHS.iter().any(|it| path_name(*it) == want),
            "{which:?} is {want}"
        );
    }
    check!(
        0 < unknown && unknown < seen.len(),
        "{unknown} of {} are unknown",
        seen.len()
    );
    println!(
        "{unknown} of {} pairs are unknown without privileges",
        seen.len()
    );
    // A driver that answers does so for every user who may open its node.
    let mut open = Vec::new();
    for (gpu, drm) in gpus()? {
        open.push(user::Mode::set(drm.path(), 0o666)?);
        let asked = matrix(&[], true)?;
        let client = PciDevice::edu()?;
        let pair = pair(&asked, &gpu, &client)?;
        check_eq!(
            of_kernel(pair),
            expected(&drm.query(0, ABLE, &client)?),
            "{}",
            gpu.name()
        );
    }
    Ok(())
}

/// `p2p why` between both devices, by all kinds of names.
fn why() -> Outcome {
    let fixture = Fixture::open()?;
    let node = fixture.drm.path().display().to_string();
    let name = node.rsplit('/').next().unwrap_or_default();
    let edu = format!("edu-peer-{}", fixture.edu.name());
    let want = i32::from(fixture.expect == Expect::Refused);
    let short = fixture.gpu.name().trim_start_matches("0000:").to_string();
    // All names of both, with as few runs as possible.
    for (memory, device) in [
        (fixture.gpu.name(), &*edu),
        (name, fixture.edu.name()),
        (&*node, &*edu),
        (&*short, &*edu),
    ] {
        let (status, why) = json(&["why", memory, device], false)?;
        check_eq!(status, want, "exit status for {memory} and {device}");
        check_eq!(
            word(&why["provider"], "address"),
            fixture.gpu.name(),
            "{memory}"
        );
        check_eq!(
            word(&why["client"], "address"),
            fixture.edu.name(),
            "{device}"
        );
        let path = word(&why["answer"], "path");
        check_eq!(path, path_name(fixture.expect.path()), "path");
    }
    let (_, text, _) = run(&["why", name, &edu], false)?;
    println!("{text}");
    let answer = fixture.drm.query(0, ABLE, &fixture.edu)?;
    let mut parts = vec![
        "<- memory",
        "<- accesses it",
        "What to do:",
        "the driver of the memory",
    ];
    parts.push(match fixture.expect {
        Expect::Bus => "peer to peer, by bus address, 4 hops",
        Expect::HostBridge if fixture.translated() => "through the host bridge, by IOVA",
        Expect::HostBridge => "peer to peer through the host bridge",
        Expect::Refused => "not peer to peer",
    });
    if answer.route & uapi::ROUTE_ACS_REDIRECT != 0 {
        parts.push("pci=disable_acs_redir=0000:");
    }
    if fixture.expect == Expect::Refused {
        parts.push("8086:29c0 is not on");
    }
    for part in parts {
        check!(text.contains(part), "{part} is not in {text}");
    }
    let (status, _, errors) = run(&["why", name, "mlx5_7"], false)?;
    check_eq!(status, 2, "exit status for a name that nothing has");
    check!(
        errors.contains("no PCI device is behind \"mlx5_7\""),
        "{errors}"
    );
    Ok(())
}

/// The buffer of an inode in `ls --json`.
#[track_caller]
fn listed(inode: u64, nobody: bool) -> Result<Value, Stop> {
    let (status, ls) = json(&["ls"], nobody)?;
    check_eq!(status, 0, "exit status of ls");
    let found: Vec<_> = all(&ls, "buffers")
        .iter()
        .filter(|it| it["inode"] == inode)
        .collect();
    check_eq!(found.len(), 1, "buffers of inode {inode} in {ls}");
    Ok(found[0].clone())
}

/// Compares a buffer in the output of `p2p ls` with the listing of the driver.
#[track_caller]
fn check_listed(buffer: &Value, object: &Gem<'_>) -> Outcome {
    let (records, _) = object.records()?;
    let seen = all(buffer, "importers");
    check_eq!(seen.len(), records.len(), "importers in {buffer}");
    for (seen, record) in seen.iter().zip(&records) {
        check_eq!(word(seen, "device"), text(&record.device), "{buffer}");
        check_eq!(word(seen, "driver"), text(&record.driver), "{buffer}");
        check_eq!(word(seen, "path"), path_name(record.path), "{buffer}");
        check_eq!(word(seen, "reason"), reason_name(record.reason), "{buffer}");
        check_eq!(seen["hops"], record.distance, "{buffer}");
    }
    Ok(())
}

/// Checks that the tool lists a process as a holder of a buffer, with its file descriptor.
#[track_caller]
fn check_held(buffer: &Value, pid: u32, fd: i32) -> Outcome {
    let holders = all(buffer, "holders");
    let own = holders.iter().find(|it| it["pid"] == pid);
    check!(
        own.is_some_and(|it| it["fd"] == fd),
        "process {pid} with fd {fd} is not in {buffer}"
    );
    Ok(())
}

/// A buffer with an importer that gets it in system memory, and with a refusal.
fn ls() -> Outcome {
    let fixture = Fixture::open()?;
    let object = fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let buffer: DmaBuf = object.export()?;
    buffer.set_name("frame")?;
    let inode = buffer.inode()?;
    let alone = listed(inode, false)?;
    check_eq!(all(&alone, "importers").len(), 0, "importers of {alone}");
    let mut peers = Vec::new();
    for mode in [Mode::Dynamic, Mode::Revocable]
        .into_iter()
        .cycle()
        .take(IMPORTERS)
    {
        let peer = fixture.peer.reopen()?;
        peer.attach(&buffer, mode)?;
        peers.push(peer);
    }
    peers[0].map()?;
    let seen = listed(inode, false)?;
    check_listed(&seen, &object)?;
    check_eq!(all(&seen, "importers").len(), IMPORTERS, "{seen}");
    check_held(&seen, std::process::id(), buffer.fd())?;
    let placement = match fixture.expect {
        Expect::Refused => "system",
        _ => "vram",
    };
    check_eq!(word(&seen, "placement"), placement, "{seen}");
    check_eq!(
        (word(&seen, "name"), word(&seen, "domain")),
        ("frame", "either"),
        "{seen}"
    );
    check_eq!(word(&seen, "device"), fixture.gpu.name(), "{seen}");
    check_eq!(seen["size"], 2 * PAGE64, "{seen}");
    check_eq!(seen["id"], object.info()?.id, "{seen}");
    let (_, text, _) = run(&["ls"], false)?;
    println!("{text}");
    check!(text.contains("\"frame\"") && text.contains("<- "), "{text}");
    Ok(())
}

/// A user who may not read debugfs sees the buffers of its own processes, with the importers if the
/// driver lists them.
fn ls_of_nobody() -> Outcome {
    let fixture = Fixture::open()?;
    let path = fixture.drm.path().to_path_buf();
    let _open = user::Mode::set(&path, 0o666)?;
    let one = PciDevice::vvrams().len() == 1;
    let others = fixture.drm.create(PAGE64)?;
    let theirs = others.export()?;
    let mut child = Child::spawn(|| {
        become_nobody()?;
        let drm = Drm::open_path(&path)?;
        let object = drm.create_flags(PAGE64, EITHER)?;
        let buffer = object.export()?;
        fixture.peer.attach(&buffer, Mode::Dynamic)?;
        let seen = listed(buffer.inode()?, true)?;
        check_held(&seen, std::process::id(), buffer.fd())?;
        check_eq!(word(&seen, "exporter"), "vvram", "{seen}");
        if one {
            check_listed(&seen, &object)?;
            check_eq!(
                object.attachments()?.len(),
                1,
                "attachments after the question"
            );
        } else {
            // With several GPUs the tool lists no importers: to ask a driver it would have to
            // import the buffer, and might do so on another device than the exporter.
            check_eq!(all(&seen, "importers").len(), 0, "{seen}");
        }
        let (_, ls) = json(&["ls"], true)?;
        let notes = all(&ls, "notes").iter().filter_map(Value::as_str);
        // The parent is one of them.
        let hidden = notes.clone().find_map(|note| {
            let (count, what) = note.split_once(' ')?;
            (what == HIDDEN).then(|| count.parse::<u32>().ok())?
        });
        check!(hidden.is_some_and(|count| count > 0), "{ls}");
        let mut unseen =
            notes.filter(|note| note.starts_with("/sys/kernel/debug/dma_buf/bufinfo: "));
        check!(unseen.next().is_some(), "{ls}");
        Ok(())
    })?;
    let outcome = child.join("a client that is nobody", LIMIT);
    drop(theirs);
    outcome
}

/// Events arrive in their order, and `p2p watch` leaves nothing behind when it ends, after a count
/// or by a signal.
fn watch() -> Outcome {
    let tracing = mounted("tracefs", "/sys/kernel/tracing")?;
    let fixture = Fixture::open()?;
    let debugfs = DebugFs::open(&fixture.gpu)?;
    let object = fixture.drm.create_flags(LARGE, EITHER)?;
    let buffer = object.export()?;
    let id = object.info()?.id;
    for count in [Some(3), None] {
        let mut command = Command::new(TOOL);
        command.args(["watch", "--json"]).stdout(Stdio::piped());
        if let Some(count) = count {
            command.args(["--count", &format!("{count}")]);
        }
        let mut tool = command
            .spawn()
            .map_err(|error| SysError::io(TOOL, &error))?;
        let pid = tool.id();
        let instance = tracing.join(format!("instances/p2p-{pid}"));
        let ready = misc::poll(LIMIT, || {
            let on = fs::read_to_string(instance.join("events/drm_peer/enable")).ok()?;
            (on.trim() == "1").then_some(())
        });
        check!(ready.is_some(), "{} is not there", instance.display());
        if count.is_none() {
            // The mapping of an importer without a route moves it to system memory.
            debugfs.write("move", &format!("{id} vram"))?;
        }
        let peer = fixture.peer.reopen()?;
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        if count.is_none() && fixture.expect != Expect::Refused {
            // A peer has it mapped in VRAM.
            debugfs.write("move", &format!("{id} system"))?;
            peer.map()?;
        }
        let over = fixture.peer.reopen()?;
        if count.is_none() && fixture.expect != Expect::Refused {
            over.attach(&buffer, Mode::Revocable)?;
            let limit = debugfs.read("pin_limit")?;
            debugfs.write("pin_limit", "0")?;
            let pin = over.pin();
            debugfs.write("pin_limit", &limit)?;
            expect_errno("a pin over the limit", pin, libc::EDQUOT)?;
        }
        peer.unmap()?;
        let entry = &object.attachments()?[0];
        let Some(out) = tool.stdout.take() else {
            fail!("no output");
        };
        let mut events = Vec::new();
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let event: Value = match serde_json::from_str(&line) {
                Ok(event) => event,
                Err(error) => fail!("{line}: {error}"),
            };
            let is_last = event["event"] == "unmap";
            if event["id"] == id {
                events.push(event);
            }
            if is_last && count.is_none() {
                // SAFETY: the process is a child that was not waited for.
                unsafe { libc::kill(pid as i32, libc::SIGTERM) };
            }
        }
        let status = tool.wait().map_err(|error| SysError::io(TOOL, &error))?;
        check_eq!(status.code(), Some(0), "exit status");
        check!(!instance.exists(), "{} is left", instance.display());
        if count.is_some() {
            check!(events.len() <= 3, "{events:?}");
        }
        let Some(attach) = events.iter().find(|it| it["event"] == "attach") else {
            fail!("no attach in {events:?}");
        };
        check_eq!(word(attach, "exporter"), fixture.gpu.name(), "{attach}");
        check_eq!(word(attach, "importer"), fixture.edu.name(), "{attach}");
        check_eq!(word(attach, "path"), path_name(entry.path), "{attach}");
        check_eq!(
            word(attach, "reason"),
            reason_name(entry.reason),
            "{attach}"
        );
        check_eq!(attach["size"], LARGE, "{attach}");
        check_eq!(attach["ret"], 0, "{attach}");
        let is_fallback = fixture.expect == Expect::Refused;
        check_eq!(attach["fallback"], is_fallback, "{attach}");
        if count.is_none() {
            let names: Vec<_> = events.iter().map(|it| word(it, "event")).collect();
            check!(
                names.contains(&"map") && names.ends_with(&["unmap"]),
                "{names:?}"
            );
            let moved = events.iter().position(|it| {
                (word(it, "event"), word(it, "from"), word(it, "to")) == ("move", "vram", "system")
            });
            let Some(moved) = moved else {
                fail!("no move in {events:?}");
            };
            let (event, before) = (&events[moved], &events[..moved]);
            check_eq!(event["ret"], 0, "{event}");
            check_eq!(event["fallback"], false, "{event}");
            check_eq!(word(event, "exporter"), fixture.gpu.name(), "{event}");
            check_eq!(event["size"], LARGE, "{event}");
            let pins = events.iter().filter(|it| word(it, "event") == "pin");
            let pins: Vec<_> = pins.map(|it| (&it["ret"], word(it, "reason"))).collect();
            let refused = serde_json::json!(-libc::EDQUOT);
            let want = [(&refused, "quota")];
            let want = if is_fallback { &[][..] } else { &want };
            check_eq!(pins, want, "pins");
            let is_notified = before.iter().any(|it| word(it, "event") == "invalidate");
            check!(is_fallback || is_notified, "{names:?}");
        }
    }
    let (status, _, errors) = run(&["watch"], true)?;
    check_eq!(status, 3, "exit status for nobody: {errors}");
    Ok(())
}

/// `p2p doctor` lists what is wrong on this machine, and nothing that is in order.
fn doctor() -> Outcome {
    let fixture = Fixture::open()?;
    let (status, doctor) = json(&["doctor"], false)?;
    let checks = all(&doctor, "checks");
    let state = |part: &str| {
        let found = checks.iter().find(|it| word(it, "text").contains(part));
        found.map_or("", |it| word(it, "state"))
    };
    check_eq!(state("CONFIG_PCI_P2PDMA=y"), "ok", "{doctor}");
    check_eq!(state("driver vvram reports paths"), "ok", "{doctor}");
    check_eq!(state("its largest BAR has 16 MiB"), "ok", "{doctor}");
    let iommu = match fixture.translated() {
        true => "devices use IOVAs through the host",
        false => "none is in use",
    };
    check_eq!(state(iommu), "ok", "{doctor}");
    let (_, topo) = json(&["topo"], false)?;
    let of_use = all(&topo, "devices")
        .iter()
        .filter(|it| it["kind"] != "other");
    let (route, no_route) = match (of_use.count(), fixture.expect) {
        (1, _) => ("", ""),
        (_, Expect::Refused) => ("", "to do"),
        _ => ("ok", ""),
    };
    check_eq!(state("of devices "), route, "{doctor}");
    check_eq!(state("no route: "), no_route, "{doctor}");
    for what in ["debugfs", "tracefs"] {
        let found = checks.iter().find(|it| it["what"] == what);
        check_eq!(
            found.map(|it| word(it, "state")),
            Some("ok"),
            "{what} in {doctor}"
        );
    }
    let to_do = checks.iter().filter(|it| it["state"] == "to do").count();
    check_eq!(
        status,
        i32::from(to_do > 0),
        "exit status with {to_do} to do"
    );
    let (_, text, _) = run(&["doctor"], false)?;
    println!("{text}");
    Ok(())
}

/// Sets the host name; the drop of this restores the old one.
struct HostName(String);

impl HostName {
    const FILE: &'static str = "/proc/sys/kernel/hostname";

    #[track_caller]
    fn set(name: &str) -> Result<Self, Stop> {
        let fail = |error: std::io::Error| SysError::io(Self::FILE, &error);
        let before = fs::read_to_string(Self::FILE).map_err(fail)?;
        fs::write(Self::FILE, name).map_err(fail)?;
        Ok(Self(before))
    }
}

impl Drop for HostName {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, &self.0);
    }
}

/// The report has all parts, and does not reveal the identity of the machine.
fn report() -> Outcome {
    let fixture = Fixture::open()?;
    let _name = HostName::set("quokka")?;
    let object = fixture.drm.create_flags(PAGE64, EITHER)?;
    let buffer = object.export()?;
    buffer.set_name("of-quokka")?;
    let (status, report, _) = run(&["report"], false)?;
    check_eq!(status, 0, "exit status");
    let (_, value) = json(&["report"], false)?;
    let mut secrets = vec!["quokka".to_string()];
    for netdev in fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
    {
        let mac = fs::read_to_string(netdev.path().join("address")).unwrap_or_default();
        // The address of the loopback device is not secret.
        if !mac.starts_with("00:00:00") {
            secrets.push(mac.trim().to_string());
        }
    }
    for text in [&report, &value.to_string()] {
        for secret in secrets.iter().filter(|it| !it.is_empty()) {
            check!(!text.contains(secret.as_str()), "{secret} is in {text}");
        }
        check!(text.contains("of-[host]"), "the buffer is not in {text}");
        check!(
            text.contains(fixture.gpu.name()),
            "the GPU is not in {text}"
        );
    }
    for part in ["== doctor ==", "== topo ==", "== bridges ==", "== ls =="] {
        check!(report.contains(part), "{part} is not in {report}");
    }
    for key in ["doctor", "topo", "bridges", "ls"] {
        check!(!value[key].is_null(), "{key} is not in {value}");
    }
    println!("{report}");
    Ok(())
}

igt_main! {
    "pairs", "each pair of PCI functions: sysfs leads to what the kernel answers", pairs;
    "attach", "what it says before each attach is what the attach gives", attach;
    "others", "the same for avram and bar_export in place of vvram", others;
    "nobody", "without privileges it is the same, or unknown", nobody;
    "why", "the path between both devices, by names of all kinds", why;
    "ls", "a buffer, its importers, and the process that has it", ls;
    "ls-of-nobody", "buffers of a client without privileges", ls_of_nobody;
    "watch", "events in their order, and nothing left behind", watch;
    "doctor", "what is to do on this machine", doctor;
    "report", "all of it, without what tells whose machine it is", report;
}
