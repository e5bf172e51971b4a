// SPDX-License-Identifier: GPL-2.0

//! The client at the other end of the connection, for requests of the device.
//!
//! A reply comes through the thread that serves the connection. That thread may not wait for one:
//! the client does nothing for a device while it waits for the device's own reply.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use crate::message::command;
use crate::message::flag;
use crate::message::Body;
use crate::message::Message;
use crate::message::DATA;
use crate::socket;

/// Bytes in front of the data of a DMA_READ or a DMA_WRITE: the address and the count.
const FIELDS: usize = 16;

/// The reason why the client did not do a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It is not there any more.
    Gone,
    /// It returned an error number.
    Errno(u32),
}

#[derive(Default)]
struct Inner {
    stream: Option<UnixStream>,
    /// The waiting requests, by the number of the message.
    waiting: HashMap<u16, mpsc::Sender<Message>>,
    next: u16,
}

/// The connection of a device, or none.
#[derive(Default)]
pub struct Client(Mutex<Inner>);

impl Client {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client is there.
    pub fn connect(&self, stream: UnixStream) {
        self.lock().stream = Some(stream);
    }

    /// Ends the connection; requests that wait for a reply get [`Failed::Gone`].
    pub fn disconnect(&self) {
        let mut inner = self.lock();
        if let Some(stream) = inner.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        inner.waiting.clear();
    }

    /// Sends a reply, with a file beside it.
    pub fn reply(&self, message: &Message, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match &self.lock().stream {
            Some(stream) => socket::send(stream, &message.bytes(), file),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Passes a reply to the request that waits for it; a reply without one is dropped.
    pub fn deliver(&self, message: Message) {
        let waiting = self.lock().waiting.remove(&message.id);
        if let Some(waiting) = waiting {
            // Its receiver waits, see `ask()`.
            let _ = waiting.send(message);
        }
    }

    /// Reads memory; at most [`DATA`] bytes.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Failed> {
        debug_assert!(to.len() <= DATA);
        let body = Body::default().u64(address).u64(to.len() as u64);
        let body = self.ask(command::DMA_READ, body)?;
        match body.get(FIELDS..FIELDS + to.len()) {
            Some(data) => {
                to.copy_from_slice(data);
                Ok(())
            }
            None => Err(Failed::Errno(crate::message::errno::EINVAL)),
        }
    }

    /// Writes memory; at most [`DATA`] bytes.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Failed> {
        debug_assert!(from.len() <= DATA);
        let body = Body::default().u64(address).u64(from.len() as u64);
        self.ask(command::DMA_WRITE, body.data(from)).map(|_| ())
    }

    /// Sends a request and waits for the reply.
    fn ask(&self, command: u16, body: Body) -> Result<Vec<u8>, Failed> {
        let (sender, receiver) = mpsc::channel();
        {
            let mut inner = self.lock();
            let id = inner.next;
            inner.next = id.wrapping_add(1);
            let message = Message {
                id,
                command,
                body: body.0,
                ..Message::default()
            };
            let stream = inner.stream.as_ref().ok_or(Failed::Gone)?;
            socket::send(stream, &message.bytes(), None).map_err(|_| Failed::Gone)?;
            inner.waiting.insert(id, sender);
        }
        let reply = receiver.recv().map_err(|_| Failed::Gone)?;
        if reply.flags & flag::ERROR != 0 {
            return Err(Failed::Errno(reply.error));
        }
        Ok(reply.body)
    }
}
