# SPDX-License-Identifier: GPL-2.0
"""The checks of the kernel that turn themselves off: each has to be on at the end of a boot.

lockdep does so at its first report, or when one of its tables is full, and the check of the DMA API
when it has no memory. All later tests of a boot then run without it.
"""

import re

from build import kernel
from judge import kernellog
from judge.igt import LOST, Verdict

# The file in the folder of a boot in which the guest says at its end what is on.
STATE = "checks.txt"
DMA = "dma-debug"
# The options of the checks, and what the guest says of one that is on.
OPTIONS = {"lockdep": "CONFIG_PROVE_LOCKING=y", DMA: "CONFIG_DMA_API_DEBUG=y"}
ON = {"lockdep": "1", DMA: "N"}
# Programs that make allocations fail may make one of dma-debug fail, which then prints this.
NO_MEMORY = "DMA-API: cacheline tracking ENOMEM, dma-debug disabled"
FAULTS = re.compile(r"\w+_faults@.*")


def wanted():
    """The checks of the flavour of the kernel that is asked for."""
    return frozenset(name for name, option in OPTIONS.items() if kernel.has(option))


def verdicts(outcome, name, checks):
    """The verdicts about the checks that have to be on at the end of a boot."""
    path = outcome.results / STATE
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    state = dict(line.split(" ", 1) for line in lines if " " in line)
    return [_verdict(f"{name}: {check}", check, state.get(check), outcome)
            for check in sorted(checks)]


def _verdict(name, check, state, outcome):
    if state == ON[check]:
        return Verdict(name, "pass")
    if state is None:
        return Verdict(name, "fail", "the guest has not said whether it is on", LOST)
    if check == DMA and (test := kernellog.during(outcome.log, NO_MEMORY, FAULTS)):
        return Verdict(name, "skip", f"an allocation of it that failed in {test} turned it off")
    return Verdict(name, "fail", f"it was off at the end: {state}")
