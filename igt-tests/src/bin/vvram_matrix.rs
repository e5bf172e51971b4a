// SPDX-License-Identifier: GPL-2.0

//! Every kind of object with every pair of importers: placement, path, reason and bytes.
//!
//! The expected results come from the rules in `policy`. Each cell prints one line with the
//! results, from which the lab makes a table:
//!
//! `cell object=O first=F second=S order=N placement=P got=PATH/REASON,PATH/REASON verdict=V`
//!
//! A cell is `ok` if the placement, and the path and reason of each importer are as expected, if
//! all mappings have the addresses of the object, if the importers read by DMA the bytes that
//! others have written, and the reverse, and if nothing is left behind.

use vvram_tests::debugfs::Counter;
use vvram_tests::drm::{path_name, reason_name, DmaBuf, Gem};
use vvram_tests::fixture::{
    cpu_reads, in_system_memory, patterns, peer_reads, peer_writes, placed, Expect, Fixture,
};
use vvram_tests::igt::say;
use vvram_tests::map::{Map, PAGE};
use vvram_tests::misc;
use vvram_tests::pattern::Pattern;
use vvram_tests::peer::{Mode, Peer};
use vvram_tests::policy::{importer_name, Expected, Gets, Object, Order, Rules, IMPORTERS};
use vvram_tests::{check, check_eq, expect_errno, fail, igt_main, uapi, Outcome, Stop};

const PAGES: usize = 4;

/// One combination.
#[derive(Clone, Copy, Debug)]
struct Cell {
    object: Object,
    first: Mode,
    /// The second importer, and when it attaches.
    second: Option<(Mode, Order)>,
}

/// The results of a cell.
#[derive(Debug, Default)]
struct Seen {
    placement: Option<u32>,
    got: Vec<Gets>,
}

/// An importer, or one that was refused.
struct Importer {
    peer: Peer,
    mode: Mode,
    refused: bool,
}

/// The state of a cell while it runs.
struct Run<'a> {
    fixture: &'a Fixture,
    rules: Rules,
    object: Gem<'a>,
    map: Map,
    buffer: DmaBuf,
    importers: Vec<Importer>,
    /// The pattern of each page.
    pages: [Pattern; PAGES],
    /// The pattern from which the next one is derived.
    seed: Pattern,
}

impl<'a> Run<'a> {
    fn new(fixture: &'a Fixture, rules: Rules, object: Object) -> Result<Self, Stop> {
        let (seed, _) = patterns();
        let bo = fixture
            .drm
            .create_flags((PAGES * PAGE) as u64, object.flags())?;
        let map = bo.map()?;
        map.fill(seed);
        placed(&bo, object.home())?;
        let buffer = bo.export()?;
        Ok(Self {
            fixture,
            rules,
            object: bo,
            map,
            buffer,
            importers: Vec::new(),
            pages: [seed; PAGES],
            seed,
        })
    }

    /// Attaches an importer, which is expected to succeed or to be refused, and moves nothing.
    fn attach(&mut self, mode: Mode, want: Gets) -> Outcome {
        let before = self.object.info()?.placement;
        let peer = self.fixture.peer.reopen()?;
        let result = peer.attach(&self.buffer, mode);
        let refused = want.path == uapi::PATH_REFUSED;
        if refused {
            let what = format!("attaching in mode {mode:?}");
            expect_errno(&what, result, libc::EOPNOTSUPP)?;
        } else {
            result?;
        }
        check_eq!(
            self.object.info()?.placement,
            before,
            "placement after the attach in mode {mode:?}"
        );
        self.importers.push(Importer {
            peer,
            mode,
            refused,
        });
        Ok(())
    }

    /// Pins if the class does, and maps.
    fn map(&self, index: usize) -> Outcome {
        let importer = &self.importers[index];
        if !importer.refused {
            importer.peer.pin_and_map(importer.mode)?;
        }
        Ok(())
    }

    /// How often the mapping of an importer was invalidated.
    fn invalidations(&self, index: usize) -> Result<u64, Stop> {
        Ok(self.importers[index].peer.status()?.invalidations)
    }

    /// Records the placement of the object, and the path and reason of each importer.
    fn look(&self, seen: &mut Seen) -> Outcome {
        seen.placement = Some(self.object.info()?.placement);
        seen.got.clear();
        let list = self.object.attachments()?;
        // The attachments come first, oldest first, then the refusals.
        let (mut live, mut refused): (Vec<_>, Vec<_>) =
            list.iter().partition(|entry| !entry.refused());
        for importer in &self.importers {
            let entries = match importer.refused {
                true => &mut refused,
                false => &mut live,
            };
            check!(
                !entries.is_empty(),
                "no entry of the importer in mode {:?}: {list:?}",
                importer.mode
            );
            let entry = entries.remove(0);
            check_eq!(
                entry.device,
                self.fixture.peer.name(),
                "the device of an attachment"
            );
            seen.got.push(Gets {
                path: entry.path,
                reason: entry.reason,
            });
        }
        if !live.is_empty() || !refused.is_empty() {
            fail!("more entries than importers: {list:?}");
        }
        Ok(())
    }

