// SPDX-License-Identifier: GPL-2.0

//! Measures the cost of jobs and moves by the copy engine of the modelled GPU, in instructions.
//!
//! For a guest under icount, whose clock counts instructions. Prints and writes one figure per
//! line, `name value`; the lab makes a table of the figures and checks them. The time that the
//! device takes does not matter, because only instructions of the processors are counted.

use std::process::ExitCode;
use std::time::Duration;

use vvram_tests::clock::{self, Costs};
use vvram_tests::compute::{Bench, Op, HUGE, RESULTS};
use vvram_tests::debugfs::Counter;
use vvram_tests::drm::EITHER;
use vvram_tests::fence::SyncObj;
use vvram_tests::figures::{self, Figures};
use vvram_tests::fixture::{patterns, placed};
use vvram_tests::map::PAGE64;
use vvram_tests::mgpu::{holds, Error, Mgpu, COMPUTE, COPY, DRIVER};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::spent::Asked;
use vvram_tests::syncfile::SyncFile;
use vvram_tests::trace::{Moment, Running};
use vvram_tests::uapi::{self, SyncEntry, VvramGemCopy};
use vvram_tests::{check, check_eq, Outcome, Stop, SysError};

const MIB: u64 = 1 << 20;
const SIZES: [(&str, u64); 3] = [("4k", PAGE64), ("2m", 2 * MIB), ("256m", 256 * MIB)];
/// The doorbell was rung.
const STARTED: &str = "drm_queue_started";
/// An interrupt of any device.
const INTERRUPT: &str = "irq_handler_entry";
const SIGNALED: &str = "dma_fence_signaled";
/// How long a job may take: the clock of an idle guest runs faster than the device.
const LIMIT: Duration = Duration::from_secs(3600);
/// The numbers of objects that an address space maps.
const MAPPED: [u64; 2] = [1, 64];

/// How often a figure is measured again because the processor was at work when an interrupt came.
const AGAIN: usize = 256;
/// How many milliseconds the device takes for an entry, so that the processor has nothing to do
/// any more when it is done.
const SLOW: u32 = 20;

/// Returns the index of the first event with a name and with this word, from an index on.
fn next(events: &[Moment], from: usize, name: &str, word: &str) -> Result<usize, Stop> {
    events[from..]
        .iter()
        .position(|event| event.name == name && event.has(word))
        .map(|index| from + index)
        .ok_or_else(|| Stop::fail(format_args!("no {name} with {word:?} in {events:?}")))
}

/// Returns the word of a field of an event.
fn field<'a>(event: &'a Moment, key: &str) -> Result<&'a str, Stop> {
    event
        .fields
        .split_whitespace()
        .find(|word| word.split('=').next() == Some(key))
        .ok_or_else(|| Stop::fail(format_args!("no {key} in {event:?}")))
}

/// Waits for a job.
fn done(fence: &SyncFile) -> Outcome {
    check!(fence.wait(LIMIT)?, "a fence does not signal");
    check_eq!(fence.status()?, 1, "status of the job");
    Ok(())
}

/// Traces what runs while the device works for this task: `call` asks for that, and `wait` waits
/// until all of it is done.
///
/// [`None`] if the processor was at work when an interrupt came.
fn traced<T>(
    trace: &Running,
    call: impl FnOnce() -> Result<T, Stop>,
    wait: impl FnOnce(T) -> Outcome,
) -> Result<Option<(Asked<'static>, Vec<Moment>, usize)>, Stop> {
    let (time, events) = trace.during(|| {
        clock::settle();
        let begin = clock::now();
        let result = call()?;
        let end = clock::now();
        wait(result)?;
        clock::settle();
        Ok(begin..end)
    })?;
    let asked = Asked {
        task: std::process::id(),
        time,
        interrupt: DRIVER,
    };
    Ok(asked
        .interrupts(&events)
        .map(|interrupts| (asked, events, interrupts)))
}

/// Measures jobs of a ring, one after the other.
fn jobs(
    gpu: &Mgpu,
    trace: &Running,
    figures: &mut Figures,
    name: &str,
    (ring, word): (u32, &str),
    call: impl Fn(&[SyncEntry]) -> Result<(), SysError>,
) -> Outcome {
    const ROUNDS: usize = 64;
    let out = SyncObj::new(gpu.drm.fd())?;
    let call = || Ok(call(&[out.sync(0)])?);
    let wait = |()| done(&out.file()?);
    // The first job makes allocations that are not to be measured.
    wait(call()?)?;
    let (mut submit, mut finish) = (Costs::default(), Costs::default());
    gpu.inject_into(ring, Error::Slow, SLOW)?;
    let mut again = 0;
    while submit.count() < ROUNDS {
        let Some((asked, events, _)) = traced(trace, call, wait)? else {
            again += 1;
            check!(again < AGAIN, "too many interrupts are early");
            continue;
        };
        // The end of the job before may be in the trace as well.
        let first = events.partition_point(|event| event.time < asked.time.start);
        let started = next(&events, first, STARTED, word)?;
        submit.add(asked.spent(&events, 0..events[started].time));
        let interrupt = next(&events, started, INTERRUPT, "name=mgpu")?;
        let context = field(&events[started], "context")?;
        let signaled = next(&events, interrupt, SIGNALED, context)?;
        finish.add(asked.spent(&events, events[interrupt].time..events[signaled].time));
    }
    gpu.inject_into(ring, Error::Slow, 0)?;
    // At times a thread or a worker is still awake and need not be woken.
    figures.typical(&format!("{name}.submit"), &submit);
    figures.typical(&format!("{name}.finish"), &finish);
    Ok(())
}

