// SPDX-License-Identifier: GPL-2.0

//! The steps of a change of mappings, called by GPUVM.

use core::ops::Range;

use kernel::{
    drm::gpuvm::{
        evictable,
        DriverGpuVm,
        Evictable,
        GpuVa,
        GpuVaAlloc,
        OpMap,
        OpMapped,
        OpRemap,
        OpRemapped,
        OpUnmap,
        OpUnmapped, //
    },
    prelude::*,
    sync::Arc, //
};

use super::Kind;
use crate::{
    card::Driver,
    gem::Bo,
    pagetable::{
        Freed,
        PageTable, //
    }, //
};

/// The maximum number of mappings created by a change: the new one and two for each mapping cut at
/// its ends.
const MAPPINGS: usize = 5;

/// A change of mappings.
pub(crate) struct Change {
    /// Memory for new mappings.
    pub(super) vas: KVec<GpuVaAlloc<Kind>>,
    /// Unused tables.
    pub(super) freed: Freed,
    /// No job of the address space is under way.
    pub(super) is_idle: bool,
    /// Something was unmapped.
    pub(super) has_cleared: bool,
    /// The change has failed because jobs may use a mapping to be removed.
    pub(super) is_refused: bool,
}

impl Change {
    pub(super) fn new(table: &PageTable, va: &Range<u64>) -> Result<Self> {
        let mut vas = KVec::with_capacity(MAPPINGS, GFP_KERNEL)?;

        for _ in 0..MAPPINGS {
            // Charged to the memory cgroup of the caller because it can map an object many times.
            vas.push(GpuVaAlloc::new(GFP_KERNEL_ACCOUNT)?, GFP_KERNEL)?;
        }
        Ok(Self {
            vas,
            freed: table.freed(va)?,
            is_idle: false,
            has_cleared: false,
            is_refused: false,
        })
    }

    /// Clears the entries of a part of a mapping.
    ///
    /// Fails if jobs may use the part. In this case the first call of a change fails, so nothing
    /// has changed.
    fn clear(&mut self, mapping: &GpuVa<Kind>, va: &Range<u64>) -> Result {
        if !self.is_idle {
            self.is_refused = true;
            return Err(EAGAIN);
        }

        mapping.vm_bo().data().clear(va);
        self.has_cleared = true;
        Ok(())
    }
}

impl DriverGpuVm for Kind {
    type Driver = Driver;
    type Object = Bo;
    type VaData = ();
    type VmBoData = Arc<PageTable>;
    type SmContext<'ctx> = Change;

    const EVICTABLE: Evictable<Self> = evictable();

    fn sm_step_map<'op>(
        &mut self,
        op: OpMap<'op, Self>,
        change: &mut Change,
    ) -> Result<OpMapped<'op, Self>> {
        Ok(op.insert(change.vas.pop().ok_or(ENOMEM)?, ()))
    }

    fn sm_step_unmap<'op>(
        &mut self,
        op: OpUnmap<'op, Self>,
        change: &mut Change,
    ) -> Result<OpUnmapped<'op, Self>> {
        let mapping = op.va();
        let va = mapping.range();

        change.clear(mapping, &va)?;
        mapping.vm_bo().data().release(&va, &mut change.freed);
        Ok(op.remove().0)
    }

    fn sm_step_remap<'op>(
        &mut self,
        op: OpRemap<'op, Self>,
        change: &mut Change,
    ) -> Result<OpRemapped<'op, Self>> {
        let mapping = op.va_to_unmap();
        let va = mapping.range();
        let start = op
            .prev()
            .map_or(va.start, |left| left.addr() + left.length());
        let end = op.next().map_or(va.end, |left| left.addr());

        change.clear(mapping, &(start..end))?;
        let (Some(first), Some(second)) = (change.vas.pop(), change.vas.pop()) else {
            return Err(ENOMEM);
        };

        let table = mapping.vm_bo().data();
        if start > va.start {
            table.share(&(va.start..start));
        }
        if end < va.end {
            table.share(&(end..va.end));
        }
        table.release(&va, &mut change.freed);

        let (remapped, rest) = op.remap([first, second], (), ());
        if let Some(unused) = rest.unused_va {
            // There is room because it was taken from there.
            let _ = change.vas.push_within_capacity(unused);
        }
        Ok(remapped)
    }
}
