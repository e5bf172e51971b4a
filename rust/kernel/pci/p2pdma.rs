// SPDX-License-Identifier: GPL-2.0

//! PCI peer-to-peer DMA.
//!
//! A [`Provider`] stands for one BAR of a PCI device. Other PCI devices may read and write the
//! memory of this BAR. The provider answers the two questions of an exporter: is there a permitted
//! route from a client to the BAR ([`Provider::distance`]), and by which kind of address does the
//! client reach it ([`Provider::map_type`]). [`Provider::decide`] answers both at once with the
//! deciding facts.
//!
//! C header: [`include/linux/pci-p2pdma.h`](srctree/include/linux/pci-p2pdma.h)

use super::{
    Address,
    Device, //
};
use crate::{
    bindings,
    device,
    error::to_result,
    prelude::*, //
};
use core::ptr::NonNull;

#[cfg(CONFIG_RUST_DRM_TTM)]
pub(crate) mod live;
#[cfg(any(CONFIG_RUST_DRM_PAGEMAP, CONFIG_RUST_DRM_TTM))]
mod pages;

#[cfg(any(CONFIG_RUST_DRM_PAGEMAP, CONFIG_RUST_DRM_TTM))]
pub use self::pages::BarPages;

/// How a client reaches peer-to-peer memory, `enum pci_p2pdma_map_type`.
///
/// An open enum: kinds added by a later kernel (other interconnects, say) are values without a name
/// here, not undefined behaviour.
///
/// # Examples
///
/// ```
/// use kernel::pci::p2pdma::MapType;
///
/// assert!(MapType::BUS_ADDR.is_supported());
/// assert!(MapType::THRU_HOST_BRIDGE.is_supported());
/// assert!(!MapType::NOT_SUPPORTED.is_supported());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct MapType(u32);

impl MapType {
    /// There is no permitted route.
    pub const NOT_SUPPORTED: Self =
        Self(bindings::pci_p2pdma_map_type_PCI_P2PDMA_MAP_NOT_SUPPORTED);
    /// Below a common switch: the client uses PCI bus addresses.
    pub const BUS_ADDR: Self = Self(bindings::pci_p2pdma_map_type_PCI_P2PDMA_MAP_BUS_ADDR);
    /// Through an allowed host bridge: the client uses physical addresses, or IOVAs behind an
    /// IOMMU.
    pub const THRU_HOST_BRIDGE: Self =
        Self(bindings::pci_p2pdma_map_type_PCI_P2PDMA_MAP_THRU_HOST_BRIDGE);

    /// Returns whether a client with this kind of route can be given a mapping.
    #[inline]
    pub fn is_supported(self) -> bool {
        self == Self::BUS_ADDR || self == Self::THRU_HOST_BRIDGE
    }
}

/// A port redirecting requests between two devices below one bridge to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The address of the port.
    pub port: Address,
    /// The redirecting bits of its ACS control register: `PCI_ACS_RR`, `PCI_ACS_CR` and
    /// `PCI_ACS_EC`.
    pub acs: u16,
}

/// The facts about the host for a route through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The processor forwards requests.
    Cpu,
    /// The host bridge with these IDs decides: it has to be on the kernel's list of forwarding host
    /// bridges. The IDs are 0 if no PCI function stands for it.
    Bridge {
        /// Its PCI vendor ID.
        vendor: u16,
        /// Its PCI device ID.
        device: u16,
        /// The bridge is on the list. If there are two host bridges, the other one is as well.
        listed: bool,
    },
}

/// How a client reaches a BAR with the deciding facts, `struct pci_p2pdma_decision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The kind of mapping.
    pub map_type: MapType,
    /// PCI hops between both devices; [`None`] if there is no permitted route.
    pub distance: Option<u32>,
    /// The lowest bridge above both devices, or the device itself if both are the same; [`None`] if
    /// they meet in the host only.
    pub bridge: Option<Address>,
    /// The first redirecting port on the way from the provider to `bridge`.
    pub redirect: Option<Redirect>,
    /// The facts about the host; [`None`] for a route not going through it.
    pub host: Option<Host>,
}

