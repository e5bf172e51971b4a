// SPDX-License-Identifier: GPL-2.0

//! A channel: its registers, its internal buffer, and the thread that does its transfers.

use std::fmt;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::time::Instant;

use vfio_user::dma;
use vfio_user::port::Epoch;
use vfio_user::port::Refused;
use vfio_user::report::Forbidden;

use crate::device::Edu;
use crate::faults::Faults;
use crate::faults::Hang;
use crate::faults::Read;
use crate::posted::Write;
use crate::registers;
use crate::registers::BUFFER;
use crate::registers::BUFFER_BYTES;

/// A transfer that is under way.
#[derive(Clone, Copy)]
struct Transfer {
    source: u64,
    destination: u64,
    count: u64,
    command: u64,
    epoch: Epoch,
    /// It is not done before.
    due: Instant,
}

#[derive(Default)]
struct State {
    source: u64,
    destination: u64,
    count: u64,
    command: u64,
    /// The transfer, while the bit RUN is set.
    current: Option<Transfer>,
    hang: Hang,
    stopping: bool,
    /// Grows with each reset.
    resets: u64,
}

impl State {
    /// There is no transfer any more.
    fn end(&mut self) {
        self.current = None;
        self.command &= !registers::RUN;
        self.hang = Hang::No;
        self.stopping = false;
    }
}

/// A channel.
pub struct Channel {
    state: Mutex<State>,
    changed: Condvar,
    buffer: Mutex<[u8; BUFFER_BYTES as usize]>,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            buffer: Mutex::new([0; BUFFER_BYTES as usize]),
        }
    }
}

/// The channel, for the log.
struct Who(usize);

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "channel {}", self.0)
    }
}

/// A transfer that does not fit the internal buffer.
struct Outside {
    place: u64,
    count: u64,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, count } = self;
        write!(f, "{count} bytes at {place:#x} are not in the buffer")
    }
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a register, if there is one at this offset.
    pub fn register(&self, offset: u64) -> Option<u64> {
        let state = self.lock();
        Some(match offset {
            registers::SOURCE => state.source,
            registers::DESTINATION => state.destination,
            registers::COUNT => state.count,
            registers::COMMAND => state.command,
            _ => return None,
        })
    }

    /// Writes a register. As in QEMU's edu, nothing but a stop is accepted during a transfer.
    ///
    /// Returns whether that starts a transfer.
    pub fn set_register(&self, offset: u64, value: u64, epoch: Epoch, faults: &mut Faults) -> bool {
        let mut state = self.lock();
        if state.current.is_some() {
            if offset == registers::COMMAND && value & registers::STOP != 0 {
                state.stopping = true;
                self.changed.notify_all();
            }
            return false;
        }
        match offset {
            registers::SOURCE => state.source = value,
            registers::DESTINATION => state.destination = value,
            registers::COUNT => state.count = value,
            registers::COMMAND if value & registers::RUN != 0 => {
                state.command = value;
                state.hang = faults.hangs();
                state.current = Some(Transfer {
                    source: state.source,
                    destination: state.destination,
                    count: state.count,
                    command: value,
                    epoch,
                    due: Instant::now() + faults.delay,
                });
                self.changed.notify_all();
                return true;
            }
            _ => (),
        }
        false
    }

    /// Ends a transfer that hangs, without having moved anything. Returns whether there was one.
    pub fn release(&self) -> bool {
        let mut state = self.lock();
        // The thread ends one that was stopped, and waits during the others.
        let hangs = match state.hang {
            Hang::No => false,
            Hang::Stoppable => !state.stopping,
            Hang::Stuck => true,
        };
        if hangs {
            state.end();
        }
        hangs
    }

    /// Ends the transfer, and clears the registers. Returns whether there was one.
    pub fn reset(&self) -> bool {
        let mut state = self.lock();
        let was = state.current.is_some();
        *state = State {
            resets: state.resets + 1,
            ..State::default()
        };
        self.changed.notify_all();
        was
    }

    /// Waits for the next transfer, and until its bytes are to be moved. Returns it with the number
    /// of resets before it, or nothing instead of a transfer that was stopped.
    fn next(&self) -> (Option<Transfer>, u64) {
        let mut state = self.lock();
        loop {
            let resets = state.resets;
            let Some(transfer) = state.current else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if state.stopping && state.hang != Hang::Stuck {
                return (None, resets);
            }
            let now = Instant::now();
            if state.hang != Hang::No {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            } else if now < transfer.due {
                let (next, _) = self
                    .changed
                    .wait_timeout(state, transfer.due - now)
                    .unwrap_or_else(PoisonError::into_inner);
                state = next;
            } else {
                return (Some(transfer), resets);
            }
        }
    }

    /// Ends a transfer, unless there was a reset. Returns whether there was none.
    fn finish(&self, resets: u64) -> bool {
        let mut state = self.lock();
        if state.resets != resets {
            return false;
        }
        state.end();
        true
    }
}

