# SPDX-License-Identifier: GPL-2.0
"""Checks that the tests find each mutation of tools/mutants, in one boot for each of them."""

import dataclasses
import fnmatch
import os
import re
from dataclasses import dataclass

from boot import pipeline, plan, topologies
from build import kernel, source
from build.steps import LabError
from commands import check, mutation, sites
from judge import guests, igt, suites

FOLDER = pipeline.REPO / "tools/mutants"
LIST = FOLDER / "list.toml"
# Seconds for a boot, for one test in it, and without a mark: of a program that waits for its own
# limit, and of a suite. The guests do little more than boot, and many hang until their limit.
TIMEOUT = 600
TEST_TIMEOUT = 120
SILENCE = 150
SUITE_SILENCE = 60
# The same for a sweep of all allocations.
SWEEP_TIMEOUT = 1200
SWEEP_SLOWER = 12
LOAD = 0.3
# Many mutations make a test wait for its limit.
SLOWER = 2
# The boot without a mutation, which runs first, on the same kernel.
NONE = "none"
# The maximum number of verdicts that are printed for a mutation.
TOLD = 2
# Tests in a boot without a mutation: they have to fit the command line of the kernel.
AT_ONCE = 30
# The value of VVRAM_SOAK with which a sweep makes each allocation fail.
ALL = 2
# The value of MUTANT= for the boot that reports which allocations the tests reach.
ALLOCATIONS = "allocations"


def everything():
    """All mutations of the list."""
    return mutation.parse(LIST.read_text())[0]


def named(name):
    """Whether MUTANT= names it; all, if there is none."""
    patterns = (os.environ.get("MUTANT") or "*").split(",")
    return any(fnmatch.fnmatch(name, p) for p in patterns)


def chosen():
    """The mutations that MUTANT= names, else all."""
    found = [m for m in everything() if named(m.id)]
    if not found and not named(ALLOCATIONS):
        raise LabError(f"there is no MUTANT={os.environ['MUTANT']}", f"choose one of {LIST}")
    return found


def need_rdma(mutations):
    """Whether a guest needs what RDMA needs."""
    return any(m.on.startswith("rdma-") for m in mutations)


def rust_files():
    """The Rust files of the repository, by their paths in the kernel tree."""
    return [path for path, _ in source.overlay_files(pipeline.REPO) if path.endswith(".rs")]


def tree(steps, src, box):
    """The kernel tree with all mutations of the list, whichever of them are run."""
    mutated = source.variant(steps, src, pipeline.REPO, box, "mutants",
                             mutation.Mutator(everything(), FOLDER, rust_files()))
    plain, other = kernel.Kernel(src, box).out, kernel.Kernel(mutated, box).out
    if (plain / ".config").is_file() and not (other / ".config").is_file():
        # Most objects are the same; make finds those that are not by the times of their sources.
        with steps.step("objects without mutations") as step:
            step.run(["cp", "-a", f"{plain}/.", other], "see that the disk is not full")
    return mutated


@dataclass(frozen=True)
class Row:
    """The outcome of a mutation: what failed, by its tests, elsewhere, and by a limit of time."""

    mutation: mutation.Mutation
    reached: bool
    named: tuple = ()
    elsewhere: tuple = ()
    late: tuple = ()

    @property
    def failures(self):
        """All that failed, what finds the mutation first."""
        return self.named + self.elsewhere + self.late

    @property
    def is_found(self):
        """Whether what has to find it has failed."""
        by = {mutation.ANY: self.elsewhere, mutation.HANG: self.late}.get(self.mutation.by)
        return self.reached and bool(self.named or by)

    @property
    def outcome(self):
        """The outcome in words."""
        if self.mutation.unfindable:
            return "FINDABLE" if self.is_found else "explained"
        if self.is_found:
            return "found"
        if not self.reached:
            return "NEVER REACHED"
        if self.elsewhere:
            return "ELSEWHERE"
        return "TIMED OUT" if self.late else "SURVIVED"

    @property
    def is_bad(self):
        """Whether a test is missing, or the list is out of date."""
        return self.outcome not in ("found", "explained")


