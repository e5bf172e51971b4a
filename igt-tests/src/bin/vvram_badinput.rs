// SPDX-License-Identifier: GPL-2.0

//! Invalid and random arguments of all ioctls.

use std::collections::BTreeMap;

use vvram_tests::drm::{ioctl, ioctl_raw, Drm};
use vvram_tests::edu;
use vvram_tests::fixture::{share, works, Expect};
use vvram_tests::heap;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc::{self, Lcg};
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::uapi::{self, EduPeerAttach, EduPeerMeasure, EduPeerTable, EduPeerTransfer};
use vvram_tests::{check, check_eq, errno_name, expect_errno, fail, igt_main, Outcome, SysError};

const PAGE64: u64 = PAGE as u64;

/// Addresses at which this process has nothing mapped.
const NOWHERE: [u64; 5] = [
    0,
    16,
    0xffff_8000_0000_0000,
    0xffff_ffff_8100_0000,
    u64::MAX - 15,
];

/// Calls of the driver with an argument, and of the peer.
const DRM_CALLS: [u64; 12] = [
    uapi::VVRAM_GETPARAM,
    uapi::VVRAM_GEM_CREATE,
    uapi::VVRAM_GEM_MMAP_OFFSET,
    uapi::VVRAM_GEM_ATTACHMENTS,
    uapi::VVRAM_GEM_INFO,
    uapi::VVRAM_GEM_IMPORT_INFO,
    uapi::VVRAM_GEM_COPY,
    uapi::VVRAM_PEER_QUERY,
    uapi::VVRAM_VM_BIND,
    uapi::VVRAM_VM_READ,
    uapi::VVRAM_SVM_MIGRATE,
    uapi::VVRAM_SVM_EVICT,
];
const PEER_CALLS: [u64; 11] = [
    uapi::EDU_PEER_IOC_ATTACH,
    uapi::EDU_PEER_IOC_TRANSFER,
    uapi::EDU_PEER_IOC_TABLE,
    uapi::EDU_PEER_IOC_STATUS,
    uapi::EDU_PEER_IOC_SUBMIT,
    uapi::EDU_PEER_IOC_FINISH,
    uapi::EDU_PEER_IOC_MEASURE,
    uapi::EDU_PEER_IOC_MEMORY_REGISTER,
    uapi::EDU_PEER_IOC_MEMORY_TRANSFER,
    uapi::EDU_PEER_IOC_MEMORY_QUERY,
    uapi::EDU_PEER_IOC_MEMORY_MEASURE,
];

/// Numbers at which things tend to break.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    7,
    PAGE as u64 - 1,
    PAGE as u64,
    PAGE as u64 + 1,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 63,
    u64::MAX,
];

/// Counts the results, and fails on an error that no program should ever get.
#[derive(Debug, Default)]
struct Answers {
    seen: BTreeMap<String, u32>,
    odd: Vec<String>,
}

impl Answers {
    fn note(&mut self, result: Result<i32, SysError>, allowed: &[i32]) {
        let name = match result {
            Ok(_) => "success".to_string(),
            Err(error) => {
                if !allowed.contains(&error.errno) {
                    self.odd.push(error.to_string());
                }
                errno_name(error.errno)
            }
        };
        *self.seen.entry(name).or_default() += 1;
    }

    fn finish(&self) -> Outcome {
        println!("answers: {:?}", self.seen);
        check!(
            self.odd.is_empty(),
            "{} calls failed in ways that make no sense, such as: {}",
            self.odd.len(),
            self.odd[0]
        );
        check!(
            self.seen.len() > 3,
            "so few kinds of answers mean that little was tried: {:?}",
            self.seen
        );
        Ok(())
    }
}

