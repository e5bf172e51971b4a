# SPDX-License-Identifier: GPL-2.0
"""The expectations of KUnit: the suites, the examples and the skips of the repository."""

import re
from dataclasses import dataclass
from pathlib import Path

from boot import plan
from judge import igt
from judge.igt import LOST, Verdict

RUST = re.compile(r"^\+?#\[kunit_tests\((\w+)\)\]", re.M)
C = re.compile(r"^\+?(?:static )?struct kunit_suite \w+ = \{[^}]*?\.name = \"(\w+)\"", re.M)
# A line of documentation, without its marker.
DOCUMENTATION = re.compile(r"^\s*//[/!] ?(.*)$")
FENCE = re.compile(r"^ {0,3}(```+)([^`]*)$")
# The attributes of a block that is compiled; the kernel runs all of these.
COMPILED = {"", "rust", "no_run"}
# The suite that the kernel makes from the examples of its crate, and the names of its cases.
EXAMPLES = "rust_doctests_kernel"
EXAMPLE = EXAMPLES + ".rust_doctest_kernel_{}_{}"
# The reasons of ktap.py for a suite that lacks cases, or all of them.
LOST_CASES = re.compile(r"ended after \d+ of \d+ cases|\d+ of \d+ suites did not run")
# The failure of a suite that is missing, which the filter of a boot may explain.
DID_NOT_RUN = "the suite did not run"
# The driver of an example, which prints a message when it has found its device.
DRIVER = re.compile(r"Registration::<[^(]*>::new\(\s*c\"(\w+)\"")


@dataclass(frozen=True)
class Wanted:
    """The suites and cases that have to run."""

    modules: frozenset       # suites of modules that use devices: in each boot
    once: frozenset          # suites of the other modules, and of the kernel: in one boot
    examples: tuple          # their cases, too
    drivers: frozenset       # the drivers of examples, which need a device: in one boot


def wanted(repo):
    """The suites and cases of the repository."""
    modules, once, examples, drivers = set(), set(), [], set()
    for top, all_of_top in (("kunit", modules), ("drivers", modules), ("rust", once),
                            ("patches", once)):
        for path in sorted((repo / top).rglob("*")):
            found = once if is_of(path.relative_to(repo), plan.WITHOUT_DEVICES) else all_of_top
            if path.suffix in (".rs", ".patch"):
                found.update(RUST.findall(path.read_text()))
            if path.suffix in (".c", ".patch"):
                found.update(C.findall(path.read_text()))
    crate = repo / "rust/kernel"
    for path in sorted(crate.rglob("*.rs")):
        file = "_".join(path.relative_to(crate).with_suffix("").parts)
        for number, text in enumerate(blocks(path.read_text())):
            examples.append(EXAMPLE.format(f"{file}_rs", number))
            drivers.update(DRIVER.findall(text))
    return Wanted(frozenset(modules), frozenset(once), tuple(examples), frozenset(drivers))


def is_of(path, modules):
    """Whether a file is one of some modules: kunit/NAME_kunit.rs, or below kunit/NAME."""
    top, name = (*path.parts, "")[:2]
    return top == "kunit" and f"{Path(name).stem.removesuffix('_kunit')}_kunit" in modules


def blocks(text):
    """The examples in the documentation of a Rust file that are compiled."""
    found, block, end = [], None, ""
    for line in text.splitlines():
        match = DOCUMENTATION.match(line)
        fence = match and FENCE.match(match.group(1))
        if not match:
            # The end of the documentation ends its last block.
            block, end = None, ""
        elif end and fence and fence.group(1).startswith(end) and not fence.group(2).strip():
            if block is not None:
                found.append("\n".join(block))
            block, end = None, ""
        elif end:
            if block is not None:
                block.append(match.group(1))
        elif fence:
            end = fence.group(1)
            words = {word.strip() for word in fence.group(2).split(",")}
            block = [] if words <= COMPILED else None
    return found


def skips(repo, flavour):
    """The cases that are expected to skip, as igt.expected_skips() has them."""
    return igt.expected_skips((repo / "kunit/skips.txt").read_text(), flavour)


def verdicts(name, cases, expected, modules):
    """Judge the cases of a boot: skips are those expected, and each suite of a module ran."""
    found = []
    for case, result, why in cases:
        reason = expected.get((name, case)) or expected.get((None, case))
        if result == "skip" and not reason:
            result, why = "fail", f"skipped, which is not expected: {why}"
        elif result == "pass" and reason:
            result, why = "fail", f"passed, but is listed as a skip: {reason}"
        kind = LOST if result == "fail" and LOST_CASES.fullmatch(why) else ""
        found.append(Verdict(f"{name}: {case}", result, why, kind))
    ran = {case.partition(".")[0] for case, _, _ in cases}
    return found + [Verdict(f"{name}: {suite}", "fail", DID_NOT_RUN, LOST)
                    for suite in sorted(modules - ran)]


def lost(cases, log, want):
    """Verdicts about suites and cases that ran in no boot; cases and log are those of all boots."""
    ran = {case for case, result, _ in cases if result != "skip"}
    suites = {case.partition(".")[0] for case in ran}
    return [*[Verdict(f"KUnit: {suite}", "fail", "the suite ran in no boot")
              for suite in sorted(want.once - suites)],
            *[Verdict(f"KUnit: {example}", "fail", "the example ran in no boot")
              for example in want.examples if example not in ran],
            *[Verdict(f"KUnit: {driver}", "fail", "the example found its device in no boot")
              for driver in sorted(want.drivers) if f"{driver} 0000:" not in log]]


def skipped_everywhere(cases):
    """Verdicts about cases that skipped in all boots; cases are those of all boots together."""
    results = {}
    for case, result, _ in cases:
        results.setdefault(case, set()).add(result)
    return [Verdict(f"KUnit: {case}", "fail", "it skips in each boot")
            for case, found in sorted(results.items()) if found == {"skip"}]


def stale(cases, expected):
    """Verdicts about expected skips of cases that do not exist."""
    ran = {case for case, _, _ in cases}
    return [Verdict(f"kunit/skips.txt: {case}", "fail",
                    f"listed ({reason}), but there is no such case")
            for (_, case), reason in sorted(expected.items(), key=str) if case not in ran]
