// SPDX-License-Identifier: GPL-2.0

//! Runtime PM of a device, and suspend of the system.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use crate::misc;
use crate::pci::PciDevice;
use crate::proc::state_of;
use crate::rebind::with_parameters;
use crate::{Outcome, Stop, SysError};

const LIMIT: Duration = Duration::from_secs(20);
/// The autosuspend delay that is set, in ms, and how much longer the device has to be active.
pub const DELAY: &str = "20";
const ACTIVE: Duration = Duration::from_millis(50);

/// Permits runtime suspend of a device until this is dropped.
#[derive(Debug)]
pub struct Auto<'a>(&'a PciDevice);

impl<'a> Auto<'a> {
    /// Permits that the device is suspended soon after its last use.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it may be suspended already.
    #[track_caller]
    pub fn new(device: &'a PciDevice) -> Result<Self, Stop> {
        check_eq!(
            device.power("control")?,
            "on",
            "whether it may be suspended at first"
        );
        let auto = Self(device);
        device.set_power("autosuspend_delay_ms", DELAY)?;
        device.set_power("control", "auto")?;
        Ok(auto)
    }

    /// The device.
    pub fn device(&self) -> &PciDevice {
        self.0
    }

    /// Waits until it is suspended.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is not within 20 seconds.
    #[track_caller]
    pub fn sleeps(&self, why: &str) -> Outcome {
        let suspended = misc::poll(LIMIT, || {
            let status = self.0.power("runtime_status").ok()?;
            (status == "suspended").then_some(())
        });
        check!(
            suspended.is_some(),
            "{} is not suspended {why}: {:?}",
            self.0.name(),
            self.0.power("runtime_status")
        );
        Ok(())
    }

    /// Checks that it is not suspended.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is.
    #[track_caller]
    pub fn stays_awake(&self, why: &str) -> Outcome {
        // Without a delay the device is suspended as soon as nothing uses it, maybe by the write.
        self.0.set_power("autosuspend_delay_ms", "0")?;
        thread::sleep(ACTIVE);
        let status = self.0.power("runtime_status")?;
        self.0.set_power("autosuspend_delay_ms", DELAY)?;
        check!(status == "active", "{} is {status} {why}", self.0.name());
        Ok(())
    }

    /// How long it was active in all, in ms.
    fn active_time(&self) -> Result<u64, Stop> {
        Ok(self.0.power("runtime_active_time")?.parse().unwrap_or(0))
    }

    /// Calls `f` while the device is suspended, and checks that this resumes the device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does not, and those of `f`.
    #[track_caller]
    pub fn woken_by(&self, what: &str, f: impl FnOnce() -> Outcome) -> Outcome {
        self.sleeps(&format!("before {what}"))?;
        let before = self.active_time()?;
        f()?;
        self.sleeps(&format!("after {what}"))?;
        let after = self.active_time()?;
        check!(
            after > before,
            "{} was not resumed for {what}",
            self.0.name()
        );
        Ok(())
    }

    /// Calls `f` while the device is suspended, and checks that this does not resume the device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it does, and those of `f`.
    #[track_caller]
    pub fn sleeps_through(&self, what: &str, f: impl FnOnce() -> Outcome) -> Outcome {
        self.sleeps(&format!("before {what}"))?;
        let before = self.active_time()?;
        f()?;
        let (status, after) = (self.0.power("runtime_status")?, self.active_time()?);
        if status != "suspended" || after != before {
            fail!(
                "{} was resumed for {what}: {status}, active for {} ms",
                self.0.name(),
                after - before
            );
        }
        Ok(())
    }

    /// Calls `f` while the device is not suspended.
    #[track_caller]
    pub fn kept_awake(&self, f: impl FnOnce() -> Outcome) -> Outcome {
        self.0.set_power("control", "on")?;
        f()?;
        self.0.set_power("control", "auto")?;
        Ok(())
    }
}

/// Loads the driver so that VRAM loses its content in a suspend, runs a test, and loads the driver
/// without that again.
///
/// # Errors
///
/// The errors of the test; skips it if vvram is built into the kernel.
#[track_caller]
pub fn lossy(body: impl FnOnce() -> Outcome) -> Outcome {
    with_parameters(&["lossy_suspend=1"], body)
}

fn rewrite(file: &File, name: &str, text: &str) -> Result<(), SysError> {
    file.write_all_at(text.as_bytes(), 0)
        .map_err(|error| SysError::io(format!("{name} = {text}"), &error))
}

fn contents(file: &File, name: &str) -> Result<String, SysError> {
    let mut text = [0; 16];
    let len = file
        .read_at(&mut text, 0)
        .map_err(|error| SysError::io(name, &error))?;
    Ok(String::from_utf8_lossy(&text[..len]).trim().to_owned())
}

/// Suspends and resumes a device in this thread.
#[derive(Debug)]
pub struct Manual<'a> {
    control: File,
    delay: File,
    status: File,
    usage: File,
    device: &'a PciDevice,
}

impl<'a> Manual<'a> {
    /// Keeps the device active at first.
    pub fn new(device: &'a PciDevice) -> Result<Self, SysError> {
        let open = |name: &str| {
            let path = device.path("power").join(name);
            File::options()
                .read(true)
                .write(!name.starts_with("runtime_"))
                .open(&path)
                .map_err(|error| SysError::io(format!("opening {}", path.display()), &error))
        };
        let power = Self {
            control: open("control")?,
            delay: open("autosuspend_delay_ms")?,
            status: open("runtime_status")?,
            usage: open("runtime_usage")?,
            device,
        };
        power.on()?;
        Ok(power)
    }

    /// The device.
    pub fn device(&self) -> &PciDevice {
        self.device
    }

