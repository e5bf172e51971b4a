// SPDX-License-Identifier: GPL-2.0

//! An exporter cannot pass any address of the kernel off as the mapping of its buffer.

use kernel::{
    dma_buf::exporter::KernelMapping,
    iosys_map::IosysMap, //
};

#[expect(dead_code)]
struct Forged(IosysMap);

#[cfg(refused)]
// refused: E0200
impl KernelMapping for Forged {
    fn map(&self) -> IosysMap {
        self.0
    }

    fn size(&self) -> usize {
        1
    }
}

#[expect(dead_code)]
fn place(mapping: &dyn KernelMapping) -> IosysMap {
    mapping.map()
}
