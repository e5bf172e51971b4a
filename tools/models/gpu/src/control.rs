// SPDX-License-Identifier: GPL-2.0

//! Invalidations, and the parts of a device reset outside of the rings, done in order by a thread.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use vfio_user::memory::PAGE;
use vfio_user::port::Epoch;

use crate::bus::Bus;
use crate::bus::Stop;
use crate::bus::Who;
use crate::device::Gpu;
use crate::pages;
use crate::pages::Limits;
use crate::pages::Place;
use crate::pages::View;
use crate::registers::APERTURE_CONTEXT;
use crate::registers::RING_COUNT;
use crate::report::Broken;
use crate::ring::Origin;
use crate::space::Space;
use crate::status;

/// An invalidation.
#[derive(Clone, Copy)]
pub struct Invalidate {
    pub context: u32,
    /// The first address, and the last one.
    pub start: u64,
    pub last: u64,
    /// The number that is written to the status page when it is done.
    pub number: u32,
}

#[derive(Clone, Copy)]
enum Work {
    Invalidate(Invalidate, Epoch),
    Reset(Origin),
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    /// The current work of the thread.
    current: Option<Work>,
}

impl State {
    fn all(&self) -> impl Iterator<Item = &Work> {
        self.current.iter().chain(&self.queue)
    }
}

/// The pending work of the thread.
#[derive(Default)]
pub struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

impl Control {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, work: Work) {
        self.lock().queue.push_back(work);
        self.changed.notify_all();
    }

    /// Asks for an invalidation, which is not done if the device is reset before.
    pub fn invalidate(&self, invalidate: Invalidate, epoch: Epoch) {
        self.push(Work::Invalidate(invalidate, epoch));
    }

    /// Asks for a reset of the device outside of the rings.
    pub fn reset(&self, origin: Origin) {
        self.push(Work::Reset(origin));
    }

    /// Whether such a reset is not done yet.
    pub fn is_resetting(&self) -> bool {
        self.lock().all().any(|work| matches!(work, Work::Reset(_)))
    }

    /// Whether there is something to do.
    pub fn is_busy(&self) -> bool {
        self.lock().all().next().is_some()
    }

    /// Whether an invalidation of an address was asked for and is not done yet.
    pub fn will_invalidate(&self, context: u32, address: u64) -> bool {
        self.lock().all().any(|work| match work {
            Work::Invalidate(it, _) => {
                it.context == context && (it.start..=it.last).contains(&address)
            }
            Work::Reset(_) => true,
        })
    }

    fn next(&self) -> Work {
        let mut state = self.lock();
        state.current = None;
        loop {
            if let Some(work) = state.queue.pop_front() {
                state.current = Some(work);
                return work;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Does the pending work, as long as the program runs.
pub fn run(gpu: &Gpu) {
    loop {
        match gpu.control.next() {
            Work::Reset(origin) => {
                gpu.tlb.clear();
                if origin == Origin::Register {
                    continue;
                }
                let all = gpu.vram.aperture().bytes() / PAGE - 1;
                report_all(gpu, gpu.vram.remap(0, all, &BTreeMap::new()));
                if origin == Origin::Power {
                    gpu.vram.lose();
                }
            }
            Work::Invalidate(invalidate, epoch) => {
                let bus = Bus {
                    gpu,
                    dma: gpu.port.dma_since(epoch),
                    who: Who::Aperture,
                };
                // Errors other than a reset have been reported.
                let _ = done(bus, invalidate);
            }
        }
    }
}

fn done(bus: Bus<'_>, invalidate: Invalidate) -> Result<(), Stop> {
    match invalidate.context {
        APERTURE_CONTEXT => aperture(bus, invalidate.start, invalidate.last)?,
        context => bus
            .gpu
            .tlb
            .invalidate(context, invalidate.start, invalidate.last),
    }
    // Writes may be on their way to where translations led that are gone.
    for ring in 0..RING_COUNT {
        let who = Who::Ring { ring, entry: 0 };
        Bus { who, ..bus }.flush();
    }
    let who = Who::Status;
    status::invalidated(Bus { who, ..bus }, invalidate.number)
}

/// Maps and unmaps pages of the aperture according to its tables.
fn aperture(bus: Bus<'_>, start: u64, last: u64) -> Result<(), Stop> {
    let gpu = bus.gpu;
    let last = last.min(gpu.vram.aperture().bytes() - 1);
    if start > last {
        return Ok(());
    }
    let limits = Limits {
        vram: gpu.vram.bytes(),
        first: start,
        last,
    };
    let view = match view(bus, limits) {
        Err(Stop::Reset) => return Err(Stop::Reset),
        // A table that cannot be read maps nothing.
        Err(Stop::Fault(_)) => View::default(),
        Ok(view) => view,
    };
    for (address, entry) in view.wrong {
        bus.report(Broken::Aperture { address, entry });
    }
    let (first, last) = (start / PAGE, last / PAGE);
    report_all(gpu, gpu.vram.remap(first, last, &view.pages));
    Ok(())
}

fn view(bus: Bus<'_>, limits: Limits) -> Result<View, Stop> {
    let context = APERTURE_CONTEXT;
    let root = Space { bus, context }.root()?;
    pages::view(root, limits, |table| {
        let mut bytes = [0; PAGE as usize];
        bus.read(Place::Bus(table), &mut bytes)?;
        Ok(std::array::from_fn(|i| {
            let word = bytes[8 * i..8 * i + 8].iter().rev();
            word.fold(0, |word, &byte| word << 8 | u64::from(byte))
        }))
    })
}

/// Reports the broken rules in the aperture.
pub fn report_all(gpu: &Gpu, found: Vec<Broken>) {
    for broken in found {
        gpu.reports.report(&gpu.port, &Who::Aperture, &broken);
    }
}