impl Decision {
    /// # Safety
    ///
    /// The bridges in `raw` must be valid devices.
    unsafe fn from_raw(raw: &bindings::pci_p2pdma_decision) -> Self {
        let address = |pdev: *mut bindings::pci_dev| {
            // SAFETY: A non-null bridge is valid as the caller promises. `Device` is a transparent
            // wrapper.
            unsafe { pdev.cast::<Device>().as_ref() }.map(|bridge| bridge.address())
        };
        let map_type = MapType(raw.map_type);
        let bridge = address(raw.bridge);
        let redirect = address(raw.redirect).map(|port| Redirect {
            port,
            acs: raw.redirect_bits,
        });
        let through_host = bridge.is_none() || redirect.is_some();

        Self {
            map_type,
            distance: u32::try_from(raw.distance)
                .ok()
                .filter(|_| map_type.is_supported()),
            bridge,
            redirect,
            host: through_host.then_some(if raw.by_cpu {
                Host::Cpu
            } else {
                Host::Bridge {
                    vendor: raw.host_vendor,
                    device: raw.host_device,
                    listed: map_type.is_supported(),
                }
            }),
        }
    }
}

/// The peer-to-peer provider of one BAR.
///
/// The device is bound to its driver for `'a`.
///
/// # Examples
///
/// A driver offering BAR 2 of QEMU's `ivshmem-plain` to its peers:
///
/// ```
/// use kernel::{
///     device::Core,
///     dma::DmaMask,
///     driver,
///     module::this_module,
///     page::PAGE_SIZE,
///     pci::{
///         self,
///         p2pdma::MapType, //
///     },
///     prelude::*, //
/// };
///
/// struct Example;
///
/// kernel::pci_device_table!(
///     PCI_TABLE,
///     <Example as pci::Driver>::IdInfo,
///     [(pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, 0x1110), ())]
/// );
///
/// impl pci::Driver for Example {
///     type IdInfo = ();
///     type Data<'bound> = Self;
///
///     const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;
///     const DMA_MASK: Option<DmaMask> = Some(DmaMask::new::<64>());
///
///     fn probe<'bound>(
///         pdev: &'bound pci::Device<Core<'_>>,
///         _info: Option<&'bound ()>,
///     ) -> impl PinInit<Self, Error> + 'bound {
///         pdev.enable_device_mem()?;
///
///         assert_eq!(pdev.p2pdma_provider(2).err(), Some(ENXIO));
///         pdev.enable_p2pdma()?;
///         assert_eq!(pdev.p2pdma_provider(6).err(), Some(EINVAL));
///
///         let vram = pdev.p2pdma_provider(2)?;
///         assert_eq!(vram.bar(), 2);
///         assert_eq!(vram.bar_len(), pdev.resource_len(2)?);
///
///         // Addresses are checked: the last page is inside, the one after it is not.
///         let (start, page) = (pdev.resource_start(2)?, PAGE_SIZE as u64);
///         let last = vram.bar_len() - page;
///         assert_eq!(vram.phys_addr(last, page), Ok(start + last));
///         assert_eq!(vram.phys_addr(vram.bar_len(), page), Err(EINVAL));
///
///         // A device always reaches itself.
///         assert_eq!(vram.distance(pdev.as_ref()), Some(0));
///         assert_eq!(vram.distance_many(&[pdev.as_ref(), pdev.as_ref()]), Some(0));
///         assert_eq!(vram.distance_many(&[]), None);
///         assert_eq!(vram.map_type(pdev.as_ref()), MapType::BUS_ADDR);
///
///         // The map type has nothing to do with any other device.
///         let itself = vram.decide(pdev);
///         assert_eq!(itself.map_type, MapType::BUS_ADDR);
///         assert_eq!(itself.distance, Some(0));
///         assert_eq!(itself.bridge, Some(pdev.address()));
///         assert_eq!((itself.redirect, itself.host), (None, None));
///
///         // The device is found by its address.
///         let found = pci::Device::at(pdev.address()).ok_or(ENXIO)?;
///         assert_eq!(found.address(), pdev.address());
///
///         dev_info!(pdev, "BAR {} is open to peers\n", vram.bar());
///         Ok(Self)
///     }
/// }
///
/// // The driver binds to each such device that has no driver, until the value is dropped.
/// let driver = KBox::pin_init(
///     driver::Registration::<pci::Adapter<Example>>::new(
///         c"p2pdma_example",
///         this_module::<crate::LocalModule>(),
///     ),
///     GFP_KERNEL,
/// )?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Invariants
///
/// - `raw` is the provider of BAR `bar` of `pdev`, valid for `'a`.
/// - The BAR is a memory BAR at the physical addresses `start..start + len`. That sum does not
///   overflow, and `len` is not 0.
#[derive(Clone, Copy)]
pub struct Provider<'a> {
    raw: NonNull<bindings::p2pdma_provider>,
    pdev: &'a Device<device::Bound>,
    bar: u32,
    start: u64,
    len: u64,
}