fn drm_fuzz() -> Outcome {
    let mut random = Lcg::new(misc::nonce());
    let mut answers = Answers::default();
    let mut scratch = vec![0u64; 16 * 512];
    let allowed = [
        libc::EINVAL,
        libc::ENOENT,
        libc::ENOSPC,
        libc::EFAULT,
        libc::ENOMEM,
        libc::ENXIO,
        libc::E2BIG,
        libc::EEXIST,
        libc::EOPNOTSUPP,
        // SVM_MIGRATE of memory that cannot migrate.
        libc::EBUSY,
    ];
    for _ in 0..6 {
        let drm = Drm::open()?;
        for _ in 0..400 {
            let mut words = [0u64; 8];
            for word in &mut words {
                *word = match random.below(4) {
                    0 => random.word(),
                    1 => random.below(64) | random.below(4) << 32,
                    _ => random.pick(&EDGES),
                };
            }
            // The last number is that of no ioctl.
            let nr = random.below(13);
            match nr {
                // Mostly sizes that fit, so that handles exist.
                1 if random.below(2) == 0 => {
                    words[0] = 1 + random.below(0x8000);
                    words[1] = random.below(8) | random.below(2) << 32;
                    words[2] = 0;
                }
                1 if random.below(2) == 0 => {
                    words[1] = random.below(4) | random.below(4) << 32;
                    words[2] = 0;
                }
                2 | 4 | 5 if random.below(2) == 0 => {
                    words = [0; 8];
                    words[0] = random.below(16);
                }
                6 if random.below(2) == 0 => {
                    // Two objects, and pages inside of them; no fences, or bad ones.
                    words[0] = random.below(16) | random.below(16) << 32;
                    for word in &mut words[1..4] {
                        *word = random.below(4) * PAGE as u64;
                    }
                    words[4..].fill(0);
                    if random.below(2) == 0 {
                        for word in &mut words[4..6] {
                            *word = match random.below(3) {
                                0 => random.pick(&NOWHERE),
                                _ => scratch.as_mut_ptr() as u64,
                            };
                        }
                        words[6] = random.below(3) | random.pick(&[0, 1, 65]) << 32;
                        words[7] = random.pick(&[0, 23, 24, 32, 4096, 1 << 32 | 24]);
                    }
                }
                3 => {
                    // At most nine entries of 4096 bytes are written.
                    words[2] = match random.below(3) {
                        0 => random.pick(&NOWHERE),
                        _ => scratch.as_mut_ptr() as u64,
                    };
                    if random.below(2) == 0 {
                        words[0] = random.below(16) | random.pick(&[88, 96, 4096]) << 32;
                        words[1] = random.below(16);
                        words[3] = 0;
                    }
                }
                8 if random.below(2) == 0 => {
                    words = [0; 8];
                    words[0] = random.below(64) * PAGE as u64;
                    words[1] = (1 + random.below(3)) * PAGE as u64;
                    words[2] = random.below(3) * PAGE as u64;
                    words[3] = random.below(16) | random.below(2) << 32;
                }
                9 => {
                    // VM_READ writes to `scratch`, with a size that fits.
                    words[0] = random.below(64 * PAGE as u64);
                    words[1] = random.below(scratch.len() as u64 * 8);
                    words[2] = match random.below(3) {
                        0 => random.pick(&NOWHERE),
                        _ => scratch.as_mut_ptr() as u64,
                    };
                    words[3] = random.below(4);
                }
                10 | 11 if random.below(2) == 0 => {
                    // Parts of `scratch`, and the pages around it.
                    let start = scratch.as_ptr() as u64 & !(PAGE as u64 - 1);
                    words = [0; 8];
                    words[0] = start + random.below(18) * PAGE as u64;
                    words[1] = random.below(4) * PAGE as u64;
                    words[2] = random.pick(&[0, 0, 0, 1, 1 << 32]);
                }
                7 if random.below(2) == 0 => {
                    // A class of importer that can exist, on a bus that can exist.
                    let class = random.pick(&[0, 4, 0xc, 0x14, 0x1c]);
                    words = [0; 8];
                    words[0] = random.below(16) | class << 32;
                    words[1] = random.below(4) << 32 | random.below(16) << 43;
                }
                _ => {}
            }
            let size = random.pick(&[0, 4, 8, 16, 24, 32, 40, 56, 64]);
            let dir = random.pick(&[3, 3, 3, 3, 2, 1, 0]);
            let request = match DRM_CALLS.get(nr as usize) {
                Some(call) if random.below(3) > 0 => *call,
                _ => uapi::ioc(dir, u64::from(b'd'), uapi::DRM_COMMAND_BASE + nr, size),
            };
            // With another size or direction the kernel reads zeroes instead, so for
            // GEM_ATTACHMENTS the pointer is that of `scratch`, or null.
            let address = match random.below(10) {
                0 => random.pick(&NOWHERE),
                _ => words.as_mut_ptr() as u64,
            };
            // SAFETY: the kernel writes to `words`, to `scratch`, or to
            // addresses where nothing is mapped.
            let result = unsafe {
                ioctl_raw(drm.fd(), request, address, || {
                    format!("DRM ioctl {request:#x} with {words:x?}")
                })
            };
            answers.note(result, &allowed);
            if random.below(8) == 0 {
                let _ = drm.close(random.below(64) as u32);
            }
        }
    }
    answers.finish()?;
    works()
}

