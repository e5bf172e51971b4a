// SPDX-License-Identifier: GPL-2.0

//! A run of the fuzzer, and its findings.

use std::fs;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::calls::{table, Op};
use super::corpus::Step;
use super::coverage::Trace;
use super::root::{devices, open_up, Root};
use super::thread::{open_all, Rules};
use super::worker::{self, Plan, Program, PROCESSES};
use super::world::{World, FILES, FIRST_CHILD, LOGS, MINE, UNDER_WAY};
use crate::auxiliary::{Module, Split};
use crate::bar_export::Exporter;
use crate::describe::File;
use crate::faults::{Faults, Snapshot};
use crate::fixture::setting;
use crate::igt::{self, say};
use crate::misc::{self, mix, poll};
use crate::pci::PciDevice;
use crate::proc::{Child, Exit, KernelLog};
use crate::socket::sockets;
use crate::{errno_name, Outcome, Stop};

/// What is different about a phase.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Its share of the time, in percent.
    pub share: u64,
    /// Whether the processes are of the user nobody.
    pub nobody: bool,
    /// Whether an administrator unbinds drivers and resets devices meanwhile.
    pub root: bool,
    /// Whether allocations fail on purpose.
    pub faults: bool,
}

/// All phases.
pub const PHASES: [Phase; 3] = [
    Phase {
        name: "user",
        share: 50,
        nobody: true,
        root: false,
        faults: false,
    },
    Phase {
        name: "root",
        share: 30,
        nobody: false,
        root: true,
        faults: false,
    },
    Phase {
        name: "faults",
        share: 20,
        nobody: false,
        root: false,
        faults: true,
    },
];

/// Seconds of all phases together, unless `VVRAM_FUZZ_TIME` says otherwise.
const TIME: u64 = 30;
/// The longest time that an unbind may take. Behind many others it may wait for a transfer of edu.
const UNBIND: Duration = Duration::from_secs(20);
/// The longest time of a program that is repeated, and for which one is shortened.
const REPEATED: Duration = Duration::from_secs(20);
const SHORTENED: Duration = Duration::from_secs(90);

fn number(name: &str) -> Option<u64> {
    setting(name)?.parse().ok()
}

/// Lines of the kernel log that are a finding whatever the phase.
fn is_complaint(line: &str) -> bool {
    let signs = [
        "WARNING: ",
        "BUG: ",
        "KASAN",
        "UBSAN",
        "Oops",
        "DMA-API: ",
        "refcount_t",
        "INFO: task",
        "self-detected stall",
        "general protection",
    ];
    signs.iter().any(|sign| line.contains(sign))
}

/// Some of the devices with other drivers, if there are more than the other tests use.
#[derive(Debug, Default)]
struct Spare {
    // Dropped in this order.
    bar: Option<Exporter>,
    split: Option<Split>,
    module: Option<Module>,
}

impl Spare {
    fn new() -> Result<Self, Stop> {
        let mut spare = Self::default();
        let gpus = PciDevice::vvrams();
        // A second device cannot be bound to avram, which is finding F5.
        if let [_, .., avram, bar] = gpus.as_slice() {
            spare.bar = Some(Exporter::of(bar)?);
            let module = Module::load()?;
            spare.split = Some(Split::new(&module, avram)?);
            spare.module = Some(module);
        }
        Ok(spare)
    }
}

/// A run with its results.
#[derive(Debug)]
pub struct Run {
    /// What went wrong, in words.
    pub findings: Vec<String>,
    /// The calls that were made last.
    pub program: Program,
}

/// Where programs are written to.
fn results() -> String {
    std::env::var("LAB_RESULTS").unwrap_or_else(|_| "/tmp".to_string())
}

/// Writes the calls of all threads to a file while they are made.
#[derive(Debug)]
struct Recorder {
    path: String,
    file: Option<fs::File>,
    written: [u64; LOGS],
}

