// SPDX-License-Identifier: GPL-2.0

//! The device: its registers, and the effects of accesses to them.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use vfio_user::config::Identity;
use vfio_user::dma;
use vfio_user::port::Bar;
use vfio_user::port::Port;
use vfio_user::report::Reports;
use vfio_user::server::After;
use vfio_user::server::Device;
use vfio_user::switch::Switch;

use crate::channel;
use crate::channel::Channel;
use crate::faults::Faults;
use crate::posted::Posted;
use crate::registers;
use crate::registers::inject;

const IDENTITY: Identity = Identity {
    vendor: 0x1234,
    device: 0x11e8,
    // It fits in no class, as QEMU's.
    class: 0x00_ff_00,
    power: false,
};
const BAR: usize = 0;

/// The first factorial that is a multiple of 2^32.
const FACTORIALS: u32 = 34;

/// The longest delay of a transfer, as good as for ever.
const LONGEST: Duration = Duration::from_secs(3600);

/// The registers that are not those of a channel.
#[derive(Default)]
struct Registers {
    liveness: u32,
    factorial: u32,
    status: u32,
    interrupts: u32,
}

/// Numbers that tests read.
#[derive(Default)]
struct Counts {
    finished: AtomicU64,
    /// Posted writes that a read of a register has pushed, and those that nothing has pushed.
    flushed: AtomicU64,
    late: AtomicU64,
    /// Transfers that are under way, and the most at the same time.
    running: AtomicU64,
    most: AtomicU64,
}

/// A device with the interface of edu.
pub struct Edu {
    pub(crate) port: Port,
    pub(crate) channels: [Channel; registers::CHANNELS],
    pub(crate) posted: Posted,
    reports: Reports,
    registers: Mutex<Registers>,
    faults: Mutex<Faults>,
    counts: Counts,
    /// A client has it.
    plugged: AtomicBool,
}

impl Edu {
    /// A device below a switch, which is not plugged in yet. A strict one is behind an IOMMU that
    /// reports its mappings. The function writes lines to the log.
    pub fn new(
        name: &str,
        strict: bool,
        switch: Arc<Switch>,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let bytes = registers::BYTES;
        let bars = vec![(BAR, Bar::Registers { bytes })];
        let edu = Arc::new(Self {
            port: Port::new(name, IDENTITY, bars, switch, strict, log),
            channels: Default::default(),
            posted: Posted::default(),
            reports: Reports::default(),
            registers: Mutex::default(),
            faults: Mutex::default(),
            counts: Counts::default(),
            plugged: AtomicBool::new(false),
        });
        for number in 0..registers::CHANNELS {
            let edu = edu.clone();
            thread::spawn(move || channel::run(&edu, number));
        }
        edu
    }

    fn registers(&self) -> MutexGuard<'_, Registers> {
        self.registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports that a rule was broken.
    pub(crate) fn report(&self, by: &dyn fmt::Display, broken: &dyn fmt::Display) {
        self.reports.report(&self.port, by, broken);
    }

    /// A transfer is over, with that command, or was stopped.
    pub(crate) fn finished(&self, channel: usize, command: Option<u64>) {
        self.counts.running.fetch_sub(1, Ordering::SeqCst);
        let Some(command) = command else {
            return;
        };
        self.counts.finished.fetch_add(1, Ordering::SeqCst);
        if command & registers::INTERRUPT != 0 && !self.faults().loses_interrupt() {
            self.raise(registers::INTERRUPT_DMA << channel);
        }
    }

    fn raise(&self, bits: u32) {
        let mut registers = self.registers();
        registers.interrupts |= bits;
        if registers.interrupts != 0 {
            self.port.interrupt();
        }
    }

    /// Lets posted writes arrive: those that are due, or all.
    fn arrive(&self, now: Option<Instant>) -> u64 {
        self.posted.arrive(now, |write| {
            let bus = self.port.dma_since(write.epoch);
            // A caller may be the thread that the client waits for.
            let result = match bus.is_direct(write.address, write.bytes.len() as u64, dma::WRITE) {
                Ok(true) => bus.write(write.address, &write.bytes),
                Ok(false) => Ok(()),
                Err(refused) => Err(refused),
            };
            if let Err(refused) = result {
                channel::refuse(self, write.channel, refused, true);
            }
        })
    }

    /// The time is over for posted writes.
    pub(crate) fn arrived(&self, now: Instant) {
        let count = self.arrive(Some(now));
        self.counts.late.fetch_add(count, Ordering::SeqCst);
    }

