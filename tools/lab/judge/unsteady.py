# SPDX-License-Identifier: GPL-2.0
"""Remembers over runs which tests were unsteady: a test that is so again and again has a bug."""

import contextlib
import dataclasses
import time
from collections import Counter

from build import cache


def path():
    """The file: lines of `date seed name`. It is among the logs, which `make clean` keeps."""
    return cache.base() / "logs/unsteady.txt"


def told(verdicts, seed):
    """The verdicts about unsteady tests, which say how often each was so before; remember them."""
    file = path()
    lines = file.read_text().splitlines() if file.is_file() else []
    before = Counter(line.split(" ", 2)[2] for line in lines if line.count(" ") >= 2)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    lines += [f"{date} {seed} {verdict.name}" for verdict in verdicts]
    # If the disk is full they are lost, which is no error.
    with contextlib.suppress(OSError):
        cache.write_if_changed(file, "".join(f"{line}\n" for line in lines).encode())
    return [dataclasses.replace(verdict, detail=f"{verdict.detail} [{count(before[verdict.name])}]")
            for verdict in verdicts]


def count(times):
    """How often a test was unsteady before."""
    return f"unsteady {times} times before" if times else "for the first time"
