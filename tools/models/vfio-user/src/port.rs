// SPDX-License-Identifier: GPL-2.0

//! The port by which a device is on the bus: its DMA, its interrupts and its configuration space.
//!
//! It outlives connections: a device may be unplugged and plugged in again.

use std::io;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::RwLock;

use crate::client::Client;
use crate::client::Failed;
use crate::config::Config;
use crate::config::Effect;
use crate::config::Identity;
use crate::config::Kind;
use crate::dma;
use crate::dma::Place;
use crate::dma::Table;
use crate::interrupts::Interrupts;
use crate::interrupts::MSI;
use crate::memory::Memory;
use crate::message::DATA;
use crate::switch::Seat;
use crate::switch::Switch;

/// A BAR: registers, each access to which is a message, or memory that the client maps.
pub enum Bar {
    Registers { bytes: u64 },
    Memory(Arc<Memory>),
}

impl Bar {
    /// Size in bytes, a power of two.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Registers { bytes } => *bytes,
            Self::Memory(memory) => memory.bytes(),
        }
    }
}

/// The reason why an access to the bus was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The device was reset or has no client any more: this is not an error of the driver.
    Reset,
    /// The address is not mapped for DMA.
    Unmapped { address: u64 },
    /// The device may not access the bus at all: bus mastering is off.
    NoMaster { address: u64 },
}

/// The port of a device.
pub struct Port {
    /// The name of the device in the log.
    pub name: String,
    log: Box<dyn Fn(&str) + Send + Sync>,
    /// Whether an address that is not in the table is refused without asking the client.
    strict: bool,
    pristine: Config,
    config: Mutex<Config>,
    bars: Vec<(usize, Bar)>,
    seats: Vec<(usize, Seat)>,
    switch: Arc<Switch>,
    /// Held for reading while memory of the table or of the switch is accessed: once it is taken
    /// for writing, these accesses are over.
    table: RwLock<Table>,
    /// Grows with each reset of the device: accesses that began before are refused.
    epoch: AtomicU64,
    /// Whether a client is connected. The device does not notice at once that it is gone.
    connected: AtomicBool,
    interrupts: Interrupts,
    pub(crate) client: Client,
}

impl Port {
    /// The port of a device that answers at BARs, by their numbers, below a switch.
    ///
    /// If an IOMMU is between the devices and memory, the port is `strict`: the switch does not use
    /// these addresses, and one that is not in the table is not mapped. Else the client is asked.
    pub fn new(
        name: &str,
        identity: Identity,
        bars: Vec<(usize, Bar)>,
        switch: Arc<Switch>,
        strict: bool,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        let mut pristine = Config::new(identity);
        let mut seats = Vec::new();
        for (number, bar) in &bars {
            let kind = match bar {
                Bar::Registers { .. } => Kind::Bits32,
                Bar::Memory(memory) => {
                    seats.push((*number, switch.seat(memory.clone())));
                    Kind::Prefetchable64
                }
            };
            pristine.add_bar(*number, kind, bar.bytes());
        }
        Self {
            name: name.to_owned(),
            log: Box::new(log),
            strict,
            config: Mutex::new(pristine.clone()),
            pristine,
            bars,
            seats,
            switch,
            table: RwLock::default(),
            epoch: AtomicU64::new(0),
            connected: AtomicBool::new(false),
            interrupts: Interrupts::default(),
            client: Client::default(),
        }
    }

    /// Writes a line to the log.
    pub fn log(&self, line: &str) {
        (self.log)(&format!("{}: {line}", self.name));
    }

    /// The BAR of a number.
    pub fn bar(&self, number: usize) -> Option<&Bar> {
        self.bars
            .iter()
            .find_map(|(n, bar)| (*n == number).then_some(bar))
    }

