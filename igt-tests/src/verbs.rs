// SPDX-License-Identifier: GPL-2.0

//! RDMA devices: memory regions, and two connected queue pairs that move bytes between them.
//!
//! A thin layer over libibverbs, for one process that has both sides of a connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::mem;
use std::net::Ipv6Addr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::thread;
use std::time::{Duration, Instant};

use crate::map::Map;
use crate::misc;
use crate::pci::PciDevice;
use crate::{Outcome, Stop, SysError};

/// What bindgen makes of infiniband/verbs.h.
mod sys {
    #![allow(
        clippy::all,
        dead_code,
        missing_debug_implementations,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        unsafe_op_in_unsafe_fn
    )]

    include!(concat!(env!("OUT_DIR"), "/verbs.rs"));

    // The linker drops it from programs that do not use it.
    #[link(name = "ibverbs")]
    extern "C" {
        // The header calls the provider instead, and the provider of rxe does not implement this
        // call.
        pub fn ibv_cmd_advise_mr(
            pd: *mut ibv_pd,
            advice: ib_uverbs_advise_mr_advice,
            flags: u32,
            sg_list: *mut ibv_sge,
            num_sge: u32,
        ) -> i32;
    }
}

const DEVICES: &str = "/sys/class/infiniband";
/// Only the first port is used.
const PORT: u8 = 1;
const ROCE_V2: &str = "RoCE v2";
/// How long a device may take to appear, or to get an address.
const APPEARS: Duration = Duration::from_secs(5);
/// How long the completion of a receiver may take after the sender has failed.
const RECEIVER_SAYS_WHY: Duration = Duration::from_secs(1);
/// Reads and atomic operations that may be under way at once.
const READS: i32 = 8;
const HOP_LIMIT: u8 = 64;
/// The queue pair that makes the requests.
const REQUESTER: usize = 0;
/// The queue pair that responds, or receives.
const RESPONDER: usize = 1;
/// Entries of the receive queue.
const RECEIVES: u32 = 64;

/// The device may write on behalf of local requests.
pub const LOCAL_WRITE: u32 = sys::IBV_ACCESS_LOCAL_WRITE;
/// Remote requests may write.
pub const REMOTE_WRITE: u32 = sys::IBV_ACCESS_REMOTE_WRITE;
/// Remote requests may read.
pub const REMOTE_READ: u32 = sys::IBV_ACCESS_REMOTE_READ;
/// Remote requests may do atomic operations.
pub const REMOTE_ATOMIC: u32 = sys::IBV_ACCESS_REMOTE_ATOMIC;

/// Converts the result of a call that returns an error number.
fn check(result: i32, what: impl FnOnce() -> String) -> Result<(), SysError> {
    match result {
        0 => Ok(()),
        // Some return -1 and leave the number in errno.
        -1 => Err(SysError::last(what())),
        errno => Err(SysError::new(what(), errno.abs())),
    }
}

/// Converts the result of a call that returns a pointer.
fn check_ptr<T>(result: *mut T, what: impl FnOnce() -> String) -> Result<NonNull<T>, SysError> {
    NonNull::new(result).ok_or_else(|| SysError::last(what()))
}

