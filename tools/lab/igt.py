# SPDX-License-Identifier: GPL-2.0
"""The expectations of tests under igt_runner, and the reading of its results."""

import json
import re
from dataclasses import dataclass

import kernel
import topologies

# The message of a program whose subtest needs something that the machine does not have.
NEEDS = re.compile(r"Skipped: needs (\S+)$")
# A finding that is known and not fixed, by its letter.
FINDING = re.compile(r"[SLRQ]\d+")


@dataclass(frozen=True)
class Verdict:
    """One check: how it went, and why if not well."""

    name: str
    result: str          # "pass", "fail" or "skip"; "unsteady" of a failure that did not come again
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


def expected_failures(text):
    """Parse expected-failures.txt: lines of `test@subtest  letter  reason`.

    The letter is the finding that the subtest provokes. Returns {test: "letter: reason"}.
    """
    failures = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        test, *rest = line.split(None, 2)
        if len(rest) != 2 or not FINDING.fullmatch(rest[0]):
            raise ValueError(f"an expected failure without a letter or a reason: {test}")
        failures[test] = ": ".join(rest)
    return failures


def results(outcome):
    """The results.json of a boot, or one of no tests if there is none or only a part of it."""
    try:
        text = (outcome.results / "results.json").read_text()
        json.loads(text)
    except (OSError, ValueError):
        return '{"tests": {}}'
    return text


def tests(text):
    """The tests in a results.json: their names as skips.txt has them, and their entries."""
    return {name.removeprefix("igt@"): entry
            for name, entry in json.loads(text)["tests"].items()}


def verdicts(text, skips, topology, has, failures):
    """Judge a results.json.

    A subtest may skip if it needs something that is not in `has`. Any other skip must be in the
    list of skips, and each test in that list must skip. An expected failure counts as a skip.
    """
    found = []
    for name, entry in sorted(tests(text).items()):
        reason = skips.get((topology, name)) or skips.get((None, name))
        verdict = _verdict(entry, reason, has, failures.get(name))
        found.append(Verdict(f"{topology}: {name}", *verdict))
    return found


def seconds(entry):
    """How long a test took."""
    time = entry.get("time", {})
    return time.get("end", 0) - time.get("start", 0)


def _verdict(entry, reason, has, finding):
    """Result and detail of a test, with why it may skip, and why it may fail."""
    result, text = entry.get("result"), said(entry)
    if result == "dmesg-warn":
        # The test passed. The kernel messages that igt_runner reports are judged with the whole
        # log.
        result = "pass"
    need = NEEDS.match(text)
    if result == "skip" and need:
        return _needs(need[1], has)
    if result == "skip" and reason:
        return "skip", reason
    if result == "skip":
        return "fail", f"skipped, which is not expected: {text}"
    if result == "pass" and reason:
        return "fail", f"passed, but is listed as a skip: {reason}"
    if result == "fail" and finding:
        return "skip", f"expected to fail: {finding}"
    if result == "pass":
        return "pass", ""
    return "fail", f"{result}: {text}"


def _needs(need, has):
    """Result and detail of a test that skipped because the machine lacks something."""
    if need not in topologies.NEEDS:
        return "fail", f"skipped for want of {need}, of which the lab knows nothing"
    if need in has:
        return "fail", f"skipped for want of {need}, which this machine has"
    return "skip", f"needs {need}"


def never_ran(texts, skips):
    """Tests that skipped on every boot that ran them, without an entry for all topologies."""
    return [Verdict(f"every boot: {name}", "fail", "skipped wherever it was run")
            for name, results in _by_test(texts).items()
            if results == {"skip"} and (None, name) not in skips]


def mended(texts, failures):
    """Expected failures of tests that passed on every boot, or that do not exist."""
    seen = _by_test(texts)
    return [Verdict(f"expected-failures.txt: {name}", "fail",
                    f"listed ({finding}), but it passed on every boot" if name in seen else
                    f"listed ({finding}), but there is no such test")
            for name, finding in sorted(failures.items())
            if seen.get(name, {"pass"}) == {"pass"}]


def _by_test(texts):
    """All results that each test has in some results.json."""
    seen = {}
    for text in texts:
        for name, entry in sorted(tests(text).items()):
            seen.setdefault(name, set()).add(entry.get("result"))
    return seen


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
            ("Starting subtest", "Subtest ", "IGT-Version", "seed ", "****", "Stack trace", "#"))]
        if telling:
            return telling[-1]
    return "no output"
