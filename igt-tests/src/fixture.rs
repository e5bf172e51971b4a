// SPDX-License-Identifier: GPL-2.0

//! The exporter, the peer, and the expected path between them on this topology.

use std::env;
use std::fs;

use crate::debugfs::DebugFs;
use crate::drm::{path_name, reason_name, Attachment, DmaBuf, Drm, Gem};
use crate::iommu::{is_ram, Way};
use crate::map::{Map, PAGE};
use crate::misc;
use crate::pattern::Pattern;
use crate::pci::{Bar, Layout, PciDevice};
use crate::peer::{check_table, Mode, Peer};
use crate::uapi;
use crate::uapi::EduPeerSegment;
use crate::{Need, Outcome, Stop, SysError};

/// The expected decision of the kernel on this topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Peer to peer by bus address.
    Bus,
    /// Peer to peer through the host bridge.
    HostBridge,
    /// No route.
    Refused,
}

/// The value of a variable in the environment, or else in the kernel command line.
pub fn setting(variable: &str) -> Option<String> {
    if let Ok(value) = env::var(variable) {
        return Some(value);
    }
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    let value = |word: &str| {
        let (name, value) = word.split_once('=')?;
        (name == variable).then(|| value.to_string())
    };
    line.split_whitespace().find_map(value)
}

impl Expect {
    /// Reads `VVRAM_EXPECT`.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it has no valid value.
    #[track_caller]
    pub fn get() -> Result<Self, Stop> {
        match setting("VVRAM_EXPECT").as_deref() {
            Some("bus") => Ok(Self::Bus),
            Some("host-bridge") => Ok(Self::HostBridge),
            Some("refused") => Ok(Self::Refused),
            other => Err(Stop::fail(format_args!(
                "VVRAM_EXPECT is {other:?}; it has to be bus, host-bridge or refused"
            ))),
        }
    }

    /// For tests that need a route between the devices.
    ///
    /// # Errors
    ///
    /// Skips the subtest where there is none.
    #[track_caller]
    pub fn need_route(self) -> Outcome {
        if self == Self::Refused {
            return Err(Stop::needs(Need::Route));
        }
        Ok(())
    }

    /// Hops between two devices, computed from sysfs; -1 without a route.
    pub fn distance(self, gpu: &PciDevice, importer: &PciDevice) -> i32 {
        match self {
            Self::Refused => -1,
            _ => gpu.distance(importer),
        }
    }

    /// The path in PEER_ATTACHMENTS.
    pub fn path(self) -> u32 {
        match self {
            Self::Bus => uapi::PATH_PEER_BUS,
            Self::HostBridge => uapi::PATH_PEER_HOST_BRIDGE,
            Self::Refused => uapi::PATH_REFUSED,
        }
    }
}

/// The devices of a peer-to-peer test.
#[derive(Debug)]
pub struct Fixture {
    /// The exporter.
    pub drm: Drm,
    /// The importer.
    pub peer: Peer,
    /// VRAM as its BAR shows it.
    pub bar: Bar,
    /// The exporting device.
    pub gpu: PciDevice,
    /// The parent of the DRM device: the exporting device, or an auxiliary device of it.
    pub parent: PciDevice,
    /// The importing device.
    pub edu: PciDevice,
    /// The expected path between them.
    pub expect: Expect,
}

impl Fixture {
    /// Opens both devices.
    ///
    /// # Errors
    ///
    /// Fails the subtest if something is missing.
    #[track_caller]
    pub fn open() -> Result<Self, Stop> {
        let gpu = PciDevice::vvram()?;
        Self::of(Drm::open()?, gpu.clone(), gpu)
    }

    /// Opens the peer of an exporter, whose DRM device has the given parent.
    ///
    /// # Errors
    ///
    /// Fails the subtest if something is missing.
    #[track_caller]
    pub fn of(drm: Drm, gpu: PciDevice, parent: PciDevice) -> Result<Self, Stop> {
        let peer = Peer::open()?;
        Ok(Self {
            drm,
            bar: Bar::open(&gpu)?,
            edu: PciDevice::named(peer.name()),
            expect: Expect::get()?,
            gpu,
            parent,
            peer,
        })
    }

