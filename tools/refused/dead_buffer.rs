// SPDX-License-Identifier: GPL-2.0

//! An exporter whose buffer is revoked has nothing to take a reference of, to a file that may be gone.

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
