// SPDX-License-Identifier: GPL-2.0

//! Configuration space: the identity of the device, its BARs, and the capabilities PCI Express, MSI
//! and power management.

/// Bytes of the space of a PCI Express device.
pub const BYTES: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CLASS: usize = 0x08;
const HEADER_TYPE: usize = 0x0e;
const BAR: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const PCIE: usize = 0x40;
const MSI: usize = 0x80;
const POWER: usize = 0x90;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
const COMMAND_NO_INTX: u16 = 1 << 10;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const BAR_64: u32 = 1 << 2;
const BAR_PREFETCHABLE: u32 = 1 << 3;
const CAPABILITY_POWER: u8 = 0x01;
const CAPABILITY_MSI: u8 = 0x05;
const CAPABILITY_PCIE: u8 = 0x10;
/// An endpoint, version 2 of the capability.
const PCIE_ENDPOINT: u16 = 2;
const PCIE_DEVICE: usize = PCIE + 0x04;
const PCIE_DEVICE_CONTROL: usize = PCIE + 0x08;
const PCIE_LINK: usize = PCIE + 0x0c;
const PCIE_LINK_STATUS: usize = PCIE + 0x12;
/// The device has role-based errors, and a function level reset.
const DEVICE_ROLES: u32 = 1 << 15;
const DEVICE_RESET: u32 = 1 << 28;
const CONTROL_RESET: u16 = 1 << 15;
/// One lane at 2.5 GT/s.
const LINK: u16 = 1 << 4 | 1;
const MSI_ENABLE: u16 = 1;
const MSI_64: u16 = 1 << 7;
/// Version 3 of the capability, with the states D0 and D3hot. The transition from D3hot to D0 is a
/// reset.
const POWER_VERSION: u16 = 3;
const POWER_STATE: usize = POWER + 0x04;
const POWER_STATES: u8 = 3;
const D0: u8 = 0;
const D3: u8 = 3;

/// The identity of a device.
#[derive(Clone, Copy)]
pub struct Identity {
    pub vendor: u16,
    pub device: u16,
    /// Base class, subclass and programming interface.
    pub class: u32,
    /// It has power management.
    pub power: bool,
}

/// The kind of a BAR of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bits32,
    /// Of 64 bits, prefetchable; takes the number of the next BAR as well.
    Prefetchable64,
}

/// The action of the device after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    None,
    /// A function level reset.
    Reset,
    /// It was put from D0 to D3hot.
    PowerOff,
}

/// The space, and a mask of the bits that can be written.
#[derive(Clone)]
pub struct Config {
    bytes: [u8; BYTES],
    writable: [u8; BYTES],
    kinds: [Option<Kind>; 6],
}

impl Config {
    /// The space of a device without BARs, with one MSI vector.
    pub fn new(identity: Identity) -> Self {
        let mut config = Self {
            bytes: [0; BYTES],
            writable: [0; BYTES],
            kinds: [None; 6],
        };
        config.put16(0, identity.vendor);
        config.put16(2, identity.device);
        config.put32(CLASS, identity.class << 8 | 1);
        config.put8(HEADER_TYPE, 0);
        config.put16(SUBSYSTEM, identity.vendor);
        config.put16(SUBSYSTEM + 2, identity.device);
        config.put16(STATUS, STATUS_CAPABILITIES);
        config.allow16(COMMAND, COMMAND_MEMORY | COMMAND_MASTER | COMMAND_NO_INTX);
        // Cache line size, latency timer, interrupt line: registers of the firmware.
        config.allow16(0x0c, u16::MAX);
        config.allow16(0x3c, 0xff);

        config.put8(CAPABILITIES, PCIE as u8);
        config.put8(PCIE, CAPABILITY_PCIE);
        config.put8(PCIE + 1, MSI as u8);
        config.put16(PCIE + 2, PCIE_ENDPOINT);
        config.put32(PCIE_DEVICE, DEVICE_ROLES | DEVICE_RESET);
        config.allow16(PCIE_DEVICE_CONTROL, !CONTROL_RESET);
        config.put32(PCIE_LINK, LINK.into());
        config.put16(PCIE_LINK_STATUS, LINK);

        config.put8(MSI, CAPABILITY_MSI);
        config.put16(MSI + 2, MSI_64);
        config.allow16(MSI + 2, MSI_ENABLE);
        config.allow16(MSI + 4, !3);
        config.allow16(MSI + 6, u16::MAX);
        config.allow16(MSI + 8, u16::MAX);
        config.allow16(MSI + 10, u16::MAX);
        config.allow16(MSI + 12, u16::MAX);

        if identity.power {
            config.put8(MSI + 1, POWER as u8);
            config.put8(POWER, CAPABILITY_POWER);
            config.put16(POWER + 2, POWER_VERSION);
            config.allow16(POWER_STATE, POWER_STATES.into());
        }
        config
    }

