// SPDX-License-Identifier: GPL-2.0

//! The protocol of igt_runner.
//!
//! Every subtest runs in a process of its own, so that one that crashes or
//! hangs fails and the others go on. After each one the [`invariants`](crate::invariants) have to
//! hold, and it must have left neither a file descriptor nor a process.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::invariants::{Value, Watch};
use crate::misc;
use crate::proc::{self, Child, Exit};
use crate::rebind;
use crate::signals::open_files;
use crate::Outcome;

/// Everything passed.
pub const EXIT_SUCCESS: i32 = 0;
/// Nothing could be tested.
pub const EXIT_SKIP: i32 = 77;
/// The command line is invalid.
pub const EXIT_INVALID: i32 = 79;
/// Something failed.
pub const EXIT_FAIL: i32 = 98;

/// The time after which a subtest counts as hung. igt_runner waits longer, so that the message is
/// printed.
const LIMIT: Duration = Duration::from_secs(50);

/// One subtest.
#[derive(Clone, Copy, Debug)]
pub struct Subtest {
    /// Its name.
    pub name: &'static str,
    /// What it tests.
    pub about: &'static str,
    /// The test.
    pub run: fn() -> Outcome,
    /// The invariants that it changes on purpose.
    pub changes: &'static [Value],
}

/// Declares the subtests of a program (name, description, function) and its main function. A
/// subtest that changes [`invariants`](crate::invariants) on purpose names them behind its
/// function: `changes: [Reports]`.
#[macro_export]
macro_rules! igt_main {
    ($($name:literal, $about:literal, $run:expr $(, changes: [$($value:ident),+])?;)+) => {
        fn main() {
            $crate::igt::main(&[$(
                $crate::igt::Subtest {
                    name: $name,
                    about: $about,
                    run: $run,
                    changes: &[$($($crate::invariants::Value::$value),+)?],
                },
            )+])
        }
    };
}

/// Prints a line on stdout and stderr, where igt_runner and people read it.
fn both(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a line about the progress. On stderr it would be a warning for igt_runner.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

fn kernel_log(text: &str) {
    if let Ok(mut log) = OpenOptions::new().write(true).open("/dev/kmsg") {
        let _ = log.write_all(format!("<6>[IGT] {text}\n").as_bytes());
    }
}

/// `*` and `?` match as in a shell.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.first(), name.first()) {
        (None, None) => true,
        (Some(b'*'), _) => {
            matches(&pattern[1..], name) || (!name.is_empty() && matches(pattern, &name[1..]))
        }
        (Some(b'?'), Some(_)) => matches(&pattern[1..], &name[1..]),
        (Some(a), Some(b)) if a == b => matches(&pattern[1..], &name[1..]),
        _ => false,
    }
}

/// Whether a comma separated list of patterns selects a name; a pattern with a leading `!` excludes
/// names.
fn chosen(list: &str, name: &str) -> bool {
    let mut chosen = list.starts_with('!');
    for pattern in list.split(',') {
        let (wanted, pattern) = match pattern.strip_prefix('!') {
            Some(pattern) => (false, pattern),
            None => (true, pattern),
        };
        if matches(pattern.as_bytes(), name.as_bytes()) {
            chosen = wanted;
        }
    }
    chosen
}

