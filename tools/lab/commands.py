# SPDX-License-Identifier: GPL-2.0
"""Starts commands, and sees that none of them outlives the lab.

The sandbox ends a command whose lab has died (see sandbox.unshare). Each command also shares the
lock of the caches: should one go on all the same, the next run waits until it is gone.
"""

import contextlib
import os
import signal
import subprocess
import threading

import cache

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Seconds that an interrupted lab has to say so: a terminal that takes no output must not keep it.
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

    The command is waited for by a function of the caller's; if that raises, the command is killed.
    """
    with started(argv, stdin=subprocess.DEVNULL, **streams) as process:
        return wait(process)


@contextlib.contextmanager
def started(argv, **streams):
    """A command that runs, and is waited for at the end; if something is raised, it is killed."""
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
    """Run a command in the place of the lab, with the lock of the caches."""
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
