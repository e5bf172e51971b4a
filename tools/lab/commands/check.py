# SPDX-License-Identifier: GPL-2.0
"""The tests: KUnit suites, the project's own tests on each topology, IGT's generic ones."""

import dataclasses
import io
import multiprocessing
import os
import shutil
import time
import unittest
from concurrent import futures
from pathlib import Path
from unittest import mock

from boot import models, pipeline, plan, qemu, topologies
from build import cache, kernel, programs
from build.steps import LabError, duration
from commands import compiled, refused
from judge import guests, igt, kernellog, matrix, rdma, unsteady
from judge.igt import Verdict

# The maximum number of boots that get a second try: if more fail, it is not by chance.
AGAIN = 2
# Tells the lab's own tests where the kernel tree is.
TREE = "LAB_TREE"


def run(steps, built):
    """Run everything; return the verdicts."""
    lists = guests.Lists.of(built)
    part = begin(steps, lists)
    verdicts = part.verdicts
    for action in (unit_tests, program_tests, modules, refused.run, compiled.run):
        verdicts += action(steps, built)
    outcomes, late = once_more(steps, built, lists,
                               boot(steps, built, "boot the tests", plan.check()))
    seen = {}
    verdicts += unsteady.told(late, qemu.seed()) + guests.judged(outcomes, seen, lists)
    verdicts += igt.stale(lists.skips, seen)
    texts = [igt.results(outcome) for outcome in outcomes if outcome.boot.job == "igt"]
    verdicts += igt.never_ran(texts, lists.skips) + igt.mended(texts, lists.failures)
    verdicts += guests.kunit_together(outcomes, built)
    if kernel.flavour() == kernel.DEFAULT:
        verdicts += kernellog.stale({guests.place(outcome.boot): outcome.log
                                     for outcome in outcomes})
    verdicts.append(migration(steps.console, outcomes))
    rdma.report(steps.console, outcomes)
    slowest(steps.console, outcomes)
    part.outcomes = outcomes
    return verdicts


def begin(steps, lists):
    """Begin a part of the record of the run, for the tests on this kernel."""
    return steps.record.part(kernel.flavour(), lambda outcome: guests.judge(outcome, lists, {}))


def run_soak(steps, built):
    """Run the tests that take too long for each change, on one kernel; return the verdicts."""
    flavour = kernel.flavour()
    boots = (plan.sanitized if flavour in kernel.SANITIZERS else
             plan.realtime if flavour == kernel.REALTIME else
             plan.arm64 if flavour in kernel.ARM64 else plan.soak)()
    since = time.monotonic()
    lists = guests.Lists.of(built)
    part = begin(steps, lists)
    part.verdicts += modules(steps, built)
    outcomes = boot(steps, built, f"boot the long tests ({flavour})", boots)
    part.verdicts += guests.judged(outcomes, {}, lists)
    part.outcomes = outcomes
    sums(steps.console, outcomes, part.verdicts, time.monotonic() - since)
    return [dataclasses.replace(v, name=f"{flavour}: {v.name}") for v in part.verdicts]


def sums(console, outcomes, verdicts, seconds):
    """Print the number of tests on a kernel, their time, and the findings of log and sanitizers."""
    ran = {test for outcome in outcomes if outcome.boot.job in ("igt", plan.PROGRAMS)
           for test in igt.tests(igt.results(outcome))}
    programs_run = {test.partition("@")[0] for test in ran}
    complaints = sum(v.result == "fail" and v.name.endswith(guests.LOGS) for v in verdicts)
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
    bad = {outcome.boot.name: found for outcome in outcomes
           if (found := guests.failures(outcome, lists))}
    failed = [outcome for outcome in outcomes if outcome.boot.name in bad]
    if not failed or len(failed) > AGAIN \
            or not all(guests.is_late(outcome, bad[outcome.boot.name]) for outcome in failed):
        return outcomes, []
    tries = boot(steps, built, "boot again what failed",
                 [dataclasses.replace(outcome.boot, name=f"again-{guests.place(outcome.boot)}")
                  for outcome in failed])
    good = {guests.place(second.boot): second for second in tries
            if not guests.failures(second, lists)}
    late = [dataclasses.replace(verdict, result="unsteady") for outcome in failed
            if guests.place(outcome.boot) in good for verdict in bad[outcome.boot.name]]
    return [good.get(guests.place(outcome.boot), outcome) for outcome in outcomes], late


def slowest(console, outcomes):
    """Print which boots and which programs took the longest."""
    for title, times in guests.longest(outcomes):
        console.say(f"the {guests.SLOWEST} slowest {title}:")
        for name, seconds in times:
            console.say(f"    {seconds:7.1f} s  {name}")


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
    lists = guests.Lists.of(built)
    part = begin(steps, lists)
    outcomes = boot(steps, built, title, boots)
    part.verdicts += guests.judged(outcomes, {}, lists)
    part.outcomes = outcomes
    return part.verdicts


def migration(console, outcomes):
    """Print the migration matrix of all topologies; return its verdict."""
    texts = {}
    for topology in topologies.TOPOLOGIES:
        for outcome in outcomes:
            if guests.place(outcome.boot) == topology.name:
                texts[topology] = igt.results(outcome)
    lines, verdict = matrix.report(texts)
    for line in lines:
        console.say(line)
    return verdict


def unit_tests(steps, built):
    """The lab's own tests, which need no guest. None may be skipped.

    They wait more than they work, so each module has a process of its own.
    """
    modules_of_tests = sorted((Path(__file__).parents[1] / "tests").glob("test_*.py"))
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
