# SPDX-License-Identifier: GPL-2.0
"""The tests: KUnit suites, the project's own tests on each topology, IGT's generic ones."""

import collections
import dataclasses
import io
import multiprocessing
import os
import re
import shutil
import time
import unittest
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import cache
import compiled
import debugging
import igt
import kernel
import kernellog
import ktap
import matrix
import models
import pipeline
import plan
import programs
import qemu
import rdma
import refused
import suites
import topologies
import unsteady
import watch
from igt import LATE, LOST, Verdict
from steps import LabError, duration

# The number of the slowest boots and programs that are printed.
SLOWEST = 10
# The maximum number of boots that get a second try: if more fail, it is not by chance.
AGAIN = 2
KERNEL_LOG = "kernel log"
# The end of the names of the verdicts about logs.
LOGS = (KERNEL_LOG, "qemu log", "model log", "kmemleak")
# Tells the lab's own tests where the kernel tree is.
TREE = "LAB_TREE"


@dataclass(frozen=True)
class Lists:
    """The expectations of tests, and the kernel tree that has the parser of KUnit's results."""

    skips: dict
    failures: dict
    tree: Path                           # the kernel tree
    subtests: frozenset = frozenset()    # of the programs, program@subtest
    checks: frozenset = frozenset()      # those of the kernel that have to be on at the end

    @classmethod
    def of(cls, built, checks=None):
        """The lists of the repository, for this flavour, unless the kernel has other checks."""
        texts = [(pipeline.REPO / "igt-tests" / name).read_text()
                 for name in ("skips.txt", "expected-failures.txt")]
        return cls(igt.expected_skips(texts[0], kernel.flavour()),
                   igt.expected_failures(texts[1]), built.source.tree,
                   # This machine cannot run those of arm64: the guest has a list of them.
                   frozenset() if kernel.flavour() in kernel.ARM64 else
                   programs.subtests(built.box, built.kernel.share / "bin"),
                   debugging.wanted() if checks is None else checks)


def run(steps, built):
    """Run everything; return the verdicts."""
    lists = Lists.of(built)
    part = begin(steps, lists)
    verdicts = part.verdicts
    for action in (unit_tests, program_tests, modules, refused.run, compiled.run):
        verdicts += action(steps, built)
    outcomes, late = once_more(steps, built, lists,
                               boot(steps, built, "boot the tests", plan.check()))
    seen = {}
    verdicts += unsteady.told(late, qemu.seed()) + judged(outcomes, seen, lists)
    verdicts += igt.stale(lists.skips, seen)
    texts = [igt.results(outcome) for outcome in outcomes if outcome.boot.job == "igt"]
    verdicts += igt.never_ran(texts, lists.skips) + igt.mended(texts, lists.failures)
    verdicts += kunit_together(outcomes, built)
    if kernel.flavour() == kernel.DEFAULT:
        verdicts += kernellog.stale({place(outcome.boot): outcome.log for outcome in outcomes})
    verdicts.append(migration(steps.console, outcomes))
    rdma.report(steps.console, outcomes)
    slowest(steps.console, outcomes)
    part.outcomes = outcomes
    return verdicts


def begin(steps, lists):
    """Begin a part of the record of the run, for the tests on this kernel."""
    return steps.record.part(kernel.flavour(), lambda outcome: judge(outcome, lists, {}))


def run_soak(steps, built):
    """Run the tests that take too long for each change, on one kernel; return the verdicts."""
    flavour = kernel.flavour()
    boots = (plan.sanitized if flavour in kernel.SANITIZERS else
             plan.realtime if flavour == kernel.REALTIME else
             plan.arm64 if flavour in kernel.ARM64 else plan.soak)()
    since = time.monotonic()
    lists = Lists.of(built)
    part = begin(steps, lists)
    part.verdicts += modules(steps, built)
    outcomes = boot(steps, built, f"boot the long tests ({flavour})", boots)
    part.verdicts += judged(outcomes, {}, lists)
    part.outcomes = outcomes
    sums(steps.console, outcomes, part.verdicts, time.monotonic() - since)
    return [dataclasses.replace(v, name=f"{flavour}: {v.name}") for v in part.verdicts]


