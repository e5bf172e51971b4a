# SPDX-License-Identifier: GPL-2.0
"""Boots guests: the machine of a topology, one job, and what came of it."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import os
import random
import shutil
import subprocess
import threading
import time
from pathlib import Path

from boot import guestroot, models, topologies, watch
from build import cache, host, processes
from build.steps import LabError, duration, last_line

VRAM_SIZE = "16M"
# The environment that is the same on every machine: guest time is counted in instructions, so the
# 100 ms of edu for each transfer cost nothing, and two boots of the same job are identical.
DETERMINISTIC = ("-smp", "1", "-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off",
                 "-rtc", "base=2026-01-01,clock=vm", "-seed", "1")
# The environment of the tests: processors that really run at the same time, and random numbers that
# depend on the seed of the run alone.
PROCESSORS = 4
# Features of a processor that are slow if it is emulated: with the first four, guests copy and clear
# memory by instructions that QEMU repeats for each byte, and all that tests do takes a fifth longer;
# with the last one, a page table has one more level.
WITHOUT = tuple(word for feature in ("erms", "fsrm", "fsrs", "fzrm", "la57")
                for word in ("-global", f"max-x86_64-cpu.{feature}=off"))
# The frequency of the timer tick of the guests, as in kconfig.
HZ = 250
COLLECT_TIMEOUT = 120
# Seconds by which the limit inside the sandbox is longer.
GRACE = 2 * watch.LAST_WORDS
# The maximum number of guests that run at the same time, for each processor of the host.
GUESTS = 4
ROUNDING = 1e-6
# The size of a command line, with its NUL: COMMAND_LINE_SIZE of x86.
CMDLINE = 2048
# The parameters that make a guest print the level of each line of its log. The messages of a system
# that hangs on its way to sleep or back have to be seen as well.
LEVELS = "console_msg_format=syslog no_console_suspend"
# The kernel, in its build folder.
IMAGE = "arch/x86/boot/bzImage"
# QEMU's monitor, for a program in the guest that plugs devices: QEMU is its own client.
MONITOR = ("-chardev", "socket,id=monitor,path=/tmp/qmp,server=on,wait=off",
           "-object", "monitor-qmp,id=qmp,chardev=monitor",
           "-chardev", "socket,id=guest,path=/tmp/qmp", "-device", "virtio-serial-pci",
           "-device", "virtserialport,chardev=guest,name=qmp")


# Shared memory, because devices outside of QEMU map the memory of the guest. Exact boots have no
# such devices, unless they measure them.
BACKEND = {False: "memory-backend-ram", True: "memory-backend-memfd"}
MEMORY = "1G"

# The folder of results. Its server forgets open files when it is reset, so it must be a device that
# is not reset when the guest sleeps: one on PCI Express. It comes last, so that the addresses of
# the other devices stay the same.
SHARE = ("-fsdev", "local,id=lab,path=/build/share,security_model=none",
         "-device", "pcie-root-port,id=lab-port,chassis=250",
         "-device", "virtio-9p-pci,fsdev=lab,mount_tag=lab,bus=lab-port,x-pcie-pm-no-soft-reset=on")


@dataclasses.dataclass
class Boot:
    """One boot: where, what for, and with which settings for the job."""

    name: str
    topology: topologies.Topology
    job: str
    timeout: int                        # seconds of real time
    settings: dict = dataclasses.field(default_factory=dict)
    cmdline: str = ""
    vram: str = VRAM_SIZE
    exact: bool = False                 # the same in each run, at the price of one processor
    load: float = 1                     # about how many processors of the host it keeps busy
    silence: int | None = None          # seconds without a mark in its folder, after which it hangs
    arguments: tuple = ()               # for QEMU, beside those of the topology
    sizes: str = models.SIZES           # of each modelled GPU, as its program has them
    original: bool = False              # with QEMU's edu: nobody here wrote it
    processors: int = PROCESSORS        # of a boot that is not exact, which has one

    @property
    def machine(self):
        """The machine that QEMU emulates. One that is the same in each run has no other program."""
        if self.exact or self.original:
            return self.topology
        return topologies.modelled(self.topology)


@dataclasses.dataclass
class Outcome:
    """The results of a boot."""

    boot: Boot
    results: Path
    seconds: float
    error: str = ""                     # why the job's results cannot be trusted

    @property
    def log(self):
        """The kernel log."""
        return _text(self.results / "kernel.log")

    @property
    def qemu_log(self):
        """The lines of QEMU's output: none, unless the guest misused a device or an IOMMU."""
        lines = _lines(self.results / "qemu.log")
        if (self.results / models.REMOVED).exists():
            return [line for line in lines if not models.OF_REMOVED.fullmatch(line)]
        return lines

    @property
    def model_log(self):
        """The lines of the output of the modelled devices: none, unless the guest broke a rule."""
        return _lines(self.results / models.LOG)