impl Recorder {
    fn new(phase: &str) -> Self {
        let path = format!("{}/fuzz-{phase}.calls", results());
        let file = fs::File::create(&path).ok();
        Self {
            path,
            file,
            written: [0; LOGS],
        }
    }

    /// Appends what is new.
    fn record(&mut self, world: &World) {
        let mut text = String::new();
        for (thread, written) in self.written.iter_mut().enumerate() {
            let log = world.log(thread);
            // Calls begin meanwhile; the next time records them.
            let end = log.len();
            for (step, result) in log.of(*written..end) {
                let result = match result {
                    0 => "ok".to_string(),
                    UNDER_WAY => "under way".to_string(),
                    errno => errno_name(errno as i32),
                };
                text += &format!("{thread} {step} # {result}\n");
            }
            *written = end;
        }
        if let Some(file) = &mut self.file {
            let _ = file.write_all(text.as_bytes());
        }
    }
}

/// Parses a file of a [`Recorder`].
pub fn parse(text: &str) -> Option<Program> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let thread = words.next()?.parse().ok()?;
        Some((thread, Step::parse(&mut words)?))
    };
    let all: Option<Program> = text.lines().map(line).collect();
    // The threads fork their children themselves.
    all.map(|all| {
        all.into_iter()
            .filter(|call| call.0 < FIRST_CHILD)
            .collect()
    })
}

/// Kills the processes of a phase that do not end, and says where they hang.
fn end(world: &World, children: &mut [Child], findings: &mut Vec<String>) {
    world.stop.store(1, Ordering::Relaxed);
    for child in children.iter_mut() {
        match child.wait(Duration::from_secs(10)) {
            Some(Exit::Code(0)) => {}
            Some(exit) => findings.push(format!("a process has ended with {exit:?}")),
            // A thread may wait for something that no signal ends, see [`worker::run`].
            None => {
                child.signal(libc::SIGKILL);
                if child.wait(Duration::from_secs(10)).is_none() {
                    findings.push(format!("a process does not end: {}", threads(child.pid())));
                }
            }
        }
    }
    let gone = poll(Duration::from_secs(10), || {
        (world.children.load(Ordering::Relaxed) == 0 || !forked()).then_some(())
    });
    if gone.is_none() {
        findings.push("a forked process does not end".to_string());
    }
}

/// Whether there is a process with addresses of the arena.
fn forked() -> bool {
    let own = std::process::id().to_string();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            let name = entry.file_name();
            name.to_string_lossy() != own.as_str()
                && name
                    .to_string_lossy()
                    .bytes()
                    .all(|byte| byte.is_ascii_digit())
                && fs::read_to_string(entry.path().join("maps"))
                    .is_ok_and(|maps| maps.lines().any(|line| line.starts_with("1000")))
        })
}

/// Where the threads of a process are.
fn threads(pid: i32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .map(|task| {
            let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            format!("{}: {}", read("comm").trim(), read("stack"))
        })
        .collect()
}