def sums(console, outcomes, verdicts, seconds):
    """Print the number of tests on a kernel, their time, and the findings of log and sanitizers."""
    ran = {test for outcome in outcomes if outcome.boot.job in ("igt", plan.PROGRAMS)
           for test in igt.tests(igt.results(outcome))}
    programs_run = {test.partition("@")[0] for test in ran}
    complaints = sum(v.result == "fail" and v.name.endswith(LOGS) for v in verdicts)
    console.say(f"{kernel.flavour()}: {len(outcomes)} boots, {len(programs_run)} programs, "
                f"{len(ran)} subtests, {duration(seconds)}, {complaints} logs with complaints")


def boot(steps, built, title, boots):
    """Run boots; print how to repeat them and where their logs are."""
    steps.console.say(f"SEED={qemu.seed()}, {qemu.guests()} guests at a time")
    with steps.step(title) as step:
        outcomes = built.machine.run_all(step, steps.console, boots)
    steps.console.say(f"results of each boot: {built.kernel.share / 'results'}")
    return outcomes


def once_more(steps, built, lists, outcomes):
    """Repeat the boots that failed because a limit of time was over; return the final outcomes.

    If the second try is good, the verdicts of the first one are returned as well, as unsteady.
    """
    bad = {outcome.boot.name: found for outcome in outcomes if (found := failures(outcome, lists))}
    failed = [outcome for outcome in outcomes if outcome.boot.name in bad]
    if not failed or len(failed) > AGAIN \
            or not all(is_late(outcome, bad[outcome.boot.name]) for outcome in failed):
        return outcomes, []
    tries = boot(steps, built, "boot again what failed",
                 [dataclasses.replace(outcome.boot, name=f"again-{place(outcome.boot)}")
                  for outcome in failed])
    good = {place(second.boot): second for second in tries if not failures(second, lists)}
    late = [dataclasses.replace(verdict, result="unsteady") for outcome in failed
            if place(outcome.boot) in good for verdict in bad[outcome.boot.name]]
    return [good.get(place(outcome.boot), outcome) for outcome in outcomes], late


def failures(outcome, lists):
    """The verdicts of a boot that are failures."""
    return [verdict for verdict in judge(outcome, lists, {}) if verdict.result == "fail"]


def is_late(outcome, failed):
    """Whether the load of the host may explain all failures of a boot.

    What a guest did not do any more is explained if something else has ended the guest. One that
    ended by itself is not: a processor that is reset leaves no message.
    """
    return all(verdict.kind == LATE or verdict.kind == LOST and was_ended(outcome)
               for verdict in failed)


def was_ended(outcome):
    """Whether a guest was ended: by the lab, at a limit, or by a bug of QEMU.

    That bug is an assertion about errors of QEMU's own, with which no guest has to do. It occurs
    only if a device was removed before, and nothing else of QEMU's output is forgiven.
    """
    return bool(watch.ENDED.fullmatch(outcome.error)) or models.has_aborted(outcome)


def slowest(console, outcomes):
    """Print which boots and which programs took the longest."""
    for title, times in longest(outcomes):
        console.say(f"the {SLOWEST} slowest {title}:")
        for name, seconds in times:
            console.say(f"    {seconds:7.1f} s  {name}")


def longest(outcomes):
    """(title, [(name, seconds)]) of the boots and of the programs that took the longest."""
    boots = {outcome.boot.name: outcome.seconds for outcome in outcomes}
    ran = collections.Counter()
    for outcome in outcomes:
        for test, entry in igt.tests(igt.results(outcome)).items():
            ran[test.partition("@")[0]] += igt.seconds(entry)
    return [(title, sorted(times.items(), key=lambda item: -item[1])[:SLOWEST])
            for title, times in (("boots", boots), ("programs, in all boots together", ran))]


def run_test(steps, built, tests, topology):
    """Run some tests on one machine and nothing else; return the verdicts."""
    return booted(steps, built, f"boot {topology.title}", [plan.test(tests, topology)])


def run_rdma(steps, built):
    """Run the tests with RDMA and nothing else; return the verdicts."""
    verdicts = booted(steps, built, "boot the RDMA tests", plan.rdma_boots())
    rdma.report(steps.console, steps.record.outcomes())
    return verdicts


def run_fuzz(steps, built):
    """Run the random calls and nothing else; return the verdicts."""
    return booted(steps, built, "boot the fuzzer", plan.fuzz())


def booted(steps, built, title, boots):
    """Run boots and nothing else; return their verdicts."""
    lists = Lists.of(built)
    part = begin(steps, lists)
    outcomes = boot(steps, built, title, boots)
    part.verdicts += judged(outcomes, {}, lists)
    part.outcomes = outcomes
    return part.verdicts


