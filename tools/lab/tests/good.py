# SPDX-License-Identifier: GPL-2.0
"""What a boot that goes well leaves behind, for tests that judge boots."""

# The warning that a guest provokes at its begin and at its end.
WARNING = ("coredump: 1(init): Unsafe core_pattern used with fs.suid_dumpable=2: pipe handler or "
           "fully qualified core dump path required. Set kernel.core_pattern before "
           "fs.suid_dumpable.")


def line(text, level=4):
    """A line of a kernel log."""
    return f"<{level}>[    1.000000] {text}\n"


def log(*lines, tests=()):
    """The kernel log of a boot that has run some tests; the lines come behind their marks."""
    marks = []
    for test in tests:
        program, _, subtest = test.partition("@")
        marks += [f"[IGT] {program}: executing", f"[IGT] {program}: starting subtest {subtest}",
                  f"[IGT] {program}: exiting, ret=0"]
    return "".join([line(WARNING), *[line(mark, 14) for mark in marks],
                    *[line(text) for text in lines], line(WARNING)])
