// SPDX-License-Identifier: GPL-2.0

//! The device: its registers, and the effects of writes to them.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;

use vfio_user::config::Identity;
use vfio_user::port::Bar;
use vfio_user::port::Port;
use vfio_user::report::Reports;
use vfio_user::server::After;
use vfio_user::server::Device;
use vfio_user::switch::Switch;

use crate::chaos::Chaos;
use crate::control;
use crate::control::Control;
use crate::control::Invalidate;
use crate::registers;
use crate::registers::inject;
use crate::ring;
use crate::ring::Origin;
use crate::ring::Ring;
use crate::status::Status;
use crate::tlb::Tlb;
use crate::vram::Vram;

const IDENTITY: Identity = Identity {
    vendor: 0x1234,
    device: 0x11f0,
    // A display controller that is none of the kinds with a number.
    class: 0x03_80_00,
    power: true,
};
const REGISTERS: usize = 0;
const APERTURE: usize = 2;

/// What differs from one device to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name in the log.
    pub name: String,
    /// Bytes of VRAM and of the aperture.
    pub vram: u64,
    pub aperture: u64,
    /// It is behind an IOMMU that reports its mappings.
    pub strict: bool,
    /// The seed of its chaos; 0 is none.
    pub chaos: u64,
}

/// The registers that are not those of a ring.
#[derive(Default)]
struct Registers {
    status_page: u64,
    context_table: u64,
    invalidate_start: u64,
    invalidate_size: u64,
    invalidate_context: u32,
}

/// Injected errors: resets and invalidations that are not done.
#[derive(Default)]
struct Skipped {
    /// The rings of which none is done, and those of which one was asked for.
    rings: u32,
    asked_rings: u32,
    /// How many of the device are not done, and whether one was asked for.
    device: u32,
    asked_device: bool,
    /// How many invalidations are not done.
    invalidates: u32,
}

/// A modelled GPU.
pub struct Gpu {
    pub(crate) port: Port,
    pub(crate) vram: Vram,
    pub(crate) reports: Reports,
    pub(crate) rings: [Ring; registers::RING_COUNT],
    pub(crate) control: Control,
    pub(crate) status: Status,
    pub(crate) tlb: Tlb,
    pub(crate) chaos: Option<Chaos>,
    registers: Mutex<Registers>,
    skipped: Mutex<Skipped>,
    /// Is called when it is removed by surprise.
    on_removal: Box<dyn Fn() + Send + Sync>,
    /// A client has it, or the state that the last client left is not checked yet.
    plugged: AtomicBool,
    /// It was removed by surprise, and later writes to it are ignored.
    removed: AtomicBool,
    /// How often it has lost its state in D3hot.
    power_losses: AtomicU32,
}

