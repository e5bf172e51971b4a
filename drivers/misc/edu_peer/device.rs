// SPDX-License-Identifier: GPL-2.0

//! The registers and the DMA engines of `edu`.
//!
//! The device has an internal buffer of 4 KiB. Its DMA engine moves bytes between this buffer and
//! memory in either direction. The CPU cannot access the internal buffer, so bytes from or for the
//! CPU take a second transfer through a bounce buffer in system memory.
//!
//! QEMU's device takes 100 ms for a transfer. Others with the same interface take as long as they
//! need. They may have several engines, which are channels with an internal buffer each. The driver
//! polls a register and uses no interrupt. It would have to read the register in any case: on PCI
//! only the answer to a read proves that the writes of the device have arrived. An interrupt may
//! overtake writes to another device.
//!
//! The engine does not report whether its reads and writes arrived. Bytes left in the internal
//! buffer must not be mistaken for bytes that were read, so the driver overwrites the internal
//! buffer before each read ([`Engine::scrub`]).

use kernel::{
    device::Core,
    dma::Coherent,
    io::{
        poll::read_poll_timeout,
        register,
        register::Array,
        Io, //
    },
    new_mutex,
    pci::{
        self,
        BusMaster, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        lock::{
            mutex::MutexBackend,
            Guard, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use crate::table::Segment;

mod regs {
    use super::*;

    register! {
        /// Identifies the device.
        pub(super) IDENTIFICATION(u32) @ 0x00 {
            31:24 major;
            23:16 minor;
            7:0 magic;
        }

        /// Reads as the complement of the value written last.
        pub(super) LIVENESS(u32) @ 0x04 {
            31:0 value;
        }

        // The registers from here on are 64 bits wide. A BAR is only known to be aligned to 4 bytes
        // at build time, so their accesses are checked at run time.

        /// The source address of an engine.
        pub(super) DMA_SOURCE(u64)[4, stride = 0x20] @ 0x80 {
            63:0 address;
        }

        /// The destination address of an engine.
        pub(super) DMA_DESTINATION(u64)[4, stride = 0x20] @ 0x88 {
            63:0 address;
        }

        /// The number of bytes to move.
        pub(super) DMA_COUNT(u64)[4, stride = 0x20] @ 0x90 {
            63:0 bytes;
        }

        /// Starts an engine. Reads return whether it runs.
        pub(super) DMA_COMMAND(u64)[4, stride = 0x20] @ 0x98 {
            /// Set to start. The device clears it when it is done.
            0:0 run => bool;
            /// From the internal buffer to memory instead of the other way.
            1:1 to_memory => bool;
            /// Ends the transfer. QEMU's device ignores it.
            3:3 stop => bool;
        }

        /// Shows the number of engines. QEMU's device has no such register: it reads as ones.
        pub(super) EXTENSION(u64) @ 0x1000 {
            39:32 engines;
            31:0 magic;
        }
    }

    /// The value of the field `magic` of the extension.
    pub(super) const EXTENDED: u32 = 0x5855_4445;

    /// The maximum number of engines.
    pub(super) const ENGINES: usize = 4;

    /// The value of the field `magic` of the identification.
    pub(super) const MAGIC: u8 = 0xed;

    /// The address of the internal buffer of the first engine. The others follow.
    const INTERNAL: u64 = 0x40000;

    /// Returns the address of the internal buffer of an engine.
    pub(super) fn internal(engine: usize) -> u64 {
        // CAST: `usize` fits 64 bits. OVERFLOW: There are at most `ENGINES`.
        INTERNAL + (engine * super::PIECE) as u64
    }

    /// The size of the used part of the BAR.
    pub(super) const END: usize = 0x1008;
}

/// The size of the internal buffer in bytes. One transfer moves at most as many.
pub(crate) const PIECE: usize = 4096;

/// The maximum time of a transfer, many times the 100 ms of QEMU's device.
const TIMEOUT: Delta = Delta::from_secs(2);

/// The time of a transfer of QEMU's device. This device is not polled before.
const NOMINAL: Delta = Delta::from_millis(100);

/// The time to sleep after the first poll of another device. Each sleep is longer than the one
/// before, up to [`LONGEST`].
const SHORTEST: Delta = Delta::from_micros(20);
const LONGEST: Delta = Delta::from_millis(2);

/// How long an engine may take to stop.
const STOP_TIMEOUT: Delta = Delta::from_millis(100);

/// An `edu` device, bound or not.
pub(crate) struct Edu {
    pdev: ARef<pci::Device>,
    bar: pci::DevresBar<{ regs::END }>,
    /// It is not QEMU's device.
    is_fast: bool,
    /// The bounce buffers, by their DMA addresses.
    bounces: KVec<Segment>,
    /// The bounce buffers are gone. Their addresses may belong to an import.
    is_revoked: Atomic<bool>,
    /// One for each engine. A task takes one at a time.
    engines: KVec<Pin<KBox<Mutex<Option<State>>>>>,
    /// The engine that the next task waits for if all are in use.
    next: Atomic<usize>,
    master: BusMaster,
    /// The device is no bus master any more because an engine does not stop.
    is_cut_off: Atomic<bool>,
}

/// The buffers of the task that holds an engine.
struct State {
    bounce: Coherent<[u8]>,
    /// The bytes copied to or from the bounce buffer.
    scratch: KBox<[u8; PIECE]>,
    /// The last fill value of the internal buffer.
    scrub: u8,
}

impl Edu {
    /// Checks that `pdev` is an `edu` device and prepares its engines.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device does not behave as `edu` does.
    /// - `EBUSY` if an engine still does a transfer of the former driver.
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Arc<Self>> {
        let bar = pdev.iomap_region_sized::<{ regs::END }>(0, c"edu_peer")?;

        let id = bar.read(regs::IDENTIFICATION);
        if id.magic().get() != u32::from(regs::MAGIC) {
            dev_err!(
                pdev,
                "not an edu device: identification {:#x}\n",
                id.into_raw()
            );
            return Err(ENODEV);
        }

        const ALIVE: u32 = 0x1248_edb7;
        bar.write_reg(regs::LIVENESS::from(ALIVE));
        let answer = bar.read(regs::LIVENESS).into_raw();
        if answer != !ALIVE {
            dev_err!(
                pdev,
                "liveness check failed: {:#x} instead of {:#x}\n",
                answer,
                !ALIVE
            );
            return Err(ENODEV);
        }

        let extension = bar.try_read(regs::EXTENSION)?;
        let is_fast = extension.magic().get() == u64::from(regs::EXTENDED);
        let count = if is_fast {
            usize::try_from(extension.engines().get())?.clamp(1, regs::ENGINES)
        } else {
            1
        };

        for engine in 0..count {
            let command = regs::DMA_COMMAND::try_at(engine).ok_or(EINVAL)?;

            // It would go on with a transfer of the former driver.
            if bar.try_read(command)?.run() {
                dev_err!(pdev, "engine {} has not stopped\n", engine);
                return Err(EBUSY);
            }
        }

        let mut bounces = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut engines = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            let memory = Coherent::<u8>::zeroed_slice(pdev.as_ref(), PIECE, GFP_KERNEL)?;
            let scratch = KBox::new([0; PIECE], GFP_KERNEL)?;

            bounces.push(
                Segment {
                    address: memory.dma_address(),
                    // CAST: 4096 fits 64 bits.
                    length: PIECE as u64,
                },
                GFP_KERNEL,
            )?;
            engines.push(
                KBox::pin_init(
                    new_mutex!(
                        Some(State {
                            bounce: memory,
                            scratch,
                            scrub: 0
                        }),
                        "edu_peer::engine"
                    ),
                    GFP_KERNEL,
                )?,
                GFP_KERNEL,
            )?;
        }

        Ok(Arc::new(
            Self {
                pdev: pdev.into(),
                bar: bar.into_devres()?,
                is_fast,
                bounces,
                is_revoked: Atomic::new(false),
                engines,
                next: Atomic::new(0),
                master: BusMaster::new(pdev)?,
                is_cut_off: Atomic::new(false),
            },
            GFP_KERNEL,
        )?)
    }

    /// The PCI device.
    pub(crate) fn pdev(&self) -> &pci::Device {
        &self.pdev
    }

    /// The bounce buffers, by their DMA addresses. There are none after [`Self::revoke`], although
    /// importers stay attached until the end of the unbind.
    pub(crate) fn own_memory(&self) -> &[Segment] {
        if self.is_revoked.load(Acquire) {
            return &[];
        }
        &self.bounces
    }

    /// Fails with `ENODEV` if the driver is not bound any more.
    ///
    /// Without the lock of the PCI device held, a success is only a hint because the driver may be
    /// unbound at any time.
    pub(crate) fn check_bound(&self) -> Result {
        self.bar.try_access().map(|_| ()).ok_or(ENODEV)
    }

    /// Locks an engine. Waits for other users if all are in use.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is not bound any more.
    pub(crate) fn engine(&self) -> Result<Engine<'_>> {
        let idle = self
            .engines
            .iter()
            .enumerate()
            .find_map(|(number, engine)| Some((number, engine.try_lock()?)));
        let (number, state) = match idle {
            Some(idle) => idle,
            None => {
                let next = self.next.fetch_add(1, Relaxed);
                let number = next.checked_rem(self.engines.len()).ok_or(ENODEV)?;

                (number, self.engines.get(number).ok_or(ENODEV)?.lock())
            }
        };
        if state.is_none() {
            return Err(ENODEV);
        }

        Ok(Engine {
            edu: self,
            number,
            state,
        })
    }

    /// Waits for the transfers in progress and frees the memory that must not outlive the binding
    /// of the driver.
    pub(crate) fn revoke(&self) {
        let mut states = [const { None }; regs::ENGINES];

        for (engine, state) in self.engines.iter().zip(&mut states) {
            *state = engine.lock().take();
        }
        self.master.end();
        // An import gets one of the addresses after this only.
        self.is_revoked.store(true, Release);
        // This frees DMA memory, so no lock must be held.
        drop(states);
    }

    /// Fails with `EIO` if the device is no bus master any more.
    fn check_not_cut_off(&self) -> Result {
        if self.is_cut_off.load(Acquire) {
            return Err(EIO);
        }
        Ok(())
    }

    /// Whether an engine runs. The answer of the device proves that all its writes of earlier
    /// transfers have arrived.
    fn is_running(&self, engine: usize) -> Result<bool> {
        let command = regs::DMA_COMMAND::try_at(engine).ok_or(EINVAL)?;
        // The guard is an RCU reader. Nothing may sleep while it is held.
        let bar = self.bar.try_access().ok_or(ENODEV)?;

        Ok(bar.try_read(command)?.run())
    }

    /// Makes an engine move `count` bytes and waits until it has finished.
    ///
    /// An engine that does not finish is stopped. If it does not even stop, like QEMU's device, the
    /// device ceases to be a bus master. This is necessary because the memory of the transfer has
    /// other users afterwards.
    ///
    /// # Errors
    ///
    /// - `ETIMEDOUT` if it does not finish.
    /// - `EIO` if the device is no bus master any more.
    /// - `ENODEV` if the driver is not bound any more.
    fn run(
        &self,
        engine: usize,
        source: u64,
        destination: u64,
        count: usize,
        to_memory: bool,
    ) -> Result {
        self.check_not_cut_off()?;
        {
            let bar = self.bar.try_access().ok_or(ENODEV)?;

            bar.try_write(
                Array::try_at(engine).ok_or(EINVAL)?,
                regs::DMA_SOURCE::from(source),
            )?;
            bar.try_write(
                Array::try_at(engine).ok_or(EINVAL)?,
                regs::DMA_DESTINATION::from(destination),
            )?;
            bar.try_write(
                Array::try_at(engine).ok_or(EINVAL)?,
                // CAST: `usize` fits 64 bits.
                regs::DMA_COUNT::from(count as u64),
            )?;
            bar.try_write(
                Array::try_at(engine).ok_or(EINVAL)?,
                regs::DMA_COMMAND::zeroed()
                    .with_run(true)
                    .with_to_memory(to_memory),
            )?;
        }

        let begin = Instant::<Monotonic>::now();
        let mut pause = if self.is_fast {
            SHORTEST
        } else {
            fsleep(NOMINAL);
            LONGEST
        };
        loop {
            // Before the poll, so a task that was not scheduled for long polls once more.
            let is_late = begin.elapsed() > TIMEOUT;

            if !self.is_running(engine)? {
                // Another engine may have cut the device off meanwhile.
                return self.check_not_cut_off();
            }
            if is_late {
                break;
            }
            fsleep(pause);
            pause = (pause + pause).min(LONGEST);
        }

        dev_err!(
            self.pdev,
            "transfer of {:#x} bytes from {:#x} to {:#x} timed out\n",
            count,
            source,
            destination
        );
        self.stop(engine);
        Err(ETIMEDOUT)
    }

    /// Ends the transfer of an engine. The engine then accesses no memory any more.
    fn stop(&self, engine: usize) {
        let stopped = || -> Result {
            let bar = self.bar.try_access().ok_or(ENODEV)?;

            bar.try_write(
                Array::try_at(engine).ok_or(EINVAL)?,
                regs::DMA_COMMAND::zeroed().with_stop(true),
            )?;
            drop(bar);
            read_poll_timeout(
                || self.is_running(engine),
                |running| !*running,
                LONGEST,
                STOP_TIMEOUT,
            )?;
            Ok(())
        };

        if let Err(e) = stopped() {
            self.is_cut_off.store(true, Release);
            self.master.end();
            dev_err!(
                self.pdev,
                "engine {} does not stop, the device is cut off: {:?}\n",
                engine,
                e
            );
        }
    }
}

/// A locked engine.
///
/// One piece of a transfer takes two or three steps. The lock is held from the first to the last,
/// so no other user changes the internal buffer in between.
pub(crate) struct Engine<'a> {
    edu: &'a Edu,
    number: usize,
    state: Guard<'a, Option<State>, MutexBackend>,
}

