// SPDX-License-Identifier: GPL-2.0

//! Programs of other projects with VRAM: perftest, and the verbs provider of libfabric.

use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use vvram_tests::bar_export::{Exporter, MEMORY};
use vvram_tests::debugfs::{difference, DebugFs};
use vvram_tests::drm::{DmaBuf, Drm, Gem};
use vvram_tests::fabric::{choose, Fabric, CLASSES};
use vvram_tests::fixture::{placed, Expect};
use vvram_tests::heap;
use vvram_tests::map::PAGE;
use vvram_tests::misc;
use vvram_tests::pci::PciDevice;
use vvram_tests::peer::Mode;
use vvram_tests::{check, check_eq, fail, igt_main, uapi, Outcome, Stop, SysError};

/// The flags of objects that importers get in VRAM or not at all.
const EXPORT: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
const PROGRAMS: &str = "/lab/rdma";
const ADDRESS: &str = "192.168.77.1";
const LIMIT: Duration = Duration::from_secs(30);

/// A program that is killed if the subtest ends before it does, however it ends.
struct Running(Option<Child>);

impl Running {
    fn start(name: &str, arguments: &[&str]) -> Result<Self, Stop> {
        let mut command = Command::new(Path::new(PROGRAMS).join(name));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let parent = std::process::id();
        // SAFETY: plain system calls, which is all that may be done between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // A program that is left behind would keep VRAM and a port that the next one needs.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                Ok(())
            })
        };
        let child = command
            .spawn()
            .map_err(|error| SysError::io(name, &error))?;
        Ok(Self(Some(child)))
    }

    /// Waits for the end of the program, and returns its output if it succeeded.
    fn output(mut self, what: &str) -> Result<String, Stop> {
        let Some(mut child) = self.0.take() else {
            fail!("{what} was waited for");
        };
        let ended = misc::poll(LIMIT, || child.try_wait().ok()?);
        if ended.is_none() {
            let _ = child.kill();
        }
        let Output {
            status,
            stdout,
            stderr,
        } = child
            .wait_with_output()
            .map_err(|error| SysError::io(what, &error))?;
        let text = String::from_utf8_lossy(&stdout).into_owned();
        check!(
            ended.is_some() && status.success(),
            "{what}, {status}: {text}{}",
            String::from_utf8_lossy(&stderr)
        );
        Ok(text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The average bandwidth in the table that perftest prints, in MiB per second.
fn average(text: &str) -> Option<f64> {
    let mut lines = text.lines();
    lines.find(|line| line.contains("BW average"))?;
    lines.next()?.split_whitespace().nth(3)?.parse().ok()
}

/// How often a program of perftest is run again because it could not calibrate its clock.
const UNTIMED: u32 = 4;

/// Runs both sides of a program of perftest, with the same kind of memory.
///
/// The program first compares two clocks. If it was preempted meanwhile, they do not agree, and the
/// program goes on with a frequency of 0 and prints a bandwidth of 0. It is run again then.
fn perftest(name: &str, memory: &[&str]) -> Result<f64, Stop> {
    for _ in 0..UNTIMED {
        let (speed, text) = perftest_once(name, memory)?;
        match speed {
            Some(speed) if speed > 0.0 => return Ok(speed),
            Some(_) => println!("{name} could not tell the time"),
            None => fail!("{name} printed no bandwidth: {text}"),
        }
    }
    fail!("{name} could not tell the time {UNTIMED} times");
}

/// Runs the program once, and returns the bandwidth and its output.
fn perftest_once(name: &str, memory: &[&str]) -> Result<(Option<f64>, String), Stop> {
    let mut arguments = vec!["-d", "rxe0", "-F", "-m", "1024", "-s", "65536", "-n", "20"];
    arguments.extend(memory);
    let server = Running::start(name, &arguments)?;
    // Check the table of sockets instead of connecting, because the server accepts only one
    // connection, that of the client.
    let listens = misc::poll(LIMIT, || {
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?
            + &std::fs::read_to_string("/proc/net/tcp6").ok()?;
        // Port 18515, in the state LISTEN.
        table
            .lines()
            .any(|line| line.contains(":4853 ") && line.contains(" 0A "))
            .then_some(())
    });
    check!(listens.is_some(), "the server of {name} does not listen");
    arguments.push(ADDRESS);
    let client = Running::start(name, &arguments)?.output(&format!("{name} {memory:?}"))?;
    server.output(&format!("the server of {name} {memory:?}"))?;
    if !memory.is_empty() {
        check!(
            client.contains("ibv_reg_dmabuf_mr"),
            "{name} registered no dma-buf: {client}"
        );
    }
    Ok((average(&client), client))
}

/// The bandwidth of writes and reads for VRAM, for objects of the GPU in system memory, and for
/// memory of the process, in one run.
fn bandwidth() -> Outcome {
    let fabric = Fabric::with_route()?;
    fabric.choose(Mode::Pinned)?;
    let debugfs = DebugFs::open(&fabric.gpu)?;
    let node = format!("--use_vvram={}", fabric.drm.path().display());
    let in_system = ("attach-system", "system-only", 2);
    for name in ["ib_write_bw", "ib_read_bw"] {
        let host = perftest(name, &[])?;
        println!("{name}, host memory: {host:.1} MiB/s");
        for (title, memory, want) in [
            // Registered in VRAM or not at all.
            ("VRAM", &[node.as_str()][..], vec![]),
            (
                "system memory of the GPU",
                &[node.as_str(), "--use_vvram_system"][..],
                vec![in_system],
            ),
        ] {
            let before = debugfs.counters()?;
            let speed = perftest(name, memory)?;
            println!(
                "{name}, {title}: {speed:.1} MiB/s, {:.2} of host memory",
                speed / host
            );
            let counted = difference(&before, &debugfs.counters()?);
            let attached: Vec<_> = counted
                .iter()
                .map(|(what, why, count)| (what.as_str(), why.as_str(), *count))
                .filter(|(what, _, _)| what.starts_with("attach"))
                .collect();
            check_eq!(attached, want, "importers that were not given VRAM");
        }
    }
    Ok(())
}

/// Makes a file descriptor inheritable.
fn inherited(buffer: &DmaBuf) -> Result<RawFd, SysError> {
    // SAFETY: flags of a descriptor that is open.
    if unsafe { libc::fcntl(buffer.fd(), libc::F_SETFD, 0) } < 0 {
        return Err(SysError::last("fcntl(F_SETFD)"));
    }
    Ok(buffer.fd())
}

/// FI_MR_DMABUF of VRAM and system memory, in both directions.
fn libfabric() -> Outcome {
    const SIZE: u64 = 16 * PAGE as u64;
    let fabric = Fabric::with_route()?;
    for class in CLASSES {
        fabric.choose(class)?;
        let vram = |flags| -> Result<(Gem<'_>, DmaBuf), Stop> {
            let object = fabric.drm.create_flags(SIZE, flags)?;
            let shared = object.export()?;
            Ok((object, shared))
        };
        let (one, shared) = vram(EXPORT)?;
        let (two, other) = vram(EXPORT)?;
        let (three, system) = vram(uapi::CREATE_SYSTEM)?;
        let name = |buffer: &DmaBuf| -> Result<String, SysError> {
            Ok(format!("fd:{}", inherited(buffer)?))
        };
        let (shared, other, system) = (name(&shared)?, name(&other)?, name(&system)?);
        let pairs = [
            (shared.as_str(), other.as_str()),
            ("host", &shared),
            (&shared, "host"),
            (&shared, &system),
            (&system, &shared),
        ];
        // The classes differ only in the registration of memory, so one class does all operations.
        let all = class == Mode::Pinned || misc::soak() > 1;
        for (from, to) in &pairs[..if all { pairs.len() } else { 2 }] {
            let size = SIZE.to_string();
            let arguments = [
                "--address",
                ADDRESS,
                "--size",
                &size,
                "--from",
                from,
                "--to",
                to,
            ];
            let text = Running::start("fi_dmabuf", &arguments)?
                .output(&format!("fi_dmabuf from {from} to {to} as {class:?}"))?;
            let verified = text
                .lines()
                .filter(|line| line.starts_with("ok ") && line.ends_with("verified"))
                .count();
            check_eq!(verified, 3, "operations that were verified: {text}");
        }
        placed(&one, uapi::PLACEMENT_VRAM)?;
        placed(&two, uapi::PLACEMENT_VRAM)?;
        placed(&three, uapi::PLACEMENT_SYSTEM)?;
    }
    Ok(())
}

/// The project's own program, with VRAM of both GPUs, system memory and a descriptor of another
/// exporter.
fn own() -> Outcome {
    let fabric = Fabric::with_route()?;
    fabric.choose(Mode::Pinned)?;
    let heap = heap::allocate(16 * PAGE as u64)?;
    let heap = format!("fd:{}", inherited(&heap)?);
    let mut buffers = PciDevice::vvrams()
        .iter()
        .map(|gpu| Ok(format!("vvram:{}", Drm::open_on(gpu)?.path().display())))
        .collect::<Result<Vec<_>, Stop>>()?;
    check_eq!(buffers.len(), 2, "GPUs");
    buffers.extend([heap, "vvram-system".into(), "host".into()]);
    let mut arguments = vec!["--size", "64K", "--loops", "1"];
    for buffer in &buffers {
        arguments.extend(["--buffer", buffer]);
    }
    // Otherwise the program would leave the atomic operations out.
    check!(fabric.nic.atomics(), "the device has no atomic operations");
    let text = Running::start("/lab/bin/p2p-rdma", &arguments)?.output("p2p-rdma")?;
    println!("{text}");
    Ok(())
}

/// p2p-rdma and a BAR that no driver of its own has: every byte is moved and compared, unless the
/// importer cannot be revoked or has no route.
fn bar() -> Outcome {
    let expect = Expect::get()?;
    let exporter = Exporter::new()?;
    // Its node may come a little later.
    drop(exporter.open()?);
    let buffer = format!("bar:{}/{MEMORY}+64K", exporter.gpu().name());
    let mut arguments = vec!["--size", "64K", "--loops", "1", "--buffer", &buffer];
    for class in CLASSES {
        choose(class)?;
        let what = format!("p2p-rdma with {buffer} as {class:?}");
        let result = Running::start("/lab/bin/p2p-rdma", &arguments)?.output(&what);
        if class == Mode::Pinned || expect == Expect::Refused {
            match result {
                Err(stop) if stop.text().contains("EOPNOTSUPP") => (),
                other => fail!("{what}: {other:?}"),
            }
        } else {
            println!("{}", result?);
        }
    }
    choose(Mode::Dynamic)?;
    arguments.push("--hold");
    let held = Running::start("/lab/bin/p2p-rdma", &arguments)?.output("p2p-rdma --hold");
    if expect != Expect::Refused {
        let text = held?;
        check!(text.contains("65536 bytes are registered"), "{text}");
    }
    Ok(())
}

igt_main! {
    "own", "p2p-rdma, between all kinds of memory", own;
    "bar", "p2p-rdma, with a BAR that bar_export exports", bar;
    "bandwidth", "perftest's ib_write_bw and ib_read_bw", bandwidth;
    "libfabric", "fi_write, fi_read and fi_send between dma-bufs", libfabric;
}
