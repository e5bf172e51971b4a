// SPDX-License-Identifier: GPL-2.0

//! Messages of the protocol: a header, and then fields in the order of bytes of the host.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;

use crate::socket;

/// The commands of messages. The numbers are the protocol's.
pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DMA_READ: u16 = 11;
    pub const DMA_WRITE: u16 = 12;
    pub const DEVICE_RESET: u16 = 13;
}

/// Bits of the flags of a header.
pub mod flag {
    pub const REPLY: u32 = 1;
    pub const NO_REPLY: u32 = 0x10;
    pub const ERROR: u32 = 0x20;
    /// The bits that say whether it is a reply.
    pub const TYPE: u32 = 0xf;
}

/// Bytes of a header.
pub const HEADER: usize = 16;
/// The maximum number of bytes of data in a message, on both sides.
pub const DATA: usize = 1 << 20;
/// More than any field before the data takes. A longer message is not one of this protocol.
const FIELDS: usize = 4096;

/// The error numbers that replies have.
pub mod errno {
    pub const ENODEV: u32 = 19;
    pub const EINVAL: u32 = 22;
    pub const EOPNOTSUPP: u32 = 95;
}

/// A message without its descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The number by which a reply is found.
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    /// The error number in a reply with [`flag::ERROR`].
    pub error: u32,
    /// The body behind the header.
    pub body: Vec<u8>,
}

impl Message {
    /// Whether it is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & flag::TYPE == flag::REPLY
    }

    /// The reply to it: a body, or an error number.
    pub fn reply(&self, result: Result<Vec<u8>, u32>) -> Self {
        let (flags, error, body) = match result {
            Ok(body) => (flag::REPLY, 0, body),
            Err(error) => (flag::REPLY | flag::ERROR, error, Vec::new()),
        };
        Self {
            id: self.id,
            command: self.command,
            flags,
            error,
            body,
        }
    }

    /// Its bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let size = HEADER + self.body.len();
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.command.to_ne_bytes());
        bytes.extend((size as u32).to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(self.error.to_ne_bytes());
        bytes.extend(&self.body);
        bytes
    }

    /// Waits for a message, and the descriptors beside it; none at the end of the connection.
    ///
    /// # Errors
    ///
    /// Those of the socket, and `InvalidData` if it is not a message of the protocol: later
    /// messages cannot be read either.
    pub fn receive(stream: &UnixStream) -> io::Result<Option<(Self, Vec<File>)>> {
        let (mut header, mut files) = ([0; HEADER], Vec::new());
        if !socket::receive(stream, &mut header, &mut files)? {
            return Ok(None);
        }
        let mut fields = Fields(&header);
        let mut message = Self {
            id: fields.u16().unwrap_or_default(),
            command: fields.u16().unwrap_or_default(),
            ..Self::default()
        };
        let size = fields.u32().unwrap_or_default() as usize;
        message.flags = fields.u32().unwrap_or_default();
        message.error = fields.u32().unwrap_or_default();
        let Some(rest) = size
            .checked_sub(HEADER)
            .filter(|&rest| rest <= FIELDS + DATA)
        else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a message of {size} bytes"),
            ));
        };
        message.body.resize(rest, 0);
        if rest > 0 && !socket::receive(stream, &mut message.body, &mut files)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some((message, files)))
    }
}

/// Takes fields from the start of a message, and returns none if the message is too short.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// So many bytes.
    pub fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(first)
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.take(2)?.try_into().ok()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// Puts fields one behind the other.
#[derive(Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn data(mut self, data: &[u8]) -> Self {
        self.0.extend(data);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_as_it_was_sent() {
        let (here, there) = UnixStream::pair().unwrap();
        let sent = Message {
            id: 0x1234,
            command: command::DMA_MAP,
            flags: flag::NO_REPLY,
            error: 7,
            body: Body::default().u16(1).u32(2).u64(3).data(b"x").0,
        };
        socket::send(&here, &sent.bytes(), None).unwrap();
        let (got, files) = Message::receive(&there).unwrap().unwrap();
        assert_eq!(got, sent);
        assert!(files.is_empty());
        let mut fields = Fields(&got.body);
        assert_eq!(
            (fields.u16(), fields.u32(), fields.u64()),
            (Some(1), Some(2), Some(3))
        );
        assert_eq!((fields.u32(), fields.take(1)), (None, Some(&b"x"[..])));
        drop(here);
        assert!(Message::receive(&there).unwrap().is_none());
    }

    #[test]
    fn sizes_of_no_message_are_refused() {
        for size in [0, 15, u32::MAX, (HEADER + FIELDS + DATA + 1) as u32] {
            let (here, there) = UnixStream::pair().unwrap();
            let mut bytes = Message::default().bytes();
            bytes[4..8].copy_from_slice(&size.to_ne_bytes());
            socket::send(&here, &bytes, None).unwrap();
            let error = Message::receive(&there).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{size}");
        }
    }

    #[test]
    fn errors_have_no_body() {
        let asked = Message {
            id: 5,
            command: 6,
            ..Message::default()
        };
        let reply = asked.reply(Err(errno::EINVAL));
        assert!(reply.is_reply() && !asked.is_reply());
        assert_eq!(
            (reply.id, reply.command, reply.error),
            (5, 6, errno::EINVAL)
        );
        assert_eq!(reply.flags, flag::REPLY | flag::ERROR);
    }
}
