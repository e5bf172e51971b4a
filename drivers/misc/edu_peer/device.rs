// SPDX-License-Identifier: GPL-2.0

//! The registers and the DMA engine of `edu`.
//!
//! The device has an internal buffer of 4 KiB. Its DMA engine moves bytes between that buffer and
//! memory, in either direction, and takes 100 ms for it. The CPU cannot access the internal buffer:
//! bytes from the CPU or for it take a second transfer, through a bounce buffer in system memory.
//!
//! The engine does not report whether its reads and writes arrived. So that bytes left in the
//! internal buffer cannot be mistaken for bytes that were read, the driver overwrites the internal
//! buffer before each read ([`Engine::scrub`]).

use kernel::{
    device::Core,
    dma::Coherent,
    io::{
        poll::read_poll_timeout,
        register,
        Io, //
    },
    new_mutex,
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        lock::{
            mutex::MutexBackend,
            Guard, //
        },
        Arc,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta, //
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

        /// Reads as the complement of the value that was written last.
        pub(super) LIVENESS(u32) @ 0x04 {
            31:0 value;
        }

        // The registers from here on are 64 bits wide. A BAR is only known to be aligned to 4 bytes
        // at build time, which is why their accesses are checked at run time.

        /// The address that the engine reads from.
        pub(super) DMA_SOURCE(u64) @ 0x80 {
            63:0 address;
        }

        /// The address that the engine writes to.
        pub(super) DMA_DESTINATION(u64) @ 0x88 {
            63:0 address;
        }

        /// How many bytes the engine moves.
        pub(super) DMA_COUNT(u64) @ 0x90 {
            63:0 bytes;
        }

        /// Starts the engine, and returns whether it runs.
        pub(super) DMA_COMMAND(u64) @ 0x98 {
            /// Set to start; the device clears it when it is done.
            0:0 run => bool;
            /// From the internal buffer to memory instead of the other way.
            1:1 to_memory => bool;
        }
    }

    /// The value of the field `magic` of the identification.
    pub(super) const MAGIC: u8 = 0xed;

    /// Where the engine finds the internal buffer.
    pub(super) const INTERNAL: u64 = 0x40000;

    /// The size of the part of the BAR that is in use.
    pub(super) const END: usize = 0xa0;
}

/// The size of the internal buffer, and so the most that one transfer moves, in bytes.
pub(crate) const PIECE: usize = 4096;

/// How long a transfer takes at most, many times the nominal 100 ms.
const TIMEOUT: Delta = Delta::from_secs(2);

/// How long a transfer takes. The engine is not polled before.
const NOMINAL: Delta = Delta::from_millis(100);

/// How long to sleep between polls of the engine after that.
const POLL: Delta = Delta::from_millis(2);

/// An `edu` device, bound or not.
#[pin_data]
pub(crate) struct Edu {
    pdev: ARef<pci::Device>,
    bar: pci::DevresBar<{ regs::END }>,
    /// The DMA address of the bounce buffer.
    bounce: u64,
    #[pin]
    engine: Mutex<Option<State>>,
}

/// The buffers of the task that holds the engine.
struct State {
    bounce: Coherent<[u8]>,
    /// The bytes that are copied to or from the bounce buffer.
    scratch: KBox<[u8; PIECE]>,
    /// The value that the internal buffer was last filled with.
    scrub: u8,
}

impl Edu {
    /// Checks that `pdev` is an `edu` device, and prepares its engine.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device does not behave as `edu` does.
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

        let memory = Coherent::<u8>::zeroed_slice(pdev.as_ref(), PIECE, GFP_KERNEL)?;
        let scratch = KBox::new([0; PIECE], GFP_KERNEL)?;
        let bar = bar.into_devres()?;

