// SPDX-License-Identifier: GPL-2.0

//! The character device.
//!
//! C header: [`include/uapi/misc/edu_peer.h`](srctree/include/uapi/misc/edu_peer.h)

use kernel::{
    dma_buf::DmaBuf,
    fs::File,
    miscdevice::{
        MiscDevice,
        MiscDeviceRegistration, //
    },
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
    device::{
        Edu,
        PIECE, //
    },
    import::{
        Attached,
        Mode, //
    }, //
};

/// An open file.
#[pin_data]
pub(crate) struct PeerFile {
    edu: Arc<Edu>,
    #[pin]
    attached: Mutex<Option<Attached>>,
}

#[vtable]
impl MiscDevice for PeerFile {
    type RegistrationData = Arc<Edu>;
    type Ptr = Pin<KBox<Self>>;

    fn open(_file: &File, misc: &MiscDeviceRegistration<Self>) -> Result<Self::Ptr> {
        KBox::pin_init(
            pin_init!(Self {
                edu: misc.data().clone(),
                attached <- new_mutex!(None, "edu_peer::attached"),
            }),
            GFP_KERNEL,
        )
    }

    fn ioctl(me: Pin<&Self>, _file: &File, cmd: u32, arg: usize) -> Result<isize> {
        let arg = UserPtr::from_addr(arg);

        match cmd {
            uapi::EDU_PEER_IOC_ATTACH => me.attach(arg)?,
            uapi::EDU_PEER_IOC_DETACH => me.detach()?,
            uapi::EDU_PEER_IOC_PIN => me.with_attached(|attached| attached.pin())?,
            uapi::EDU_PEER_IOC_UNPIN => me.with_attached(|attached| attached.unpin())?,
            uapi::EDU_PEER_IOC_MAP => me.with_attached(|attached| attached.map(&me.edu))?,
            uapi::EDU_PEER_IOC_UNMAP => me.with_attached(|attached| attached.unmap())?,
            uapi::EDU_PEER_IOC_TRANSFER => me.transfer(arg)?,
            uapi::EDU_PEER_IOC_TABLE => me.table(arg)?,
            uapi::EDU_PEER_IOC_STATUS => me.status(arg)?,
            _ => return Err(ENOTTY),
        }

        Ok(0)
    }
}

impl PeerFile {
    /// Calls `f` with the attachment.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the driver is not bound any more.
    /// - `EINVAL` if there is no attachment.
    fn with_attached<R>(&self, f: impl FnOnce(&mut Attached) -> Result<R>) -> Result<R> {
        self.edu.check_bound()?;

        f((*self.attached.lock()).as_mut().ok_or(EINVAL)?)
    }

    /// Serves `EDU_PEER_IOC_ATTACH`.
    fn attach(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_attach>(arg);
        let mut request = uapi::edu_peer_attach {
            fd: reader.read()?,
            mode: reader.read()?,
            size: reader.read()?,
        };

        let mode = Mode::try_from(request.mode)?;
        if request.size != 0 {
            return Err(EINVAL);
        }

        self.edu.check_bound()?;
        let buf = DmaBuf::from_fd(request.fd)?;
        // CAST: `usize` fits 64 bits.
        request.size = buf.size() as u64;

        let mut slot = self.attached.lock();
        if slot.is_some() {
            return Err(EBUSY);
        }

        let attached = self.edu.pdev().as_ref().with_bound(|dev| {
            // The device may be bound anew, but this file belongs to the time before.
            self.edu.check_bound()?;
            Attached::new(mode, buf, dev)
        })?;

        // Before the attachment is stored: if the answer cannot be delivered there is none.
        let mut writer = writer::<uapi::edu_peer_attach>(arg);
        writer.write(&request.fd)?;
        writer.write(&request.mode)?;
        writer.write(&request.size)?;

        *slot = Some(attached);
        Ok(())
    }

    /// Serves `EDU_PEER_IOC_DETACH`.
    fn detach(&self) -> Result {
        self.edu.check_bound()?;

        let attached = self.attached.lock().take();
        // Detaches, for which the lock is not needed.
        drop(attached.ok_or(EINVAL)?);
        Ok(())
    }

