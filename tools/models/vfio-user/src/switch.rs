// SPDX-License-Identifier: GPL-2.0

//! The switch between the devices of one process: an access to a BAR of another device does not
//! leave the process.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;

use crate::memory::Memory;

struct Window {
    memory: Arc<Memory>,
    /// Its bus address, while the device answers there.
    base: Option<u64>,
}

/// The windows of all devices.
#[derive(Default)]
pub struct Switch(RwLock<Vec<Window>>);

/// A window of a device.
pub struct Seat(usize);

impl Switch {
    /// Adds a window without an address.
    pub fn seat(&self, memory: Arc<Memory>) -> Seat {
        let mut windows = self.0.write().unwrap_or_else(PoisonError::into_inner);
        windows.push(Window { memory, base: None });
        Seat(windows.len() - 1)
    }

    /// Moves a window to another bus address, or takes it off the bus.
    pub fn place(&self, seat: &Seat, base: Option<u64>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner)[seat.0].base = base;
    }

    /// The window at an address: its memory, the offset in that, and the number of bytes from
    /// there.
    pub fn find(&self, address: u64) -> Option<(Arc<Memory>, u64, u64)> {
        let windows = self.0.read().unwrap_or_else(PoisonError::into_inner);
        windows.iter().find_map(|window| {
            let offset = address.checked_sub(window.base?)?;
            let rest = window
                .memory
                .bytes()
                .checked_sub(offset)
                .filter(|&rest| rest > 0)?;
            Some((window.memory.clone(), offset, rest))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_where_they_were_placed() {
        let switch = Switch::default();
        let memory = || Arc::new(Memory::private(0x2000).unwrap());
        let (a, b) = (switch.seat(memory()), switch.seat(memory()));
        assert!(switch.find(0).is_none());
        switch.place(&a, Some(0x10000));
        switch.place(&b, Some(u64::MAX - 0x1fff));
        assert!(switch.find(0xffff).is_none());
        assert!(switch
            .find(0x11fff)
            .is_some_and(|(_, offset, rest)| (offset, rest) == (0x1fff, 1)));
        assert!(switch.find(0x12000).is_none());
        assert!(switch
            .find(u64::MAX)
            .is_some_and(|(_, offset, rest)| (offset, rest) == (0x1fff, 1)));
        switch.place(&a, None);
        assert!(switch.find(0x10000).is_none());
    }
}
