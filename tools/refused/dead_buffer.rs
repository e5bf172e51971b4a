// SPDX-License-Identifier: GPL-2.0

//! The hook that revokes a buffer cannot take a reference to its file, which may be gone.

use kernel::dma_buf::{
    exporter::Exporter,
    DmaBuf, //
};

#[expect(dead_code)]
fn revoke<E: Exporter>(exporter: &E, buf: &DmaBuf) {
    // refused: E0061
    #[cfg(refused)]
    exporter.revoke(buf);

    #[cfg(not(refused))]
    exporter.revoke();
    let _ = buf.size();
}