def judged(outcomes, seen, lists):
    """The verdicts of boots; record the tests of each in seen."""
    return [verdict for outcome in outcomes for verdict in judge(outcome, lists, seen)]


def migration(console, outcomes):
    """Print the migration matrix of all topologies; return its verdict."""
    texts = {}
    for topology in topologies.TOPOLOGIES:
        for outcome in outcomes:
            if place(outcome.boot) == topology.name:
                texts[topology] = igt.results(outcome)
    lines, verdict = matrix.report(texts)
    for line in lines:
        console.say(line)
    return verdict


def kunit_together(outcomes, built):
    """Verdicts about what all boots of KUnit have run together."""
    kunit = [outcome for outcome in outcomes if outcome.boot.job == "kunit"]
    cases = [case for outcome in kunit for case in ktap.results(outcome.log, built.source.tree)]
    verdicts = suites.lost(cases, "".join(outcome.log for outcome in kunit),
                           suites.wanted(pipeline.REPO))
    verdicts += suites.stale(cases, suites.skips(pipeline.REPO, kernel.flavour()))
    # Cases that a slower kernel skips run on another kernel.
    if kernel.flavour() == kernel.DEFAULT:
        verdicts += suites.skipped_everywhere(cases)
    return verdicts


def place(boot):
    """The name of a boot in lists: the one of `make check`, even if another command runs it."""
    return re.sub("^(check|again|soak|test)-", "", boot.name)


def judge(outcome, lists, seen):
    """The verdicts of one boot, some of them about its logs; record its tests in seen."""
    name = place(outcome.boot)
    ended = was_ended(outcome)
    verdicts = []
    if outcome.error:
        verdicts.append(Verdict(f"{name}: boot", "fail", outcome.error, LATE if ended else ""))
    begun = set()
    if outcome.boot.job == "kunit":
        cases = ktap.results(outcome.log, lists.tree)
        verdicts += suites.verdicts(name, cases, suites.skips(pipeline.REPO, kernel.flavour()),
                                    suites.wanted(pipeline.REPO).modules)
    elif outcome.boot.job == "pyverbs":
        cases = rdma.pyverbs(outcome, name)
        verdicts += cases
    else:
        text = igt.results(outcome)
        cases = igt.verdicts(text, lists.skips, name, outcome.boot.topology.has, lists.failures)
        verdicts += cases
        verdicts += silent(outcome, name, igt.tests(text), lists.subtests)
        begun = igt.begun(text)
        if cases:
            seen[name] = set(igt.tests(text))
    if not cases:
        verdicts.append(Verdict(f"{name}: tests", "fail", "none reported a result", LOST))
    verdicts.append(kernel_log(outcome, name, begun))
    qemu_log = outcome.qemu_log
    for log, lines, kind in (("qemu log", qemu_log, LOST if models.has_aborted(outcome) else ""),
                             *model_log(outcome), *kmemleak(outcome)):
        verdicts.append(Verdict(f"{name}: {log}", "fail" if lines else "pass",
                                "\n      ".join(lines), kind if lines else ""))
    return verdicts + debugging.verdicts(outcome, name, lists.checks)


def judged_log(outcome, name):
    """What kernellog.py says of the kernel log of a boot, and that log."""
    # A guest that is ended for its silence is asked to print what it is doing.
    log = kernellog.until_asked(outcome.log) if was_ended(outcome) else outcome.log
    rounds = outcome.boot.settings.get("VVRAM_SOAK", 1)
    return kernellog.judge(log, name, rounds=rounds), log


def complaints(outcome, name):
    """The complaints of the kernel in a boot, each with the test or suite that ran."""
    return judged_log(outcome, name)[0].complaints


def kernel_log(outcome, name, begun):
    """The verdict about the kernel log, which has a mark of each test that has begun."""
    found, log = judged_log(outcome, name)
    lines = found.lines + [f"no mark of {test}" for test in sorted(begun - kernellog.marks(log))]
    return Verdict(f"{name}: {KERNEL_LOG}", "fail" if lines else "pass",
                   "\n      ".join(kernellog.brief(lines)),
                   "" if found.complaints or not lines else LOST)


