// SPDX-License-Identifier: GPL-2.0

//! The tracepoints: the events of an object with their reasons, in their order.

use vvram_tests::debugfs::DebugFs;
use vvram_tests::drm::{path_name, reason_name, Gem, EITHER};
use vvram_tests::fixture::Fixture;
use vvram_tests::map::PAGE64;
use vvram_tests::peer::Mode;
use vvram_tests::rebind::Unbound;
use vvram_tests::trace::Trace;
use vvram_tests::{check, check_eq, expect_errno, igt_main, uapi, Outcome, Stop};

/// A fixture that is traced.
struct Traced {
    fixture: Fixture,
    trace: Trace,
    debugfs: DebugFs,
}

impl Traced {
    #[track_caller]
    fn new(fixture: Fixture) -> Result<Self, Stop> {
        Ok(Self {
            debugfs: DebugFs::open(&fixture.gpu)?,
            trace: Trace::new()?,
            fixture,
        })
    }

    /// Checks the events of an object since the last time.
    #[track_caller]
    fn expect(&self, what: &str, object: &Gem<'_>, want: &[String]) -> Outcome {
        let id = object.info()?.id;
        let seen = self
            .trace
            .events(self.fixture.gpu.name(), id, object.size())?;
        if seen == want {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "{what}: expected {want:#?}, saw {seen:#?}"
        )))
    }

    /// An event of the peer.
    fn importer(&self, name: &str, path: &str, reason: &str, ret: i32) -> String {
        let importer = self.fixture.peer.name();
        format!("{name} importer={importer} path={path} reason={reason} ret={ret}")
    }

    /// An event of a peer with peer-to-peer memory.
    fn peer(&self, name: &str) -> String {
        let path = path_name(self.fixture.expect.path());
        self.importer(name, &path, "none", 0)
    }

    /// Moves an object by force.
    #[track_caller]
    fn force(&self, object: &Gem<'_>, to: &str) -> Outcome {
        Ok(self.debugfs.force(object.info()?.id, to)?)
    }
}

fn moved(from: &str, to: &str, evict: bool) -> String {
    format!("move from={from} to={to} evict={} ret=0", u32::from(evict))
}

/// A dynamic peer, and moves under it.
fn dynamic() -> Outcome {
    let t = Traced::new(Fixture::with_route()?)?;
    let peer = &t.fixture.peer;
    let object = t.fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    t.expect("a new object", &object, &[moved("none", "vram", false)])?;
    let buffer = object.export()?;
    t.expect("the export", &object, &[])?;
    peer.attach(&buffer, Mode::Dynamic)?;
    t.expect("the attach", &object, &[t.peer("attach")])?;
    peer.map()?;
    t.expect("the map", &object, &[t.peer("map")])?;
    t.force(&object, "system")?;
    t.expect(
        "a move under the peer",
        &object,
        &[
            "invalidate placement=vram".to_string(),
            t.peer("unmap"),
            moved("vram", "system", false),
        ],
    )?;
    peer.map()?;
    t.expect(
        "the map after the move",
        &object,
        &[
            "invalidate placement=system".to_string(),
            moved("system", "vram", false),
            t.peer("map"),
        ],
    )?;
    peer.unmap()?;
    t.expect("the unmap", &object, &[t.peer("unmap")])?;
    // The eviction is caused by another object that needs the room.
    let size = t.fixture.drm.getparam(uapi::PARAM_VRAM_SIZE)?;
    let _all = t.fixture.drm.create(size)?;
    t.expect(
        "the eviction",
        &object,
        &[
            "invalidate placement=vram".to_string(),
            moved("vram", "system", true),
        ],
    )?;
    // No room for the peer.
    peer.map()?;
    t.expect(
        "the map without room",
        &object,
        &[t.importer("map", "system", "no-vram", 0)],
    )
}

/// Pins without a route, with one, and over the limit.
fn pin() -> Outcome {
    let t = Traced::new(Fixture::with_route()?)?;
    let peer = &t.fixture.peer;
    let object = t.fixture.drm.create_flags(2 * PAGE64, EITHER)?;
    let buffer = object.export()?;
    t.force(&object, "system")?;
    peer.attach(&buffer, Mode::Pinned)?;
    t.expect(
        "up to the attach",
        &object,
        &[
            moved("none", "vram", false),
            "invalidate placement=vram".to_string(),
            moved("vram", "system", false),
            t.peer("attach"),
        ],
    )?;
    peer.pin()?;
    t.expect(
        "the pin",
        &object,
        &[
            "invalidate placement=system".to_string(),
            moved("system", "vram", false),
            t.peer("pin"),
        ],
    )?;
    peer.map()?;
    peer.unmap()?;
    peer.unpin()?;
    t.expect(
        "up to the unpin",
        &object,
        &[t.peer("map"), t.peer("unmap"), t.peer("unpin")],
    )?;
    let limit = t.debugfs.read("pin_limit")?;
    t.debugfs.write("pin_limit", "0")?;
    let over = peer.pin();
    t.debugfs.write("pin_limit", &limit)?;
    expect_errno("a pin over the quota", over, libc::EDQUOT)?;
    t.expect(
        "the pin over the quota",
        &object,
        &[t.importer("pin", "refused", "quota", -libc::EDQUOT)],
    )
}