/// The list of devices that libibverbs knows.
struct Devices {
    list: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl Devices {
    fn new() -> Result<Self, SysError> {
        let mut count = 0;
        // SAFETY: the pointer is valid for a write of an int.
        let list = unsafe { sys::ibv_get_device_list(&raw mut count) };
        Ok(Self {
            list: check_ptr(list, || "ibv_get_device_list()".to_string())?,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    /// The devices and their names.
    fn names(&self) -> Vec<(*mut sys::ibv_device, String)> {
        let entry = |index| {
            // SAFETY: the list has that many devices, and lives as long as self.
            let device = unsafe { *self.list.as_ptr().add(index) };
            // SAFETY: the device is one of the list. Its name is a string of its own.
            let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
            (device, name.to_string_lossy().into_owned())
        };
        (0..self.count).map(entry).collect()
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list(), and nothing refers to it any more.
        unsafe { sys::ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// An open device.
#[derive(Debug)]
struct Context(NonNull<sys::ibv_context>);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was opened, and nothing uses it any more. An error is ignored.
        unsafe { sys::ibv_close_device(self.0.as_ptr()) };
    }
}

/// A protection domain.
#[derive(Debug)]
struct Domain(NonNull<sys::ibv_pd>);

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions and queue pairs borrow from the device that has the domain: all of
        // them are gone.
        unsafe { sys::ibv_dealloc_pd(self.0.as_ptr()) };
    }
}

/// An RDMA device, with a protection domain and an address.
#[derive(Debug)]
pub struct Nic {
    // Dropped before the device that it belongs to.
    domain: Domain,
    context: Context,
    name: String,
    gid_index: u8,
    gid: [u8; 16],
    atomics: bool,
    reads: u8,
}

/// A file of a device, without the end of its line.
fn attribute(name: &str, file: &str) -> Option<String> {
    let path = Path::new(DEVICES).join(name).join(file);
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

/// An address such as 0000:0000:0000:0000:0000:ffff:c0a8:0001, if it stands for one of IPv4.
fn mapped_gid(text: &str) -> Option<[u8; 16]> {
    let address: Ipv6Addr = text.trim().parse().ok()?;
    address.to_ipv4_mapped()?;
    Some(address.octets())
}

/// The first address of RoCE v2 and IPv4 of a device, and its index.
fn find_gid(name: &str) -> Option<(u8, [u8; 16])> {
    // A request can name only the first 256.
    (0..=u8::MAX).find_map(|index| {
        let file = |folder: &str| attribute(name, &format!("ports/{PORT}/{folder}/{index}"));
        if file("gid_attrs/types")? != ROCE_V2 {
            return None;
        }
        Some((index, mapped_gid(&file("gids")?)?))
    })
}

impl Nic {
    /// Opens a device by its name, or the first one there is.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it is not there, has no address, or cannot be opened.
    #[track_caller]
    pub fn open(name: Option<&str>) -> Result<Self, Stop> {
        let mut error = None;
        let found = misc::poll(APPEARS, || match Self::find(name) {
            Ok(found) => found,
            Err(last) => {
                error = Some(last);
                None
            }
        });
        match (found, error, name) {
            (Some((name, context)), ..) => Self::prepare(name, context),
            (None, Some(error), _) => Err(error.into()),
            (None, None, Some(name)) => Err(Stop::fail(format_args!(
                "there is no RDMA device {name}: \"rdma link\" lists those that are there"
            ))),
            (None, None, None) => Err(Stop::fail(
                "there is no RDMA device: are its driver and ib_uverbs loaded, was rxe added to a \
                 link?",
            )),
        }
    }

    /// Opens a device if it is there right now.
    fn find(name: Option<&str>) -> Result<Option<(String, Context)>, SysError> {
        let devices = match Devices::new() {
            Ok(devices) => devices,
            // The error without ib_uverbs.
            Err(error) if error.errno == libc::ENOSYS => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut names = devices.names().into_iter();
        let found = names.find(|(_, seen)| name.is_none_or(|name| name == seen));
        let Some((device, name)) = found else {
            return Ok(None);
        };
        // SAFETY: the device is one of the list, which is still there.
        let context = unsafe { sys::ibv_open_device(device) };
        let context = Context(check_ptr(context, || format!("ibv_open_device({name})"))?);
        Ok(Some((name, context)))
    }

    #[track_caller]
    fn prepare(name: String, context: Context) -> Result<Self, Stop> {
        let device = context.0.as_ptr();
        // SAFETY: all-zero is a valid value of a structure of numbers.
        let mut limits: sys::ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the device is open, and the structure valid for a write.
        let result = unsafe { sys::ibv_query_device(device, &raw mut limits) };
        check(result, || format!("ibv_query_device({name})"))?;
        let Some((gid_index, gid)) = misc::poll(APPEARS, || find_gid(&name)) else {
            fail!(
                "port {PORT} of {name} has no address of {ROCE_V2} and IPv4: has its network \
                 device one?"
            );
        };
        let state = format!("ports/{PORT}/state");
        let active = misc::poll(APPEARS, || {
            attribute(&name, &state)?.ends_with("ACTIVE").then_some(())
        });
        check!(
            active.is_some(),
            "port {PORT} of {name} is not active but {:?}: is the link of its network device \
                 up?",
            attribute(&name, &state)
        );
        // SAFETY: the device is open.
        let domain = unsafe { sys::ibv_alloc_pd(device) };
        let domain = Domain(check_ptr(domain, || format!("ibv_alloc_pd({name})"))?);
        let reads = limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom);
        Ok(Self {
            domain,
            context,
            name,
            gid_index,
            gid,
            atomics: limits.atomic_cap != sys::IBV_ATOMIC_NONE,
            reads: reads.clamp(1, READS) as u8,
        })
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index of the address that its queue pairs use.
    pub fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// Whether it has atomic operations.
    pub fn atomics(&self) -> bool {
        self.atomics
    }

    /// Every access that the device has, for regions.
    pub fn all_access(&self) -> u32 {
        LOCAL_WRITE | self.remote_access()
    }

    /// The access of remote requests.
    fn remote_access(&self) -> u32 {
        let atomic = if self.atomics { REMOTE_ATOMIC } else { 0 };
        REMOTE_WRITE | REMOTE_READ | atomic
    }

    /// Name of its network device.
    pub fn netdev(&self) -> Option<String> {
        let ndev = format!("ports/{PORT}/gid_attrs/ndevs/{}", self.gid_index);
        // Software devices have the attribute `parent`.
        let mut names = ["parent", &ndev].map(|file| attribute(&self.name, file));
        let found = names.iter_mut().find(|name| name.as_deref() > Some(""));
        found?.take()
    }

    /// Its PCI device, or that of its network device.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there is none.
    #[track_caller]
    pub fn pci(&self) -> Result<PciDevice, Stop> {
        let own = Path::new(DEVICES).join(&self.name).join("device");
        let netdev = self.netdev();
        let below = netdev.as_ref().map_or_else(PathBuf::new, |name| {
            Path::new("/sys/class/net").join(name).join("device")
        });
        let found = PciDevice::above(&own).or_else(|| PciDevice::above(&below));
        found.ok_or_else(|| {
            Stop::fail(format_args!(
                "{} is no PCI device, and its network device {netdev:?} is below none",
                self.name
            ))
        })
    }

    /// Registers a part of a dma-buf.
    ///
    /// Requests address it from `iova` on, or from `offset` on if there is no `iova`. Both must
    /// have the same offset in a page.
    ///
    /// # Errors
    ///
    /// Any error of the call: of the device, or of the exporter.
    pub fn register(
        &self,
        fd: RawFd,
        offset: u64,
        len: u64,
        iova: Option<u64>,
        access: u32,
    ) -> Result<Region<'_>, SysError> {
        let iova = iova.unwrap_or(offset);
        // SAFETY: the domain exists. The kernel checks the other arguments.
        let region = unsafe {
            sys::ibv_reg_dmabuf_mr(
                self.domain.0.as_ptr(),
                offset,
                len as usize,
                iova,
                fd,
                access as i32,
            )
        };
        let region = check_ptr(region, || {
            format!(
                "ibv_reg_dmabuf_mr({}, offset={offset:#x}, len={len:#x}, iova={iova:#x}, fd={fd}, \
                 access={access:#x})",
                self.name
            )
        })?;
        Ok(Region::new(region, iova))
    }

    /// Registers all of a mapping of memory.
    ///
    /// Except for on-demand regions the kernel pins the pages that the mapping has now.
    ///
    /// # Errors
    ///
    /// Any error of the call; EFAULT where the pages cannot be pinned.
    pub fn register_memory(&self, map: &Map, access: u32) -> Result<Region<'_>, SysError> {
        let (base, len) = (map.address(), map.len());
        // SAFETY: the domain is there. What the device writes to is accessed with volatile
        // accesses only, and is this memory as long as it can write.
        let region = unsafe {
            sys::ibv_reg_mr(
                self.domain.0.as_ptr(),
                base.as_ptr().cast(),
                len,
                access as i32,
            )
        };
        let region = check_ptr(region, || {
            format!(
                "ibv_reg_mr({}, len={len:#x}, access={access:#x})",
                self.name
            )
        })?;
        Ok(Region::new(region, base.as_ptr() as u64))
    }
}

/// A registered memory region, deregistered when dropped.
#[derive(Debug)]
pub struct Region<'nic> {
    region: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    iova: u64,
    nic: PhantomData<&'nic Nic>,
}

/// A region, and an offset in it.
///
/// The offset may be outside of the region, for requests that must fail.
pub type At<'a> = (&'a Region<'a>, u64);

impl Region<'_> {
    fn new(region: NonNull<sys::ibv_mr>, iova: u64) -> Self {
        // SAFETY: it was registered just now.
        let (lkey, rkey) = unsafe { ((*region.as_ptr()).lkey, (*region.as_ptr()).rkey) };
        Self {
            region,
            lkey,
            rkey,
            iova,
            nic: PhantomData,
        }
    }

    /// Makes the device prefetch the pages of its first bytes, and waits for that
    /// (`ibv_advise_mr()`).
    ///
    /// # Errors
    ///
    /// Any error of the call; `EINVAL` if the region is one without on-demand paging.
    pub fn prefetch(&self, len: u32) -> Result<(), SysError> {
        let mut sge = sys::ibv_sge {
            addr: self.iova,
            length: len,
            lkey: self.lkey,
        };
        // SAFETY: the region is there, and so is its domain; the list has one element.
        let result = unsafe {
            sys::ibv_cmd_advise_mr(
                (*self.region.as_ptr()).pd,
                sys::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
                sys::IB_UVERBS_ADVISE_MR_FLAG_FLUSH,
                &mut sge,
                1,
            )
        };
        check(result, || format!("ibv_advise_mr(lkey={:#x})", self.lkey))
    }

    /// Deregisters it and reports errors, which dropping does not.
    pub fn close(self) -> Result<(), SysError> {
        let this = mem::ManuallyDrop::new(self);
        // SAFETY: it was registered, and is used no more.
        let result = unsafe { sys::ibv_dereg_mr(this.region.as_ptr()) };
        check(result, || format!("ibv_dereg_mr(lkey={:#x})", this.lkey))
    }
}

impl<'nic> AsRef<Region<'nic>> for Region<'nic> {
    fn as_ref(&self) -> &Region<'nic> {
        self
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // SAFETY: it was registered, and is used no more. The device may be gone, and the region
        // with it.
        unsafe { sys::ibv_dereg_mr(self.region.as_ptr()) };
    }
}

