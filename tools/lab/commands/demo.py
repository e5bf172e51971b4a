# SPDX-License-Identifier: GPL-2.0
"""The demo: one boot per topology, and one table of what happened."""

from boot import qemu, topologies
from build.steps import LabError
from judge import transfer

TIMEOUT = 300
CLOSING = (
    "Shown: VRAM of one PCI device, exported by a Rust driver, read and written by another.",
    "Where no path exists the export says so and moves nothing; every byte above was compared.",
    "Read on: README.md for the layout, Documentation/gpu for the API, make check for the tests.",
)


def boots():
    """The boots of the demo."""
    return [qemu.Boot(f"demo-{t.name}", t, "demo", TIMEOUT,
                      {"VVRAM_EXPECT": t.decision}, exact=True)
            for t in topologies.TOPOLOGIES]


def run(steps, built):
    """Boot all topologies, print the table, fail on any deviation."""
    with steps.step("boot the topologies") as step:
        outcomes = built.machine.run_all(step, steps.console, boots())
    judged = [transfer.judge(outcome) for outcome in outcomes]
    steps.record.demo = [(outcome, *found) for outcome, found in zip(outcomes, judged)]
    steps.console.say()
    for line in transfer.table([row for row, _ in judged]):
        steps.console.say(line)
    steps.console.say()
    wrong = [f"{outcome.boot.topology.name}: {text}"
             for outcome, (_, found) in zip(outcomes, judged) for text in found]
    steps.record.wrong = wrong
    if wrong:
        for text in wrong:
            steps.console.say(text)
        raise LabError(f"{len(wrong)} deviations from what is expected",
                       f"read the logs in {outcomes[0].results.parent}/demo-*")
    for line in CLOSING:
        steps.console.say(line)