    /// The files of the exporter in debugfs.
    ///
    /// # Errors
    ///
    /// Fails the subtest if there are none.
    #[track_caller]
    pub fn debugfs(&self) -> Result<DebugFs, Stop> {
        DebugFs::open(&self.parent)
    }

    /// As [`Fixture::open`], for tests that need a route.
    ///
    /// # Errors
    ///
    /// Skips the subtest on topologies where the attach is refused.
    #[track_caller]
    pub fn with_route() -> Result<Self, Stop> {
        Expect::get()?.need_route()?;
        Self::open()
    }

    /// As [`Expect::distance`] of both devices.
    pub fn distance(&self) -> i32 {
        self.expect.distance(&self.gpu, &self.edu)
    }

    /// Whether an IOMMU translates the addresses of the peer.
    pub fn translated(&self) -> bool {
        self.expect == Expect::HostBridge && self.edu.translated()
    }

    /// Checks one live attachment of this fixture's peer.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the entry differs.
    #[track_caller]
    pub fn check_entry(
        &self,
        entry: &Attachment,
        mode: Mode,
        pinned: bool,
        mapped: bool,
    ) -> Outcome {
        let mut flags = mode.attachment_flags();
        if pinned {
            flags |= uapi::ATTACHMENT_PINNED;
        }
        if mapped {
            flags |= uapi::ATTACHMENT_MAPPED;
        }
        let want = Attachment {
            device: self.peer.name().to_string(),
            path: self.expect.path(),
            reason: uapi::REASON_NONE,
            flags,
            distance: self.distance(),
        };
        if *entry == want {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "attachment in mode {mode:?}: expected path {} for reason {} in {want:?}, saw path {} for reason {} in {entry:?}",
            path_name(want.path),
            reason_name(want.reason),
            path_name(entry.path),
            reason_name(entry.reason)
        )))
    }

    /// Checks that a buffer has exactly one attachment, that of this importer.
    ///
    /// # Errors
    ///
    /// Fails the subtest if PEER_ATTACHMENTS lists anything else.
    #[track_caller]
    pub fn check_only(&self, object: &Gem<'_>, mode: Mode, pinned: bool, mapped: bool) -> Outcome {
        let list = object.attachments()?;
        match list.as_slice() {
            [entry] => self.check_entry(entry, mode, pinned, mapped),
            _ => Err(Stop::fail(format_args!(
                "expected one attachment, PEER_ATTACHMENTS lists {list:?}"
            ))),
        }
    }

    /// Checks that a buffer has neither attachments nor refusals.
    ///
    /// # Errors
    ///
    /// Fails the subtest if PEER_ATTACHMENTS lists any.
    #[track_caller]
    pub fn check_none(&self, object: &Gem<'_>) -> Outcome {
        let list = object.attachments()?;
        if list.is_empty() {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "expected no attachment to be left, PEER_ATTACHMENTS lists {list:?}"
        )))
    }

    /// Checks that an attach was refused, and that exactly one refusal with the reason is listed.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it succeeded, or was refused in another way.
    #[track_caller]
    pub fn check_refused(
        &self,
        object: &Gem<'_>,
        result: Result<u64, SysError>,
        mode: Mode,
        reason: u32,
    ) -> Outcome {
        let what = format!("attaching in mode {mode:?}");
        crate::expect_errno(&what, result, libc::EOPNOTSUPP)?;
        let list = object.attachments()?;
        let want = Attachment {
            device: self.peer.name().to_string(),
            path: uapi::PATH_REFUSED,
            reason,
            flags: mode.attachment_flags(),
            distance: self.distance(),
        };
        if list.as_slice() == [want.clone()] {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "{what}: PEER_ATTACHMENTS should list one refusal for reason {}, {want:?}; it lists {list:?}",
            reason_name(reason)
        )))
    }

    /// Compares the scatter table of the mapping of the peer with the location of the buffer in the
    /// BAR, and returns both.
    ///
    /// # Errors
    ///
    /// Fails the subtest if the buffer is not in VRAM, or the table has other addresses.
    #[track_caller]
    pub fn check_table(
        &self,
        peer: &Peer,
        buffer: &Map,
    ) -> Result<(Vec<EduPeerSegment>, Layout), Stop> {
        let table = peer.table()?;
        let layout = self.bar.locate(buffer)?;
        let way = Way::of(&self.edu)?;
        if let Err(text) = compare_table(&table, &layout, buffer.len() as u64, &self.bar, &way) {
            fail!("{}", text);
        }
        Ok((table, layout))
    }

    /// Checks the scatter table of the mapping of the peer by itself.
    ///
    /// # Errors
    ///
    /// Fails the subtest if it cannot be a mapping of a buffer in the BAR.
    #[track_caller]
    pub fn check_table_of(&self, peer: &Peer, size: u64) -> Outcome {
        let table = peer.table()?;
        if let Err(text) = check_table(&table, size) {
            fail!("{}", text);
        }
        for place in self.places(&table)?.unwrap_or_default() {
            check!(
                self.bar.has(place),
                "{place:x?} (start, length) is outside BAR 2, which starts at {:#x}: {table:x?}",
                self.bar.start()
            );
        }
        Ok(())
    }

    /// Translates a scatter table of the peer to CPU addresses, start and length; `None` behind an
    /// IOMMU whose page tables are not shown. In that case it only checks that the addresses are
    /// IOVAs, which are never addresses of PCI devices.
    ///
    /// # Errors
    ///
    /// Fails the subtest if an address is not mapped.
    #[track_caller]
    pub fn places(&self, table: &[EduPeerSegment]) -> Result<Option<Vec<(u64, u64)>>, Stop> {
        match places(table, &self.bar, &Way::of(&self.edu)?) {
            Ok(places) => Ok(places),
            Err(text) => Err(Stop::fail(text)),
        }
    }

    /// Checks some pages of a buffer in VRAM, through the BAR.
    ///
    /// # Errors
    ///
    /// Fails the subtest if VRAM has other bytes.
    #[track_caller]
    pub fn check_vram(&self, layout: &Layout, pattern: Pattern, pages: &[usize]) -> Outcome {
        for page in pages {
            for word in 0..PAGE / 8 {
                let index = page * PAGE / 8 + word;
                let want = pattern.word(index as u64);
                let at = layout.offset(*page) + 8 * word as u64;
                let seen = self.bar.word(at);
                check!(
                    seen == want,
                    "page {page} of the buffer, VRAM offset {at:#x}: expected {want:#018x}, \
                     saw {seen:#018x}"
                );
            }
        }
        Ok(())
    }
}

