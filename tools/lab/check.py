# SPDX-License-Identifier: GPL-2.0
"""The tests: KUnit suites, the project's own tests on each topology, IGT's generic ones."""

import dataclasses
import shutil
import unittest
from pathlib import Path

import cache
import igt
import kernel
import kernellog
import ktap
import matrix
import pipeline
import programs
import qemu
import rdma
import topologies
from igt import Verdict
from steps import LabError

KUNIT_TIMEOUT = 900
IGT_TIMEOUT = 1800
SLOWER = {"check": 1, "debug": 16, "plain": 1}   # how much longer each flavour may take
PER_TEST_TIMEOUT = 1200        # seconds of guest time: each transfer of edu takes 0.1
OWN = "/lab/bin/vvram_*"
# Where devices see other memory than the CPU, this shows who forgets to synchronize.
BOUNCED = "/lab/bin/vvram_sync"
PAIR = "/lab/bin/pair_*"       # tests of two GPUs
RDMA = "/lab/bin/rdma_*"       # and of a NIC
# Without these a boot of KUnit has not done its work, whatever else it ran.
SUITES = {"dma_buf_mapping", "edu_peer_table", "peer_policy", "range_list"}
# Examples of the kernel crate that need a device; the first boot of KUnit has one.
EXAMPLES = {"p2pdma_example", "window_example", "drm_peer_example"}
# A case that only applies without an IOVA, which has a scatterlist of one entry.
KUNIT_SKIPS = {("kunit-iommu", "dma_buf_mapping.long_scatterlist_is_freed"),
               ("kunit-iommu", "dma_buf_mapping.unsupported_path_is_refused"),
               ("kunit-bridge", "dma_buf_mapping.unsupported_path_is_refused"),
               ("kunit", "dma_buf_mapping.unsupported_path_is_refused"),
               # Of these one only where addresses can fail.
               ("kunit", "dma_buf_mapping.failing_range_is_undone")}
# Those that only apply without KASAN, and without kmemleak.
DEBUG_SKIPS = {("kunit", "dma_buf_mapping.short_scatterlist_is_freed"),
               ("kunit-bridge", "dma_buf_mapping.short_scatterlist_is_freed"),
               ("kunit-iommu", "dma_buf_mapping.short_scatterlist_is_freed"),
               ("kunit", "dma_buf_mapping.failing_allocation_is_undone"),
               ("kunit-bridge", "dma_buf_mapping.failing_allocation_is_undone"),
               ("kunit-iommu", "dma_buf_mapping.failing_allocation_is_undone")}
# The tests of IGT that open any driver; those for displays and other vendors cannot apply.
GENERIC = "/usr/libexec/igt-gpu-tools/core_*"


def run(steps, built):
    """Run everything; return the verdicts."""
    verdicts = unit_tests(steps) + program_tests(steps, built) + modules(steps, built)
    boots = [kunit_boot("check-kunit", topologies.TOPOLOGIES[0], "*rust*"),
             # The suites of the modules once more, where mappings go through the host bridge, and
             # where they go through IOVAs.
             kunit_boot("check-kunit-bridge", topologies.find("host-bridge"), "rust_kernel_fmt"),
             kunit_boot("check-kunit-iommu", topologies.find("intel-iommu"), "rust_kernel_fmt")]
    for topology in topologies.TOPOLOGIES:
        boots.append(igt_boot(f"check-{topology.name}", topology, OWN))
    boots.append(bounce_boot("check-bounce", BOUNCED))
    for topology in topologies.PAIRS:
        boots.append(igt_boot(f"check-{topology.name}", topology, PAIR))
    boots += rdma_boots()
    boots.append(igt_boot("check-generic", topologies.TOPOLOGIES[0], GENERIC,
                          IGT_FORCE_DRIVER="vvram"))
    with steps.step("boot the tests") as step:
        outcomes = built.machine.run_all(step, steps.console, boots)
    seen = {}
    verdicts += judged(outcomes, seen) + igt.stale(expected_skips(), seen)
    verdicts.append(migration(steps.console, outcomes))
    rdma.report(steps.console, outcomes)
    steps.console.say(f"results of each boot: {built.kernel.share / 'results'}")
    return verdicts


def rdma_boots():
    """The boots with RDMA: the project's tests wherever a NIC may be, and pyverbs'."""
    return rdma.pyverbs_boots(SLOWER[kernel.flavour()]) + [
        igt_boot(f"check-{topology.name}", topology, RDMA) for topology in topologies.RDMA]


def run_rdma(steps, built):
    """Run the tests with RDMA and nothing else; return the verdicts."""
    with steps.step("boot the RDMA tests") as step:
        outcomes = built.machine.run_all(step, steps.console, rdma_boots())
    rdma.report(steps.console, outcomes)
    steps.console.say(f"results of each boot: {built.kernel.share / 'results'}")
    return judged(outcomes, {})


def expected_skips():
    """The list of skips, for this flavour."""
    return igt.expected_skips((pipeline.REPO / "igt-tests/skips.txt").read_text(),
                              kernel.flavour())


def judged(outcomes, seen):
    """The verdicts of boots; note the tests of each in seen."""
    skips = expected_skips()
    return [verdict for outcome in outcomes for verdict in judge(outcome, skips, seen)]


def migration(console, outcomes):
    """Print the migration matrix of all topologies; return its verdict."""
    texts = {}
    for topology in topologies.TOPOLOGIES:
        for outcome in outcomes:
            if outcome.boot.name == f"check-{topology.name}":
                texts[topology] = igt.results(outcome)
    lines, verdict = matrix.report(texts)
    for line in lines:
        console.say(line)
    return verdict