// SAFETY: A provider is constant after its creation. The functions taking it may be called from any
// task.
unsafe impl Send for Provider<'_> {}

// SAFETY: As for `Send`.
unsafe impl Sync for Provider<'_> {}

impl<'a> Provider<'a> {
    /// Returns the device of the BAR.
    #[inline]
    pub fn device(&self) -> &'a Device<device::Bound> {
        self.pdev
    }

    /// Returns the number of the BAR.
    #[inline]
    pub fn bar(&self) -> u32 {
        self.bar
    }

    /// Returns the size of the BAR in bytes.
    #[inline]
    pub fn bar_len(&self) -> u64 {
        self.len
    }

    /// Returns the physical address of `len` bytes at `offset` of the BAR.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not inside the BAR.
    pub fn phys_addr(&self, offset: u64, len: u64) -> Result<u64> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        if end > self.len {
            return Err(EINVAL);
        }

        // OVERFLOW: By the type invariant `start + self.len` does not overflow.
        Ok(self.start + offset)
    }

    /// Returns whether the physical addresses from `start` to `end` are inside the BAR.
    #[inline]
    pub fn contains(&self, start: u64, end: u64) -> bool {
        // OVERFLOW: The type invariant excludes it.
        self.start <= start && start <= end && end <= self.start + self.len
    }

    /// Returns the number of PCI hops between the BAR and `client`, or [`None`] if there is no
    /// permitted route.
    ///
    /// Mirrors `pci_p2pdma_distance()`. If a client is not a PCI device, its nearest PCI parent is
    /// measured. [`Self::map_type`] and thus a mapping needs a PCI device as the client.
    #[inline]
    pub fn distance(&self, client: &device::Device) -> Option<u32> {
        self.distance_many(&[client])
    }

    /// Returns the sum of the PCI hops between the BAR and each of `clients`, or [`None`] if there
    /// is no permitted route to one of them or no client at all.
    ///
    /// Mirrors `pci_p2pdma_distance_many()`.
    #[inline(never)]
    pub fn distance_many(&self, clients: &[&device::Device]) -> Option<u32> {
        let count = i32::try_from(clients.len()).ok()?;

        // SAFETY: By the type invariant `pdev` is a valid device. A `&Device` is a pointer to a
        // valid `struct device`, so `clients` is an array of `count` of them. The function does not
        // write to it.
        let distance = unsafe {
            bindings::pci_p2pdma_distance_many(
                self.pdev.as_raw(),
                clients.as_ptr().cast_mut().cast(),
                count,
                false,
            )
        };

        u32::try_from(distance).ok()
    }

    /// Returns the kind of mapping of `client` for memory of this BAR.
    ///
    /// Mirrors `pci_p2pdma_map_type()`. Modules cannot call the C function.
    #[inline(never)]
    pub fn map_type(&self, client: &device::Device) -> MapType {
        // SAFETY: By the type invariant the provider is valid and so is `client`.
        MapType(unsafe { bindings::pci_p2pdma_map_type(self.raw.as_ptr(), client.as_raw()) })
    }

    /// Returns how `client` reaches the BAR with the deciding facts.
    ///
    /// The kind of mapping is that of [`Self::map_type`]. Once called, [`Self::map_type`] keeps its
    /// result even if the facts change. Mirrors `pci_p2pdma_decide()`.
    #[inline(never)]
    pub fn decide(&self, client: &Device) -> Decision {
        let mut raw = bindings::pci_p2pdma_decision::default();

        // SAFETY: By the type invariant `pdev` is a valid device and so is `client`. The structure
        // is written to and not kept.
        unsafe { bindings::pci_p2pdma_decide(self.pdev.as_raw(), client.as_raw(), &mut raw) };

        // SAFETY: The bridges are above one of both devices. A device keeps its bus for as long as
        // it is valid. The bus keeps the bridge above it.
        unsafe { Decision::from_raw(&raw) }
    }

    /// Returns whether `client` can use its addresses of this BAR with a mapping of the kind
    /// `map_type`.
    ///
    /// Bus addresses have to be in its DMA mask, which the core does not check. For a mapping
    /// through the host bridge this mirrors `dma_can_map_mmio()`.
    #[inline(never)]
    pub fn is_in_mask_of(&self, client: &device::Device, map_type: MapType) -> bool {
        match map_type {
            MapType::BUS_ADDR => {
                // SAFETY: By the type invariant the provider is valid and `client` is.
                let (bus_offset, mask) = unsafe {
                    (
                        (*self.raw.as_ptr()).bus_offset,
                        bindings::dma_get_mask(client.as_raw()),
                    )
                };
                // OVERFLOW: The type invariant excludes it.
                let last = self.start + (self.len - 1);

                last.wrapping_add(bus_offset) <= mask
            }
            // SAFETY: `client` is a valid device.
            MapType::THRU_HOST_BRIDGE => unsafe {
                // CAST: Providers exist on 64-bit kernels only.
                bindings::dma_can_map_mmio(client.as_raw(), self.start, self.len as usize)
            },
            _ => true,
        }
    }

    /// Returns the pointer to the C structure.
    #[inline]
    pub fn as_raw(&self) -> *mut bindings::p2pdma_provider {
        self.raw.as_ptr()
    }
}