fn peer_fuzz() -> Outcome {
    let mut random = Lcg::new(misc::nonce());
    let mut answers = Answers::default();
    let mut scratch = vec![0u64; 4096];
    let drm = Drm::open()?;
    let shared = share(&drm, 1)?;
    let memory = Map::private(PAGE)?;
    let allowed = [
        libc::EINVAL,
        libc::EBADF,
        libc::EFAULT,
        libc::EBUSY,
        libc::ENOTTY,
        libc::EOPNOTSUPP,
    ];
    // Each transfer that moves a byte takes 300 ms.
    let mut moved = 0;
    for _ in 0..4 {
        let peer = Peer::open()?;
        for _ in 0..300 {
            let mut words = [0u64; 8];
            for word in &mut words {
                *word = match random.below(3) {
                    0 => random.word(),
                    _ => random.pick(&EDGES),
                };
            }
            let nr = 0xf + random.below(17);
            let size = match nr {
                0x10 => {
                    let fds = [shared.buffer.fd(), peer.fd(), drm.fd(), -1, i32::MIN, 9999];
                    let fd = match random.below(2) {
                        0 => shared.buffer.fd(),
                        _ => random.pick(&fds),
                    };
                    words[0] = u64::from(fd as u32) | random.below(7) << 32;
                    words[1] = random.pick(&[0, 0, 0, 1, u64::MAX]);
                    16
                }
                0x16 | 0x19 | 0x1a | 0x1e => {
                    // Inside the dma-buf or the memory of one page, or refused.
                    words[2] = match random.below(2) {
                        0 => random.pick(&NOWHERE),
                        _ => scratch.as_mut_ptr() as u64,
                    };
                    words[3] = random.pick(&[0, 1, 2, 1 << 32, 0xffff_ffff]);
                    if random.below(4) == 0 {
                        words[0] = random.below(PAGE as u64);
                        words[1] = random.below(PAGE as u64 - words[0]);
                    }
                    if moved > 25 {
                        words[0] = u64::MAX;
                    }
                    32
                }
                0x17 => {
                    words[0] = match random.below(2) {
                        0 => random.pick(&NOWHERE),
                        _ => scratch.as_mut_ptr() as u64,
                    };
                    words[1] = random.pick(&[0, 1, 64, 0xffff_ffff, 1 << 32]);
                    16
                }
                0x18 => 24,
                0x1b => {
                    words[0] = random.pick(&[0, 1, 2, 1 << 32, u64::MAX]);
                    32
                }
                0x1c => {
                    // One page of this process, or none, because the device writes to registered
                    // memory.
                    if random.below(2) == 0 {
                        words[0] = memory.address().as_ptr() as u64;
                        words[1] = PAGE64;
                    } else {
                        words[0] = random.pick(&NOWHERE) & !(PAGE64 - 1);
                        words[1] = random.pick(&EDGES);
                    }
                    16
                }
                0x0f => {
                    words[0] = random.below(2) * PAGE64;
                    words[1] = random.below(3) * PAGE64;
                    words[2] = random.below(5);
                    words[3..].fill(0);
                    40
                }
                0x1f => {
                    words[0] = random.below(2 * PAGE64);
                    words[1] = random.below(3);
                    words[2..].fill(0);
                    40
                }
                _ => 0,
            };
            let dir = match nr {
                0x0f | 0x10 | 0x16 | 0x17 | 0x19..=0x1b | 0x1e | 0x1f => 3,
                0x18 => 2,
                0x1c => 1,
                _ => 0,
            };
            let size = match random.below(12) {
                0 => random.pick(&[0, 8, 16, 40]),
                _ => size,
            };
            let request = uapi::ioc(dir, 0xed, nr, size);
            let address = match random.below(10) {
                0 => random.pick(&NOWHERE),
                _ => words.as_mut_ptr() as u64,
            };
            // SAFETY: the kernel writes to `words`, to `scratch` (less than
            // which is attached), or to addresses where nothing is mapped.
            let result = unsafe {
                ioctl_raw(peer.fd(), request, address, || {
                    format!("edu_peer ioctl {request:#x} with {words:x?}")
                })
            };
            if [0x16, 0x19, 0x1e].contains(&nr)
                && (result.is_ok() || result.as_ref().is_err_and(|e| e.errno == libc::EFAULT))
            {
                moved += 1;
            }
            answers.note(result, &allowed);
        }
    }
    answers.finish()?;
    let left = shared.object.attachments()?;
    check!(
        left.iter().all(|entry| entry.refused()),
        "attachments left over after all files were closed: {left:?}"
    );
    works()
}