impl Engine<'_> {
    /// Moves `data` to the start of `to`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if it does not fit there or is more than [`PIECE`].
    /// - `ETIMEDOUT` if the device does not finish. `EIO` if it is no bus master any more.
    /// - `ENODEV` if the driver is not bound any more.
    pub(crate) fn put(&mut self, to: Segment, data: &[u8]) -> Result {
        self.load(data)?;
        self.send(to.start(data.len())?)
    }

    /// Moves the start of `from` to `data`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::put`].
    pub(crate) fn get(&mut self, from: Segment, data: &mut [u8]) -> Result {
        self.scrub()?;
        self.receive(from.start(data.len())?)?;
        self.store(data)
    }

    /// Moves the start of the internal buffer to `to`.
    pub(crate) fn send(&mut self, to: Segment) -> Result {
        let count = Self::count(to)?;

        self.run(regs::internal(self.number), to.address, count, true)
    }

    /// Moves `from` to the start of the internal buffer.
    pub(crate) fn receive(&mut self, from: Segment) -> Result {
        let count = Self::count(from)?;

        self.run(from.address, regs::internal(self.number), count, false)
    }

    fn run(&self, source: u64, destination: u64, count: usize, to_memory: bool) -> Result {
        self.edu
            .run(self.number, source, destination, count, to_memory)
    }

    /// The DMA address of the bounce buffer.
    fn bounce(&self) -> Result<u64> {
        let bounce = self.edu.bounces.get(self.number).ok_or(ENODEV)?;

        Ok(bounce.address)
    }

    /// Puts `data` into the internal buffer.
    pub(crate) fn load(&mut self, data: &[u8]) -> Result {
        let state = (*self.state).as_mut().ok_or(ENODEV)?;

        state
            .scratch
            .get_mut(..data.len())
            .ok_or(EINVAL)?
            .copy_from_slice(data);
        state.bounce.copy_from_slice(&*state.scratch);
        self.run(
            self.bounce()?,
            regs::internal(self.number),
            data.len(),
            false,
        )
    }

    /// Gets `data` from the internal buffer.
    pub(crate) fn store(&mut self, data: &mut [u8]) -> Result {
        if data.len() > PIECE {
            return Err(EINVAL);
        }
        self.run(
            regs::internal(self.number),
            self.bounce()?,
            data.len(),
            true,
        )?;

        let state = (*self.state).as_mut().ok_or(ENODEV)?;
        state.bounce.copy_to_slice(&mut *state.scratch);
        data.copy_from_slice(state.scratch.get(..data.len()).ok_or(EINVAL)?);
        Ok(())
    }

    /// Fills the internal buffer and the bounce buffer with a value that is no data of a transfer.
    ///
    /// Otherwise a read that did not arrive would leave the bytes of the transfer before in the
    /// internal buffer. These may be the bytes that the caller wrote and now expects to read back.
    pub(crate) fn scrub(&mut self) -> Result {
        let state = (*self.state).as_mut().ok_or(ENODEV)?;

        // An odd step runs through all values before one comes again.
        state.scrub = state.scrub.wrapping_add(0x5b);
        state.scratch.fill(state.scrub);
        state.bounce.copy_from_slice(&*state.scratch);
        self.run(self.bounce()?, regs::internal(self.number), PIECE, false)
    }

    /// Returns the size of a transfer after a check against the internal buffer. The device does
    /// not check it.
    fn count(memory: Segment) -> Result<usize> {
        usize::try_from(memory.length)
            .ok()
            .filter(|count| *count <= PIECE)
            .ok_or(EINVAL)
    }
}