/// How a work request ended, `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// It has succeeded.
    pub const SUCCESS: Self = Self(sys::IBV_WC_SUCCESS);
    /// No access to the local region.
    pub const LOCAL_PROTECTION: Self = Self(sys::IBV_WC_LOC_PROT_ERR);
    /// The local request is invalid.
    pub const LOCAL_OPERATION: Self = Self(sys::IBV_WC_LOC_QP_OP_ERR);
    /// It was not tried, because the queue pair had an error before.
    pub const FLUSHED: Self = Self(sys::IBV_WC_WR_FLUSH_ERR);
    /// No access to the region of the other side.
    pub const REMOTE_ACCESS: Self = Self(sys::IBV_WC_REM_ACCESS_ERR);
    /// The other side does not answer.
    pub const NO_ANSWER: Self = Self(sys::IBV_WC_RETRY_EXC_ERR);
    /// The other side could not complete it.
    pub const REMOTE_OPERATION: Self = Self(sys::IBV_WC_REM_OP_ERR);

    /// Its name in libibverbs.
    pub fn name(self) -> String {
        // SAFETY: any number is allowed, and the string is a constant.
        let name = unsafe { sys::ibv_wc_status_str(self.0) };
        if name.is_null() {
            return "unknown".to_string();
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Why a work request has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It could not be posted, or polling has failed.
    Call(SysError),
    /// It has not completed in time.
    Hang {
        /// The request.
        what: String,
        /// The time it had.
        limit: Duration,
    },
    /// It completed with an error.
    Status {
        /// The request.
        what: String,
        /// The error of the side with the request.
        requester: Status,
        /// The status of the other side, if that has a completion.
        receiver: Option<Status>,
    },
    /// It completed, with fewer or more bytes than were sent.
    Length {
        /// The request.
        what: String,
        /// Bytes that were received.
        seen: u32,
    },
}

impl Failure {
    /// The status of the side with the request.
    pub fn requester(&self) -> Option<Status> {
        match self {
            Self::Status { requester, .. } => Some(*requester),
            _ => None,
        }
    }

    /// The status of the side that received.
    pub fn receiver(&self) -> Option<Status> {
        match self {
            Self::Status { receiver, .. } => *receiver,
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(error) => error.fmt(f),
            Self::Hang { what, limit } => {
                let seconds = limit.as_secs_f64();
                write!(f, "{what}: no completion within {seconds} s: hang")
            }
            Self::Status {
                what,
                requester,
                receiver: None,
            } => write!(f, "{what}: {requester}"),
            Self::Status {
                what,
                requester,
                receiver: Some(receiver),
            } => write!(
                f,
                "{what}: the sender has {requester}, the receiver {receiver}"
            ),
            Self::Length { what, seen } => write!(f, "{what}: {seen} bytes were received"),
        }
    }
}

impl From<SysError> for Failure {
    fn from(error: SysError) -> Self {
        Self::Call(error)
    }
}

impl From<Failure> for Stop {
    #[track_caller]
    fn from(failure: Failure) -> Self {
        Self::fail(failure)
    }
}

/// Expects a request to complete with one of several errors on its own side.
///
/// # Errors
///
/// Fails the subtest if it succeeded or failed in another way.
#[track_caller]
pub fn expect_status(what: &str, result: Result<(), Failure>, want: &[Status]) -> Outcome {
    let names = || {
        let names: Vec<_> = want.iter().map(Status::to_string).collect();
        names.join(" or ")
    };
    match result {
        Err(failure) if failure.requester().is_some_and(|s| want.contains(&s)) => Ok(()),
        Err(failure) => Err(Stop::fail(format_args!(
            "{what}: expected {}, but {failure}",
            names()
        ))),
        Ok(()) => Err(Stop::fail(format_args!(
            "{what}: expected {}, but it succeeded",
            names()
        ))),
    }
}

/// How two queue pairs are connected.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of a packet: a power of two from 256 to 4096.
    pub mtu: u32,
    /// Requests that may be under way at once.
    pub depth: u32,
    /// Entries of the completion queue of each side.
    pub completions: u32,
    /// A packet is lost after 4.096 µs times two to this power.
    pub timeout: u8,
    /// How often a packet that was lost is sent again, at most 7.
    pub retries: u8,
    /// How long a request may take.
    pub limit: Duration,
}

