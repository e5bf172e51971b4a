// SPDX-License-Identifier: GPL-2.0

//! Pairs of calls on one handle at the same time, one of which ends what the handle stands for.
//!
//! Two threads make the one call, and two threads the other one. In some rounds the order is given,
//! so that it is known which calls succeed; in the others all threads start at once, with short
//! random delays.

use std::fmt::Debug;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::drm::{DmaBuf, Drm, Gem};
use crate::fence::SyncObj;
use crate::fixture::{cpu_reads, patterns};
use crate::map::{Map, PAGE64};
use crate::misc::{self, Lcg};
use crate::pattern::Pattern;
use crate::uapi::{SyncEntry, VvramGemCopy};
use crate::{errno_name, Outcome, Stop, SysError};

/// How many threads make each call.
pub const CALLERS: usize = 2;
/// Rounds of a pair; in two of [`KINDS`] rounds the order is given.
const ROUNDS: u64 = 16;
const KINDS: u64 = 4;
/// How long a thread sleeps between looks at the others.
const NAP: Duration = Duration::from_micros(20);
/// A delay is at most so many turns of a loop.
const DELAY: u64 = 4000;

/// The order of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The calls are made before the end.
    Before,
    /// The calls are made after it.
    After,
    /// All at once.
    Race,
}

/// The errors of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Errors {
    /// What a call returns after the end; 0 if it succeeds.
    pub call: i32,
    /// What a call may return in addition while the end is under way.
    pub racing: &'static [i32],
    /// What the second end returns.
    pub end: i32,
    /// The second end may also succeed, because a call has undone the first one.
    pub again: bool,
}

/// Waits until as many threads as given have come here.
fn meet(count: &AtomicUsize, all: usize) {
    count.fetch_add(1, Ordering::AcqRel);
    while count.load(Ordering::Acquire) < all {
        // There may be more threads than processors of the host.
        thread::sleep(NAP);
    }
}

/// Makes the calls of one pair, in many rounds.
///
/// In each round `make` makes the state of both. `call` is made by each of [`CALLERS`] threads,
/// with the number of the thread, and `end` as well: the first one succeeds. Then `check` gets what
/// the calls have returned, [`None`] for those that have failed.
///
/// # Errors
///
/// Fails the subtest if a call returns another error than it should, if there are not as many
/// successes as the given orders make, and all errors of `make` and `check`.
#[track_caller]
pub fn race<T: Sync, R: Send>(
    name: &str,
    errors: Errors,
    mut make: impl FnMut(Pattern) -> Result<T, Stop>,
    call: impl Fn(&T, usize) -> Result<R, SysError> + Sync,
    end: impl Fn(&T) -> Result<(), SysError> + Sync,
    mut check: impl FnMut(T, Vec<Option<R>>) -> Outcome,
) -> Outcome {
    let rounds = ROUNDS * misc::soak();
    let mut random = Lcg::new(misc::nonce());
    let (mut won, mut raced) = (0, 0);
    for round in 0..rounds {
        let order = match round % KINDS {
            0 => Order::Before,
            1 => Order::After,
            _ => Order::Race,
        };
        let state = make(Pattern::new(misc::nonce()))?;
        let delays: [u64; 2 * CALLERS] = std::array::from_fn(|_| random.below(DELAY));
        let (at_start, first) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let begin = |side: usize, thread: usize| {
            meet(&at_start, 2 * CALLERS);
            let waits = match order {
                Order::Before => side == 1,
                Order::After => side == 0,
                Order::Race => false,
            };
            if waits {
                while first.load(Ordering::Acquire) < CALLERS {
                    thread::sleep(NAP);
                }
            }
            for _ in 0..delays[side * CALLERS + thread] {
                spin_loop();
            }
        };
        let done = || first.fetch_add(1, Ordering::AcqRel);
        let (called, ended) = thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|index| {
                    let (begin, done, call, state) = (&begin, &done, &call, &state);
                    scope.spawn(move || {
                        begin(0, index);
                        let result = call(state, index);
                        done();
                        result
                    })
                })
                .collect();
            let enders: Vec<_> = (0..CALLERS)
                .map(|index| {
                    let (begin, done, end, state) = (&begin, &done, &end, &state);
                    scope.spawn(move || {
                        begin(1, index);
                        let result = end(state);
                        done();
                        result
                    })
                })
                .collect();
            let join = "a thread of a pair has not panicked";
            let called: Vec<_> = callers.into_iter().map(|t| t.join().expect(join)).collect();
            let ended: Vec<_> = enders.into_iter().map(|t| t.join().expect(join)).collect();
            (called, ended)
        });
        let results = judge(name, round, order, errors, called, &ended)?;
        if order == Order::Race {
            raced += results.len();
            won += results.iter().flatten().count();
        }
        check(state, results)?;
    }
    println!(
        "{name}: seed {}, {rounds} rounds, {won} of {raced} calls that raced with the end succeeded",
        misc::seed()
    );
    Ok(())
}

