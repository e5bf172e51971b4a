# SPDX-License-Identifier: GPL-2.0
"""What is expected of tests under igt_runner, and what its results say."""

import json
from dataclasses import dataclass

import kernel


@dataclass(frozen=True)
class Verdict:
    """One check: how it went, and why if not well."""

    name: str
    result: str          # "pass", "fail" or "skip"
    detail: str = ""


def expected_skips(text, flavour="check"):
    """Parse skips.txt: lines of `[topology:]test@subtest  reason`.

    A flavour of the kernel can take the place of the topology: such a line
    holds for all topologies, with that flavour. Returns {(topology or None,
    test): reason}.
    """
    skips = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        test, _, reason = line.partition(" ")
        if not reason.strip():
            raise ValueError(f"a skip without a reason: {test}")
        where, _, name = test.rpartition(":")
        if where in kernel.FLAVOURS:
            if where != flavour:
                continue
            where = ""
        skips[(where or None, name)] = reason.strip()
    return skips


def results(outcome):
    """The results.json of a boot, or one of no tests."""
    path = outcome.results / "results.json"
    return path.read_text() if path.is_file() else '{"tests": {}}'


def tests(text):
    """The tests in a results.json: their names as skips.txt has them, and their entries."""
    return {name.removeprefix("igt@"): entry
            for name, entry in json.loads(text)["tests"].items()}


def verdicts(text, skips, topology):
    """Judge a results.json: a skip must be expected, and what is expected to skip must."""
    found = []
    for name, entry in sorted(tests(text).items()):
        reason = skips.get((topology, name)) or skips.get((None, name))
        result = entry.get("result")
        label = f"{topology}: {name}"
        if result == "skip" and reason:
            found.append(Verdict(label, "skip", reason))
        elif result == "skip":
            found.append(Verdict(label, "fail", f"skipped, which is not expected: {said(entry)}"))
        elif result == "pass" and reason:
            found.append(Verdict(label, "fail", f"passed, but is listed as a skip: {reason}"))
        elif result == "pass":
            found.append(Verdict(label, "pass"))
        else:
            found.append(Verdict(label, "fail", f"{result}: {said(entry)}"))
    return found


def stale(skips, seen):
    """Expected skips of tests that do not exist; seen maps each topology to its tests."""
    found = []
    for (topology, test), reason in sorted(skips.items(), key=str):
        places = [topology] if topology else list(seen)
        if all(place in seen for place in places) and not any(test in seen[p] for p in places):
            found.append(Verdict(f"skips.txt: {test}", "fail",
                                 f"listed ({reason}), but there is no such test"))
    return found


def said(entry):
    """The last telling line of a test's output."""
    for stream in ("err", "out"):
        lines = [line.strip() for line in entry.get(stream, "").splitlines()]
        telling = [line for line in lines if line and not line.startswith(
            ("Starting subtest", "Subtest ", "IGT-Version", "****", "Stack trace", "#"))]
        if telling:
            return telling[-1]
    return "no output"