impl Default for Config {
    /// With these values a dead peer (detected after a little more than 2 s) can be told from a
    /// request that hangs (10 s).
    fn default() -> Self {
        Self {
            mtu: 1024,
            depth: 128,
            completions: 128,
            timeout: 16 + misc::slower().ilog2() as u8,
            retries: 7,
            limit: Duration::from_secs(10) * misc::slower(),
        }
    }
}

/// The code of an MTU.
fn mtu_code(mtu: u32) -> Option<sys::ibv_mtu> {
    Some(match mtu {
        256 => sys::IBV_MTU_256,
        512 => sys::IBV_MTU_512,
        1024 => sys::IBV_MTU_1024,
        2048 => sys::IBV_MTU_2048,
        4096 => sys::IBV_MTU_4096,
        _ => return None,
    })
}

/// A completion queue.
#[derive(Debug)]
struct Queue(NonNull<sys::ibv_cq>);

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue pair that used it is gone.
        unsafe { sys::ibv_destroy_cq(self.0.as_ptr()) };
    }
}

/// A queue pair.
#[derive(Debug)]
struct QueuePair(NonNull<sys::ibv_qp>);

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { sys::ibv_destroy_qp(self.0.as_ptr()) };
    }
}

/// One side of a connection.
#[derive(Debug)]
struct End {
    // Dropped before the completion queue that it uses.
    pair: QueuePair,
    queue: Queue,
    pending: Cell<u32>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
struct Completion {
    status: Status,
    len: u32,
}

/// A request that was posted, to wait for.
#[derive(Debug)]
#[must_use = "its completion says whether it failed"]
pub struct Ticket {
    id: u64,
    end: usize,
    what: &'static str,
    len: u32,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.what, self.len)
    }
}

