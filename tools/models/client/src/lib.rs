// SPDX-License-Identifier: GPL-2.0

//! A client of a modelled device, as QEMU is one: a machine with some memory, for tests.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use vfio_user::interrupts::MSI;
use vfio_user::memory::Memory;
use vfio_user::message::command;
use vfio_user::message::flag;
use vfio_user::message::Body;
use vfio_user::message::Fields;
use vfio_user::message::Message;
use vfio_user::socket;

/// A time limit that is longer than any answer takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The region of the configuration space, and the registers in it that tests need.
pub const CONFIG: u32 = 7;
pub const CONFIG_COMMAND: u64 = 0x04;
pub const CONFIG_BAR: u64 = 0x10;
/// Memory decoding and bus mastering.
pub const COMMAND_ON: u16 = 6;
pub const COMMAND_MEMORY: u16 = 2;

/// Device control of the capability PCI Express, with the bit that resets.
const DEVICE_CONTROL: u64 = 0x48;
const FUNCTION_RESET: u16 = 1 << 15;
/// The state in the capability of power management: D0 is 0, D3hot is 3.
const POWER_STATE: u64 = 0x94;

const READ_WRITE: u32 = 3;
const EVENTFD_TRIGGER: u32 = 4 | 32;
const EFAULT: u32 = 14;

/// Memory that the device reaches by messages alone, in bytes by the address of the first.
type Remote = Arc<Mutex<BTreeMap<u64, Vec<u8>>>>;

/// Requests of the device that are not answered yet, while those are held back.
type Held = Arc<Mutex<Option<Vec<Message>>>>;

/// Where messages are sent, one at a time: the thread that answers the device sends some too.
type Writer = Arc<Mutex<UnixStream>>;

/// A connection to a device.
pub struct Client {
    writer: Writer,
    replies: mpsc::Receiver<(Message, Vec<File>)>,
    /// Memory of the machine, of which parts are mapped for DMA.
    pub memory: Memory,
    file: File,
    remote: Remote,
    held: Held,
    /// Where the device's interrupts arrive.
    events: Option<UnixStream>,
    next: u16,
}

impl Client {
    /// Plugs a device into a machine with so many bytes of memory, none of it mapped for DMA.
    pub fn connect(path: &Path, memory: u64) -> Self {
        let mut client = Self::raw(
            UnixStream::connect(path).expect("the device listens"),
            memory,
        );
        let body = Body::default()
            .u16(0)
            .u16(1)
            .data(b"{\"capabilities\":{}}\0");
        client.ask(command::VERSION, body, None).expect("a version");
        client
    }

    /// A machine at a stream on which no message was sent yet.
    pub fn raw(stream: UnixStream, memory: u64) -> Self {
        let memory = Memory::shared(c"guest", memory).expect("memory");
        let file = memory.file().expect("it is shared").try_clone_to_owned();
        let (sender, replies) = mpsc::channel();
        let remote = Remote::default();
        let held = Held::default();
        let writer = Arc::new(Mutex::new(stream.try_clone().expect("a stream")));
        let answering = (writer.clone(), remote.clone(), held.clone());
        thread::spawn(move || {
            let (writer, remote, held) = answering;
            receive(&stream, &sender, &writer, &remote, &held);
        });
        Self {
            writer,
            replies,
            memory,
            file: File::from(file.expect("a descriptor")),
            remote,
            held,
            events: None,
            next: 0x8000,
        }
    }

