// SPDX-License-Identifier: GPL-2.0

//! Moves data between buffers of any kind by an RDMA device, and checks every byte.
//!
//! The result is a table, and one JSON object in a file if asked for.

use std::fmt::Write;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::ExitCode;

use vvram_tests::bar_export;
use vvram_tests::drm::{DmaBuf, Drm};
use vvram_tests::heap;
use vvram_tests::map::PAGE;
use vvram_tests::misc::{self, json_string, Lcg};
use vvram_tests::pci::PciDevice;
use vvram_tests::rdma::{bandwidth, exercise_op, Buffer, Op, Part, Trouble};
use vvram_tests::verbs::{Nic, Pair};
use vvram_tests::{uapi, Stop, SysError};

const USAGE: &str = "usage: p2p-rdma [--device NAME] [--size BYTES] [--loops N] [--json FILE] \
[--hold] --buffer SPEC [--buffer SPEC]...";
const HELP: &str = "
Moves data between buffers by an RDMA device, through two queue pairs that are
connected to each other, and checks every byte with the CPU.

Each buffer is registered once as a memory region. For each pair of buffers, in
both directions, and for both halves of each buffer, all of the operations are
done: RDMA write, RDMA read, send, fetch and add, compare and swap. Before each
one both buffers are filled with new bytes; after it the target has to hold what
was moved and be the same everywhere else, and the source has to be unchanged.
Then writes and reads are measured, and compared with those from memory of the
process to memory of the process, measured in the same run.

  --buffer SPEC  a buffer, at least one:
      host                       memory of the process (ibv_reg_mr)
      heap                       a dma-buf of the system heap
      vvram[:/dev/dri/renderDN]  VRAM of a vvram device, the first one if no
                                 node is given, as a dma-buf
      vvram-system[:NODE]        an object that vvram keeps in system memory
      fd:N                       a dma-buf of any exporter. It is the file
                                 descriptor N, which this program inherits,
                                 readable and writable and without CLOEXEC, as
                                 in: p2p-rdma --buffer fd:5 5<&$FD. Its size is
                                 its own.
      bar:PCI/N[+OFFSET]         a part of BAR N of a PCI device that the driver
                                 bar_export has, as a dma-buf, such as
                                 bar:0000:03:00.0/2+16M. Not of registers: what
                                 is there is overwritten.
  --device NAME  the RDMA device, such as rxe0; otherwise the first one
  --size BYTES   of each buffer (1M if not given), with K, M or G if you like
  --loops N      how often every operation is done and checked (2)
  --json FILE    writes the same facts as one JSON object
  --hold         moves nothing: registers the buffers, says so, and waits for the
                 end of its standard input
  --help         this text

Table: bytes that each operation moved and that are right (- if the device does
not have it), MB/s (10^6 bytes) of writes and reads, and both in relation to
host to host.

Exit status: 0 if every byte is right; 1 if one is wrong, or anything failed,
with the first place that is wrong on stderr; 2 for a command line that makes no
sense.";

/// How often a rate is measured; the best one counts.
const RUNS: u64 = 3;

/// The kind of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    Heap,
    Vvram {
        node: Option<PathBuf>,
        system: bool,
    },
    Fd(RawFd),
    Bar {
        device: String,
        bar: u32,
        offset: u64,
    },
}

/// The options of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    device: Option<String>,
    size: u64,
    loops: u64,
    json: Option<String>,
    hold: bool,
    /// The buffers, with their names on the command line.
    buffers: Vec<(String, Kind)>,
}