/// A request to post.
struct Request<'a> {
    what: &'static str,
    opcode: sys::ibv_wr_opcode,
    local: At<'a>,
    len: u32,
    remote: sys::ibv_send_wr__bindgen_ty_2,
}

/// Two queue pairs of a device that are connected to each other.
///
/// After a failure both are in the error state of RDMA: further requests are flushed, and a new
/// pair is needed.
#[derive(Debug)]
pub struct Pair<'nic> {
    nic: &'nic Nic,
    ends: [End; 2],
    depth: u32,
    limit: Duration,
    next: Cell<u64>,
    done: RefCell<HashMap<u64, Completion>>,
}

/// The address in a request; it wraps, as in the device.
fn address((region, offset): At<'_>) -> u64 {
    region.iova.wrapping_add(offset)
}

fn local((region, offset): At<'_>, len: u32) -> sys::ibv_sge {
    sys::ibv_sge {
        addr: address((region, offset)),
        length: len,
        lkey: region.lkey,
    }
}

fn nothing() -> sys::ibv_send_wr__bindgen_ty_2 {
    // SAFETY: all-zero is a valid value of a union of numbers and pointers.
    unsafe { mem::zeroed() }
}

fn rdma(to: At<'_>) -> sys::ibv_send_wr__bindgen_ty_2 {
    sys::ibv_send_wr__bindgen_ty_2 {
        rdma: sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: address(to),
            rkey: to.0.rkey,
        },
    }
}

fn atomic(to: At<'_>, compare_add: u64, swap: u64) -> sys::ibv_send_wr__bindgen_ty_2 {
    sys::ibv_send_wr__bindgen_ty_2 {
        atomic: sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: address(to),
            compare_add,
            swap,
            rkey: to.0.rkey,
        },
    }
}

impl End {
    fn new(nic: &Nic, config: &Config) -> Result<Self, SysError> {
        let entries = config.completions;
        // SAFETY: the device is open; there is no channel, and no context.
        let queue = unsafe {
            sys::ibv_create_cq(
                nic.context.0.as_ptr(),
                entries as i32,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        let queue = Queue(check_ptr(queue, || {
            format!("ibv_create_cq({}, entries={entries})", nic.name)
        })?);
        // SAFETY: all-zero is a valid value: null pointers and numbers.
        let mut init: sys::ibv_qp_init_attr = unsafe { mem::zeroed() };
        init.send_cq = queue.0.as_ptr();
        init.recv_cq = queue.0.as_ptr();
        init.qp_type = sys::IBV_QPT_RC;
        init.cap.max_send_wr = config.depth;
        init.cap.max_recv_wr = RECEIVES;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        // SAFETY: the domain and the queue are there, and the structure is valid.
        let pair = unsafe { sys::ibv_create_qp(nic.domain.0.as_ptr(), &raw mut init) };
        let pair = QueuePair(check_ptr(pair, || {
            format!("ibv_create_qp({}, depth={})", nic.name, config.depth)
        })?);
        Ok(Self {
            pair,
            queue,
            pending: Cell::new(0),
        })
    }

    fn number(&self) -> u32 {
        // SAFETY: the queue pair is there.
        unsafe { (*self.pair.0.as_ptr()).qp_num }
    }

    /// The functions of the device's driver: inline functions in C.
    fn ops(&self) -> &sys::ibv_context_ops {
        // SAFETY: the queue pair is there, and the device that it belongs to open.
        unsafe { &(*(*self.pair.0.as_ptr()).context).ops }
    }

    fn modify(
        &self,
        attr: &mut sys::ibv_qp_attr,
        state: sys::ibv_qp_state,
        mask: sys::ibv_qp_attr_mask,
        name: &str,
    ) -> Result<(), SysError> {
        attr.qp_state = state;
        let mask = mask | sys::IBV_QP_STATE;
        // SAFETY: the queue pair is there, and the structure valid.
        let result = unsafe { sys::ibv_modify_qp(self.pair.0.as_ptr(), attr, mask as i32) };
        check(result, || format!("ibv_modify_qp(to {name})"))
    }

    /// Connects it to the other end.
    fn connect(
        &self,
        nic: &Nic,
        config: &Config,
        peer: u32,
        send_psn: u32,
        receive_psn: u32,
    ) -> Result<(), SysError> {
        let Some(mtu) = mtu_code(config.mtu) else {
            return Err(SysError::new(
                format!("packets of {} bytes", config.mtu),
                libc::EINVAL,
            ));
        };
        // SAFETY: all-zero is a valid value of a structure of numbers.
        let mut attr: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        attr.pkey_index = 0;
        attr.port_num = PORT;
        attr.qp_access_flags = nic.remote_access();
        let mask = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, sys::IBV_QPS_INIT, mask, "INIT")?;

        attr.path_mtu = mtu;
        attr.dest_qp_num = peer;
        attr.rq_psn = receive_psn;
        attr.max_dest_rd_atomic = nic.reads;
        // 10 ms, should a device ask for a pause.
        attr.min_rnr_timer = 20;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = PORT;
        attr.ah_attr.grh.dgid = sys::ibv_gid { raw: nic.gid };
        attr.ah_attr.grh.sgid_index = nic.gid_index;
        attr.ah_attr.grh.hop_limit = HOP_LIMIT;
        let mask = sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, sys::IBV_QPS_RTR, mask, "RTR")?;

        attr.timeout = config.timeout;
        attr.retry_cnt = config.retries;
        // Without a limit, because a device that faults pages in asks for pauses. The wait has its
        // own limit.
        attr.rnr_retry = 7;
        attr.sq_psn = send_psn;
        attr.max_rd_atomic = nic.reads;
        let mask = sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, sys::IBV_QPS_RTS, mask, "RTS")
    }
}