    /// Serves `EDU_PEER_IOC_TRANSFER`.
    fn transfer(&self, arg: UserPtr) -> Result {
        let mut reader = reader::<uapi::edu_peer_transfer>(arg);
        let mut request = uapi::edu_peer_transfer {
            offset: reader.read()?,
            length: reader.read()?,
            data: reader.read()?,
            direction: reader.read()?,
            pad: reader.read()?,
        };

        if request.pad != 0 {
            return Err(EINVAL);
        }
        let write = match request.direction {
            uapi::EDU_PEER_READ => false,
            uapi::EDU_PEER_WRITE => true,
            _ => return Err(EINVAL),
        };

        let (ret, moved) = self.with_attached(|attached| {
            let end = request.offset.checked_add(request.length).ok_or(EINVAL)?;
            // CAST: `usize` fits 64 bits.
            if end > attached.dma_buf().size() as u64 {
                return Err(EINVAL);
            }

            let mut moved = 0;
            let ret = self
                .move_bytes(attached, &request, write, &mut moved)
                // The core would repeat the call, but with the length that is written back below.
                .map_err(|e| if e == ERESTARTSYS { EINTR } else { e });
            Ok((ret, moved))
        })?;

        // What was moved is told in case of an error as well.
        request.length = moved;
        let mut writer = writer::<uapi::edu_peer_transfer>(arg);
        writer.write(&request.offset)?;
        writer.write(&request.length)?;

        ret
    }

    /// Moves the bytes of a request that is known to be inside the buffer. `moved` is the number of
    /// bytes that were, also in case of an error.
    fn move_bytes(
        &self,
        attached: &mut Attached,
        request: &uapi::edu_peer_transfer,
        write: bool,
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

            *moved += if write {
                self.write_piece(attached, offset, limit, user, &mut bytes)?
            } else {
                self.read_piece(attached, offset, limit, user, &mut bytes)?
            };
        }

        Ok(())
    }

    /// Moves up to `limit` bytes at `user` to `offset` of the buffer.
    fn write_piece(
        &self,
        attached: &mut Attached,
        offset: u64,
        limit: u64,
        user: UserPtr,
        bytes: &mut [u8; PIECE],
    ) -> Result<u64> {
        let len = usize::try_from(limit)?;
        let part = bytes.get_mut(..len).ok_or(EINVAL)?;
        UserSlice::new(user, len).reader().read_slice(part)?;

        if let Some(cpu) = attached.cpu() {
            return cpu.write(offset, part).map(|()| limit);
        }

        let mut engine = self.edu.engine()?;
        engine.load(bytes, len)?;
        attached.with_piece(&self.edu, offset, limit, |piece| engine.write(piece))
    }

    /// Moves up to `limit` bytes at `offset` of the buffer to `user`.
    fn read_piece(
        &self,
        attached: &mut Attached,
        offset: u64,
        limit: u64,
        user: UserPtr,
        bytes: &mut [u8; PIECE],
    ) -> Result<u64> {
        let len;
        if let Some(cpu) = attached.cpu() {
            len = limit;
            cpu.read(
                offset,
                bytes.get_mut(..usize::try_from(len)?).ok_or(EINVAL)?,
            )?;
        } else {
            let mut engine = self.edu.engine()?;
            engine.scrub(bytes)?;
            len = attached.with_piece(&self.edu, offset, limit, |piece| engine.read(piece))?;
            engine.store(bytes, usize::try_from(len)?)?;
        }

        let part = bytes.get(..usize::try_from(len)?).ok_or(EINVAL)?;
        UserSlice::new(user, part.len())
            .writer()
            .write_slice(part)?;
        Ok(len)
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

        let segments = self.with_attached(|attached| attached.table())?;

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
        if let Some(attached) = self.attached.lock().as_ref() {
            let state = attached.state()?;
            let counters = attached.counters();

            status.flags = uapi::EDU_PEER_ATTACHED;
            for (set, flag) in [
                (state.mapped, uapi::EDU_PEER_MAPPED),
                (state.pinned, uapi::EDU_PEER_IS_PINNED),
                (counters.revoked(), uapi::EDU_PEER_REVOKED),
                (state.iomem, uapi::EDU_PEER_IOMEM),
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
}

// The structures of the uAPI have no padding and are read and written field by field, in order.

fn reader<T>(arg: UserPtr) -> UserSliceReader {
    UserSlice::new(arg, size_of::<T>()).reader()
}

fn writer<T>(arg: UserPtr) -> UserSliceWriter {
    UserSlice::new(arg, size_of::<T>()).writer()
}
