// SPDX-License-Identifier: GPL-2.0

//! What a benchmark measured: one figure in each line, `name value`.

use std::fs;
use std::process::ExitCode;

use crate::clock::Costs;
use crate::Outcome;

/// What the names of numbers of windows begin with.
const WINDOWS: &str = "windows.";

/// The figures so far.
#[derive(Debug, Default)]
pub struct Figures(String);

impl Figures {
    /// Adds one.
    pub fn add(&mut self, name: &str, value: u64) {
        self.0 += &format!("{name} {value}\n");
    }

    /// Adds the least, and how far the others are above it.
    pub fn costs(&mut self, name: &str, costs: &Costs) {
        self.add(name, costs.least());
        self.add(&format!("{name}.median"), costs.median());
        self.add(&format!("{name}.most"), costs.most());
    }

    /// Says that the next so many windows ([`crate::window`]) are those of a figure.
    pub fn windows(&mut self, name: &str, count: usize) {
        self.add(&format!("{WINDOWS}{name}"), count as u64);
    }
}

/// A word on the command line, or none, and what it measures.
type Measure = (&'static str, fn(&mut Figures) -> Outcome);

/// Measures what the command line asks for: `--figures FILE [WORD]`.
pub fn main(measures: &[Measure]) -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let (file, word) = match arguments.as_slice() {
        ["--figures", file] => (*file, ""),
        ["--figures", file, word] => (*file, *word),
        _ => ("", "?"),
    };
    let Some((_, measure)) = measures.iter().find(|(name, _)| *name == word) else {
        let words: Vec<_> = measures.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: --figures FILE {}", words.join("|"));
        return ExitCode::from(2);
    };
    let mut figures = Figures::default();
    let outcome = measure(&mut figures);
    // Not before: output goes to the host, and takes as long as the host likes.
    print!("{}", figures.0);
    if let Err(stop) = outcome {
        println!("{}", stop.text());
        return ExitCode::FAILURE;
    }
    if let Err(error) = fs::write(file, figures.0) {
        println!("{file}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
