# SPDX-License-Identifier: GPL-2.0
"""The benchmark: what moves, exports and mappings cost in instructions, as one table.

A guest's time is the number of its instructions, so that a figure does not depend on how fast
the host is. The kernel is one without the checks of the tests.
"""

import os

from boot import qemu, topologies
from build.steps import LabError
from judge import costs

# Seconds of a boot that hangs. Beside seven other guests, some took more than 400.
TIMEOUT = 1600
RUNS = 2
VRAM_SIZE = "512M"
# The command line tells the kernel the frequency of the time stamp counter, and the machine has no
# other clock to compare it with: a nanosecond of the guest's clock is exactly one instruction.
CLOCK = "tsc_early_khz=1000000 hpet=disable pmtmr=0"
# Struct pages of the large BAR take more memory than the guest has.
NO_PAGES = "vvram.struct_pages=0 vvram.svm=0"
HUGE_SIZE = "64G"
# The size of a modelled GPU, and the parameters of its driver: guest time runs ahead while the
# device works, which must not make the driver poll or time out, nor the kernel report that a task
# hangs.
ENGINE_SIZES = "vram=1G,aperture=512M"
PATIENT = " ".join([*(f"mgpu.{name}_ms=4000000000" for name in ("timeout", "poll", "invalidate")),
                    "sysctl.kernel.hung_task_timeout_secs=0"])


def boots():
    """The boots: the machines in order, each as often as it runs."""
    found = []
    for machines, suffix, vram, program, more, told in (
            (costs.MACHINES, "", VRAM_SIZE, "p2p-bench", "", ""),
            (costs.HUGE_MACHINES, costs.HUGE, HUGE_SIZE, "p2p-bench", "--huge", NO_PAGES),
            ((costs.RDMA,), "", VRAM_SIZE, "rdma-bench", "", ""),
            ((costs.FINDING,), costs.FIND, VRAM_SIZE, "svm-bench", "", ""),
            ((costs.ENGINE,), "", VRAM_SIZE, "mgpu-bench", "", PATIENT)):
        for name in machines:
            topology = topologies.find(name)
            settings = {"VVRAM_EXPECT": topology.decision, "LAB_PROGRAM": program,
                        "LAB_BENCH": more}
            cmdline = f"{CLOCK} {told}".strip()
            found += [qemu.Boot(f"bench-{name}{suffix}-{run}", topology, "bench", TIMEOUT,
                                settings, cmdline, vram, exact=True, sizes=ENGINE_SIZES)
                      for run in range(1, RUNS + 1)]
    return found


def run(steps, built):
    """Boot, print the table, fail if a target is missed or two runs differ."""
    if qemu.kvm():
        raise LabError("KVM=1 has no count of instructions", "leave it out")
    with steps.step("boot the benchmark") as step:
        outcomes = built.machine.run_all(step, steps.console, boots())
    measured, wrong = costs.gather(outcomes)
    record = steps.record
    record.wrong = wrong
    lines = []
    is_whole = not any(outcome.error for outcome in outcomes)
    if is_whole and (senseless := costs.impossible(measured)):
        wrong += senseless
    elif is_whole:
        # A kernel without some patches has no ceilings.
        base = {} if os.environ.get("WITHOUT") else costs.recorded(costs.CEILINGS.read_text())
        wrong += [text for machine, figures in measured.items()
                  for text in costs.unlike(machine, figures)]
        wrong += costs.exceeded(measured, base)
        found = costs.rows(measured)
        written = steps.logs / costs.CEILINGS.name
        written.write_text("\n".join(costs.ceilings(measured, base, found)) + "\n")
        curves = [curve for name, path in costs.MACHINES.items()
                  for curve in costs.growth(measured[name], path)]
        notes, falling = costs.grown(curves + costs.engine_growth(measured[costs.ENGINE]))
        notes += costs.for_each_page(measured[costs.FINDING]) + costs.jobs(measured[costs.ENGINE])
        record.figures, record.rows, record.notes = measured, found, notes
        lines = [*costs.table(found), "", *notes]
        wrong += falling + costs.deviations(found)
    for line in ["", *lines, "", *wrong]:
        steps.console.say(line)
    report = steps.logs / "bench.txt"
    report.write_text("\n".join([*lines, "", *wrong]) + "\n")
    steps.console.say(f"the same as text: {report}")
    if wrong:
        raise LabError(f"{len(wrong)} deviations from what is expected",
                       f"read the logs in {outcomes[0].results.parent}/bench-*")