def kunit_boot(name, topology, built_in):
    """A boot that runs the suites of the kernel that a pattern names, then those of the modules."""
    return qemu.Boot(name, topology, "kunit", KUNIT_TIMEOUT * SLOWER[kernel.flavour()],
                     cmdline=f"kunit.enable=1 kunit.autorun=1 kunit.filter_glob={built_in}")


def kunit_verdicts(name, cases):
    """Judge the cases of a boot: a skip must be expected, and no suite may be missing."""
    verdicts = []
    expected = KUNIT_SKIPS | (DEBUG_SKIPS if kernel.flavour() == "debug" else set())
    for case, result, why in cases:
        if result == "skip" and (name, case) not in expected:
            result, why = "fail", f"skipped, which is not expected: {why}"
        verdicts.append(Verdict(f"{name}: {case}", result, why))
    ran = {case.partition(".")[0] for case, _, _ in cases}
    return verdicts + [Verdict(f"{name}: {suite}", "fail", "the suite did not run")
                       for suite in sorted(SUITES - ran)]


def igt_boot(name, topology, tests, **settings):
    """A boot that runs tests under igt_runner."""
    return qemu.Boot(name, topology, "igt", IGT_TIMEOUT * SLOWER[kernel.flavour()],
                     {"LAB_TESTS": tests, "LAB_TIMEOUT": PER_TEST_TIMEOUT,
                      "VVRAM_EXPECT": topology.decision, "VVRAM_SLOWER": SLOWER[kernel.flavour()],
                      **settings})


def bounce_boot(name, tests):
    """A boot in which all DMA to system memory is copied through bounce buffers."""
    topology = dataclasses.replace(topologies.TOPOLOGIES[0], cmdline="swiotlb=force")
    return igt_boot(name, topology, tests)


def judge(outcome, skips, seen):
    """The verdicts of one boot, of which its two logs are two; note its tests in seen."""
    name = outcome.boot.name.removeprefix("check-")
    verdicts = []
    if outcome.error:
        verdicts.append(Verdict(f"{name}: boot", "fail", outcome.error))
    if outcome.boot.job == "kunit":
        cases = ktap.results(outcome.log)
        verdicts += kunit_verdicts(name, cases)
        if name == "kunit":
            verdicts += [Verdict(f"{name}: {example}", "fail", "did not find its device")
                         for example in sorted(EXAMPLES) if f"{example} 0000:" not in outcome.log]
    elif outcome.boot.job == "pyverbs":
        cases = rdma.pyverbs(outcome, name)
        verdicts += cases
    else:
        text = igt.results(outcome)
        cases = igt.verdicts(text, skips, name)
        verdicts += cases
        verdicts += silent(outcome, name, igt.tests(text))
        if cases:
            seen[name] = set(igt.tests(text))
    if not cases:
        verdicts.append(Verdict(f"{name}: tests", "fail", "none reported a result"))
    complaints = [line.strip() for line in kernellog.complaints(outcome.log)]
    for log, lines in (("kernel log", complaints), ("qemu log", outcome.qemu_log)):
        verdicts.append(Verdict(f"{name}: {log}", "fail" if lines else "pass",
                                "\n      ".join(lines)))
    return verdicts


def silent(outcome, name, tests):
    """Verdicts about programs of ours without a result: one that does not start lists no tests."""
    pattern = outcome.boot.settings["LAB_TESTS"]
    if not pattern.startswith("/lab/"):
        return []
    programs_there = outcome.results.parents[1].glob(pattern.removeprefix("/lab/"))
    ran = {test.partition("@")[0] for test in tests}
    return [Verdict(f"{name}: {program.name}", "fail", "it has no results")
            for program in sorted(programs_there) if program.name not in ran]


def unit_tests(steps):
    """The lab's own tests, which need no guest."""
    with steps.step("unit tests of the lab") as step:
        suite = unittest.defaultTestLoader.discover(str(Path(__file__).parent / "tests"))
        with open(step.log, "w", encoding="utf-8") as log:
            result = unittest.TextTestRunner(log, verbosity=2).run(suite)
    bad = [Verdict(f"lab: {test.id()}", "fail", trace.strip().splitlines()[-1])
           for test, trace in result.failures + result.errors]
    return bad + [Verdict("lab: unit tests", "pass")] * (result.testsRun - len(bad))


def program_tests(steps, built):
    """The unit tests of the guest programs, which need no guest either."""
    try:
        with steps.step("unit tests of the guest programs") as step:
            programs.cargo(step, built.kernel.box, pipeline.REPO, "test",
                           "the log names the test: fix it")
    except LabError as error:
        return [Verdict("guest programs: unit tests", "fail", f"{error}, log: {error.log}")]
    return [Verdict("guest programs: unit tests", "pass")]


def modules(steps, built):
    """Build the KUnit suites, and the drivers as external modules."""
    key = cache.digest(built.kernel.key, cache.digest_tree(pipeline.REPO / "kunit"),
                       (pipeline.REPO / "Kbuild"))
    stamp = cache.Stamp(built.kernel.folder / "external-built")
    if stamp.holds(key):
        steps.current("external modules")
        return [Verdict("external modules", "pass")]
    stamp.clear()
    try:
        with steps.step("external modules") as step:
            suites = built.kernel.external(step, pipeline.REPO, "ext",
                                           "the log names the file: fix it")
    except LabError as error:
        return [Verdict("external modules", "fail", f"{error}, log: {error.log}")]
    folder = built.kernel.share / "kunit"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for module in suites:
        if "kunit" in module.parent.name:
            shutil.copy2(module, folder)
    stamp.set(key)
    return [Verdict("external modules", "pass")]
