// SPDX-License-Identifier: GPL-2.0

//! The registers and the DMA engine of `edu`.
//!
//! The device has an internal buffer of 4 KiB. Its DMA engine moves bytes between that buffer and
//! memory, one way or the other, and takes 100 ms for it. The driver cannot see the internal
//! buffer: what the CPU wants to put there or to get from there takes a second transfer, through a
//! bounce buffer in system memory.
//!
//! The engine does not tell whether its reads and writes arrived. The driver of a checker must not
//! mistake what is left in the internal buffer for what was read, which is why it overwrites it
//! first ([`Engine::scrub`]).

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
        /// Which device this is.
        pub(super) IDENTIFICATION(u32) @ 0x00 {
            31:24 major;
            23:16 minor;
            7:0 magic;
        }

        /// Reads as the complement of what was written.
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

        /// What the engine does.
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

/// How long a transfer takes; there is no use in looking at the engine before.
const NOMINAL: Delta = Delta::from_millis(100);

/// How long to sleep between looks at the engine after that.
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

/// What belongs to whoever uses the engine.
struct State {
    bounce: Coherent<[u8]>,
    /// What goes to the bounce buffer or comes from it.
    scratch: KBox<[u8; PIECE]>,
    /// What the internal buffer was last scrubbed with.
    scrub: u8,
}

impl Edu {
    /// Checks that `pdev` is what it claims to be, and prepares its engine.
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
            dev_err!(pdev, "not alive: {:#x} instead of {:#x}\n", answer, !ALIVE);
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

    /// The memory that belongs to the driver, as the device sees it.
    pub(crate) fn own_memory(&self) -> Segment {
        Segment {
            address: self.bounce,
            // CAST: 4096 fits 64 bits.
            length: PIECE as u64,
        }
    }

    /// Fails with `ENODEV` if the driver that this belongs to is not bound any more.
    ///
    /// A positive answer is a hint: the driver may be unbound by the time the caller has it. It is
    /// more than that with the lock of the PCI device held.
    pub(crate) fn check_bound(&self) -> Result {
        self.bar.try_access().map(|_| ()).ok_or(ENODEV)
    }

    /// Waits for the engine and takes it.
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

    /// Waits for the transfer in progress, and takes from the device what it must not keep when the
    /// driver is unbound.
    pub(crate) fn revoke(&self) {
        let state = self.engine.lock().take();

        // Frees DMA memory, which wants no lock held.
        drop(state);
    }

    /// Lets the engine move `count` bytes and waits until it has.
    ///
    /// # Errors
    ///
    /// - `ETIMEDOUT` if it does not finish, now or the time before.
    /// - `ENODEV` if the driver is not bound any more.
    fn run(&self, source: u64, destination: u64, count: usize, to_memory: bool) -> Result {
        {
            // The guard is an RCU reader; nothing may sleep in here.
            let bar = self.bar.try_access().ok_or(ENODEV)?;

            // The engine ignores new orders while it has an old one.
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

/// The engine, taken by one user.
///
/// One piece of a transfer is two steps or three; this type is what holds the internal buffer
/// together in between.
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
    /// Those of [`Self::put`].
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

    /// Fills the internal buffer and the bounce buffer with bytes that are nobody's data.
    ///
    /// A read that does not arrive would otherwise find what the transfer before left behind, which
    /// may well be the very bytes that the caller wrote and now expects to read back.
    pub(crate) fn scrub(&mut self) -> Result {
        let state = (*self.state).as_mut().ok_or(ENODEV)?;

        // An odd step runs through all values before one comes again.
        state.scrub = state.scrub.wrapping_add(0x5b);
        state.scratch.fill(state.scrub);
        state.bounce.copy_from_slice(&*state.scratch);
        self.edu.run(self.edu.bounce, regs::INTERNAL, PIECE, false)
    }

    /// The device does not check that a transfer fits the internal buffer.
    fn count(memory: Segment) -> Result<usize> {
        usize::try_from(memory.length)
            .ok()
            .filter(|count| *count <= PIECE)
            .ok_or(EINVAL)
    }
}
