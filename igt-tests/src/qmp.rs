// SPDX-License-Identifier: GPL-2.0

//! The monitor of QEMU, which plugs and unplugs devices, and makes errors.

use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::misc;
use crate::{Outcome, Stop, SysError};

const PORTS: &str = "/sys/class/virtio-ports";
const LIMIT: Duration = Duration::from_secs(20);

/// A connection to the monitor.
#[derive(Debug)]
pub struct Monitor {
    port: File,
    seen: String,
    number: u64,
}

/// A number that differs from those of all earlier commands to this QEMU.
fn unique() -> u64 {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    u64::from(std::process::id()) << 20 | TAKEN.fetch_add(1, Ordering::Relaxed)
}

impl Monitor {
    /// Connects.
    ///
    /// # Errors
    ///
    /// Fails the subtest if this guest has no monitor.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        let mut port = None;
        for entry in fs::read_dir(PORTS).into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == "qmp" {
                let path = fs::canonicalize("/dev").unwrap_or_default();
                port = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(path.join(entry.file_name()))
                    .ok();
            }
        }
        let Some(port) = port else {
            fail!("this guest cannot talk to QEMU's monitor");
        };
        let mut monitor = Self {
            port,
            seen: String::new(),
            number: unique(),
        };
        // Fails if it is not the first command of the connection.
        let _ = monitor.execute("qmp_capabilities", "{}")?;
        Ok(monitor)
    }

    /// Waits for a line that has a text; false if the time is up.
    fn line(&mut self, text: &str, limit: Duration) -> Result<Option<String>, SysError> {
        let start = Instant::now();
        loop {
            while let Some((line, rest)) = self.seen.split_once('\n') {
                let line = line.to_string();
                self.seen = rest.to_string();
                if line.contains(text) {
                    return Ok(Some(line));
                }
            }
            let left = limit.saturating_sub(start.elapsed());
            if misc::poll_fd(self.port.as_raw_fd(), libc::POLLIN, left)? & libc::POLLIN == 0 {
                return Ok(None);
            }
            let mut bytes = [0u8; 4096];
            let count = self.port.read(&mut bytes);
            let count = count.map_err(|error| SysError::io("read(qmp)", &error))?;
            self.seen += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    /// Executes a command, and returns the answer, as an error if it is one.
    fn execute(&mut self, command: &str, arguments: &str) -> Result<Result<String, String>, Stop> {
        self.number = unique();
        let id = format!("\"id\": {}", self.number);
        let text = format!("{{\"execute\": \"{command}\", \"arguments\": {arguments}, {id}}}\n");
        let written = self.port.write_all(text.as_bytes());
        written.map_err(|error| SysError::io("write(qmp)", &error))?;
        match self.line(&id, LIMIT)? {
            None => Err(Stop::fail(format_args!(
                "QEMU's monitor does not answer {command}"
            ))),
            Some(line) if line.contains("\"error\"") => Ok(Err(line)),
            Some(line) => Ok(Ok(line)),
        }
    }

    /// Makes the first of the given ports that exists detect an error, which has one of QEMU's
    /// names.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that cannot be done.
    #[track_caller]
    pub fn inject(&mut self, ports: &[&str], error: &str) -> Outcome {
        let mut said = Vec::new();
        for port in ports {
            let text = format!("{{\"command-line\": \"pcie_aer_inject_error {port} {error}\"}}");
            match self.execute("human-monitor-command", &text)? {
                Ok(line) if line.contains("\"OK ") => return Ok(()),
                Ok(line) | Err(line) => said.push(line),
            }
        }
        Err(Stop::fail(format_args!("{error}: {said:?}")))
    }

    /// Requests the unplug of a device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is no such device.
    #[track_caller]
    pub fn unplug(&mut self, id: &str) -> Result<(), Stop> {
        match self.execute("device_del", &format!("{{\"id\": \"{id}\"}}"))? {
            Ok(_) => Ok(()),
            Err(line) => Err(Stop::fail(format_args!("device_del {id}: {line}"))),
        }
    }

    /// Whether a device whose unplug was requested is gone within the time.
    pub fn unplugged(&mut self, id: &str, limit: Duration) -> Result<bool, SysError> {
        let text = format!("\"data\": {{\"device\": \"{id}\"");
        Ok(self.line(&text, limit)?.is_some())
    }

    /// Whether QEMU has no device of this name.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the monitor does not answer.
    #[track_caller]
    pub fn is_free(&mut self, id: &str) -> Result<bool, Stop> {
        let path = format!("{{\"path\": \"/machine/peripheral/{id}\"}}");
        Ok(self.execute("qom-list", &path)?.is_err())
    }

    /// Limits a disk to a number of bytes per second; 0 is no limit.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is no such disk.
    #[track_caller]
    pub fn throttle(&mut self, disk: &str, bytes: u64) -> Result<(), Stop> {
        let arguments = format!(
            "{{\"device\": \"{disk}\", \"bps\": {bytes}, \"bps_rd\": 0, \"bps_wr\": 0, \"iops\": 0, \"iops_rd\": 0, \"iops_wr\": 0}}"
        );
        match self.execute("block_set_io_throttle", &arguments)? {
            Ok(_) => Ok(()),
            Err(line) => Err(Stop::fail(format_args!("block_set_io_throttle: {line}"))),
        }
    }

    /// Makes memory for a device, and returns its name. Memory of an earlier device is not used
    /// again.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that cannot be done.
    #[track_caller]
    pub fn memory(&mut self, size: u64) -> Result<String, Stop> {
        let id = format!("memory{}", self.number);
        let arguments = format!(
            "{{\"qom-type\": \"memory-backend-memfd\", \"id\": \"{id}\", \"size\": {size}, \"share\": true}}"
        );
        match self.execute("object-add", &arguments)? {
            Ok(_) => Ok(id),
            Err(line) => Err(Stop::fail(format_args!("object-add: {line}"))),
        }
    }

    /// Plugs a device into the first of the given buses that exists.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that cannot be done.
    #[track_caller]
    pub fn plug(&mut self, driver: &str, id: &str, more: &str, buses: &[&str]) -> Result<(), Stop> {
        let mut said = Vec::new();
        for bus in buses {
            let arguments = format!(
                "{{\"driver\": \"{driver}\", \"id\": \"{id}\", \"bus\": \"{bus}\", {more}}}"
            );
            match self.execute("device_add", &arguments)? {
                Ok(_) => return Ok(()),
                Err(line) => said.push(line),
            }
        }
        Err(Stop::fail(format_args!("device_add {driver}: {said:?}")))
    }
}