fn parse_kind(text: &str) -> Option<Kind> {
    let (kind, rest) = match text.split_once(':') {
        Some((kind, rest)) => (kind, Some(rest)),
        None => (text, None),
    };
    let node = rest.map(PathBuf::from);
    match (kind, rest) {
        ("host", None) => Some(Kind::Host),
        ("heap", None) => Some(Kind::Heap),
        ("vvram" | "vvram-system", Some("")) => None,
        ("vvram" | "vvram-system", _) => Some(Kind::Vvram {
            node,
            system: kind == "vvram-system",
        }),
        ("fd", Some(number)) => {
            let number = number.parse().ok()?;
            (number >= 0).then_some(Kind::Fd(number))
        }
        ("bar", Some(place)) => {
            let (device, place) = place.split_once('/')?;
            let (bar, offset) = match place.split_once('+') {
                Some((bar, offset)) => (bar, parse_size(offset)?),
                None => (place, 0),
            };
            Some(Kind::Bar {
                device: device.to_string(),
                bar: bar.parse().ok()?,
                offset,
            })
        }
        _ => None,
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()? {
        b'K' | b'k' => 10,
        b'M' | b'm' => 20,
        b'G' | b'g' => 30,
        _ => 0,
    };
    let digits = if shift == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    let size = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    // Limited, so that no sum of offsets overflows.
    (1..=1 << 40).contains(&size).then_some(size)
}

/// `None` for help.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut options = Options {
        device: None,
        size: 1 << 20,
        loops: 2,
        json: None,
        hold: false,
        buffers: Vec::new(),
    };
    while let Some(argument) = arguments.next() {
        if ["--help", "-h"].contains(&argument.as_str()) {
            return Ok(None);
        }
        let mut value = || {
            let value = arguments.next();
            value.ok_or_else(|| format!("{argument} needs a value"))
        };
        let wrong = |value: &str| format!("{argument} {value} makes no sense");
        match argument.as_str() {
            "--device" => options.device = Some(value()?),
            "--json" => options.json = Some(value()?),
            "--hold" => options.hold = true,
            "--size" => {
                let value = value()?;
                options.size = parse_size(&value).ok_or_else(|| wrong(&value))?;
            }
            "--loops" => {
                let value = value()?;
                let loops = value.parse().ok().filter(|loops| *loops > 0);
                options.loops = loops.ok_or_else(|| wrong(&value))?;
            }
            "--buffer" => {
                let value = value()?;
                let kind = parse_kind(&value).ok_or_else(|| wrong(&value))?;
                options.buffers.push((value, kind));
            }
            _ => return Err(format!("unknown argument {argument}")),
        }
    }
    if options.buffers.is_empty() {
        return Err("no --buffer is given".to_string());
    }
    Ok(Some(options))
}

/// Duplicates a file descriptor that was inherited.
fn inherited(fd: RawFd) -> Result<DmaBuf, SysError> {
    // SAFETY: a plain system call on a number.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if own < 0 {
        return Err(SysError::last(format!("dup({fd})")));
    }
    // SAFETY: the kernel made a new fd that nothing else owns.
    Ok(DmaBuf::new(unsafe { OwnedFd::from_raw_fd(own) }))
}

fn create<'nic>(nic: &'nic Nic, name: &str, kind: &Kind, size: u64) -> Result<Buffer<'nic>, Stop> {
    let shared = match kind {
        Kind::Host => return Ok(Buffer::host(nic, name, size)?),
        Kind::Heap => heap::allocate(size)?,
        Kind::Fd(fd) => inherited(*fd)?,
        Kind::Vvram { node, system } => {
            let drm = match node {
                Some(node) => Drm::open_path(node)?,
                None => Drm::open()?,
            };
            let flags = if *system {
                uapi::CREATE_SYSTEM
            } else {
                uapi::CREATE_VRAM
            };
            // The dma-buf keeps the object.
            let object = drm.create_flags(size, flags)?;
            object.export()?
        }
        Kind::Bar {
            device,
            bar,
            offset,
        } => {
            let device = PciDevice::named(device);
            let size = size.next_multiple_of(PAGE as u64);
            let shared = bar_export::export(&bar_export::open(&device)?, *bar, *offset, size)?;
            let map = device.map_bar(*bar, *offset, size)?;
            return Ok(Buffer::mapped(nic, name, shared, map)?);
        }
    };
    Ok(Buffer::shared(nic, name, shared)?)
}

/// Rates in bytes per second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    write: f64,
    read: f64,
}

/// The result of a pair of buffers.
#[derive(Debug)]
struct Line {
    from: String,
    to: String,
    /// The bytes that each operation has moved, [`None`] if the device does not have it.
    moved: [Option<u64>; Op::ALL.len()],
    rates: Option<Rates>,
    trouble: Vec<(Op, Trouble)>,
}

/// The report.
#[derive(Debug, Default)]
struct Report {
    device: String,
    pci: Option<String>,
    size: u64,
    loops: u64,
    host: Rates,
    lines: Vec<Line>,
    error: Option<String>,
}

