// SPDX-License-Identifier: GPL-2.0

//! The CPU in place of the device.

use kernel::{
    dma::DataDirection,
    dma_buf::{
        vmap::VMap,
        DmaBuf, //
    },
    prelude::*,
    sync::aref::ARef, //
};

use crate::import::{
    Counters,
    State, //
};

/// A buffer with a vmap, in place of an attachment of the device.
pub(crate) struct Cpu {
    buf: ARef<DmaBuf>,
    map: Option<VMap>,
    counters: Counters,
}

impl Cpu {
    pub(crate) fn new(buf: ARef<DmaBuf>) -> Self {
        Self {
            buf,
            map: None,
            counters: Counters::new(false),
        }
    }

    /// The buffer.
    pub(crate) fn dma_buf(&self) -> &DmaBuf {
        &self.buf
    }

    /// The counters of the mapping.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The current state.
    pub(crate) fn state(&self) -> State {
        State {
            mapped: self.map.is_some(),
            pinned: false,
            iomem: self.map.as_ref().is_some_and(|map| map.is_iomem()),
        }
    }

    /// Maps the buffer. Does nothing if it is mapped.
    pub(crate) fn map(&mut self) -> Result<&VMap> {
        let map = match self.map.take() {
            Some(map) => map,
            None => {
                let map = VMap::new(self.buf.clone())?;

                self.counters.mapped();
                map
            }
        };

        Ok(self.map.insert(map))
    }

    /// Unmaps the buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not mapped.
    pub(crate) fn unmap(&mut self) -> Result {
        self.map.take().map(drop).ok_or(EINVAL)
    }

    /// Maps the buffer if it is not mapped. Calls `f` with the mapping between the begin and the
    /// end of CPU access.
    fn access(&mut self, dir: DataDirection, f: impl FnOnce(&VMap) -> Result) -> Result {
        let buf = self.buf.clone();
        let map = self.map()?;

        buf.begin_cpu_access(dir)?;
        let ret = f(map);
        buf.end_cpu_access(dir)?;
        ret
    }

    /// Copies `bytes` to `offset` of the buffer.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result {
        let offset = offset.try_into()?;

        self.access(DataDirection::ToDevice, |map| map.write(offset, bytes))
    }

    /// Copies from `offset` of the buffer to `bytes`.
    pub(crate) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result {
        let offset = offset.try_into()?;

        self.access(DataDirection::FromDevice, |map| map.read(offset, bytes))
    }
}
