// SPDX-License-Identifier: GPL-2.0

//! A machine with modelled GPUs, and the simplest driver for them.

use std::fs;
use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;

use client::eventually;
use client::Client;
use client::Log;
use gpu::device::Gpu;
use gpu::device::Options;
use gpu::registers;
use gpu::registers::status;
use vfio_user::memory::Memory;
use vfio_user::memory::PAGE;
use vfio_user::message::command;
use vfio_user::message::Body;
use vfio_user::server;
use vfio_user::server::Device;
use vfio_user::switch::Switch;

pub const VRAM: u64 = 4 << 20;
pub const APERTURE: u64 = 1 << 20;
/// Bytes of the machine's memory, and its bus address.
pub const MEMORY: u64 = 8 << 20;
pub const BASE: u64 = 0x1_0000_0000;
/// The places of structures in memory.
pub const STATUS: u64 = 0;
pub const CONTEXTS: u64 = PAGE;
pub const RINGS: [u64; 2] = [2 * PAGE, 3 * PAGE];
pub const LISTS: u64 = 4 * PAGE;
pub const SEMAPHORE: u64 = 5 * PAGE;
pub const TABLES: u64 = 64 * PAGE;
pub const DATA: u64 = 4 << 20;
/// Entries of a ring.
pub const ENTRIES: u32 = 64;
/// Bits of the entries of page tables.
pub const VALID: u64 = 1;
pub const READ_ONLY: u64 = 2;
pub const IN_VRAM: u64 = 4;
pub const LEAF: u64 = 8;
/// The bit of an entry of a list for VRAM.
pub const PIECE_IN_VRAM: u64 = 1 << 63;

/// A device that listens at a socket.
pub struct Slot {
    pub gpu: Arc<Gpu>,
    pub path: PathBuf,
    pub log: Log,
    /// How often it was removed by surprise.
    pub removals: Arc<AtomicU32>,
}