def _text(path):
    """The text of a file, or an empty one if the file could not be made."""
    return path.read_text(errors="replace") if path.is_file() else ""


def _lines(path):
    """The lines of a file that are not blank."""
    return [line.strip() for line in _text(path).splitlines() if line.strip()]


class Machine:
    """Turns boots into QEMU command lines in the toolchain root."""

    program, kind, console, image = "qemu-system-x86_64", "q35", "ttyS0", IMAGE
    without = WITHOUT

    def __init__(self, kernel, image):
        self.kernel = kernel
        self.box = kernel.box.with_binds(readonly={"/build/guest.erofs": image})

    def results(self, boot):
        """The folder of a boot, emptied."""
        folder = self.kernel.share / "results" / boot.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def argv(self, boot, io):
        """QEMU's command line, with the arguments for its console and its monitor."""
        settings = {"LAB_JOB": boot.job, "LAB_BOOT": boot.name, **boot.settings}
        settings["VVRAM_SEED"] = 1 if boot.exact else seed()
        cmdline = " ".join(
            [f"console={self.console} root=/dev/vda rootfstype=erofs ro nokaslr panic=-1",
             f"init={guestroot.INIT}", LEVELS, watch.CMDLINE,
             "" if boot.exact else self.busy(),
             self.kernel.cmdline, boot.topology.cmdline, boot.cmdline]
            + [f"{k}={v}" for k, v in settings.items()])
        if len(cmdline) >= CMDLINE:
            # The kernel would truncate it, and run only some of the tests.
            raise LabError(f"{boot.name}: {len(cmdline)} characters are more than a kernel takes",
                           "name fewer tests, or use patterns")
        backend = BACKEND[bool(boot.machine.models)]
        return [self.program, *memory(boot, self.kind), *accelerator(boot, self.without),
                "-nodefaults", "-display", "none", "-no-reboot", *io,
                "-kernel", f"/build/out/{self.image}", "-append", cmdline,
                "-drive", "file=/build/guest.erofs,format=raw,readonly=on,if=none,id=root",
                "-device", "virtio-blk-pci,drive=root",
                *MONITOR,
                "-object", f"{backend},id=vram,size={boot.vram},share=on,reserve=off",
                *boot.machine.machine, *SHARE, *boot.arguments]

    @staticmethod
    def busy():
        """Kernel parameters for a guest whose host is busy."""
        return busy()

    def run(self, boot, cpu):
        """Boot, wait for the end, and check that the job ended.

        Two threads of QEMU hand over to each other to skip idle guest time. On two processors they
        spend up to twice the time waking each other, so an exact boot is bound to one processor.
        """
        pin = ["taskset", "--cpu-list", str(cpu)] if boot.exact else []
        results = self.results(boot)
        begin = time.monotonic()
        error = self._qemu(boot, pin) or self._error(results)
        if boot.job == "igt" and not (results / "results.json").exists():
            # The guest died before it could make the file from the output of igt_runner.
            self._qemu(dataclasses.replace(boot, job="collect", timeout=COLLECT_TIMEOUT))
        return Outcome(boot, results, time.monotonic() - begin, error)

    def _qemu(self, boot, pin=()):
        """Run QEMU to its end; return the error, if any."""
        prefix = "" if boot.job != "collect" else "collect-"
        folder = f"results/{boot.name}"
        io = ("-serial", f"file:/build/share/{folder}/{prefix}kernel.log",
              *watch.arguments(f"/build/share/{folder}"))
        # A guest that outlives the lab nevertheless has the limit as well.
        limit = ["timeout", "--signal=KILL", str(boot.timeout + GRACE)]
        devices = models.Models(self.kernel, boot, seed())
        argv = devices.inside(self.box).argv([*limit, *self.argv(boot, io)])
        guard = watch.Watch(self.kernel.share / folder, boot.timeout, boot.silence)
        with open(self.kernel.share / folder / f"{prefix}qemu.log", "wb") as log:
            try:
                with devices.running():
                    processes.run([*pin, *argv], guard.wait, stdout=log, stderr=subprocess.STDOUT)
            except (watch.Ended, LabError) as why:
                return str(why)
        return ""

    @staticmethod
    def _error(results):
        # A file without content found no space on the disk.
        status = _text(results / "status").strip()
        if not status:
            said = last_line(results / "qemu.log") or last_line(results / "kernel.log")
            return f"the guest ended before its job did, last words: {said}"
        if status != "0":
            said = last_line(results / "output.log")
            return f"the job's exit status was {status}: {said}"
        return ""

    def run_all(self, step, console, boots):
        """Run boots, as many at a time as the host has processors for, the longest first.

        Returns their outcomes in the order given.
        """
        running = {}
        times = cache.Times(self.kernel.folder / "boot-times.json")
        processors = itertools.cycle(sorted(os.sched_getaffinity(0)))

        def one(boot):
            running[boot.name] = time.monotonic()
            try:
                outcome = self.run(boot, next(processors))
            except OSError as error:
                # A full disk, most likely: the other boots go on until they end.
                outcome = Outcome(boot, self.kernel.share / "results" / boot.name,
                                  time.monotonic() - running[boot.name], f"not run: {error}")
            del running[boot.name]
            if not processes.ending():
                step.outcomes.append(outcome)
            verdict = outcome.error or "ended"
            console.say(f"    {boot.name}: {verdict} after {duration(outcome.seconds)}")
            return outcome

        def progress():
            now = time.monotonic()
            return "running " + ", ".join(f"{name} ({now - since:.0f} s)"
                                          for name, since in sorted(running.items()))

        step.progress = progress
        step.boots = len(boots)
        order = sorted(boots, key=lambda boot: times.expected(boot.name), reverse=True)
        done = Room(order).run(one)
        times.record({name: outcome.seconds for name, outcome in done.items()
                      if not outcome.error})
        return [done[boot.name] for boot in boots]

    def interactive(self, boot):
        """Boot with the serial console on this terminal."""
        self.results(boot)
        devices = models.Models(self.kernel, boot, seed())
        with contextlib.ExitStack() as stack:
            devices.leave(stack)
            processes.become(devices.inside(self.box).argv(
                self.argv(boot, ("-serial", "mon:stdio"))))