fn drm_numbers() -> Outcome {
    let drm = Drm::open()?;
    let mut words = [0u64; 8];
    let address = words.as_mut_ptr() as u64;
    for nr in 12..0x60 {
        let request = uapi::ioc(3, u64::from(b'd'), uapi::DRM_COMMAND_BASE + nr, 16);
        // SAFETY: the kernel writes to `words`, if at all.
        let result = unsafe {
            ioctl_raw(drm.fd(), request, address, || {
                format!("DRM ioctl {request:#x}")
            })
        };
        expect_errno("a driver ioctl that does not exist", result, libc::EINVAL)?;
    }
    let request = uapi::ioc(3, u64::from(b'e'), uapi::DRM_COMMAND_BASE, 16);
    // SAFETY: as above.
    let result = unsafe { ioctl_raw(drm.fd(), request, address, || "ioctl of type e".to_string()) };
    expect_errno("an ioctl of another type", result, libc::ENOTTY)
}

fn peer_numbers() -> Outcome {
    let peer = Peer::open()?;
    let mut words = [0u64; 8];
    let address = words.as_mut_ptr() as u64;
    for nr in (0..0xf).chain(0x20..0x40) {
        for dir in 0..4 {
            let request = uapi::ioc(dir, 0xed, nr, 16);
            // SAFETY: the kernel writes to `words`, if at all.
            let result = unsafe {
                ioctl_raw(peer.fd(), request, address, || {
                    format!("edu_peer ioctl {request:#x}")
                })
            };
            expect_errno("an ioctl that does not exist", result, libc::ENOTTY)?;
        }
    }
    Ok(())
}

fn peer_attach() -> Outcome {
    let drm = Drm::open()?;
    let shared = share(&drm, 1)?;
    let peer = Peer::open()?;
    let good = EduPeerAttach {
        fd: shared.buffer.fd(),
        mode: uapi::EDU_PEER_MODE_DYNAMIC,
        size: 0,
    };
    for mode in [uapi::EDU_PEER_MODE_LATE + 1, 0x8000_0000, u32::MAX] {
        let mut argument = EduPeerAttach { mode, ..good };
        let result = peer.attach_raw(&mut argument);
        expect_errno("attaching in an unknown mode", result, libc::EINVAL)?;
    }
    for size in [1, PAGE as u64, u64::MAX] {
        let mut argument = EduPeerAttach { size, ..good };
        let result = peer.attach_raw(&mut argument);
        expect_errno("attaching with a nonzero size", result, libc::EINVAL)?;
    }
    for fd in [-1, 9999, i32::MIN] {
        let mut argument = EduPeerAttach { fd, ..good };
        let result = peer.attach_raw(&mut argument);
        expect_errno("attaching a bad fd", result, libc::EBADF)?;
    }
    for fd in [drm.fd(), peer.fd()] {
        let mut argument = EduPeerAttach { fd, ..good };
        let result = peer.attach_raw(&mut argument);
        expect_errno("attaching an fd that is no dma-buf", result, libc::EINVAL)?;
    }
    check!(
        shared.object.attachments()?.is_empty(),
        "bad input left a trace: {:?}",
        shared.object.attachments()?
    );
    Ok(())
}

