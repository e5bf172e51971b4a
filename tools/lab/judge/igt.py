# SPDX-License-Identifier: GPL-2.0
"""The expectations of tests under igt_runner, and the reading of its results."""

import fnmatch
import functools
import json
import re
from dataclasses import dataclass

from boot import topologies
from build import kernel

# The message of a program whose subtest needs something that the machine does not have.
NEEDS = re.compile(r"Skipped: needs (\S+)$")
# The message of a program whose subtest did not end in time, and the start of each failure's.
NO_END = "Failed: no end after "
FAILED = "Failed: "
# Findings that are known and not fixed, by letter and number: one, or two.
FINDING = re.compile(r"[A-Z]\d+(,[A-Z]\d+)?")
# The kinds of failures that do not say that the code is wrong: a limit of time is over, or there is
# no result, perhaps because the guest was ended before.
LATE, LOST = "late", "lost"
# Failures of a test that has not begun.
NO_RESULT, NOT_RUN = "it has no result", "notrun"


@dataclass(frozen=True)
class Verdict:
    """One check: how it went, and why if not well."""

    name: str
    result: str          # "pass", "fail" or "skip"; "unsteady" of a failure that did not come again
    detail: str = ""
    kind: str = ""       # of a failure: LATE, LOST or neither


@dataclass(frozen=True)
class Failure:
    """A subtest that is expected to fail."""

    reason: str          # "letter: reason"
    always: bool         # whether it fails on a boot of each run


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
    """Parse expected-failures.txt: lines of `[?]test@subtest  letter  reason`.

    The letter is the finding that the subtest provokes. Returns {test: Failure}.
    """
    failures = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        test, *rest = line.split(None, 2)
        if len(rest) != 2 or not FINDING.fullmatch(rest[0]):
            raise ValueError(f"an expected failure without a letter or a reason: {test}")
        failures[test.removeprefix("?")] = Failure(": ".join(rest), not test.startswith("?"))
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


@functools.lru_cache
def jobs(folder):
    """The numbers of programs and of their subtests in the folder of igt_runner.

    A line of its list has a program, and the subtests that one process of it runs.
    """
    try:
        lines = (folder / "joblist.txt").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for number, line in enumerate(lines):
        program, _, subtests = line.partition(" ")
        found[program] = number
        found.update({f"{program}@{subtest}": number for subtest in subtests.split(",") if subtest})
    return found


def listed(folder):
    """The tests in the list of igt_runner: subtests, and programs that have none."""
    known = jobs(folder)
    whole = {test.partition("@")[0] for test in known if "@" in test}
    return known.keys() - whole


def begun(text):
    """The tests of a results.json that have begun."""
    return {name for name, entry in tests(text).items() if entry.get("result") != NOT_RUN}


def chosen(pattern, test):
    """Whether a pattern of LAB_TESTS, or of LAB_EXCEPT, names a test."""
    return fnmatch.fnmatchcase(test if "@" in pattern else test.partition("@")[0], pattern)


def planned(boot, subtests):
    """The tests that a boot has to run, of all there are, and the patterns that name none."""
    wanted, unwanted = (list(filter(None, boot.settings.get(name, "").split(",")))
                        for name in ("LAB_TESTS", "LAB_EXCEPT"))
    tests = {test for test in subtests if any(chosen(pattern, test) for pattern in wanted)
             and not any(chosen(pattern, test) for pattern in unwanted)}
    return tests, [pattern for pattern in (*wanted, *unwanted)
                   if not any(chosen(pattern, test) for test in subtests)]


def verdicts(text, skips, topology, has, failures):
    """Judge a results.json.

    A subtest may skip if it needs something that is not in `has`. Any other skip must be in the
    list of skips, and each test in that list must skip. An expected failure counts as a skip.
    """
    found = []
    for name, entry in sorted(tests(text).items()):
        reason = skips.get((topology, name)) or skips.get((None, name))
        verdict = _verdict(entry, reason, has, failures.get(name))
        found.append(Verdict(f"{topology}: {name}", *verdict,
                             _kind(entry) if verdict[0] == "fail" else ""))
    return found


def _failed(entry):
    """The lines in which one of our programs says why a test has failed."""
    return [line.strip() for line in entry.get("out", "").splitlines() if line.startswith(FAILED)]


def _kind(entry):
    """The kind of a test's failure."""
    failed = _failed(entry)
    if entry.get("result") == "timeout" or entry.get("result") == "fail" and failed \
            and all(line.startswith(NO_END) for line in failed):
        return LATE
    return LOST if entry.get("result") in ("incomplete", NOT_RUN) else ""


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
        return "skip", f"expected to fail: {finding.reason}"
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
                    f"listed ({finding.reason}), but it passed on every boot" if name in seen else
                    f"listed ({finding.reason}), but there is no such test")
            for name, finding in sorted(failures.items())
            if name not in seen or finding.always and seen[name] == {"pass"}]


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
    """The last telling line of a test's output: that of a failure, which may have a stack below."""
    if failed := _failed(entry):
        return failed[-1]
    for stream in ("err", "out"):
        lines = [line.strip() for line in entry.get(stream, "").splitlines()]
        telling = [line for line in lines if line and not line.startswith(
            ("Starting subtest", "Subtest ", "IGT-Version", "seed ", "****", "Stack trace", "#"))]
        if telling:
            return telling[-1]
    return "no output"