/// Runs the processes for a time; what went wrong, and the calls.
///
/// # Errors
///
/// Any error of the preparations.
pub fn run(
    world: &'static World,
    phase: Phase,
    seed: u64,
    time: Duration,
    program: Option<Program>,
) -> Result<Run, Stop> {
    let mut log = KernelLog::open()?;
    let faults = if phase.faults {
        Some(Faults::new()?)
    } else {
        None
    };
    let (one, other) = sockets()?;
    use std::os::fd::AsRawFd;
    for socket in [&one, &other] {
        // SAFETY: a plain system call.
        unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    }
    let disk = disk();
    let most = number("VVRAM_FUZZ_CALLS").map_or(u64::MAX, |calls| calls * phase.share / 100);
    let repeats = program.is_some();
    let traced = !repeats && Trace::possible()?;
    let plan = Plan {
        seed,
        traced,
        guided: traced && number("VVRAM_FUZZ_GUIDED") != Some(0),
        nobody: phase.nobody,
        rules: Rules {
            unbinds: phase.root,
            faults: phase.faults,
            sockets: [one.as_raw_fd(), other.as_raw_fd()],
            disk: disk.as_ref().map(|disk| disk.as_raw_fd()),
        },
        program,
    };
    world.begin();
    open_up();
    open_all(world);
    let mut children = Vec::new();
    for process in 0..PROCESSES {
        let plan = &plan;
        children.push(Child::spawn(move || worker::run(world, plan, process))?);
    }
    let mut recorder = Recorder::new(if repeats { "again" } else { phase.name });
    let mut root = phase.root.then(|| Root::new(mix(seed, 2000)));
    let mut findings = Vec::new();
    let begin = Instant::now();
    let mut slept = false;
    // A busy host gets more time, until each call has succeeded.
    let more = |elapsed| {
        let all = !phase.nobody || repeats || elapsed > time * misc::slower();
        elapsed < time || !all && !never(world).is_empty()
    };
    while more(begin.elapsed()) && world.calls.load(Ordering::Relaxed) < most {
        std::thread::sleep(Duration::from_millis(100));
        recorder.record(world);
        findings.extend(log.lines().into_iter().filter(|line| is_complaint(line)));
        if !findings.is_empty() || children.iter_mut().all(|child| child.ended().is_some()) {
            break;
        }
        if let Some(root) = &mut root {
            root.act();
            if !slept && begin.elapsed() > time / 2 {
                slept = true;
                root.sleep();
            }
        }
    }
    end(world, &mut children, &mut findings);
    recorder.record(world);
    for number in 0..FILES {
        if let Some(fd) = MINE.take(world, number) {
            // SAFETY: the file was opened for random calls.
            unsafe { libc::close(fd) };
        }
    }
    drop((one, other, faults));
    findings.extend(log.lines().into_iter().filter(|line| is_complaint(line)));
    let calls = world.calls.load(Ordering::Relaxed);
    let (seconds, path) = (begin.elapsed().as_secs_f64(), recorder.path);
    say(&format!("{calls} calls in {seconds:.1} s, {path}"));
    let disturbed = report(world, phase, root, &mut findings);
    // A finding may have ended all calls.
    if !repeats && findings.is_empty() {
        report_coverage(world, &plan)?;
    }
    check!(
        repeats || disturbed > 0 || !findings.is_empty(),
        "no allocation has failed, or no driver was unbound and no device reset"
    );
    let program = fs::read_to_string(path).ok().and_then(|text| parse(&text));
    Ok(Run {
        findings,
        program: program.unwrap_or_default(),
    })
}

/// Prints what the calls of this program have reached so far.
fn report_coverage(world: &World, plan: &Plan) -> Outcome {
    if !plan.traced {
        say("the kernel has no kcov, so nothing guides the calls");
        return Ok(());
    }
    let (places, kept) = (world.places.count(), world.corpus.kept());
    let guide = if plan.guided { "guide" } else { "do not guide" };
    say(&format!(
        "{places} places reached, {kept} sequences of calls kept, which {guide} the calls"
    ));
    check!(
        places > 0,
        "kcov has seen no place of our code: is it instrumented?"
    );
    Ok(())
}

/// Prints what has disturbed the calls, and adds findings that are not in the kernel log; how often
/// they were disturbed, or 1 if that is not the point of the phase.
fn report(world: &World, phase: Phase, root: Option<Root>, findings: &mut Vec<String>) -> u64 {
    for (errno, step) in world.odd() {
        let (name, errno) = (table().name(step.op), errno_name(errno));
        findings.push(format!(
            "{name} failed with {errno}, which is not listed (call {step})"
        ));
    }
    if phase.faults {
        let injected = world.injected.load(Ordering::Relaxed);
        say(&format!(
            "{injected} allocations or copies failed on purpose"
        ));
        return injected;
    }
    let Some(root) = root else {
        return 1;
    };
    let done = root.report();
    let (time, what) = root.longest;
    say(&format!(
        "the longest: {what} in {:.1} s",
        time.as_secs_f64()
    ));
    if time > UNBIND * misc::slower() {
        findings.push(format!("{what} took {time:?}"));
    }
    done.into()
}

