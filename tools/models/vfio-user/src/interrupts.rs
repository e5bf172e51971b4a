// SPDX-License-Identifier: GPL-2.0

//! Interrupts: each is an eventfd of the client, which the client sets and removes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::message::errno;

/// The kinds of interrupts, by the numbers that the protocol gives them.
pub const MSI: u32 = 1;
/// For errors of the device: this model has none.
pub const ERROR: u32 = 3;
/// How many kinds there are.
pub const KINDS: u32 = 5;

/// Bits of the flags that describe a kind.
pub const INFO_EVENTFD: u32 = 1;
pub const INFO_NO_RESIZE: u32 = 8;

const DATA_NONE: u32 = 1;
const DATA_BOOL: u32 = 2;
const DATA_EVENTFD: u32 = 4;
const ACTION_MASK: u32 = 8;
const ACTION_UNMASK: u32 = 16;
const ACTION_TRIGGER: u32 = 32;

/// How many interrupts of a kind a device has.
pub fn count(kind: u32) -> u32 {
    u32::from(matches!(kind, MSI | ERROR))
}

/// The events of a device.
#[derive(Default)]
pub struct Interrupts(Mutex<BTreeMap<(u32, u32), File>>);

impl Interrupts {
    /// Raises an interrupt, if the client wants it.
    pub fn raise(&self, kind: u32, number: u32) {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut event) = events.get(&(kind, number)) {
            // It only fails if the client has let 2^64 of them gather.
            let _ = event.write(&1_u64.to_ne_bytes());
        }
    }

    /// Forgets all events.
    pub fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Executes a message, which sets or removes events.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an interrupt or an action that does not exist.
    pub fn set(
        &self,
        flags: u32,
        kind: u32,
        start: u32,
        numbers: u32,
        files: Vec<File>,
    ) -> Result<(), u32> {
        if start
            .checked_add(numbers)
            .is_none_or(|end| end > count(kind))
        {
            return Err(errno::EINVAL);
        }
        match flags {
            // Interrupts of this kind cannot be masked.
            _ if flags & (ACTION_MASK | ACTION_UNMASK) != 0 => Ok(()),
            _ if flags == DATA_NONE | ACTION_TRIGGER && numbers == 0 => {
                self.keep(|(k, _)| k != kind);
                Ok(())
            }
            _ if flags == DATA_NONE | ACTION_TRIGGER => {
                (start..start + numbers).for_each(|number| self.raise(kind, number));
                Ok(())
            }
            _ if flags == DATA_EVENTFD | ACTION_TRIGGER => {
                // A message without events removes those that were set.
                if !files.is_empty() && files.len() != numbers as usize {
                    return Err(errno::EINVAL);
                }
                self.keep(|(k, number)| k != kind || number < start || number >= start + numbers);
                let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                events.extend((start..).map(|number| (kind, number)).zip(files));
                Ok(())
            }
            _ if flags == DATA_BOOL | ACTION_TRIGGER => Err(errno::EOPNOTSUPP),
            _ => Err(errno::EINVAL),
        }
    }

    fn keep(&self, which: impl Fn((u32, u32)) -> bool) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|&place, _| which(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    const GIVE: u32 = DATA_EVENTFD | ACTION_TRIGGER;

    /// A file in place of an event, and the other end, which sees that it was raised.
    fn event() -> (File, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        (File::from(OwnedFd::from(here)), there)
    }

    fn raised(seen: &mut UnixStream) -> bool {
        seen.read(&mut [0; 8]).is_ok_and(|bytes| bytes == 8)
    }

    #[test]
    fn an_event_is_raised_until_it_is_taken_back() {
        for (flags, numbers) in [(GIVE, 1), (DATA_NONE | ACTION_TRIGGER, 0)] {
            let (file, mut seen) = event();
            let interrupts = Interrupts::default();
            interrupts.raise(MSI, 0);
            interrupts.set(GIVE, MSI, 0, 1, vec![file]).unwrap();
            assert!(!raised(&mut seen));
            interrupts.raise(MSI, 0);
            assert!(raised(&mut seen));
            interrupts
                .set(DATA_NONE | ACTION_TRIGGER, MSI, 0, 1, vec![])
                .unwrap();
            assert!(raised(&mut seen));
            interrupts.set(flags, MSI, 0, numbers, vec![]).unwrap();
            interrupts.raise(MSI, 0);
            assert!(!raised(&mut seen));
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let interrupts = Interrupts::default();
        for (flags, kind, start, numbers) in [
            (GIVE, MSI, 0, 2),
            (GIVE, MSI, u32::MAX, 1),
            (GIVE, MSI, 1, u32::MAX),
            (GIVE, 0, 0, 1),
            (GIVE, 77, 0, 1),
            (0, MSI, 0, 1),
        ] {
            let result = interrupts.set(flags, kind, start, numbers, vec![]);
            assert_eq!(result, Err(errno::EINVAL));
        }
        let two = vec![event().0, event().0];
        assert_eq!(interrupts.set(GIVE, MSI, 0, 1, two), Err(errno::EINVAL));
    }
}
