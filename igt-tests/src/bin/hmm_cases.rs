// SPDX-License-Identifier: GPL-2.0

//! The cases of the kernel's own hmm-tests for device private pages and their P2PDMA pages.

use std::process::Command;

use vvram_tests::dmirror::TestHmm;
use vvram_tests::igt::say;
use vvram_tests::{check, igt_main, Outcome};

const PROGRAM: &str = "/lab/selftests/hmm-tests";

/// Runs one case.
fn case(name: &str) -> Outcome {
    let ran = Command::new(PROGRAM).args(["-r", name]).output();
    let Ok(ran) = ran else {
        vvram_tests::fail!("{PROGRAM}: {ran:?}");
    };
    let text = String::from_utf8_lossy(&ran.stdout);
    for line in text.lines() {
        say(line);
    }
    let errors = String::from_utf8_lossy(&ran.stderr);
    for line in errors.lines() {
        say(line);
    }
    // The line of a case that is skipped begins with "ok", too, but is longer.
    let passed = format!("ok 1 {name}");
    check!(
        ran.status.success() && text.lines().any(|line| line == passed),
        "{name} did not pass: {}: {}",
        ran.status,
        errors.trim().replace('\n', ", ")
    );
    Ok(())
}

/// A case of devices with device private memory.
fn private(name: &str) -> Outcome {
    let hmm = TestHmm::load()?;
    case(&format!("hmm_private.{name}"))?;
    hmm.close()
}

/// A case of a device whose memory is in a BAR.
fn p2p(name: &str) -> Outcome {
    let hmm = TestHmm::with_memory()?;
    case(&format!("hmm_p2p.{name}"))?;
    hmm.close()
}

igt_main! {
    "kill-in-fault", "a process is killed while a fault that does nothing is repeated",
        || private("kill_in_fault");
    "write-after-fork", "a device writes to its pages, which a child has as well",
        || private("write_after_fork");
    "write-after-fork-huge", "the same with a huge page",
        || private("write_after_fork_huge");
    "trapped", "a device reads its pages, and userfaultfd traps that",
        || private("trapped");
    "trapped-huge", "the same with a huge page",
        || private("trapped_huge");
    "read-inside-huge", "a device reads a part of a huge page of its own",
        || private("read_inside_huge");
    "snapshot-of-others", "what a device sees of the pages of another one",
        || private("snapshot_of_others");
    "snapshot-of-others-huge", "the same with a huge page",
        || private("snapshot_of_others_huge");
    "read-next-to-hole", "pages of a device behind one that is not there stay",
        || private("read_next_to_hole");
    "evict-behind-free-folio", "pages that were part of a huge page leave the device",
        || private("evict_behind_free_folio");
    "p2p-access", "a peer reads and writes device memory where it is",
        || p2p("access");
    "p2p-access-huge", "the same with a huge page",
        || p2p("access_huge");
    "p2p-unaligned-huge", "the same with a huge page that is not aligned in the BAR",
        || p2p("unaligned_huge");
    "p2p-read-inside-huge", "a peer reads a part of a huge page",
        || p2p("read_inside_huge");
    "p2p-holes", "pages that no peer can reach are migrated, and only these",
        || p2p("holes");
    "p2p-holes-huge", "a huge page with such pages is migrated",
        || p2p("holes_huge");
    "p2p-hole-first-huge", "the same if the first page is one",
        || p2p("hole_first_huge");
    "p2p-write-after-fork", "a peer writes to pages that a child has as well",
        || p2p("write_after_fork");
    "p2p-write-after-fork-huge", "the same with a huge page",
        || p2p("write_after_fork_huge");
    "p2p-trapped", "a peer reads pages, and userfaultfd traps that",
        || p2p("trapped");
    "p2p-trapped-huge", "the same with a huge page",
        || p2p("trapped_huge");
    "p2p-not-asked-for", "a peer that does not ask for it gets pages migrated",
        || p2p("not_asked_for");
    "p2p-no-route", "a peer that does not reach the memory gets what it needs migrated",
        || p2p("no_route");
    "p2p-no-route-huge", "the same with a huge page",
        || p2p("no_route_huge");
    "p2p-release", "a device gives up its memory while a peer uses it",
        || p2p("release");
    "p2p-read-while-migrating", "a peer reads pages that come and go",
        || p2p("read_while_migrating");
}
