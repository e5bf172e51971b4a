// SPDX-License-Identifier: GPL-2.0

//! Serves the clients of a device, one after the other.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;

use crate::config;
use crate::config::Effect;
use crate::interrupts;
use crate::message::command;
use crate::message::errno;
use crate::message::flag;
use crate::message::Body;
use crate::message::Fields;
use crate::message::Message;
use crate::message::DATA;
use crate::port::Bar;
use crate::port::Port;
use crate::socket;

/// The regions of a PCI device: six BARs, ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const CONFIG: u32 = 7;
const REGION_READ: u32 = 1;
const REGION_WRITE: u32 = 2;
const REGION_MMAP: u32 = 4;
const DEVICE_RESET: u32 = 1;
const DEVICE_PCI: u32 = 2;
const UNMAP_ALL: u32 = 2;
/// The version of the protocol.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;

/// The action after a write to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    GoOn,
    /// The device is removed by surprise: the connection is closed once the reply is sent.
    Remove,
}

/// A device, for the thread that serves its connection. None of these functions may wait for DMA.
pub trait Device: Send + Sync {
    /// The port by which it is on the bus.
    fn port(&self) -> &Port;

    /// Reads registers of a BAR. All of the bytes are inside of it.
    fn read(&self, bar: usize, offset: u64, to: &mut [u8]);

    /// Writes registers of a BAR. All of the bytes are inside of it.
    fn write(&self, bar: usize, offset: u64, from: &[u8]) -> After;

    /// Resets the device: after that it does no DMA before the driver starts it again.
    fn reset(&self);

    /// Puts the device from D0 to D3hot: it loses its state, and does no DMA.
    fn power_off(&self) {
        self.reset();
    }

    /// A client is there; the device is as after power-on.
    fn connected(&self);

    /// The client is gone, and so are all its mappings.
    fn disconnected(&self, removed: bool);

    /// Whether a client has it, or the state that the last client left is not checked yet.
    fn is_busy(&self) -> bool;
}

/// Serves one client after the other. It only returns if the socket fails.
pub fn serve(listener: &UnixListener, device: &dyn Device) -> io::Error {
    loop {
        match listener.accept() {
            Ok((stream, _)) => connection(stream, device),
            Err(error) => return error,
        }
    }
}

/// Serves a client until it is gone.
pub fn connection(stream: UnixStream, device: &dyn Device) {
    let port = device.port();
    if let Err(error) = port.connect(&stream) {
        return port.log(&format!("a connection: {error}"));
    }
    device.connected();
    let removed = loop {
        match Message::receive(&stream) {
            Ok(None) => break false,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                port.log(&format!("the client sent {error}"));
                break false;
            }
            // A client that dies leaves state behind.
            Err(_) => break false,
            Ok(Some((message, _))) if message.is_reply() => port.client.deliver(message),
            Ok(Some((message, files))) => {
                if handle(&message, files, device) == After::Remove {
                    break true;
                }
            }
        }
    };
    port.disconnect();
    socket::end(&stream);
    device.disconnected(removed);
}

/// The result of a request: a reply's body with a file beside it, or an error number.
type Answer<'a> = Result<(Body, Option<BorrowedFd<'a>>), u32>;

fn handle(message: &Message, files: Vec<File>, device: &dyn Device) -> After {
    let port = device.port();
    let mut after = After::GoOn;
    let (reply, file) = match answer(message, files, device, &mut after) {
        Some(Ok((body, file))) => (message.reply(Ok(body.0)), file),
        Some(Err(error)) => (message.reply(Err(error)), None),
        None => {
            port.log(&format!(
                "the client sent command {} with {} bytes",
                message.command,
                message.body.len()
            ));
            (message.reply(Err(errno::EINVAL)), None)
        }
    };
    if message.flags & flag::NO_REPLY == 0 {
        // A client that is gone is seen when the next message is read.
        let _ = port.client.reply(&reply, file);
    }
    after
}

