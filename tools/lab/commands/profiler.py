# SPDX-License-Identifier: GPL-2.0
"""The profile: which functions take the instructions of some figures of the benchmark.

A plugin of QEMU (tools/profile) records each instruction of the windows that the program of the
benchmark opens. A figure is the least of several windows, and consists of the same instructions
that the program has measured: those between two readings of the clock. So the sum of a table must
be exactly the figure; a difference is an error.
"""

import array
import bisect
import collections
import re
import subprocess
from pathlib import Path

from boot import qemu
from build.steps import LabError
from commands import bench
from judge import costs

SOURCE = Path(__file__).resolve().parents[2] / "profile/profile.c"
PLUGIN = "profile.so"
BUILD = ["cc", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
         "-fvisibility=hidden", "-shared", "-fPIC"]
TIMEOUT = 400
# The flags of the plugin for an instruction, above the bits of its address.
KIND = 48
CLOCK, BEGIN, END = 1, 2, 3
ADDRESS = (1 << KIND) - 1
# The bit that addresses of the kernel have.
KERNEL = 1 << (KIND - 1)
USER = "(the program)"
UNKNOWN = "(no symbol)"
# Symbols in front of functions, which are no functions.
PADDING = "__pfx_"
# The hash that names of Rust have behind the names of crates.
HASH = re.compile(r"\[[0-9a-f]{16}\]")
# The figures, by their subject and their exporter.
TITLES = {"first.4k": "map and unmap 4 KiB for the first time, the clock subtracted",
          "whole.1": "export to close, one block",
          "attach.1": "attach, with the system call"}
EXPORTERS = (("ours", "ours"), ("vfio", "vfio-pci"))
# The figure of a mapping is measured in the kernel, minus the time of a reading of the clock.
IN_KERNEL = "first."


def windows(trace):
    """The windows of a trace, each a list of (kind, address)."""
    found, current = [], None
    for number in trace:
        kind = number >> KIND
        if kind == BEGIN:
            current = []
        elif kind == END:
            if current is not None:
                found.append(current)
            current = None
        elif current is not None:
            current.append((kind, number & ADDRESS))
    return found


def between(window, begin, end):
    """How often each address is executed, from one place of a window to another."""
    return collections.Counter(address for _, address in window[begin:end])


def measured(window, name):
    """The measurement of a window: how often each address was executed, and the sum.

    A program reads the clock when it begins and when it ends. In the kernel, an additional reading
    at first shows the cost of a reading.
    """
    clocks = [i for i, (kind, _) in enumerate(window) if kind == CLOCK]
    if name.startswith(IN_KERNEL):
        clocks = [i for i in clocks if window[i][1] & KERNEL]
        if len(clocks) < 3:
            raise LabError(f"{name}: a window in which the clock is read {len(clocks)} times",
                           "the driver edu_peer measures in another way")
        before, begin, end = clocks[0], clocks[1], clocks[-1]
        counts = between(window, begin, end)
        counts.subtract(between(window, before, begin))
        return counts, end - begin - (begin - before)
    clocks = [i for i in clocks if not window[i][1] & KERNEL]
    if len(clocks) != 2:
        raise LabError(f"{name}: a window in which the clock is read {len(clocks)} times",
                       "the program measures in another way")
    begin, end = clocks
    return between(window, begin, end), end - begin


def least(trace, figures):
    """For each figure with windows, by its name, its least window: (counts, sum)."""
    all_windows = iter(windows(trace))
    found = {}
    for key, count in figures.items():
        if key.startswith(costs.WINDOWS):
            name = key.removeprefix(costs.WINDOWS)
            of_name = [window for _, window in zip(range(count), all_windows)]
            if len(of_name) < count:
                raise LabError(f"{name}: {len(of_name)} of {count} windows", "read the log of QEMU")
            found[name] = min((measured(window, name) for window in of_name),
                              key=lambda pair: pair[1])
    return found


