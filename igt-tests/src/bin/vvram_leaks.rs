// SPDX-License-Identifier: GPL-2.0

//! Objects that are created and destroyed leave nothing behind. There are so many rounds that a
//! leak in each of them would show in the statistics of the kernel.

use std::fs;
use std::time::Duration;

use vvram_tests::fixture::Fixture;
use vvram_tests::map::PAGE64;
use vvram_tests::misc;
use vvram_tests::peer::Mode;
use vvram_tests::rebind::Unbound;
use vvram_tests::slab::repeat;
use vvram_tests::{check, fragment, igt_main, skip, uapi, Outcome};

/// A table of 65 to 127 entries is one object of the slab, of 4 KiB; a larger one comes as whole
/// pages, which `SUnreclaim` does not count.
const ENTRIES: usize = 100;
/// The shortest table, of one entry.
const ENTRY: u64 = 32;
/// Much less than the size of an object, or of its dma-buf.
const OBJECT: u64 = 512;

fn attachments() -> Outcome {
    let fixture = Fixture::with_route()?;
    if fixture.translated() {
        skip!("behind an IOMMU a table has one entry, whatever the object");
    }
    let ragged = fragment::create(&fixture.drm, &fixture.bar, ENTRIES as u64 * PAGE64, ENTRIES)?;
    let buffer = ragged.object.export()?;

    repeat(200, PAGE64, || {
        fixture.peer.attach(&buffer, Mode::Dynamic)?;
        // The cached scatter table, and the one that is in use.
        fixture.peer.map()?;
        fixture.peer.unmap()?;
        fixture.peer.map()?;
        fixture.peer.detach()?;
        fixture.peer.attach_and_map(&buffer, Mode::Dynamic)?;
        fixture.peer.unmap()?;
        Ok(fixture.peer.detach()?)
    })
}

fn system() -> Outcome {
    let fixture = Fixture::open()?;
    let object = fixture.drm.create_flags(PAGE64, uapi::CREATE_SYSTEM)?;

    fixture.peer.attach(&object.export()?, Mode::NoP2p)?;
    repeat(10_000, ENTRY, || {
        fixture.peer.map()?;
        Ok(fixture.peer.unmap()?)
    })
}

fn objects() -> Outcome {
    let fixture = Fixture::open()?;

    repeat(1000, OBJECT, || {
        let object = fixture.drm.create(PAGE64)?;
        let buffer = object.export()?;
        object.close()?;
        drop(buffer);
        Ok(())
    })
}

/// How many DRM devices there are, also unregistered ones: the workqueue of each has a rescuer.
fn devices() -> usize {
    let name = |path: std::path::PathBuf| fs::read_to_string(path.join("comm")).ok();
    let rescuers = fs::read_dir("/proc").into_iter().flatten().flatten();

    rescuers
        .filter_map(|process| name(process.path()))
        .filter(|name| name.starts_with("kworker/R-ttm") && !name.starts_with("kworker/R-ttm_"))
        .count()
}

fn device() -> Outcome {
    let before = devices();
    check!(before > 0, "no device has a workqueue of TTM");

    let fixture = Fixture::open()?;
    let object = fixture.drm.create(PAGE64)?;
    let buffer = object.export()?;
    object.close()?;
    drop(buffer);
    let gpu = fixture.gpu.clone();
    drop(fixture);
    Unbound::new(&gpu)?.rebind()?;

    let after = misc::poll(Duration::from_secs(10), || {
        (devices() == before).then_some(())
    });
    check!(
        after.is_some(),
        "{} devices after an unbind and a bind, {before} before",
        devices()
    );
    Ok(())
}

igt_main! {
    "attachments", "scatter tables of attachments that come and go", attachments;
    "system", "scatter tables of system memory", system;
    "device", "the device itself, when it is unbound", device;
    "objects", "objects and their dma-bufs", objects;
}
