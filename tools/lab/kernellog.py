# SPDX-License-Identifier: GPL-2.0
"""Reads a guest's kernel log: it is part of the verdict of every boot.

The guest prints the level of each line. A line at the level of a warning or
worse is a complaint, whatever its text, unless expected-log.txt has it.
"""

import fnmatch
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import kernel
from igt import Verdict

# The parameters that a guest needs on its command line.
CMDLINE = "console_msg_format=syslog"
EXPECTED = Path(__file__).parent / "expected-log.txt"
# Facility and level, as syslog has them in one number; the kernel itself is facility 0.
LINE = re.compile(r"<(\d+)>\[ *\d+\.\d+\] ?(.*)")
# The message of the kernel if one processor has taken the console from another one.
REPLAY = "** replaying previous printk message **"
WARNING = 4
# Complaints that the kernel makes at a lower level: of a process that died of a fault, because it
# may handle the signal, and of leaks, because kmemleak only suspects them.
QUIET = re.compile(r"""
    \S+\[\d+\]:\ segfault\ at\ .*
  | traps:\ .*
  | kmemleak:\ \d+\ new\ suspected\ memory\ leaks.*
""", re.X)
# Complaints that are always bugs, however busy the host was.
SERIOUS = re.compile(r"""
    \b(WARNING|BUG|INFO|Oops|DMA-API|UBSAN|kmemleak|refcount_t):
  | \blist_(add|del)\b | Call\ Trace: | cut\ here | segfault\ at | ^traps: | protection\ fault
""", re.X)
# Marks that test programs write into the log. The programs of IGT do so as well.
TEST = re.compile(r"\[IGT\] (\S+): (?:executing|starting subtest (\S+)|(exiting)\b.*)")
# The maximum number of lines of one log in a verdict; the log has the others.
SHOWN = 12


@dataclass(frozen=True)
class Expected:
    """An entry of expected-log.txt: a line that is expected, and so is no complaint."""

    boots: tuple         # patterns
    tests: str           # pattern, or none for the whole log
    text: re.Pattern
    reason: str
    always: bool         # whether each run has such a line

    def boot(self, name):
        """Whether it is about this boot."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.boots)

    def line(self, test, text):
        """Whether it is about this line, which was printed while a test ran."""
        return (not self.tests or fnmatch.fnmatchcase(test, self.tests)) \
            and self.text.fullmatch(text)


def parse(text, flavour):
    """The entries of expected-log.txt, which says what they look like, for a flavour."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        where, _, rest = line.partition(" | ")
        pattern, _, reason = rest.rpartition(" | ")
        where, pattern, reason = where.strip(), pattern.strip(), reason.strip()
        if not (where and pattern and reason):
            raise ValueError(f"{EXPECTED.name}:{number}: not `boots | text | reason`")
        name, colon, boots = where.removeprefix("?").rpartition(":")
        if colon and name not in kernel.FLAVOURS:
            raise ValueError(f"{EXPECTED.name}:{number}: there is no flavour {name}")
        if colon and name != flavour:
            continue
        boots, _, tests = boots.partition("/")
        entries.append(Expected(tuple(boots.split(",")), tests, re.compile(pattern), reason,
                                not where.startswith("?")))
    return entries


@functools.cache
def expected(flavour):
    """The entries of expected-log.txt for a flavour."""
    return parse(EXPECTED.read_text(), flavour)


def lines(log):
    """(level, text) of each line. The level is None of what the kernel did not print."""
    for line in _once([line.rstrip() for line in log.splitlines()]):
        if match := LINE.fullmatch(line):
            yield int(match.group(1)) & 7, match.group(2)
        else:
            yield None, line


def _once(printed):
    """The lines without beginnings of lines that another processor then printed as a whole."""
    for i, line in enumerate(printed):
        again = printed[i + 2] if printed[i + 1:i + 2] == [REPLAY] and i + 2 < len(printed) else ""
        if line != REPLAY and not (line and again.startswith(line)):
            yield line


def _complaints(log):
    """(test, line) for each line that is a complaint unless it is expected."""
    test, booting = "", True
    for level, text in lines(log):
        if level is None:
            # Lines without a level come from the firmware at first. Later they come from a program
            # that has no other place for its errors: most likely the init of the guest.
            if text and not booting:
                yield test, text
            continue
        booting = False
        if match := TEST.fullmatch(text):
            program, subtest, end = match.groups()
            test = "" if end else f"{program}@{subtest}" if subtest else program
        elif text and (level <= WARNING or QUIET.fullmatch(text)):
            yield test, text


def complaints(log, boot, entries=None):
    """The lines in which a boot complains of something that is not expected, in order.

    Each of them names the test that ran when it was printed, if one did.
    """
    entries = [entry for entry in (expected(kernel.flavour()) if entries is None else entries)
               if entry.boot(boot)]
    return [f"{text} (during {test})" if test else text for test, text in _complaints(log)
            if not any(entry.line(test, text) for entry in entries)]


def brief(found):
    """The first complaints, if there are many."""
    more = len(found) - SHOWN
    return found if more <= 0 else [*found[:SHOWN], f"and {more} more like these"]


def stale(logs, entries=None):
    """Verdicts about entries that no line needs; logs has those of all boots by their names.

    An entry that is only about other boots may have its lines there.
    """
    printed = {name: list(_complaints(log)) for name, log in logs.items()}
    found = []
    for entry in expected(kernel.flavour()) if entries is None else entries:
        there = [lines_of for name, lines_of in printed.items() if entry.boot(name)]
        if there and entry.always and not any(
                entry.line(test, text) for lines_of in there for test, text in lines_of):
            found.append(Verdict(f"{EXPECTED.name}: {entry.text.pattern}", "fail",
                                 f"listed ({entry.reason}), but no boot has such a line"))
    return found
