// SPDX-License-Identifier: GPL-2.0

//! The character device.
//!
//! C header: [`include/uapi/misc/edu_peer.h`](srctree/include/uapi/misc/edu_peer.h)

use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma_buf::DmaBuf,
    fs::File,
    miscdevice::{
        MiscDevice,
        MiscDeviceRegistration, //
    },
    module::this_module,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    uaccess::{
        UserPtr,
        UserSlice,
        UserSliceReader,
        UserSliceWriter, //
    },
    uapi, //
};

use crate::{
    client::Client,
    device::{
        Edu,
        PIECE, //
    },
    import::Mode,
    job::{
        self,
        Order, //
    }, //
};

#[cfg(CONFIG_RUST_HMM)]
use crate::memory::Memory;
#[cfg(CONFIG_RUST_HMM)]
use kernel::mm::hmm::Request;

/// An open file.
#[pin_data]
pub(crate) struct PeerFile {
    edu: Arc<Edu>,
    #[pin]
    client: Mutex<Option<Client>>,
    /// The mutex is not held while the memory is accessed.
    #[cfg(CONFIG_RUST_HMM)]
    #[pin]
    memory: Mutex<Option<Arc<Memory>>>,
}

#[vtable]
impl MiscDevice for PeerFile {
    type RegistrationData = Arc<Edu>;
    type Ptr = Pin<KBox<Self>>;

    fn open(_file: &File, misc: &MiscDeviceRegistration<Self>) -> Result<Self::Ptr> {
        KBox::pin_init(
            pin_init!(Self {
                edu: misc.data().clone(),
                client <- new_mutex!(None, "edu_peer::client"),
                #[cfg(CONFIG_RUST_HMM)]
                memory <- new_mutex!(None, "edu_peer::memory"),
            }),
            GFP_KERNEL,
        )
    }

    fn ioctl(me: Pin<&Self>, _file: &File, cmd: u32, arg: usize) -> Result<isize> {
        let arg = UserPtr::from_addr(arg);

        match cmd {
            uapi::EDU_PEER_IOC_ATTACH => me.attach(arg)?,
            uapi::EDU_PEER_IOC_DETACH => me.detach()?,
            uapi::EDU_PEER_IOC_PIN => me.with_idle(|client| client.pin())?,
            uapi::EDU_PEER_IOC_UNPIN => me.with_idle(|client| client.unpin())?,
            uapi::EDU_PEER_IOC_MAP => me.with_idle(|client| client.map(&me.edu))?,
            uapi::EDU_PEER_IOC_UNMAP => me.with_idle(|client| client.unmap())?,
            uapi::EDU_PEER_IOC_TRANSFER => me.transfer(arg)?,
            uapi::EDU_PEER_IOC_TABLE => me.table(arg)?,
            uapi::EDU_PEER_IOC_STATUS => me.status(arg)?,
            uapi::EDU_PEER_IOC_SUBMIT => me.submit(arg)?,
            uapi::EDU_PEER_IOC_FINISH => me.finish(arg)?,
            uapi::EDU_PEER_IOC_MEASURE => me.measure(arg)?,
            #[cfg(CONFIG_RUST_HMM)]
            uapi::EDU_PEER_IOC_MEMORY_REGISTER => me.register(arg)?,
            #[cfg(CONFIG_RUST_HMM)]
            uapi::EDU_PEER_IOC_MEMORY_UNREGISTER => me.unregister()?,
            #[cfg(CONFIG_RUST_HMM)]
            uapi::EDU_PEER_IOC_MEMORY_TRANSFER => me.transfer_memory(arg)?,
            #[cfg(CONFIG_RUST_HMM)]
            uapi::EDU_PEER_IOC_MEMORY_QUERY => me.query_memory(arg)?,
            #[cfg(CONFIG_RUST_HMM)]
            uapi::EDU_PEER_IOC_MEMORY_MEASURE => me.measure_memory(arg)?,
            _ => return Err(ENOTTY),
        }

        Ok(0)
    }
}

