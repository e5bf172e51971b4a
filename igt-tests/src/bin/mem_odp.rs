// SPDX-License-Identifier: GPL-2.0

//! Memory regions with on-demand paging of pages of files and of pages that the kernel swaps out.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use vvram_tests::fixture::patterns;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::rdma::Setup;
use vvram_tests::svm::{holds, places, Place};
use vvram_tests::swap::with_swap;
use vvram_tests::verbs::Nic;
use vvram_tests::{check_eq, check_ok, igt_main, Outcome, SysError};

const PAGES: usize = 8;
const SIZE: u32 = (PAGES * PAGE) as u32;

/// The NIC brings pages back that are swapped out.
fn swapped() -> Outcome {
    let (a, b) = patterns();
    with_swap("swapped", |swap| {
        let nic = Nic::open(None)?;
        let map = Map::private(PAGES * PAGE)?;
        map.fill(a);
        let setup = Setup::on_demand(&nic, &map)?;
        swap.out(&map)?;
        setup.read(a)?;
        check_eq!(places(&map)?, [Place::Ram; PAGES], "where the pages are");
        swap.out(&map)?;
        check_eq!(places(&map)?, [Place::Swap; PAGES], "where the pages are");
        setup.write(b)?;
        holds("the CPU", &map, b, 0..PAGES)?;
        setup.read(b)
    })
}

/// What the NIC writes to pages that are the same in memory and in the swap area is kept when they
/// leave memory again.
fn dirty() -> Outcome {
    let (a, b) = patterns();
    with_swap("dirty", |swap| {
        let nic = Nic::open(None)?;
        let map = Map::private(PAGES * PAGE)?;
        map.fill(a);
        let setup = Setup::on_demand(&nic, &map)?;
        swap.out(&map)?;
        holds("the CPU", &map, a, 0..PAGES)?;
        setup.write(b)?;
        setup.read(b)?;
        swap.out(&map)?;
        holds("the CPU", &map, b, 0..PAGES)
    })
}

/// What the NIC writes to a file in memory is in the file, also in its holes.
fn file() -> Outcome {
    let (a, b) = patterns();
    let path = Path::new("/dev/shm/mem_odp");
    let fail = |error: std::io::Error| SysError::io(path.display().to_string(), &error);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(fail)?;
    let _ = fs::remove_file(path);
    file.set_len(u64::from(SIZE)).map_err(fail)?;
    let map = Map::new(file.as_raw_fd(), 0, SIZE as usize)?;
    map.fill_pages(a, 0, 1);
    let nic = Nic::open(None)?;
    let setup = Setup::on_demand(&nic, &map)?;
    setup.write(b)?;
    let mut data = vec![0; SIZE as usize];
    file.read_exact_at(&mut data, 0).map_err(fail)?;
    check_ok!(b.verify(&data, 0), "the file");
    a.fill(&mut data, 0);
    file.write_all_at(&data, 0).map_err(fail)?;
    setup.read(a)
}

igt_main! {
    "swapped", "the NIC brings pages back that are swapped out", swapped;
    "dirty", "what the NIC writes is kept when a page is swapped out", dirty;
    "file", "what the NIC writes to a mapping of a file is in the file", file;
}
