// SPDX-License-Identifier: GPL-2.0

//! The protocol, as QEMU speaks it, and violations of it.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;

use client::Client;
use client::COMMAND_MEMORY;
use client::COMMAND_ON;
use client::CONFIG;
use vfio_user::config::Identity;
use vfio_user::interrupts::MSI;
use vfio_user::memory::Memory;
use vfio_user::message::command;
use vfio_user::message::errno;
use vfio_user::message::flag;
use vfio_user::message::Body;
use vfio_user::message::Fields;
use vfio_user::port::Bar;
use vfio_user::port::Port;
use vfio_user::port::Refused;
use vfio_user::server;
use vfio_user::server::After;
use vfio_user::server::Device;
use vfio_user::switch::Switch;

const BYTES: u64 = 4096;
const MEMORY: u64 = 1 << 20;

/// A device whose registers are plain memory.
struct Plain {
    port: Port,
    registers: Mutex<Vec<u8>>,
    resets: AtomicU32,
    connections: AtomicU32,
    lines: Arc<Mutex<Vec<String>>>,
    path: PathBuf,
}

impl Plain {
    fn new() -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("plain-{}-{number}.sock", process::id()));
        let identity = Identity {
            vendor: 0x1234,
            device: 0x5678,
            class: 0xff_00_00,
            power: false,
        };
        let memory = Arc::new(Memory::shared(c"bar", MEMORY).unwrap());
        let bars = vec![
            (0, Bar::Registers { bytes: BYTES }),
            (2, Bar::Memory(memory)),
        ];
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let log = lines.clone();
        let told = move |line: &str| log.lock().unwrap().push(line.to_owned());
        let device = Arc::new(Self {
            port: Port::new(
                "plain",
                identity,
                bars,
                Arc::<Switch>::default(),
                true,
                told,
            ),
            registers: Mutex::new(vec![0; BYTES as usize]),
            resets: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            lines,
            path: path.clone(),
        });
        let listener = UnixListener::bind(&path).unwrap();
        let served = device.clone();
        thread::spawn(move || server::serve(&listener, &*served));
        device
    }

    fn client(&self) -> Client {
        Client::connect(&self.path, MEMORY)
    }

    /// A connection on which no message was sent yet.
    fn raw(&self) -> Client {
        Client::raw(UnixStream::connect(&self.path).unwrap(), MEMORY)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Device for Plain {
    fn port(&self) -> &Port {
        &self.port
    }

    fn read(&self, bar: usize, offset: u64, to: &mut [u8]) {
        assert_eq!(bar, 0);
        to.copy_from_slice(&self.registers.lock().unwrap()[offset as usize..][..to.len()]);
    }

    fn write(&self, bar: usize, offset: u64, from: &[u8]) -> After {
        assert_eq!(bar, 0);
        self.registers.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
        After::GoOn
    }

    fn reset(&self) {
        self.resets.fetch_add(1, Ordering::SeqCst);
    }

    fn connected(&self) {
        self.connections.fetch_add(1, Ordering::SeqCst);
    }

    fn disconnected(&self, _: bool) {}

    fn is_busy(&self) -> bool {
        false
    }
}

#[test]
fn versions_are_negotiated() {
    let device = Plain::new();
    for (minor, agreed) in [(0, 0), (1, 1), (9, 1)] {
        let mut client = device.raw();
        let body = Body::default().u16(0).u16(minor).data(b"{}\0");
        let (reply, _) = client.ask(command::VERSION, body, None).unwrap();
        let mut fields = Fields(&reply);
        assert_eq!((fields.u16(), fields.u16()), (Some(0), Some(agreed)));
        let text = std::str::from_utf8(fields.0).unwrap();
        assert_eq!(
            text,
            "{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576}}\0"
        );
    }
    let mut client = device.raw();
    let other = Body::default().u16(1).u16(0).data(b"{}\0");
    let result = client.ask(command::VERSION, other, None);
    assert_eq!(result.unwrap_err(), errno::EINVAL);
}

#[test]
fn a_device_tells_what_it_has() {
    let device = Plain::new();
    let mut client = device.client();
    let (reply, _) = client
        .ask(
            command::DEVICE_GET_INFO,
            Body::default().u32(16).u32(0).u32(0).u32(0),
            None,
        )
        .unwrap();
    assert_eq!(reply, Body::default().u32(16).u32(3).u32(9).u32(5).0);
    for (region, flags, bytes, files) in [
        (0, 3, BYTES, 0),
        (1, 0, 0, 0),
        (2, 7, MEMORY, 1),
        (6, 0, 0, 0),
        (CONFIG, 3, 4096, 0),
        (8, 0, 0, 0),
    ] {
        let body = Body::default()
            .u32(32)
            .u32(0)
            .u32(region)
            .u32(0)
            .u64(0)
            .u64(0);
        let (reply, found) = client
            .ask(command::DEVICE_GET_REGION_INFO, body, None)
            .unwrap();
        let wanted = Body::default().u32(32).u32(flags).u32(region).u32(0);
        assert_eq!(reply, wanted.u64(bytes).u64(0).0);
        assert_eq!(found.len(), files);
    }
    for (kind, flags, count) in [(0, 0, 0), (MSI, 9, 1), (2, 0, 0), (3, 9, 1), (4, 0, 0)] {
        let body = Body::default().u32(16).u32(0).u32(kind).u32(0);
        let (reply, _) = client
            .ask(command::DEVICE_GET_IRQ_INFO, body, None)
            .unwrap();
        assert_eq!(
            reply,
            Body::default().u32(16).u32(flags).u32(kind).u32(count).0
        );
    }
    for (command, number) in [
        (command::DEVICE_GET_REGION_INFO, 9),
        (command::DEVICE_GET_REGION_INFO, u32::MAX),
        (command::DEVICE_GET_IRQ_INFO, 5),
    ] {
        let body = Body::default().u32(32).u32(0).u32(number).u32(0);
        assert_eq!(client.ask(command, body, None).unwrap_err(), errno::EINVAL);
    }
}

#[test]
fn a_bar_of_memory_is_shared() {
    let device = Plain::new();
    let mut client = device.client();
    let body = Body::default().u32(32).u32(0).u32(2).u32(0).u64(0).u64(0);
    let (_, files) = client
        .ask(command::DEVICE_GET_REGION_INFO, body, None)
        .unwrap();
    let seen = Memory::of_file(&files[0]).unwrap();
    let Some(Bar::Memory(memory)) = device.port.bar(2) else {
        panic!("it is memory");
    };
    memory.store(MEMORY - 8, 5);
    assert_eq!(seen.load(MEMORY - 8), 5);
}

#[test]
fn accesses_end_where_regions_do() {
    let device = Plain::new();
    let mut client = device.client();
    client.set64(BYTES - 8, 0x1122_3344_5566_7788);
    assert_eq!(client.get(BYTES - 4), 0x1122_3344);
    let mut two = [0; 2];
    client.read_region(0, BYTES - 3, &mut two).unwrap();
    assert_eq!(two, [0x33, 0x22]);
    for (region, offset, count) in [
        (0, BYTES - 3, 4),
        (0, BYTES, 1),
        (0, u64::MAX, 1),
        (0, u64::MAX - 3, 8),
        (0, 0, 4097),
        (1, 0, 4),
        (2, 0, 4),
        (CONFIG, 4093, 4),
        (9, 0, 4),
        (u32::MAX, 0, 4),
    ] {
        let mut data = vec![0; count];
        let read = client.read_region(region, offset, &mut data);
        assert_eq!(read, Err(errno::EINVAL), "{region} {offset:#x} {count}");
        let write = client.write_region(region, offset, &data);
        assert_eq!(write, Err(errno::EINVAL), "{region} {offset:#x} {count}");
    }
    // A read of a huge number of bytes gets no reply of that size either.
    let body = Body::default().u64(0).u32(0).u32(u32::MAX);
    let result = client.ask(command::REGION_READ, body, None);
    assert_eq!(result.unwrap_err(), errno::EINVAL);
    assert!(device.lines.lock().unwrap().is_empty());
}

#[test]
fn no_reply_is_sent_to_who_wants_none() {
    let device = Plain::new();
    let mut client = device.client();
    let body = Body::default().u64(8).u32(0).u32(4).data(&[1, 2, 3, 4]);
    client.post(command::REGION_WRITE, flag::NO_REPLY, body, None);
    // Its reply would be the first one.
    assert_eq!(client.get(8), 0x0403_0201);
}

#[test]
fn what_is_mapped_is_accessed_until_it_is_unmapped() {
    let device = Plain::new();
    let mut client = device.client();
    client.set_command(COMMAND_ON);
    client.map(0x10_0000, 0x2000, 0x3000);
    let dma = device.port.dma();
    dma.store(0x10_1008, 77).unwrap();
    assert_eq!(client.memory.load(0x3008), 77);
    client.unmap(0x10_1000, 0x1000);
    let refused = Refused::Unmapped { address: 0x10_1008 };
    assert_eq!(dma.load(0x10_1008), Err(refused));
    assert!(dma.load(0x10_2000).is_ok());
    // The rest goes as well, by the flag that says so.
    let body = Body::default().u32(24).u32(2).u64(0).u64(0);
    client.ask(command::DMA_UNMAP, body, None).unwrap();
    assert!(dma.load(0x10_2000).is_err());
    // A part that was cut off stays so, whatever is mapped.
    client.map(0x10_0000, 0, 0x1000);
    assert!(dma.load(0x10_0000).is_ok());
    client
        .ask(command::DEVICE_RESET, Body::default(), None)
        .unwrap();
    assert_eq!(dma.load(0x10_0000), Err(Refused::Reset));
    assert!(device.port.dma().load(0x10_0000).is_ok());
    assert_eq!(device.resets.load(Ordering::SeqCst), 1);
    client.set_command(COMMAND_MEMORY);
    let refused = Refused::NoMaster { address: 0x10_0000 };
    assert_eq!(device.port.dma().load(0x10_0000), Err(refused));
}

#[test]
fn mappings_that_cannot_be_are_refused() {
    let device = Plain::new();
    let mut client = device.client();
    let file = client.memory.file().unwrap().try_clone_to_owned().unwrap();
    for (offset, address, bytes) in [
        (0, 0, 0),
        (0, u64::MAX - 0xfff, 0x2000),
        (0, 0, u64::MAX),
        (MEMORY, 0, 0x1000),
        (u64::MAX - 0xfff, 0, 0x1000),
        (0, 0, MEMORY + 0x1000),
        (0, 1, 0x1000),
    ] {
        let body = Body::default().u32(32).u32(3);
        let body = body.u64(offset).u64(address).u64(bytes);
        let result = client.ask(command::DMA_MAP, body, Some(file.as_fd()));
        assert_eq!(result.unwrap_err(), errno::EINVAL);
    }
    // An unmap of a range that is not mapped is no error.
    client.unmap(0, u64::MAX);
    client.unmap(1 << 63, 1 << 63);
    client.unmap(u64::MAX - 0xfff, 0x1000);
}

#[test]
fn an_interrupt_arrives_until_it_is_taken_back() {
    let device = Plain::new();
    let mut client = device.client();
    device.port.interrupt();
    client.enable_interrupt();
    device.port.interrupt();
    client.wait_for_interrupt();
    assert_eq!(client.interrupts(), 0);
    // One with an event and without a descriptor.
    let body = Body::default().u32(20).u32(4 | 32).u32(MSI).u32(0).u32(1);
    client.ask(command::DEVICE_SET_IRQS, body, None).unwrap();
    device.port.interrupt();
    assert_eq!(client.interrupts(), 0);
}

#[test]
fn messages_that_are_too_short_are_refused() {
    let device = Plain::new();
    let mut client = device.client();
    let commands = [
        (command::VERSION, 4),
        (command::DMA_MAP, 32),
        (command::DMA_UNMAP, 24),
        (command::DEVICE_GET_REGION_INFO, 12),
        (command::DEVICE_GET_IRQ_INFO, 12),
        (command::DEVICE_SET_IRQS, 20),
        (command::REGION_READ, 16),
        (command::REGION_WRITE, 16),
    ];
    for (command, bytes) in commands {
        for short in 0..bytes {
            let body = Body::default().data(&vec![0; short]);
            let result = client.ask(command, body, None);
            assert_eq!(result.unwrap_err(), errno::EINVAL, "{command} {short}");
        }
    }
    // A write with less data than its count.
    let body = Body::default().u64(0).u32(0).u32(4).data(&[1, 2, 3]);
    let result = client.ask(command::REGION_WRITE, body, None);
    assert_eq!(result.unwrap_err(), errno::EINVAL);
    assert_eq!(
        device.lines.lock().unwrap().len(),
        1 + commands.iter().map(|(_, bytes)| bytes).sum::<usize>()
    );
    // It goes on.
    client.set(0, 5);
    assert_eq!(client.get(0), 5);
}

#[test]
fn messages_of_no_meaning_are_refused() {
    let device = Plain::new();
    let mut client = device.client();
    for command in [0, 6, 11, 12, 14, 15, 1000, u16::MAX] {
        let body = Body::default().data(&[0xff; 64]);
        let result = client.ask(command, body, None);
        assert_eq!(result.unwrap_err(), errno::EOPNOTSUPP);
    }
    for (flags, kind, start, count) in [
        (u32::MAX, MSI, 0, 2),
        (4 | 32, MSI, u32::MAX, u32::MAX),
        (4 | 32, 77, 0, 1),
        (0, MSI, 0, 1),
    ] {
        let body = Body::default().u32(20).u32(flags).u32(kind);
        let result = client.ask(command::DEVICE_SET_IRQS, body.u32(start).u32(count), None);
        assert_eq!(result.unwrap_err(), errno::EINVAL);
    }
    // A reply without a request.
    client.post(command::DMA_READ, flag::REPLY, Body::default(), None);
    client.set(0, 5);
    assert_eq!(client.get(0), 5);
}

#[test]
fn after_a_size_of_no_message_the_next_client_is_served() {
    let device = Plain::new();
    for size in [0_u32, 15, u32::MAX, 64 << 20] {
        let client = device.client();
        let mut bytes = [0; 16];
        bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        client.send(&bytes).unwrap();
        assert!(client.is_closed());
    }
    // So it is after one that ends in the middle of a message.
    let client = device.client();
    client.send(&[1, 0, 2]).unwrap();
    drop(client);
    let mut client = device.client();
    client.set(0, 5);
    assert_eq!(client.get(0), 5);
    assert_eq!(device.connections.load(Ordering::SeqCst), 6);
    assert_eq!(device.lines.lock().unwrap().len(), 4);
}

#[test]
fn nothing_is_left_of_a_client() {
    let device = Plain::new();
    let mut client = device.client();
    client.enable_interrupt();
    client.set_command(COMMAND_ON);
    client.set_bar(2, 0x10_0000_0000);
    client.map(0, 0, MEMORY);
    drop(client);
    let mut client = device.client();
    let mut bar = [0; 8];
    client.read_region(CONFIG, 0x18, &mut bar).unwrap();
    assert_eq!(u64::from_le_bytes(bar), 0xc);
    client.set_command(COMMAND_ON);
    let refused = Refused::Unmapped { address: 0 };
    assert_eq!(device.port.dma().load(0), Err(refused));
}