impl Device {
    /// Returns whether the device is gone: it was removed by surprise or does not answer any more.
    ///
    /// Its registers and its memory read as ones and it does not access anything. Mirrors
    /// `pci_dev_is_disconnected()`.
    #[inline(never)]
    pub fn is_disconnected(&self) -> bool {
        // SAFETY: The device is valid.
        unsafe { bindings::pci_dev_is_disconnected(self.as_raw()) }
    }
}

impl Device<device::Core<'_>> {
    /// Prepares the memory BARs of the device for peers. This is undone when the driver is unbound.
    ///
    /// Mirrors `pcim_p2pdma_init()`. It asks for the [`Core`](device::Core) context because the C
    /// function must not run twice at a time for one device. Further calls do nothing.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` without `CONFIG_PCI_P2PDMA` or if the BARs cannot be mapped.
    /// - `ENOMEM` if memory runs out.
    #[inline(never)]
    pub fn enable_p2pdma(&self) -> Result {
        // SAFETY: `self` is a bound device, as a device-managed resource needs, and its device lock
        // is held.
        to_result(unsafe { bindings::pcim_p2pdma_init(self.as_raw()) })
    }
}

impl Device<device::Bound> {
    /// Returns the provider of BAR `bar`, after [`enable_p2pdma`](Device::enable_p2pdma).
    ///
    /// Mirrors `pcim_p2pdma_provider()`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no such BAR or if it is empty or not a memory BAR.
    /// - `ENXIO` if peer-to-peer was not enabled.
    ///
    /// See [`Provider`] for an example.
    #[inline(never)]
    pub fn p2pdma_provider(&self, bar: u32) -> Result<Provider<'_>> {
        // `pcim_p2pdma_provider()` indexes an array of standard BARs without a check.
        if bar >= bindings::PCI_STD_NUM_BARS {
            return Err(EINVAL);
        }

        let start = self.resource_start(bar)?;
        let len = self.resource_len(bar)?;
        if len == 0 || start.checked_add(len).is_none() {
            return Err(EINVAL);
        }

        if !self.has_p2pdma() {
            return Err(ENXIO);
        }

        // SAFETY: `self` is bound and `bar` is a standard BAR.
        // CAST: `bar` is below 6.
        let raw = unsafe { bindings::pcim_p2pdma_provider(self.as_raw(), bar as i32) };

        // Only memory BARs have a provider.
        let raw = NonNull::new(raw).ok_or(EINVAL)?;

        // INVARIANT: The provider is released by devres. So it is valid while the device is bound,
        // as `&self` promises. Start and length were checked above.
        Ok(Provider {
            raw,
            pdev: self,
            bar,
            start,
            len,
        })
    }

    /// The C function warns if it is called before `pcim_p2pdma_init()`.
    #[cfg(CONFIG_PCI_P2PDMA)]
    fn has_p2pdma(&self) -> bool {
        // SAFETY: `self` is a valid device. The pointer is only compared. It is set once while the
        // device is bound.
        !unsafe { (&raw const (*self.as_raw()).p2pdma).read_volatile() }.is_null()
    }

    #[cfg(not(CONFIG_PCI_P2PDMA))]
    fn has_p2pdma(&self) -> bool {
        false
    }
}