impl PeerFile {
    /// Calls `f` with the device. It stays bound to this driver meanwhile.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device is not bound any more.
    /// - The errors of [`Device::with_bound`] and of `f`.
    fn with_bound<R>(&self, f: impl FnOnce(&Device<Bound>) -> Result<R>) -> Result<R> {
        let dev: &Device = self.edu.pdev().as_ref();

        dev.with_bound(this_module::<crate::LocalModule>(), |dev| {
            // The device may be bound again, but this file belongs to the old binding.
            self.edu.check_bound()?;
            f(dev)
        })
    }

    /// Calls `f` with the attachment.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver is not bound any more.
    /// - `EINVAL` if there is no attachment.
    fn with_client<R>(&self, f: impl FnOnce(&mut Client) -> Result<R>) -> Result<R> {
        self.edu.check_bound()?;

        f((*self.client.lock()).as_mut().ok_or(EINVAL)?)
    }

    /// Like [`Self::with_client`] but not while a transfer of [`Self::submit`] is under way.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there is one. The errors of [`Self::with_client`].
    fn with_idle<R>(&self, f: impl FnOnce(&mut Client) -> Result<R>) -> Result<R> {
        self.with_client(|client| {
            if client.is_busy() {
                return Err(EBUSY);
            }
            f(client)
        })
    }

    /// Serves `EDU_PEER_IOC_ATTACH`.
    fn attach(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_attach>(arg);
        let mut request = uapi::edu_peer_attach {
            fd: reader.read()?,
            mode: reader.read()?,
            flags: reader.read()?,
            pad: reader.read()?,
            size: reader.read()?,
        };

        let mode = Mode::try_from(request.mode)?;
        if request.flags != 0 || request.pad != 0 || request.size != 0 {
            return Err(EINVAL);
        }

        self.edu.check_bound()?;
        let buf = DmaBuf::from_fd(request.fd)?;
        // CAST: `usize` fits 64 bits.
        request.size = buf.size() as u64;

        let mut slot = self.client.lock();
        if slot.is_some() {
            return Err(EBUSY);
        }

        let client = self.with_bound(|dev| Client::new(mode, buf, dev))?;

        // Before the attachment is stored, so there is none if the result cannot be written.
        let mut writer = writer::<uapi::edu_peer_attach>(arg);
        writer.write(&request.fd)?;
        writer.write(&request.mode)?;
        writer.write(&request.flags)?;
        writer.write(&request.pad)?;
        writer.write(&request.size)?;

        *slot = Some(client);
        Ok(())
    }

    /// Serves `EDU_PEER_IOC_DETACH`.
    fn detach(&self) -> Result {
        self.edu.check_bound()?;

        let client = self.client.lock().take();
        // The drop detaches, so the lock is not held.
        drop(client.ok_or(EINVAL)?);
        Ok(())
    }

    /// Serves `EDU_PEER_IOC_TRANSFER`.
    fn transfer(&self, arg: UserPtr) -> Result {
        let (request, write) = read_transfer(arg)?;

        let moved = self.with_idle(|client| {
            client.check_range(request.offset, request.length)?;
            Ok(Moved::by(&request, write, |offset, part| {
                if write {
                    client.write(&self.edu, offset, part)
                } else {
                    client.read(&self.edu, offset, part)
                }
            }))
        })?;

        moved.answer(arg, request)
    }

    /// Serves `EDU_PEER_IOC_SUBMIT`.
    fn submit(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_submit>(arg);
        let (offset, length, data): (u64, u64, u64) =
            (reader.read()?, reader.read()?, reader.read()?);
        let write = is_write(reader.read()?)?;
        let flags: u32 = reader.read()?;

        let length = usize::try_from(length)?;
        if flags != 0 || length == 0 || length > job::MAX {
            return Err(EINVAL);
        }
        let mut bytes = KVVec::from_elem(0u8, length, GFP_KERNEL)?;
        if write {
            UserSlice::new(UserPtr::from_addr(data.try_into()?), length)
                .reader()
                .read_slice(&mut bytes)?;
        } else if data != 0 {
            return Err(EINVAL);
        }

        self.with_client(|client| {
            // CAST: `usize` fits 64 bits.
            client.check_range(offset, length as u64)?;
            client.submit(
                &self.edu,
                Order {
                    offset,
                    write,
                    bytes,
                },
            )
        })
    }