impl<'nic> Pair<'nic> {
    /// Makes two queue pairs with default values, and connects them.
    pub fn new(nic: &'nic Nic) -> Result<Self, SysError> {
        Self::with_config(nic, &Config::default())
    }

    /// Makes two queue pairs and connects them.
    ///
    /// # Errors
    ///
    /// Any error of libibverbs; EINVAL for an invalid MTU.
    pub fn with_config(nic: &'nic Nic, config: &Config) -> Result<Self, SysError> {
        // Different numbers for the two directions, so that they cannot be confused.
        const PSN: [u32; 2] = [0x00_0bad, 0x00_cafe];
        let ends = [End::new(nic, config)?, End::new(nic, config)?];
        for (one, other) in [(REQUESTER, RESPONDER), (RESPONDER, REQUESTER)] {
            ends[one].connect(nic, config, ends[other].number(), PSN[one], PSN[other])?;
        }
        Ok(Self {
            nic,
            ends,
            depth: config.depth,
            limit: config.limit,
            next: Cell::new(1),
            done: RefCell::new(HashMap::new()),
        })
    }

    /// The device.
    pub fn nic(&self) -> &'nic Nic {
        self.nic
    }

    /// Puts the other side into the error state: it does not answer any more.
    pub fn silence(&self) -> Result<(), SysError> {
        // SAFETY: all-zero is a valid value of a structure of numbers.
        let mut attr: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        self.ends[RESPONDER].modify(&mut attr, sys::IBV_QPS_ERR, 0, "ERR")
    }

    /// How many requests may be under way at once.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns a ticket for a request, if there is room for another one.
    fn ticket(
        &self,
        end: usize,
        what: &'static str,
        len: u32,
        room: u32,
    ) -> Result<Ticket, SysError> {
        let id = self.next.get();
        self.next.set(id + 1);
        let ticket = Ticket { id, end, what, len };
        // Otherwise completions might get lost.
        if self.ends[end].pending.get() >= room {
            return Err(SysError::new(
                format!("posting one more than {room} times {ticket}"),
                libc::ENOMEM,
            ));
        }
        Ok(ticket)
    }

    fn posted(&self, ticket: &Ticket, result: i32) -> Result<(), SysError> {
        check(result, || format!("posting {ticket}"))?;
        let pending = &self.ends[ticket.end].pending;
        pending.set(pending.get() + 1);
        Ok(())
    }

    fn post(&self, request: &Request<'_>) -> Result<Ticket, SysError> {
        let ticket = self.ticket(REQUESTER, request.what, request.len, self.depth)?;
        let end = &self.ends[REQUESTER];
        let Some(post) = end.ops().post_send else {
            return Err(SysError::new("ibv_post_send()", libc::EOPNOTSUPP));
        };
        let mut piece = local(request.local, request.len);
        // SAFETY: all-zero is a valid value: null pointers and numbers.
        let mut work: sys::ibv_send_wr = unsafe { mem::zeroed() };
        work.wr_id = ticket.id;
        work.sg_list = &raw mut piece;
        work.num_sge = 1;
        work.opcode = request.opcode;
        work.send_flags = sys::IBV_SEND_SIGNALED;
        work.wr = request.remote;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is there, and the structures are valid during the call. The memory
        // that the device accesses is registered, or the request fails.
        let result = unsafe { post(end.pair.0.as_ptr(), &raw mut work, &raw mut bad) };
        self.posted(&ticket, result)?;
        Ok(ticket)
    }

    /// Posts an RDMA write.
    ///
    /// # Errors
    ///
    /// Any error of the call; ENOMEM if too many are on their way.
    pub fn post_write(&self, from: At<'_>, to: At<'_>, len: u32) -> Result<Ticket, SysError> {
        self.post(&Request {
            what: "RDMA write",
            opcode: sys::IBV_WR_RDMA_WRITE,
            local: from,
            len,
            remote: rdma(to),
        })
    }

    /// Posts an RDMA write with immediate data, for which there has to be a receive.
    pub fn post_write_imm(&self, from: At<'_>, to: At<'_>, len: u32) -> Result<Ticket, SysError> {
        self.post(&Request {
            what: "RDMA write with immediate data",
            opcode: sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            local: from,
            len,
            remote: rdma(to),
        })
    }

    /// Posts an RDMA read.
    pub fn post_read(&self, from: At<'_>, to: At<'_>, len: u32) -> Result<Ticket, SysError> {
        self.post(&Request {
            what: "RDMA read",
            opcode: sys::IBV_WR_RDMA_READ,
            local: to,
            len,
            remote: rdma(from),
        })
    }

    /// Posts a send, for which there has to be a receive.
    pub fn post_send(&self, from: At<'_>, len: u32) -> Result<Ticket, SysError> {
        self.post(&Request {
            what: "send",
            opcode: sys::IBV_WR_SEND,
            local: from,
            len,
            remote: nothing(),
        })
    }

    /// Posts an addition to a word; the old value goes to `result`.
    pub fn post_fetch_add(&self, result: At<'_>, on: At<'_>, add: u64) -> Result<Ticket, SysError> {
        self.post(&Request {
            what: "fetch and add",
            opcode: sys::IBV_WR_ATOMIC_FETCH_AND_ADD,
            local: result,
            len: 8,
            remote: atomic(on, add, 0),
        })
    }

    /// Posts an exchange of a word that has a certain value; the old value goes to `result`.
    pub fn post_compare_swap(
        &self,
        result: At<'_>,
        on: At<'_>,
        compare: u64,
        swap: u64,
    ) -> Result<Ticket, SysError> {
        self.post(&Request {
            what: "compare and swap",
            opcode: sys::IBV_WR_ATOMIC_CMP_AND_SWP,
            local: result,
            len: 8,
            remote: atomic(on, compare, swap),
        })
    }

    /// Posts a receive on the other side, for a send.
    pub fn post_receive(&self, to: At<'_>, len: u32) -> Result<Ticket, SysError> {
        let ticket = self.ticket(RESPONDER, "receive", len, RECEIVES)?;
        let end = &self.ends[RESPONDER];
        let Some(post) = end.ops().post_recv else {
            return Err(SysError::new("ibv_post_recv()", libc::EOPNOTSUPP));
        };
        let mut piece = local(to, len);
        let mut work = sys::ibv_recv_wr {
            wr_id: ticket.id,
            next: ptr::null_mut(),
            sg_list: &raw mut piece,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: as for a request.
        let result = unsafe { post(end.pair.0.as_ptr(), &raw mut work, &raw mut bad) };
        self.posted(&ticket, result)?;
        Ok(ticket)
    }

    /// Takes the completions of one side.
    fn collect(&self, end: usize) -> Result<(), SysError> {
        const BATCH: usize = 16;
        let end = &self.ends[end];
        let Some(poll) = end.ops().poll_cq else {
            return Err(SysError::new("ibv_poll_cq()", libc::EOPNOTSUPP));
        };
        loop {
            // SAFETY: all-zero is a valid value of a structure of numbers.
            let mut batch: [sys::ibv_wc; BATCH] = unsafe { mem::zeroed() };
            // SAFETY: the queue is there, and the array has as many entries.
            let count = unsafe { poll(end.queue.0.as_ptr(), BATCH as i32, batch.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                return Err(SysError::new("ibv_poll_cq()", count.abs()));
            };
            let mut done = self.done.borrow_mut();
            for entry in &batch[..count] {
                let completion = Completion {
                    status: Status(entry.status),
                    len: entry.byte_len,
                };
                done.insert(entry.wr_id, completion);
            }
            let pending = &end.pending;
            pending.set(pending.get().saturating_sub(count as u32));
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Waits for a completion with any status; `None` if the time is up.
    fn complete(&self, ticket: &Ticket, limit: Duration) -> Result<Option<Completion>, SysError> {
        /// A request that takes longer than this waits for a retry, or hangs.
        const BUSY: Duration = Duration::from_millis(20);
        let start = Instant::now();
        loop {
            self.collect(ticket.end)?;
            if let Some(completion) = self.done.borrow_mut().remove(&ticket.id) {
                return Ok(Some(completion));
            }
            let elapsed = start.elapsed();
            if elapsed >= limit {
                return Ok(None);
            }
            // On one processor a software device needs the processor now.
            if elapsed < BUSY {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(500));
            }
        }
    }

    fn outcome(
        &self,
        ticket: &Ticket,
        completion: Option<Completion>,
        receiver: Option<Status>,
    ) -> Result<(), Failure> {
        match completion {
            None => Err(Failure::Hang {
                what: ticket.to_string(),
                limit: self.limit,
            }),
            Some(completion) if completion.status != Status::SUCCESS => Err(Failure::Status {
                what: ticket.to_string(),
                requester: completion.status,
                receiver,
            }),
            Some(_) => Ok(()),
        }
    }

    /// Waits for a request that was posted.
    ///
    /// # Errors
    ///
    /// Describes how it failed, or that it has not completed in time. For a receive the status of
    /// the receiver counts as that of the requester.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Failure> {
        let completion = self.complete(&ticket, self.limit)?;
        self.outcome(&ticket, completion, None)
    }

    /// Makes the device write, from a region to that of the other side.
    ///
    /// # Errors
    ///
    /// Describes how it failed.
    pub fn write(&self, from: At<'_>, to: At<'_>, len: u32) -> Result<(), Failure> {
        self.wait(self.post_write(from, to, len)?)
    }

    /// Makes the device read, from a region of the other side.
    ///
    /// # Errors
    ///
    /// Describes how it failed.
    pub fn read(&self, from: At<'_>, to: At<'_>, len: u32) -> Result<(), Failure> {
        self.wait(self.post_read(from, to, len)?)
    }

    /// Sends a message, and receives it on the other side.
    ///
    /// # Errors
    ///
    /// Describes how it failed, on both sides.
    pub fn send(&self, from: At<'_>, to: At<'_>, len: u32) -> Result<(), Failure> {
        let receive = self.post_receive(to, len)?;
        let send = self.post_send(from, len)?;
        let sent = self.complete(&send, self.limit)?;
        let success = sent.is_some_and(|sent| sent.status == Status::SUCCESS);
        let limit = if success {
            self.limit
        } else {
            // The receive may have no completion, because the message may not have been sent.
            RECEIVER_SAYS_WHY
        };
        let received = self.complete(&receive, limit)?;
        self.outcome(&send, sent, received.map(|received| received.status))?;
        // An error of the receiver is unexpected now, because the send has succeeded.
        self.outcome(&receive, received, received.map(|received| received.status))?;
        match received {
            Some(received) if received.len != len => Err(Failure::Length {
                what: send.to_string(),
                seen: received.len,
            }),
            _ => Ok(()),
        }
    }

    /// Adds to a word; the old value goes to `result`.
    ///
    /// # Errors
    ///
    /// Describes how it failed.
    pub fn fetch_add(&self, result: At<'_>, on: At<'_>, add: u64) -> Result<(), Failure> {
        self.wait(self.post_fetch_add(result, on, add)?)
    }

    /// Exchanges a word that has a certain value; the old value goes to `result`.
    ///
    /// # Errors
    ///
    /// Describes how it failed; another value of the word is no failure.
    pub fn compare_swap(
        &self,
        result: At<'_>,
        on: At<'_>,
        compare: u64,
        swap: u64,
    ) -> Result<(), Failure> {
        self.wait(self.post_compare_swap(result, on, compare, swap)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_of_ipv4_are_found() {
        let gid = mapped_gid("0000:0000:0000:0000:0000:ffff:c0a8:0102\n").unwrap();
        assert_eq!(gid[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(gid[12..], [192, 168, 1, 2]);
        assert_eq!(mapped_gid("fe80:0000:0000:0000:5054:00ff:fe12:3456"), None);
        assert_eq!(mapped_gid("0000:0000:0000:0000:0000:0000:0000:0000"), None);
        assert_eq!(mapped_gid(""), None);
    }

    #[test]
    fn packets_have_known_sizes() {
        assert_eq!(mtu_code(256), Some(1));
        assert_eq!(mtu_code(1024), Some(3));
        assert_eq!(mtu_code(4096), Some(5));
        assert_eq!(mtu_code(1500), None);
    }

    #[test]
    fn failures_explain_themselves() {
        let what = || "send of 8 bytes".to_string();
        let mut failure = Failure::Status {
            what: what(),
            requester: Status::REMOTE_ACCESS,
            receiver: None,
        };
        assert_eq!(
            failure.to_string(),
            "send of 8 bytes: remote access error (10)"
        );
        assert_eq!(failure.requester(), Some(Status::REMOTE_ACCESS));
        if let Failure::Status { receiver, .. } = &mut failure {
            *receiver = Some(Status::FLUSHED);
        }
        let text = failure.to_string();
        assert!(text.ends_with("the receiver Work Request Flushed Error (5)"));
        assert_eq!(failure.receiver(), Some(Status::FLUSHED));
        let hang = Failure::Hang {
            what: what(),
            limit: Duration::from_secs(10),
        };
        assert_eq!(
            hang.to_string(),
            "send of 8 bytes: no completion within 10 s: hang"
        );
        let Stop::Fail(text) = Stop::from(hang) else {
            panic!("it should be a failure");
        };
        assert!(text.starts_with("src/verbs.rs:"), "{text}");
    }

    #[test]
    fn the_right_status_is_expected() {
        let result = |requester| {
            Err(Failure::Status {
                what: "x".to_string(),
                requester,
                receiver: None,
            })
        };
        let want = [Status::REMOTE_ACCESS, Status::REMOTE_OPERATION];
        let expect = |result| expect_status("writing", result, &want);
        assert_eq!(expect(result(Status::REMOTE_OPERATION)), Ok(()));
        assert!(expect(result(Status::FLUSHED)).is_err());
        assert!(expect(Err(SysError::new("post", libc::ENOMEM).into())).is_err());
        assert!(expect(Ok(())).is_err());
    }
}
