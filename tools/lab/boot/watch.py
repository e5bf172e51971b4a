# SPDX-License-Identifier: GPL-2.0
"""Checks that a guest makes progress, and makes a guest that does not print its state.

A job writes into the folder of its boot: the console, the output of tests. A guest that writes
nothing there for long is ended. Before that it gets an NMI, which makes its kernel print the stacks
of each processor and of each blocked task, and panic.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

# The parameters that a guest needs on its command line.
CMDLINE = "unknown_nmi_panic panic_sys_info=all_bt,locks,blocked_tasks"
# File names in the folder of a boot.
MONITOR = "monitor"
REGISTERS = "registers.txt"
# Seconds between two checks, and those that a guest has to print its state.
INTERVAL = 10
LAST_WORDS = 60
ANSWER = 10
# What is said of a guest that was ended.
ENDED = re.compile(r"did not end within \d+ s|left no mark for \d+ s")


def arguments(folder):
    """QEMU's monitor in the folder of a boot, under the path that QEMU knows it by."""
    return ("-qmp", f"unix:{folder}/{MONITOR},server=on,wait=off")


def mark(folder):
    """The time of the last write below a folder, as time.time() has it."""
    latest = 0.0
    for place, _, names in os.walk(folder):
        for name in names:
            # The guest may remove files meanwhile.
            with contextlib.suppress(OSError):
                latest = max(latest, os.stat(Path(place) / name).st_mtime)
    return latest


class Ended(Exception):
    """A guest was ended, and why."""


class Watch:
    """Watches the folder of one boot."""

    def __init__(self, folder, limit, silence):
        self.folder = Path(folder)
        self.end = time.monotonic() + limit
        self.begin = time.time()
        self.limit = limit
        self.silence = limit if silence is None else silence

    def wait(self, process):
        """Wait for QEMU's end and return its exit status, or raise Ended for processes.run()."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(INTERVAL)
            if complaint := self.complaint():
                self.last_words()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LAST_WORDS)
                raise Ended(complaint)

    def complaint(self):
        """The reason to end the guest, or nothing."""
        if time.monotonic() >= self.end:
            return f"did not end within {self.limit} s"
        if time.time() - max(self.begin, mark(self.folder)) >= self.silence:
            return f"left no mark for {self.silence} s"
        return ""

    def last_words(self):
        """Let the kernel print its state. This does not wait for a QEMU that does not answer."""
        with contextlib.suppress(OSError, ValueError), Monitor(self.folder / MONITOR) as monitor:
            said = monitor.execute("human-monitor-command", command_line="info registers -a")
            (self.folder / REGISTERS).write_text(said)
            monitor.execute("inject-nmi")


class Monitor:
    """A connection to QEMU's monitor."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX)
        self.lines = self.socket.makefile(encoding="utf-8")

    def __enter__(self):
        try:
            self.socket.settimeout(ANSWER)
            # The path of a socket is limited to 108 bytes, but the path of the folder may be longer.
            folder = os.open(self.path.parent, os.O_PATH)
            try:
                self.socket.connect(f"/proc/self/fd/{folder}/{self.path.name}")
            finally:
                os.close(folder)
            self.lines.readline()
            self.execute("qmp_capabilities")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.socket.close()

    def execute(self, command, **settings):
        """Execute a command and return its result; events that come meanwhile are ignored."""
        request = {"execute": command, "arguments": {name.replace("_", "-"): value
                                                     for name, value in settings.items()}}
        self.socket.sendall(json.dumps(request).encode())
        for line in self.lines:
            answer = json.loads(line)
            if "error" in answer:
                raise ValueError(f"{command}: {answer['error']}")
            if "return" in answer:
                return answer["return"]
        raise OSError(f"{command}: the monitor is gone")