/// The data that all transfers share.
struct Mover<'a> {
    nic: &'a Nic,
    options: &'a Options,
    random: Lcg,
}

impl Mover<'_> {
    /// The best rate of several runs, in bytes per second.
    fn rate(&mut self, op: Op, from: Part<'_>, to: Part<'_>) -> Result<f64, Trouble> {
        let pair = Pair::new(self.nic)?;
        let seed = self.random.word();
        let mut best: f64 = 0.0;
        for run in 0..RUNS {
            let seed = seed.wrapping_add(run);
            best = best.max(bandwidth(&pair, op, from, to, self.options.size, seed)?);
        }
        Ok(best)
    }

    fn rates(&mut self, from: Part<'_>, to: Part<'_>) -> Result<Rates, (Op, Trouble)> {
        let mut rate = |op| self.rate(op, from, to).map_err(|trouble| (op, trouble));
        Ok(Rates {
            write: rate(Op::Write)?,
            read: rate(Op::Read)?,
        })
    }

    /// Runs all operations between two parts. A failure does not stop the other ones.
    fn between(&mut self, from: Part<'_>, to: Part<'_>) -> Result<Line, Stop> {
        let name = |part: Part<'_>, text: &str| {
            let half = part.len() < part.buffer().len();
            let text = if half { text } else { "" };
            format!("{}{text}", part.buffer().name())
        };
        let upwards = from.offset() < to.offset();
        let halves = ["[low]", "[high]"];
        let mut line = Line {
            from: name(from, halves[usize::from(!upwards)]),
            to: name(to, halves[usize::from(upwards)]),
            moved: [None; Op::ALL.len()],
            rates: None,
            trouble: Vec::new(),
        };
        let mut pair = Pair::new(self.nic)?;
        for (index, op) in Op::ALL.into_iter().enumerate() {
            if op.is_atomic() && !self.nic.atomics() {
                continue;
            }
            let mut moved = 0;
            for _ in 0..self.options.loops {
                match exercise_op(&pair, op, from, to, self.random.word()) {
                    Ok(count) => moved += count,
                    Err(trouble) => {
                        line.trouble.push((op, trouble));
                        // The old pair may not be usable any more.
                        pair = Pair::new(self.nic)?;
                        break;
                    }
                }
            }
            line.moved[index] = Some(moved);
        }
        if line.trouble.is_empty() {
            match self.rates(from, to) {
                Ok(rates) => line.rates = Some(rates),
                Err(trouble) => line.trouble.push(trouble),
            }
        }
        Ok(line)
    }
}

fn run(options: &Options, report: &mut Report) -> Result<(), Stop> {
    let nic = Nic::open(options.device.as_deref())?;
    report.device = nic.name().to_string();
    report.pci = nic.pci().ok().map(|pci| pci.name().to_string());
    println!(
        "{}, below {}, GID {}",
        report.device,
        report.pci.as_deref().unwrap_or("no PCI device"),
        nic.gid_index()
    );
    let mut mover = Mover {
        nic: &nic,
        options,
        random: Lcg::new(misc::nonce()),
    };
    let mut buffers = Vec::new();
    for (name, kind) in &options.buffers {
        buffers.push(create(&nic, name, kind, options.size)?);
    }
    if options.hold {
        for buffer in &buffers {
            println!("{}: {} bytes are registered", buffer.name(), buffer.len());
        }
        io::copy(&mut io::stdin(), &mut io::sink())
            .map_err(|error| SysError::io("standard input", &error))?;
        return Ok(());
    }
    {
        let from = Buffer::host(&nic, "host", options.size)?;
        let to = Buffer::host(&nic, "host", options.size)?;
        let (from, to) = (Part::whole(&from), Part::whole(&to));
        let rates = mover.rates(from, to);
        report.host = rates.map_err(|(_, trouble)| Stop::fail(trouble))?;
    }
    for (index, from) in buffers.iter().enumerate() {
        for (other, to) in buffers.iter().enumerate() {
            let pairs = if index == other {
                let (low, high) = Part::halves(from);
                vec![(low, high), (high, low)]
            } else {
                vec![(Part::whole(from), Part::whole(to))]
            };
            for (from, to) in pairs {
                let line = mover.between(from, to)?;
                for (_, trouble) in &line.trouble {
                    eprintln!("p2p-rdma: {trouble}");
                }
                report.lines.push(line);
            }
        }
    }
    for buffer in buffers {
        buffer.close()?;
    }
    Ok(())
}