fn peer_not_attached() -> Outcome {
    let peer = Peer::open()?;
    let mut data = [0u8; 8];
    let none = libc::EINVAL;
    expect_errno("detach of nothing", peer.detach(), none)?;
    expect_errno("pin of nothing", peer.pin(), none)?;
    expect_errno("unpin of nothing", peer.unpin(), none)?;
    expect_errno("map of nothing", peer.map(), none)?;
    expect_errno("unmap of nothing", peer.unmap(), none)?;
    expect_errno("table of nothing", peer.table(), none)?;
    expect_errno("timing of nothing", peer.measure(1), none)?;
    expect_errno("a read of nothing", peer.read(0, &mut data), none)?;
    expect_errno("a write to nothing", peer.write(0, &data), none)?;
    expect_errno("submit to nothing", peer.submit_read(0, 8), none)?;
    expect_errno("finish of nothing", peer.finish_read(&mut data), none)?;
    check!(
        peer.status()?.flags == 0,
        "status of nothing: {:?}",
        peer.status()?
    );
    Ok(())
}

fn peer_transfer() -> Outcome {
    Expect::get()?.need_route()?;
    let drm = Drm::open()?;
    let shared = share(&drm, 1)?;
    shared.map.set(0x1111_1111_1111_1111);
    let peer = Peer::open()?;
    peer.attach(&shared.buffer, Mode::Dynamic)?;
    // As long as the longest transfer that is tried, so that a transfer fails only because of its
    // bad field.
    let mut data = vec![0u8; 2 * PAGE];
    let good = EduPeerTransfer {
        offset: 0,
        length: 64,
        data: data.as_mut_ptr() as u64,
        direction: uapi::EDU_PEER_DIRECTION_WRITE,
        pad: 0,
    };
    for (direction, pad) in [(2, 0), (u32::MAX, 0), (0, 1), (1, 1 << 31)] {
        let mut argument = EduPeerTransfer {
            direction,
            pad,
            ..good
        };
        // SAFETY: the memory is ours and as long as it says.
        let result = unsafe { peer.transfer_raw(&mut argument) };
        expect_errno("a bad direction or pad", result, libc::EINVAL)?;
    }
    for address in NOWHERE {
        for direction in [
            uapi::EDU_PEER_DIRECTION_READ,
            uapi::EDU_PEER_DIRECTION_WRITE,
        ] {
            let mut argument = EduPeerTransfer {
                data: address,
                direction,
                ..good
            };
            // SAFETY: nothing is mapped there.
            let result = unsafe { peer.transfer_raw(&mut argument) };
            expect_errno(
                &format!("a transfer in direction {direction} at {address:#x}"),
                result,
                libc::EFAULT,
            )?;
        }
    }
    if let Err(mismatch) = shared.map.verify_value(0x1111_1111_1111_1111) {
        fail!("a refused transfer wrote to the buffer: {mismatch}");
    }
    peer.map()?;
    for (segments, pad, want) in [(16, 0, libc::EFAULT), (0, 1, libc::EINVAL)] {
        let mut table = EduPeerTable {
            segments,
            count: 1,
            pad,
        };
        let result = ioctl(peer.fd(), uapi::EDU_PEER_IOC_TABLE, &mut table, || {
            format!("EDU_PEER_IOC_TABLE(segments={segments}, pad={pad})")
        });
        expect_errno("a table at a bad address or with a pad", result, want)?;
    }
    expect_errno("timing of what is mapped", peer.measure(1), libc::EBUSY)?;
    bad_submits(&peer, &good)?;
    peer.unmap()?;
    for (rounds, pad, [least, most, clock]) in [
        (0, 0, [0; 3]),
        (uapi::EDU_PEER_MEASURE_MAX + 1, 0, [0; 3]),
        (1, 1, [0; 3]),
        (1, 0, [1, 0, 0]),
        (1, 0, [0, 1, 0]),
        (1, 0, [0, 0, 1 << 63]),
    ] {
        let mut measure = EduPeerMeasure {
            rounds,
            pad,
            least,
            most,
            clock,
        };
        let result = peer.measure_raw(&mut measure);
        expect_errno(
            "timing of no, too many or padded rounds, or with results",
            result,
            libc::EINVAL,
        )?;
    }
    let cost = peer.measure(3)?;
    check!(
        cost.clock < cost.least && cost.least <= cost.most,
        "times of a map and an unmap: {cost:?}"
    );
    check_eq!(
        peer.status()?.flags & uapi::EDU_PEER_STATUS_MAPPED,
        0,
        "mapped after it was timed"
    );
    Ok(())
}

