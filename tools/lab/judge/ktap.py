# SPDX-License-Identifier: GPL-2.0
"""Reads KUnit's results (KTAP) out of a kernel log, with the parser of the kernel tree."""

import functools
import importlib
import io
import sys

from judge import kernellog

START = "KTAP version 1"
RESULTS = {"SUCCESS": "pass", "SKIPPED": "skip"}


@functools.cache
def _parser(tree):
    """kunit_parser and kunit_printer of a kernel tree."""
    folder = str(tree / "tools/testing/kunit")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("kunit_parser"), importlib.import_module("kunit_printer")
    finally:
        sys.path.remove(folder)


def results(log, tree):
    """(suite.case, "pass" | "fail" | "skip", detail) for each case, by the parser of a tree.

    A case with parameters is one case, and fails if one of them does. A suite that did not end,
    because the kernel died, is one more failure.
    """
    return [result for document in documents(log) for result in _results(document, tree)]


def documents(log):
    """The lines of each document: one of the suites that are built in, then one for each module."""
    found = []
    for _, text in kernellog.lines(log):
        if text == START:
            found.append([])
        if found:
            found[-1].append(text)
    return found


def _results(document, tree):
    parser, printer = _parser(tree)
    said = io.StringIO()
    main = parser.parse_run_tests(document, printer.Printer(output=said))
    # The filter chose none of the suites that are built in.
    if main.expected_count == 0:
        return []
    errors = [line.partition("[ERROR] ")[2] for line in said.getvalue().splitlines()
              if "[ERROR] " in line]
    found = [result for suite in main.subtests if suite.name for result in _of_suite(suite)]
    # The parser has a test without a name for each one that was announced and did not run.
    lost = sum(not suite.name for suite in main.subtests)
    if lost:
        found.append(("KUnit", "fail", f"{lost} of {main.expected_count} suites did not run"))
    # Other errors of the parser.
    if errors and all(result != "fail" for _, result, _ in found):
        found.append(("KUnit", "fail", "; ".join(errors)))
    return found


def _of_suite(suite):
    """The results of a suite, which is its own result if it had no cases."""
    found = [(f"{suite.name}.{case.name}", *_verdict(case)) for case in suite.subtests if case.name]
    lost = sum(not case.name for case in suite.subtests)
    if lost:
        found.append((suite.name, "fail",
                      f"ended after {len(found)} of {suite.expected_count} cases"))
    if not found or not suite.ok_status() and all(result != "fail" for _, result, _ in found):
        found.append((suite.name, *_verdict(suite)))
    return found


def _verdict(test):
    """The verdict about a test and all tests below it, and the reason."""
    bad = [below for below in test.subtests if _verdict(below)[0] == "fail"]
    result = "fail" if bad else RESULTS.get(test.status.name, "fail")
    if result == "fail":
        which = ", ".join(below.name or "one that did not end" for below in bad)
        return result, which or _why(test) or test.status.name.lower().replace("_", " ")
    return result, test.skip_reason


def _why(test):
    """The first line of a failed assertion."""
    return next((line.strip().removeprefix("# ") for line in test.log if " FAILED at " in line), "")
