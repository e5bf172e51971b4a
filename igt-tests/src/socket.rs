// SPDX-License-Identifier: GPL-2.0

//! Passing fds over unix sockets.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::SysError;

/// Two connected unix sockets.
pub fn sockets() -> Result<(OwnedFd, OwnedFd), SysError> {
    let mut fds = [0; 2];
    // SAFETY: the pointer is valid for a write of two ints.
    let result = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) };
    if result < 0 {
        return Err(SysError::last("socketpair()"));
    }
    // SAFETY: the kernel made two new fds that nothing else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Room for the control message of one fd, aligned for its header.
type Control = [u64; 8];

/// Calls sendmsg or recvmsg with one byte and room for one fd.
fn with_message<R>(control: &mut Control, call: impl FnOnce(&mut libc::msghdr) -> R) -> R {
    let mut byte = b'f';
    let mut part = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: plain arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    call(&mut message)
}

/// Sends an fd.
pub fn send_fd(socket: &OwnedFd, fd: i32) -> Result<(), SysError> {
    let mut control: Control = [0; 8];
    with_message(&mut control, |message| {
        // SAFETY: the control buffer has room for one header and one fd.
        let count = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
            libc::sendmsg(socket.as_raw_fd(), message, 0)
        };
        if count < 0 {
            return Err(SysError::last("sendmsg(SCM_RIGHTS)"));
        }
        Ok(())
    })
}

/// Receives an fd.
///
/// # Errors
///
/// Any error of recvmsg(2), or a message without an fd.
pub fn receive_fd(socket: &OwnedFd) -> Result<OwnedFd, SysError> {
    let mut control: Control = [0; 8];
    with_message(&mut control, |message| {
        // SAFETY: the message points to room for one byte and one fd.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) };
        if count != 1 {
            return Err(SysError::last("recvmsg()"));
        }
        // SAFETY: the kernel filled the control buffer in.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
                return Err(SysError::new("recvmsg() without an fd, which", 0));
            }
            let fd = libc::CMSG_DATA(header).cast::<i32>().read_unaligned();
            Ok(OwnedFd::from_raw_fd(fd))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn an_fd_arrives() {
        let (ours, theirs) = sockets().unwrap();
        let file = File::open("/proc/self/comm").unwrap();
        send_fd(&ours, file.as_raw_fd()).unwrap();
        drop(file);
        let mut text = String::new();
        let mut file = File::from(receive_fd(&theirs).unwrap());
        file.read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
    }
}
