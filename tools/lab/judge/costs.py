# SPDX-License-Identifier: GPL-2.0
"""What the figures of the benchmark say: rows that compare them, targets, goals and ceilings.

Each machine is booted twice, and a figure that differs by more than its tolerance is an error.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from judge import kernellog

FLAVOUR = "plain"
# Figures for the spread of the repetitions: they include the timer's interrupts.
SPREAD = (".median", ".most")
# How far two runs may be apart, as a part of the figure, by the start of its name; others agree to
# the instruction. Moves are done by a worker, which is woken. A figure that takes longer than the
# time between two of the timer's interrupts includes some of them, at other places and one more or
# less: each takes about a thousand instructions, which is 1.4 in 10,000 of the cheapest map.65536.
# A first mapping, which the whole path has as well, allocates memory, and finds the caches of the
# allocators as workers have left them: the least of several had to refill no cache, but which
# caches are filled depends on what was freed before. A transfer sleeps, and polls the engine once
# more or once less. The workers of soft RoCE are woken for one packet or for several. A walk over
# the pages of a process takes longer than many interrupts of the timer. What is counted of moves by
# an engine does not depend on its speed, but on the caches of the allocators, and on whether an
# invalidation is done at the first look. A job finds the caches as the jobs before have left them.
TOLERANCES = {"move.": 2e-2, "cycle.": 1e-2, "whole.": 1e-3, "first.": 1e-3, "map.65536.": 2e-4,
              "transfer.": 5e-2, "register.": 1e-2, "deregister.": 1e-2, "rdma.": 1e-1,
              "find.": 2e-2, "job.": 2e-2, "engine.": 5e-2}
# The ceilings of our figures, and as they would be by a run, in the folder of its logs.
CEILINGS = Path(__file__).with_name("ceilings.txt")
WINDOWS = "windows."       # the start of the names of numbers of windows, which are no figures
MACHINES = {"switch": "bus address", "host-bridge": "host bridge, no IOMMU",
            "intel-iommu": "host bridge, intel-iommu"}
MAPPINGS = (("4k", "1 x 4 KiB", None), ("256m", "1 x 256 MiB", None),
            ("adjacent", "4096 adjacent blocks", 0.05),
            ("scattered", "4096 scattered blocks", 1.01))
# Numbers of scattered blocks, and those of them whose whole path has a row.
GROWTH = (1, 16, 256, 4096, 65536)
WHOLE = (1, 4096, 65536)
FIRST = ("4k", "scattered")      # those that have a row for the first time
# Other ratios are not those of the same work.
SENSE = (1e-4, 1e4)
# The largest number of instructions that can be one: the program subtracts without a sign.
LARGEST = 1 << 62
# Why rows have neither a target nor a ceiling, by the start of the names of their figures.
UNBOUNDED = {
    "transfer.direct.cpu": "nearly all of it is the driver of edu, which is the same for both",
    "transfer.direct.time": "it is the time of edu's engine"}
# By how much a figure is below its ceiling at least, as a part of it, when the ceiling is made.
LEEWAY = 5e-3
# The goals, as a part of vfio-pci's figures. A goal that is not met is no error, but figures must
# not become worse: they have ceilings.
MAP_GOAL = 1.05
FIRST_GOAL = 1.0
WHOLE_GOAL = 1.0
ATTACH_GOAL = 1.2
ATTACHES = ((1, "attach the first"), (1000, "attach one more to 999"))
# A BAR and a buffer without memory behind them.
HUGE_MACHINES = {"switch": "bus address", "host-bridge": "host bridge, no IOMMU"}
HUGE_TARGET = 1.2
HUGE = "-huge"             # the end of the names of its boots
# The machine with a NIC.
RDMA = "rdma-switch"
REGISTRATIONS = (("4k", "4 KiB"), ("4m", "4 MiB"), ("256m", "256 MiB"))
# The machines on which devices find pages of processes, and the end of the names of their boots.
FINDING = "switch"
FIND = "-find"
FOUND = (("4k", "4 KiB pages"), ("2m", "huge pages"))
# The targets: the cost of finding pages in VRAM, as a ratio to finding them in system memory, and
# how many times more a move back to system memory takes.
FIND_TARGET = {"4k": 1.5, "2m": 1.25}
BACK_TARGET = 20
# The machine with a modelled GPU.
ENGINE = "gpu-switch"
MOVED = (("4k", 4 << 10), ("2m", 2 << 20), ("256m", 256 << 20))
WAYS = (("out", "VRAM to system memory"), ("back", "system memory to VRAM"))
JOBS = (("job", "a copy of a page"), ("job.exec-1", "a job of a VM that maps one object"),
        ("job.exec-64", "a job of a VM that maps 64 objects"))
HEADER = ("what", "ours", "to compare", "with", "ratio", "better", "spread", "target", "verdict")


@dataclass(frozen=True)
class Row:
    """One comparison.

    The ratio is that of the instructions for the same work, where less is better, or that of the
    work that the same number of instructions does, where more is better.
    """

    what: str
    ours: int
    other: int
    against: str
    ratio: float
    spread: str = "-"
    better: str = "less"     # or "more"
    least: float = None      # of the ratio
    most: float = None
    goal: float = None       # the most that is aimed at
    figure: str = ""         # the name of the figure of ours
    boot: str = ""           # the first boot that measured it

    @property
    def target(self):
        """The target, or the goal, as text."""
        if self.least is not None:
            return f"at least {self.least}"
        if self.goal is not None:
            return f"goal {self.goal}"
        return f"at most {self.most}" if self.most is not None else "-"

    @property
    def verdict(self):
        """Whether the target, or the goal, is met."""
        if self.goal is not None:
            return "met" if self.ratio <= self.goal else "not met"
        if not self.has_target:
            return "-"
        good = (self.least is None or self.ratio >= self.least) and \
               (self.most is None or self.ratio <= self.most)
        return "ok" if good else "MISSED"

    @property
    def machine(self):
        """The machine whose figures it compares."""
        return machine_of(self.boot)[0]

    def is_bounded(self, base):
        """Whether the command fails if it becomes worse: by a target, or by a ceiling."""
        return self.has_target or self.figure in base.get(self.machine, {})

    @property
    def has_target(self):
        """Whether it has a target."""
        return (self.least, self.most) != (None, None)

    @property
    def reason(self):
        """Why nothing bounds it, or nothing."""
        return next((why for start, why in UNBOUNDED.items() if self.figure.startswith(start)), "")

    def cells(self):
        """The row as text."""
        return (self.what, f"{self.ours:,}", f"{self.other:,}", self.against,
                f"{self.ratio:.3f}", self.better, self.spread, self.target, self.verdict)


def machine_of(boot):
    """The machine of a boot, its name with the suffix of the program, and the number of the run."""
    name, _, run = boot.removeprefix("bench-").rpartition("-")
    # The large BAR is the same machine.
    return name.removesuffix(HUGE).removesuffix(FIND), name, run


def parse(text):
    """The figures of a boot: lines of `name value`."""
    figures = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        figures[name] = int(value)
    return figures


def tolerance(name):
    """How far two runs may be apart, as a part of the figure."""
    return next((part for start, part in TOLERANCES.items() if name.startswith(start)), 0)


def same(name, first, second):
    """Whether two runs agree on a figure."""
    if name.endswith(SPREAD) or first == second:
        return True
    return None not in (first, second) and abs(first - second) <= tolerance(name) * first


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
               spread(figures, f"move.{direction}"), "more", least=0.8,
               figure=f"move.{direction}")


def general(figures):
    """The rows that do not depend on the path between the devices."""
    many, few = figures["cycle.10000"], figures["cycle.10"]
    direct, bounce = figures["transfer.direct.cpu"], figures["transfer.bounce.cpu"]
    elapsed = figures["transfer.direct.time"], figures["transfer.bounce.time"]
    return [move(figures, "out", "VRAM to system memory"),
            move(figures, "back", "system memory to VRAM"),
            Row("life of an export, 10,000 alive", many, few, "10 alive", many / few,
                spread(figures, "cycle.10000"), most=1.2, figure="cycle.10000"),
            Row("peer reads 4 KiB of VRAM: CPU", direct, bounce, "bounce", bounce / direct,
                spread(figures, "transfer.direct.cpu"), "more", figure="transfer.direct.cpu"),
            Row("peer reads 4 KiB of VRAM: time", *elapsed, "bounce", elapsed[1] / elapsed[0],
                spread(figures, "transfer.direct.time"), "more",
                figure="transfer.direct.time")]


def against_vfio(figures, name, what, target=None, goal=None):
    """A figure of ours against that of vfio-pci's exporter."""
    ours, theirs = figures[f"{name}.ours"], figures[f"{name}.vfio"]
    return Row(what, ours, theirs, "vfio-pci", ours / theirs, most=target, goal=goal,
               figure=f"{name}.ours")