    /// Serves `EDU_PEER_IOC_FINISH`.
    fn finish(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_finish>(arg);
        let (data, room, moved): (u64, u64, u64) = (reader.read()?, reader.read()?, reader.read()?);
        let write = is_write(reader.read()?)?;
        let flags: u32 = reader.read()?;

        if flags != 0 || moved != 0 || (write && room != 0) {
            return Err(EINVAL);
        }

        // The lock is not held during the wait.
        let last = self.with_client(|client| client.last().ok_or(EINVAL))?;
        let end = last.wait()?;
        if write != end.write {
            return Err(EINVAL);
        }

        let moved = end.moved();
        let len = moved.len().min(usize::try_from(room)?);
        UserSlice::new(UserPtr::from_addr(data.try_into()?), len)
            .writer()
            .write_slice(moved.get(..len).ok_or(EINVAL)?)?;

        let mut writer = writer::<uapi::edu_peer_finish>(arg);
        writer.write(&data)?;
        writer.write(&room)?;
        // CAST: `usize` fits 64 bits.
        writer.write(&(moved.len() as u64))?;
        end.result
    }

    /// Serves `EDU_PEER_IOC_TABLE`.
    fn table(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_table>(arg);
        let mut request = uapi::edu_peer_table {
            segments: reader.read()?,
            count: reader.read()?,
            pad: reader.read()?,
        };

        if request.pad != 0 {
            return Err(EINVAL);
        }

        let segments = self.with_client(|client| client.attached()?.table())?;

        let room = usize::try_from(request.count)?.min(segments.len());
        let mut writer = UserSlice::new(
            UserPtr::from_addr(request.segments.try_into()?),
            room * size_of::<uapi::edu_peer_segment>(),
        )
        .writer();
        for segment in segments.iter().take(room) {
            writer.write(&segment.address)?;
            writer.write(&segment.length)?;
        }

        request.count = segments.len().try_into()?;
        let mut writer = self::writer::<uapi::edu_peer_table>(arg);
        writer.write(&request.segments)?;
        writer.write(&request.count)
    }

    /// Serves `EDU_PEER_IOC_STATUS`.
    fn status(&self, arg: UserPtr) -> Result {
        self.edu.check_bound()?;

        let mut status = uapi::edu_peer_status::default();
        if let Some(client) = self.client.lock().as_ref() {
            let state = client.state()?;
            let counters = client.counters();

            status.flags = uapi::EDU_PEER_STATUS_ATTACHED;
            for (set, flag) in [
                (state.mapped, uapi::EDU_PEER_STATUS_MAPPED),
                (state.pinned, uapi::EDU_PEER_STATUS_PINNED),
                (counters.revoked(), uapi::EDU_PEER_STATUS_REVOKED),
                (state.iomem, uapi::EDU_PEER_STATUS_IOMEM),
                (client.is_busy(), uapi::EDU_PEER_STATUS_BUSY),
            ] {
                if set {
                    status.flags |= flag;
                }
            }
            status.invalidations = counters.invalidations();
            status.maps = counters.maps();
        }

        let mut writer = writer::<uapi::edu_peer_status>(arg);
        writer.write(&status.flags)?;
        writer.write(&status.pad)?;
        writer.write(&status.invalidations)?;
        writer.write(&status.maps)
    }

    /// Serves `EDU_PEER_IOC_MEASURE`.
    fn measure(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_measure>(arg);
        let (rounds, pad): (u32, u32) = (reader.read()?, reader.read()?);
        let results: [u64; 3] = [reader.read()?, reader.read()?, reader.read()?];

        if pad != 0 || results != [0; 3] || rounds == 0 || rounds > uapi::EDU_PEER_MEASURE_MAX {
            return Err(EINVAL);
        }

        let cost = self.with_idle(|client| client.attached()?.measure(rounds))?;

        let mut writer = writer::<uapi::edu_peer_measure>(arg);
        writer.write(&rounds)?;
        writer.write(&pad)?;
        writer.write(&cost.least)?;
        writer.write(&cost.most)?;
        writer.write(&cost.clock)
    }
}

