// SPDX-License-Identifier: GPL-2.0

//! Columns of text.

use std::fmt::Write;

/// Lines whose columns are as wide as what is in them.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Adds a line.
    pub fn row<I: IntoIterator<Item = S>, S: Into<String>>(&mut self, cells: I) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text.
    pub fn text(&self) -> String {
        let width = |text: &str| text.chars().count();
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns)
            .map(|at| {
                let cells = self.rows.iter().filter_map(|row| row.get(at));
                cells.map(|cell| width(cell)).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, wide) in row.iter().zip(&widths) {
                let _ = write!(line, "{cell}{:1$}", "", wide - width(cell) + 2);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A number of bytes with a unit.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scaled = count;
    while scaled >= 1024 && scaled.is_multiple_of(1024) && unit + 1 < units.len() {
        scaled /= 1024;
        unit += 1;
    }
    format!("{scaled} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns() {
        let mut table = Table::default();
        assert!(table.is_empty());
        table.row(["a", "long", "x"]);
        table.row(["é", "b"]);
        table.row(["more", ""]);
        assert_eq!(table.text(), "a     long  x\né     b\nmore\n");
    }

    #[test]
    fn units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(4097), "4097 B");
        assert_eq!(bytes(16 << 20), "16 MiB");
    }
}