impl Slot {
    /// A device below a switch.
    pub fn new(switch: &Arc<Switch>, change: impl Fn(&mut Options)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpu-{}-{number}.sock", process::id()));
        let mut options = Options {
            name: "gpu".to_owned(),
            vram: VRAM,
            aperture: APERTURE,
            strict: false,
            chaos: 0,
        };
        change(&mut options);
        let _ = fs::remove_file(&path);
        let log = Log::default();
        let removals = Arc::<AtomicU32>::default();
        let counted = removals.clone();
        let removed = move || {
            counted.fetch_add(1, Ordering::SeqCst);
        };
        let gpu = Gpu::new(&options, switch.clone(), log.sink(), removed).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let served = gpu.clone();
        thread::spawn(move || server::serve(&listener, &*served));
        Self {
            gpu,
            path,
            log,
            removals,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// An entry of a ring.
#[derive(Clone, Copy)]
pub struct Entry([u8; 64]);

impl Entry {
    pub fn new(code: u32) -> Self {
        Self([0; 64]).with(0, code)
    }

    /// Sets a field of 32 bits.
    pub fn with(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// Sets a field of 64 bits.
    pub fn wide(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    pub fn context(self, context: u32) -> Self {
        self.with(4, context)
    }

    pub fn nop() -> Self {
        Self::new(0)
    }

    /// A fence that raises the interrupt.
    pub fn fence(value: u64) -> Self {
        Self::new(1).wide(8, value).with(16, 1)
    }

    pub fn acquire(address: u64, value: u64) -> Self {
        Self::new(2).wide(8, address).wide(16, value)
    }

    pub fn release(address: u64, value: u64) -> Self {
        Self::new(3).wide(8, address).wide(16, value)
    }

    pub fn copy(source: u64, destination: u64, bytes: u64) -> Self {
        let entry = Self::new(32).context(1).wide(8, source);
        entry.wide(16, destination).wide(32, bytes)
    }

    pub fn fill(destination: u64, bytes: u64, pattern: u32) -> Self {
        let entry = Self::new(33).context(1).wide(16, destination);
        entry.wide(32, bytes).with(40, pattern)
    }

    pub fn checksum(source: u64, destination: u64, bytes: u64) -> Self {
        let entry = Self::new(34).context(1).wide(8, source);
        entry.wide(16, destination).wide(32, bytes)
    }

    pub fn atomic_add(destination: u64, addend: u64) -> Self {
        Self::new(35)
            .context(1)
            .wide(16, destination)
            .wide(40, addend)
    }
}

/// A fault record.
#[derive(Debug, PartialEq, Eq)]
pub struct Record {
    pub context: u32,
    pub ring: u32,
    pub address: u64,
    pub write: u32,
    pub error: u32,
    pub entry: u32,
}

/// A machine with a device whose rings are on.
pub struct Machine {
    // The client goes first, so that the device is idle when the slot goes.
    pub client: Client,
    pub slot: Slot,
    written: [u32; 2],
    tables: u64,
    fences: u64,
}

impl Machine {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// A machine with a device of other options.
    pub fn with(change: impl Fn(&mut Options)) -> Self {
        Self::plug(Slot::new(&Arc::default(), change))
    }

    /// Plugs a device in.
    pub fn plug(slot: Slot) -> Self {
        let client = connect(&slot.path);
        let mut machine = Self {
            client,
            slot,
            written: [0; 2],
            tables: TABLES,
            fences: 0,
        };
        machine.start();
        machine
    }

    /// Unplugs the device, and discards its log and its state.
    pub fn unplug(self) -> Slot {
        let Self { client, slot, .. } = self;
        drop(client);
        eventually("the end of the device's work", || !slot.gpu.is_busy());
        slot
    }

    /// Turns the device on: registers and rings.
    pub fn start(&mut self) {
        self.client.memory.fill(0, MEMORY, 0);
        self.client.set64(registers::STATUS_PAGE, BASE + STATUS);
        self.client.set64(registers::CONTEXT_TABLE, BASE + CONTEXTS);
        for (ring, at) in RINGS.iter().enumerate() {
            self.client
                .set64(Self::of(ring, registers::RING_BASE), BASE + at);
            self.client
                .set(Self::of(ring, registers::RING_ENTRIES), ENTRIES);
        }
        self.written = [0; 2];
        self.tables = TABLES;
    }

    /// Counts entries from 0 again, as rings do after a reset.
    pub fn begin_again(&mut self) {
        self.written = [0; 2];
    }

    /// The offset of a ring's register.
    pub fn of(ring: usize, register: u64) -> u64 {
        registers::RING + registers::RING_STRIDE * ring as u64 + register
    }

    pub fn load(&self, at: u64) -> u64 {
        self.client.memory.load(at)
    }

    pub fn load32(&self, at: u64) -> u32 {
        (self.load(at & !7) >> (8 * (at & 4))) as u32
    }

    /// The part of the status page about a ring.
    fn ring_status(&self, ring: usize, field: u64) -> u64 {
        STATUS + status::RING_STRIDE * ring as u64 + field
    }

    pub fn fence_value(&self, ring: usize) -> u64 {
        self.load(self.ring_status(ring, status::FENCE))
    }

    pub fn done(&self, ring: usize) -> u32 {
        self.load32(self.ring_status(ring, status::DONE))
    }

    pub fn error(&self, ring: usize) -> u32 {
        self.load32(self.ring_status(ring, status::ERROR))
    }

    pub fn resets(&self, ring: usize) -> u32 {
        self.load32(self.ring_status(ring, status::RESETS))
    }

    /// Writes entries behind those of before and rings the doorbell.
    pub fn submit(&mut self, ring: usize, entries: &[Entry]) {
        for entry in entries {
            let slot = u64::from(self.written[ring] % ENTRIES);
            self.client.memory.write(RINGS[ring] + 64 * slot, &entry.0);
            self.written[ring] = self.written[ring].wrapping_add(1);
        }
        self.doorbell(ring, self.written[ring]);
    }

    pub fn doorbell(&mut self, ring: usize, entries: u32) {
        self.client
            .set(Self::of(ring, registers::RING_DOORBELL), entries);
    }

    /// Does entries, and checks that they end without an error.
    pub fn run(&mut self, ring: usize, entries: &[Entry]) {
        self.fences += 1;
        let value = self.fences;
        self.submit(ring, entries);
        self.submit(ring, &[Entry::fence(value)]);
        eventually("a fence", || {
            assert_eq!(self.error(ring), 0, "{:?}", self.record(0));
            self.fence_value(ring) == value
        });
    }

    /// Does an entry that faults; returns the record, and resets the ring.
    pub fn fault(&mut self, ring: usize, entry: Entry) -> Record {
        let before = self.faults();
        self.submit(ring, &[entry]);
        eventually("a fault", || self.error(ring) != 0);
        assert_eq!(self.faults(), before + 1);
        let record = self.record(before);
        assert_eq!(record.error, self.error(ring));
        assert_eq!(record.ring as usize, ring);
        self.reset(1 << ring);
        self.written[ring] = 0;
        record
    }

    pub fn faults(&self) -> u32 {
        self.load32(STATUS + status::FAULTS)
    }

    /// A fault record, by its number.
    pub fn record(&self, number: u32) -> Record {
        let slot = u64::from(number % status::RECORD_COUNT);
        let at = STATUS + status::RECORDS + slot * status::RECORD_BYTES;
        assert_eq!(self.load32(at + 28), 0);
        Record {
            context: self.load32(at),
            ring: self.load32(at + 4),
            address: self.load(at + 8),
            write: self.load32(at + 16),
            error: self.load32(at + 20),
            entry: self.load32(at + 24),
        }
    }

    /// Resets the parts that the bits name, and waits for the end.
    pub fn reset(&mut self, bits: u32) {
        self.client.set(registers::RESET, bits);
        self.finish_reset();
    }

    pub fn finish_reset(&mut self) {
        eventually("a reset", || self.client.get(registers::RESET) == 0);
    }

    pub fn inject(&mut self, what: u32, ring: u32, argument: u32) {
        self.client
            .set(registers::INJECT, what | ring << 8 | argument << 16);
    }

    /// How often there was a lie.
    pub fn lies(&mut self, lie: usize) -> u32 {
        self.client.get(registers::LIES + 4 * lie as u64)
    }

    pub fn reports(&mut self) -> u32 {
        self.client.get(registers::REPORTS)
    }

    /// Writes a list of pieces; returns where it is.
    pub fn list(&self, at: u64, pieces: &[(u64, u64)]) -> u64 {
        for (i, (address, bytes)) in (0..).zip(pieces) {
            let place = LISTS + at + 16 * i;
            self.client.memory.store(place, *address);
            self.client.memory.store(place + 8, *bytes);
        }
        BASE + LISTS + at
    }

    /// An entry that copies from pieces to pieces.
    pub fn copy_list(&self, from: &[(u64, u64)], to: &[(u64, u64)], bytes: u64) -> Entry {
        let (source, destination) = (self.list(0, from), self.list(0x800, to));
        let entry = Entry::new(16).wide(8, source).wide(16, destination);
        let entry = entry.with(24, from.len() as u32).with(28, to.len() as u32);
        entry.wide(32, bytes)
    }

    pub fn fill_list(&self, to: &[(u64, u64)], bytes: u64, pattern: u32) -> Entry {
        let entry = Entry::new(17).wide(16, self.list(0x800, to));
        let entry = entry.with(28, to.len() as u32).wide(32, bytes);
        entry.with(40, pattern)
    }

    /// Begins to fill memory at DATA, again and again, for longer than a test runs meanwhile.
    pub fn fill_for_long(&mut self) {
        let pieces: Vec<(u64, u64)> = (0..60).map(|_| (BASE + DATA, 1 << 20)).collect();
        let entry = self.fill_list(&pieces, 60 << 20, 0x0101_0101);
        self.submit(0, &[entry; ENTRIES as usize]);
        eventually("the fill", || self.load(DATA) != 0);
    }

    /// Reads VRAM by the copy engine.
    pub fn vram(&mut self, offset: u64, bytes: u64) -> Vec<u8> {
        let at = MEMORY - (1 << 20);
        assert!(bytes <= 1 << 20);
        let entry = self.copy_list(
            &[(PIECE_IN_VRAM | offset, bytes)],
            &[(BASE + at, bytes)],
            bytes,
        );
        self.run(0, &[entry]);
        self.client.bytes(at, bytes)
    }

    /// Writes VRAM by the copy engine.
    pub fn set_vram(&mut self, offset: u64, data: &[u8]) {
        let (at, bytes) = (MEMORY - (1 << 20), data.len() as u64);
        self.client.memory.write(at, data);
        let entry = self.copy_list(
            &[(BASE + at, bytes)],
            &[(PIECE_IN_VRAM | offset, bytes)],
            bytes,
        );
        self.run(0, &[entry]);
    }

    fn table(&mut self) -> u64 {
        self.tables += PAGE;
        self.tables - PAGE
    }

    /// The entry at a level for an address of a context, making the tables above it.
    pub fn slot_of(&mut self, context: u32, address: u64, level: u32) -> u64 {
        let mut at = CONTEXTS + 8 * u64::from(context);
        for above in 0..=level {
            if self.load(at) == 0 {
                let table = BASE + self.table();
                let valid = if above == 0 { 0 } else { VALID };
                self.client.memory.store(at, table | valid);
            }
            let table = (self.load(at) & !0xfff) - BASE;
            at = table + 8 * (address >> (30 - 9 * above) & 511);
        }
        at
    }

    /// Sets the entry of a page, or of 2 MiB at level 1, without INVALIDATE.
    pub fn set_entry(&mut self, context: u32, address: u64, level: u32, entry: u64) {
        let at = self.slot_of(context, address, level);
        self.client.memory.store(at, entry);
    }

    /// Maps pages of context 1 to memory or to VRAM.
    pub fn map(&mut self, address: u64, place: u64, flags: u64, pages: u64) {
        for page in 0..pages {
            let entry = (place + page * PAGE) | flags | VALID | LEAF;
            self.set_entry(1, address + page * PAGE, 2, entry);
        }
    }

    /// Does an INVALIDATE and waits for it.
    pub fn invalidate(&mut self, context: u32, start: u64, bytes: u64) {
        let number = self.load32(STATUS + status::INVALIDATED) + 1;
        self.start_invalidate(context, start, bytes, number);
        eventually("an INVALIDATE", || {
            self.load32(STATUS + status::INVALIDATED) == number
        });
    }

    /// Does an INVALIDATE whose number does not arrive.
    pub fn invalidate_unseen(&mut self, context: u32, start: u64, bytes: u64) {
        self.start_invalidate(context, start, bytes, 1);
    }

    pub fn start_invalidate(&mut self, context: u32, start: u64, bytes: u64, number: u32) {
        self.client.set64(registers::INVALIDATE_START, start);
        self.client.set64(registers::INVALIDATE_SIZE, bytes);
        self.client.set(registers::INVALIDATE_CONTEXT, context);
        self.client.set(registers::INVALIDATE, number);
    }

    /// Shows a page of VRAM in the aperture, or nothing.
    pub fn show(&mut self, page: u64, vram: Option<u64>) {
        let entry = vram.map_or(0, |vram| (vram * PAGE) | VALID | LEAF | IN_VRAM);
        self.set_entry(0, page * PAGE, 2, entry);
        self.invalidate(0, page * PAGE, PAGE);
    }

    /// The aperture, as the processors see it.
    pub fn aperture(&mut self) -> Memory {
        let body = Body::default().u32(32).u32(0).u32(2).u32(0);
        let body = body.u64(0).u64(0);
        let (_, files): (_, Vec<File>) = self
            .client
            .ask(command::DEVICE_GET_REGION_INFO, body, None)
            .unwrap();
        Memory::of_file(&files[0]).unwrap()
    }

    /// Whether there are neither reports nor lines in the log.
    pub fn is_quiet(&mut self) -> bool {
        self.reports() == 0 && self.slot.log.lines().is_empty()
    }
}

/// A client with a device that is on, and has all memory mapped.
pub fn connect(path: &Path) -> Client {
    let mut client = Client::connect(path, MEMORY);
    client.turn_on(BASE, MEMORY);
    client
}