/// Executes a message. None for a message that lacks fields.
fn answer<'a>(
    message: &Message,
    files: Vec<File>,
    device: &'a dyn Device,
    after: &mut After,
) -> Option<Answer<'a>> {
    let port = device.port();
    let mut fields = Fields(&message.body);
    let echo = || Body::default().data(&message.body);
    let done = |result: Result<(), u32>| result.map(|()| (echo(), None));
    Some(match message.command {
        command::VERSION => version(fields.u16()?, fields.u16()?),
        command::DMA_MAP => {
            let (_, flags) = (fields.u32()?, fields.u32()?);
            let (offset, address, bytes) = (fields.u64()?, fields.u64()?, fields.u64()?);
            let file = files.first().map(|file| (file, offset));
            done(port.with_table(|table| table.map(address, bytes, flags, file)))
        }
        command::DMA_UNMAP => {
            let (_, flags) = (fields.u32()?, fields.u32()?);
            let (address, bytes) = (fields.u64()?, fields.u64()?);
            port.with_table(|table| match flags & UNMAP_ALL {
                0 => table.unmap(address, bytes),
                _ => table.clear(),
            });
            done(Ok(()))
        }
        command::DEVICE_GET_INFO => {
            let body = Body::default().u32(16).u32(DEVICE_RESET | DEVICE_PCI);
            Ok((body.u32(REGIONS).u32(interrupts::KINDS), None))
        }
        command::DEVICE_GET_REGION_INFO => {
            let (_, _) = (fields.u32()?, fields.u32()?);
            region(port, fields.u32()?)
        }
        command::DEVICE_GET_IRQ_INFO => {
            let (_, _) = (fields.u32()?, fields.u32()?);
            irq(fields.u32()?)
        }
        command::DEVICE_SET_IRQS => {
            let (_, flags, kind) = (fields.u32()?, fields.u32()?, fields.u32()?);
            let (start, count) = (fields.u32()?, fields.u32()?);
            done(port.interrupts().set(flags, kind, start, count, files))
        }
        command::REGION_READ => {
            let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
            access(port, offset, region, count).map(|()| {
                let mut data = vec![0; count as usize];
                match region {
                    CONFIG => port.read_config(offset, &mut data),
                    bar => device.read(bar as usize, offset, &mut data),
                }
                let body = Body::default().u64(offset).u32(region).u32(count);
                (body.data(&data), None)
            })
        }
        command::REGION_WRITE => {
            let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
            let data = fields.take(count as usize)?;
            access(port, offset, region, count).map(|()| {
                match region {
                    CONFIG => match port.write_config(offset, data) {
                        Effect::None => (),
                        Effect::Reset => reset(device),
                        Effect::PowerOff => {
                            device.power_off();
                            port.cut_off();
                        }
                    },
                    bar => *after = device.write(bar as usize, offset, data),
                }
                (Body::default().u64(offset).u32(region).u32(count), None)
            })
        }
        command::DEVICE_RESET => {
            reset(device);
            Ok((Body::default(), None))
        }
        _ => Err(errno::EOPNOTSUPP),
    })
}

fn reset(device: &dyn Device) {
    device.reset();
    device.port().cut_off();
}

fn version<'a>(major: u16, minor: u16) -> Answer<'a> {
    if major != MAJOR {
        return Err(errno::EINVAL);
    }
    let capabilities = format!(
        r#"{{"capabilities":{{"max_msg_fds":{},"max_data_xfer_size":{DATA}}}}}"#,
        socket::DESCRIPTORS
    );
    let body = Body::default().u16(MAJOR).u16(minor.min(MINOR));
    Ok((body.data(capabilities.as_bytes()).data(&[0]), None))
}

fn region<'a>(port: &'a Port, number: u32) -> Answer<'a> {
    let (flags, bytes, file) = match (number, port.bar(number as usize)) {
        (REGIONS.., _) => return Err(errno::EINVAL),
        (CONFIG, _) => (REGION_READ | REGION_WRITE, config::BYTES as u64, None),
        (_, Some(bar @ Bar::Registers { .. })) => (REGION_READ | REGION_WRITE, bar.bytes(), None),
        (_, Some(bar @ Bar::Memory(memory))) => (
            REGION_READ | REGION_WRITE | REGION_MMAP,
            bar.bytes(),
            memory.file(),
        ),
        _ => (0, 0, None),
    };
    let body = Body::default().u32(32).u32(flags).u32(number).u32(0);
    Ok((body.u64(bytes).u64(0), file))
}

fn irq<'a>(kind: u32) -> Answer<'a> {
    if kind >= interrupts::KINDS {
        return Err(errno::EINVAL);
    }
    let count = interrupts::count(kind);
    let flags = match count {
        0 => 0,
        _ => interrupts::INFO_EVENTFD | interrupts::INFO_NO_RESIZE,
    };
    Ok((
        Body::default().u32(16).u32(flags).u32(kind).u32(count),
        None,
    ))
}

/// Whether an access is inside of a region that is accessed by messages.
fn access(port: &Port, offset: u64, region: u32, count: u32) -> Result<(), u32> {
    let bytes = match region {
        CONFIG => config::BYTES as u64,
        _ => match port.bar(region as usize) {
            Some(bar @ Bar::Registers { .. }) => bar.bytes(),
            _ => return Err(errno::EINVAL),
        },
    };
    let end = offset.checked_add(count.into());
    if count as usize > DATA || end.is_none_or(|end| end > bytes) {
        return Err(errno::EINVAL);
    }
    Ok(())
}
