// SPDX-License-Identifier: GPL-2.0

//! The rings, each with a thread that does its entries in order.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use vfio_user::port::Dma;

use crate::bus::Bus;
use crate::bus::Fault;
use crate::bus::Stop;
use crate::bus::Who;
use crate::device::Gpu;
use crate::engine;
use crate::entry;
use crate::entry::Entry;
use crate::entry::Operation;
use crate::pages::Place;
use crate::registers::error;
use crate::registers::inject;
use crate::registers::lie;
use crate::registers::APERTURE_CONTEXT;
use crate::space::Space;
use crate::status;
use crate::status::Culprit;

/// The numbers of entries that a ring may have.
const SIZES: std::ops::RangeInclusive<u32> = 8..=4096;
/// Milliseconds between an interrupt that is early and the value that it is about, unless said
/// otherwise.
const EARLY: u32 = 20;
/// The times between two polls of an ACQUIRE: at first, and later.
const SOON: Duration = Duration::from_micros(50);
const LATER: Duration = Duration::from_millis(1);

/// A reset that is pending.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reset {
    Ring,
    /// Of the device, which does not have a status page any more.
    Device,
}

/// The origin of a reset of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The register RESET.
    Register,
    /// A function level reset, the client, or the end of the connection.
    Bus,
    /// The device was put to D3hot.
    Power,
}

/// Injected errors.
#[derive(Default)]
struct Injected {
    hang: bool,
    /// All operations hang, and only a reset by the bus ends that.
    lifeless: bool,
    fault: bool,
    lose_interrupt: bool,
    /// How many milliseconds too early.
    early_interrupt: Option<u32>,
    /// Milliseconds that each entry takes more, and that the next one does.
    slow: u32,
    delay: u32,
}

#[derive(Default)]
struct State {
    base: u64,
    entries: u32,
    /// How many entries were written, and how many are done.
    doorbell: u32,
    done: u32,
    /// It stopped by a fault.
    stopped: bool,
    /// Its thread is not waiting for work.
    busy: bool,
    reset: Option<Reset>,
    resets: u32,
    injected: Injected,
}

/// A ring.
#[derive(Default)]
pub struct Ring {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether a reset is pending, for code that polls.
    resetting: AtomicBool,
}