    /// Adds a BAR, whose size is a power of two of at least 16.
    pub fn add_bar(&mut self, number: usize, kind: Kind, size: u64) {
        let mask = !(size - 1);
        let at = BAR + 4 * number;
        self.kinds[number] = Some(kind);
        self.allow16(at, mask as u16);
        self.allow16(at + 2, (mask >> 16) as u16);
        if kind == Kind::Prefetchable64 {
            self.put32(at, BAR_64 | BAR_PREFETCHABLE);
            for i in 0..2 {
                self.allow16(at + 4 + 2 * i, (mask >> (32 + 16 * i)) as u16);
            }
        }
    }

    /// The bus address of a BAR, if the device answers there.
    pub fn bar(&self, number: usize) -> Option<u64> {
        let at = BAR + 4 * number;
        let low = u64::from(self.get32(at) & !0xf);
        let base = match self.kinds[number]? {
            Kind::Bits32 => low,
            Kind::Prefetchable64 => low | u64::from(self.get32(at + 4)) << 32,
        };
        let answers = self.has_power() && self.get16(COMMAND) & COMMAND_MEMORY != 0;
        (answers && base != 0).then_some(base)
    }

    /// Whether the device may access the bus.
    pub fn master(&self) -> bool {
        self.has_power() && self.get16(COMMAND) & COMMAND_MASTER != 0
    }

    /// Whether the device is in D0.
    fn has_power(&self) -> bool {
        self.bytes[POWER_STATE] & POWER_STATES == D0
    }

