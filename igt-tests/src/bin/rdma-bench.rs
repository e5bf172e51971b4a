// SPDX-License-Identifier: GPL-2.0

//! What it costs to register VRAM for RDMA, and to write to it, in instructions.
//!
//! For a guest whose time is the number of its instructions. Prints and writes
//! one figure in each line, `name value`; the lab makes a table and judges it.

use std::process::ExitCode;

use vvram_tests::clock::{self, Costs, Others};
use vvram_tests::fabric::Fabric;
use vvram_tests::figures::{self, Figures};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::peer::Mode;
use vvram_tests::rdma::{many_at_once, Buffer, Op, Part};
use vvram_tests::scene::placed;
use vvram_tests::verbs::Pair;
use vvram_tests::{uapi, Outcome};

const EXPORT: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
const MIB: u64 = 1 << 20;
const SIZES: [(&str, u64); 3] = [("4k", PAGE as u64), ("4m", 4 * MIB), ("256m", 256 * MIB)];

/// Registers and deregisters memory of one size, of each kind.
fn registrations(fabric: &Fabric, name: &str, size: u64, figures: &mut Figures) -> Outcome {
    // What differs from one to the other is small beside what memory of this size costs, but for
    // VRAM, which is one range.
    let few = if size > MIB { 4 } else { 128 };
    let (nic, access) = (&fabric.nic, fabric.nic.all_access());
    for (kind, flags, place, rounds) in [
        ("vram", EXPORT, uapi::PLACEMENT_VRAM, 128),
        ("system", uapi::CREATE_SYSTEM, uapi::PLACEMENT_SYSTEM, few),
    ] {
        let object = fabric.drm.create_flags(size, flags)?;
        let shared = object.export()?;
        // Memory that nobody has used yet would be made by the first one.
        object.map()?.set(0);
        let (mut there, mut back) = (Costs::default(), Costs::default());
        clock::settle();
        for _ in 0..rounds {
            let region = there.time(|| nic.register(shared.fd(), 0, size, None, access))?;
            placed(&object, place)?;
            back.time(|| region.close())?;
        }
        figures.costs(&format!("register.{name}.{kind}"), &there);
        figures.costs(&format!("deregister.{name}.{kind}"), &back);
    }
    let map = Map::anonymous(size as usize)?;
    map.set(0);
    let (mut there, mut back) = (Costs::default(), Costs::default());
    clock::settle();
    for _ in 0..few {
        let region = there.time(|| nic.register_memory(&map, access))?;
        back.time(|| region.close())?;
    }
    figures.costs(&format!("register.{name}.host"), &there);
    figures.costs(&format!("deregister.{name}.host"), &back);
    Ok(())
}

/// RDMA writes, many at once, to each kind of memory.
fn writes(fabric: &Fabric, figures: &mut Figures) -> Outcome {
    const SIZE: u64 = MIB;
    const ROUNDS: usize = 16;
    let nic = &fabric.nic;
    let from = Buffer::host(nic, "source", SIZE)?;
    let host = Buffer::host(nic, "host", SIZE)?;
    let object = fabric.drm.create_flags(SIZE, EXPORT)?;
    let vram = Buffer::shared(nic, "vram", object.export()?)?;
    let pair = Pair::new(nic)?;
    for (name, to) in [("vram", &vram), ("host", &host)] {
        let (from, to) = (Part::whole(&from), Part::whole(to));
        // The first one maps the buffer for the CPU.
        many_at_once(&pair, Op::Write, from, to, SIZE, 1, || ())?;
        // What the workers of soft RoCE take, which make and take packets and copy. How long they
        // sleep in between, and how often this process asks whether they are done, is a matter of
        // chance. So is how many packets a worker finds when it is woken: now and then a round takes
        // a sixth less than all others, so the one in the middle counts.
        let mut costs = Costs::default();
        for _ in 0..ROUNDS {
            clock::settle();
            let (_, before, after) =
                many_at_once(&pair, Op::Write, from, to, 4 * SIZE, 2, Others::now)?;
            costs.add(after.since(&before));
        }
        figures.add(&format!("rdma.write.{name}"), costs.median());
    }
    Ok(())
}

fn bench(figures: &mut Figures) -> Outcome {
    clock::stay_in_memory()?;
    let fabric = Fabric::with_route()?;
    fabric.choose(Mode::Pinned)?;
    fabric.map_late()?;
    for (name, size) in SIZES {
        registrations(&fabric, name, size, figures)?;
    }
    writes(&fabric, figures)
}

fn main() -> ExitCode {
    figures::main(&[("", bench)])
}