/// A disk for direct I/O, if there is one.
fn disk() -> Option<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    crate::disk::load("nvme").ok()?;
    let open = || {
        let mut options = fs::File::options();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        options.open("/dev/nvme0n1").ok()
    };
    if PciDevice::nvmes().is_empty() {
        return None;
    }
    poll(Duration::from_secs(5), open)
}

/// Unbinds all drivers and binds them again.
fn rebind() -> Outcome {
    for device in devices() {
        let (pci, driver) = (&device.pci, &device.driver);
        let mut child = Child::spawn(|| {
            pci.unbind(driver)?;
            Ok(pci.bind(driver)?)
        })?;
        child.join(
            &format!("unbinding and binding {} of {driver}", pci.name()),
            UNBIND,
        )?;
    }
    Ok(())
}

/// Runs a phase as a subtest.
///
/// # Errors
///
/// Fails the subtest if there is a finding.
pub fn subtest(world: &'static World, phase: Phase) -> Outcome {
    let seed = misc::nonce();
    say(&format!("seed {}, {} processes", misc::seed(), PROCESSES));
    let spare = Spare::new()?;
    rebind()?;
    let before = Snapshot::take()?;
    let time = number("VVRAM_FUZZ_TIME").unwrap_or(TIME) * phase.share / 100;
    let run = run(world, phase, seed, Duration::from_secs(time), None)?;
    let clean = run.findings.is_empty();
    print(world);
    for finding in &run.findings {
        say(&format!("finding: {finding}"));
    }
    if !clean {
        say("the last calls of each thread, the newest last:");
        for thread in 0..LOGS {
            let names: Vec<_> = world
                .log(thread)
                .last(8)
                .iter()
                .map(|(step, _)| table().name(step.op))
                .collect();
            say(&format!("    {thread}: {}", names.join(", ")));
        }
        print_short(world, phase, &run)?;
        fail!(
            "{} findings, of which the first is: {}",
            run.findings.len(),
            run.findings[0]
        );
    }
    if !phase.root {
        before.compare("after all files are closed")?;
    }
    rebind()?;
    before.compare("after all drivers were unbound")?;
    if !phase.root && !phase.faults {
        let never = never(world);
        check!(never.is_empty(), "never successful: {}", never.join(", "));
    }
    drop(spare);
    Ok(())
}

/// Prints how often each call was made.
pub fn print(world: &World) {
    say(&format!(
        "{:34} {:>8} {:>8} {:>9}  errors",
        "call", "made", "ok", "longest"
    ));
    for op in 0..table().len() {
        let count = world.count(op);
        if count.calls() == 0 {
            continue;
        }
        let mut errors = count.errors();
        errors.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let errors: Vec<_> = errors
            .iter()
            .map(|(errno, count)| format!("{} {count}", errno_name(*errno)))
            .collect();
        say(&format!(
            "{:34} {:8} {:8} {:7.2} s  {}",
            table().name(op),
            count.calls(),
            count.ok(),
            count.slowest() as f64 / 1e6,
            errors.join(", ")
        ));
    }
}

/// The calls that have never succeeded although the machine has a device for them.
fn never(world: &World) -> Vec<&'static str> {
    let drivers: Vec<_> = devices().into_iter().map(|device| device.driver).collect();
    let has = |kind: &File| {
        let driver = match kind {
            File::Vvram => "vvram",
            File::Mgpu => "mgpu",
            File::Avram => "avram",
            File::Bar => "bar_export",
            _ => return true,
        };
        drivers.iter().any(|known| known == driver)
    };
    let failed = |op: &usize| match table().op(*op) {
        Op::Ioctl(call) => call.on.iter().any(has) && world.count(*op).ok() == 0,
        Op::Core(_) => false,
    };
    let all = (0..table().len()).filter(failed);
    all.map(|op| table().name(op)).collect()
}

