# SPDX-License-Identifier: GPL-2.0
"""The choice of the log that belongs to a check."""

import re
from pathlib import Path

from judge import guests, igt
from judge.igt import Verdict

# The logs of a boot, for the table of boots.
FILES = ("kernel.log", "output.log", "qemu.log", "model.log", "results.json")
NAMED = re.compile(r"log: (\S+)")
ELSEWHERE = "without a guest"


def holds(file):
    """Whether there is such a file, and it is not empty."""
    return file.is_file() and file.stat().st_size > 0


def of_test(outcome, test):
    """The output of the program of a test of a boot, else that of all its tests."""
    number = igt.jobs(outcome.results / "runner").get(test)
    if number is None:
        return outcome.results / "output.log"
    return outcome.results / f"runner/{number}/out.txt"


class Places:
    """The boots and tests from which the verdicts of a part come."""

    def __init__(self, part):
        self.outcomes = {guests.place(outcome.boot): outcome for outcome in part.outcomes}
        self.by_place = {}
        for verdict in part.verdicts:
            self.by_place.setdefault(self.of(verdict)[0], []).append(verdict)

    def of(self, verdict):
        """The place of a verdict, and the name of the check there."""
        where, _, name = verdict.name.partition(": ")
        return (where, name) if where in self.outcomes else (ELSEWHERE, verdict.name)

    def verdicts(self, outcome):
        """The verdicts about a boot."""
        return self.by_place.get(guests.place(outcome.boot), [])

    def groups(self):
        """(title, verdicts), those without a boot first. Names have no place in them."""
        for where in sorted(self.by_place, key=lambda name: name != ELSEWHERE):
            yield where, [Verdict(self.of(verdict)[1], verdict.result, verdict.detail)
                          for verdict in self.by_place[where]]

    def log(self, verdict, where=None):
        """The log that belongs to a verdict."""
        if match := NAMED.search(verdict.detail):
            return Path(match.group(1))
        found, name = (where, verdict.name) if where else self.of(verdict)
        outcome = self.outcomes.get(found)
        if not outcome:
            return None
        if name.endswith(" log"):
            return outcome.results / name.replace(" log", ".log")
        return of_test(outcome, name) if outcome.boot.job == "igt" else \
            outcome.results / ("kernel.log" if outcome.boot.job == "kunit" else "output.log")
