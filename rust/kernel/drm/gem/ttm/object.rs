// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The interface between TTM objects and their driver.

use super::{
    client::{
        ClientOf,
        PinAccount, //
    },
    Device, //
};
use crate::{
    drm::{
        self,
        gem::{
            self,
            aperture::ApertureHook,
            peer::PeerObject,
            DriverObject, //
        },
        queue::RingOps,
        ttm::{
            Engine,
            Work, //
        },
        vram::{
            Domain,
            Ranges,
            Reclaim, //
        }, //
    },
    pci::p2pdma::BarPages,
    sync::Arc, //
};

/// The driver's part of an object that TTM places and moves.
///
/// It must not own a reference to the DRM device or to an object: the release of the device waits
/// for a worker that may drop it. The object itself keeps the device alive.
///
/// See [`gem::ttm`](super) for an example.
///
/// # Moves
///
/// The task causing a move does not wait for it. The fence of the move is in the reservation with
/// usage [`Kernel`](crate::dma_resv::Usage::Kernel). Faults and importers wait for it, and so does
/// the next job unless it is a move by the same engine. The old memory of an evicted object is
/// reused at once, protected by the order of the moves of one engine and by fences otherwise. If a
/// move fails, users of the object get `EIO`. Mappings are invalidated before a move, and the move
/// waits for the fences added to the reservation by importers.
///
/// # Lifetimes
///
/// The [`Device`] lives as long as the DRM device because objects do; every object keeps the DRM
/// device alive. When the driver is unbound, the content of VRAM is lost and no user can access it
/// any more: the DRM file returns `ENODEV`, mappings end in `SIGBUS`, and importers were notified.
/// After an unbind no object moves, and VRAM is no region of the cgroup controller `dmem` any more.
/// The addresses are not reused either: they belong to a device without a driver. Its next driver
/// creates its own [`Device`].
///
/// # Locking
///
/// From the outside to the inside:
///
/// 1. `mmap_lock`, held by a fault.
/// 2. The driver's suspend and resume callbacks, known to lockdep as `pm::callbacks`: a task that
///    resumes the device waits for them, and they take the locks below.
/// 3. The semaphore of [`Device::exec`]: after several callers have blocked each other, it lets one
///    try alone.
/// 4. The reservation of an object. Eviction holds a second one. Its lock is only tried, unless the
///    first one was taken with the ticket of [`Exec`](drm::exec::Exec).
/// 5. The mutex for the creation of windows of an aperture.
/// 6. The SRCU section of [`drm_dev_enter()`](drm::RegistrationGuard) around accesses to VRAM;
///    unbinding waits for it. Ioctls have entered it before all of these.
/// 7. The mutex of the order of moves or of the copies of a client, held while a driver queues a
///    job. Inside of it those of [`drm::queue`].
/// 8. The locks of the allocator of VRAM, of its quarantine, of the list of tables mapped for
///    engines, of the list of windows, and inside of TTM the `lru_lock`.
/// 9. The lock of the list of all objects, taken last.
///
/// Callbacks of TTM run with 4 held and must not take another reservation.
pub trait TtmObject:
    PeerObject<Class = gem::ttm::Object<Self>>
    + DriverObject<Driver: drm::Driver<Object = gem::ttm::Object<Self>>>
{
    /// How page tables of the device follow objects, if it has any: see
    /// [`mapping_hooks`](gem::mappings::mapping_hooks).
    const MAPPINGS: gem::MappingHooks<Self> = gem::MappingHooks::NONE;

    /// The windows through which peers and the CPU see VRAM, for a device whose BAR does not always
    /// show it: see [`aperture_hook`](gem::aperture::aperture_hook).
    const APERTURE: ApertureHook<Self> = ApertureHook::NONE;

    /// Returns the memory of the device, a part of `data`.
    fn ttm(data: &<Self::Driver as drm::Driver>::Data) -> &Device<Self>;

    /// Returns where the object may live. The answer must not change.
    ///
    /// May be called with a spinlock held.
    fn domain(&self) -> Domain;

    /// Returns whether processes map the object for direct I/O: with struct pages, so a disk can
    /// access VRAM by reads and writes with `O_DIRECT`. The answer must not change.
    ///
    /// Such a mapping pins the object in VRAM, see [`PinAccount`]. It belongs to an open file of
    /// the device: a mapping of a dma-buf is an ordinary one.
    fn direct_io(&self) -> bool {
        false
    }

    /// Returns the struct pages of the BAR showing VRAM, if any. [`Self::direct_io`] needs them.
    /// Such a BAR shows VRAM at all times, without [`Self::APERTURE`].
    ///
    /// Called while the driver is bound, with or without the reservation of an object. The answer
    /// must not change: an unbind waits for the mapped pages. It would wait for ever for pages that
    /// are no longer returned here.
    fn pages<'a>(
        reg: &'a <Self::Driver as drm::Driver>::RegistrationData<'_>,
    ) -> Option<&'a BarPages<'a>> {
        let _ = reg;
        None
    }

    /// Returns the account of `file` charged for pins of objects, if the driver keeps one: see
    /// [`PinAccount`].
    fn pins(file: &ClientOf<Self>) -> Option<&Arc<PinAccount>> {
        let _ = file;
        None
    }

    /// The engine that moves, clears and copies the content of objects: see [`Work`].
    type Engine<'a, 'bound: 'a>: Engine<Ring = Self::Ring>;

    /// The ring for the copies of clients: [`Engine::Ring`].
    type Ring: RingOps;

    /// Returns the engine with the number `index`: 0, or the index of a name passed to
    /// [`Device::with_engines`].
    ///
    /// Called with the reservation of an object held, while the driver is bound.
    fn engine<'a, 'bound: 'a>(
        reg: &'a <Self::Driver as drm::Driver>::RegistrationData<'bound>,
        index: usize,
    ) -> Self::Engine<'a, 'bound>;

    /// Returns the number of the engine that should do `work`.
    ///
    /// Called as [`Self::engine`] is.
    fn choose(reg: &<Self::Driver as drm::Driver>::RegistrationData<'_>, work: &Work) -> usize {
        let _ = (reg, work);
        0
    }

    /// Ends all jobs because the DRM device was unplugged: no job is created any more, and the
    /// addresses of jobs are about to become invalid.
    ///
    /// For engines that do DMA. When this returns, they must have ended all jobs and access no
    /// memory. Called before the last calls of [`gem::Mappings`] and before the registration data
    /// is dropped. No reservation is held; may sleep.
    fn end_jobs(reg: &<Self::Driver as drm::Driver>::RegistrationData<'_>) {
        let _ = reg;
    }

    /// Returns the user with VRAM from the same [`Allocator`](drm::vram::Allocator) beside the
    /// objects, if any.
    ///
    /// Called with the reservation of an object held, while the driver is bound.
    /// [`Device::make_room`] is for the other direction.
    fn reclaim<'a>(
        reg: &'a <Self::Driver as drm::Driver>::RegistrationData<'_>,
    ) -> Option<&'a dyn Reclaim> {
        let _ = reg;
        None
    }

    /// Makes CPU writes to an object in VRAM through the BAR visible to the device and to peers.
    ///
    /// Called with the reservation of the object held, while the driver is bound. A device with
    /// caches between the BAR and VRAM flushes them here, too.
    /// [`CpuEngine::flush`](drm::ttm::CpuEngine::flush) is for devices without such caches.
    fn flush(reg: &<Self::Driver as drm::Driver>::RegistrationData<'_>, vram: &Ranges);
}