def memory(boot, kind):
    """The machine and its memory."""
    if not boot.machine.models:
        return ("-machine", kind, "-m", MEMORY)
    return ("-machine", f"{kind},memory-backend=ram", "-m", MEMORY,
            "-object", f"{BACKEND[True]},id=ram,size={MEMORY},share=on")


def accelerator(boot, without):
    """How the processors of a boot are emulated, and how many there are."""
    processors = ("-smp", str(boot.processors))
    if kvm():
        return (*processors, "-accel", "kvm")
    if boot.exact:
        return DETERMINISTIC
    return (*processors, "-accel", "tcg,thread=multi", "-seed", str(seed()), *without)


@functools.cache
def busy():
    """Kernel parameters for a guest whose host is busy, so that timer ticks come late.

    The kernel must not conclude that there is no timer, and must not calibrate the time stamp
    counter, which is that of the host, by the ticks: its clock would be wrong by any factor. Nor
    must it compare the counters of two processors: 7.3 also does so while a processor stops the
    machine to switch away from the tick-based clock, which then stands still, and with it the time
    limit of the comparison. Delays are loops over the same counter, whose calibration takes long
    and finds nothing.
    """
    khz = None if kvm() else host.tsc_khz()
    return " ".join(["no_timer_check", "tsc=nowatchdog",
                     *([f"tsc_early_khz={khz}", f"lpj={khz * 1000 // HZ}"] if khz else [])])


def kvm():
    """Whether KVM=1 was asked for."""
    return os.environ.get("KVM") == "1"


def number(variable, default):
    """A number that is given in the environment."""
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise LabError(f"{variable}={text} is not a number", f"for example {variable}={default}")
    return int(text)


def guests():
    """The maximum number of guests at the same time: GUESTS=, else some for each processor."""
    return max(1, number("GUESTS", GUESTS * len(os.sched_getaffinity(0))))


class Room:
    """Room for boots on the processors of the host.

    A guest that waits a lot leaves its processor to other guests. The next boot is the first one in
    the queue for which there is room.
    """

    def __init__(self, boots):
        self.left = list(boots)
        self.free = float(len(os.sched_getaffinity(0)))
        self.running = 0
        self.changed = threading.Condition()

    def run(self, one):
        """Call one() for each boot, in threads; return {name of the boot: result}."""
        done = {}

        def work():
            while boot := self._next():
                try:
                    done[boot.name] = one(boot)
                finally:
                    with self.changed:
                        self.free += boot.load
                        self.running -= 1
                        self.changed.notify_all()

        with concurrent.futures.ThreadPoolExecutor(guests()) as pool:
            for thread in [pool.submit(work) for _ in range(guests())]:
                thread.result()
        return done

    def _next(self):
        """Wait until there is room for a boot that is left, and take it."""
        with self.changed:
            while self.left:
                for boot in self.left:
                    # A boot that needs more processors than the host has runs alone.
                    if boot.load <= self.free + ROUNDING or not self.running:
                        self.left.remove(boot)
                        self.free -= boot.load
                        self.running += 1
                        return boot
                self.changed.wait()
            return None


@functools.cache
def seed():
    """The seed of all random numbers of this run: SEED=, else a new one."""
    return number("SEED", random.SystemRandom().randrange(1, 1 << 31))