/// Translates a scatter table, see [`Fixture::places`].
fn places(
    table: &[EduPeerSegment],
    bar: &Bar,
    way: &Way,
) -> Result<Option<Vec<(u64, u64)>>, String> {
    let ranges = misc::coalesce(table.iter().map(|s| (s.dma_address, s.length)));
    if *way != Way::Straight {
        if let Some(range) = ranges.iter().find(|range| bar.touches(**range)) {
            return Err(format!(
                "behind an IOMMU the table has {range:x?} (start, length), which are addresses of \
                 BAR 2"
            ));
        }
    }
    way.resolve(&ranges)
}

/// Compares a scatter table with a layout.
///
/// Entries may be split because of the segment limit of the peer; only their addresses and their
/// order count. Behind an IOMMU the table is one range of IOVAs.
///
/// # Errors
///
/// Describes the error in the table.
pub fn compare_table(
    table: &[EduPeerSegment],
    layout: &Layout,
    size: u64,
    bar: &Bar,
    way: &Way,
) -> Result<(), String> {
    check_table(table, size)?;
    let ranges = misc::coalesce(table.iter().map(|s| (s.dma_address, s.length)));
    if *way != Way::Straight && ranges.len() != 1 {
        return Err(format!(
            "behind an IOMMU one IOVA range was expected, the table has {ranges:x?}"
        ));
    }
    let Some(seen) = places(table, bar, way)? else {
        return Ok(());
    };
    let pieces = layout.ranges().into_iter();
    let want = misc::coalesce(pieces.map(|(at, len)| (bar.start() + at, len)));
    if want != seen {
        return Err(format!(
            "the table does not lead to the buffer: it is at {want:x?}, the table leads to {seen:x?} by {ranges:x?} (start, length; BAR 2 starts at {:#x})",
            bar.start()
        ));
    }
    Ok(())
}

