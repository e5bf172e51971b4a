// SPDX-License-Identifier: GPL-2.0

//! The program.

use std::io::{self, Write};
use std::process::ExitCode;

use p2p::{cli, run};

fn main() -> ExitCode {
    let matches = cli::command().get_matches();
    let mut out = io::stdout().lock();
    let outcome = run::run(&matches, &mut out).and_then(|status| {
        out.flush()?;
        Ok(status)
    });
    ExitCode::from(outcome.unwrap_or_else(|failure| {
        if !failure.text.is_empty() {
            let _ = writeln!(io::stderr(), "p2p: {}", failure.text);
        }
        failure.status
    }))
}
