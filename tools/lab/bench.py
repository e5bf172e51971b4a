# SPDX-License-Identifier: GPL-2.0
"""The benchmark: what moves, exports and mappings cost in instructions, as one table.

A guest's time is the number of its instructions, so that a figure does not depend on how fast
the host is. Each topology is booted twice, and a figure that differs by more than its tolerance
is an error. The kernel is one without the checks of the tests.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import kernellog
import qemu
import topologies
from steps import LabError

FLAVOUR = "plain"
TIMEOUT = 400
RUNS = 2
VRAM_SIZE = "512M"
# The command line tells the kernel the frequency of the time stamp counter, and the machine has no
# other clock to compare it with: a nanosecond of the guest's clock is exactly one instruction.
CLOCK = "tsc_early_khz=1000000 hpet=disable pmtmr=0"
# Struct pages of the large BAR take more memory than the guest has.
NO_PAGES = "vvram.struct_pages=0 vvram.svm=0"
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
# the pages of a process takes longer than many interrupts of the timer. The speed of the engine of
# a modelled GPU depends on the host, so that its interrupts come at any time. A job with 64 objects
# makes room for as many fences, and finds the caches as the jobs before have left them.
TOLERANCES = {"move.": 2e-2, "cycle.": 1e-2, "whole.": 1e-3, "first.": 1e-3, "map.65536.": 2e-4,
              "transfer.": 5e-2, "register.": 1e-2, "deregister.": 1e-2, "rdma.": 5e-2,
              "find.": 2e-2, "job.exec-64.": 2e-1, "job.": 2e-2, "engine.": 3e-1}
# The figures of vfio-pci's exporter without patches that make it faster, and the ceilings of ours.
BASELINE = Path(__file__).with_name("baseline.txt")
THEIRS = ".vfio"           # the end of the names of its figures
WINDOWS = "windows."       # the start of the names of numbers of windows, which are no figures
MACHINES = {"switch": "bus address", "host-bridge": "host bridge, no IOMMU",
            "intel-iommu": "host bridge, intel-iommu"}
MAPPINGS = (("4k", "1 x 4 KiB", 1.05), ("256m", "1 x 256 MiB", 1.05),
            ("adjacent", "4096 adjacent blocks", 0.05),
            ("scattered", "4096 scattered blocks", 1.0))
# Numbers of scattered blocks, and those of them whose whole path has a row.
GROWTH = (1, 16, 256, 4096, 65536)
WHOLE = (1, 4096, 65536)
FIRST = ("4k", "scattered")      # those that have a row for the first time
# The goals, as a part of vfio-pci's figures. A goal that is not met is no error, but figures must
# not become worse: the baseline has ceilings for them.
FIRST_GOAL = 1.0
WHOLE_GOAL = 1.0
ATTACH_GOAL = 1.2
ATTACHES = ((1, "attach the first"), (1000, "attach one more to 999"))
# A BAR and a buffer without memory behind them.
HUGE_MACHINES = {"switch": "bus address", "host-bridge": "host bridge, no IOMMU"}
HUGE_SIZE = "64G"
HUGE = "-huge"             # the end of the names of its boots
# The machine with a NIC.
RDMA = "rdma-switch"
REGISTRATIONS = (("4k", "4 KiB"), ("4m", "4 MiB"), ("256m", "256 MiB"))
# The machines on which devices find pages of processes, and the end of the names of their boots.
FINDING = "switch"
FIND = "-find"
FOUND = (("4k", "4 KiB pages"), ("2m", "huge pages"))
# The goals: the cost of finding pages of 4 KiB in VRAM, as a ratio to finding them in system
# memory, and how many times more a move back to system memory takes.
FIND_GOAL = {"4k": 1.5}
BACK_TARGET = 20
# The machine with a modelled GPU, the size of the GPU, and the parameters of its driver: guest time
# runs ahead while the device works, which must not make the driver poll or time out, nor the kernel
# report that a task hangs.
ENGINE = "gpu-switch"
ENGINE_SIZES = "vram=1G,aperture=512M"
PATIENT = " ".join([*(f"mgpu.{name}_ms=4000000000" for name in ("timeout", "poll", "invalidate")),
                    "sysctl.kernel.hung_task_timeout_secs=0"])
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
        if self.least is None and self.most is None:
            return "-"
        good = (self.least is None or self.ratio >= self.least) and \
               (self.most is None or self.ratio <= self.most)
        return "ok" if good else "MISSED"

    def cells(self):
        """The row as text."""
        return (self.what, f"{self.ours:,}", f"{self.other:,}", self.against,
                f"{self.ratio:.3f}", self.better, self.spread, self.target, self.verdict)


def boots():
    """The boots: the machines in order, each as often as it runs."""
    found = []
    for machines, suffix, vram, program, more, told in (
            (MACHINES, "", VRAM_SIZE, "p2p-bench", "", ""),
            (HUGE_MACHINES, HUGE, HUGE_SIZE, "p2p-bench", "--huge", NO_PAGES),
            ((RDMA,), "", VRAM_SIZE, "rdma-bench", "", ""),
            ((FINDING,), FIND, VRAM_SIZE, "svm-bench", "", ""),
            ((ENGINE,), "", VRAM_SIZE, "mgpu-bench", "", PATIENT)):
        for name in machines:
            topology = topologies.find(name)
            settings = {"VVRAM_EXPECT": topology.decision, "LAB_PROGRAM": program,
                        "LAB_BENCH": more}
            cmdline = f"{CLOCK} {told}".strip()
            found += [qemu.Boot(f"bench-{name}{suffix}-{run}", topology, "bench", TIMEOUT,
                                settings, cmdline, vram, exact=True, sizes=ENGINE_SIZES)
                      for run in range(1, RUNS + 1)]
    return found


def parse(text):
    """The figures of a boot: lines of `name value`."""
    figures = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        figures[name] = int(value)
    return figures


def same(name, first, second):
    """Whether two runs agree on a figure."""
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
               spread(figures, f"move.{direction}"), "more", least=0.8)


def general(figures):
    """The rows that do not depend on the path between the devices."""
    many, few = figures["cycle.10000"], figures["cycle.10"]
    direct, bounce = figures["transfer.direct.cpu"], figures["transfer.bounce.cpu"]
    elapsed = figures["transfer.direct.time"], figures["transfer.bounce.time"]
    return [move(figures, "out", "VRAM to system memory"),
            move(figures, "back", "system memory to VRAM"),
            Row("life of an export, 10,000 alive", many, few, "10 alive", many / few,
                spread(figures, "cycle.10000"), most=1.2),
            Row("peer reads 4 KiB of VRAM: CPU", direct, bounce, "bounce", bounce / direct,
                spread(figures, "transfer.direct.cpu"), "more"),
            Row("peer reads 4 KiB of VRAM: time", *elapsed, "bounce", elapsed[1] / elapsed[0],
                spread(figures, "transfer.direct.time"), "more")]


def against_vfio(figures, name, what, target=None, goal=None):
    """A figure of ours against that of vfio-pci's exporter."""
    ours, theirs = figures[f"{name}.ours"], figures[f"{name}.vfio"]
    return Row(what, ours, theirs, "vfio-pci", ours / theirs, most=target, goal=goal)


