# SPDX-License-Identifier: GPL-2.0
"""Reads KUnit's results (KTAP) out of a kernel log."""

import re

STAMP = re.compile(r"^\[ *\d+\.\d+\] ")
SUITE = re.compile(r"^    # Subtest: (\S+)")
PLAN = re.compile(r"^    1\.\.(\d+)")
CASE = re.compile(r"^    (ok|not ok) \d+ (.*?)(?: # (SKIP)\b ?(.*))?$")
END = re.compile(r"^(ok|not ok) \d+ (\S+)")


def results(log):
    """(suite.case, "pass" | "fail" | "skip", detail) for each case.

    A suite that announced more cases than it reported, because the kernel
    stopped in one of them, counts as one more failure.
    """
    found = []
    suite, planned, seen = None, 0, 0

    def close():
        if suite and seen < planned:
            found.append((f"{suite}", "fail", f"ended after {seen} of {planned} cases"))

    for line in log.splitlines():
        line = STAMP.sub("", line)
        if match := SUITE.match(line):
            close()
            suite, planned, seen = match.group(1), 0, 0
        elif suite and (match := PLAN.match(line)):
            planned = int(match.group(1))
        elif suite and (match := CASE.match(line)):
            seen += 1
            verdict = "skip" if match.group(3) else "pass" if match.group(1) == "ok" else "fail"
            found.append((f"{suite}.{match.group(2)}", verdict, match.group(4) or ""))
        elif suite and END.match(line):
            close()
            suite = None
    close()
    return found
