# SPDX-License-Identifier: GPL-2.0
"""Boots guests: the machine of a topology, one job, and what came of it."""

import concurrent.futures
import os
import queue
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import guestroot
from kernel import jobs
from steps import duration, last_line
from topologies import Topology

VRAM_SIZE = "16M"
# The one environment that is the same on every machine: guest time is instructions, so edu's
# 100 ms per transfer cost nothing, and two boots of the same thing do the same thing.
DETERMINISTIC = ("-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off",
                 "-rtc", "base=2026-01-01,clock=vm", "-seed", "1")
# QEMU's monitor, for a program in the guest that plugs devices: QEMU is its own client.
MONITOR = ("-chardev", "socket,id=monitor,path=/tmp/qmp,server=on,wait=off",
           "-object", "monitor-qmp,id=qmp,chardev=monitor",
           "-chardev", "socket,id=guest,path=/tmp/qmp", "-device", "virtio-serial-pci",
           "-device", "virtserialport,chardev=guest,name=qmp")
REAL_TIME = ("-accel", "tcg,thread=multi")
KVM = ("-accel", "kvm")


@dataclass
class Boot:
    """One boot: where, what for, and with which settings for the job."""

    name: str
    topology: Topology
    job: str
    timeout: int                        # seconds of real time
    settings: dict = field(default_factory=dict)
    cmdline: str = ""
    vram: str = VRAM_SIZE


@dataclass
class Outcome:
    """What a boot left behind."""

    boot: Boot
    results: Path
    seconds: float
    error: str = ""                     # why the job's results cannot be trusted

    @property
    def log(self):
        """The kernel log."""
        return (self.results / "kernel.log").read_text(errors="replace")

    @property
    def qemu_log(self):
        """What QEMU said, line by line: nothing, unless a device or an IOMMU was misused."""
        text = (self.results / "qemu.log").read_text(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]


class Machine:
    """Turns boots into QEMU command lines in the toolchain root."""

    def __init__(self, kernel, image):
        self.kernel = kernel
        self.box = kernel.box.with_binds(readonly={"/build/guest.erofs": image})

    def results(self, boot):
        """The folder of a boot, emptied."""
        folder = self.kernel.share / "results" / boot.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def argv(self, boot, serial, accelerator):
        """QEMU's command line."""
        settings = {"LAB_JOB": boot.job, "LAB_BOOT": boot.name, **boot.settings}
        cmdline = " ".join(
            ["console=ttyS0 root=/dev/vda rootfstype=erofs ro nokaslr panic=-1",
             f"init={guestroot.INIT}", boot.topology.cmdline, boot.cmdline]
            + [f"{k}={v}" for k, v in settings.items()])
        return ["qemu-system-x86_64", "-machine", "q35", *accelerator, "-smp", "1", "-m", "1G",
                "-nodefaults", "-display", "none", "-no-reboot", *serial,
                "-kernel", "/build/out/arch/x86/boot/bzImage", "-append", cmdline,
                "-drive", "file=/build/guest.erofs,format=raw,readonly=on,if=none,id=root",
                "-device", "virtio-blk-pci,drive=root",
                "-virtfs", "local,path=/build/share,mount_tag=lab,security_model=none",
                *MONITOR,
                "-object", f"memory-backend-ram,id=vram,size={boot.vram},share=on,reserve=off",
                *boot.topology.machine]

    def run(self, boot, cpu):
        """Boot on one processor, wait for the end, and see that the job came to one.

        Skipping idle guest time is a dialogue of two of QEMU's threads; on two
        processors they spend up to twice the time waking each other.
        """
        results = self.results(boot)
        serial = ("-serial", f"file:/build/share/results/{boot.name}/kernel.log")
        begin = time.monotonic()
        error = ""
        with open(results / "qemu.log", "wb") as log:
            try:
                subprocess.run(
                    ["taskset", "--cpu-list", str(cpu), *self.box.argv(
                        self.argv(boot, serial, KVM if kvm() else DETERMINISTIC))],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                    timeout=boot.timeout, check=False)
            except subprocess.TimeoutExpired:
                error = f"did not end within {boot.timeout} s"
        (results / "kernel.log").touch()
        return Outcome(boot, results, time.monotonic() - begin, error or self._error(results))

    @staticmethod
    def _error(results):
        status = results / "status"
        if not status.is_file():
            said = last_line(results / "qemu.log") or last_line(results / "kernel.log")
            return f"the guest ended before its job did, last words: {said}"
        if status.read_text().strip() != "0":
            said = last_line(results / "output.log")
            return f"the job's exit status was {status.read_text().strip()}: {said}"
        return ""

    def run_all(self, step, console, boots):
        """Run boots, one on each processor; return their outcomes in the order given."""
        running = {}
        processors = sorted(os.sched_getaffinity(0))[:int(jobs())]
        free = queue.SimpleQueue()
        for cpu in processors:
            free.put(cpu)

        def one(boot):
            cpu = free.get()
            running[boot.name] = time.monotonic()
            outcome = self.run(boot, cpu)
            del running[boot.name]
            free.put(cpu)
            verdict = outcome.error or "ended"
            console.say(f"    {boot.name}: {verdict} after {duration(outcome.seconds)}")
            return outcome

        def progress():
            now = time.monotonic()
            return "running " + ", ".join(f"{name} ({now - since:.0f} s)"
                                          for name, since in sorted(running.items()))

        step.progress = progress
        with concurrent.futures.ThreadPoolExecutor(len(processors)) as pool:
            return list(pool.map(one, boots))

    def interactive(self, boot):
        """Boot with the serial console on this terminal."""
        self.results(boot)
        os.execvp("unshare", self.box.argv(
            self.argv(boot, ("-serial", "mon:stdio"), KVM if kvm() else REAL_TIME)))


def kvm():
    """Whether KVM=1 was asked for."""
    return os.environ.get("KVM") == "1"
