// SPDX-License-Identifier: GPL-2.0

//! Unix sockets whose messages carry file descriptors.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::ptr;

/// The maximum number of descriptors in one message.
pub const DESCRIPTORS: usize = 8;
/// Room for their control message: its header, and then the descriptors.
const CONTROL: usize = 64;

/// A buffer for control messages, aligned as those are.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

const _: () = {
    let room = mem::size_of::<libc::cmsghdr>() + DESCRIPTORS * mem::size_of::<RawFd>();
    assert!(room <= CONTROL);
    assert!(mem::align_of::<libc::cmsghdr>() <= mem::align_of::<Control>());
};

/// Sends all bytes of a slice, with a descriptor beside the first one.
pub fn send(stream: &UnixStream, data: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut sent = 0;
    while sent < data.len() {
        let beside = fd.filter(|_| sent == 0);
        match send_some(stream, &data[sent..], beside) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            other => sent += other?,
        }
    }
    Ok(())
}

fn send_some(stream: &UnixStream, data: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let mut message = empty(&mut part);
    if let Some(fd) = fd {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: This only computes.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(mem::size_of::<RawFd>() as u32) } as _;
        // SAFETY: The control buffer has room for one header and one descriptor, see the assertion
        // above, so that the first header is there and may be written.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(mem::size_of::<RawFd>() as u32) as _;
            ptr::write_unaligned(libc::CMSG_DATA(header).cast(), fd.as_raw_fd());
        }
    }
    // SAFETY: The message names buffers that live until the end of the call.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Fills a buffer, and adds the descriptors that came with it.
///
/// Returns false if the other side closed the connection before the first byte.
pub fn receive(stream: &UnixStream, to: &mut [u8], files: &mut Vec<File>) -> io::Result<bool> {
    let mut got = 0;
    while got < to.len() {
        match receive_some(stream, &mut to[got..], files) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Ok(0) if got == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            other => got += other?,
        }
    }
    Ok(true)
}

/// Ends a connection so that the other side reads its end.
///
/// A socket that is closed with unread data makes the read of the other side fail with ECONNRESET
/// instead, for which QEMU sets its error twice and then fails an assertion.
pub fn end(stream: &UnixStream) {
    // Nothing more arrives after this.
    let _ = stream.shutdown(Shutdown::Both);
    let (mut unread, mut files) = ([0; 4096], Vec::new());
    loop {
        match receive_some(stream, &mut unread, &mut files) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Ok(1..) => (),
            _ => return,
        }
    }
}

fn receive_some(stream: &UnixStream, to: &mut [u8], files: &mut Vec<File>) -> io::Result<usize> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let mut message = empty(&mut part);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    // SAFETY: The message names buffers that live until the end of the call.
    let got = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: The kernel has filled the control buffer, whose headers say how long each message is.
    // The descriptors in it are new and have no other owner.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data: *const RawFd = libc::CMSG_DATA(header).cast();
                for i in 0..bytes / mem::size_of::<RawFd>() {
                    files.push(File::from_raw_fd(ptr::read_unaligned(data.add(i))));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(got)
}

/// A message of one part, without control messages.
fn empty(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: All of its fields are numbers and pointers that may be zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::io::Seek;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_arrives_beside_its_message() {
        let (here, there) = UnixStream::pair().unwrap();
        let memory = crate::memory::Memory::shared(c"test", 4096).unwrap();
        let mut file = File::from(memory.file().unwrap().try_clone_to_owned().unwrap());
        file.write_all(b"content").unwrap();
        send(&here, b"first", None).unwrap();
        send(&here, b"second", Some(file.as_fd())).unwrap();
        let (mut text, mut files) = ([0; 5], Vec::new());
        assert!(receive(&there, &mut text, &mut files).unwrap());
        assert_eq!((&text, files.len()), (b"first", 0));
        let mut text = [0; 6];
        assert!(receive(&there, &mut text, &mut files).unwrap());
        assert_eq!((&text, files.len()), (b"second", 1));
        let mut content = [0; 7];
        files[0].rewind().unwrap();
        files[0].read_exact(&mut content).unwrap();
        assert_eq!(&content, b"content");
    }

    #[test]
    fn an_end_between_messages_is_no_error() {
        let (here, there) = UnixStream::pair().unwrap();
        here.shutdown(Shutdown::Both).unwrap();
        assert!(!receive(&there, &mut [0; 4], &mut Vec::new()).unwrap());
    }

    #[test]
    fn an_end_with_unread_data_is_no_error() {
        let read_after = |ends: bool| {
            let (here, there) = UnixStream::pair().unwrap();
            send(&there, b"unread", None).unwrap();
            if ends {
                end(&here);
            }
            drop(here);
            receive(&there, &mut [0; 4], &mut Vec::new()).map_err(|error| error.kind())
        };
        assert_eq!(read_after(false), Err(io::ErrorKind::ConnectionReset));
        assert_eq!(read_after(true), Ok(false));
    }

    #[test]
    fn an_end_inside_of_a_message_is_one() {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, b"ab", None).unwrap();
        drop(here);
        let error = receive(&there, &mut [0; 4], &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