/// The next work of the thread of a ring.
enum Work<'a> {
    Reset(Reset, u32),
    Entry {
        number: u32,
        at: u64,
        /// The place of the next one, if there is one already.
        next: Option<u64>,
        dma: Dma<'a>,
    },
    /// There are more entries than fit in.
    Overrun {
        number: u32,
        dma: Dma<'a>,
    },
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The base of the ring, and how many entries it has.
    pub fn base(&self) -> u64 {
        self.lock().base
    }

    pub fn entries(&self) -> u32 {
        self.lock().entries
    }

    /// Changes the base.
    pub fn set_base(&self, base: u64) {
        self.lock().base = base;
    }

    /// Changes the number of entries; one that is not allowed turns the ring off.
    pub fn set_entries(&self, entries: u32) {
        let good = entries.is_power_of_two() && SIZES.contains(&entries);
        self.lock().entries = if good { entries } else { 0 };
        self.changed.notify_all();
    }

    /// There are entries up to this number.
    pub fn ring(&self, doorbell: u32) {
        self.lock().doorbell = doorbell;
        self.changed.notify_all();
    }

    /// Asks for a reset of the ring.
    pub fn reset(&self) {
        let mut state = self.lock();
        state.reset = state.reset.or(Some(Reset::Ring));
        self.resetting.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Asks for the part of the ring in a reset of the device.
    pub fn reset_with_device(&self, origin: Origin) {
        let mut state = self.lock();
        *state = State {
            reset: Some(Reset::Device),
            busy: state.busy,
            injected: Injected {
                lifeless: origin == Origin::Register && state.injected.lifeless,
                ..Injected::default()
            },
            ..State::default()
        };
        self.resetting.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Whether a reset of it, and one of the device, is not done yet.
    pub fn is_resetting(&self) -> (bool, bool) {
        let reset = self.lock().reset;
        (reset.is_some(), reset == Some(Reset::Device))
    }

    /// Whether its thread is at work.
    pub fn is_busy(&self) -> bool {
        let state = self.lock();
        state.busy || state.reset.is_some()
    }

    /// Injects an error.
    pub fn inject(&self, what: u32, argument: u32) {
        let mut state = self.lock();
        let injected = &mut state.injected;
        match what {
            inject::HANG => injected.hang = true,
            inject::FAULT => injected.fault = true,
            inject::LOSE_INTERRUPT => injected.lose_interrupt = true,
            inject::EARLY_INTERRUPT => {
                injected.early_interrupt = Some(if argument == 0 { EARLY } else { argument });
            }
            inject::SLOW => injected.slow = argument,
            inject::DELAY => injected.delay = argument,
            inject::LIFELESS => injected.lifeless = true,
            _ => (),
        }
    }

    /// Goes on unless a reset is pending.
    fn go_on(&self) -> Result<(), Stop> {
        match self.resetting.load(Ordering::SeqCst) {
            true => Err(Stop::Reset),
            false => Ok(()),
        }
    }

    /// Sleeps, but not longer than until a reset.
    fn sleep(&self, time: Duration) -> Result<(), Stop> {
        let state = self.lock();
        drop(
            self.changed
                .wait_timeout_while(state, time, |state| state.reset.is_none())
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.go_on()
    }

    /// Waits for work of the ring with a number.
    fn next<'a>(&self, gpu: &'a Gpu, ring: usize) -> Work<'a> {
        let mut state = self.lock();
        loop {
            if let Some(reset) = state.reset {
                if reset == Reset::Ring {
                    state.resets = state.resets.wrapping_add(1);
                }
                state.busy = true;
                return Work::Reset(reset, state.resets);
            }
            let left = state.doorbell.wrapping_sub(state.done);
            if state.entries != 0 && !state.stopped && left != 0 {
                state.busy = true;
                let (number, dma) = (state.done, gpu.port.dma());
                if left > state.entries {
                    return Work::Overrun { number, dma };
                }
                let place = |number: u32| {
                    let slot = u64::from(number & (state.entries - 1));
                    state.base.wrapping_add(slot * entry::BYTES as u64)
                };
                return Work::Entry {
                    number,
                    at: place(number),
                    next: (left > 1).then(|| place(number.wrapping_add(1))),
                    dma,
                };
            }
            if state.busy && gpu.chaos.is_some() {
                // Nothing is on its way while a ring does nothing.
                let who = Who::Ring {
                    ring,
                    entry: state.done,
                };
                drop(state);
                let dma = gpu.port.dma();
                self.settle(Bus { gpu, dma, who });
                state = self.lock();
                state.busy = false;
                continue;
            }
            state.busy = false;
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A reset is done, unless another one was requested meanwhile.
    fn finish_reset(&self, reset: Reset) {
        let mut state = self.lock();
        if state.reset == Some(reset) {
            state.doorbell = 0;
            state.done = 0;
            state.stopped = false;
            // A hang that did not begin yet is cancelled as well.
            state.injected.hang = false;
            state.reset = None;
            self.resetting.store(false, Ordering::SeqCst);
        }
    }

    /// Raises the interrupt behind all writes of the ring, unless it is to be lost.
    fn interrupt(&self, bus: Bus<'_>) {
        bus.flush();
        if !std::mem::take(&mut self.lock().injected.lose_interrupt) {
            for _ in 0..bus.interrupts() {
                bus.gpu.port.interrupt();
            }
        }
    }

    /// Lets all that is on its way arrive, before the ring waits.
    fn settle(&self, bus: Bus<'_>) {
        bus.flush();
        let (late, wait) = bus.late();
        if late > 0 {
            // A reset only ends the wait.
            let _ = self.sleep(Duration::from_millis(wait));
            for _ in 0..late {
                bus.gpu.port.interrupt();
            }
        }
    }

    /// Applies the errors that were injected into the next entry.
    fn stumble(&self, bus: Bus<'_>) -> Result<(), Stop> {
        let (hang, fault, wait) = {
            let injected = &mut self.lock().injected;
            let wait = injected.slow + std::mem::take(&mut injected.delay);
            let hang = std::mem::take(&mut injected.hang) || injected.lifeless;
            // Only one of them can end an entry.
            let fault = !hang && std::mem::take(&mut injected.fault);
            (hang, fault, wait)
        };
        if wait > 0 || hang {
            self.settle(bus);
        }
        if wait > 0 {
            self.sleep(Duration::from_millis(wait.into()))?;
        }
        match (hang, fault) {
            (true, _) => loop {
                self.sleep(LATER)?;
            },
            (false, true) => Err(Fault::at(error::INJECTED, 0, false)),
            (false, false) => Ok(()),
        }
    }

    /// Waits until a word is at least a value.
    fn acquire(&self, bus: Bus<'_>, context: u32, address: u64, value: u64) -> Result<(), Stop> {
        let mut looks = 0;
        loop {
            let found = match context {
                APERTURE_CONTEXT => bus.load(Place::Bus(address))?,
                _ => Space { bus, context }.load(address)?,
            };
            if found >= value {
                return Ok(());
            }
            self.settle(bus);
            looks += 1;
            self.sleep(if looks < 20 { SOON } else { LATER })?;
        }
    }
}

/// Does the work of a ring, as long as the program runs.
pub fn run(gpu: &Gpu, number: usize) {
    let ring = &gpu.rings[number];
    loop {
        match ring.next(gpu, number) {
            Work::Reset(reset, resets) => {
                let bus = |who| Bus {
                    gpu,
                    dma: gpu.port.dma(),
                    who,
                };
                let who = Who::Ring {
                    ring: number,
                    entry: 0,
                };
                bus(who).forget();
                if reset == Reset::Ring {
                    // This can only fail because of a reset of the device, which comes next.
                    let _ = status::reset(bus(Who::Status), number, resets);
                }
                ring.finish_reset(reset);
            }
            Work::Overrun { number: entry, dma } => {
                let culprit = Culprit {
                    ring: number,
                    entry,
                    context: 0,
                };
                let bus = Bus {
                    gpu,
                    dma,
                    who: Who::Ring {
                        ring: number,
                        entry,
                    },
                };
                end(bus, ring, culprit, Err(Fault::OPERATION));
            }
            Work::Entry {
                number: entry,
                at,
                next,
                dma,
            } => {
                let bus = Bus {
                    gpu,
                    dma,
                    who: Who::Ring {
                        ring: number,
                        entry,
                    },
                };
                let mut culprit = Culprit {
                    ring: number,
                    entry,
                    context: 0,
                };
                let result = perform(bus, ring, &mut culprit, at, next);
                end(bus, ring, culprit, result);
            }
        }
    }
}

/// Does an entry, and may read the next one before. Returns whether it raises the interrupt.
fn perform(
    bus: Bus<'_>,
    ring: &Ring,
    culprit: &mut Culprit,
    at: u64,
    next: Option<u64>,
) -> Result<bool, Stop> {
    let mut bytes = [0; entry::BYTES];
    bus.fetch(at, &mut bytes)?;
    let entry = Entry::parse(culprit.ring, &bytes);
    culprit.context = entry.context;
    if bus.lies(lie::SPURIOUS, 16) {
        bus.gpu.port.interrupt();
    }
    if bus.draws(8) {
        ring.settle(bus);
    }
    if let Some(next) = next {
        bus.read_ahead(next);
    }
    ring.stumble(bus)?;
    match entry.operation {
        Some(Operation::Fence { value, interrupt }) => {
            bus.flush();
            let early = match interrupt {
                true => ring.lock().injected.early_interrupt.take(),
                false => None,
            };
            if let Some(early) = early {
                bus.gpu.port.interrupt();
                ring.sleep(Duration::from_millis(early.into()))?;
            }
            status::fence(bus, culprit.ring, value)?;
            Ok(interrupt && early.is_none())
        }
        Some(Operation::Acquire { address, value }) => {
            ring.acquire(bus, entry.context, address, value)?;
            Ok(false)
        }
        _ => {
            engine::execute(bus, entry, || ring.go_on())?;
            Ok(false)
        }
    }
}

/// Reports the end of an entry.
fn end(bus: Bus<'_>, ring: &Ring, culprit: Culprit, result: Result<bool, Stop>) {
    match result {
        // The reset reports it.
        Err(Stop::Reset) => (),
        Err(Stop::Fault(fault)) => {
            {
                let mut state = ring.lock();
                if state.reset.is_some() {
                    return;
                }
                state.stopped = true;
            }
            bus.flush();
            if bus.gpu.status.fault(bus, culprit, fault).is_ok() {
                ring.interrupt(bus);
            }
        }
        Ok(interrupt) => {
            let done = culprit.entry.wrapping_add(1);
            {
                let mut state = ring.lock();
                if state.reset.is_some() {
                    return;
                }
                state.done = done;
            }
            if status::done(bus, culprit.ring, done).is_ok() && interrupt {
                ring.interrupt(bus);
            }
        }
    }
}
