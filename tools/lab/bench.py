# SPDX-License-Identifier: GPL-2.0
"""The benchmark: what moves, exports and mappings cost in instructions, as one table.

A guest's time is the number of its instructions, so that a figure is the same on
every machine and in every run: each topology is booted twice, and a figure that
differs is an error. The kernel is one without the checks of the tests.
"""

from dataclasses import dataclass

import kernellog
import qemu
import topologies
from steps import LabError

FLAVOUR = "plain"
TIMEOUT = 400
RUNS = 2
VRAM_SIZE = "512M"
# Figures that tell how even the repetitions are: they have the timer's interrupts in them.
SPREAD = (".median", ".most")
# How far two runs may be apart, as a part of the figure, by the start of its name; others agree to
# the instruction. Moves are done by a worker, which is woken; mappings are timed by the kernel's clock, which it calibrates at each boot, and
# the long ones always meet an interrupt; so do exports, or work that was put off; a transfer sleeps,
# and looks at the engine once more or once less.
TOLERANCES = {"move.": 2e-2, "map.": 5e-4, "cycle.": 5e-3, "transfer.": 5e-2}
MACHINES = {"switch": "bus address", "host-bridge": "host bridge, no IOMMU",
            "intel-iommu": "host bridge, intel-iommu"}
MAPPINGS = (("4k", "1 x 4 KiB", 1.05), ("256m", "1 x 256 MiB", 1.05),
            ("adjacent", "4096 adjacent blocks", 0.05),
            ("scattered", "4096 scattered blocks", 1.0))
# Targets that are known to be missed: they are printed, and do not fail the command.
OPEN = {f"{path}: {title}" for path in MACHINES.values()
        for name, title, _ in MAPPINGS if name != "adjacent"}
HEADER = ("what", "ours", "to compare", "with", "ratio", "spread", "target", "verdict")


@dataclass(frozen=True)
class Row:
    """One comparison. The ratio is that of the work done, or of the instructions for it."""

    what: str
    ours: int
    other: int
    against: str
    ratio: float
    spread: str = "-"
    least: float = None      # of the ratio
    most: float = None

    @property
    def target(self):
        """The target as text."""
        if self.least is not None:
            return f"at least {self.least}"
        return f"at most {self.most}" if self.most is not None else "-"

    @property
    def verdict(self):
        """Whether the target is met."""
        if self.least is None and self.most is None:
            return "-"
        good = (self.least is None or self.ratio >= self.least) and \
               (self.most is None or self.ratio <= self.most)
        return "ok" if good else "open" if self.what in OPEN else "MISSED"

    def cells(self):
        """The row as text."""
        return (self.what, f"{self.ours:,}", f"{self.other:,}", self.against,
                f"{self.ratio:.3f}", self.spread, self.target, self.verdict)


def boots():
    """The boots: the machines in order, each as often as it runs."""
    return [qemu.Boot(f"bench-{name}-{run}", topologies.find(name), "bench", TIMEOUT,
                      {"VVRAM_EXPECT": topologies.find(name).decision}, vram=VRAM_SIZE)
            for name in MACHINES for run in range(1, RUNS + 1)]


def parse(text):
    """The figures of a boot: lines of `name value`."""
    figures = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        figures[name] = int(value)
    return figures


def same(name, first, second):
    """Whether two runs agree about a figure."""
    if name.endswith(SPREAD) or first == second:
        return True
    part = next((part for start, part in TOLERANCES.items() if name.startswith(start)), 0)
    return None not in (first, second) and abs(first - second) <= part * first


def differences(first, second):
    """The figures in which two runs of the same machine differ."""
    return [f"{name}: {first.get(name)} and {second.get(name)}"
            for name in sorted(first.keys() | second.keys())
            if not same(name, first.get(name), second.get(name))]


def spread(figures, name):
    """How far the median and the worst repetition are above the best one."""
    least = figures[name]
    return "/".join(f"+{100 * (figures[name + which] - least) / least:.0f}%" for which in SPREAD)


