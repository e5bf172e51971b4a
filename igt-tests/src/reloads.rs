// SPDX-License-Identifier: GPL-2.0

//! Modules that are unloaded and loaded again while clients open, use and close their devices.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::drm::Drm;
use crate::fixture::{cpu_reads, patterns};
use crate::map::{Map, PAGE, PAGE64};
use crate::misc::{self, Lcg};
use crate::peer::{self, Mode, Peer};
use crate::proc::{Child, Steps};
use crate::rebind::{delete_module, module_users};
use crate::{Outcome, Stop};

const LIMIT: Duration = Duration::from_secs(40);
const CLIENTS: usize = 4;
/// How often each module is unloaded, and how often each client uses the devices at least.
const UNLOADS: u64 = 4;
const USES: u64 = 4;

/// The counts of one process, in memory that all processes share.
const DONE: usize = 0;
const REFUSED: usize = 1;
const ATTACHED: usize = 2;
const COUNTS: usize = 3;

/// Unloads a module whenever nothing uses it, and loads it again. `back` says whether its devices
/// are there.
fn unloader(module: &str, back: impl Fn() -> bool, counts: &Map, at: usize) -> Outcome {
    let mut random = Lcg::new(misc::nonce());
    let limit = LIMIT * misc::slower();
    let begin = Instant::now();
    while counts.read(at + DONE) < UNLOADS * misc::soak() {
        check!(
            begin.elapsed() < limit,
            "{module} was unloaded {} times, and refused {} times",
            counts.read(at + DONE),
            counts.read(at + REFUSED)
        );
        match delete_module(module) {
            Ok(()) => {
                check_eq!(
                    module_users(module),
                    None,
                    "users of {module}, which is gone"
                );
                thread::sleep(Duration::from_millis(random.below(20)));
                let loaded = Command::new("modprobe").arg(module).status();
                check!(
                    loaded.as_ref().is_ok_and(|status| status.success()),
                    "modprobe {module}: {loaded:?}"
                );
                let bound = misc::poll(LIMIT, || back().then_some(()));
                check!(bound.is_some(), "the devices of {module} have no driver");
                counts.write(at + DONE, counts.read(at + DONE) + 1);
            }
            Err(error) if error.errno == libc::EWOULDBLOCK => {
                counts.write(at + REFUSED, counts.read(at + REFUSED) + 1);
                thread::sleep(Duration::from_millis(random.below(5)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// One use of a device, which must succeed, because the open file keeps the module.
#[track_caller]
fn use_it(drm: &Drm, peer: Option<&Peer>) -> Outcome {
    let (a, b) = patterns();
    let (src, dst) = (drm.create(2 * PAGE64)?, drm.create(2 * PAGE64)?);
    let (from, to) = (src.map()?, dst.map()?);
    from.fill(a);
    to.fill(b);
    let buffer = src.export()?;
    if let Some(peer) = peer {
        peer.attach_and_map(&buffer, Mode::Dynamic)?;
        let bytes: u64 = peer.table()?.iter().map(|segment| segment.length).sum();
        check_eq!(bytes, 2 * PAGE64, "bytes that the peer has mapped");
    }
    // The import of its own buffer is the object.
    let other = drm.import_handle(buffer.fd())?;
    check_eq!(other, src.handle(), "handle of the import");
    drop(src);
    let shown = buffer.map()?;
    cpu_reads(&shown, a, &[0, 1])?;
    cpu_reads(&to, b, &[0, 1])?;
    if let Some(peer) = peer {
        peer.detach()?;
    }
    Ok(())
}

/// A client, which uses devices until it is told to stop. It pauses longer than it uses them,
/// however slow the host is: else some client always has the module.
fn client(
    open: impl Fn() -> Option<Drm>,
    with_peer: bool,
    stop: &Steps,
    counts: &Map,
    at: usize,
) -> Outcome {
    let mut random = Lcg::new(misc::nonce());
    let mut stopped = false;
    let mut pause = 40;
    while !stopped || counts.read(at + DONE) < USES {
        stopped = stopped || stop.is_done()?;
        thread::sleep(Duration::from_millis(random.below(pause)));
        let begin = Instant::now();
        let Some(drm) = open() else {
            counts.write(at + REFUSED, counts.read(at + REFUSED) + 1);
            continue;
        };
        let peer = match peer::names().first().map(|name| Peer::open_name(name)) {
            Some(Ok(peer)) if with_peer => Some(peer),
            Some(Err(error)) => {
                check!(
                    [libc::ENOENT, libc::ENODEV, libc::ENXIO].contains(&error.errno),
                    "{error}"
                );
                None
            }
            _ => None,
        };
        use_it(&drm, peer.as_ref())?;
        pause = 40 + 4 * begin.elapsed().as_millis() as u64;
        counts.write(at + DONE, counts.read(at + DONE) + 1);
        if peer.is_some() {
            counts.write(at + ATTACHED, counts.read(at + ATTACHED) + 1);
        }
    }
    Ok(())
}

/// Waits until a module has no users, because the release of closed files may be delayed.
#[track_caller]
fn unused(module: &str) -> Outcome {
    let none = misc::poll(LIMIT, || (module_users(module) == Some(0)).then_some(()));
    match none {
        Some(()) => Ok(()),
        None => Err(Stop::fail(format_args!(
            "{module} has users: {:?}",
            module_users(module)
        ))),
    }
}

/// Reloads modules, while clients use what `open` opens, and the peer if that is one of the
/// modules. `back` says whether the devices of a module have their drivers.
///
/// # Errors
///
/// Fails the subtest if a call fails that must not, if a module has users before or
/// afterwards, or if too little was done.
#[track_caller]
pub fn storm(
    modules: &[&str],
    open: impl Fn() -> Option<Drm>,
    back: impl Fn(&str) -> bool,
) -> Outcome {
    for module in modules {
        unused(module)?;
    }
    let all = modules.len() + CLIENTS;
    let counts = Map::anonymous(PAGE)?;
    let stop = Steps::new()?;
    let with_peer = modules.contains(&"edu_peer");
    let mut unloaders = Vec::new();
    for (index, module) in modules.iter().enumerate() {
        let body = || unloader(module, || back(module), &counts, index * COUNTS);
        unloaders.push(Child::spawn(body)?);
    }
    let mut clients = Vec::new();
    for index in modules.len()..all {
        let body = || client(&open, with_peer, &stop, &counts, index * COUNTS);
        clients.push(Child::spawn(body)?);
    }
    let mut outcome = Ok(());
    for (child, module) in unloaders.iter_mut().zip(modules) {
        let joined = child.join(&format!("the unloader of {module}"), LIMIT * 2);
        outcome = outcome.and(joined);
    }
    for _ in 0..CLIENTS {
        stop.done()?;
    }
    for child in &mut clients {
        let joined = child.join("a client", LIMIT);
        outcome = outcome.and(joined);
    }
    outcome?;
    for (index, module) in modules.iter().enumerate() {
        println!(
            "seed {}: {module} was unloaded {} times, and refused {} times",
            misc::seed(),
            counts.read(index * COUNTS + DONE),
            counts.read(index * COUNTS + REFUSED)
        );
    }
    let sum = |what: usize| -> u64 {
        (modules.len()..all)
            .map(|index| counts.read(index * COUNTS + what))
            .sum()
    };
    println!(
        "clients used a device {} times, {} of them with the peer, and found none {} times",
        sum(DONE),
        sum(ATTACHED),
        sum(REFUSED)
    );
    if with_peer {
        check!(sum(ATTACHED) > 0, "no client has used the peer");
    }
    modules.iter().try_for_each(|module| unused(module))
}