/// The lines of a program, as [`parse`] reads them.
pub fn written(program: &Program) -> Vec<String> {
    let line = |(thread, step): &(usize, Step)| format!("{thread} {step}");
    program.iter().map(line).collect()
}

/// Repeats a program in a process of its own; whether a text is among the findings.
///
/// # Errors
///
/// Any error of fork(2).
pub fn shows(
    world: &'static World,
    phase: Phase,
    program: &Program,
    text: &str,
) -> Result<bool, Stop> {
    let mut child = Child::spawn(|| {
        let program = Some(program.clone());
        let run = run(world, phase, misc::nonce(), REPEATED, program)?;
        let mut found = run.findings.iter().filter(|finding| finding.contains(text));
        match found.next() {
            Some(_) => Ok(()),
            None => fail!("{} other findings", run.findings.len()),
        }
    })?;
    let exit = child.wait(2 * REPEATED);
    Ok(exit == Some(Exit::Code(igt::EXIT_SUCCESS)))
}

/// What a finding has in common with the same one in another run.
fn key(finding: &str) -> &str {
    let ends = ["(call", " at ", "CPU", "PID", "process "];
    let end = ends.iter().filter_map(|end| finding.find(end)).min();
    &finding[..end.unwrap_or(finding.len())]
}

/// Shortens the program of a finding for some time, and prints it.
fn print_short(world: &'static World, phase: Phase, run: &Run) -> Outcome {
    let begin = Instant::now();
    let text = key(&run.findings[0]);
    if !shows(world, phase, &run.program, text)? {
        say("the same calls do not show it once more");
        return Ok(());
    }
    let short = shorten(run.program.clone(), |program| {
        Ok(begin.elapsed() < SHORTENED && shows(world, phase, program, text)?)
    })?;
    say(&format!(
        "{} calls that show it, for fuzz_calls --replay:",
        short.len()
    ));
    for line in written(&short) {
        say(&line);
    }
    Ok(())
}

/// Shortens a program for as long as a text is among the findings: parts of it are left out, in
/// halves at first.
///
/// # Errors
///
/// Any error of [`run`].
pub fn shorten(
    program: Program,
    mut shows: impl FnMut(&Program) -> Result<bool, Stop>,
) -> Result<Program, Stop> {
    let mut program = program;
    let mut part = program.len() / 2;
    while part > 0 {
        let mut first = 0;
        while first < program.len() {
            let mut shorter = program.clone();
            shorter.drain(first..(first + part).min(shorter.len()));
            if shows(&shorter)? {
                program = shorter;
            } else {
                first += part;
            }
        }
        part /= 2;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_written_as_it_is_read() {
        let world = World::new().unwrap();
        let kind = table().named("syncobj_handle_to_fd of a fence").unwrap();
        let step = Step::new(0xabc, Some(kind));
        world.log(2).begin(&step);
        let mut recorder = Recorder::new("test");
        recorder.record(world);
        let text = fs::read_to_string(&recorder.path).unwrap();
        fs::remove_file(&recorder.path).unwrap();
        assert_eq!(parse(&text), Some(vec![(2, step)]));
        assert_eq!(
            written(&vec![(2, step)]).join("\n") + " # under way\n",
            text
        );
        assert_eq!(parse("1 2 nothing"), None);
    }

    #[test]
    fn the_same_finding_has_the_same_key() {
        let key = |thread| {
            super::key(&format!("WARNING: a.c:7 at f+0x{thread}, CPU#{thread}")).to_string()
        };
        assert_eq!(key(1), key(2));
        assert_eq!(
            super::key("x failed with EIO (call 0x7)"),
            "x failed with EIO "
        );
    }

    #[test]
    fn a_program_is_shortened_to_what_matters() {
        let call = |seed| (0, Step::new(seed, Some(0)));
        let all: Program = (0..100).map(call).collect();
        let shows = |program: &Program| {
            let has = |seed| program.contains(&call(seed));
            Ok(has(17) && has(80))
        };
        let short = shorten(all, shows).unwrap();
        assert_eq!(short, [call(17), call(80)]);
    }
}