fn version() -> String {
    // SAFETY: all-zero is a valid utsname.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for a write.
    unsafe { libc::uname(&mut name) };
    let text = |field: &[libc::c_char]| {
        let bytes: Vec<u8> = field
            .iter()
            .take_while(|c| **c != 0)
            .map(|c| *c as u8)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let machine = text(&name.machine);
    format!(
        "IGT-Version: 2.5-vvram ({machine}) ({}: {} {machine})",
        text(&name.sysname),
        text(&name.release)
    )
}

/// Runs a subtest, and checks that it has closed its files.
fn body(subtest: &Subtest) -> Outcome {
    let before = open_files();
    (subtest.run)()?;
    for fd in open_files() {
        if !before.contains(&fd) {
            let file = std::fs::read_link(format!("/proc/self/fd/{fd}"));
            fail!("the subtest has left file descriptor {fd}: {file:?}");
        }
    }
    Ok(())
}

/// What is looked at around each subtest.
struct Harness {
    program: String,
    bound: rebind::Bound,
    watch: Watch,
}

/// Runs the process of a subtest. Returns the exit status, or none of a process that cannot be
/// killed, which may hold any lock.
fn run_process(subtest: &Subtest) -> Option<i32> {
    let mut child = match Child::spawn(|| body(subtest)) {
        Ok(child) => child,
        Err(error) => {
            say(&format!("Failed: {error}"));
            return Some(EXIT_FAIL);
        }
    };
    match child.wait(LIMIT * misc::soak() as u32) {
        Some(Exit::Code(code)) => Some(code),
        Some(Exit::Signal(signal)) => {
            say(&format!("Failed: the subtest died by signal {signal}"));
            Some(EXIT_FAIL)
        }
        None => {
            say(&format!(
                "Failed: no end after {} s; {}",
                LIMIT.as_secs() * misc::soak() * u64::from(misc::slower()),
                child.whereabouts()
            ));
            child.kill().is_ok().then_some(EXIT_FAIL)
        }
    }
}

fn run(subtest: &Subtest, harness: &mut Harness) -> i32 {
    let program = &harness.program;
    misc::begin(program, subtest.name);
    both(&format!("Starting subtest: {}", subtest.name));
    kernel_log(&format!("{program}: starting subtest {}", subtest.name));
    let start = Instant::now();
    let ended = run_process(subtest);
    let mut code = ended.unwrap_or(EXIT_FAIL);
    let mut fail = |text: &str| {
        say(&format!("Failed: {text}"));
        code = EXIT_FAIL;
    };
    if let Err(text) = harness.bound.restore() {
        fail(&text);
    }
    if ended.is_some() {
        if let Err(text) = proc::no_children(Duration::from_secs(5)) {
            fail(&text);
        }
        if let Err(text) = harness.watch.check(subtest.changes) {
            fail(&format!("the subtest has left changes:\n{text}"));
        }
    }
    let word = match code {
        EXIT_SUCCESS => "SUCCESS",
        EXIT_SKIP => "SKIP",
        _ => "FAIL",
    };
    let seconds = start.elapsed().as_secs_f64();
    let line = format!("Subtest {}: {word} ({seconds:.3}s)", subtest.name);
    both(&line);
    kernel_log(&format!(
        "{program}: finished subtest {}, {word}",
        subtest.name
    ));
    match code {
        EXIT_SUCCESS | EXIT_SKIP => code,
        _ => EXIT_FAIL,
    }
}

/// Runs the subtests that the command line selects, and exits.
pub fn main(subtests: &[Subtest]) -> ! {
    // The handler of Rust's runtime returns from the first signal, and an access that succeeds then
    // would hide it.
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        // SAFETY: this sets the default action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_string();
    let mut list = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list-subtests" => {
                for subtest in subtests {
                    println!("{}", subtest.name);
                }
                std::process::exit(EXIT_SUCCESS);
            }
            "--describe" => {
                for subtest in subtests {
                    println!("{}: {}", subtest.name, subtest.about);
                }
                std::process::exit(EXIT_SUCCESS);
            }
            "--run-subtest" => list = arguments.next(),
            // igt_runner may pass these to every test.
            "--debug" | "--skip-crc-compare" => {}
            other => match other.strip_prefix("--run-subtest=") {
                Some(value) => list = Some(value.to_string()),
                None => {
                    eprintln!("{program}: unknown argument {other}");
                    eprintln!(
                        "usage: {program} [--list-subtests | --describe | --run-subtest NAME]"
                    );
                    std::process::exit(EXIT_INVALID);
                }
            },
        }
    }
    // Not on stderr, because the runner warns about anything there but the lines of subtests.
    println!("{}", version());
    println!("seed {}", misc::seed());
    kernel_log(&format!("{program}: executing"));
    let chosen: Vec<_> = subtests
        .iter()
        .filter(|subtest| list.as_ref().is_none_or(|list| chosen(list, subtest.name)))
        .collect();
    let mut codes = Vec::new();
    if !chosen.is_empty() {
        proc::adopt_orphans();
        let watch = match Watch::begin() {
            Ok(watch) => watch,
            Err(text) => {
                both(&format!("Failed: {text}"));
                std::process::exit(EXIT_FAIL);
            }
        };
        let mut harness = Harness {
            program: program.clone(),
            bound: rebind::Bound::now(),
            watch,
        };
        codes.extend(chosen.iter().map(|subtest| run(subtest, &mut harness)));
        say(&harness.watch.summary());
    }
    let code = if codes.is_empty() {
        both(&format!("Unknown subtest: {}", list.unwrap_or_default()));
        EXIT_INVALID
    } else if codes.contains(&EXIT_FAIL) {
        EXIT_FAIL
    } else if codes.iter().all(|code| *code == EXIT_SKIP) {
        EXIT_SKIP
    } else {
        EXIT_SUCCESS
    };
    kernel_log(&format!("{program}: exiting, ret={code}"));
    std::process::exit(code);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_choose() {
        assert!(chosen("a", "a"));
        assert!(!chosen("a", "ab"));
        assert!(chosen("x,a*", "abc"));
        assert!(!chosen("a*,!abc", "abc"));
        assert!(chosen("!abc", "a"));
        assert!(!chosen("!a?c", "abc"));
    }
}