    /// Compares the results with the rules, and the mappings with the placement.
    fn compare(&self, seen: &Seen, want: &Expected) -> Outcome {
        check_eq!(seen.placement, Some(want.placement), "placement");
        let got: Vec<_> = [Some(want.first), want.second]
            .into_iter()
            .flatten()
            .collect();
        check_eq!(seen.got, got, "path and reason of each importer");
        let live = || self.importers.iter().filter(|at| !at.refused);
        let held = live().any(|at| Rules::holds(at.mode));
        check_eq!(self.object.info()?.pinned, u32::from(held), "pinned");
        for importer in live() {
            // An importer that was invalidated has no mapping until it maps again.
            importer.peer.map()?;
            self.leads_to(&importer.peer, want.placement)?;
        }
        placed(&self.object, want.placement)
    }

    /// Checks that the mapping of an importer has the addresses of the object.
    fn leads_to(&self, peer: &Peer, placement: u32) -> Outcome {
        if placement == uapi::PLACEMENT_VRAM {
            self.fixture.check_table(peer, &self.map)?;
            return Ok(());
        }
        in_system_memory(self.fixture, peer)
    }

    /// Makes the device of an importer write a page.
    fn write(&mut self, index: usize, page: usize) -> Outcome {
        if self.importers[index].refused {
            return Ok(());
        }
        self.seed = self.seed.derive(1 + page as u64);
        self.pages[page] = self.seed;
        peer_writes(&self.importers[index].peer, self.seed, &[page])
    }

    /// Makes the device of an importer read a page.
    fn read(&self, index: usize, page: usize) -> Outcome {
        if self.importers[index].refused {
            return Ok(());
        }
        peer_reads(&self.importers[index].peer, self.pages[page], &[page])
    }

    fn cpu_reads_all(&self) -> Outcome {
        for (page, pattern) in self.pages.iter().enumerate() {
            cpu_reads(&self.map, *pattern, &[page])?;
        }
        Ok(())
    }

    /// Runs a cell with one importer.
    fn one(&mut self, cell: Cell, seen: &mut Seen) -> Outcome {
        let want = self.rules.alone(cell.object, cell.first);
        self.attach(cell.first, want.first)?;
        self.map(0)?;
        self.look(seen)?;
        self.compare(seen, &want)?;
        self.write(0, 0)?;
        self.read(0, 1)?;
        self.cpu_reads_all()
    }

    /// Runs a cell with two importers.
    fn two(&mut self, cell: Cell, second: Mode, order: Order, seen: &mut Seen) -> Outcome {
        let alone = self.rules.alone(cell.object, cell.first);
        let want = self.rules.both(cell.object, order, cell.first, second);
        let want_second = want.second.unwrap_or(want.first);
        self.attach(cell.first, want.first)?;
        if order == Order::Early {
            self.attach(second, want_second)?;
            self.map(0)?;
            placed(&self.object, want.placement)?;
        } else {
            self.map(0)?;
            self.look(seen)?;
            self.compare(seen, &alone)?;
            self.write(0, 0)?;
        }
        let invalidations = self.invalidations(0)?;
        let before = self.object.info()?.placement;
        if order == Order::Late {
            self.attach(second, want_second)?;
        }
        self.map(1)?;
        // The mapping is invalidated by a move, and by nothing else.
        check_eq!(
            self.invalidations(0)? > invalidations,
            want.placement != before,
            "whether the first importer was notified of a move"
        );
        // The path of the first importer is only known once it maps again, so it does that first.
        self.map(0)?;
        self.look(seen)?;
        self.compare(seen, &want)?;
        // A transfer takes 100 ms. Both directions of each importer are in the cells of one
        // importer.
        self.write(1, 1)?;
        self.read(0, 1)?;
        if misc::soak() > 1 {
            self.read(1, 0)?;
            self.write(0, 2)?;
        }
        self.cpu_reads_all()?;
        placed(&self.object, want.placement)
    }