    /// Reads from an offset; bytes beyond the end are zero.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        for (at, to) in (offset..=u64::MAX).zip(to) {
            *to = usize::try_from(at)
                .ok()
                .and_then(|at| self.bytes.get(at))
                .map_or(0, |byte| *byte);
        }
    }

    /// Writes the bits that can be written.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Effect {
        let mut effect = Effect::None;
        for (at, &from) in (offset..=u64::MAX).zip(from) {
            let Some(at) = usize::try_from(at).ok().filter(|&at| at < BYTES) else {
                break;
            };
            let mask = self.writable[at];
            let old = self.bytes[at];
            self.bytes[at] = old & !mask | from & mask;
            if at == POWER_STATE && mask != 0 {
                match from & POWER_STATES {
                    D0 => (),
                    D3 if old & POWER_STATES == D0 => effect = Effect::PowerOff,
                    D3 => (),
                    // Other states do not exist.
                    _ => self.bytes[at] = old,
                }
            }
            // The bit reads as zero.
            if at == PCIE_DEVICE_CONTROL + 1 && from & (CONTROL_RESET >> 8) as u8 != 0 {
                effect = Effect::Reset;
            }
        }
        effect
    }

    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn get32(&self, at: usize) -> u32 {
        u32::from(self.get16(at)) | u32::from(self.get16(at + 2)) << 16
    }

    fn put8(&mut self, at: usize, value: u8) {
        self.bytes[at] = value;
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn allow16(&mut self, at: usize, mask: u16) {
        self.writable[at..at + 2].copy_from_slice(&mask.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        vendor: 0x1234,
        device: 0x5678,
        class: 0x03_80_00,
        power: true,
    };

    fn config() -> Config {
        let mut config = Config::new(IDENTITY);
        config.add_bar(0, Kind::Bits32, 4096);
        config.add_bar(2, Kind::Prefetchable64, 1 << 36);
        config
    }

    fn read32(config: &Config, at: usize) -> u32 {
        let mut bytes = [0; 4];
        config.read(at as u64, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity_cannot_be_written() {
        let mut config = config();
        assert_eq!(config.write(0, &[0xff; 4]), Effect::None);
        assert_eq!(read32(&config, 0), 0x5678_1234);
        assert_eq!(read32(&config, CLASS), 0x0380_0001);
        assert_eq!(read32(&config, SUBSYSTEM), 0x5678_1234);
    }

    #[test]
    fn bars_tell_their_sizes() {
        let mut config = config();
        config.write(BAR as u64, &[0xff; 24]);
        assert_eq!(read32(&config, BAR), 0xffff_f000);
        assert_eq!(read32(&config, BAR + 4), 0);
        assert_eq!(read32(&config, BAR + 8), 0x0000_000c);
        assert_eq!(read32(&config, BAR + 12), 0xffff_fff0);
        assert_eq!(read32(&config, BAR + 16), 0);
    }

    #[test]
    fn bars_are_where_the_client_puts_them() {
        let mut config = config();
        config.write(BAR as u64, &0xfe00_0000_u32.to_le_bytes());
        config.write(BAR as u64 + 8, &0x38_0000_000c_u64.to_le_bytes());
        assert_eq!(config.bar(0), None);
        config.write(COMMAND as u64, &COMMAND_MEMORY.to_le_bytes());
        assert_eq!(config.bar(0), Some(0xfe00_0000));
        assert_eq!(config.bar(2), Some(0x30_0000_0000));
        assert_eq!(config.bar(1), None);
        assert!(!config.master());
        config.write(COMMAND as u64, &COMMAND_MASTER.to_le_bytes());
        assert!(config.master());
        assert_eq!(config.bar(0), None);
    }

    #[test]
    fn capabilities_are_a_list_that_ends() {
        let config = config();
        let mut found = Vec::new();
        let mut at = config.bytes[CAPABILITIES] as usize;
        while at != 0 {
            found.push(config.bytes[at]);
            at = config.bytes[at + 1] as usize;
        }
        assert_eq!(found, [CAPABILITY_PCIE, CAPABILITY_MSI, CAPABILITY_POWER]);
    }

    #[test]
    fn a_device_without_power_is_not_on_the_bus() {
        let mut config = config();
        let state = POWER_STATE as u64;
        config.write(BAR as u64, &0xfe00_0000_u32.to_le_bytes());
        let on = COMMAND_MEMORY | COMMAND_MASTER;
        config.write(COMMAND as u64, &on.to_le_bytes());
        assert_eq!(config.write(state, &[1, 0]), Effect::None);
        assert!(config.master());
        assert_eq!(config.write(state, &[3, 0]), Effect::PowerOff);
        assert_eq!(config.bar(0), None);
        assert!(!config.master());
        assert_eq!(config.write(state, &[3, 0]), Effect::None);
        assert_eq!(read32(&config, POWER_STATE), 3);
        assert_eq!(config.write(state, &[0, 0]), Effect::None);
        assert_eq!(config.bar(0), Some(0xfe00_0000));
        assert!(config.master());
    }

    #[test]
    fn power_management_is_a_choice() {
        let mut config = Config::new(Identity {
            power: false,
            ..IDENTITY
        });
        assert_eq!(config.bytes[MSI + 1], 0);
        assert_eq!(config.write(POWER_STATE as u64, &[3]), Effect::None);
        assert_eq!(read32(&config, POWER_STATE), 0);
    }

    #[test]
    fn a_reset_is_asked_for_and_not_kept() {
        let mut config = config();
        let at = PCIE_DEVICE_CONTROL as u64;
        assert_eq!(config.write(at, &0x1000_u16.to_le_bytes()), Effect::None);
        assert_eq!(config.write(at, &0x9000_u16.to_le_bytes()), Effect::Reset);
        assert_eq!(read32(&config, PCIE_DEVICE_CONTROL), 0x1000);
    }

    #[test]
    fn there_is_nothing_beyond_the_end() {
        let mut config = config();
        let mut bytes = [1; 8];
        config.read(u64::MAX - 3, &mut bytes[..4]);
        config.read(4094, &mut bytes[4..]);
        assert_eq!(bytes, [0; 8]);
        assert_eq!(config.write(4094, &[0xff; 8]), Effect::None);
        assert_eq!(config.write(u64::MAX, &[0xff; 1]), Effect::None);
    }
}