/// Formats a table; the first two columns are text, the others are numbers.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            // Writing to a string cannot fail.
            let _ = match column {
                0 => write!(line, "{cell:width$}"),
                1 => write!(line, "  {cell:width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

impl Report {
    fn verified(&self) -> bool {
        self.error.is_none() && self.lines.iter().all(|line| line.trouble.is_empty())
    }

    fn table(&self) -> String {
        let mut head = vec!["from".to_string(), "to".to_string()];
        head.extend(Op::ALL.map(|op| op.name().to_string()));
        head.extend(["MB/s write", "MB/s read", "ratio write", "ratio read"].map(String::from));
        let mut rows = vec![head];
        for line in &self.lines {
            let mut row = vec![line.from.clone(), line.to.clone()];
            for (op, moved) in Op::ALL.into_iter().zip(line.moved) {
                let trouble = line.trouble.iter().find(|(of, _)| *of == op);
                row.push(match (trouble, moved) {
                    (Some((_, Trouble::Wrong { .. })), _) => "WRONG".to_string(),
                    (Some(_), _) => "FAILED".to_string(),
                    (None, Some(moved)) => moved.to_string(),
                    (None, None) => "-".to_string(),
                });
            }
            row.extend(match line.rates {
                Some(Rates { write, read }) => [
                    format!("{:.1}", write / 1e6),
                    format!("{:.1}", read / 1e6),
                    format!("{:.2}", write / self.host.write),
                    format!("{:.2}", read / self.host.read),
                ],
                None => [(); 4].map(|()| "-".to_string()),
            });
            rows.push(row);
        }
        table(&rows)
    }

    fn json(&self) -> String {
        let text = |value: Option<&str>| value.map_or_else(|| "null".to_string(), json_string);
        let lines: Vec<_> = self.lines.iter().map(|line| self.json_line(line)).collect();
        format!(
            "{{\"device\": {}, \"pci\": {}, \"size\": {}, \"loops\": {}, \"host\": {}, \"pairs\": \
             [{}], \"verified\": {}, \"error\": {}}}\n",
            json_string(&self.device),
            text(self.pci.as_deref()),
            self.size,
            self.loops,
            json_rates(self.host, None),
            lines.join(", "),
            self.verified(),
            text(self.error.as_deref()),
        )
    }

    fn json_line(&self, line: &Line) -> String {
        let ops = Op::ALL.into_iter().zip(line.moved);
        let moved: Vec<_> = ops
            .map(|(op, moved)| {
                let bad = line.trouble.iter().any(|(of, _)| *of == op);
                let moved = moved.filter(|_| !bad);
                let moved = moved.map_or_else(|| "null".to_string(), |moved| moved.to_string());
                format!("{}: {moved}", json_string(op.name()))
            })
            .collect();
        let rates = line.rates.map_or_else(
            || "null".to_string(),
            |rates| json_rates(rates, Some(self.host)),
        );
        let trouble: Vec<_> = line.trouble.iter().map(json_trouble).collect();
        format!(
            "{{\"from\": {}, \"to\": {}, \"verified_bytes\": {{{}}}, \"rates\": {rates}, \
             \"trouble\": [{}]}}",
            json_string(&line.from),
            json_string(&line.to),
            moved.join(", "),
            trouble.join(", "),
        )
    }
}

fn json_rates(rates: Rates, host: Option<Rates>) -> String {
    let Rates { write, read } = rates;
    let ratios = host.map_or_else(String::new, |host| {
        let (write, read) = (write / host.write, read / host.read);
        format!(", \"write_ratio\": {write:.3}, \"read_ratio\": {read:.3}")
    });
    format!(
        "{{\"write_mb_s\": {:.3}, \"read_mb_s\": {:.3}{ratios}}}",
        write / 1e6,
        read / 1e6
    )
}

/// Words are written as strings, because a number of JSON has only 53 bits.
fn json_trouble((op, trouble): &(Op, Trouble)) -> String {
    let mismatch = match trouble {
        Trouble::Wrong {
            buffer, mismatch, ..
        } => format!(
            "{{\"buffer\": {}, \"offset\": {}, \"want\": \"{:#018x}\", \"seen\": \"{:#018x}\", \
             \"bad_words\": {}, \"words\": {}}}",
            json_string(buffer),
            mismatch.offset,
            mismatch.want,
            mismatch.seen,
            mismatch.bad,
            mismatch.all
        ),
        _ => "null".to_string(),
    };
    format!(
        "{{\"op\": {}, \"text\": {}, \"mismatch\": {mismatch}}}",
        json_string(op.name()),
        json_string(&trouble.to_string())
    )
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}\n{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("p2p-rdma: {text}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report {
        size: options.size,
        loops: options.loops,
        ..Default::default()
    };
    if let Err(stop) = run(&options, &mut report) {
        eprintln!("p2p-rdma: {}", stop.text());
        report.error = Some(stop.text().to_string());
    }
    if !report.lines.is_empty() {
        print!("{}", report.table());
    }
    if let Some(file) = &options.json {
        if let Err(error) = fs::write(file, report.json()) {
            eprintln!("p2p-rdma: {file}: {error}");
            return ExitCode::FAILURE;
        }
    }
    if report.verified() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Option<Options>, String> {
        parse(line.split_whitespace().map(str::to_string))
    }

    #[test]
    fn command_lines_are_understood() {
        let line = "--size 64K --loops 3 --device rxe0 --buffer host --buffer vvram:/dev/dri/x";
        let options = parsed(line).unwrap().unwrap();
        assert_eq!((options.size, options.loops), (65536, 3));
        assert_eq!(options.device.as_deref(), Some("rxe0"));
        let node = Some(PathBuf::from("/dev/dri/x"));
        let vram = Kind::Vvram {
            node,
            system: false,
        };
        assert_eq!(options.buffers[0], ("host".to_string(), Kind::Host));
        assert_eq!(options.buffers[1].1, vram);
        assert!(parsed("--buffer x --help").is_err());
        assert_eq!(parsed("--buffer fd:3 --help"), Ok(None));
        let options = parsed("--hold --buffer bar:0000:03:00.0/2+16M").unwrap();
        let options = options.unwrap();
        assert!(options.hold);
        let bar = |bar, offset| Kind::Bar {
            device: "0000:03:00.0".to_string(),
            bar,
            offset,
        };
        assert_eq!(options.buffers[0].1, bar(2, 16 << 20));
        assert_eq!(parse_kind("bar:0000:03:00.0/0"), Some(bar(0, 0)));
        for line in [
            "",
            "--buffer",
            "--buffer fd:-1",
            "--buffer vvram:",
            "--buffer heap:1",
            "--buffer bar:0000:03:00.0",
            "--buffer bar:0000:03:00.0/x",
            "--buffer bar:0000:03:00.0/2+x",
            "--size 0 --buffer host",
            "--size 17000000000G --buffer host",
            "--loops 0 --buffer host",
            "--what --buffer host",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn tables_are_aligned() {
        let rows = [["from", "to", "n"], ["a", "bcd", "100"]];
        let rows = rows.map(|row| row.map(String::from).to_vec());
        assert_eq!(table(&rows), "from  to     n\na     bcd  100\n");
    }

    #[test]
    fn a_report_tells_the_first_wrong_word() {
        let mismatch = vvram_tests::pattern::Mismatch {
            offset: 4096,
            want: u64::MAX,
            seen: 0,
            bad: 1,
            all: 512,
        };
        let trouble = Trouble::Wrong {
            what: "write from a+0x0 to b+0x0".to_string(),
            buffer: "b".to_string(),
            mismatch: Box::new(mismatch),
        };
        let line = Line {
            from: "a".to_string(),
            to: "b".to_string(),
            moved: [Some(0), Some(8), Some(8), None, None],
            rates: None,
            trouble: vec![(Op::Write, trouble)],
        };
        let report = Report {
            lines: vec![line],
            ..Default::default()
        };
        assert!(!report.verified());
        let json = report.json();
        let want = "\"offset\": 4096, \"want\": \"0xffffffffffffffff\"";
        assert!(json.contains(want), "{json}");
        assert!(json.contains("\"write\": null, \"read\": 8"), "{json}");
        let table = report.table();
        let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..5], ["a", "b", "WRONG", "8", "8"]);
    }
}
