// SPDX-License-Identifier: GPL-2.0

//! Unbinds PCI devices from their drivers and binds them again, and reloads drivers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::fixture::works;
use crate::misc;
use crate::pci::PciDevice;
use crate::proc::Child;
use crate::{Outcome, Stop, SysError};

/// Binds a device to a driver, and waits while the kernel is busy with the device.
///
/// # Errors
///
/// Fails the subtest if the driver is not bound within 20 seconds.
fn bind(device: &PciDevice, driver: &str) -> Outcome {
    let mut child = Child::spawn(|| Ok(device.bind(driver)?))?;
    child.join(
        &format!("binding {} to {driver}", device.name()),
        Duration::from_secs(20),
    )
}

/// The drivers of the devices when the program started.
#[derive(Debug)]
pub struct Bound {
    devices: Vec<(PciDevice, String)>,
}

impl Bound {
    /// Records the current drivers.
    pub fn now() -> Self {
        let devices = PciDevice::vvrams()
            .into_iter()
            .chain(PciDevice::edu())
            .filter_map(|device| {
                let driver = device.driver()?;
                Some((device, driver))
            })
            .collect();
        Self { devices }
    }

    /// Binds the devices that have lost their driver since.
    ///
    /// # Errors
    ///
    /// Names the devices that a subtest has left without their driver.
    pub fn restore(&self) -> Result<(), String> {
        let mut lost = Vec::new();
        for (device, driver) in &self.devices {
            if device.driver().is_none() {
                lost.push(format!("{} without {driver}", device.name()));
                if let Err(stop) = bind(device, driver) {
                    lost.push(stop.text().to_string());
                }
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        Err(format!("the subtest left {}", lost.join(", ")))
    }
}

/// An unbind that runs in a process of its own.
#[derive(Debug)]
pub struct Unbinding {
    /// The process that writes to sysfs.
    pub child: Child,
    device: PciDevice,
    driver: String,
}

impl Unbinding {
    /// Starts to unbind a device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the device has no driver.
    #[track_caller]
    pub fn start(device: &PciDevice) -> Result<Self, Stop> {
        let Some(driver) = device.driver() else {
            fail!("{} has no driver to unbind", device.name());
        };
        let child = Child::spawn(|| Ok(device.unbind(&driver)?))?;
        Ok(Self {
            child,
            device: device.clone(),
            driver,
        })
    }

    /// Waits until the unbind is done.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it takes longer than `limit`.
    #[track_caller]
    pub fn finish(mut self, limit: Duration) -> Result<Unbound, Stop> {
        let what = format!("unbinding {} from {}", self.device.name(), self.driver);
        self.child.join(&what, limit)?;
        if let Some(driver) = self.device.driver() {
            fail!("{what} succeeded, but {driver} still has the device");
        }
        Ok(Unbound {
            device: self.device,
            driver: self.driver,
            bound: false,
        })
    }
}

/// A device without a driver, bound again when dropped.
#[derive(Debug)]
pub struct Unbound {
    device: PciDevice,
    driver: String,
    bound: bool,
}

impl Unbound {
    /// Unbinds a device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if that takes more than 20 seconds.
    #[track_caller]
    pub fn new(device: &PciDevice) -> Result<Self, Stop> {
        Unbinding::start(device)?.finish(Duration::from_secs(20))
    }

    /// Leaves the device without a driver.
    pub fn keep(mut self) {
        self.bound = true;
    }

    /// Binds it again.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the driver cannot be bound.
    #[track_caller]
    pub fn rebind(mut self) -> Outcome {
        self.bound = true;
        bind(&self.device, &self.driver)
    }
}

impl Drop for Unbound {
    fn drop(&mut self) {
        if !self.bound {
            let _ = bind(&self.device, &self.driver);
        }
    }
}

/// A device whose driver is bound or unbound. The drop of this binds the driver again.
#[derive(Debug)]
pub struct Probe {
    device: PciDevice,
    driver: &'static str,
    /// The operation was done, although the write that asked for it failed.
    pub done: bool,
}

impl Probe {
    /// A device that is bound to this driver, or will be.
    pub fn new(device: &PciDevice, driver: &'static str) -> Self {
        Self {
            device: device.clone(),
            driver,
            done: false,
        }
    }

    /// Binds the device to the driver, unless that was done.
    pub fn bind(&mut self) -> Result<(), SysError> {
        if !self.done {
            self.device.bind(self.driver)?;
        }
        Ok(())
    }

    /// Unbinds the device from the driver, unless that was done.
    pub fn unbind(&mut self) -> Result<(), SysError> {
        if !self.done {
            self.device.unbind(self.driver)?;
        }
        Ok(())
    }

    /// Whether a driver is bound to the device.
    pub fn is_bound(&self) -> bool {
        self.device.driver().is_some()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // A probe succeeds if files in debugfs fail for want of memory, and that of a core driver
        // also if its DRM driver fails.
        if self.is_bound() {
            let _ = self.device.unbind(self.driver);
        }
        let _ = self.device.bind(self.driver);
    }
}

/// A device that is bound to a driver by driver_override. The drop of this unbinds it.
#[derive(Debug)]
pub struct Overridden {
    device: PciDevice,
    driver: &'static str,
}

impl Overridden {
    /// Binds a device that has no driver to one.
    pub fn new(device: &PciDevice, driver: &'static str) -> Result<Self, SysError> {
        let given = Self {
            device: device.clone(),
            driver,
        };
        device.set_override(driver)?;
        device.bind(driver)?;
        Ok(given)
    }

    /// The device.
    pub fn device(&self) -> &PciDevice {
        &self.device
    }
}

impl Drop for Overridden {
    fn drop(&mut self) {
        if self.device.driver().as_deref() == Some(self.driver) {
            let _ = self.device.unbind(self.driver);
        }
        let _ = self.device.set_override("");
    }
}

/// Unloads a module, without waiting for its users.
pub fn delete_module(name: &str) -> Result<(), SysError> {
    let what = format!("delete_module({name})");
    let Ok(c_name) = std::ffi::CString::new(name) else {
        return Err(SysError::new(what, libc::EINVAL));
    };
    // SAFETY: the name is NUL terminated.
    let result =
        unsafe { libc::syscall(libc::SYS_delete_module, c_name.as_ptr(), libc::O_NONBLOCK) };
    if result < 0 {
        return Err(SysError::last(what));
    }
    Ok(())
}

/// Users a module has, or None if it is built in.
pub fn module_users(module: &str) -> Option<i64> {
    let text = fs::read_to_string(format!("/sys/module/{module}/refcnt")).ok()?;
    text.trim().parse().ok()
}

/// Skips the subtest if a driver is not a module.
///
/// # Errors
///
/// The skip.
#[track_caller]
pub fn need_module(module: &str) -> Outcome {
    if module_users(module).is_none() {
        skip!("{module} is built into the kernel");
    }
    Ok(())
}

/// Loads a module with parameters, runs a test, and loads the module without them again.
///
/// # Errors
///
/// The errors of the test; skips it if the driver is not a module.
#[track_caller]
pub fn with_parameters_of(
    module: &str,
    parameters: &[&str],
    body: impl FnOnce() -> Outcome,
) -> Outcome {
    need_module(module)?;
    let outcome = reload(module, parameters).and_then(|()| body());
    reload(module, &[])?;
    outcome
}

/// As [`with_parameters_of`] vvram, and checks that it works without them.
///
/// # Errors
///
/// The errors of the test; skips it if vvram is not a module.
#[track_caller]
pub fn with_parameters(parameters: &[&str], body: impl FnOnce() -> Outcome) -> Outcome {
    with_parameters_of("vvram", parameters, body)?;
    works()
}

/// Unloads a module and loads it again, with parameters.
///
/// # Errors
///
/// Fails the subtest if the module is in use or does not load.
#[track_caller]
pub fn reload(module: &str, parameters: &[&str]) -> Outcome {
    let unloaded = misc::poll(Duration::from_secs(5), || delete_module(module).ok());
    let loaded = Command::new("modprobe")
        .arg(module)
        .args(parameters)
        .status();
    check!(
        unloaded.is_some(),
        "{module} cannot be unloaded although it is not in use: {:?} users",
        module_users(module)
    );
    check!(
        loaded.as_ref().is_ok_and(|status| status.success()),
        "modprobe {module} {parameters:?}: {loaded:?}"
    );
    Ok(())
}