    /// The value of the register at an offset.
    fn register(&self, offset: u64) -> Option<u64> {
        let count = |count: &AtomicU64| count.load(Ordering::SeqCst);
        if let Some((channel, register)) = of_channel(offset) {
            return self.channels[channel].register(register);
        }
        Some(match offset {
            registers::IDENTIFICATION => registers::ID.into(),
            registers::LIVENESS => self.registers().liveness.into(),
            registers::FACTORIAL => self.registers().factorial.into(),
            registers::STATUS => self.registers().status.into(),
            registers::INTERRUPT_STATUS => self.registers().interrupts.into(),
            registers::EXTENSION => {
                u64::from(registers::MAGIC) | (registers::CHANNELS as u64) << 32
            }
            registers::DELAY => self.faults().delay.as_micros() as u64,
            registers::FINISHED => count(&self.counts.finished),
            registers::FAULTS => self.faults().happened,
            registers::FLUSHED => count(&self.counts.flushed),
            registers::LATE => count(&self.counts.late),
            registers::MOST => count(&self.counts.most),
            registers::REPORTS => self.reports.count().into(),
            _ => return None,
        })
    }

    fn set_register(&self, offset: u64, value: u64) {
        if let Some((number, register)) = of_channel(offset) {
            let epoch = self.port.epoch();
            // Counted before the thread of the channel can count the end.
            let running = self.counts.running.fetch_add(1, Ordering::SeqCst) + 1;
            let mut faults = self.faults();
            match self.channels[number].set_register(register, value, epoch, &mut faults) {
                true => {
                    self.counts.most.fetch_max(running, Ordering::SeqCst);
                }
                false => {
                    self.counts.running.fetch_sub(1, Ordering::SeqCst);
                }
            }
            return;
        }
        match offset {
            registers::LIVENESS => self.registers().liveness = !(value as u32),
            registers::FACTORIAL => self.compute(value as u32),
            registers::STATUS => {
                self.registers().status = value as u32 & registers::FACTORIAL_INTERRUPTS;
            }
            registers::INTERRUPT_RAISE => self.raise(value as u32),
            registers::INTERRUPT_ACK => self.registers().interrupts &= !(value as u32),
            registers::DELAY => self.faults().delay = Duration::from_micros(value).min(LONGEST),
            registers::INJECT => self.inject(value),
            registers::MOST => self.counts.most.store(0, Ordering::SeqCst),
            _ => (),
        }
    }

    fn compute(&self, number: u32) {
        let factorial = match number {
            FACTORIALS.. => 0,
            _ => (1..=number).fold(1, u32::wrapping_mul),
        };
        let interrupts = {
            let mut registers = self.registers();
            registers.factorial = factorial;
            registers.status & registers::FACTORIAL_INTERRUPTS != 0
        };
        if interrupts {
            self.raise(registers::INTERRUPT_FACTORIAL);
        }
    }

    fn inject(&self, value: u64) {
        let (what, skip, argument) = (value & 0xffff, value >> 16 & 0xffff, value >> 32);
        match what {
            inject::NONE => {
                self.faults().disarm();
                let ended = self.channels.iter().filter(|channel| channel.release());
                let count = ended.count() as u64;
                self.counts.running.fetch_sub(count, Ordering::SeqCst);
            }
            inject::EXPECT_REPORTS => self.reports.expect(argument as u32),
            _ => self.faults().arm(what, skip, argument),
        }
    }
}

/// The channel whose register is at an offset, and which of its registers.
fn of_channel(offset: u64) -> Option<(usize, u64)> {
    let inside = offset.checked_sub(registers::CHANNEL)?;
    let channel = (inside / registers::CHANNEL_STRIDE) as usize;
    (channel < registers::CHANNELS).then_some((channel, inside % registers::CHANNEL_STRIDE))
}

/// Whether a register at this offset is accessed with so many bytes; the first ones have 32 bits.
fn fits(offset: u64, bytes: usize) -> bool {
    bytes == 4 || bytes == 8 && offset >= registers::CHANNEL
}

impl Device for Edu {
    fn port(&self) -> &Port {
        &self.port
    }

    fn read(&self, _: usize, offset: u64, to: &mut [u8]) {
        let value = match fits(offset, to.len()) {
            true => self.register(offset).unwrap_or(u64::MAX),
            false => u64::MAX,
        };
        // The answer pushes the writes of transfers that are over in the answer, so those are done
        // after the value was taken.
        let count = self.arrive(None);
        self.counts.flushed.fetch_add(count, Ordering::SeqCst);
        for (to, byte) in to.iter_mut().zip(value.to_le_bytes()) {
            *to = byte;
        }
    }

    fn write(&self, _: usize, offset: u64, from: &[u8]) -> After {
        if fits(offset, from.len()) {
            let mut bytes = [0; 8];
            bytes[..from.len()].copy_from_slice(from);
            self.set_register(offset, u64::from_le_bytes(bytes));
        }
        After::GoOn
    }

    fn reset(&self) {
        for channel in &self.channels {
            if channel.reset() {
                self.counts.running.fetch_sub(1, Ordering::SeqCst);
            }
        }
        *self.registers() = Registers::default();
        *self.faults() = Faults::default();
        self.posted.clear();
    }

    fn connected(&self) {
        self.plugged.store(true, Ordering::SeqCst);
        self.reports.clear();
    }

    fn disconnected(&self, _: bool) {
        self.reset();
        self.plugged.store(false, Ordering::SeqCst);
    }

    fn is_busy(&self) -> bool {
        self.plugged.load(Ordering::SeqCst)
    }
}