impl Gpu {
    /// A device below a switch, which is not plugged in yet. One function writes lines to the log,
    /// and one is called when the device is removed by surprise.
    pub fn new(
        options: &Options,
        switch: Arc<Switch>,
        log: impl Fn(&str) + Send + Sync + 'static,
        on_removal: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Arc<Self>> {
        let vram = Vram::new(options.vram, options.aperture)?;
        let bytes = registers::BYTES;
        let bars = vec![
            (REGISTERS, Bar::Registers { bytes }),
            (APERTURE, Bar::Memory(vram.aperture().clone())),
        ];
        let gpu = Arc::new(Self {
            port: Port::new(&options.name, IDENTITY, bars, switch, options.strict, log),
            vram,
            reports: Reports::default(),
            rings: Default::default(),
            control: Control::default(),
            status: Status::default(),
            tlb: Tlb::default(),
            chaos: Chaos::new(options.chaos),
            registers: Mutex::default(),
            skipped: Mutex::default(),
            on_removal: Box::new(on_removal),
            plugged: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            power_losses: AtomicU32::new(0),
        });
        for number in 0..registers::RING_COUNT {
            let gpu = gpu.clone();
            thread::spawn(move || ring::run(&gpu, number));
        }
        let controlled = gpu.clone();
        thread::spawn(move || control::run(&controlled));
        Ok(gpu)
    }

    fn registers(&self) -> MutexGuard<'_, Registers> {
        self.registers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn skipped(&self) -> MutexGuard<'_, Skipped> {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bus address of the status page, or zero.
    pub(crate) fn status_page(&self) -> u64 {
        self.registers().status_page
    }

    /// The bus address of the table of contexts, or zero.
    pub(crate) fn context_table(&self) -> u64 {
        self.registers().context_table
    }

    /// A register of 64 bits at this offset, and what it reads as.
    fn wide(&self, offset: u64) -> Option<u64> {
        Some(match offset {
            registers::VRAM_SIZE => self.vram.bytes(),
            registers::APERTURE_SIZE => self.vram.aperture().bytes(),
            registers::STATUS_PAGE => self.registers().status_page,
            registers::CONTEXT_TABLE => self.registers().context_table,
            registers::INVALIDATE_START => self.registers().invalidate_start,
            registers::INVALIDATE_SIZE => self.registers().invalidate_size,
            registers::SEED => self.chaos.as_ref().map_or(0, Chaos::seed),
            _ => match of_ring(offset)? {
                (ring, registers::RING_BASE) => self.rings[ring].base(),
                _ => return None,
            },
        })
    }

    /// Writes a register of 64 bits at this offset; returns false if there is none.
    fn set_wide(&self, offset: u64, value: u64) -> bool {
        let mut registers = self.registers();
        match offset {
            registers::STATUS_PAGE => registers.status_page = value,
            registers::CONTEXT_TABLE => registers.context_table = value,
            registers::INVALIDATE_START => registers.invalidate_start = value,
            registers::INVALIDATE_SIZE => registers.invalidate_size = value,
            _ => match of_ring(offset) {
                Some((ring, registers::RING_BASE)) => self.rings[ring].set_base(value),
                _ => return false,
            },
        }
        true
    }

    /// The value of the 32 bits at an offset.
    fn register(&self, offset: u64) -> u32 {
        if let Some(value) = self.wide(offset & !7) {
            return (value >> (8 * (offset & 4))) as u32;
        }
        match offset {
            registers::ID => registers::MAGIC,
            registers::VERSION => registers::REVISION,
            registers::RINGS => registers::RING_COUNT as u32,
            registers::CONTEXTS => registers::CONTEXT_COUNT,
            registers::INVALIDATE_CONTEXT => self.registers().invalidate_context,
            registers::RESET => self.resetting(),
            registers::REPORTS => self.reports.count(),
            registers::POWER_LOSSES => self.power_losses.load(Ordering::SeqCst),
            registers::LIES..registers::RING => {
                let lie = ((offset - registers::LIES) / 4) as usize;
                self.chaos.as_ref().map_or(0, |chaos| chaos.count(lie))
            }
            _ => match of_ring(offset) {
                Some((ring, registers::RING_ENTRIES)) => self.rings[ring].entries(),
                _ => 0,
            },
        }
    }

    /// Writes 32 bits at an offset.
    fn set_register(&self, offset: u64, value: u32) -> After {
        if let Some(old) = self.wide(offset & !7) {
            let shift = 8 * (offset & 4);
            let new = old & !(0xffff_ffff << shift) | u64::from(value) << shift;
            self.set_wide(offset & !7, new);
            return After::GoOn;
        }
        match offset {
            registers::INVALIDATE_CONTEXT => self.registers().invalidate_context = value,
            registers::INVALIDATE => self.invalidate(value),
            registers::RESET => self.reset_parts(value),
            registers::INJECT => return self.inject(value),
            registers::CHECK => control::report_all(self, self.vram.check()),
            _ => match of_ring(offset) {
                Some((ring, registers::RING_ENTRIES)) => self.rings[ring].set_entries(value),
                Some((ring, registers::RING_DOORBELL)) => self.rings[ring].ring(value),
                _ => (),
            },
        }
        After::GoOn
    }

    fn invalidate(&self, number: u32) {
        {
            let skipped = &mut self.skipped().invalidates;
            if *skipped > 0 {
                *skipped -= 1;
                return;
            }
        }
        let (start, size, context) = {
            let registers = self.registers();
            (
                registers.invalidate_start,
                registers.invalidate_size,
                registers.invalidate_context,
            )
        };
        // With a size of 0 it only writes its number: no page is between these.
        let (start, last) = match size.checked_sub(1) {
            Some(more) => (start, start.saturating_add(more)),
            None => (u64::MAX, 0),
        };
        let invalidate = Invalidate {
            context,
            start,
            last,
            number,
        };
        self.control.invalidate(invalidate, self.port.epoch());
    }

    fn resetting(&self) -> u32 {
        let mut bits = match self.control.is_resetting() {
            true => registers::RESET_ALL,
            false => 0,
        };
        for (number, ring) in self.rings.iter().enumerate() {
            let (ring, device) = ring.is_resetting();
            bits |= u32::from(ring) << number;
            bits |= if device { registers::RESET_ALL } else { 0 };
        }
        let skipped = self.skipped();
        bits |= skipped.asked_rings;
        bits |= match skipped.asked_device {
            true => registers::RESET_ALL,
            false => 0,
        };
        bits
    }

    /// Resets the device; accesses to the bus have to be cut off after that.
    fn reset_by(&self, origin: Origin) {
        // The rings know of the reset before the registers are cleared. Otherwise an entry could
        // find no tables, which would look like a mistake of the driver.
        for ring in &self.rings {
            ring.reset_with_device(origin);
        }
        *self.registers() = Registers::default();
        *self.skipped() = Skipped::default();
        self.status.clear();
        // An entry can keep one more translation as long as there are tables, so translations are
        // dropped after that.
        self.control.reset(origin);
    }

    fn reset_parts(&self, bits: u32) {
        if bits & registers::RESET_ALL != 0 {
            let mut skipped = self.skipped();
            skipped.asked_device = skipped.device > 0;
            if skipped.asked_device {
                skipped.device -= 1;
                return;
            }
            drop(skipped);
            self.reset_by(Origin::Register);
            self.port.cut_off();
            return;
        }
        for (number, ring) in self.rings.iter().enumerate() {
            let bit = 1 << number;
            if bits & bit == 0 {
                continue;
            }
            let mut skipped = self.skipped();
            if skipped.rings & bit == 0 {
                drop(skipped);
                ring.reset();
            } else {
                skipped.asked_rings |= bit;
            }
        }
    }

    fn inject(&self, value: u32) -> After {
        let (what, ring, argument) = (value & 0xff, value >> 8 & 0xff, value >> 16);
        match what {
            inject::SKIP_INVALIDATE => self.skipped().invalidates = argument.max(1),
            inject::REMOVE => {
                (self.on_removal)();
                return After::Remove;
            }
            inject::SKIP_RING_RESETS if ring < registers::RING_COUNT as u32 => {
                self.skipped().rings |= 1 << ring;
            }
            inject::SKIP_DEVICE_RESETS => self.skipped().device = argument,
            inject::EXPECT_REPORTS => self.reports.expect(argument),
            inject::SEED => {
                if let Some(chaos) = &self.chaos {
                    chaos.begin(argument);
                }
            }
            _ => {
                if let Some(ring) = self.rings.get(ring as usize) {
                    ring.inject(what, argument);
                }
            }
        }
        After::GoOn
    }
}

/// The ring whose register is at an offset, and which of its registers.
fn of_ring(offset: u64) -> Option<(usize, u64)> {
    let inside = offset.checked_sub(registers::RING)?;
    let ring = (inside / registers::RING_STRIDE) as usize;
    (ring < registers::RING_COUNT).then_some((ring, inside % registers::RING_STRIDE))
}

impl Device for Gpu {
    fn port(&self) -> &Port {
        &self.port
    }

