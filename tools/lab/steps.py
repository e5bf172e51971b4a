# SPDX-License-Identifier: GPL-2.0
"""What the user sees while the lab works.

Each step has a name, a log file and an elapsed time. A step that takes long
shows where it is: on a terminal in a line that is redrawn, elsewhere in a
line every HEARTBEAT seconds.
"""

import contextlib
import re
import shlex
import subprocess
import sys
import threading
import time

HEARTBEAT = 20
TAIL = 15
BUILD_LINE = re.compile(r"^\s+(\[M\] )?[A-Z][A-Z0-9_]+(\s+\[M\])?\s+\S")


class LabError(Exception):
    """Something the user has to know, and what to do about it."""

    def __init__(self, message, hint=None, log=None):
        super().__init__(message)
        self.hint = hint
        self.log = log


def duration(seconds):
    """Seconds as a person would write them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def last_line(path):
    """The last line of a log, cleaned of what would upset a terminal."""
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
        with self.lock:
            erase = "\r\x1b[K" if self.tty else ""
            print(f"{erase}{text}", file=self.stream, flush=True)

    def status(self, text):
        """Show where a step is; on a terminal the next call overwrites it."""
        if not self.tty:
            self.say(text)
            return
        with self.lock:
            print(f"\r\x1b[K{text[:110]}", end="", file=self.stream, flush=True)

    def elapsed(self):
        """Time since the command began."""
        return duration(time.monotonic() - self.begin)


class Step:
    """One step: its log, and where it is."""

    def __init__(self, name, log):
        self.name = name
        self.log = log
        self.begin = time.monotonic()
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
            argv = box.argv(command, **where) if box else command
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            raise LabError(f"{self.name}: exit status {done.returncode}", hint, self.log)

    def elapsed(self):
        """Time since the step began."""
        return duration(time.monotonic() - self.begin)


class Steps:
    """Hands out steps and keeps their logs in one folder per command."""

    def __init__(self, console, logs):
        self.console = console
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.glob("*.log"):
            old.unlink()
        self.number = 0

    @contextlib.contextmanager
    def step(self, name):
        """A step that does work; errors inside it get the path of its log."""
        self.number += 1
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        step = Step(name, self.logs / f"{self.number:02d}-{slug}.log")
        step.log.touch()
        stop = threading.Event()
        beat = threading.Thread(target=self._beat, args=(step, stop), daemon=True)
        if not self.console.tty:
            self.console.say(f"==> {name}")
        beat.start()
        try:
            yield step
        except LabError as error:
            error.log = error.log or step.log
            raise
        finally:
            stop.set()
            beat.join()
        self.console.say(f"[{self.console.elapsed():>12}] {name}: done in {step.elapsed()}")

    def current(self, name):
        """A step that had nothing to do."""
        self.console.say(f"[{self.console.elapsed():>12}] {name}: up to date")

    def _beat(self, step, stop):
        while not stop.wait(0.5 if self.console.tty else HEARTBEAT):
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
