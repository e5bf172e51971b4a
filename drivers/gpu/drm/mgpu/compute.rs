// SPDX-License-Identifier: GPL-2.0

//! The ring of the compute engine: operations on virtual addresses.

use kernel::{
    drm::{
        gpuvm::Tables,
        queue::Ring,
        ttm::Arrival, //
    },
    prelude::*,
    sync::Arc, //
};

use crate::{
    engine::{
        Jobs,
        RingJob, //
    },
    gpu::Gpu,
    memory::Fault,
    pagetable::Entered,
    ring::{
        self,
        Entries,
        Part,
        ENTRY,
        OPERATIONS, //
    },
    vm::AddressSpace, //
};

/// The operations.
const COPY: u64 = 32;
const FILL: u64 = 33;
const CHECKSUM: u64 = 34;
const ATOMIC_ADD: u64 = 35;

/// An operation on virtual addresses.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    Fill { dst: u64, size: u64, pattern: u32 },
    Copy { src: u64, dst: u64, size: u64 },
    Checksum { src: u64, dst: u64, size: u64 },
    AtomicAdd { dst: u64, value: u64 },
}

impl Operation {
    /// Returns the entry of the ring for a context.
    fn entry(self, context: u32) -> [u64; ENTRY] {
        let context = u64::from(context) << 32;

        match self {
            Self::Fill { dst, size, pattern } => {
                [FILL | context, 0, dst, 0, size, pattern.into(), 0, 0]
            }
            Self::Copy { src, dst, size } => [COPY | context, src, dst, 0, size, 0, 0, 0],
            Self::Checksum { src, dst, size } => [CHECKSUM | context, src, dst, 0, size, 0, 0, 0],
            Self::AtomicAdd { dst, value } => [ATOMIC_ADD | context, 0, dst, 0, 0, value, 0, 0],
        }
    }

    /// Returns the number of bytes read or written.
    fn bytes(self) -> u64 {
        match self {
            Self::Fill { size, .. } | Self::Copy { size, .. } | Self::Checksum { size, .. } => size,
            Self::AtomicAdd { .. } => size_of::<u64>() as u64,
        }
    }
}

/// The operations of a job and a reference to their address space.
pub(crate) struct Program {
    operations: KVec<Operation>,
    space: Arc<AddressSpace>,
}

impl Program {
    /// Creates a program.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if memory runs out.
    pub(crate) fn new(operations: KVec<Operation>, space: Arc<AddressSpace>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { operations, space }, GFP_KERNEL)?)
    }
}

impl Entries for Program {
    // An `AtomicAdd` must not be done twice.
    const REPEATS: bool = false;

    const WORDS: usize = 0;

    /// The number of operations written so far.
    type At = usize;

    fn write(&self, at: &mut usize, part: &mut Part<'_>) -> Result<bool> {
        let context = self.space.table().number();

        for operation in self.operations.iter().skip(*at).take(OPERATIONS as usize) {
            part.push(operation.entry(context))?;
            *at += 1;
        }
        Ok(*at == self.operations.len())
    }

    fn bytes(&self) -> u64 {
        self.operations
            .iter()
            .fold(0, |sum, operation| sum.saturating_add(operation.bytes()))
    }

    fn failed(&self, fault: Option<Fault>) {
        self.space.note_failure(fault);
    }
}

/// A job of a client.
pub(crate) struct ComputeJob {
    program: Arc<Program>,
    /// The content in transit when the job was queued.
    contents: KVVec<Arrival>,
    /// Held from the beginning to the end of the job.
    context: Option<Entered>,
}

impl ComputeJob {
    pub(crate) fn new(program: Arc<Program>, contents: KVVec<Arrival>) -> Self {
        Self {
            program,
            contents,
            context: None,
        }
    }
}

impl RingJob for ComputeJob {
    const NAME: &'static CStr = c"mgpu-compute";

    type Entries = Program;

    fn ring(gpu: &Gpu) -> &ring::Ring<Program> {
        &gpu.compute
    }

    fn begin(&mut self, gpu: &Gpu) -> Result<Arc<Program>> {
        // If an object was not filled, its memory has the content of the last owner.
        if self.contents.iter().any(Arrival::is_lost) {
            return Err(EIO);
        }
        if self.program.operations.is_empty() {
            return Ok(self.program.clone());
        }

        // An invalidation may have failed, either here or because of another client. The device may
        // then reach memory of a new owner until it is reset.
        let table = self.program.space.table();
        for _ in 0..2 {
            gpu.recovery.reset_stale();
            if self.context.is_none() {
                self.context = table.enter().ok();
            }
            if self.context.is_some() && !table.holds_jobs() {
                return Ok(self.program.clone());
            }
            // Frees the numbers that the device may have used until the reset.
            gpu.contexts.end_quarantine();
        }
        Err(EIO)
    }

    fn ended(&mut self, _result: Result) {
        self.context = None;
    }
}

/// The operations of the ring of the compute engine.
pub(crate) type ComputeRing = Jobs<ComputeJob>;

/// The compute engine. Its jobs end when this is dropped.
pub(crate) struct ComputeEngine<'a>(pub(crate) Ring<'a, ComputeRing>);