/// Does the transfers of a channel, as long as the program runs.
pub fn run(edu: &Arc<Edu>, number: usize) {
    let channel = &edu.channels[number];
    loop {
        let (transfer, resets) = channel.next();
        if let Some(transfer) = transfer {
            moved(edu, number, transfer);
        }
        if channel.finish(resets) {
            edu.finished(number, transfer.map(|transfer| transfer.command));
        }
    }
}

fn moved(edu: &Arc<Edu>, number: usize, transfer: Transfer) {
    let mut buffer = edu.channels[number]
        .buffer
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let to_memory = transfer.command & registers::TO_MEMORY != 0;
    let (place, address) = match to_memory {
        true => (transfer.source, transfer.destination),
        false => (transfer.destination, transfer.source),
    };
    let count = transfer.count;
    let inside = place
        .checked_sub(BUFFER + number as u64 * BUFFER_BYTES)
        .filter(|at| at.checked_add(count).is_some_and(|end| end <= BUFFER_BYTES));
    let Some(at) = inside else {
        return edu.report(&Who(number), &Outside { place, count });
    };
    let part = &mut buffer[at as usize..(at + count) as usize];
    let bus = edu.port.dma_since(transfer.epoch);
    // The thread that answers the client takes the lock of the faults, so it is not held here.
    let result = match to_memory {
        true => write(edu, number, address, part, transfer.epoch),
        false => {
            let read = edu.faults().read();
            match read {
                Read::Dropped => Ok(()),
                Read::Ones => {
                    part.fill(0xff);
                    Ok(())
                }
                Read::Bytes => bus.read(address, part),
            }
        }
    };
    if let Err(refused) = result {
        refuse(edu, number, refused, to_memory);
    }
}

/// Writes to the bus, now or later.
fn write(
    edu: &Arc<Edu>,
    channel: usize,
    address: u64,
    bytes: &[u8],
    epoch: Epoch,
) -> Result<(), Refused> {
    if edu.faults().drops_write() {
        return Ok(());
    }
    let bus = edu.port.dma_since(epoch);
    let count = bytes.len() as u64;
    let late = edu.faults().post;
    match late {
        // What only the client reaches cannot arrive before the answer to a read.
        Some(late) if bus.is_direct(address, count, dma::WRITE)? => {
            let due = Instant::now() + late;
            edu.posted.push(Write {
                channel,
                address,
                bytes: bytes.to_vec(),
                epoch,
                due,
            });
            let edu = edu.clone();
            thread::spawn(move || {
                thread::sleep(late);
                edu.arrived(due);
            });
            Ok(())
        }
        _ => bus.write(address, bytes),
    }
}

/// Reports an access that the driver should not have let the device make. One that a reset ends, or
/// that was turned off together with bus mastering, is not.
pub fn refuse(edu: &Edu, number: usize, refused: Refused, write: bool) {
    if let Refused::Unmapped { .. } = refused {
        edu.report(&Who(number), &Forbidden { refused, write });
    }
}
