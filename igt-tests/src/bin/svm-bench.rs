// SPDX-License-Identifier: GPL-2.0

//! Measures the cost of finding the pages of a process by `hmm_range_fault()`, in instructions.
//!
//! The pages are in system memory, or in VRAM where the device uses the pages of the BAR, or in
//! VRAM from where they migrate back first. For a guest under icount, whose clock counts
//! instructions. Prints and writes one figure per line, `name value`; the lab makes a table of the
//! figures and checks them.

use std::fs;
use std::process::ExitCode;

use vvram_tests::clock::{self, Costs};
use vvram_tests::drm::Drm;
use vvram_tests::figures::{self, Figures};
use vvram_tests::map::{Map, PAGE};
use vvram_tests::peer::Peer;
use vvram_tests::svm::{check_places, HUGE};
use vvram_tests::{check, check_eq, uapi, Outcome, Stop, SysError};

/// 256 MiB.
const PAGES: usize = 65_536;
const ROUNDS: u64 = 3;
const SMAPS: &str = "/proc/self/smaps_rollup";

/// How many pages of this process are parts of huge ones in system memory.
fn huge_pages() -> Result<usize, Stop> {
    let text = fs::read_to_string(SMAPS).map_err(|error| SysError::io(SMAPS, &error))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("AnonHugePages:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok())
        .ok_or_else(|| Stop::fail(format_args!("{SMAPS} does not tell of huge pages")))?;
    Ok(kib * 1024 / PAGE)
}

/// Finds all pages once.
fn find(peer: &Peer, flags: u32) -> Result<u64, SysError> {
    clock::settle();
    let found = peer.memory_measure(PAGES, flags)?;
    Ok(found.time.saturating_sub(found.clock))
}

/// Measures with pages of one size.
fn pages(drm: &Drm, peer: &Peer, name: &str, huge: bool, figures: &mut Figures) -> Outcome {
    let map = Map::private_aligned(PAGES * PAGE, HUGE * PAGE)?;
    let advice = if huge {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    map.advise(0..PAGES, advice)?;
    peer.register(&map)?;
    let (mut ram, mut vram, mut back) = (Costs::default(), Costs::default(), Costs::default());
    for round in 1..=ROUNDS {
        map.set(round);
        check_eq!(
            huge_pages()? >= PAGES,
            huge,
            "whether they are parts of huge pages"
        );
        ram.add(find(peer, 0)?);
        check_places(&map, |_| false)?;
        drm.svm_migrate(&map, 0..PAGES)?;
        let moved = drm.svm_moved_back()?;
        vram.add(find(peer, uapi::EDU_PEER_MEMORY_MEASURE_P2P)?);
        check_places(&map, |_| true)?;
        check_eq!(drm.svm_moved_back()?, moved, "pages that moved back");
        back.add(find(peer, 0)?);
        check_places(&map, |_| false)?;
        check!(
            map.verify_value(round).is_ok(),
            "the memory has other bytes after it has moved"
        );
    }
    peer.unregister()?;
    figures.costs(&format!("find.{name}.ram"), &ram);
    figures.costs(&format!("find.{name}.vram"), &vram);
    figures.costs(&format!("find.{name}.back"), &back);
    figures.add(&format!("find.{name}.pages"), PAGES as u64);
    Ok(())
}

fn bench(figures: &mut Figures) -> Outcome {
    clock::stay_in_memory()?;
    let (drm, peer) = (Drm::open()?, Peer::open()?);
    pages(&drm, &peer, "4k", false, figures)?;
    pages(&drm, &peer, "2m", true, figures)
}

fn main() -> ExitCode {
    figures::main(&[("", bench)])
}