    fn is_busy(&self) -> bool {
        self.plugged.load(Ordering::SeqCst)
            || self.control.is_busy()
            || self.rings.iter().any(Ring::is_busy)
    }

    fn read(&self, _: usize, offset: u64, to: &mut [u8]) {
        let mut at = offset;
        for to in to.chunks_mut(4) {
            let bytes = self.register(at & !3).to_le_bytes();
            let inside = (at & 3) as usize;
            // An access that is not aligned reads to the end of the register.
            for (to, byte) in to.iter_mut().zip(&bytes[inside..]) {
                *to = *byte;
            }
            at += to.len() as u64;
        }
    }

    fn write(&self, _: usize, offset: u64, from: &[u8]) -> After {
        // Registers are written as a whole.
        match *from {
            [a, b, c, d] if offset.is_multiple_of(4) => {
                self.set_register(offset, u32::from_le_bytes([a, b, c, d]))
            }
            [a, b, c, d, e, f, g, h] if offset.is_multiple_of(8) => {
                let value = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                if self.set_wide(offset, value) {
                    return After::GoOn;
                }
                let first = self.set_register(offset, value as u32);
                match self.set_register(offset + 4, (value >> 32) as u32) {
                    After::GoOn => first,
                    After::Remove => After::Remove,
                }
            }
            _ => After::GoOn,
        }
    }

    fn reset(&self) {
        self.reset_by(Origin::Bus);
    }

    fn power_off(&self) {
        self.power_losses.fetch_add(1, Ordering::SeqCst);
        self.reset_by(Origin::Power);
    }

    fn connected(&self) {
        self.plugged.store(true, Ordering::SeqCst);
        self.reports.clear();
        if self.removed.swap(false, Ordering::SeqCst) {
            // Writes to the aperture of a removed device are not reported: only restore the poison.
            self.vram.check();
        }
    }

