# SPDX-License-Identifier: GPL-2.0
"""Builds and runs the modelled devices: programs of their own, to which QEMU connects."""

import contextlib
import json
import os
import re
import shutil
import subprocess

from build import processes, programs
from build.steps import LabError

CRATE = "tools/models"
PROGRAM = "models"
# The name of the device that has the interface of QEMU's edu; the others are GPUs.
PEER = "peer"
# The folders of the program and of the sockets of a boot, under the paths inside the sandbox.
PROGRAMS = "/build/models"
SOCKETS = "/build/sockets"
# File names in the folder of a boot.
FOLDER = "sockets"
LOG = "model.log"
REMOVED = "removed"
# The message of the program once it listens. Later it reports which device is removed by surprise.
READY = b"ready\n"
# The begin of its messages before that: the seeds of devices that do not keep to the usual order.
CHAOS = b"chaos "
# The message of QEMU about a device that is gone.
OF_REMOVED = re.compile(r"qemu\S*: (failed to read header: EOF"
                        r"|Unable to write to socket: Broken pipe|vfio.*)")
# The end of a QEMU that sets an error twice, which happens at times when a device is gone.
ABORT = (re.compile(r"qemu\S*: util/error\.c:\d+: error_setv: Assertion `\*errp == NULL' failed\."),
         re.compile("Aborted( \\(core dumped\\))?"))
# Seconds that it has for its last output when QEMU is gone.
END = 30
# The sizes of each GPU, unless a boot has others.
SIZES = "vram=256M,aperture=64M"


def has_aborted(outcome):
    """Whether QEMU has failed an assertion of its own after a device was removed, and no more."""
    lines = outcome.qemu_log
    return ((outcome.results / REMOVED).exists() and bool(lines)
            and ABORT[0].fullmatch(lines[0]) is not None
            and all(ABORT[1].fullmatch(line) for line in lines[1:]))


def ensure(steps, box, repo, kernel):
    """Build the program, for the boots of a kernel."""
    with steps.step("modelled devices") as step:
        built = programs.cargo(step, box, repo, "build", "the log names the file: fix it",
                               "--bins", crate=CRATE)
        folder = kernel.folder / "models"
        folder.mkdir(exist_ok=True)
        shutil.copy2(built / PROGRAM, folder)


def device(name, bus, **more):
    """QEMU's arguments for a modelled device below a port."""
    return ("-device", json.dumps({"driver": "vfio-user-pci", "id": name, "bus": bus, **more,
                                   "socket": {"type": "unix", "path": f"{SOCKETS}/{name}.sock"}}))


def arguments(topology, sizes, seed):
    """The command line of the program for the devices of a machine. Each has a seed of its own, or
    none if that is 0: then they do all at once and in order."""
    strict = ",strict" if topology.is_told else ""
    argv = [f"{PROGRAMS}/{PROGRAM}"]
    for number, name in enumerate(topology.models):
        own = f"socket={SOCKETS}/{name}.sock,name={name}{strict}"
        chaos = f",chaos={seed + number}" if seed else ""
        argv += ("--edu", own) if name == PEER else ("--gpu", f"{own},{sizes}{chaos}")
    return argv


class Models:
    """The modelled devices of one boot, if it has any."""

    def __init__(self, kernel, boot, seed):
        self.topology = boot.machine
        self.folder = kernel.share / "results" / boot.name
        self.sockets = self.folder / FOLDER
        self.argv = arguments(self.topology, boot.sizes, 0 if boot.exact else seed)
        self.box = kernel.box.with_binds({SOCKETS: self.sockets},
                                         readonly={PROGRAMS: kernel.folder / "models"}) \
            if self.topology.models else None

    def inside(self, box):
        """The sandbox of the machine, which sees the sockets."""
        if not self.topology.models:
            return box
        # Its mount point in the root becomes a folder only if it is there.
        self.sockets.mkdir(exist_ok=True)
        return box.with_binds({SOCKETS: self.sockets})

    @contextlib.contextmanager
    def running(self):
        """Let the program run while QEMU does. It ends when its standard input does."""
        if not self.topology.models:
            yield
            return
        with open(self.folder / LOG, "ab") as log, self._start(log) as process:
            yield
            process.stdin.close()
            try:
                status = process.wait(END)
            except subprocess.TimeoutExpired:
                process.kill()
                status = f"none within {END} s"
            if removed := process.stdout.read():
                (self.folder / REMOVED).write_bytes(removed)
            if status:
                log.write(f"the exit status of the modelled devices was {status}\n".encode())

    @contextlib.contextmanager
    def _start(self, log):
        """Start the program and wait until it listens."""
        with processes.started(self.box.argv(self.argv), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=log) as process:
            line = process.stdout.readline()
            while line.startswith(CHAOS):
                line = process.stdout.readline()
            if line != READY:
                raise LabError("the modelled devices do not start", f"see {self.folder / LOG}")
            yield process

    def leave(self, stack):
        """Let the program run until the command ends that replaces this process."""
        if self.topology.models:
            log = stack.enter_context(open(self.folder / LOG, "ab"))
            process = stack.enter_context(self._start(log))
            os.set_inheritable(process.stdin.fileno(), True)