/// The outcome of a transfer.
struct Moved {
    /// The number of bytes moved, also after an error.
    bytes: u64,
    result: Result,
}

impl Moved {
    /// Moves the bytes of a request with a checked range in pieces. `piece` moves bytes between an
    /// offset and the start of its slice and returns the number of bytes moved.
    fn by(
        request: &uapi::edu_peer_transfer,
        write: bool,
        piece: impl FnMut(u64, &mut [u8]) -> Result<u64>,
    ) -> Self {
        let mut bytes = 0;
        let result = Self::pieces(request, write, piece, &mut bytes)
            // A restart of the call would use the length written back.
            .map_err(|e| if e == ERESTARTSYS { EINTR } else { e });

        Self { bytes, result }
    }

    fn pieces(
        request: &uapi::edu_peer_transfer,
        write: bool,
        mut piece: impl FnMut(u64, &mut [u8]) -> Result<u64>,
        moved: &mut u64,
    ) -> Result {
        let data = UserPtr::from_addr(request.data.try_into()?);
        let mut bytes = KBox::new([0u8; PIECE], GFP_KERNEL)?;

        while *moved < request.length {
            if *moved > 0 && current!().signal_pending() {
                return Err(EINTR);
            }

            // OVERFLOW: The end of the range was checked.
            let offset = request.offset + *moved;
            // CAST: `PIECE` fits 64 bits, hence so does the smaller of the two.
            let limit = (request.length - *moved).min(PIECE as u64);
            let user = data.wrapping_byte_add(usize::try_from(*moved)?);

            let part = bytes.get_mut(..usize::try_from(limit)?).ok_or(EINVAL)?;

            *moved += if write {
                UserSlice::new(user, part.len()).reader().read_slice(part)?;
                piece(offset, part)?
            } else {
                let len = piece(offset, part)?;
                let part = part.get(..usize::try_from(len)?).ok_or(EINVAL)?;
                UserSlice::new(user, part.len())
                    .writer()
                    .write_slice(part)?;
                len
            };
        }

        Ok(())
    }

    /// Writes the number of bytes back, also after an error, and returns the result.
    fn answer(self, arg: UserPtr, mut request: uapi::edu_peer_transfer) -> Result {
        request.length = self.bytes;

        let mut writer = writer::<uapi::edu_peer_transfer>(arg);
        writer.write(&request.offset)?;
        writer.write(&request.length)?;
        self.result
    }
}

#[cfg(CONFIG_RUST_HMM)]
impl PeerFile {
    /// The registered memory of a process.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver is not bound any more.
    /// - `EINVAL` if there is none.
    fn memory(&self) -> Result<Arc<Memory>> {
        self.edu.check_bound()?;

        self.memory.lock().clone().ok_or(EINVAL)
    }

    /// Serves `EDU_PEER_IOC_MEMORY_REGISTER`.
    fn register(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_memory_register>(arg);
        let (address, size): (u64, u64) = (reader.read()?, reader.read()?);
        let (flags, pad): (u32, u32) = (reader.read()?, reader.read()?);

        if flags != 0 || pad != 0 || size > u64::from(uapi::EDU_PEER_MEMORY_MAX) {
            return Err(EINVAL);
        }
        let start = usize::try_from(address)?;
        let end = start.checked_add(usize::try_from(size)?).ok_or(EINVAL)?;

        self.edu.check_bound()?;
        let mut slot = self.memory.lock();
        if slot.is_some() {
            return Err(EBUSY);
        }

        let memory = self.with_bound(|dev| Memory::of_caller(dev, start..end))?;
        *slot = Some(Arc::new(memory, GFP_KERNEL)?);
        Ok(())
    }

    /// Serves `EDU_PEER_IOC_MEMORY_UNREGISTER`.
    fn unregister(&self) -> Result {
        self.edu.check_bound()?;

        let memory = self.memory.lock().take();
        // Waits for the piece under way, so the lock is not held.
        memory.ok_or(EINVAL)?.end();
        Ok(())
    }