    fn set_control(&self, text: &str) -> Result<(), SysError> {
        rewrite(&self.control, "control", text)
    }

    /// With a delay of 0 the device is suspended before the write returns, with a negative one it
    /// is resumed.
    fn set_delay(&self, text: &str) -> Result<(), SysError> {
        rewrite(&self.delay, "autosuspend_delay_ms", text)
    }

    /// Checks that the device is in a state.
    fn expect(&self, state: &str) -> Result<(), SysError> {
        match contents(&self.status, "runtime_status")?.as_str() {
            is if is == state => Ok(()),
            is => Err(SysError::new(
                format!("a device to be {state} that is {is}"),
                if is == "error" {
                    libc::EIO
                } else {
                    libc::EAGAIN
                },
            )),
        }
    }

    /// Suspends the device, unless it is in use.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if it is not suspended, `EIO` if runtime PM of the device is in an error state.
    pub fn off(&self) -> Result<(), SysError> {
        self.set_delay("0")?;
        self.expect("suspended")
    }

    /// Suspends the device as soon as it is not in use.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be suspended, or stays in use.
    #[track_caller]
    pub fn off_at_last(&self) -> Outcome {
        let mut last = Ok(());
        let off = misc::poll(LIMIT, || {
            last = self.off();
            last.is_ok().then_some(())
        });
        match off {
            Some(()) => Ok(()),
            None => Ok(last?),
        }
    }

    /// Resumes the device, and keeps it active.
    pub fn on(&self) -> Result<(), SysError> {
        self.set_delay("-1")?;
        self.set_control("auto")
    }

    /// Waits until only [`Manual::on`] keeps the device active: the worker that ends a move may use
    /// it for a moment longer than the move.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the device stays in use.
    #[track_caller]
    pub fn unused(&self) -> Outcome {
        let mut usage = String::new();
        let unused = misc::poll(LIMIT, || {
            usage =
                contents(&self.usage, "runtime_usage").unwrap_or_else(|error| error.to_string());
            (usage == "1").then_some(())
        });
        check!(unused.is_some(), "runtime_usage: {usage}");
        Ok(())
    }

    /// Tries to resume the device. [`Manual::on`] or [`Manual::undo_resume`] must follow.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if it is not resumed, `EIO` if runtime PM of the device is in an error state.
    pub fn resume(&self) -> Result<(), SysError> {
        self.set_control("on")?;
        self.expect("active")
    }

    /// Prepares for another [`Manual::resume`].
    pub fn undo_resume(&self) -> Result<(), SysError> {
        self.set_control("auto")
    }
}

impl Drop for Manual<'_> {
    fn drop(&mut self) {
        let _ = self.set_control("on");
        let _ = self.set_delay(DELAY);
    }
}

/// The runner of the tests, which is stopped until this is dropped.
///
/// It writes the kernel log and the output of tests to the share. A request that is in flight when
/// the device of the share is suspended may never be answered, and neither is any later one then.
#[derive(Debug)]
struct Stopped(Vec<libc::pid_t>);

impl Stopped {
    #[track_caller]
    fn runner() -> Result<Self, Stop> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| {
            let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
            let pid = entry.file_name().to_string_lossy().parse().ok()?;
            (comm.trim() == "igt_runner").then_some(pid)
        });
        let runner = Self(pids.collect());
        runner.send(libc::SIGSTOP);
        // A process that waits for the share stops after the answer.
        let stopped = misc::poll(LIMIT, || {
            let mut states = runner.0.iter().map(|pid| state_of(*pid));
            states.all(|state| state == Some('T')).then_some(())
        });
        check!(stopped.is_some(), "the runner does not stop");
        Ok(runner)
    }

    fn send(&self, signal: libc::c_int) {
        for pid in &self.0 {
            // SAFETY: the call has no memory to be valid.
            unsafe { libc::kill(*pid, signal) };
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.send(libc::SIGCONT);
    }
}

/// Suspends the system, up to the point where the platform would turn the power off, and resumes
/// it.
///
/// # Errors
///
/// Fails the subtest if the system was not suspended.
#[track_caller]
pub fn system_sleep() -> Outcome {
    // All devices are suspended, in all steps.
    sleep_up_to("platform")
}

/// Suspends the devices in the first step of a sleep of the system, and resumes them.
///
/// # Errors
///
/// Fails the subtest if a device was not suspended.
#[track_caller]
pub fn begun_sleep() -> Outcome {
    sleep_up_to("devices")
}

/// Suspends the system up to a level of `pm_test`, and resumes it.
#[track_caller]
fn sleep_up_to(level: &str) -> Outcome {
    let write = |path: &str, text: &str| {
        fs::write(path, text)
            .map_err(|error| SysError::io(format!("writing {text} to {path}"), &error))
    };
    // Syncing the file systems of the guest is not needed.
    write("/sys/power/sync_on_suspend", "0")?;
    write("/sys/power/pm_test", level)?;
    write("/sys/module/suspend/parameters/pm_test_delay", "0")?;
    let _runner = Stopped::runner()?;
    write("/sys/power/state", "freeze")?;
    Ok(())
}

/// Checks that a driver does not let the system sleep.
///
/// # Errors
///
/// Fails the subtest if the system was suspended, or could not be for another reason.
#[track_caller]
pub fn no_system_sleep() -> Outcome {
    match system_sleep() {
        Err(stop) if stop.text().contains("EBUSY") => Ok(()),
        other => fail!("the system to sleep: {other:?}"),
    }
}

impl Drop for Auto<'_> {
    fn drop(&mut self) {
        let _ = self.0.set_power("control", "on");
    }
}
