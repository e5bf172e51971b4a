// SPDX-License-Identifier: GPL-2.0

//! Random calls of several processes and threads, see [`vvram_tests::fuzz`].
//!
//! Without arguments all phases run, as subtests. `--replay PHASE FILE` repeats the calls that a
//! phase has written to the results of a boot, and `--shorten PHASE FILE TEXT` leaves out as many
//! as it can while a finding with that text remains.

use std::sync::OnceLock;

use vvram_tests::fuzz::phase::{self, Phase, PHASES};
use vvram_tests::fuzz::world::World;
use vvram_tests::igt::{self, say, Subtest};
use vvram_tests::{fail, Outcome, Stop};

static WORLD: OnceLock<&World> = OnceLock::new();

fn world() -> &'static World {
    WORLD.get().expect("main() has made it")
}

fn user() -> Outcome {
    phase::subtest(world(), PHASES[0])
}

fn root() -> Outcome {
    phase::subtest(world(), PHASES[1])
}

fn faults() -> Outcome {
    phase::subtest(world(), PHASES[2])
}

fn repeat(arguments: &[String]) -> Outcome {
    let [command, phase, file, text @ ..] = arguments else {
        fail!("usage: fuzz_calls --replay|--shorten PHASE FILE [TEXT]");
    };
    let text = text.first().map_or("", String::as_str);
    let named = PHASES.into_iter().find(|known| known.name == phase);
    let phase: Phase =
        named.ok_or_else(|| Stop::fail(format_args!("there is no phase {phase}")))?;
    let read = std::fs::read_to_string(file).map_err(Stop::fail)?;
    let program = phase::parse(&read).ok_or_else(|| Stop::fail("not a list of calls"))?;
    let found = phase::shows(world(), phase, &program, text)?;
    say(&format!(
        "{} calls: {}",
        program.len(),
        if found { "shown" } else { "not shown" }
    ));
    if command == "--shorten" && found {
        let shows = |program: &_| phase::shows(world(), phase, program, text);
        for line in phase::written(&phase::shorten(program, shows)?) {
            say(&line);
        }
    }
    Ok(())
}

fn main() {
    let world = World::new().expect("there is memory");
    WORLD.set(world).expect("it is set once");
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments
        .first()
        .is_some_and(|first| first == "--replay" || first == "--shorten")
    {
        if let Err(stop) = repeat(&arguments) {
            eprintln!("{}", stop.text());
            std::process::exit(igt::EXIT_FAIL);
        }
        return;
    }
    igt::main(&[
        Subtest {
            name: "user",
            about: "calls of a user without privileges",
            run: user,
            changes: &[],
        },
        Subtest {
            name: "root",
            about: "calls while drivers and devices come and go",
            run: root,
            changes: &[],
        },
        Subtest {
            name: "faults",
            about: "calls while allocations fail",
            run: faults,
            changes: &[],
        },
    ])
}