    /// All importers detach. A peer that attaches then gets the object as if no importer had been
    /// there.
    fn back(&mut self, cell: Cell) -> Outcome {
        if matches!(cell.second, Some((_, Order::Late))) {
            self.importers.reverse();
        }
        for importer in self.importers.drain(..).filter(|at| !at.refused) {
            importer.peer.detach()?;
        }
        let list = self.object.attachments()?;
        check!(
            list.iter().all(|entry| entry.refused()),
            "attachments are left: {list:?}"
        );
        check_eq!(self.object.info()?.pinned, 0, "pinned at the end");
        check_eq!(
            self.fixture.drm.counter(Counter::VramPinned)?,
            0,
            "pinned VRAM at the end"
        );
        let want = self.rules.alone(cell.object, Mode::Dynamic);
        self.attach(Mode::Dynamic, want.first)?;
        self.map(0)?;
        placed(&self.object, want.placement)?;
        // Refusals from before are still listed.
        let list = self.object.attachments()?;
        let entry = match self.importers[0].refused {
            true => list.last(),
            false => list.first(),
        };
        check_eq!(
            entry.map(|at| (at.path, at.reason)),
            Some((want.first.path, want.first.reason)),
            "what a peer has that comes afterwards"
        );
        if !self.importers[0].refused {
            self.leads_to(&self.importers[0].peer, want.placement)?;
        }
        if cell.second.is_none() || misc::soak() > 1 {
            self.read(0, 1)?;
        }
        self.cpu_reads_all()
    }
}

/// Tries one cell and prints its line.
fn cell(fixture: &Fixture, rules: Rules, cell: Cell) -> Outcome {
    let mut seen = Seen::default();
    let outcome = Run::new(fixture, rules, cell.object).and_then(|mut run| {
        match cell.second {
            None => run.one(cell, &mut seen)?,
            Some((second, order)) => run.two(cell, second, order, &mut seen)?,
        }
        run.back(cell)
    });
    let (second, order) = match cell.second {
        Some((second, order)) => (importer_name(second), order.name()),
        None => ("none", "alone"),
    };
    let got: Vec<_> = seen
        .got
        .iter()
        .map(|got| format!("{}/{}", path_name(got.path), reason_name(got.reason)))
        .collect();
    say(&format!(
        "cell object={} first={} second={second} order={order} placement={} got={} verdict={}",
        cell.object.name(),
        importer_name(cell.first),
        match seen.placement {
            Some(uapi::PLACEMENT_VRAM) => "vram",
            Some(uapi::PLACEMENT_SYSTEM) => "system",
            _ => "unknown",
        },
        if got.is_empty() {
            "nothing".to_string()
        } else {
            got.join(",")
        },
        match &outcome {
            Ok(()) => "ok".to_string(),
            Err(stop) => format!("WRONG {}", stop.text()),
        }
    ));
    outcome
}

/// All cells of one kind of object and one first importer.
fn row(object: Object, first: Mode) -> Outcome {
    let fixture = Fixture::open()?;
    let rules = Rules {
        route: match fixture.expect {
            Expect::Refused => None,
            route => Some(route.path()),
        },
    };
    let mut cells = vec![None];
    for order in [Order::Early, Order::Late] {
        cells.extend(IMPORTERS.map(|second| Some((second, order))));
    }
    let outcomes: Vec<_> = cells
        .into_iter()
        .map(|second| {
            let combination = Cell {
                object,
                first,
                second,
            };
            cell(&fixture, rules, combination)
        })
        .collect();
    // All cells were run, also after a failure.
    outcomes.into_iter().collect()
}

igt_main! {
    "vram-static", "static first, of VRAM only", || row(Object::Vram, Mode::Static);
    "vram-no-p2p", "no-p2p first, of VRAM only", || row(Object::Vram, Mode::NoP2p);
    "vram-dynamic", "dynamic first, of VRAM only", || row(Object::Vram, Mode::Dynamic);
    "vram-pinned", "pinned first, of VRAM only", || row(Object::Vram, Mode::Pinned);
    "vram-revocable", "revocable first, of VRAM only", || row(Object::Vram, Mode::Revocable);
    "system-static", "static first, of system memory", || row(Object::System, Mode::Static);
    "system-no-p2p", "no-p2p first, of system memory", || row(Object::System, Mode::NoP2p);
    "system-dynamic", "dynamic first, of system memory", || row(Object::System, Mode::Dynamic);
    "system-pinned", "pinned first, of system memory", || row(Object::System, Mode::Pinned);
    "system-revocable", "revocable first, of system memory",
        || row(Object::System, Mode::Revocable);
    "either-static", "static first, of an object that moves", || row(Object::Either, Mode::Static);
    "either-no-p2p", "no-p2p first, of an object that moves", || row(Object::Either, Mode::NoP2p);
    "either-dynamic", "dynamic first, of an object that moves",
        || row(Object::Either, Mode::Dynamic);
    "either-pinned", "pinned first, of an object that moves", || row(Object::Either, Mode::Pinned);
    "either-revocable", "revocable first, of an object that moves",
        || row(Object::Either, Mode::Revocable);
}