/// SUBMIT and FINISH refuse bad arguments, and a transfer that is under way is not affected by
/// that.
fn bad_submits(peer: &Peer, good: &EduPeerTransfer) -> Outcome {
    let call = |request: u64, mut argument: EduPeerTransfer| {
        let what = format!("ioctl {request:#x} with {argument:x?}");
        ioctl(peer.fd(), request, &mut argument, || what).map(|_| ())
    };
    let (submit, finish) = (uapi::EDU_PEER_IOC_SUBMIT, uapi::EDU_PEER_IOC_FINISH);
    for (direction, pad) in [(2, 0), (u32::MAX, 0), (0, 1), (1, 1 << 31)] {
        let argument = EduPeerTransfer {
            direction,
            pad,
            ..*good
        };
        expect_errno(
            "submit with a bad direction or pad",
            call(submit, argument),
            libc::EINVAL,
        )?;
    }
    for (offset, length) in [
        (PAGE as u64, 1),
        (1, PAGE as u64),
        (u64::MAX, 2),
        (0, u64::MAX),
    ] {
        let argument = EduPeerTransfer {
            offset,
            length,
            ..*good
        };
        expect_errno(
            "submit outside of the buffer",
            call(submit, argument),
            libc::EINVAL,
        )?;
    }
    for data in NOWHERE {
        let argument = EduPeerTransfer { data, ..*good };
        expect_errno(
            "submit of what is at a bad address",
            call(submit, argument),
            libc::EFAULT,
        )?;
    }
    expect_errno("finish of nothing", call(finish, *good), libc::EINVAL)?;
    let slow = edu::slow()?;
    peer.submit_read(0, 64)?;
    let busy = libc::EBUSY;
    expect_errno("a second submit", peer.submit_read(0, 64), busy)?;
    expect_errno("unmap during a transfer", peer.unmap(), busy)?;
    expect_errno(
        "a transfer during a transfer",
        peer.read(0, &mut [0; 8]),
        busy,
    )?;
    let mut data = [0u8; 64];
    let read = EduPeerTransfer {
        data: data.as_mut_ptr() as u64,
        direction: uapi::EDU_PEER_DIRECTION_READ,
        ..*good
    };
    let write = EduPeerTransfer {
        direction: uapi::EDU_PEER_DIRECTION_WRITE,
        ..read
    };
    let elsewhere = EduPeerTransfer { offset: 1, ..read };
    for (what, argument) in [("the other direction", write), ("an offset", elsewhere)] {
        expect_errno(what, call(finish, argument), libc::EINVAL)?;
    }
    for address in NOWHERE {
        let nowhere = EduPeerTransfer {
            data: address,
            ..read
        };
        expect_errno(
            "finish at a bad address",
            call(finish, nowhere),
            libc::EFAULT,
        )?;
    }
    // The refused calls have not taken the result, and neither does the first FINISH.
    for _ in 0..2 {
        data.fill(0);
        peer.finish_read(&mut data)?;
        check_eq!(
            data,
            [0x11; 64],
            "what was submitted, after all that was refused"
        );
    }
    drop(slow);
    // FINISH copies no more bytes than the length on input.
    peer.submit_read(0, 64)?;
    let mut data = [0u8; 64];
    let moved = peer.finish_read(&mut data[..16])?;
    check_eq!(moved, 64, "bytes moved");
    check_eq!(data[..16], [0x11; 16], "what there was room for");
    check_eq!(data[16..], [0; 48], "what is behind that");
    Ok(())
}