def run(steps, built, mutations):
    """Boot each mutation; print the table; return the exit status."""
    check.build_modules(steps, built)
    console = steps.console
    without = baseline_boots(mutations)
    places = allocations_boots() if named(ALLOCATIONS) else {}
    with steps.step(f"boot {len(mutations)} mutations, and without any") as step:
        outcomes = built.machine.run_all(
            step, console, without + [boot(m) for m in mutations] + list(places.values()))
    lists = guests.Lists.of(built)
    before = baseline(outcomes[:len(without)], lists)
    for names in before.values():
        for name in sorted(names):
            console.say(f"FAILED: without a mutation: {name}")
    first = len(without) + len(mutations)
    rows = [row(m, outcome, before, lists)
            for m, outcome in zip(mutations, outcomes[len(without):first])]
    lines = table(rows)
    good = True
    if places:
        failing, log = {}, ""
        for name, outcome in zip(places, outcomes[first:]):
            failing |= {v.name: v.detail for v in failures(outcome, name, lists).values()}
            log += outcome.log
        for name, why in failing.items():
            console.say(f"FAILED: {ALLOCATIONS}: {name}: {why}")
        told, good = sites.report(sites.names(source.overlay_files(pipeline.REPO)), log,
                                  mutation.parse(LIST.read_text())[2])
        good = good and not failing
        lines += told
    for line in lines:
        console.say(line)
    report = built.kernel.share / "results/mutants.txt"
    report.write_text("\n".join([*lines, ""]))
    console.say(f"this table: {report}")
    console.say(f"total time: {console.elapsed()}")
    bad = any(before.values()) or not good or any(r.is_bad for r in rows)
    return 1 if bad else 0


def machine(m):
    """The topology of a mutation, and its name in `make check`."""
    name = m.on or (topologies.find("host-bridge").name if m.suites else plan.SWITCH.name)
    disk, _, kind = name.rpartition("-")
    if kind in plan.VARIANTS:
        return (plan.disk if disk else plan.variant)(kind), name
    topology = topologies.find(name)
    if topology is None:
        raise LabError(f"mutation {m.id}: there is no topology {name}", f"correct {LIST}")
    if m.suites:
        # The expectations of suites depend on the name of the boot.
        name = next((b.name for b in plan.kunit() if b.topology == topology), name)
    return topology, name.removeprefix("check-")


def boot(m):
    """The boot that is to find a mutation."""
    return _boot(f"mutant-{m.id}", m, m.suites, m.tests, m.number)


def allocations_boots():
    """The boots that report which allocations are reached, by their names in `make check`."""
    programs = {"once-1": (plan.SWITCH, plan.FAULTS),
                "gpu-switch": (topologies.MODELS[0], plan.GPU_FAULTS)}
    return {name: dataclasses.replace(plan.igt(f"mutant-{ALLOCATIONS}-{name}", *of),
                                      cmdline=f"mutant.active={sites.ACTIVE}")
            for name, of in programs.items()}


def baseline_boots(mutations):
    """Boots that run all tests of these mutations, with no mutation on."""
    boots = {}
    for m in mutations:
        boots.setdefault((machine(m)[1], bool(m.suites)), []).append(m)
    found = []
    for (name, _), group in boots.items():
        patterns = {m.suites for m in group}
        suites = patterns.pop() if len(patterns) == 1 else plan.ALL_SUITES
        tests = list(dict.fromkeys(test for m in group for test in m.tests))
        sweeps, others = filter_sweeps(tests)
        parts = [others[first:first + AT_ONCE] for first in range(0, len(others), AT_ONCE)]
        parts += [sweeps] if sweeps or not tests else []
        for number, part in enumerate(parts):
            one = _boot(f"mutant-{NONE}-{name}" + (f"-{number}" if number else ""), group[0], suites,
                        part, 0)
            found.append(dataclasses.replace(one, timeout=one.timeout * 5))
    return found


def filter_sweeps(tests):
    """Those of some tests that make one allocation after the other fail, and the others."""
    programs = (*plan.FAULTS, *plan.GPU_FAULTS)
    sweeps = [test for test in tests if test.partition("@")[0] in programs]
    return sweeps, [test for test in tests if test not in sweeps]