def mappings(figures, path):
    """Map and unmap: again and again, and for the first time."""
    found = [against_vfio(figures, f"map.{name}", f"{path}: {title}, vvram", target)
             for name, title, target in MAPPINGS]
    return found + [against_vfio(figures, f"first.{name}", f"{path}: {title}, vvram, the first time",
                                 goal=FIRST_GOAL)
                    for name, title, _ in MAPPINGS if name in FIRST]


def recorded(text):
    """The figures of a baseline by machine: lines of `machine name value`, and comments."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            machine, name, value = line.split()
            found.setdefault(machine, {})[name] = int(value)
    return found


def baseline(measured):
    """The measured figures of vfio-pci's exporter, as lines of a baseline."""
    return [f"{machine} {name} {value}" for machine, figures in measured.items()
            for name, value in figures.items() if name.endswith(THEIRS)]


def compared(measured, base):
    """The figures with those of a baseline in place of vfio-pci's of this kernel."""
    return {machine: {**figures, **{name: value for name, value in base.get(machine, {}).items()
                                    if name.endswith(THEIRS)}}
            for machine, figures in measured.items()}


def exceeded(measured, base):
    """The figures of ours that are above the ceilings of a baseline."""
    return [f"{machine}: {name}: {measured[machine][name]:,}, at most {most:,} are allowed"
            for machine, figures in base.items() for name, most in figures.items()
            if not name.endswith(THEIRS) and measured[machine][name] > most]


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
                                 ours / other, spread(figures, name)))
    ours, other = figures["rdma.write.vram"], figures["rdma.write.host"]
    return found + [Row("RDMA write of 4 MiB to VRAM: workers", ours, other, "host memory",
                        ours / other)]


def finding(figures):
    """Pages of a process in VRAM against those in system memory, and against moving them back."""
    found = []
    for name, title in FOUND:
        ram, vram, back = (figures[f"find.{name}.{place}"] for place in ("ram", "vram", "back"))
        how = spread(figures, f"find.{name}.vram")
        found += [Row(f"find 256 MiB of a process in VRAM, {title}", vram, ram, "in system memory",
                      vram / ram, how, goal=FIND_GOAL.get(name)),
                  Row(f"find 256 MiB of a process in VRAM, {title}", vram, back, "moved back first",
                      back / vram, how, "more", least=BACK_TARGET)]
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