    /// Whether a client has the device.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
    }

    /// Raises the interrupt of the device.
    pub fn interrupt(&self) {
        self.interrupts.raise(MSI, 0);
    }

    pub(crate) fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    /// Changes the table once no access to memory is under way.
    pub(crate) fn with_table<R>(&self, change: impl FnOnce(&mut Table) -> R) -> R {
        change(&mut self.table.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn config(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read_config(&self, offset: u64, to: &mut [u8]) {
        self.config().read(offset, to);
    }

    pub(crate) fn write_config(&self, offset: u64, from: &[u8]) -> Effect {
        let mut config = self.config();
        let effect = config.write(offset, from);
        self.place(&config);
        drop(config);
        // Accesses that were let through before are over.
        self.with_table(|_| ());
        effect
    }

    /// Puts the windows at the addresses in the configuration space.
    fn place(&self, config: &Config) {
        for (number, seat) in &self.seats {
            self.switch.place(seat, config.bar(*number));
        }
    }

    /// Refuses all accesses to the bus that began before.
    pub fn cut_off(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.with_table(|_| ());
    }

    /// A client is there.
    pub(crate) fn connect(&self, stream: &UnixStream) -> io::Result<()> {
        self.client.connect(stream.try_clone()?);
        self.connected.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Drops the client, with its mappings and its events.
    pub(crate) fn disconnect(&self) {
        self.connected.store(false, Ordering::SeqCst);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.client.disconnect();
        self.with_table(Table::clear);
        self.interrupts.clear();
        let mut config = self.config();
        *config = self.pristine.clone();
        self.place(&config);
    }

    /// The number of the last reset.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// Access to the bus, until the device is reset.
    pub fn dma(&self) -> Dma<'_> {
        self.dma_since(self.epoch())
    }

    /// Access to the bus, until the device is reset the next time after some reset.
    pub fn dma_since(&self, epoch: Epoch) -> Dma<'_> {
        Dma {
            port: self,
            epoch,
            made: None,
        }
    }
}

/// A time between two resets of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

/// Access to the bus by a device since its last reset.
///
/// The thread that serves the connection must not call its functions, nor may a caller hold a lock
/// that this thread takes, because the client may have to be asked. It is not asked where
/// [`Self::is_direct`] says so.
#[derive(Clone, Copy)]
pub struct Dma<'a> {
    port: &'a Port,
    epoch: Epoch,
    /// By how many of the mappings, if not by all.
    made: Option<u64>,
}

