// SPDX-License-Identifier: GPL-2.0

//! Ranges of the BARs of any PCI device as dma-bufs.
//!
//! This is the smallest exporter of peer-to-peer memory: the memory never moves and has no copy
//! elsewhere. The driver is bound by `driver_override` or by an ID written to `new_id`.

use kernel::{
    device,
    dma::DataDirection,
    dma_buf::{
        exporter::{
            self,
            exports::ExportsHandle,
            mapping, //
        },
        peer,
        DmaBuf,
        Exporter,
        Exports, //
    },
    fs,
    miscdevice::{
        MiscDevice,
        MiscDeviceRegistration, //
    },
    pci::{
        self,
        p2pdma::Provider, //
    },
    prelude::*,
    str::CString,
    sync::{
        Arc,
        ArcBorrow, //
    },
    types::CovariantForLt,
    uaccess,
    uapi, //
};

type Device = pci::Device<device::Bound>;

/// The memory BARs of a device by their numbers. An I/O port BAR or an absent BAR is [`None`].
type Bars<'a> = [Option<Provider<'a>>; 6];

fn provider<'a>(bars: &Bars<'a>, bar: usize) -> Result<Provider<'a>> {
    bars.get(bar).copied().flatten().ok_or(EINVAL)
}

/// The number of ranges to copy from userspace at once.
const BATCH: usize = 16;
/// The maximum number of ranges to reserve memory for before they are read.
const ROOM: usize = 4096;

/// Exported ranges of a BAR.
struct Ranges {
    bar: usize,
    list: Arc<mapping::RangeList>,
}

static OPS: exporter::Ops<Ranges> = exporter::Ops::new();

#[vtable]
impl Exporter for Ranges {
    type Bound = CovariantForLt!(Bars<'_>);
    type Prepared = ();
    type Attachment = ();

    const NAME: &'static CStr = c"bar_export";
    const OPS: &'static exporter::Ops<Self> = &OPS;

    fn prepare_attach(&self) {}

    fn attach(
        &self,
        cx: &exporter::LockedBuffer<'_, Self>,
        req: &mut exporter::AttachRequest<'_>,
        _prepared: (),
    ) -> Result {
        peer::require_path(&provider(cx.bound(), self.bar)?, req)?;
        // Refuse importers that cannot be revoked: they could block an unbind.
        req.is_revocable().then_some(()).ok_or(EOPNOTSUPP)
    }

    fn map<'r>(
        &self,
        _cx: &exporter::LockedBuffer<'_, Self>,
        at: &exporter::MapRequest<'r, Self>,
        dir: DataDirection,
    ) -> Result<mapping::Mapping<'r>> {
        at.map_mmio(|bars| provider(bars, self.bar), &self.list, dir)
    }
}

/// The character device.
struct CharDevice(ExportsHandle<Ranges>);

#[vtable]
impl MiscDevice for CharDevice {
    type RegistrationData = Arc<Self>;
    type Ptr = Arc<Self>;

    fn open(_file: &fs::File, misc: &MiscDeviceRegistration<Self>) -> Result<Arc<Self>> {
        Ok(misc.data().clone())
    }

    fn ioctl(me: ArcBorrow<'_, Self>, _file: &fs::File, cmd: u32, arg: usize) -> Result<isize> {
        if cmd != uapi::BAR_EXPORT_IOC_EXPORT {
            return Err(ENOTTY);
        }

        let slice =
            |addr, len| uaccess::UserSlice::new(uaccess::UserPtr::from_addr(addr), len).reader();
        let mut reader = slice(arg, size_of::<uapi::bar_export>());
        let request = uapi::bar_export {
            bar: reader.read()?,
            flags: reader.read()?,
            count: reader.read()?,
            pad: reader.read()?,
            ranges: reader.read()?,
        };
        if request.flags != 0 || request.pad != 0 {
            return Err(EINVAL);
        }
        if request.count > uapi::BAR_EXPORT_MAX_RANGES {
            return Err(EINVAL);
        }

        let count = request.count.try_into()?;
        let len = size_of::<uapi::bar_export_range>().checked_mul(count);
        let mut reader = slice(request.ranges.try_into()?, len.ok_or(EINVAL)?);
        let mut list = mapping::RangeList::new();
        list.reserve(count.min(ROOM), GFP_KERNEL_ACCOUNT)?;
        let mut add = |ranges: &[[u64; 2]]| -> Result {
            list.reserve(ranges.len(), GFP_KERNEL_ACCOUNT)?;
            ranges
                .iter()
                .try_for_each(|&[offset, len]| list.push_piece(offset, len))
        };
        while reader.len() >= size_of::<[[u64; 2]; BATCH]>() {
            add(&reader.read::<[[u64; 2]; BATCH]>()?)?;
        }
        while !reader.is_empty() {
            add(&[reader.read()?])?;
        }
        let bar = request.bar.try_into()?;
        let buf = me.0.with(|exports| {
            let list = list.move_to_bar(&provider(exports.bound(), bar)?)?;
            let size = list.size();
            exports.export(Ranges { bar, list }, size, fs::file::flags::O_RDWR)
        })?;
        Ok(DmaBuf::into_fd(buf, fs::file::flags::O_CLOEXEC)? as isize)
    }
}

struct BarExport;

kernel::pci_device_table!(PCI_TABLE, <BarExport as pci::Driver>::IdInfo, []);

impl pci::Driver for BarExport {
    type IdInfo = ();
    type Data<'bound> = MiscDeviceRegistration<CharDevice>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = &PCI_TABLE;

    const HANDLES_RESET: bool = true;

    // The content of the memory behind a BAR and the way to restore it are unknown.
    const SLEEP: pci::Sleep = pci::Sleep::Refused;

    fn probe<'bound>(
        pdev: &'bound pci::Device<device::Core<'_>>,
        _info: Option<&'bound ()>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            pdev.enable_device_mem()?;
            pdev.enable_p2pdma()?;

            let exports = Exports::new::<Device>(pdev, |pdev| {
                Ok(core::array::from_fn(|bar| {
                    // CAST: It is less than 6.
                    pdev.p2pdma_provider(bar as u32).ok()
                }))
            })?
            .into_handle();
            let name = CString::try_from_fmt(fmt!("bar-export-{}", pdev.as_ref().name()))?;
            let device = Arc::new(CharDevice(exports), GFP_KERNEL);
            Ok(MiscDeviceRegistration::register_named(name, device))
        })
    }

    // No importer accesses a BAR while the device does not decode its addresses.
    fn reset_prepare<'bound>(
        pdev: &'bound pci::Device<device::Core<'_>>,
        this: Pin<&Self::Data<'bound>>,
    ) {
        if let Err(e) = this.data().0.revoke(pdev.as_ref()) {
            dev_err!(pdev, "buffers stay mapped in a reset: {:?}\n", e);
        }
    }
}

kernel::module_pci_driver! {
    type: BarExport,
    name: "bar_export",
    authors: ["The vvram authors"],
    description: "PCI BARs as dma-bufs",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}