    /// Sends bytes, which need not be a valid message.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        socket::send(&self.writer.lock().unwrap(), bytes, None)
    }

    /// Sends a request, with a file beside it.
    pub fn post(&mut self, command: u16, flags: u32, body: Body, file: Option<BorrowedFd<'_>>) {
        let id = self.next;
        self.next = id.wrapping_add(1);
        let message = Message {
            id,
            command,
            flags,
            error: 0,
            body: body.0,
        };
        // A device that is gone answers nothing.
        let _ = socket::send(&self.writer.lock().unwrap(), &message.bytes(), file);
    }

    /// Waits for the reply to the last request.
    pub fn reply(&self) -> Option<(Message, Vec<File>)> {
        let (message, files) = self.replies.recv_timeout(PATIENCE).ok()?;
        assert_eq!(message.id, self.next.wrapping_sub(1), "another reply");
        Some((message, files))
    }

    /// Sends a request and returns the body of the reply, or its error number.
    pub fn ask(
        &mut self,
        command: u16,
        body: Body,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(Vec<u8>, Vec<File>), u32> {
        self.post(command, 0, body, file);
        let (message, files) = self.reply().expect("the device answers");
        match message.flags & flag::ERROR {
            0 => Ok((message.body, files)),
            _ => Err(message.error),
        }
    }

    /// Whether the device has closed the connection.
    pub fn is_closed(&self) -> bool {
        matches!(
            self.replies.recv_timeout(PATIENCE),
            Err(mpsc::RecvTimeoutError::Disconnected)
        )
    }

    /// Maps a part of the memory for DMA.
    pub fn map(&mut self, address: u64, offset: u64, bytes: u64) {
        let file = self.file.try_clone().expect("a descriptor");
        self.map_fd(address, file.as_fd(), offset, bytes);
    }

    /// Maps a part of other memory for DMA, which is shared.
    pub fn map_file(&mut self, address: u64, memory: &Memory, offset: u64, bytes: u64) {
        let file = memory.file().expect("it is shared");
        self.map_fd(address, file, offset, bytes);
    }

    fn map_fd(&mut self, address: u64, file: BorrowedFd<'_>, offset: u64, bytes: u64) {
        let body = Body::default().u32(32).u32(READ_WRITE);
        let body = body.u64(offset).u64(address).u64(bytes);
        self.ask(command::DMA_MAP, body, Some(file))
            .expect("it is mapped");
    }

    /// Maps memory that only the client reaches, with its content.
    pub fn map_remote(&mut self, address: u64, content: Vec<u8>) {
        let bytes = content.len() as u64;
        self.remote.lock().unwrap().insert(address, content);
        let body = Body::default().u32(32).u32(READ_WRITE);
        self.ask(command::DMA_MAP, body.u64(0).u64(address).u64(bytes), None)
            .expect("it is mapped");
    }

    /// Memory that only the client reaches, and that is not in the device's table of mappings.
    pub fn keep_remote(&self, address: u64, content: Vec<u8>) {
        self.remote.lock().unwrap().insert(address, content);
    }

    /// The content of memory that only the client reaches.
    pub fn remote(&self, address: u64) -> Vec<u8> {
        self.remote.lock().unwrap()[&address].clone()
    }

    /// From now on holds back the answers to requests of the device.
    pub fn hold(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    /// Whether the device waits for an answer that is held back.
    pub fn holds(&self) -> bool {
        let held = self.held.lock().unwrap();
        held.as_ref().is_some_and(|requests| !requests.is_empty())
    }

    /// Answers the requests that were held back, and all later ones.
    pub fn release(&self) {
        for request in self.held.lock().unwrap().take().into_iter().flatten() {
            answer(&self.writer, &request, &self.remote).expect("the device is there");
        }
    }

    /// Unmaps a range that was mapped for DMA.
    pub fn unmap(&mut self, address: u64, bytes: u64) {
        let body = Body::default().u32(24).u32(0).u64(address).u64(bytes);
        self.ask(command::DMA_UNMAP, body, None)
            .expect("it is unmapped");
    }

    /// Reads from a region, or returns the error number.
    pub fn read_region(&mut self, region: u32, offset: u64, to: &mut [u8]) -> Result<(), u32> {
        let body = Body::default().u64(offset).u32(region);
        let body = body.u32(to.len() as u32);
        let (reply, _) = self.ask(command::REGION_READ, body, None)?;
        to.copy_from_slice(&reply[16..]);
        Ok(())
    }

    /// Writes to a region, or returns the error number.
    pub fn write_region(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), u32> {
        let body = Body::default().u64(offset).u32(region);
        let body = body.u32(from.len() as u32).data(from);
        self.ask(command::REGION_WRITE, body, None).map(|_| ())
    }

    /// Reads a register of BAR 0.
    pub fn get(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.read_region(0, offset, &mut bytes).expect("a register");
        u32::from_le_bytes(bytes)
    }

    /// Reads a register of 64 bits.
    pub fn get64(&mut self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read_region(0, offset, &mut bytes).expect("a register");
        u64::from_le_bytes(bytes)
    }

    /// Writes a register of BAR 0.
    pub fn set(&mut self, offset: u64, value: u32) {
        self.write_region(0, offset, &value.to_le_bytes())
            .expect("a register");
    }

    /// Writes a register of 64 bits.
    pub fn set64(&mut self, offset: u64, value: u64) {
        self.write_region(0, offset, &value.to_le_bytes())
            .expect("a register");
    }

    /// Turns memory decoding and bus mastering on or off.
    pub fn set_command(&mut self, command: u16) {
        self.write_region(CONFIG, CONFIG_COMMAND, &command.to_le_bytes())
            .expect("a register");
    }

    /// Maps all memory for DMA at a bus address, and turns the device on.
    pub fn turn_on(&mut self, base: u64, memory: u64) {
        self.map(base, 0, memory);
        self.enable_interrupt();
        self.set_command(COMMAND_ON);
    }

    /// Puts the device to D3hot, and back to D0.
    pub fn lose_power(&mut self) {
        for state in [3_u16, 0] {
            self.write_region(CONFIG, POWER_STATE, &state.to_le_bytes())
                .expect("a register");
        }
    }

    /// Begins a function level reset.
    pub fn reset_function(&mut self) {
        self.write_region(CONFIG, DEVICE_CONTROL, &FUNCTION_RESET.to_le_bytes())
            .expect("a register");
    }

    /// Bytes of the memory.
    pub fn bytes(&self, at: u64, bytes: u64) -> Vec<u8> {
        let mut data = vec![0; bytes as usize];
        self.memory.read(at, &mut data);
        data
    }

    /// Puts a BAR of 64 bits at a bus address.
    pub fn set_bar(&mut self, number: u64, address: u64) {
        let at = CONFIG_BAR + 4 * number;
        self.write_region(CONFIG, at, &address.to_le_bytes())
            .expect("a register");
    }

    /// Lets the device raise its interrupt here.
    pub fn enable_interrupt(&mut self) {
        // The device only writes 8 bytes for each interrupt, so a socket can stand for an eventfd.
        let (seen, given) = UnixStream::pair().expect("a pair");
        seen.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let given = OwnedFd::from(given);
        let body = Body::default().u32(20).u32(EVENTFD_TRIGGER).u32(MSI);
        self.ask(
            command::DEVICE_SET_IRQS,
            body.u32(0).u32(1),
            Some(given.as_fd()),
        )
        .expect("an interrupt");
        self.events = Some(seen);
    }

    /// Waits for an interrupt.
    pub fn wait_for_interrupt(&mut self) {
        let events = self.events.as_mut().expect("it is enabled");
        events.set_nonblocking(false).expect("a mode");
        events.read_exact(&mut [0; 8]).expect("an interrupt");
    }

    /// How many interrupts there were since the last one that was waited for.
    pub fn interrupts(&mut self) -> usize {
        let events = self.events.as_mut().expect("it is enabled");
        events.set_nonblocking(true).expect("a mode");
        let mut count = 0;
        while events.read(&mut [0; 8]).is_ok_and(|bytes| bytes == 8) {
            count += 1;
        }
        count
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let writer = self.writer.lock();
        let _ = writer.map(|stream| stream.shutdown(Shutdown::Both));
    }
}

/// Passes replies to the waiting request, and answers requests of the device.
fn receive(
    stream: &UnixStream,
    replies: &mpsc::Sender<(Message, Vec<File>)>,
    writer: &Writer,
    remote: &Remote,
    held: &Held,
) {
    while let Ok(Some((message, files))) = Message::receive(stream) {
        if message.is_reply() {
            if replies.send((message, files)).is_err() {
                return;
            }
            continue;
        }
        if let Some(held) = held.lock().unwrap().as_mut() {
            held.push(message);
            continue;
        }
        if answer(writer, &message, remote).is_err() {
            return;
        }
    }
}

fn answer(writer: &Writer, request: &Message, remote: &Remote) -> io::Result<()> {
    let reply = request.reply(served(request, remote).ok_or(EFAULT));
    socket::send(&writer.lock().unwrap(), &reply.bytes(), None)
}

/// Does a DMA_READ or a DMA_WRITE.
fn served(message: &Message, remote: &Remote) -> Option<Vec<u8>> {
    let mut fields = Fields(&message.body);
    let (address, bytes) = (fields.u64()?, usize::try_from(fields.u64()?).ok()?);
    let mut remote = remote.lock().unwrap();
    let (start, content) = remote.range_mut(..=address).next_back()?;
    let from = usize::try_from(address - start).ok()?;
    let part = content.get_mut(from..from.checked_add(bytes)?)?;
    let body = Body::default().u64(address).u64(bytes as u64);
    match message.command {
        command::DMA_READ => Some(body.data(part).0),
        command::DMA_WRITE => {
            part.copy_from_slice(fields.take(bytes)?);
            Some(body.0)
        }
        _ => None,
    }
}

/// The lines that a device has written to its log.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// What the device writes lines by.
    pub fn sink(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let log = self.clone();
        move |line| log.0.lock().unwrap().push(line.to_owned())
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Waits until a condition is true.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "no sign of {what}");
        thread::sleep(Duration::from_micros(200));
    }
}

/// Bytes that differ from their neighbours.
pub fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}