impl Dma<'_> {
    /// Whether all accesses are refused, because the device was reset or has no client any more.
    pub fn is_over(&self) -> bool {
        self.port.epoch() != self.epoch || !self.port.is_connected()
    }

    /// The time in which it has access.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How many mappings there were so far.
    pub fn made(&self) -> u64 {
        let table = self.port.table.read();
        table.unwrap_or_else(PoisonError::into_inner).made()
    }

    /// The same access for a write that was made when there were so many mappings. Behind an IOMMU
    /// an address that is mapped anew since is another one.
    pub fn as_of(self, made: u64) -> Self {
        Self {
            made: self.port.strict.then_some(made),
            ..self
        }
    }

    /// Accesses the memory at an address, if the process has it: calls a function with the memory,
    /// the offset in it, and the number of bytes from there, at most as many as given.
    ///
    /// Returns nothing if the client is to be asked.
    fn direct<R>(
        &self,
        address: u64,
        bytes: u64,
        access: u32,
        f: impl FnOnce(&Memory, u64, usize) -> R,
    ) -> Result<Option<R>, Refused> {
        let table = self
            .port
            .table
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if self.is_over() {
            return Err(Refused::Reset);
        }
        if !self.port.config().master() {
            return Err(Refused::NoMaster { address });
        }
        if !self.port.strict {
            if let Some((memory, offset, rest)) = self.port.switch.find(address) {
                return Ok(Some(f(&memory, offset, bytes.min(rest) as usize)));
            }
        }
        if self.made.is_some_and(|made| !table.is_of(made, address)) {
            return Err(Refused::Unmapped { address });
        }
        match table.find(address, bytes, access) {
            Some((Place::Memory(memory, offset), bytes)) => {
                Ok(Some(f(memory, offset, bytes as usize)))
            }
            Some((Place::Client, _)) => Ok(None),
            None if self.port.strict => Err(Refused::Unmapped { address }),
            None => Ok(None),
        }
    }

    fn failed(address: u64) -> impl Fn(Failed) -> Refused {
        move |failed| match failed {
            Failed::Gone => Refused::Reset,
            Failed::Errno(_) => Refused::Unmapped { address },
        }
    }

    /// Whether the process has all of a range, so that an access does not ask the client.
    pub fn is_direct(&self, address: u64, bytes: u64, access: u32) -> Result<bool, Refused> {
        let mut done = 0;
        while done < bytes {
            let at = address.wrapping_add(done);
            match self.direct(at, bytes - done, access, |_, _, bytes| bytes)? {
                Some(bytes) => done += bytes as u64,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The memory that has all of a range, as a number that no other memory has, and never 0; none
    /// if there are several, or if the client has to be asked.
    pub fn target(&self, address: u64, bytes: u64, access: u32) -> Result<Option<usize>, Refused> {
        let (mut target, mut done) = (None, 0);
        while done < bytes {
            let at = address.wrapping_add(done);
            let found = self.direct(at, bytes - done, access, |memory, _, bytes| {
                (ptr::from_ref(memory).addr(), bytes as u64)
            })?;
            match found {
                Some((memory, bytes)) if target.is_none_or(|target| target == memory) => {
                    target = Some(memory);
                    done += bytes;
                }
                _ => return Ok(None),
            }
        }
        Ok(target)
    }

    /// Reads from the bus.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        let mut done = 0;
        while done < to.len() {
            let at = address.wrapping_add(done as u64);
            let left = &mut to[done..];
            let direct =
                self.direct(at, left.len() as u64, dma::READ, |memory, offset, bytes| {
                    memory.read(offset, &mut left[..bytes]);
                    bytes
                })?;
            done += match direct {
                Some(bytes) => bytes,
                None => {
                    let bytes = self.asked(at, left.len());
                    self.port
                        .client
                        .read(at, &mut left[..bytes])
                        .map_err(Self::failed(at))?;
                    bytes
                }
            };
        }
        Ok(())
    }

    /// Writes to the bus.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Refused> {
        let mut done = 0;
        while done < from.len() {
            let at = address.wrapping_add(done as u64);
            let left = &from[done..];
            let direct = self.direct(
                at,
                left.len() as u64,
                dma::WRITE,
                |memory, offset, bytes| {
                    memory.write(offset, &left[..bytes]);
                    bytes
                },
            )?;
            done += match direct {
                Some(bytes) => bytes,
                None => {
                    let bytes = self.asked(at, left.len());
                    self.port
                        .client
                        .write(at, &left[..bytes])
                        .map_err(Self::failed(at))?;
                    bytes
                }
            };
        }
        Ok(())
    }

    /// The number of bytes of one request to the client: at most the rest of a page for memory that
    /// is mapped in pieces, and never beyond the mapping.
    fn asked(&self, address: u64, bytes: usize) -> usize {
        let table = self
            .port
            .table
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.min(DATA);
        match table.find(address, bytes as u64, 0) {
            Some((_, mapped)) => mapped as usize,
            None => bytes,
        }
    }

    /// Accesses the memory of a word of 64 bits, if the process has it and the word is aligned.
    fn word<R>(
        &self,
        address: u64,
        access: u32,
        f: impl FnOnce(&Memory, u64) -> R,
    ) -> Result<Option<R>, Refused> {
        match address.is_multiple_of(8) {
            true => self.direct(address, 8, access, |memory, offset, _| f(memory, offset)),
            false => Ok(None),
        }
    }

    /// Reads a word of 64 bits: in one piece if it is aligned and the process has the memory.
    pub fn load(&self, address: u64) -> Result<u64, Refused> {
        match self.word(address, dma::READ, Memory::load)? {
            Some(value) => Ok(value),
            None => {
                let mut bytes = [0; 8];
                self.read(address, &mut bytes)?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }

    /// Writes a word of 64 bits after all that was written before, and in one piece as
    /// [`Self::load`].
    pub fn store(&self, address: u64, value: u64) -> Result<(), Refused> {
        match self.word(address, dma::WRITE, |memory, at| memory.store(at, value))? {
            Some(()) => Ok(()),
            None => self.write(address, &value.to_le_bytes()),
        }
    }

    /// Adds to a word of 64 bits: in one step if it is aligned and the process has the memory, else
    /// by a read and a write.
    pub fn add(&self, address: u64, addend: u64) -> Result<(), Refused> {
        let access = dma::READ | dma::WRITE;
        match self.word(address, access, |memory, at| memory.add(at, addend))? {
            Some(()) => Ok(()),
            None => {
                let value = self.load(address)?;
                self.store(address, value.wrapping_add(addend))
            }
        }
    }

    /// Reads an aligned word without a report or a request, if the process has the memory.
    pub fn peek(&self, address: u64) -> Option<u64> {
        self.word(address, dma::READ, Memory::load).ok().flatten()
    }
}