        Arc::pin_init(
            pin_init!(Self {
                pdev: pdev.into(),
                bar,
                bounce: memory.dma_address(),
                engine <- new_mutex!(
                    Some(State {
                        bounce: memory,
                        scratch,
                        scrub: 0
                    }),
                    "edu_peer::engine"
                ),
            }),
            GFP_KERNEL,
        )
    }

    /// The PCI device.
    pub(crate) fn pdev(&self) -> &pci::Device {
        &self.pdev
    }

    /// The bounce buffer, by its DMA address.
    pub(crate) fn own_memory(&self) -> Segment {
        Segment {
            address: self.bounce,
            // CAST: 4096 fits 64 bits.
            length: PIECE as u64,
        }
    }

    /// Fails with `ENODEV` if the driver is not bound any more.
    ///
    /// Without the lock of the PCI device held a success is only a hint, because the driver may be
    /// unbound at any time.
    pub(crate) fn check_bound(&self) -> Result {
        self.bar.try_access().map(|_| ()).ok_or(ENODEV)
    }

    /// Locks the engine, which waits for other users of it.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the driver is not bound any more.
    pub(crate) fn engine(&self) -> Result<Engine<'_>> {
        let state = self.engine.lock();
        if state.is_none() {
            return Err(ENODEV);
        }

        Ok(Engine { edu: self, state })
    }

    /// Waits for the transfer in progress, and frees the memory that must not outlive the binding
    /// of the driver.
    pub(crate) fn revoke(&self) {
        let state = self.engine.lock().take();

        // The drop frees DMA memory, for which no lock must be held.
        drop(state);
    }

    /// Makes the engine move `count` bytes, and waits until it has finished.
    ///
    /// # Errors
    ///
    /// - `ETIMEDOUT` if it does not finish, or has not finished the transfer before.
    /// - `ENODEV` if the driver is not bound any more.
    fn run(&self, source: u64, destination: u64, count: usize, to_memory: bool) -> Result {
        {
            // The guard is an RCU reader; nothing may sleep in here.
            let bar = self.bar.try_access().ok_or(ENODEV)?;

            // The engine ignores a new command while it runs.
            if bar.try_read(regs::DMA_COMMAND)?.run() {
                return Err(ETIMEDOUT);
            }

            bar.try_write_reg(regs::DMA_SOURCE::from(source))?;
            bar.try_write_reg(regs::DMA_DESTINATION::from(destination))?;
            // CAST: `usize` fits 64 bits.
            bar.try_write_reg(regs::DMA_COUNT::from(count as u64))?;
            bar.try_write_reg(
                regs::DMA_COMMAND::zeroed()
                    .with_run(true)
                    .with_to_memory(to_memory),
            )?;
        }

        fsleep(NOMINAL);
        read_poll_timeout(
            || {
                let bar = self.bar.try_access().ok_or(ENODEV)?;
                Ok(bar.try_read(regs::DMA_COMMAND)?.run())
            },
            |running| !*running,
            POLL,
            TIMEOUT,
        )
        .inspect_err(|e| {
            dev_err!(
                self.pdev,
                "transfer of {:#x} bytes from {:#x} to {:#x} failed: {:?}\n",
                count,
                source,
                destination,
                e
            );
        })?;

        Ok(())
    }
}

/// The engine, locked.
///
/// One piece of a transfer takes two or three steps. The lock is held from the first to the last,
/// so that no other user changes the internal buffer in between.
pub(crate) struct Engine<'a> {
    edu: &'a Edu,
    state: Guard<'a, Option<State>, MutexBackend>,
}

impl Engine<'_> {
    /// Moves `data` to the start of `to`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if it does not fit there, or is more than [`PIECE`].
    /// - `ETIMEDOUT` if the device does not finish.
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

        self.edu.run(regs::INTERNAL, to.address, count, true)
    }

    /// Moves `from` to the start of the internal buffer.
    pub(crate) fn receive(&mut self, from: Segment) -> Result {
        let count = Self::count(from)?;

        self.edu.run(from.address, regs::INTERNAL, count, false)
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
        self.edu
            .run(self.edu.bounce, regs::INTERNAL, data.len(), false)
    }

    /// Gets `data` from the internal buffer.
    pub(crate) fn store(&mut self, data: &mut [u8]) -> Result {
        if data.len() > PIECE {
            return Err(EINVAL);
        }
        self.edu
            .run(regs::INTERNAL, self.edu.bounce, data.len(), true)?;

        let state = (*self.state).as_mut().ok_or(ENODEV)?;
        state.bounce.copy_to_slice(&mut *state.scratch);
        data.copy_from_slice(state.scratch.get(..data.len()).ok_or(EINVAL)?);
        Ok(())
    }

    /// Fills the internal buffer and the bounce buffer with a value that is no data of a transfer.
    ///
    /// Otherwise, after a read that did not arrive, the internal buffer would still have the bytes
    /// of the transfer before. These may be the bytes that the caller wrote and now expects to read
    /// back.
    pub(crate) fn scrub(&mut self) -> Result {
        let state = (*self.state).as_mut().ok_or(ENODEV)?;

        // An odd step runs through all values before one comes again.
        state.scrub = state.scrub.wrapping_add(0x5b);
        state.scratch.fill(state.scrub);
        state.bounce.copy_from_slice(&*state.scratch);
        self.edu.run(self.edu.bounce, regs::INTERNAL, PIECE, false)
    }

    /// Returns the size of a transfer, checked against the internal buffer, which the device does
    /// not do.
    fn count(memory: Segment) -> Result<usize> {
        usize::try_from(memory.length)
            .ok()
            .filter(|count| *count <= PIECE)
            .ok_or(EINVAL)
    }
}
