// SPDX-License-Identifier: GPL-2.0

//! A machine with a modelled edu, and the simplest driver for it.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use client::eventually;
use client::Client;
use client::Log;
use edu::device::Edu;
use edu::registers;
use vfio_user::memory::PAGE;
use vfio_user::server;

/// Bytes of the machine's memory, its bus address, and a page that only the client reaches.
pub const MEMORY: u64 = 16 * PAGE;
pub const BASE: u64 = 0x1_0000_0000;
pub const REMOTE: u64 = 0x50_0000_0000;

/// A machine with the device.
pub struct Machine {
    pub client: Client,
    pub log: Log,
}

impl Machine {
    pub fn new() -> Self {
        Self::with(false)
    }

    /// A machine whose device is behind an IOMMU, or not.
    pub fn with(strict: bool) -> Self {
        let log = Log::default();
        let edu = Edu::new("edu", strict, Arc::default(), log.sink());
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || server::connection(theirs, &*edu));
        let mut client = Client::raw(ours, MEMORY);
        client.turn_on(BASE, MEMORY);
        Self { client, log }
    }

    /// The offset of a channel's register.
    pub fn of(channel: u64, register: u64) -> u64 {
        registers::CHANNEL + registers::CHANNEL_STRIDE * channel + register
    }

    /// The place of a channel's buffer.
    pub fn buffer(channel: u64) -> u64 {
        registers::BUFFER + registers::BUFFER_BYTES * channel
    }

    /// Starts a transfer from an address to another one.
    pub fn start(&mut self, channel: u64, from: u64, to: u64, bytes: u64, command: u64) {
        for (register, value) in [
            (registers::SOURCE, from),
            (registers::DESTINATION, to),
            (registers::COUNT, bytes),
            (registers::COMMAND, command | registers::RUN),
        ] {
            self.client.set64(Self::of(channel, register), value);
        }
    }

    /// Starts to read bytes from the bus into the buffer.
    pub fn start_read(&mut self, channel: u64, from: u64, bytes: u64) {
        self.start(channel, from, Self::buffer(channel), bytes, 0);
    }

    /// Starts to write bytes from the buffer to the bus.
    pub fn start_write(&mut self, channel: u64, to: u64, bytes: u64) {
        let command = registers::TO_MEMORY | registers::INTERRUPT;
        self.start(channel, Self::buffer(channel), to, bytes, command);
    }

    /// Whether a transfer is under way.
    pub fn is_running(&mut self, channel: u64) -> bool {
        self.client.get64(Self::of(channel, registers::COMMAND)) & registers::RUN != 0
    }

    /// Waits for the end of a transfer.
    pub fn finish(&mut self, channel: u64) {
        eventually("the end of a transfer", || !self.is_running(channel));
    }

    pub fn read(&mut self, channel: u64, from: u64, bytes: u64) {
        self.start_read(channel, from, bytes);
        self.finish(channel);
    }

    pub fn write(&mut self, channel: u64, to: u64, bytes: u64) {
        self.start_write(channel, to, bytes);
        self.finish(channel);
    }

    pub fn inject(&mut self, what: u64, skip: u64, argument: u64) {
        self.client
            .set64(registers::INJECT, what | skip << 16 | argument << 32);
    }
}
