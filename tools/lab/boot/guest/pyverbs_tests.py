# SPDX-License-Identifier: GPL-2.0
"""Runs the tests of pyverbs, each module in a process of its own, and writes the result of each.

    pyverbs_tests.py modules|CASE,... RESULTS
    pyverbs_tests.py --run vram|system RESULTS NAME...

A case is a class of importer and the memory of a dma-buf, such as pinned/vram, or on-demand.
LAB_FLAGS is how many combinations of access flags the tests of dma-bufs try, instead of all.
"""

import json
import os
import random
import subprocess
import sys
import time
import unittest
from pathlib import Path

TESTS = Path("/lab/rdma/tests")
MODE = Path("/sys/module/rdma_rxe/parameters/dmabuf_mode")
# Modules for devices that the guest does not have.
OTHERS = ("test_mlx5", "test_efa", "test_cuda")
DMABUF = ["test_mr.DmaBufMRTest", "test_mr.DmaBufTestCase"]
# The case of regions with on-demand paging, their tests, and the parameter that has new ones use
# P2P.
ON_DEMAND = "on-demand"
ODP = "pyverbs_odp"
ODP_P2P = Path("/sys/module/rdma_rxe/parameters/odp_p2p")
# This test makes a completion queue smaller while completions may still be on their way, and
# expects an error. Completions that come later are lost, and the test fails with this message.
RACE = "test_cq.CQTest.test_resize_cq"
LOST = "Got timeout on polling"
TRIES = 4
COUNTERS = Path("/sys/kernel/debug/dri")
# The limit of a module, in seconds of the guest.
TIMEOUT = 80 * int(os.environ["VVRAM_SLOWER"])


class Result(unittest.TestResult):
    """Keeps the result of each test."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def note(self, test, result, detail=""):
        """Record a result, unless the test has failed already."""
        if self.found.get(test.id(), ["pass"])[0] != "fail":
            self.found[test.id()] = [result, detail]

    def addSuccess(self, test):
        self.note(test, "pass")

    def addSkip(self, test, reason):
        self.note(test, "skip", reason)

    def addFailure(self, test, err):
        self.note(test, "fail", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.note(test, "fail", self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        if err:
            self.note(test, "fail", self._exc_info_to_string(err, test))


def run(memory, results, *names):
    """Run some tests in this process."""
    sys.path.insert(0, str(TESTS.parent))
    # As the suite's own script calls it, which finds its parser next to itself.
    sys.path.insert(0, str(TESTS))
    sys.argv = ["tests", "--dev", "rxe0", *(["--gtt"] if memory == "system" else [])]
    from args_parser import parser
    parser.parse_args()
    if count := int(os.environ.get("LAB_FLAGS", 0)):
        from tests import utils
        everything = utils.get_dmabuf_access_flags
        utils.get_dmabuf_access_flags = lambda ctx: random.sample(everything(ctx), count)
    suite = unittest.defaultTestLoader.loadTestsFromNames(
        name if name == ODP else f"tests.{name}" for name in names)
    result = Result()
    suite.run(result)
    Path(results).write_text(json.dumps(result.found))
    # The interpreter would destroy the objects that skipped tests have left in any order, such as
    # the device before its objects, which sometimes crashes libibverbs, patched or not. Let the
    # kernel clean up.
    os._exit(0)


def start(memory, *names):
    """Run some tests in a process; return their results."""
    results = Path("/tmp/results.json")
    results.unlink(missing_ok=True)
    # The tests poll, as for a device that works by itself: so the kernel's workers get priority.
    command = ["nice", "-n", "19", sys.executable, "-B", __file__, "--run", memory, str(results), *names]
    began = time.monotonic()
    try:
        done = subprocess.run(command, timeout=TIMEOUT, check=False)
        end = f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        end = f"did not end within {TIMEOUT} s"
    print(f"{' '.join(names)}, {memory}: {end}, {time.monotonic() - began:.1f} s", flush=True)
    found = json.loads(results.read_text()) if results.exists() else {}
    # A process that crashed is reported as a failed test, which is not in the list of expectations.
    if end != "exit status 0" or not found:
        found.update({f"tests.{name}": ["fail", end] for name in names})
    return found


def modules():
    """All modules, one by one: yields the results of their tests."""
    for path in sorted(TESTS.glob("test_*.py")):
        if not path.stem.startswith(OTHERS):
            found = start("vram", path.stem)
            yield found
            for _ in range(TRIES - 1):
                result, detail = found.get(f"tests.{RACE}", ["pass", ""])
                if result != "fail" or LOST not in detail:
                    break
                found = start("vram", RACE)
                yield found


def system_attachments():
    """The number of importers that the GPUs have served from system memory."""
    lines = [line.split() for path in COUNTERS.glob("*:*/counters")
             for line in path.read_text().splitlines()]
    return sum(int(count) for event, _, count in lines if event == "attach-system")


def dmabuf(cases):
    """Tests with dma-bufs, for classes of importers and memories: yields their results."""
    for case in cases:
        mode, memory = case.split("/")
        MODE.write_text(mode)
        before = system_attachments()
        tests = start(memory, *DMABUF)
        count = system_attachments() - before
        right = count > 0 if memory == "system" else count == 0
        tests["memory"] = ["pass" if right else "fail", f"{count} attached to system memory"]
        yield {f"{case}/{name}": came for name, came in tests.items()}


def on_demand():
    """Tests with regions of memory that vvram has migrated: yields their results."""
    ODP_P2P.write_text("Y")
    tests = start("vram", ODP)
    ODP_P2P.write_text("N")
    yield {f"{ON_DEMAND}/{name.rpartition('.')[2]}": came for name, came in tests.items()}


def chosen(cases):
    """Some cases: yields the results of their tests."""
    yield from dmabuf(case for case in cases if case != ON_DEMAND)
    if ON_DEMAND in cases:
        yield from on_demand()


if sys.argv[1] == "--run":
    run(*sys.argv[2:])
else:
    everything = {}
    for part in modules() if sys.argv[1] == "modules" else chosen(sys.argv[1].split(",")):
        everything.update(part)
        # The results so far are kept if the next part dies.
        Path(sys.argv[2]).write_text(json.dumps(everything))