def mappings(figures, path):
    """Map and unmap: again and again, and for the first time."""
    found = [against_vfio(figures, f"map.{name}", f"{path}: {title}, vvram", target,
                          None if target else MAP_GOAL)
             for name, title, target in MAPPINGS]
    return found + [against_vfio(figures, f"first.{name}", f"{path}: {title}, vvram, the first time",
                                 goal=FIRST_GOAL)
                    for name, title, _ in MAPPINGS if name in FIRST]


def recorded(text):
    """The ceilings by machine: lines of `machine name value`, and comments."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            machine, name, value = line.split()
            found.setdefault(machine, {})[name] = int(value)
    return found


def ceilings(measured, base, found):
    """The lines of ceilings, as they would be by what was measured.

    A figure may become larger by its tolerance, at least by half a percent: the state of the caches
    of the allocators makes such a difference, and so does the inlining by the compiler.
    """
    names = {(machine, name): None for machine, figures in base.items() for name in figures}
    names |= {(row.machine, row.figure): None for row in found if not row.has_target}
    lines = []
    for machine, name in names:
        if name in measured[machine]:
            most = measured[machine][name] * (1 + max(tolerance(name), LEEWAY))
            lines.append(f"{machine} {name} {math.ceil(most / 10) * 10}")
    return lines


def exceeded(measured, base):
    """The figures that are above their ceilings, or are missing."""
    found = []
    for machine, figures in base.items():
        for name, most in figures.items():
            value = measured[machine].get(name)
            if value is None:
                found.append(f"{machine}: {name} was not measured")
            elif value > most:
                found.append(f"{machine}: {name}: {value:,}, at most {most:,} are allowed")
    return found


def paths(figures, path):
    """The whole path of an importer, from the export on, and the attach alone."""
    return [against_vfio(figures, f"whole.{blocks}",
                         f"{path}: export to close, {blocks:,} scattered, bar_export",
                         goal=WHOLE_GOAL)
            for blocks in WHOLE] + \
           [against_vfio(figures, f"attach.{count}", f"{path}: {title}, vvram", goal=ATTACH_GOAL)
            for count, title in ATTACHES]


def registrations(figures):
    """Memory regions of VRAM against memory regions of system memory, and writes to both."""
    found = []
    for what in ("register", "deregister"):
        for size, text in REGISTRATIONS:
            for kind, memory in (("vram", "VRAM"), ("system", "system memory of the GPU")):
                name = f"{what}.{size}.{kind}"
                ours, other = figures[name], figures[f"{what}.{size}.host"]
                found.append(Row(f"RDMA: {what} {text} of {memory}", ours, other, "host memory",
                                 ours / other, spread(figures, name), figure=name))
    ours, other = figures["rdma.write.vram"], figures["rdma.write.host"]
    return found + [Row("RDMA write of 4 MiB to VRAM: workers", ours, other, "host memory",
                        ours / other, figure="rdma.write.vram")]


def finding(figures):
    """Pages of a process in VRAM against those in system memory, and against moving them back."""
    found = []
    for name, title in FOUND:
        ram, vram, back = (figures[f"find.{name}.{place}"] for place in ("ram", "vram", "back"))
        how = spread(figures, f"find.{name}.vram")
        found += [Row(f"find 256 MiB of a process in VRAM, {title}", vram, ram, "in system memory",
                      vram / ram, how, most=FIND_TARGET[name], figure=f"find.{name}.vram"),
                  Row(f"find 256 MiB of a process in VRAM, {title}", vram, back, "moved back first",
                      back / vram, how, "more", least=BACK_TARGET, figure=f"find.{name}.vram")]
    return found


def for_each_page(figures):
    """The cost of finding a page, a line for each size, and what a callback by folio could save."""
    lines = []
    for name, title in FOUND:
        pages = figures[f"find.{name}.pages"]
        ram, vram, back = (figures[f"find.{name}.{place}"] / pages
                           for place in ("ram", "vram", "back"))
        lines.append(f"{title}: {ram:.1f} instructions for a page in system memory, {vram:.1f} in "
                     f"VRAM, {back:,.1f} if it is moved back")
    # The pages of a folio mostly take one call already: the walk fills an entry for each of them.
    lines.append(f"huge pages: of these, a callback for each folio would save at most {vram - ram:.1f}")
    return lines


def engine(figures):
    """Moves by the engine: large ones against the smallest."""
    found = []
    for way, title in WAYS:
        least = figures[f"engine.{MOVED[0][0]}.{way}"]
        for name, size in MOVED[1:]:
            figure = f"engine.{name}.{way}"
            found.append(Row(f"move {size >> 20} MiB by an engine, {title}", figures[figure], least,
                             "4 KiB", figures[figure] / least, spread(figures, figure),
                             figure=figure))
    return found


def jobs(figures):
    """The cost of jobs, a line for each kind."""
    return [f"{title}: {figures[name + '.submit']:,} instructions from the ioctl to the doorbell, "
            f"{figures[name + '.finish']:,} from the interrupt to the signalled fence"
            for name, title in JOBS]


def engine_growth(figures):
    """How moves by the engine grow with the number of pages, for each direction."""
    return [(f"move n pages by the engine, {title}",
             [(size >> 12, figures[f"engine.{name}.{way}"]) for name, size in MOVED])
            for way, title in WAYS]


def huge(figures, path):
    """The large buffer of the large BAR."""
    size, entries = (figures[f"map.huge.ours.{name}"] for name in ("bytes", "entries"))
    return against_vfio(figures, "map.huge",
                        f"{path}: 1 x {size >> 30} GiB, {entries} entries, bar_export", HUGE_TARGET)


def unlike(machine, figures):
    """The tables in which our exporter and vfio-pci have different numbers of entries."""
    names = [*(f"map.{n}" for n in GROWTH), "map.scattered", "map.256m", "map.huge"]
    return [f"{machine}: {name}: entries of ours and of vfio-pci differ" for name in names
            if figures.get(f"{name}.ours.entries") != figures.get(f"{name}.vfio.entries")]


def fit(points):
    """The line with the least squares of relative errors: (start, slope, largest error)."""
    weights = [(x, y, 1 / y ** 2) for x, y in points]
    w, wx, wxx, wy, wxy = (sum(weight * term(x, y) for x, y, weight in weights) for term in (
        lambda x, y: 1, lambda x, y: x, lambda x, y: x * x, lambda x, y: y, lambda x, y: x * y))
    slope = (w * wxy - wx * wy) / (w * wxx - wx * wx)
    start = (wy - slope * wx) / w
    return start, slope, max(abs(start + slope * x - y) / y for x, y in points)


def growth(figures, path):
    """How the costs grow with the number of scattered blocks, for each exporter."""
    return [(f"{path}: {title} of n scattered blocks, {exporter}",
             [(n, figures[f"{name}.{n}.{who}"]) for n in GROWTH])
            for name, title in (("map", "map + unmap, again,"), ("whole", "export to close"))
            for who, exporter in (("ours", "bar_export"), ("vfio", "vfio-pci"))]


def grown(curves):
    """A line of text for each curve, and the curves that fall."""
    lines, wrong = [], []
    for what, points in curves:
        start, slope, worst = fit(points)
        lines.append(f"{what}: {start:,.0f} + {slope:,.2f} n instructions, "
                     f"within {100 * worst:.0f} %")
        if slope <= 0:
            wrong.append(f"{lines[-1]}: more work cannot take less")
    return lines, wrong


def impossible(measured):
    """The figures that no work can have."""
    found = []
    for machine, figures in measured.items():
        for name, value in figures.items():
            if not 0 < value < LARGEST:
                found.append(f"{machine}: {name}: {value:,} is no number of instructions")
            order = [value, *(figures.get(f"{name}{which}") for which in SPREAD)]
            if None not in order and order != sorted(order):
                found.append(f"{machine}: {name}: least, median and most are {order}")
    return found


def deviations(found):
    """The rows that miss their target, and those that compare what cannot be compared."""
    wrong = [f"{row.what}: {row.ratio:.3f}, the target is {row.target}"
             for row in found if row.verdict == "MISSED"]
    wrong += [f"{row.what}: a ratio of {row.ratio:g} is not one of the same work"
              for row in found if not SENSE[0] < row.ratio < SENSE[1]]
    return wrong


def rows(measured):
    """All rows; measured maps machines to their figures."""
    found = [("switch", general(measured["switch"])),
             *[(name, mappings(measured[name], path)) for name, path in MACHINES.items()],
             *[(name + HUGE, [huge(measured[name], path)]) for name, path in HUGE_MACHINES.items()],
             *[(name, paths(measured[name], path)) for name, path in MACHINES.items()],
             (RDMA, registrations(measured[RDMA])),
             (FINDING + FIND, finding(measured[FINDING])),
             (ENGINE, engine(measured[ENGINE]))]
    return [replace(row, boot=f"bench-{boot}-1") for boot, part in found for row in part]


def table(lines):
    """Text columns under a header."""
    lines = [HEADER, *[row.cells() for row in lines]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    numbers = {1, 2, 4, 6}
    out = ["  ".join(cell.rjust(width) if i in numbers else cell.ljust(width)
                     for i, (cell, width) in enumerate(zip(line, widths))).rstrip()
           for line in lines]
    return [out[0], "-" * max(map(len, out)), *out[1:]]


def complaints(outcome):
    """The errors of a boot, apart from its figures."""
    found = [outcome.error] if outcome.error else []
    found += [f"kernel log: {line}" for line in kernellog.brief(
        kernellog.complaints(outcome.log, outcome.boot.name))]
    return found + [f"QEMU: {line}" for line in outcome.qemu_log]


def gather(outcomes):
    """The figures of each machine, and the errors of its boots."""
    measured, runs, wrong = {}, {}, []
    for outcome in outcomes:
        wrong += [f"{outcome.boot.name}: {text}" for text in complaints(outcome)]
        if outcome.error:
            continue
        figures = {name: value for name, value in
                   parse((outcome.results / "figures").read_text()).items()
                   if not name.startswith(WINDOWS)}
        machine, name, run = machine_of(outcome.boot.name)
        runs.setdefault((machine, name), {})[run] = figures
    for (machine, name), of_machine in runs.items():
        first, *others = of_machine.values()
        for other in others:
            wrong += [f"{name}: two runs differ: {text}" for text in differences(first, other)]
        measured.setdefault(machine, {}).update(first)
    return measured, wrong
