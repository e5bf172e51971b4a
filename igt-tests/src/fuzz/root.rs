// SPDX-License-Identifier: GPL-2.0

//! What an administrator does while others make random calls: drivers are unbound and bound, devices
//! are reset, removed and found again, objects are moved, memory is reclaimed, the system sleeps.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::debugfs::DebugFs;
use crate::igt::say;
use crate::misc::Lcg;
use crate::pci::PciDevice;
use crate::power::system_sleep;
use crate::{auxiliary, errno_name, mgpu, Stop, SysError};

/// A device of ours.
#[derive(Clone, Debug)]
pub struct Device {
    /// The PCI device.
    pub pci: PciDevice,
    /// Its driver.
    pub driver: String,
    /// Whether the driver has it by driver_override, which a removed device loses.
    pub overridden: bool,
}

/// All of them.
pub fn devices() -> Vec<Device> {
    let ours = ["vvram", "mgpu", "avram", "edu_peer", "bar_export"];
    let all = PciDevice::everything().into_iter();
    all.filter_map(|pci| {
        let driver = pci.driver()?;
        let overridden = ["avram", "bar_export"].contains(&driver.as_str());
        ours.contains(&driver.as_str()).then_some(Device {
            pci,
            driver,
            overridden,
        })
    })
    .collect()
}

/// Lets everybody use the nodes of the devices, as the rules of a distribution do for render nodes.
pub fn open_up() {
    use std::os::unix::fs::PermissionsExt;
    for dir in ["/dev/dri", "/dev"] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let ours = ["renderD", "edu-peer-", "bar-export-"];
            if ours.iter().any(|prefix| name.starts_with(prefix)) {
                let _ = fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o666));
            }
        }
    }
}

/// The actions, and what became of them.
#[derive(Debug)]
pub struct Root {
    random: Lcg,
    devices: Vec<Device>,
    done: BTreeMap<&'static str, BTreeMap<String, u32>>,
    /// The longest time of an action, and which one it was.
    pub longest: (Duration, String),
    sleeps: u32,
}

type Action = fn(&mut Root) -> Result<(), SysError>;

const ACTIONS: [(&str, Action); 9] = [
    ("unbind", Root::unbind),
    ("unbind", Root::unbind),
    ("unbind of a part", Root::unbind_part),
    ("reset", Root::reset),
    ("remove", Root::remove),
    ("move", Root::forced_move),
    ("move", Root::forced_move),
    ("reclaim", Root::reclaim),
    ("sleep of a device", Root::device_sleep),
];

