# SPDX-License-Identifier: GPL-2.0
"""Reads a guest's kernel log: it is part of the verdict of every boot.

The guest prints the level of each line. A line at the level of a warning or
worse is a complaint, whatever its text, unless expected-log.txt has it. A line
that each boot has to have is missed if it is not there: a guest provokes a
warning at its begin and at its end, so a log without them is not whole, or
does not have the warnings.
"""

import collections
import fnmatch
import functools
import re
from dataclasses import dataclass
from pathlib import Path

from build import kernel
from judge.igt import Verdict

EXPECTED = Path(__file__).parent / "expected-log.txt"
# Facility and level, as syslog has them in one number; the kernel itself is facility 0.
LINE = re.compile(r"<(\d+)>\[ *\d+\.\d+\] ?(.*)")
# The message of the kernel if one processor has taken the console from another one.
REPLAY = "** replaying previous printk message **"
WARNING = 4
# Complaints that the kernel makes at a lower level: of a process that died of a fault, because it
# may handle the signal, of leaks, because kmemleak only suspects them, and of an allocation that it
# makes fail on purpose, with a stack below it.
QUIET = re.compile(r"""
    \S+\[\d+\]:\ segfault\ at\ .*
  | traps:\ .*
  | FAULT_INJECTION:\ forcing\ a\ failure\.
  | kmemleak:\ \d+\ new\ suspected\ memory\ leaks.*
""", re.X)
# Marks that test programs write into the log. The programs of IGT do so as well.
TEST = re.compile(r"\[IGT\] (\S+): (?:executing|starting subtest (\S+)|(exiting)\b.*)")
# The begin and the end of a suite of KUnit.
SUITE = re.compile(r" {4}# Subtest: (\S+)|(?:not )?ok \d+ \S+.*")
# The first line of the state that a guest is asked for before it is ended, see boot/watch.py.
ASKED = re.compile(r"Uhhuh\. NMI received for unknown reason .*")
# The first part of an entry: `[?][flavour:]boots[/tests] [=][number]`, or `+ [number]`.
WHERE = re.compile(r"(\??)(?:([\w-]+):)?([^\s:/+]+)(?:/(\S+))?(?: +(=?)(\d+))?|\+(?: +(\d+))?")
# The maximum number of lines of one log in a verdict; the log has the others.
SHOWN = 12


@dataclass(frozen=True)
class Expected:
    """An entry of expected-log.txt: lines that are expected, and so are no complaints."""

    boots: tuple         # patterns
    tests: tuple         # patterns, or none for the whole log
    text: re.Pattern
    reason: str
    always: bool         # whether each run has such a line
    most: int = 1        # in a boot, or, if they follow other lines, after each of those
    least: int = 0       # in a boot
    follows: tuple = ()  # the entries of the lines of which one has to come before

    def boot(self, name):
        """Whether it is about this boot."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.boots)

    def line(self, test, text):
        """Whether it is about this line, which was printed while a test ran."""
        return (not self.tests or any(fnmatch.fnmatchcase(test, tests) for tests in self.tests)) \
            and self.text.fullmatch(text)


@dataclass(frozen=True)
class Judgement:
    """What is wrong with a log."""

    complaints: tuple    # (test or suite, line): the line is not expected, or not so often
    missing: tuple       # what it has to have

    @property
    def lines(self):
        """All of it as text."""
        return [*(f"{text} (during {test})" if test else text for test, text in self.complaints),
                *self.missing]


def parse(text, flavour):
    """The entries of expected-log.txt, which says what they look like, for a flavour."""
    entries, heads = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            heads = []
            continue
        where, _, rest = line.partition(" | ")
        pattern, _, reason = rest.rpartition(" | ")
        pattern, reason = pattern.strip(), reason.strip()
        match = WHERE.fullmatch(where.strip())
        if not (match and pattern and reason):
            raise ValueError(f"{EXPECTED.name}:{number}: not `boots number | text | reason`")
        maybe, of_flavour, boots, tests, exactly, most, after = match.groups()
        if of_flavour and of_flavour not in kernel.FLAVOURS:
            raise ValueError(f"{EXPECTED.name}:{number}: there is no flavour {of_flavour}")
        if boots:
            entry = Expected(tuple(boots.split(",")), (tests,) if tests else (),
                             re.compile(pattern), reason, not maybe, int(most or 1),
                             int(most) if exactly else 0)
            heads.append((of_flavour, entry))
            entries += [entry] if of_flavour in (None, flavour) else []
            continue
        if not heads:
            raise ValueError(f"{EXPECTED.name}:{number}: there is nothing that it follows")
        follows = tuple(head for of_flavour, head in heads if of_flavour in (None, flavour))
        if follows:
            entries.append(Expected(tuple(boot for head in follows for boot in head.boots),
                                    tuple(tests for head in follows for tests in head.tests),
                                    re.compile(pattern), reason, False, int(after or 1),
                                    follows=follows))
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
    """(test or suite, line) for each line that is a complaint unless it is expected."""
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
        elif match := SUITE.fullmatch(text):
            test = match.group(1) or ""
        elif text and (level <= WARNING or QUIET.fullmatch(text)):
            yield test, text


def marks(log):
    """The tests that have left a mark when they began: programs, and program@subtest."""
    found = set()
    for _, text in lines(log):
        if match := TEST.fullmatch(text):
            program, subtest, _ = match.groups()
            found |= {program, f"{program}@{subtest}"}
    return found


def during(log, line, tests):
    """The first test whose name fits and that ran when a complaint was printed, or nothing."""
    return next((test for test, text in _complaints(log)
                 if text == line and tests.fullmatch(test)), "")


def until_asked(log):
    """A log without the state that the guest printed because it was asked to, before its end."""
    kept = []
    for line in log.splitlines(keepends=True):
        if (match := LINE.fullmatch(line.rstrip())) and ASKED.fullmatch(match.group(2)):
            break
        kept.append(line)
    return "".join(kept)


def judge(log, boot, entries=None, rounds=1):
    """Judge the log of a boot. A boot that does everything several times may say it as often."""
    entries = [entry for entry in (expected(kernel.flavour()) if entries is None else entries)
               if entry.boot(boot)]
    used, found = collections.Counter(), []
    # What may follow a line has room once it was there.
    room = {entry: 0 if entry.follows else entry.most * (1 if entry.least else rounds)
            for entry in entries}
    for test, text in _complaints(log):
        fitting = [entry for entry in entries if entry.line(test, text)]
        entry = next((entry for entry in fitting if room[entry]), None)
        if entry is None:
            found.append((test, f"{text} [more often than expected]"
                          if any(not entry.follows for entry in fitting) else text))
            continue
        used[entry] += 1
        room[entry] -= 1
        for other in entries:
            if entry in other.follows:
                room[other] = other.most
    missing = [f"{used[entry]} lines `{entry.text.pattern}`, not {entry.least}: {entry.reason}"
               for entry in entries if used[entry] < entry.least]
    return Judgement(tuple(found), tuple(missing))


def complaints(log, boot, entries=None):
    """All that is wrong with the log of a boot, in order, then what is missing.

    A line names the test that ran when it was printed, if one did.
    """
    return judge(log, boot, entries).lines


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