    /// Serves `EDU_PEER_IOC_MEMORY_TRANSFER`.
    fn transfer_memory(&self, arg: UserPtr) -> Result {
        let (request, write) = read_transfer(arg)?;
        let memory = self.memory()?;

        memory.check_range(request.offset, request.length)?;
        Moved::by(&request, write, |offset, part| {
            if write {
                memory.write(&self.edu, offset, part)
            } else {
                memory.read(&self.edu, offset, part)
            }
        })
        .answer(arg, request)
    }

    /// Serves `EDU_PEER_IOC_MEMORY_QUERY`.
    fn query_memory(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_memory_query>(arg);
        let (offset, flags, kind): (u64, u32, u32) =
            (reader.read()?, reader.read()?, reader.read()?);
        let counters: [u64; 2] = [reader.read()?, reader.read()?];
        let map = match flags {
            0 => false,
            uapi::EDU_PEER_MEMORY_QUERY_MAP => true,
            _ => return Err(EINVAL),
        };

        if kind != 0 || counters != [0; 2] || !map && offset != 0 {
            return Err(EINVAL);
        }

        let memory = self.memory()?;
        let (kind, address) = if map {
            memory.check_range(offset, 1)?;
            memory.page(offset)?
        } else {
            (uapi::edu_peer_memory_kind_EDU_PEER_MEMORY_KIND_NONE, 0)
        };

        let mut writer = writer::<uapi::edu_peer_memory_query>(arg);
        writer.write(&offset)?;
        writer.write(&flags)?;
        writer.write(&kind)?;
        writer.write(&address)?;
        writer.write(&memory.invalidations())
    }

    /// Serves `EDU_PEER_IOC_MEMORY_MEASURE`.
    fn measure_memory(&self, arg: UserPtr) -> Result {
        const WRITE: u32 = uapi::EDU_PEER_MEMORY_MEASURE_WRITE;
        const P2P: u32 = uapi::EDU_PEER_MEMORY_MEASURE_P2P;

        let mut reader = reader::<uapi::edu_peer_memory_measure>(arg);
        let (offset, length): (u64, u64) = (reader.read()?, reader.read()?);
        let (flags, pad): (u32, u32) = (reader.read()?, reader.read()?);
        let times: [u64; 2] = [reader.read()?, reader.read()?];

        if flags & !(WRITE | P2P) != 0 || pad != 0 || times != [0; 2] {
            return Err(EINVAL);
        }

        let memory = self.memory()?;
        let request = match flags & WRITE {
            0 => Request::READ,
            _ => Request::WRITE,
        };
        let request = match flags & P2P {
            0 => request,
            _ => request.for_dma_of(memory.device()),
        };

        memory.check_range(offset, length)?;
        let (time, clock) = memory.measure(offset, length, request)?;

        let mut writer = writer::<uapi::edu_peer_memory_measure>(arg);
        writer.write(&offset)?;
        writer.write(&length)?;
        writer.write(&flags)?;
        writer.write(&pad)?;
        writer.write(&time)?;
        writer.write(&clock)
    }
}

/// Reads a transfer and whether it writes to the buffer.
fn read_transfer(arg: UserPtr) -> Result<(uapi::edu_peer_transfer, bool)> {
    let mut reader = reader::<uapi::edu_peer_transfer>(arg);
    let request = uapi::edu_peer_transfer {
        offset: reader.read()?,
        length: reader.read()?,
        data: reader.read()?,
        direction: reader.read()?,
        pad: reader.read()?,
    };

    if request.pad != 0 {
        return Err(EINVAL);
    }
    let write = is_write(request.direction)?;
    Ok((request, write))
}

/// Returns whether a transfer of a direction writes to the buffer.
fn is_write(direction: u32) -> Result<bool> {
    match direction {
        uapi::EDU_PEER_DIRECTION_READ => Ok(false),
        uapi::EDU_PEER_DIRECTION_WRITE => Ok(true),
        _ => Err(EINVAL),
    }
}

// The structures of the uAPI have no padding and are read and written field by field, in order.

fn reader<T>(arg: UserPtr) -> UserSliceReader {
    UserSlice::new(arg, size_of::<T>()).reader()
}

fn writer<T>(arg: UserPtr) -> UserSliceWriter {
    UserSlice::new(arg, size_of::<T>()).writer()
}