def model_log(outcome):
    """(name, lines, kind) of the output of the modelled devices, if there are any."""
    if not outcome.boot.machine.models:
        return []
    return [("model log", kernellog.brief(outcome.model_log), "")]


def kmemleak(outcome):
    """(name, lines, kind) of the findings of kmemleak at the end of a boot, if there is one."""
    path = outcome.results / "kmemleak.txt"
    if path.is_file():
        return [("kmemleak", kernellog.brief(path.read_text(errors="replace").splitlines()), "")]
    if kernel.has("CONFIG_DEBUG_KMEMLEAK=y") and not outcome.error:
        return [("kmemleak", ["the guest has not scanned"], LOST)]
    return []


def silent(outcome, name, tests, subtests):
    """Verdicts about tests that the plan names and that have no result, or that do not exist."""
    # Subtests of IGT's own programs are known from the list of its runner alone.
    listed = igt.listed(outcome.results / "runner")
    wanted, nothing = igt.planned(outcome.boot, subtests | listed)
    return [*(Verdict(f"{name}: {pattern}", "fail", "the plan names it, and there is no such test",
                      "" if listed else LOST) for pattern in nothing),
            *(Verdict(f"{name}: {test}", "fail", igt.NO_RESULT, LOST)
              for test in sorted(wanted - tests.keys()))]


def unit_tests(steps, built):
    """The lab's own tests, which need no guest. None may be skipped.

    They wait more than they work, so each module has a process of its own.
    """
    modules_of_tests = sorted((Path(__file__).parent / "tests").glob("test_*.py"))
    # A forked process has the modules loaded, and its main thread can handle signals.
    with steps.step("unit tests of the lab") as step, \
            mock.patch.dict(os.environ, {TREE: str(built.source.tree)}), \
            futures.ProcessPoolExecutor(len(modules_of_tests),
                                        multiprocessing.get_context("fork")) as pool:
        try:
            results = list(pool.map(unit_tests_of, modules_of_tests))
        except futures.process.BrokenProcessPool as error:
            return [Verdict("lab: unit tests", "fail", str(error))]
        step.log.write_text("".join(log for _, _, log in results))
    bad = [Verdict(f"lab: {name}", "fail", text.strip().splitlines()[-1])
           for _, found, _ in results for name, text in found]
    return bad + [Verdict("lab: unit tests", "pass")] * (sum(ran for ran, *_ in results) - len(bad))


def unit_tests_of(path):
    """Run the tests of a module; return how many ran, those that did not pass, and the log."""
    log = io.StringIO()
    suite = unittest.defaultTestLoader.discover(str(path.parent), path.name)
    result = unittest.TextTestRunner(log, verbosity=2).run(suite)
    return (result.testsRun,
            [(test.id(), text) for test, text in
             result.failures + result.errors + result.skipped], log.getvalue())


def program_tests(steps, built):
    """The tests of all crates, which need no guest either."""
    verdicts = []
    for name, crate in (("guest programs", programs.CRATE), ("modelled devices", models.CRATE),
                        ("tool p2p", programs.TOOL)):
        result, why = "pass", ""
        try:
            with steps.step(f"unit tests of the {name}") as step:
                programs.cargo(step, built.kernel.box, pipeline.REPO, "test",
                               "the log names the test: fix it", crate=crate)
        except LabError as error:
            result, why = "fail", f"{error}, log: {error.log}"
        verdicts.append(Verdict(f"{name}: unit tests", result, why))
    return verdicts


def modules(steps, built):
    """Build the KUnit suites, and the drivers as external modules; return the verdict."""
    try:
        build_modules(steps, built)
    except LabError as error:
        return [Verdict("external modules", "fail", f"{error}, log: {error.log}")]
    return [Verdict("external modules", "pass")]


def build_modules(steps, built):
    """Build the KUnit suites, and the drivers as external modules."""
    key = cache.digest(built.kernel.key, cache.digest_tree(pipeline.REPO / "kunit"),
                       (pipeline.REPO / "Kbuild"))
    stamp = cache.Stamp(built.kernel.folder / "external-built")
    if stamp.holds(key):
        steps.current("external modules")
        return
    stamp.clear()
    with steps.step("external modules") as step:
        suites = built.kernel.external(step, pipeline.REPO, "ext", "the log names the file: fix it")
    folder = built.kernel.share / "kunit"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for module in suites:
        if "kunit" in module.parent.name:
            shutil.copy2(module, folder)
    stamp.set(key)
