# SPDX-License-Identifier: GPL-2.0
"""Sees that a guest goes on, and asks one that does not where it is.

What a job does shows in the folder of its boot: the console, the output of tests. A guest that
leaves no mark there for long is ended. Before that it gets an NMI, upon which its kernel prints what
each processor and each blocked task is doing, and panics.
"""

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

# What a guest needs on its command line.
CMDLINE = "unknown_nmi_panic panic_sys_info=all_bt,locks,blocked_tasks"
# Names in the folder of a boot.
MONITOR = "monitor"
REGISTERS = "registers.txt"
# Seconds between two looks, and those that a guest has to print where it is.
INTERVAL = 10
LAST_WORDS = 60
ANSWER = 10


def arguments(folder):
    """QEMU's monitor in the folder of a boot, under the path that QEMU knows it by."""
    return ("-qmp", f"unix:{folder}/{MONITOR},server=on,wait=off")


def mark(folder):
    """When something was last written below a folder, as time.time() has it."""
    latest = 0.0
    for place, _, names in os.walk(folder):
        for name in names:
            # The guest removes some meanwhile.
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
        """Wait for QEMU's end and return its exit status, or raise Ended for commands.run()."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(INTERVAL)
            if complaint := self.complaint():
                self.last_words()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LAST_WORDS)
                raise Ended(complaint)

    def complaint(self):
        """Why the guest is to be ended, if it is."""
        if time.monotonic() >= self.end:
            return f"did not end within {self.limit} s"
        if time.time() - max(self.begin, mark(self.folder)) >= self.silence:
            return f"left no mark for {self.silence} s"
        return ""

    def last_words(self):
        """Let the kernel say where it is. What does not answer is not waited for."""
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
            # The path of a socket may have 108 bytes, that of a folder may have more.
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
        """Execute a command and return what it returns; events that come meanwhile are none."""
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