/// Checks what the calls of a round have returned.
#[track_caller]
fn judge<R>(
    name: &str,
    round: u64,
    order: Order,
    errors: Errors,
    called: Vec<Result<R, SysError>>,
    ended: &[Result<(), SysError>],
) -> Result<Vec<Option<R>>, Stop> {
    let place = format!("{name}, round {round}, {order:?}");
    let succeeded = ended.iter().filter(|result| result.is_ok()).count();
    check!(
        succeeded == 1 || errors.again && succeeded > 1,
        "{place}: {succeeded} ends have succeeded: {ended:?}"
    );
    for error in ended.iter().filter_map(|result| result.as_ref().err()) {
        check!(
            error.errno == errors.end,
            "{place}: {error}, and not {}",
            errno_name(errors.end)
        );
    }
    let mut results = Vec::new();
    for result in called {
        let fits = match (&result, order) {
            (Ok(_), Order::After) => errors.call == 0,
            (Ok(_), _) => true,
            (Err(_), Order::Before) => false,
            (Err(error), Order::After) => error.errno == errors.call,
            (Err(error), Order::Race) => {
                error.errno == errors.call || errors.racing.contains(&error.errno)
            }
        };
        let said = match &result {
            Ok(_) => "a call has succeeded".to_string(),
            Err(error) => error.to_string(),
        };
        check!(fits, "{place}: {said}; the ends: {ended:?}");
        results.push(result.ok());
    }
    Ok(results)
}

/// An unknown handle.
const UNKNOWN: Errors = Errors {
    call: libc::ENOENT,
    racing: &[],
    end: libc::EINVAL,
    again: false,
};

/// Two objects of a page for each caller, whose mappings stay when the handles are closed.
struct Objects<'a> {
    drm: &'a Drm,
    src: Gem<'a>,
    dst: Gem<'a>,
    to: Map,
    patterns: (Pattern, Pattern),
}

impl<'a> Objects<'a> {
    fn new(drm: &'a Drm, pattern: Pattern) -> Result<Self, Stop> {
        let size = CALLERS as u64 * PAGE64;
        let (src, dst) = (drm.create(size)?, drm.create(size)?);
        let (from, to) = (src.map()?, dst.map()?);
        let patterns = (pattern, patterns().0);
        from.fill(patterns.0);
        to.fill(patterns.1);
        Ok(Self {
            drm,
            src,
            dst,
            to,
            patterns,
        })
    }

    /// Copies the page of a caller.
    fn copy(&self, index: usize, ins: &[SyncEntry], outs: &[SyncEntry]) -> Result<(), SysError> {
        let offset = index as u64 * PAGE64;
        let argument = VvramGemCopy {
            src: self.src.handle(),
            dst: self.dst.handle(),
            src_offset: offset,
            dst_offset: offset,
            size: PAGE64,
            ..Default::default()
        };
        self.drm.copy_syncs(&argument, ins, outs)
    }

    /// Waits for all copies that were queued.
    fn flush(&self) -> Outcome {
        let (src, dst) = (self.drm.create(PAGE64)?, self.drm.create(PAGE64)?);
        self.drm.copy((&src, 0), (&dst, 0), PAGE64)?.finish()
    }

    /// Checks that the copies of the callers were done, and no others.
    #[track_caller]
    fn copied(&self, done: &[bool]) -> Outcome {
        self.flush()?;
        for (page, done) in done.iter().enumerate() {
            let pattern = if *done {
                self.patterns.0
            } else {
                self.patterns.1
            };
            cpu_reads(&self.to, pattern, &[page])?;
        }
        Ok(())
    }
}

fn done<R>(results: &[Option<R>]) -> Vec<bool> {
    results.iter().map(Option::is_some).collect()
}

/// GEM_CLOSE against a copy from the object, and against one to it.
pub fn close_and_copy(drm: &Drm) -> Outcome {
    for (name, of_src) in [
        ("GEM_CLOSE of the source", true),
        ("of the destination", false),
    ] {
        race(
            &format!("{name} and GEM_COPY"),
            UNKNOWN,
            |pattern| Objects::new(drm, pattern),
            |it, index| {
                let offset = index as u64 * PAGE64;
                drm.copy((&it.src, offset), (&it.dst, offset), PAGE64)
            },
            |it| {
                drm.close(if of_src {
                    it.src.handle()
                } else {
                    it.dst.handle()
                })
            },
            |it, results| {
                for file in results.iter().flatten() {
                    file.finish()?;
                    check_eq!(file.status()?, 1, "status of a copy");
                }
                it.copied(&done(&results))
            },
        )?;
    }
    Ok(())
}

/// GEM_CLOSE against PRIME_HANDLE_TO_FD: a dma-buf that was made has the object.
pub fn close_and_export(drm: &Drm) -> Outcome {
    race(
        "GEM_CLOSE and PRIME_HANDLE_TO_FD",
        UNKNOWN,
        |pattern| Objects::new(drm, pattern),
        |it, _| it.src.export(),
        |it| drm.close(it.src.handle()),
        |it, buffers: Vec<Option<DmaBuf>>| {
            let pattern = it.patterns.0;
            drop(it);
            for buffer in buffers.iter().flatten() {
                cpu_reads(&buffer.map()?, pattern, &[0, CALLERS - 1])?;
            }
            if let [Some(a), Some(b)] = buffers.as_slice() {
                check_eq!(a.inode()?, b.inode()?, "inodes of two dma-bufs");
            }
            Ok(())
        },
    )
}

