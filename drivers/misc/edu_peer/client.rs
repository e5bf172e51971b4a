// SPDX-License-Identifier: GPL-2.0

//! The user of a buffer: the device with an attachment and its transfers, or the CPU in its place.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma_buf::DmaBuf,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use crate::{
    cpu::Cpu,
    device::Edu,
    import::{
        Attached,
        Counters,
        Mode,
        State, //
    },
    job::{
        Jobs,
        Order,
        Ticket, //
    }, //
};

/// The user of a buffer.
pub(crate) enum Client {
    Device {
        /// Dropped first, so a transfer ends before the device is detached.
        jobs: Jobs,
        attached: Arc<Attached>,
    },
    Cpu(Cpu),
}

impl Client {
    /// Lets `dev` or the CPU access `buf`.
    ///
    /// # Errors
    ///
    /// The errors of the exporter, such as `EOPNOTSUPP` if there is no route.
    pub(crate) fn new(mode: Mode, buf: ARef<DmaBuf>, dev: &Device<Bound>) -> Result<Self> {
        if let Mode::Cpu = mode {
            return Ok(Self::Cpu(Cpu::new(buf)));
        }
        Ok(Self::Device {
            jobs: Jobs::new(dev)?,
            attached: Arc::new(Attached::new(mode, buf, dev)?, GFP_KERNEL)?,
        })
    }

    /// The attachment.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the CPU because it has none.
    pub(crate) fn attached(&self) -> Result<&Attached> {
        match self {
            Self::Device { attached, .. } => Ok(attached),
            Self::Cpu(_) => Err(EINVAL),
        }
    }

    fn dma_buf(&self) -> &DmaBuf {
        match self {
            Self::Device { attached, .. } => attached.dma_buf(),
            Self::Cpu(cpu) => cpu.dma_buf(),
        }
    }

    /// Checks that a range is inside the buffer.
    pub(crate) fn check_range(&self, offset: u64, length: u64) -> Result {
        // CAST: `usize` fits 64 bits.
        match offset.checked_add(length) {
            Some(end) if end <= self.dma_buf().size() as u64 => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// The counters of the attachment or of the mapping of the CPU.
    pub(crate) fn counters(&self) -> &Counters {
        match self {
            Self::Device { attached, .. } => attached.counters(),
            Self::Cpu(cpu) => cpu.counters(),
        }
    }

    /// The current state.
    pub(crate) fn state(&self) -> Result<State> {
        match self {
            Self::Device { attached, .. } => attached.state(),
            Self::Cpu(cpu) => Ok(cpu.state()),
        }
    }

    /// Whether a transfer is under way.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Self::Device { jobs, .. } => jobs.is_busy(),
            Self::Cpu(_) => false,
        }
    }

    /// Maps the buffer. Does nothing if it is mapped.
    pub(crate) fn map(&mut self, edu: &Edu) -> Result {
        match self {
            Self::Device { attached, .. } => attached.map(edu),
            Self::Cpu(cpu) => cpu.map().map(|_| ()),
        }
    }

    /// Unmaps the buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not mapped.
    pub(crate) fn unmap(&mut self) -> Result {
        match self {
            Self::Device { attached, .. } => attached.unmap(),
            Self::Cpu(cpu) => cpu.unmap(),
        }
    }

    /// Pins the buffer, see [`Attached::pin`].
    pub(crate) fn pin(&self) -> Result {
        self.attached()?.pin()
    }

    /// Unpins the buffer, see [`Attached::unpin`].
    pub(crate) fn unpin(&self) -> Result {
        self.attached()?.unpin()
    }

    /// Moves the start of `bytes` to `offset` of the buffer and returns the number of bytes moved.
    pub(crate) fn write(&mut self, edu: &Edu, offset: u64, bytes: &[u8]) -> Result<u64> {
        // CAST: `usize` fits 64 bits.
        let len = bytes.len() as u64;

        match self {
            Self::Device { attached, .. } => {
                // Only the second step accesses the buffer. So first only this step takes the
                // reservation. If the buffer is busy or moves then, do all steps with it held.
                {
                    attached.map(edu)?;

                    let mut engine = edu.engine()?;
                    engine.load(bytes)?;
                    match attached.try_piece(offset, len, |piece| engine.send(piece)) {
                        Err(e) if e == EAGAIN => (),
                        ret => return ret,
                    }
                }
                attached.with_piece(edu, offset, len, |piece| {
                    let len = usize::try_from(piece.length)?;

                    edu.engine()?.put(piece, bytes.get(..len).ok_or(EINVAL)?)
                })
            }
            Self::Cpu(cpu) => cpu.write(offset, bytes).map(|()| len),
        }
    }

    /// Moves bytes at `offset` of the buffer to the start of `bytes` and returns the number of
    /// bytes moved.
    pub(crate) fn read(&mut self, edu: &Edu, offset: u64, bytes: &mut [u8]) -> Result<u64> {
        // CAST: `usize` fits 64 bits.
        let len = bytes.len() as u64;

        match self {
            Self::Device { attached, .. } => {
                // As in `write()`.
                {
                    attached.map(edu)?;

                    let mut engine = edu.engine()?;
                    engine.scrub()?;
                    match attached.try_piece(offset, len, |piece| engine.receive(piece)) {
                        Err(e) if e == EAGAIN => (),
                        Err(e) => return Err(e),
                        Ok(len) => {
                            engine.store(bytes.get_mut(..usize::try_from(len)?).ok_or(EINVAL)?)?;
                            return Ok(len);
                        }
                    }
                }
                attached.with_piece(edu, offset, len, |piece| {
                    let len = usize::try_from(piece.length)?;

                    edu.engine()?
                        .get(piece, bytes.get_mut(..len).ok_or(EINVAL)?)
                })
            }
            Self::Cpu(cpu) => cpu.read(offset, bytes).map(|()| len),
        }
    }

    /// Starts an asynchronous transfer, see [`Jobs::submit`].
    ///
    /// # Errors
    ///
    /// `EINVAL` for the CPU.
    pub(crate) fn submit(&mut self, edu: &Arc<Edu>, order: Order) -> Result {
        match self {
            Self::Device { jobs, attached } => jobs.submit(edu, attached, order),
            Self::Cpu(_) => Err(EINVAL),
        }
    }

    /// The last transfer of [`Self::submit`], to wait for.
    pub(crate) fn last(&self) -> Option<Ticket> {
        match self {
            Self::Device { jobs, .. } => jobs.last(),
            Self::Cpu(_) => None,
        }
    }
}
