# SPDX-License-Identifier: GPL-2.0
"""What the demo shows: whether the bytes of each topology moved as they have to, as one table."""

import json

from boot import topologies
from judge import debugging, kernellog

MIN_BYTES = 4 << 20
MIN_RANGES = 3
HEADER = ("topology", "decision", "distance", "ranges", "written", "read", "equal", "verdict")


def deviations(topology, said):
    """The parts of the program's result that differ from the expectations of the topology."""
    found = []
    if said.get("error"):
        found.append(said["error"])
    for name, expected in (("decision", topology.decision), ("distance", topology.distance),
                           ("reason", topology.reason)):
        if said.get(name) != expected:
            found.append(f"{name} is {said.get(name)}, not {expected}")
    moved = (said.get("bytes_written", 0), said.get("bytes_read", 0))
    if topology.decision == topologies.REFUSED:
        if any(moved):
            found.append("bytes moved although the transfer was refused")
        return found
    if min(moved) < MIN_BYTES:
        found.append(f"less than {MIN_BYTES} bytes moved")
    if said.get("ranges", 0) < MIN_RANGES:
        found.append(f"only {said.get('ranges')} ranges")
    if said.get("verified") is not True:
        found.append("the bytes do not match the pattern")
    return found


def judge(outcome):
    """The row of a boot, and its errors."""
    topology, said = outcome.boot.topology, account(outcome)
    wrong = deviations(topology, said) if said else ["the program left no account of the transfer"]
    if outcome.error and not said.get("error"):
        wrong.append(outcome.error)
    wrong += [f"kernel log: {line}" for line in kernellog.brief(
        kernellog.complaints(outcome.log, outcome.boot.name))]
    wrong += [f"QEMU: {line}" for line in outcome.qemu_log]
    wrong += [f"{verdict.name}: {verdict.detail}" for verdict in debugging.verdicts(
        outcome, topology.name, debugging.wanted()) if verdict.result == "fail"]
    moved = said.get("bytes_written", 0) + said.get("bytes_read", 0)
    row = (topology.title, decision(said), distance(said), said.get("ranges", "-"),
           megabytes(said.get("bytes_written", 0)), megabytes(said.get("bytes_read", 0)),
           ("yes" if said.get("verified") else "no") if moved else "-",
           "WRONG" if wrong else "ok")
    return row, wrong


def account(outcome):
    """The result that the program of a boot has written about the transfer, if any."""
    try:
        return json.loads((outcome.results / "demo.json").read_text())
    except (OSError, ValueError):
        return {}


def decision(said):
    """The decision of the kernel, with the reason of a refusal."""
    found = [said.get("decision", "-"), said.get("reason", "none")]
    return ": ".join(found[:1] if found[1] == "none" else found)


def distance(said):
    """The length of the path, if there is one."""
    return said["distance"] if said.get("distance", -1) >= 0 else "-"


def megabytes(count):
    """Bytes as MiB, or - for none."""
    return f"{count / (1 << 20):.1f} MiB" if count else "-"


def table(rows):
    """Text columns under a header."""
    rows = [HEADER, *[tuple(map(str, row)) for row in rows]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
             for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