/// Checks that the mapping of a peer has the addresses of pages of the BAR.
///
/// # Errors
///
/// Fails the subtest if it has other addresses.
#[track_caller]
pub fn leads_to(peer: &Peer, bar: &Bar, pages: &[u64]) -> Outcome {
    let size = (pages.len() * PAGE) as u64;
    let way = Way::of(&PciDevice::named(peer.name()))?;
    let layout = Layout::new(pages.to_vec());
    compare_table(&peer.table()?, &layout, size, bar, &way).map_err(Stop::fail)
}

/// Lets a peer that follows moves map a buffer, and read some pages of it.
///
/// # Errors
///
/// Fails the subtest if it cannot map the buffer, or a page differs.
#[track_caller]
pub fn mapped_by_peer(buffer: &DmaBuf, pattern: Pattern, pages: &[usize]) -> Result<Peer, Stop> {
    let peer = Peer::open()?;
    peer.attach_and_map(buffer, Mode::Dynamic)?;
    peer_reads(&peer, pattern, pages)?;
    Ok(peer)
}

/// Makes the peer read pages, and compares them with a pattern.
///
/// # Errors
///
/// Fails the subtest if a page reads differently.
#[track_caller]
pub fn peer_reads(peer: &Peer, pattern: Pattern, pages: &[usize]) -> Outcome {
    let mut data = vec![0u8; PAGE];
    for page in pages {
        let offset = (page * PAGE) as u64;
        data.fill(0xa5);
        peer.read(offset, &mut data)?;
        check_ok!(
            pattern.verify(&data, offset),
            "the peer read page {page} of the buffer"
        );
    }
    Ok(())
}

/// Makes the peer write a pattern to pages.
#[track_caller]
pub fn peer_writes(peer: &Peer, pattern: Pattern, pages: &[usize]) -> Outcome {
    let mut data = vec![0u8; PAGE];
    for page in pages {
        let offset = (page * PAGE) as u64;
        pattern.fill(&mut data, offset);
        peer.write(offset, &data)?;
    }
    Ok(())
}

/// Compares pages of a mapping with a pattern.
///
/// # Errors
///
/// Fails the subtest if a page reads differently.
#[track_caller]
pub fn cpu_reads(map: &Map, pattern: Pattern, pages: &[usize]) -> Outcome {
    for page in pages {
        check_ok!(
            map.verify_pages(pattern, *page, 1),
            "the CPU read page {page} of the buffer"
        );
    }
    Ok(())
}

/// Takes all of VRAM that is free or can be freed, so that all evictable objects are evicted.
///
/// The evictions may not be done when this returns, see [`squeeze_idle`].
///
/// # Errors
///
/// Any error but `ENOSPC`.
#[track_caller]
pub fn squeeze(drm: &Drm) -> Result<Vec<Gem<'_>>, Stop> {
    let mut taken = Vec::new();
    let mut size = drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    while size >= PAGE as u64 {
        match drm.create(size) {
            Ok(object) => taken.push(object),
            Err(error) if error.errno == libc::ENOSPC => size /= 2,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(taken)
}

/// As [`squeeze`], and waits until the evictions are done: the new objects are idle, so their VRAM
/// is free as soon as they are closed.
///
/// # Errors
///
/// The errors of [`squeeze`]; fails the subtest if VRAM is left or not zero.
#[track_caller]
pub fn squeeze_idle(drm: &Drm) -> Result<Vec<Gem<'_>>, Stop> {
    let taken = squeeze(drm)?;
    drm.await_vram_free(0)?;
    for object in &taken {
        // Waits until the object is cleared, which is after the eviction of the old owner.
        check_eq!(object.map()?.read(0), 0, "the first word of a new object");
    }
    Ok(taken)
}

