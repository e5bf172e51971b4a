# SPDX-License-Identifier: GPL-2.0
"""Starts commands, and makes sure that none of them outlives the lab.

The sandbox ends a command whose lab has died (see sandbox.unshare). Each command also shares the
lock of the caches: if one goes on nevertheless, the next run waits until it is gone.
"""

import contextlib
import os
import signal
import subprocess
import threading

from build import cache

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds that an interrupted lab has to print a message: a terminal may accept no output.
LAST_WORDS = 10

_running = set()
_ending = threading.Event()


class Interrupted(KeyboardInterrupt):
    """A signal asks the lab to end."""

    def __init__(self, number):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.status = 128 + number


def run(argv, wait=subprocess.Popen.wait, **streams):
    """Run a command and return its exit status.

    A function of the caller waits for the command; if it raises, the command is killed.
    """
    with started(argv, stdin=subprocess.DEVNULL, **streams) as process:
        return wait(process)


@contextlib.contextmanager
def started(argv, **streams):
    """A running command. The end of the context waits for it, or kills it after an exception."""
    with subprocess.Popen([str(a) for a in argv], pass_fds=cache.held(), **streams) as process:
        _running.add(process)
        try:
            if _ending.is_set():
                process.kill()
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            _running.discard(process)


def become(argv):
    """Replace the process of the lab by a command, which keeps the lock of the caches."""
    for descriptor in cache.held():
        os.set_inheritable(descriptor, True)
    os.execvp(argv[0], argv)


def ending():
    """Whether a signal has asked the lab to end."""
    return _ending.is_set()


def end_on_signals():
    """Let signals end the commands of all threads, and raise Interrupted in the main one.

    A signal that is ignored, as SIGHUP under nohup, stays so.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number, _):
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    signal.alarm(LAST_WORDS)
    _ending.set()
    for process in list(_running):
        process.kill()
    raise Interrupted(number)
