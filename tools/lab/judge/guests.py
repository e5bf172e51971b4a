# SPDX-License-Identifier: GPL-2.0
"""The verdicts of boots, from what their guests leave: results, logs, and the state of checks."""

import collections
import re
from dataclasses import dataclass
from pathlib import Path

from boot import models, pipeline, watch
from build import kernel, programs
from judge import debugging, igt, kernellog, ktap, rdma, suites
from judge.igt import LATE, LOST, Verdict

# The number of the slowest boots and programs that are printed.
SLOWEST = 10
KERNEL_LOG = "kernel log"
# The end of the names of the verdicts about logs.
LOGS = (KERNEL_LOG, "qemu log", "model log", "kmemleak")


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


def longest(outcomes):
    """(title, [(name, seconds)]) of the boots and of the programs that took the longest."""
    boots = {outcome.boot.name: outcome.seconds for outcome in outcomes}
    ran = collections.Counter()
    for outcome in outcomes:
        for test, entry in igt.tests(igt.results(outcome)).items():
            ran[test.partition("@")[0]] += igt.seconds(entry)
    return [(title, sorted(times.items(), key=lambda item: -item[1])[:SLOWEST])
            for title, times in (("boots", boots), ("programs, in all boots together", ran))]


def judged(outcomes, seen, lists):
    """The verdicts of boots; record the tests of each in seen."""
    return [verdict for outcome in outcomes for verdict in judge(outcome, lists, seen)]


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