def moved(figures, name, way):
    """The instructions of the CPU for a move by the engine, minus those of a run without a move."""
    return figures[f"engine.{name}.{way}"] - figures[f"engine.{name}.{way}.still"]


def engine(figures):
    """Moves by the engine: large ones against the smallest."""
    least = MOVED[0][0]
    return [Row(f"move {size >> 20} MiB by an engine, {title}", moved(figures, name, way),
                moved(figures, least, way), "4 KiB",
                moved(figures, name, way) / moved(figures, least, way),
                spread(figures, f"engine.{name}.{way}"))
            for way, title in WAYS for name, size in MOVED[1:]]


def engine_growth(figures):
    """The cost of jobs, and a line for each direction of a move on its growth with the size."""
    lines = [f"{title}: {figures[name + '.submit']:,} instructions from the ioctl to the doorbell, "
             f"{figures[name + '.finish']:,} from the interrupt to the signalled fence"
             for name, title in JOBS]
    for way, title in WAYS:
        points = [(size >> 12, moved(figures, name, way)) for name, size in MOVED]
        start, slope, worst = fit(points)
        lines.append(f"move n pages by the engine, {title}: {start:,.0f} + {slope:,.2f} n "
                     f"instructions, within {100 * worst:.0f} %")
    return lines


def huge(figures, path):
    """The large buffer of the large BAR."""
    size, entries = (figures[f"map.huge.ours.{name}"] for name in ("bytes", "entries"))
    return against_vfio(figures, "map.huge",
                        f"{path}: 1 x {size >> 30} GiB, {entries} entries, bar_export")


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
    """How the costs grow with the number of scattered blocks, a line for each."""
    lines = []
    for name, title in (("map", "map + unmap, again,"), ("whole", "export to close")):
        for who, exporter in (("ours", "bar_export"), ("vfio", "vfio-pci")):
            start, slope, worst = fit([(n, figures[f"{name}.{n}.{who}"]) for n in GROWTH])
            lines.append(f"{path}: {title} of n scattered blocks, {exporter}: "
                         f"{start:,.0f} + {slope:,.1f} n, within {100 * worst:.0f} %")
    return lines


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
        machine, run = outcome.boot.name.removeprefix("bench-").rsplit("-", 1)
        runs.setdefault(machine, {})[run] = figures
    for machine, of_machine in runs.items():
        first, *others = of_machine.values()
        for other in others:
            wrong += [f"{machine}: two runs differ: {text}" for text in differences(first, other)]
        # The large BAR is the same machine.
        measured.setdefault(machine.removesuffix(HUGE).removesuffix(FIND), {}).update(first)
    return measured, wrong


def run(steps, built):
    """Boot, print the table, fail if a target is missed or two runs differ."""
    if qemu.kvm():
        raise LabError("KVM=1 has no count of instructions", "leave it out")
    with steps.step("boot the benchmark") as step:
        outcomes = built.machine.run_all(step, steps.console, boots())
    measured, wrong = gather(outcomes)
    record = steps.record
    record.wrong = wrong
    lines = []
    if not any(outcome.error for outcome in outcomes):
        # A kernel without some patches is a baseline: its own figures are printed.
        if os.environ.get("WITHOUT"):
            base = {}
            written = steps.logs / BASELINE.name
            written.write_text("\n".join(baseline(measured)) + "\n")
            steps.console.say(f"what vfio-pci costs on this kernel: {written}")
        else:
            base = recorded(BASELINE.read_text())
            wrong += [text for machine, figures in measured.items()
                      for text in unlike(machine, figures)]
            wrong += exceeded(measured, base)
        found = rows(compared(measured, base))
        notes = [line for name, path in MACHINES.items() for line in growth(measured[name], path)]
        notes += for_each_page(measured[FINDING]) + engine_growth(measured[ENGINE])
        record.figures, record.rows, record.notes = measured, found, notes
        lines = [*table(found), "", *notes]
        wrong += [f"{row.what}: {row.ratio:.3f}, the target is {row.target}"
                  for row in found if row.verdict == "MISSED"]
    for line in ["", *lines, "", *wrong]:
        steps.console.say(line)
    report = steps.logs / "bench.txt"
    report.write_text("\n".join([*lines, "", *wrong]) + "\n")
    steps.console.say(f"the same as text: {report}")
    if wrong:
        raise LabError(f"{len(wrong)} deviations from what is expected",
                       f"read the logs in {outcomes[0].results.parent}/bench-*")
