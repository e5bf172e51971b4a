// SPDX-License-Identifier: GPL-2.0

//! The importers of the tests: what each does when its mapping is invalidated.

use kernel::{
    dma_buf::{
        importer::Invalidated,
        Importer, //
    },
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Able to move: unmaps at once, and counts the invalidations.
pub(crate) struct Prompt(pub(crate) Atomic<u32>);

#[vtable]
impl Importer for Prompt {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.fetch_add(1, Relaxed);
        at.unmap();
    }
}

pub(crate) fn prompt() -> Prompt {
    Prompt(Atomic::new(0))
}

/// Able to move: keeps the mapping until the test unmaps it or maps again, and counts the
/// invalidations.
pub(crate) struct Late(pub(crate) Atomic<u32>);

#[vtable]
impl Importer for Late {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.fetch_add(1, Relaxed);
        let _ = at.dma_buf();
    }
}

pub(crate) fn late() -> Late {
    Late(Atomic::new(0))
}

/// Can be revoked while it pins: unmaps and unpins at once, and counts the invalidations.
pub(crate) struct Revocable(pub(crate) Atomic<u32>);

#[vtable]
impl Importer for Revocable {
    const PEER2PEER: bool = true;

    fn invalidate(&self, at: &mut Invalidated<'_>) {
        self.0.fetch_add(1, Relaxed);
        at.unmap();
        at.unpin();
    }
}

pub(crate) fn revocable() -> Revocable {
    Revocable(Atomic::new(0))
}

/// Cannot be revoked, so it pins.
pub(crate) struct Pinner;

#[vtable]
impl Importer for Pinner {
    const PEER2PEER: bool = true;
}