/// Importers that do not take peer-to-peer memory are refused, or get system memory.
fn fallback() -> Outcome {
    let t = Traced::new(Fixture::open()?)?;
    let peer = &t.fixture.peer;
    let only = t.fixture.drm.create(PAGE64)?;
    let buffer = only.export()?;
    expect_errno(
        "attaching without peer-to-peer memory to VRAM only",
        peer.attach(&buffer, Mode::NoP2p),
        libc::EOPNOTSUPP,
    )?;
    t.expect(
        "the refusal",
        &only,
        &[
            moved("none", "vram", false),
            t.importer("attach", "refused", "no-opt-in", -libc::EOPNOTSUPP),
        ],
    )?;
    let object = t.fixture.drm.create_flags(PAGE64, EITHER)?;
    let buffer = object.export()?;
    peer.attach_and_map(&buffer, Mode::Static)?;
    peer.detach()?;
    let system = |name| t.importer(name, "system", "no-opt-in", 0);
    t.expect(
        "a static importer",
        &object,
        &[
            moved("none", "vram", false),
            system("attach"),
            "invalidate placement=vram".to_string(),
            moved("vram", "system", false),
            system("pin"),
            system("map"),
            system("unmap"),
            system("unpin"),
        ],
    )
}

/// An unbind revokes the buffer.
fn unbind() -> Outcome {
    let t = Traced::new(Fixture::with_route()?)?;
    let object = t.fixture.drm.create_flags(PAGE64, EITHER)?;
    let id = object.info()?.id;
    let buffer = object.export()?;
    t.fixture.peer.attach_and_map(&buffer, Mode::Dynamic)?;
    let gone = Unbound::new(&t.fixture.gpu)?;
    let seen = t.trace.events(t.fixture.gpu.name(), id, PAGE64);
    gone.rebind()?;
    let want = [
        moved("none", "vram", false),
        t.peer("attach"),
        t.peer("map"),
        "invalidate placement=vram".to_string(),
        t.peer("unmap"),
    ];
    check_eq!(seen?, want, "the events up to the unbind");
    Ok(())
}

/// The events use the same names of paths and reasons as debugfs.
fn names() -> Outcome {
    let trace = Trace::new()?;
    for event in ["attach", "pin", "unpin", "map", "unmap"] {
        let format = trace.format(event)?;
        let paths = (1..=5).map(|path| (path, path_name(path)));
        let reasons = (0..=11)
            .chain(16..=17)
            .map(|code| (code, reason_name(code)));
        for (code, name) in paths.chain(reasons) {
            let symbol = format!("{{ {code}, \"{name}\" }}");
            check!(
                format.contains(&symbol),
                "{symbol} is not in the format of {event}: {format}"
            );
        }
    }
    Ok(())
}

/// Without a reader no event is recorded, and with two readers each one gets all events.
fn off() -> Outcome {
    let t = Traced::new(Fixture::open()?)?;
    t.trace.enable(false)?;
    let object = t.fixture.drm.create_flags(PAGE64, EITHER)?;
    t.force(&object, "system")?;
    t.expect("events that are off", &object, &[])?;
    t.trace.enable(true)?;
    let (other, id) = (Trace::new()?, object.info()?.id);
    let of_other = || other.events(t.fixture.gpu.name(), id, PAGE64);
    t.force(&object, "vram")?;
    let to_vram = [moved("system", "vram", false)];
    t.expect("events that are on", &object, &to_vram)?;
    check_eq!(of_other()?, to_vram, "events of the other reader");
    check_eq!(
        t.trace.events(t.fixture.gpu.name(), 0, 0)?,
        Vec::<String>::new(),
        "events of no object"
    );
    // One reader is left.
    t.trace.enable(false)?;
    t.force(&object, "system")?;
    t.expect("events that are off again", &object, &[])?;
    let to_system = [moved("vram", "system", false)];
    check_eq!(of_other()?, to_system, "events of the reader that is left");
    Ok(())
}

igt_main! {
    "dynamic", "attach, map, invalidate, move and unmap of a dynamic peer", dynamic;
    "pin", "pins and unpins, and one over the quota", pin;
    "fallback", "refusals and system memory, with their reasons", fallback;
    "names", "the names of paths and reasons", names;
    "unbind", "importers lose what is unbound", unbind;
    "off", "nothing is recorded while the events are off", off;
}