    fn disconnected(&self, removed: bool) {
        if !removed {
            control::report_all(self, self.vram.check());
        }
        self.removed.store(removed, Ordering::SeqCst);
        self.reset();
        self.plugged.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use std::time::Instant;

    use client::Client;
    use client::COMMAND_ON;
    use client::PATIENCE;
    use vfio_user::memory::PAGE;
    use vfio_user::server;

    /// The bus addresses of the memory of the machine, and of a page that the device has to ask
    /// for.
    const BASE: u64 = 0x1_0000_0000;
    const REMOTE: u64 = 0x50_0000_0000;
    /// The places of structures in the memory: the table of contexts, the first level of page
    /// tables, which the others follow, and the ring.
    const CONTEXTS: u64 = PAGE;
    const TABLES: u64 = 2 * PAGE;
    const RING: u64 = 5 * PAGE;
    /// Bits of the entries of page tables.
    const VALID: u64 = 1;
    const IN_VRAM: u64 = 4;
    const LEAF: u64 = 8;

    fn eventually(what: &str, is: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is() {
            assert!(Instant::now() < end, "no sign of {what}");
            thread::sleep(Duration::from_micros(200));
        }
    }

    /// Adds an entry to the compute ring that fills a range of context 1 with ones.
    fn fill(client: &mut Client, number: u32, start: u64, bytes: u64) {
        let at = RING + 64 * u64::from(number);
        client.memory.store(at, 33 | 1 << 32);
        client.memory.store(at + 16, start);
        client.memory.store(at + 32, bytes);
        client.memory.store(at + 40, u64::MAX);
        let ring = registers::RING + registers::RING_STRIDE * registers::COMPUTE_ENGINE as u64;
        client.set64(ring + registers::RING_BASE, BASE + RING);
        client.set(ring + registers::RING_ENTRIES, 8);
        client.set(ring + registers::RING_DOORBELL, number + 1);
    }

    /// A device whose compute ring is between two pages of an entry; it goes on when the client
    /// answers. The translation of the second page is one that was kept before.
    fn between_pages() -> (Arc<Gpu>, Client) {
        let options = Options {
            name: "gpu".to_owned(),
            vram: 1 << 20,
            aperture: 1 << 20,
            strict: false,
            chaos: 0,
        };
        let gpu = Gpu::new(&options, Arc::default(), |_| (), || ()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let served = gpu.clone();
        thread::spawn(move || server::connection(theirs, &*served));
        let mut client = Client::raw(ours, 16 * PAGE);
        client.map(BASE, 0, 16 * PAGE);
        client.map_remote(REMOTE, vec![0; PAGE as usize]);
        client.set_command(COMMAND_ON);
        client.set64(registers::CONTEXT_TABLE, BASE + CONTEXTS);
        for (at, word) in [
            (CONTEXTS + 8, BASE + TABLES),
            (TABLES, (BASE + TABLES + PAGE) | VALID),
            (TABLES + PAGE, (BASE + TABLES + 2 * PAGE) | VALID),
            (TABLES + 2 * PAGE, REMOTE | VALID | LEAF),
            (TABLES + 2 * PAGE + 8, VALID | LEAF | IN_VRAM),
        ] {
            client.memory.store(at, word);
        }
        fill(&mut client, 0, PAGE, 8);
        eventually("the first fill", || gpu.vram.load(0) != 0);
        client.hold();
        fill(&mut client, 1, 0, 2 * PAGE);
        eventually("a request", || client.holds());
        (gpu, client)
    }

    /// Lets the entry go on to its end. Returns how many rules were broken.
    fn go_on(gpu: &Gpu, client: &Client) -> u32 {
        client.release();
        let compute = &gpu.rings[registers::COMPUTE_ENGINE];
        eventually("the end of the entry", || !compute.is_busy());
        assert_eq!(gpu.vram.load(PAGE - 8), u64::MAX);
        gpu.reports.count()
    }

    #[test]
    fn a_change_of_the_tables_is_seen_between_pages() {
        let (gpu, client) = between_pages();
        client.memory.store(TABLES + 2 * PAGE + 8, 0);
        assert_eq!(go_on(&gpu, &client), 1);
    }

    #[test]
    fn a_reset_of_the_ring_hides_no_change_of_the_tables() {
        let (gpu, client) = between_pages();
        gpu.rings[registers::COMPUTE_ENGINE].reset();
        client.memory.store(TABLES + 2 * PAGE + 8, 0);
        assert_eq!(go_on(&gpu, &client), 1);
    }

    #[test]
    fn a_reset_is_no_change_of_the_tables() {
        let (gpu, client) = between_pages();
        // The reset waits for this lock when the registers are cleared, but before it asks for the
        // drop of the translations.
        let skipped = gpu.skipped();
        let resetting = gpu.clone();
        let reset = thread::spawn(move || resetting.reset());
        eventually("a reset", || gpu.context_table() == 0);
        assert!(!gpu.control.is_resetting());
        assert_eq!(go_on(&gpu, &client), 0);
        drop(skipped);
        reset.join().unwrap();
    }

    #[test]
    fn the_end_of_dma_is_no_change_of_the_tables() {
        let (gpu, client) = between_pages();
        // A client that goes also ends it before the device is reset.
        gpu.port.cut_off();
        assert_eq!(go_on(&gpu, &client), 0);
    }
}