/// GEM_CLOSE against GEM_MMAP_OFFSET and mmap().
pub fn close_and_mmap(drm: &Drm) -> Outcome {
    race(
        "GEM_CLOSE and mmap",
        Errors {
            // The handle was closed between both calls: the file may not map the object any more,
            // or the offset is of no object.
            racing: &[libc::EACCES, libc::EINVAL],
            ..UNKNOWN
        },
        |pattern| {
            let object = drm.create(PAGE64)?;
            object.map()?.fill(pattern);
            Ok((object, pattern))
        },
        |it, _| it.0.map(),
        |it| drm.close(it.0.handle()),
        |it, maps| {
            for map in maps.iter().flatten() {
                cpu_reads(map, it.1, &[0])?;
            }
            Ok(())
        },
    )
}

/// GEM_CLOSE against ioctls that say where the object is, and who is attached.
pub fn close_and_query(drm: &Drm) -> Outcome {
    race(
        "GEM_CLOSE and GEM_INFO",
        UNKNOWN,
        |_| Ok(drm.create(PAGE64)?),
        |it, index| match index {
            0 => it.info().map(|info| info.size),
            _ => it.attachments().map(|list| list.len() as u64),
        },
        |it| drm.close(it.handle()),
        |_, seen| {
            check!(
                seen[0].is_none_or(|size| size == PAGE64) && seen[1].is_none_or(|count| count == 0),
                "size and attachments: {seen:?}"
            );
            Ok(())
        },
    )
}

/// GEM_CLOSE against PRIME_FD_TO_HANDLE of the same buffer: the import returns the handle, or makes
/// a new one.
pub fn close_and_import(drm: &Drm) -> Outcome {
    race(
        "GEM_CLOSE and PRIME_FD_TO_HANDLE",
        Errors {
            call: 0,
            // The import may have made the same handle again.
            again: true,
            ..UNKNOWN
        },
        |pattern| {
            let object = drm.create(PAGE64)?;
            object.map()?.fill(pattern);
            let buffer = object.export()?;
            Ok((object.leak(), buffer, pattern))
        },
        |it, _| drm.import_handle(it.1.fd()),
        |it| drm.close(it.0),
        |it, handles| {
            for handle in handles.into_iter().flatten() {
                // Closed already, or by the other caller.
                match drm.close(handle) {
                    Err(error) if error.errno != libc::EINVAL => return Err(error.into()),
                    _ => (),
                }
            }
            cpu_reads(&it.1.map()?, it.2, &[0])
        },
    )
}

/// SYNCOBJ_DESTROY against a copy that signals the object, and one that waits for it.
pub fn destroy_and_copy(drm: &Drm) -> Outcome {
    for out in [true, false] {
        race(
            &format!(
                "SYNCOBJ_DESTROY and GEM_COPY, {}",
                if out { "out" } else { "in" }
            ),
            UNKNOWN,
            |pattern| {
                let objects = Objects::new(drm, pattern)?;
                let syncobj = SyncObj::new(drm.fd())?;
                let (a, b) = (drm.create(PAGE64)?, drm.create(PAGE64)?);
                let before = drm.copy((&a, 0), (&b, 0), PAGE64)?;
                syncobj.add_point(1, &before)?;
                Ok((objects, syncobj))
            },
            |(it, syncobj), index| {
                if out {
                    it.copy(index, &[], &[syncobj.sync(2 + index as u64)])
                } else {
                    it.copy(index, &[syncobj.sync(1)], &[])
                }
            },
            |(_, syncobj)| syncobj.destroy(),
            |(it, _), results| it.copied(&done(&results)),
        )?;
    }
    Ok(())
}

/// The pairs of all drivers with objects.
pub fn of_objects(drm: &Drm) -> Outcome {
    close_and_copy(drm)?;
    close_and_export(drm)?;
    close_and_mmap(drm)?;
    close_and_query(drm)?;
    close_and_import(drm)?;
    destroy_and_copy(drm)
}

/// Runs a body, after which `account` has to be what it was before.
///
/// # Errors
///
/// Fails the subtest if it is not, within a time, and all errors of both.
#[track_caller]
pub fn balanced<A: PartialEq + Debug>(
    account: impl Fn() -> Result<A, Stop>,
    body: impl FnOnce() -> Outcome,
) -> Outcome {
    let before = account()?;
    body()?;
    let mut after = account()?;
    let same = misc::poll(Duration::from_secs(10), || {
        after = account().ok()?;
        (after == before).then_some(())
    });
    check!(same.is_some(), "{before:?} before, {after:?} after");
    Ok(())
}