def move(figures, direction, title):
    """A move against a copy, per byte of the same size."""
    cost = figures[f"move.{direction}"] - figures[f"move.{direction}.still"]
    copy = figures[f"copy.{direction}"]
    size = figures["move.bytes"] >> 20
    return Row(f"move {size} MiB from {title}", cost, copy, "copy by the CPU", copy / cost,
               spread(figures, f"move.{direction}"), least=0.8)


def general(figures):
    """What does not depend on the path between the devices."""
    many, few = figures["cycle.10000"], figures["cycle.10"]
    direct, bounce = figures["transfer.direct.cpu"], figures["transfer.bounce.cpu"]
    elapsed = figures["transfer.direct.time"], figures["transfer.bounce.time"]
    return [move(figures, "out", "VRAM to system memory"),
            move(figures, "back", "system memory to VRAM"),
            Row("life of an export, 10,000 alive", many, few, "10 alive", many / few,
                spread(figures, "cycle.10000"), most=1.2),
            Row("peer reads 4 KiB of VRAM: CPU", direct, bounce, "bounce", bounce / direct,
                spread(figures, "transfer.direct.cpu")),
            Row("peer reads 4 KiB of VRAM: time", *elapsed, "bounce", elapsed[1] / elapsed[0],
                spread(figures, "transfer.direct.time"))]


def mappings(figures, path):
    """Map and unmap, against vfio-pci's exporter."""
    rows = []
    for name, title, target in MAPPINGS:
        ours, theirs = figures[f"map.{name}.ours"], figures.get(f"map.{name}.vfio")
        if theirs:
            rows.append(Row(f"{path}: {title}", ours, theirs, "vfio-pci", ours / theirs,
                            most=target))
    return rows


def rows(measured):
    """All rows; measured maps machines to their figures."""
    found = general(measured["switch"])
    for name, path in MACHINES.items():
        found += mappings(measured[name], path)
    return found


def table(lines):
    """Text columns under a header."""
    lines = [HEADER, *[row.cells() for row in lines]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    numbers = {1, 2, 4, 5}
    out = ["  ".join(cell.rjust(width) if i in numbers else cell.ljust(width)
                     for i, (cell, width) in enumerate(zip(line, widths))).rstrip()
           for line in lines]
    return [out[0], "-" * max(map(len, out)), *out[1:]]


def complaints(outcome):
    """What is wrong with a boot, whatever it measured."""
    found = [outcome.error] if outcome.error else []
    found += [f"kernel log: {line.strip()}" for line in kernellog.complaints(outcome.log)]
    return found + [f"QEMU: {line}" for line in outcome.qemu_log]


def gather(outcomes):
    """The figures of each machine, and what is wrong with its boots."""
    measured, wrong = {}, []
    for outcome in outcomes:
        wrong += [f"{outcome.boot.name}: {text}" for text in complaints(outcome)]
        if outcome.error:
            continue
        figures = parse((outcome.results / "figures").read_text())
        name = outcome.boot.topology.name
        wrong += [f"{name}: two runs differ: {text}"
                  for text in differences(measured.setdefault(name, figures), figures)]
    return measured, wrong


def run(steps, built):
    """Boot, print the table, fail if a target is missed or two runs differ."""
    if qemu.kvm():
        raise LabError("KVM=1 has no count of instructions", "leave it out")
    with steps.step("boot the benchmark") as step:
        outcomes = built.machine.run_all(step, steps.console, boots())
    measured, wrong = gather(outcomes)
    lines = []
    if set(MACHINES) <= set(measured):
        found = rows(measured)
        lines = table(found)
        wrong += [f"{row.what}: {row.ratio:.3f}, the target is {row.target}"
                  for row in found if row.verdict == "MISSED"]
    report = steps.logs / "bench.txt"
    report.write_text("\n".join([*lines, "", *wrong]) + "\n")
    for line in ["", *lines, "", *wrong]:
        steps.console.say(line)
    steps.console.say(f"the same as text: {report}")
    if wrong:
        raise LabError(f"{len(wrong)} deviations from what is expected",
                       f"read the logs in {outcomes[0].results.parent}/bench-*")
