# SPDX-License-Identifier: GPL-2.0
"""The output for the user while the lab works.

Each step has a name, a log file and an elapsed time. A step that takes long
shows where it is: on a terminal in a line that is redrawn, elsewhere in a
line every HEARTBEAT seconds.
"""

import contextlib
import errno
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time

from build import cache, processes, sandbox

HEARTBEAT = 20
JOIN = 5
TAIL = 15
NO_SPACE = re.compile(rb"No space left on device|Disk quota exceeded")
FULL = (errno.ENOSPC, errno.EDQUOT)
LITTLE_SPACE = 16 << 20        # with less free, what fails most likely fails because of it
BUILD_LINE = re.compile(r"^\s+(\[M\] )?[A-Z][A-Z0-9_]+(\s+\[M\])?\s+\S")


class LabError(Exception):
    """An error for the user, with a hint at what to do about it."""

    def __init__(self, message, hint=None, log=None):
        super().__init__(message)
        self.hint = hint
        self.log = log


class DiskFull(LabError):
    """There was no space on a disk."""

    def __init__(self, what):
        free = shutil.disk_usage(cache.base()).free >> 20
        super().__init__(
            f"{what}: the disk is full, {free} MiB are free for the caches in {cache.base()}",
            "free some space, or set XDG_CACHE_HOME to a folder on a larger disk, then run again: "
            "what was complete is kept")


def found_no_space(log):
    """Whether a command failed because a disk is full, which may be the disk of its log."""
    if shutil.disk_usage(log.parent).free < LITTLE_SPACE:
        return True
    with open(log, "rb") as f:
        f.seek(max(0, f.seek(0, 2) - (1 << 16)))
        return bool(NO_SPACE.search(f.read()))


def duration(seconds):
    """Seconds in a readable form."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def last_line(path):
    """The last line of a log, without control characters."""
    try:
        with open(path, "rb") as f:
            f.seek(0, 2)
            f.seek(max(0, f.tell() - 4096))
            lines = f.read().decode(errors="replace").replace("\r", "\n").split("\n")
    except OSError:
        return ""
    for line in reversed(lines):
        line = "".join(c for c in line if c.isprintable()).strip()
        if line:
            return line[:70]
    return ""


class Console:
    """Prints lines and at most one status line below them."""

    def __init__(self, stream=sys.stdout):
        self.stream = stream
        self.tty = stream.isatty()
        self.lock = threading.Lock()
        self.restart()

    def restart(self):
        """Count elapsed time from now on."""
        self.begin = time.monotonic()

    def say(self, text=""):
        """Print a line that stays."""
        self._print(f"{text}\n")

    def status(self, text):
        """Show where a step is; on a terminal the next call overwrites it."""
        if not self.tty:
            self.say(text)
            return
        self._print(text[:110])

    def _print(self, text):
        erase = "\r\x1b[K" if self.tty else ""
        try:
            with self.lock:
                print(f"{erase}{text}", end="", file=self.stream, flush=True)
        except OSError as error:
            # A line that cannot be written does not end the work: Python keeps it and tries again.
            if error.errno not in FULL:
                raise

    def elapsed(self):
        """Time since the command began."""
        return duration(time.monotonic() - self.begin)


class Step:
    """One step: its log, and its progress."""

    def __init__(self, name, log):
        self.name = name
        self.log = log
        self.begin = time.monotonic()
        self.end = None
        self.result = ""             # of a verdict, once it has ended
        self.boots = 0               # the number of boots that it runs
        self.outcomes = []           # of the boots that have ended
        self.progress = self._last_line

    def _last_line(self):
        return last_line(self.log)

    def count_objects(self):
        """Show how many lines of kbuild's output there were, and the last one."""
        def progress():
            with open(self.log, encoding="utf-8", errors="replace") as f:
                done = sum(1 for line in f if BUILD_LINE.match(line))
            return f"{done} objects, {last_line(self.log)}"
        self.progress = progress

    def run(self, command, hint, box=None, **where):
        """Run a command, in a sandbox if one is given; a failure ends the step."""
        command = [str(a) for a in command]
        with open(self.log, "ab") as log:
            log.write(f"+ {shlex.join(command)}\n".encode())
            log.flush()
            argv = box.argv(command, **where) if box else sandbox.contained(command)
            status = processes.run(argv, stdout=log, stderr=subprocess.STDOUT)
        if status:
            if found_no_space(self.log):
                raise DiskFull(self.name)
            raise LabError(f"{self.name}: exit status {status}", hint, self.log)

    @property
    def seconds(self):
        """How long it took, or has taken so far."""
        return (self.end or time.monotonic()) - self.begin

    def elapsed(self):
        """Time since the step began."""
        return duration(self.seconds)


class Steps:
    """Hands out steps and keeps their logs in one folder per command."""

    def __init__(self, console, logs):
        self.console = console
        self.logs = logs
        for old in [*logs.glob("*.log"), *logs.glob("*.html")]:
            old.unlink()
        self.number = 0
        self.begun = []              # all steps, in order
        self.record = None           # of the results, see judge/record.py

    @contextlib.contextmanager
    def step(self, name):
        """A step that does work; errors inside it get the path of its log."""
        self.number += 1
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        step = Step(name, self.logs / f"{self.number:02d}-{slug}.log")
        self.logs.mkdir(parents=True, exist_ok=True)
        step.log.touch()
        self.begun.append(step)
        stop = threading.Event()
        beat = threading.Thread(target=self._beat, args=(step, stop), daemon=True)
        if not self.console.tty:
            self.console.say(f"==> {name}")
        beat.start()
        try:
            yield step
            step.result = "pass"
        except LabError as error:
            step.result = "fail"
            error.log = error.log or step.log
            raise
        finally:
            stop.set()
            # A step that cannot write its line must not stop the lab.
            beat.join(JOIN)
            step.end = time.monotonic()
        self.console.say(f"[{self.console.elapsed():>12}] {name}: done in {step.elapsed()}")

    def current(self, name):
        """A step that had nothing to do."""
        self.console.say(f"[{self.console.elapsed():>12}] {name}: up to date")

    def _beat(self, step, stop):
        while not stop.wait(0.5 if self.console.tty else HEARTBEAT):
            # The step that does the work gets the same error, and has a hint about it.
            with contextlib.suppress(OSError):
                self.console.status(f"    {step.name}: {step.elapsed()}, {step.progress()}")


def report(console, error):
    """Print an error with the end of its log and what to do."""
    console.say()
    console.say(f"FAILED: {error}")
    if error.log and error.log.is_file():
        lines = error.log.read_text(errors="replace").splitlines()
        for line in lines[-TAIL:]:
            console.say(f"  | {line}")
        console.say(f"  log: {error.log}")
    if error.hint:
        console.say(f"  what to do: {error.hint}")