/// Copies of a page.
fn copies(gpu: &Mgpu, trace: &Running, figures: &mut Figures) -> Outcome {
    let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
    let (x, y) = patterns();
    from.map()?.fill(x);
    to.map()?.fill(y);
    let argument = VvramGemCopy {
        src: from.handle(),
        dst: to.handle(),
        size: PAGE64,
        ..Default::default()
    };
    jobs(
        gpu,
        trace,
        figures,
        "job",
        (COPY, "ring=mgpu-copy"),
        |outs| gpu.drm.copy_syncs(&argument, &[], outs),
    )?;
    holds(&to, x, "the copy")
}

/// Jobs of an address space that maps a number of objects, none of which is private to it.
fn programs(gpu: &Mgpu, trace: &Running, figures: &mut Figures) -> Outcome {
    for count in MAPPED {
        let bench = Bench::new(gpu)?;
        let mut objects = Vec::new();
        for index in 1..count {
            let object = gpu.drm.create(PAGE64)?;
            bench.vm.bind(&object, HUGE * index)?;
            objects.push(object);
        }
        bench.results.write(0, 0);
        jobs(
            gpu,
            trace,
            figures,
            &format!("job.exec-{count}"),
            (COMPUTE, "ring=mgpu-compute"),
            |outs| bench.vm.exec_syncs(&[Op::add(RESULTS, 1)], &[], outs),
        )?;
        check!(bench.results.read(0) > 0, "no job has run");
    }
    Ok(())
}

/// Moves an object of one size there and back.
///
/// A map by a static importer moves the object to system memory, and a map by a peer moves it back
/// to VRAM.
fn moves(gpu: &Mgpu, trace: &Running, name: &str, size: u64, figures: &mut Figures) -> Outcome {
    // A large object takes long.
    let rounds = if size > 16 << 20 { 6 } else { 32 };
    let object = gpu.drm.create_flags(size, EITHER)?;
    let (pattern, _) = patterns();
    object.map()?.fill(pattern);
    let buffer = object.export()?;
    let peer = Peer::open()?;
    gpu.inject_into(COPY, Error::Slow, SLOW)?;
    let mut costs = [(); 2].map(|()| (0, Costs::default()));
    let mut moves = 0;
    while costs.iter().any(|(_, costs)| costs.count() < rounds) {
        check!(moves < AGAIN, "too many interrupts are early");
        moves += 1;
        let before = gpu.drm.counter(Counter::Moves)?;
        for ((most, costs), (mode, to)) in costs.iter_mut().zip([
            (Mode::Static, uapi::PLACEMENT_SYSTEM),
            (Mode::Dynamic, uapi::PLACEMENT_VRAM),
        ]) {
            let peer = peer.reopen()?;
            peer.attach(&buffer, mode)?;
            let found = traced(trace, || Ok(peer.map()?), |()| Ok(()))?;
            placed(&object, to)?;
            peer.unmap()?;
            peer.detach()?;
            // The device may have been done with two parts when the first interrupt was handled.
            if let Some((asked, events, interrupts)) = found {
                if *most < interrupts {
                    (*most, *costs) = (interrupts, Costs::default());
                }
                if *most == interrupts {
                    costs.add(asked.spent(&events, 0..u64::MAX));
                }
            }
        }
        check_eq!(gpu.drm.counter(Counter::Moves)? - before, 2, "moves");
    }
    gpu.inject_into(COPY, Error::Slow, 0)?;
    holds(&object, pattern, "after the moves")?;
    for (way, (interrupts, costs)) in ["out", "back"].into_iter().zip(&costs) {
        check!(*interrupts > 0, "the engine has not moved {name}");
        figures.typical(&format!("engine.{name}.{way}"), costs);
        figures.add(
            &format!("engine.{name}.{way}.interrupts"),
            *interrupts as u64,
        );
    }
    Ok(())
}

fn bench(figures: &mut Figures) -> Outcome {
    clock::stay_in_memory()?;
    clock::go_first()?;
    let gpu = Mgpu::first()?;
    let trace = Running::new()?;
    copies(&gpu, &trace, figures)?;
    programs(&gpu, &trace, figures)?;
    for (name, size) in SIZES {
        moves(&gpu, &trace, name, size, figures)?;
    }
    gpu.clean()
}

fn main() -> ExitCode {
    figures::main(&[("", bench)])
}