impl Root {
    /// Derives everything from a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Lcg::new(seed),
            devices: devices(),
            done: BTreeMap::new(),
            longest: (Duration::ZERO, String::new()),
            sleeps: 0,
        }
    }

    fn device(&mut self, is: impl Fn(&Device) -> bool) -> Result<Device, SysError> {
        let fit: Vec<_> = self.devices.iter().filter(|device| is(device)).collect();
        match fit.len() {
            0 => Err(SysError::new("a device", libc::ENODEV)),
            len => Ok(fit[self.random.below(len as u64) as usize].clone()),
        }
    }

    /// Does one thing.
    pub fn act(&mut self) {
        let (name, act) = ACTIONS[self.random.below(ACTIONS.len() as u64) as usize];
        self.note(name, act);
    }

    /// Lets the system sleep once.
    pub fn sleep(&mut self) {
        self.sleeps += 1;
        self.note("sleep of the system", |_| match system_sleep() {
            Ok(()) => Ok(()),
            Err(Stop::Fail(text) | Stop::Skip(text)) => {
                say(&format!("sleep: {text}"));
                Err(SysError::new(text, libc::EBUSY))
            }
        });
    }

    fn note(&mut self, name: &'static str, act: impl FnOnce(&mut Self) -> Result<(), SysError>) {
        let begin = Instant::now();
        let result = act(self);
        open_up();
        let time = begin.elapsed();
        if time > self.longest.0 {
            self.longest = (time, name.to_string());
        }
        let result = result.map_or_else(|error| errno_name(error.errno), |()| "done".to_string());
        *self
            .done
            .entry(name)
            .or_default()
            .entry(result)
            .or_default() += 1;
    }

    fn unbind(&mut self) -> Result<(), SysError> {
        let device = self.device(|_| true)?;
        device.pci.unbind(&device.driver)?;
        std::thread::sleep(Duration::from_millis(self.random.below(50)));
        device.pci.bind(&device.driver)
    }

    /// Unbinds a DRM driver whose PCI driver stays.
    fn unbind_part(&mut self) -> Result<(), SysError> {
        let device = self.device(|device| ["mgpu", "avram"].contains(&device.driver.as_str()))?;
        let set_bound = if device.driver == mgpu::DRIVER {
            mgpu::set_bound
        } else {
            auxiliary::set_bound
        };
        let prefix = format!("{}.drm.", device.driver);
        let below = fs::read_dir(device.pci.path(""))
            .into_iter()
            .flatten()
            .flatten();
        let mut names = below.filter_map(|entry| entry.file_name().into_string().ok());
        let name = names.find(|name| name.starts_with(&prefix));
        let name = name.ok_or(SysError::new("an auxiliary device", libc::ENODEV))?;
        set_bound(&name, false)?;
        std::thread::sleep(Duration::from_millis(self.random.below(50)));
        set_bound(&name, true)
    }

    fn reset(&mut self) -> Result<(), SysError> {
        self.device(|_| true)?.pci.reset()
    }

    fn remove(&mut self) -> Result<(), SysError> {
        let device = self.device(|device| !device.overridden)?;
        device.pci.remove()?;
        PciDevice::rescan()
    }

    fn forced_move(&mut self) -> Result<(), SysError> {
        let device = self.device(|device| ["vvram", "mgpu"].contains(&device.driver.as_str()))?;
        let name = if device.driver == mgpu::DRIVER {
            mgpu::Mgpu::open(&device.pci).map(|gpu| gpu.device().to_string())
        } else {
            Ok(device.pci.name().to_string())
        };
        let gone = |stop: Stop| SysError::new(stop.text(), libc::ENODEV);
        let debugfs = DebugFs::open(&PciDevice::named(&name.map_err(gone)?)).map_err(gone)?;
        let buffers = debugfs.buffers().map_err(gone)?;
        let mut last = Ok(());
        for _ in 0..8 {
            if buffers.is_empty() {
                return Err(SysError::new("a buffer", libc::ENOENT));
            }
            let buffer = &buffers[self.random.below(buffers.len() as u64) as usize];
            let place = self.random.pick(&["vram", "system"]);
            last = debugfs.force(buffer.id, place);
        }
        last
    }

    fn reclaim(&mut self) -> Result<(), SysError> {
        let (path, text) = self.random.pick(&[
            ("/proc/sys/vm/drop_caches", "3"),
            ("/proc/sys/vm/compact_memory", "1"),
        ]);
        fs::write(path, text).map_err(|error| SysError::io(path, &error))
    }

    fn device_sleep(&mut self) -> Result<(), SysError> {
        let device = self.device(|_| true)?.pci;
        device.set_power("autosuspend_delay_ms", "10")?;
        device.set_power("control", "auto")?;
        std::thread::sleep(Duration::from_millis(self.random.below(100)));
        device.set_power("control", "on")
    }

    /// Prints what was done; how many unbinds, resets and removals succeeded.
    pub fn report(&self) -> u32 {
        let mut sum = 0;
        for (name, results) in &self.done {
            let texts: Vec<_> = results
                .iter()
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            say(&format!("    {name:20} {}", texts.join(", ")));
            let part = ["unbind", "reset", "remove"].contains(name);
            sum += if part {
                results.get("done").copied().unwrap_or(0)
            } else {
                0
            };
        }
        sum
    }
}