class Symbols:
    """The functions of a kernel and its modules, as /proc/kallsyms has them."""

    def __init__(self, text, demangle):
        named = {}
        for line in text.splitlines():
            address, kind, name, *module = line.split()
            if kind in "tTwW" and not name.startswith(PADDING):
                named.setdefault(int(address, 16) & ADDRESS, (name, " ".join(module)))
        self.addresses = sorted(named)
        plain = demangle([named[address][0] for address in self.addresses])
        self.names = [f"{HASH.sub('', name)} {named[address][1]}".strip()
                      for address, name in zip(self.addresses, plain)]

    def name(self, address):
        """The function that an address is in."""
        if not address & KERNEL:
            return USER
        index = bisect.bisect_right(self.addresses, address) - 1
        return self.names[index] if index >= 0 else UNKNOWN


def by_function(counts, symbols):
    """The number of instructions of each function itself."""
    found = collections.Counter()
    for address, count in counts.items():
        found[symbols.name(address)] += count
    return collections.Counter({name: count for name, count in found.items() if count})


def table(what, columns):
    """The lines of one table: a column for each exporter, and the names of the functions."""
    heads = [title for key, title in EXPORTERS if key in columns]
    counts = [columns[key] for key, _ in EXPORTERS if key in columns]
    names = sorted({name for column in counts for name, count in column.items() if count},
                   key=lambda name: [*(-column[name] for column in counts), name])
    width = max(12, *(len(head) for head in heads))
    lines = [what, "".join(head.rjust(width) for head in heads) + "  function"]
    lines.append("-" * len(lines[1]))
    lines += ["".join((f"{column[name]:,}" if column[name] else "-").rjust(width)
                      for column in counts) + f"  {name}" for name in names]
    return [*lines, "".join(f"{sum(column.values()):,}".rjust(width)
                            for column in counts) + "  all", ""]


def report(trace, figures, symbols):
    """The tables as lines, and their errors."""
    found = least(trace, figures)
    wrong = [f"{name}: {total} instructions, the program has measured {figures[name]}"
             for name, (_, total) in found.items() if total != figures[name]]
    lines = []
    for what, title in TITLES.items():
        columns = {key: by_function(found[f"{what}.{key}"][0], symbols)
                   for key, _ in EXPORTERS if f"{what}.{key}" in found}
        if columns:
            lines += table(title, columns)
    return lines, wrong


def demangler(box):
    """The demangler of Rust: a function that maps a list of names to readable ones."""
    def demangle(names):
        done = subprocess.run(box.argv(["c++filt"]), input="\n".join(names), text=True,
                              capture_output=True, check=True)
        return done.stdout.splitlines()
    return demangle


def boot(topology):
    """The boot, exact as those of the benchmark."""
    name = f"bench-profile-{topology.name}"
    settings = {"VVRAM_EXPECT": topology.decision, "LAB_PROGRAM": "p2p-bench",
                "LAB_BENCH": "--profile"}
    plugin = f"/build/share/{PLUGIN},out=/build/share/results/{name}/trace"
    return qemu.Boot(name, topology, "bench", TIMEOUT, settings, bench.CLOCK, bench.VRAM_SIZE,
                     exact=True, arguments=("-plugin", plugin))


def run(steps, built, topology):
    """Boot once, print the tables, fail if one does not have the sum that was measured."""
    if qemu.kvm():
        raise LabError("KVM=1 has no count of instructions", "leave it out")
    with steps.step("profile plugin") as step:
        box = built.box.with_binds({"/build/share": built.kernel.share},
                                   readonly={"/build/profile": SOURCE.parent})
        step.run([*BUILD, "-o", f"/build/share/{PLUGIN}", f"/build/profile/{SOURCE.name}"],
                 "the log names the line", box)
    with steps.step("boot the profile") as step:
        [outcome] = built.machine.run_all(step, steps.console, [boot(topology)])
    wrong = costs.complaints(outcome)
    lines = []
    if not outcome.error:
        trace = array.array("Q")
        trace.frombytes((outcome.results / "trace").read_bytes())
        symbols = Symbols((outcome.results / "kallsyms").read_text(), demangler(built.box))
        figures = costs.parse((outcome.results / "figures").read_text())
        lines, differ = report(trace, figures, symbols)
        wrong += differ
    for line in ["", *lines, *wrong]:
        steps.console.say(line)
    text = steps.logs / "profile.txt"
    text.write_text("\n".join([*lines, *wrong]) + "\n")
    steps.console.say(f"the same as text: {text}")
    if wrong:
        raise LabError(f"{len(wrong)} deviations from what is expected",
                       f"read the logs in {outcome.results}")
