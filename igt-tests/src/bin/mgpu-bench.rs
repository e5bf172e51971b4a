// SPDX-License-Identifier: GPL-2.0

//! Measures the cost of jobs and moves by the copy engine of the modelled GPU, in instructions.
//!
//! For a guest under icount, whose clock counts instructions. Prints and writes one figure per
//! line, `name value`; the lab makes a table of the figures and checks them. The time that the
//! device takes does not matter, because only instructions of the processors are counted.

use std::process::ExitCode;
use std::time::Duration;

use vvram_tests::clock::{self, Costs, Others};
use vvram_tests::compute::{Bench, Op, HUGE, RESULTS};
use vvram_tests::drm::EITHER;
use vvram_tests::figures::{self, Figures};
use vvram_tests::fixture::{patterns, placed};
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::{holds, Error, Mgpu, COMPUTE, COPY};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::syncfile::SyncFile;
use vvram_tests::trace::{Jobs, Moment};
use vvram_tests::{check, check_eq, uapi, Outcome, Stop, SysError};

const PAGE64: u64 = PAGE as u64;
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

/// Measures jobs of a ring, one after the other.
fn jobs(
    gpu: &Mgpu,
    figures: &mut Figures,
    name: &str,
    (ring, word): (u32, &str),
    call: impl Fn() -> Result<SyncFile, SysError>,
) -> Outcome {
    const ROUNDS: usize = 64;
    // The first job makes allocations that are not to be measured.
    done(&call()?)?;
    let (mut submit, mut finish) = (Costs::default(), Costs::default());
    // The guest stands still while the device handles a write to its doorbell. A device that is too
    // fast would have sent its interrupt when the guest goes on.
    gpu.inject_into(ring, Error::Slow, 20)?;
    let mut early = 0;
    for _ in 0..ROUNDS {
        let (events, begin, started) = loop {
            let trace = Jobs::with_interrupts()?;
            clock::settle();
            let begin = clock::now();
            done(&call()?)?;
            let events = trace.moments()?;
            let started = next(&events, 0, STARTED, word)?;
            // If the interrupt came between the doorbell and the event that follows it, neither
            // figure can be measured.
            if next(&events[..started], 0, INTERRUPT, "name=mgpu").is_err() {
                break (events, begin, started);
            }
            early += 1;
            check!(early < ROUNDS, "too many interrupts are early");
        };
        submit.add(events[started].time - begin);
        let interrupt = next(&events, started, INTERRUPT, "name=mgpu")?;
        let context = field(&events[started], "context")?;
        let signaled = next(&events, interrupt, SIGNALED, context)?;
        finish.add(events[signaled].time - events[interrupt].time);
    }
    gpu.inject_into(ring, Error::Slow, 0)?;
    figures.costs(&format!("{name}.submit"), &submit);
    figures.costs(&format!("{name}.finish"), &finish);
    Ok(())
}

/// Copies of a page.
fn copies(gpu: &Mgpu, figures: &mut Figures) -> Outcome {
    let (from, to) = (gpu.drm.create(PAGE64)?, gpu.drm.create(PAGE64)?);
    let (x, y) = patterns();
    from.map()?.fill(x);
    to.map()?.fill(y);
    jobs(gpu, figures, "job", (COPY, "ring=mgpu-copy"), || {
        gpu.drm.copy((&from, 0), (&to, 0), PAGE64)
    })?;
    holds(&to, x, "the copy")
}

/// Jobs of an address space that maps a number of objects, none of which is private to it.
fn programs(gpu: &Mgpu, figures: &mut Figures) -> Outcome {
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
            figures,
            &format!("job.exec-{count}"),
            (COMPUTE, "ring=mgpu-compute"),
            || bench.vm.exec(&[Op::add(RESULTS, 1)]),
        )?;
        check!(bench.results.read(0) > 0, "no job has run");
    }
    Ok(())
}

/// Moves an object of one size there and back.
///
/// A map by a static importer moves the object to system memory, and a map by a peer moves it back
/// to VRAM. The same calls on an object that need not move give the cost of everything but the
/// move.
fn moves(gpu: &Mgpu, name: &str, size: u64, figures: &mut Figures) -> Outcome {
    // The least of many rounds is the same in each boot; a large object takes long.
    let rounds = if size > 16 << 20 { 6 } else { 32 };
    let object = gpu.drm.create_flags(size, EITHER)?;
    let (pattern, _) = patterns();
    object.map()?.fill(pattern);
    let buffer = object.export()?;
    let before = gpu.drm.getparam(uapi::PARAM_MOVES)?;
    let mut costs = [(); 4].map(|()| Costs::default());
    let peer = Peer::open()?;
    for _ in 0..rounds {
        let [out, stay_out, back, stay_back] = &mut costs;
        for (mode, to, moved, stayed) in [
            (Mode::Static, uapi::PLACEMENT_SYSTEM, out, stay_out),
            (Mode::Dynamic, uapi::PLACEMENT_VRAM, back, stay_back),
        ] {
            let peer = peer.reopen()?;
            peer.attach(&buffer, mode)?;
            for costs in [moved, stayed] {
                clock::settle();
                let (others, own) = (Others::now(), clock::cpu());
                peer.map()?;
                let own = clock::cpu() - own;
                clock::settle();
                costs.add(own + Others::now().since(&others));
                placed(&object, to)?;
                peer.unmap()?;
            }
            peer.detach()?;
        }
    }
    check_eq!(
        gpu.drm.getparam(uapi::PARAM_MOVES)? - before,
        2 * rounds,
        "moves"
    );
    holds(&object, pattern, "after the moves")?;
    let [out, stay_out, back, stay_back] = &costs;
    for (way, moved, stayed) in [("out", out, stay_out), ("back", back, stay_back)] {
        figures.costs(&format!("engine.{name}.{way}"), moved);
        figures.costs(&format!("engine.{name}.{way}.still"), stayed);
    }
    Ok(())
}

fn bench(figures: &mut Figures) -> Outcome {
    clock::stay_in_memory()?;
    let gpu = Mgpu::first()?;
    copies(&gpu, figures)?;
    programs(&gpu, figures)?;
    for (name, size) in SIZES {
        moves(&gpu, name, size, figures)?;
    }
    gpu.clean()
}

fn main() -> ExitCode {
    figures::main(&[("", bench)])
}