/// Checks where an object is, `PLACEMENT_*`.
///
/// # Errors
///
/// Fails the subtest if it is elsewhere.
#[track_caller]
pub fn placed(object: &Gem<'_>, want: u32) -> Outcome {
    let info = object.info()?;
    if info.placement == want {
        return Ok(());
    }
    Err(Stop::fail(format_args!(
        "expected placement {want}: {info:?}"
    )))
}

/// Checks that all addresses of the mapping of a peer are in system memory.
///
/// # Errors
///
/// Fails the subtest if an address is not.
#[track_caller]
pub fn in_system_memory(fixture: &Fixture, peer: &Peer) -> Outcome {
    let table = peer.table()?;
    for place in fixture.places(&table)?.unwrap_or_default() {
        check!(
            is_ram(place)?,
            "{place:x?} (start, length) is not in system memory; BAR 2 starts at {:#x}: {table:x?}",
            fixture.bar.start()
        );
    }
    Ok(())
}

/// Checks that a newly opened exporter and peer work, whatever happened before.
///
/// # Errors
///
/// Fails the subtest if they do not.
#[track_caller]
pub fn works() -> Outcome {
    works_on(&Fixture::open()?)
}

/// Checks that an exporter and its peer work.
///
/// # Errors
///
/// Fails the subtest if they do not.
#[track_caller]
pub fn works_on(fixture: &Fixture) -> Outcome {
    let (a, b) = patterns();
    let shared = share(&fixture.drm, 2)?;
    check_ok!(shared.map.verify_value(0), "new VRAM is not zero");
    shared.map.fill(a);
    let attached = fixture.peer.attach(&shared.buffer, Mode::Dynamic);
    if fixture.expect == Expect::Refused {
        let (mode, reason) = (Mode::Dynamic, uapi::REASON_NO_ROUTE);
        return fixture.check_refused(&shared.object, attached, mode, reason);
    }
    attached?;
    fixture.peer.map()?;
    fixture.check_only(&shared.object, Mode::Dynamic, false, true)?;
    fixture.check_table(&fixture.peer, &shared.map)?;
    peer_reads(&fixture.peer, a, &[0])?;
    peer_writes(&fixture.peer, b, &[1])?;
    cpu_reads(&shared.map, a, &[0])?;
    cpu_reads(&shared.map, b, &[1])?;
    fixture.peer.detach()?;
    fixture.check_none(&shared.object)
}

/// Two new patterns, which no earlier test can have left behind in VRAM.
pub fn patterns() -> (Pattern, Pattern) {
    let seed = misc::nonce();
    (Pattern::new(seed), Pattern::new(seed ^ 1))
}

/// Checks that an importer was told that its buffer is gone, and is neither mapped nor pinned.
#[track_caller]
pub fn check_revoked(peer: &Peer, mode: Mode) -> Outcome {
    let status = peer.status()?;
    check!(
        status.invalidations >= 1,
        "the importer was not notified: {status:?}"
    );
    check_eq!(status.flags, mode.revoked_flags(), "flags in {mode:?}");
    Ok(())
}

/// A mapped buffer that the peer is attached to.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The object.
    pub object: Gem<'a>,
    /// CPU access to it.
    pub map: Map,
    /// The dma-buf.
    pub buffer: DmaBuf,
}

/// Creates, maps and exports an object of some pages.
#[track_caller]
pub fn share(drm: &Drm, pages: usize) -> Result<Shared<'_>, Stop> {
    let object = drm.create((pages * PAGE) as u64)?;
    let map = object.map()?;
    let buffer = object.export()?;
    Ok(Shared {
        object,
        map,
        buffer,
    })
}
