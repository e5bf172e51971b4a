// SPDX-License-Identifier: GPL-2.0

//! Measures the cost of registering VRAM for RDMA, and of writing to it, in instructions.
//!
//! For a guest under icount, whose clock counts instructions. Prints and writes one figure per
//! line, `name value`; the lab makes a table of the figures and checks them.

use std::process::ExitCode;

use vvram_tests::clock::{self, Costs, Others};
use vvram_tests::fabric::Fabric;
use vvram_tests::figures::{self, Figures};
use vvram_tests::fixture::placed;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::peer::Mode;
use vvram_tests::rdma::{many_at_once, Buffer, Op, Part};
use vvram_tests::verbs::Pair;
use vvram_tests::{uapi, Outcome};

const EXPORT: u32 = uapi::CREATE_VRAM | uapi::CREATE_SYSTEM | uapi::CREATE_EXPORT_VRAM_OR_FAIL;
const MIB: u64 = 1 << 20;
const SIZES: [(&str, u64); 3] = [("4k", PAGE as u64), ("4m", 4 * MIB), ("256m", 256 * MIB)];

/// Registers and deregisters memory of one size, for each kind of memory.
fn registrations(fabric: &Fabric, name: &str, size: u64, figures: &mut Figures) -> Outcome {
    // The difference between rounds is small compared with the cost for memory of this size, except
    // for VRAM, which is one range.
    let few = if size > MIB { 4 } else { 128 };
    let (nic, access) = (&fabric.nic, fabric.nic.all_access());
    for (kind, flags, place, rounds) in [
        ("vram", EXPORT, uapi::PLACEMENT_VRAM, 128),
        ("system", uapi::CREATE_SYSTEM, uapi::PLACEMENT_SYSTEM, few),
    ] {
        let object = fabric.drm.create_flags(size, flags)?;
        let shared = object.export()?;
        // Otherwise the first registration would allocate the memory.
        object.map()?.set(0);
        let (mut there, mut back) = (Costs::default(), Costs::default());
        clock::settle();
        for _ in 0..rounds {
            let region = there.time(|| nic.register(shared.fd(), 0, size, None, access))?;
            placed(&object, place)?;
            back.time(|| region.close())?;
        }
        figures.typical(&format!("register.{name}.{kind}"), &there);
        figures.typical(&format!("deregister.{name}.{kind}"), &back);
    }
    let map = Map::anonymous(size as usize)?;
    map.set(0);
    let (mut there, mut back) = (Costs::default(), Costs::default());
    clock::settle();
    for _ in 0..few {
        let region = there.time(|| nic.register_memory(&map, access))?;
        back.time(|| region.close())?;
    }
    figures.typical(&format!("register.{name}.host"), &there);
    figures.typical(&format!("deregister.{name}.host"), &back);
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
        // The first write maps the buffer for the CPU, which is not to be measured.
        many_at_once(&pair, Op::Write, from, to, SIZE, 1, || ())?;
        // Counts the instructions of the workers of soft RoCE, which send and receive packets and
        // copy the bytes. How long they sleep in between, and how often this process polls, is
        // random. So is how many packets a worker finds when it is woken: a few rounds take a sixth
        // less than the others, so the median is used.
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