def _boot(name, m, suites, tests, number):
    topology, _ = machine(m)
    if suites:
        modules = plan.ALL_MODULES if suites == plan.ALL_SUITES else suites
        made = plan.kunit_boot(name, topology, suites, modules)
    else:
        made = plan.igt(name, topology, tests)
        made.settings.update(LAB_TIMEOUT=TEST_TIMEOUT, VVRAM_SLOWER=SLOWER)
        if filter_sweeps(tests)[0]:
            # All of them, of which the short form takes some at random.
            made.settings.update(LAB_TIMEOUT=SWEEP_TIMEOUT, VVRAM_SLOWER=SWEEP_SLOWER,
                                 VVRAM_SOAK=ALL)
    longest = 0 if suites else made.settings["LAB_TIMEOUT"]
    return dataclasses.replace(made, timeout=max(TIMEOUT, longest + SILENCE),
                               silence=max(SUITE_SILENCE, longest + SILENCE - TEST_TIMEOUT),
                               load=LOAD,
                               processors=m.processors or plan.FEWER,
                               cmdline=f"{made.cmdline} mutant.active={number}".strip())


def failures(outcome, name, lists):
    """All verdicts that fail, by their names, but for suites that a filter holds back."""
    boot_as = dataclasses.replace(outcome.boot, name=f"check-{name}")
    judged = guests.judge(dataclasses.replace(outcome, boot=boot_as), lists, {})
    return {v.name: v for v in judged if v.result == "fail" and v.detail != suites.DID_NOT_RUN}


def baseline(outcomes, lists):
    """The failures without a mutation: {name of the machine: names of verdicts}."""
    found = {}
    for outcome in outcomes:
        # There may be several on a machine.
        name = re.sub(f"^mutant-{NONE}-|-[0-9]+$", "", outcome.boot.name)
        found.setdefault(name, set()).update(failures(outcome, name, lists))
    return found


def is_named(m, test):
    """Whether a test or a suite is one of those that have to find a mutation."""
    return any(igt.chosen(pattern, test) for pattern in m.tests) if m.tests else \
        fnmatch.fnmatch(test.partition(".")[0], m.suites)


def row(m, outcome, before, lists):
    """The outcome of a boot; failures that occur without the mutation do not count.

    A complaint of the kernel while a test runs is a failure of that test; that it has not begun is
    none.
    """
    name = machine(m)[1]
    known = before.get(name, set())
    found = {"named": [], "elsewhere": [], "late": []}
    for verdict in failures(outcome, name, lists).values():
        if verdict.name in known:
            continue
        test = verdict.name.removeprefix(f"{name}: ")
        told = f"{verdict.name}: {verdict.detail}" if verdict.detail else verdict.name
        if verdict.kind == igt.LATE or verdict.kind == igt.LOST and guests.was_ended(outcome):
            found["late"].append(told)
        elif is_named(m, test) and not verdict.detail.startswith((igt.NO_RESULT, igt.NOT_RUN)) \
                or test == guests.KERNEL_LOG and any(
                    is_named(m, where) for where, _ in guests.complaints(outcome, name)):
            found["named"].append(told)
        else:
            found["elsewhere"].append(told)
    return Row(m, f"mutant {m.number} reached" in outcome.log,
               *(tuple(texts) for texts in found.values()))


def table(rows):
    """The table as lines, the bad ones last."""
    lines = []
    for r in sorted(rows, key=lambda r: r.is_bad):
        lines.append(f"{r.outcome:14} {r.mutation.id}  {r.mutation.file}")
        lines.append(f"{'':14} {r.mutation.text}")
        told = r.failures[:TOLD] or [r.mutation.unfindable or
                                     " ".join(r.mutation.tests) or r.mutation.suites]
        lines += [f"{'':14}     {' '.join(line.split())[:160]}" for line in told]
    count = {}
    for r in rows:
        count[r.outcome] = count.get(r.outcome, 0) + 1
    return [*lines, ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))]
