# SPDX-License-Identifier: GPL-2.0
"""RDMA against VRAM: the bandwidths that the clients measured, and the verdicts of pyverbs."""

import json
import re

from boot import pipeline, plan, topologies
from judge import igt
from judge.igt import LOST, Verdict

TOOLS = pipeline.REPO / "tools"
# The programs whose output is printed.
SHOWN = ("rdma_clients@own", "rdma_clients@bandwidth")
# The pattern of the names of tests with dma-bufs, which all have to pass with the patches.
DMABUF = ".DmaBuf"
# The tests of regions with on-demand paging.
ODP_TESTS = re.findall(r"def (test_\w+)",
                       (pipeline.GUEST / "pyverbs_odp.py").read_text())
# The file that says whether the tests had the memory of their case.
MEMORY = "memory"


def report(console, outcomes):
    """Print the bytes and bandwidths that the programs report."""
    for outcome in outcomes:
        if outcome.boot.topology in topologies.RDMA and outcome.boot.job == "igt":
            for name, entry in igt.tests(igt.results(outcome)).items():
                if name in SHOWN and entry.get("result") == "pass":
                    console.say(f"{outcome.boot.topology.title}, {name}:")
                    for line in telling(entry.get("out", "")):
                        console.say(f"    {line}")
                    console.say()


def telling(text):
    """The lines of a test's output without those of the protocol."""
    return [line for line in text.splitlines() if line.strip() and
            not line.startswith(("IGT-Version", "Starting subtest", "Subtest "))]


def baseline(text):
    """Parse baseline.txt: {test: "pass" or "skip"}."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {test: result for result, test in lines}


def pyverbs(outcome, name):
    """The verdicts about pyverbs' tests of a boot."""
    try:
        found = json.loads((outcome.results / "pyverbs.json").read_text())
    except (OSError, ValueError):
        found = {}
    before = baseline((TOOLS / "rdma-core/baseline.txt").read_text())
    return pyverbs_verdicts(name, outcome.boot.settings["LAB_PYVERBS"], found, before)


def pyverbs_verdicts(name, what, found, before):
    """Judge the results of pyverbs' tests; before has their results without the patches."""
    if what == plan.MODULES:
        wanted = {test: "pass" if DMABUF in test else result for test, result in before.items()}
    else:
        # No test may be skipped: a skip means that a dma-buf was not registered.
        tests = [test for test in before if DMABUF in test] + [MEMORY]
        wanted = {f"{case}/{test}": "pass" for case in what.split(",")
                  for test in (ODP_TESTS if case == plan.ON_DEMAND else tests)}
    verdicts = []
    for test in sorted(wanted.keys() | found.keys()):
        result, detail = found.get(test, ["fail", "it did not run"])
        if result != wanted.get(test):
            detail = f"{result}, expected is {wanted.get(test, 'no such test')}: {detail.strip()}"
            result = "fail"
        verdicts.append(Verdict(f"{name}: {test}", result, detail, "" if test in found else LOST))
    return verdicts
