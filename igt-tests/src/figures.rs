// SPDX-License-Identifier: GPL-2.0

//! The figures that a benchmark has measured, one per line: `name value`.

use std::fs;
use std::process::ExitCode;

use crate::clock::Costs;
use crate::Outcome;

/// The prefix of the names of numbers of windows.
const WINDOWS: &str = "windows.";

/// The figures so far.
#[derive(Debug, Default)]
pub struct Figures(String);

impl Figures {
    /// Adds a figure.
    pub fn add(&mut self, name: &str, value: u64) {
        self.0 += &format!("{name} {value}\n");
    }

    /// Adds the least cost, and by how much the others exceed it.
    pub fn costs(&mut self, name: &str, costs: &Costs) {
        self.add(name, costs.least());
        self.add(&format!("{name}.median"), costs.median());
        self.add(&format!("{name}.most"), costs.most());
    }

    /// Adds the median, if the least cost is a coincidence that does not happen in each boot, or
    /// may have missed a part.
    pub fn typical(&mut self, name: &str, costs: &Costs) {
        self.add(name, costs.median());
        self.add(&format!("{name}.median"), costs.median());
        self.add(&format!("{name}.most"), costs.most());
    }

    /// Records that the next `count` windows ([`crate::window`]) belong to a figure.
    pub fn windows(&mut self, name: &str, count: usize) {
        self.add(&format!("{WINDOWS}{name}"), count as u64);
    }
}

/// A word on the command line, or an empty one, and the function that measures.
type Measure = (&'static str, fn(&mut Figures) -> Outcome);

/// The main function of a benchmark, with the arguments `--figures FILE [WORD]`.
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
    // Only at the end, because the time that output takes depends on the host.
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
