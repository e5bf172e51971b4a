// SPDX-License-Identifier: GPL-2.0

//! A memory region, and what a test needs to transfer to and from all of it.

use super::{Buffer, ON_DEMAND};
use crate::map::Map;
use crate::misc;
use crate::pattern::Pattern;
use crate::svm::holds;
use crate::verbs::{expect_status, Failure, Nic, Pair, Region, Status};
use crate::{Outcome, SysError};

/// A region, or what has one, and a connection to memory of this process.
#[derive(Debug)]
pub struct Setup<'a, T = Region<'a>> {
    // Dropped in this order: the region while it is in use.
    /// What has the region.
    pub target: T,
    /// The other memory, which is as large as the region.
    pub host: Buffer<'a>,
    /// The connection.
    pub pair: Pair<'a>,
}

impl<'a> Setup<'a> {
    /// Registers a mapping with on-demand paging.
    pub fn on_demand(nic: &'a Nic, map: &Map) -> Result<Self, SysError> {
        let region = nic.register_memory(map, nic.all_access() | ON_DEMAND)?;
        Self::of(nic, region, map.len() as u64)
    }
}

impl<'a, T: AsRef<Region<'a>>> Setup<'a, T> {
    /// Connects what has a region of `len` bytes.
    pub fn of(nic: &'a Nic, target: T, len: u64) -> Result<Self, SysError> {
        Ok(Self {
            pair: Pair::new(nic)?,
            host: Buffer::host(nic, "host", len)?,
            target,
        })
    }

    fn request_read(&self) -> Result<(), Failure> {
        let (from, to) = (self.target.as_ref(), self.host.region());
        self.pair.read((from, 0), (to, 0), self.host.len() as u32)
    }

    #[track_caller]
    fn host_has(&self, who: &str, pattern: Pattern) -> Outcome {
        let map = self.host.map();
        holds(who, map, pattern, 0..map.pages())
    }

    /// Makes the NIC write a pattern to all of the region.
    pub fn write(&self, pattern: Pattern) -> Outcome {
        self.host.fill(pattern)?;
        let (from, to) = (self.host.region(), self.target.as_ref());
        self.pair
            .write((from, 0), (to, 0), self.host.len() as u32)?;
        Ok(())
    }

    /// Makes the NIC read all of the region, and compares the bytes.
    ///
    /// # Errors
    ///
    /// As for [`Pair::read`], or the first difference.
    #[track_caller]
    pub fn read(&self, pattern: Pattern) -> Outcome {
        self.host.fill(Pattern::new(misc::nonce()))?;
        self.request_read()?;
        self.host_has("the NIC", pattern)
    }

    /// Checks that a read of the region is refused, and that nothing has arrived.
    ///
    /// # Errors
    ///
    /// Describes what happened instead.
    #[track_caller]
    pub fn refuses(&self, what: &str) -> Outcome {
        let pattern = Pattern::new(misc::nonce());
        self.host.fill(pattern)?;
        expect_status(what, self.request_read(), &[Status::REMOTE_ACCESS])?;
        self.host_has("the host", pattern)
    }

    /// Makes the NIC add to the first word, which is `old`.
    ///
    /// # Errors
    ///
    /// As for [`Pair::fetch_add`], or the other value that the NIC has returned.
    #[track_caller]
    pub fn add(&self, old: u64, value: u64) -> Outcome {
        let (on, result) = ((self.target.as_ref(), 0), (self.host.region(), 0));
        self.pair.fetch_add(result, on, value)?;
        check_eq!(self.host.map().read(0), old, "what fetch-and-add returns");
        Ok(())
    }
}
