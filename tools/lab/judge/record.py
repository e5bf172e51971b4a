# SPDX-License-Identifier: GPL-2.0
"""The results of a run so far. The report is made from them, however the run ends."""

import time
from dataclasses import dataclass, field


@dataclass
class Part:
    """The results of the tests on one kernel."""

    title: str                   # the flavour of the kernel
    judge: object                # a function: outcome -> verdicts
    first: int                   # the number of steps before it
    verdicts: list = field(default_factory=list)
    outcomes: list = field(default_factory=list)     # those that count; none as long as boots run


@dataclass
class Record:
    """The results of a run."""

    command: str = ""
    begin: float = field(default_factory=time.time)
    seconds: float = 0
    status: int | None = None    # none as long as it runs
    error: BaseException | None = None
    seed: int | None = None
    steps: list = field(default_factory=list)        # all steps that began, in order
    parts: list = field(default_factory=list)
    demo: list = field(default_factory=list)         # (outcome, row, errors)
    figures: dict = field(default_factory=dict)      # of the benchmark, by machine
    rows: list = field(default_factory=list)         # of the benchmark
    notes: list = field(default_factory=list)        # lines below its table
    wrong: list = field(default_factory=list)        # failures that are no verdicts

    def part(self, title, judge):
        """Begin with the tests of a kernel."""
        self.parts.append(Part(title, judge, len(self.steps)))
        return self.parts[-1]

    def end(self, status, error=None):
        """The run has ended. Of a part that was cut short, each boot is judged by itself."""
        for part in self.parts:
            if not part.outcomes:
                part.outcomes = self.outcomes_of(part)
                part.verdicts += [verdict for outcome in part.outcomes
                                  for verdict in part.judge(outcome)]
        self.seconds = time.time() - self.begin
        self.status, self.error = status, error

    def outcomes(self, first=0, last=None):
        """The boots that have ended in some of the steps."""
        return [outcome for step in self.steps[first:last] for outcome in step.outcomes]

    def outcomes_of(self, part):
        """The boots of a part that have ended so far."""
        following = self.parts.index(part) + 1
        last = self.parts[following].first if following < len(self.parts) else None
        return self.outcomes(part.first, last)
