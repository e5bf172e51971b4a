// SPDX-License-Identifier: GPL-2.0

//! VRAM behind a PCI BAR, exported peer to peer.
//!
//! The reference for drivers adopting [`kernel::drm::gem::peer`]. The layers from the top: `file`
//! (the ioctls) and `copy` (the copy ioctl); `gem` (the objects for the layers of the kernel
//! crate); `driver` (probe and the data of the bound driver); `hw` (the differences between
//! devices); `vm` (address spaces of clients, like those of a GPU with page tables); `svm` (process
//! memory in VRAM); `layout` (for tests: a BAR with VRAM in another order, and VRAM with holes).

mod copy;
mod driver;
mod file;
mod gem;
mod hw;
mod layout;
mod svm;
mod vm;

use crate::driver::VvramDriver;

kernel::module_pci_driver! {
    type: VvramDriver,
    name: "vvram",
    authors: ["The vvram authors"],
    description: "VRAM behind a PCI BAR, exported peer to peer",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
    params: {
        visible_kib: u64 {
            default: 0,
            description: "How much of VRAM the CPU and peers see, in KiB (default: all of it)",
        },
        pin_percent: u64 {
            default: 50,
            description: "How much may be pinned of the VRAM that the CPU and peers see, in percent",
        },
        client_pin_percent: u64 {
            default: 100,
            description: "How much of it may be pinned on the account of one client, in percent",
        },
        unrevocable_percent: u64 {
            default: 100,
            description: "How much of it importers may pin that cannot be revoked, in percent (0: they get none)",
        },
        struct_pages: u8 {
            default: 1,
            description: "Make struct pages for the BAR, which direct I/O and device-private memory need (0: none, saves 1.56 percent of VRAM in system memory)",
        },
        svm: u8 {
            default: 1,
            description: "Let processes have their memory in VRAM (0: not, saves 1.56 percent of VRAM in system memory)",
        },
        scramble: u8 {
            default: 0,
            description: "Let the BAR show the pages of VRAM in another order, to test that",
        },
        holes: u8 {
            default: 0,
            description: "Keep pages in the middle of VRAM from being used, to test that",
        },
        lossy_suspend: u8 {
            default: 0,
            description: "Let VRAM lose its content when the device is suspended, to test that",
        },
    },
}