/// Fields that must be zero, one after the other, and unknown flags.
fn drm_fields() -> Outcome {
    let drm = Drm::open()?;
    let object = drm.create(PAGE as u64)?;
    let handle = object.handle();
    let size = PAGE as u32;
    let import = drm.import(&heap::allocate(PAGE as u64)?)?;
    let imported = import.handle();
    // Valid arguments, as words of 32 bits, and the indices of words that must be zero.
    let memory = Map::private(PAGE)?;
    let address = memory.page_address(0);
    let range = vec![address as u32, (address >> 32) as u32, size, 0, 0, 0];
    let calls: [(u64, Vec<u32>, std::ops::Range<usize>); 8] = [
        (uapi::VVRAM_GETPARAM, vec![0; 4], 1..4),
        (uapi::VVRAM_GEM_CREATE, vec![size, 0, 1, 0, 0, 0], 4..6),
        (uapi::VVRAM_GEM_MMAP_OFFSET, vec![handle, 0, 0, 0], 1..4),
        (
            uapi::VVRAM_GEM_INFO,
            [vec![handle], vec![0; 9]].concat(),
            1..10,
        ),
        (
            uapi::VVRAM_GEM_IMPORT_INFO,
            vec![imported, 0, 0, 0, 0, 0],
            1..6,
        ),
        (uapi::VVRAM_GEM_COPY, vec![0; 16], 15..16),
        (uapi::VVRAM_SVM_MIGRATE, range.clone(), 4..6),
        (uapi::VVRAM_SVM_EVICT, range, 4..6),
    ];
    for (request, good, zero) in calls {
        let call = |mut words: Vec<u32>| {
            let what = format!("{request:#x} with {words:x?}");
            // SAFETY: the argument has the size that the request says.
            unsafe { ioctl_raw(drm.fd(), request, words.as_mut_ptr() as u64, || what) }
        };
        // A copy without an object shows that the flags are checked first.
        match request {
            uapi::VVRAM_GEM_COPY => {
                expect_errno("no object", call(good.clone()), libc::ENOENT)?;
            }
            _ => drop(call(good.clone())?),
        }
        for index in zero {
            for value in [1, 1 << 31] {
                let mut bad = good.clone();
                bad[index] = value;
                let what = format!("word {index} of {request:#x} is {value:#x}");
                expect_errno(&what, call(bad), libc::EINVAL)?;
            }
        }
    }
    Ok(())
}

fn bad_pointers() -> Outcome {
    let drm = Drm::open()?;
    let peer = Peer::open()?;
    let drm_calls = DRM_CALLS.map(|call| (drm.fd(), call));
    let peer_calls = PEER_CALLS.map(|call| (peer.fd(), call));
    for (fd, request) in drm_calls.into_iter().chain(peer_calls) {
        for address in NOWHERE {
            // SAFETY: nothing is mapped there.
            let result = unsafe {
                ioctl_raw(fd, request, address, || {
                    format!("ioctl {request:#x} at {address:#x}")
                })
            };
            expect_errno("an argument at a bad address", result, libc::EFAULT)?;
        }
    }
    Ok(())
}

igt_main! {
    "drm-fuzz", "2400 random calls, then everything works", drm_fuzz;
    "peer-fuzz", "1200 random calls, then everything works", peer_fuzz;
    "drm-fields", "EINVAL for fields that must be zero and are not", drm_fields;
    "drm-numbers", "EINVAL for driver ioctls that do not exist", drm_numbers;
    "peer-numbers", "ENOTTY for peer ioctls that do not exist", peer_numbers;
    "peer-attach", "bad modes, fds and fields", peer_attach;
    "peer-not-attached", "EINVAL for everything but status", peer_not_attached;
    "peer-transfer", "bad directions, pads and addresses, of what is submitted too", peer_transfer;
    "bad-pointers", "EFAULT for every argument", bad_pointers;
}
