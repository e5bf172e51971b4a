# SPDX-License-Identifier: GPL-2.0
"""RDMA against VRAM: the build of the clients, their boots, and their verdicts."""

import json
import re
import shutil
from pathlib import Path

import igt
import packaged
import pipeline
import topologies
from igt import LOST, Verdict

TOOLS = pipeline.REPO / "tools"
UAPI = pipeline.REPO / "include/uapi/drm"
# The provider of rxe, pyverbs and its tests.
CORE = packaged.Package("rdma-core", TOOLS / "rdma-core", """
cmake -G Ninja -S . -B /build/work -DCMAKE_BUILD_TYPE=Release -DNO_MAN_PAGES=1 \\
	-DENABLE_VALGRIND=0 -DCMAKE_C_FLAGS=-I/build/include
ninja -C /build/work providers/rxe/all pyverbs/all
""", ("/build/work/lib/librxe-rdmav*.so", "/build/work/python/pyverbs", "tests"), UAPI)
# Bandwidth, with VRAM.
PERFTEST = packaged.Package("perftest", TOOLS / "perftest", """
./autogen.sh
./configure CPPFLAGS="-I/build/include -I/usr/include/libdrm"
make -j"$(nproc)" ib_write_bw ib_read_bw
""", ("ib_write_bw", "ib_read_bw"), UAPI)
CLIENT = TOOLS / "libfabric/fi_dmabuf.c"
# The programs whose output is printed.
SHOWN = ("rdma_clients@own", "rdma_clients@bandwidth")
# The pattern of the names of tests with dma-bufs, which all have to pass with the patches.
DMABUF = ".DmaBuf"
# The value in place of cases if all modules run.
MODULES = "modules"
# The case of regions with on-demand paging, and its tests.
ON_DEMAND = "on-demand"
ODP_TESTS = re.findall(r"def (test_\w+)",
                       (Path(__file__).parent / "guest/pyverbs_odp.py").read_text())
# The file that says whether the tests had the memory of their case.
MEMORY = "memory"


def ensure(steps, built):
    """Build the clients and put them into the share."""
    parts = [packaged.ensure(steps, built.box, package) for package in (CORE, PERFTEST)]
    folder = built.kernel.share / "rdma"
    shutil.rmtree(folder, ignore_errors=True)
    for part in parts:
        shutil.copytree(part, folder, dirs_exist_ok=True)
    box = built.box.with_binds({"/build/out": folder}, readonly={"/build/client": CLIENT.parent})
    with steps.step("libfabric client") as step:
        step.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", "/build/out/fi_dmabuf",
                  f"/build/client/{CLIENT.name}", "-lfabric"], "the log names the line", box)


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
    if what == MODULES:
        wanted = {test: "pass" if DMABUF in test else result for test, result in before.items()}
    else:
        # No test may be skipped: a skip means that a dma-buf was not registered.
        tests = [test for test in before if DMABUF in test] + [MEMORY]
        wanted = {f"{case}/{test}": "pass" for case in what.split(",")
                  for test in (ODP_TESTS if case == ON_DEMAND else tests)}
    verdicts = []
    for test in sorted(wanted.keys() | found.keys()):
        result, detail = found.get(test, ["fail", "it did not run"])
        if result != wanted.get(test):
            detail = f"{result}, expected is {wanted.get(test, 'no such test')}: {detail.strip()}"
            result = "fail"
        verdicts.append(Verdict(f"{name}: {test}", result, detail, "" if test in found else LOST))
    return verdicts
