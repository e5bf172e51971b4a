# SPDX-License-Identifier: GPL-2.0
"""Configures and builds the kernel and its modules."""

import os
import re
import shutil
from pathlib import Path

from build import cache, toolchain
from build.steps import LabError

FRAGMENTS = Path(__file__).parent / "kconfig"
DEFAULT = "check"
FLAVOURS = {DEFAULT: ["base.config", "checks.config", "lockdep.config"],
            "kasan": ["base.config", "checks.config", "kasan.config"],
            "kmemleak": ["base.config", "checks.config", "kmemleak.config"],
            "rt": ["base.config", "checks.config", "lockdep.config", "rt.config"],
            # Measurements are made without the checks.
            "plain": ["base.config"],
            "arm64": ["base.config", "checks.config", "lockdep.config", "arm64.config"],
            "arm64-64k": ["base.config", "checks.config", "lockdep.config", "arm64.config",
                          "arm64-64k.config"]}
# Those of arm64, with pages of 4 and of 64 KiB: only `make soak` boots them.
ARM64 = ("arm64", "arm64-64k")
# The flavours that find bugs which the default does not find, and that take longer.
SANITIZERS = ("kasan", "kmemleak")
# The flavour on which spinlocks sleep, and a context in which nothing may sleep is a complaint.
REALTIME = "rt"
# Parameters on the command line of a flavour. While the kernel boots, the features of the first
# processor are unknown for a moment, five-level page tables among them: KASAN then reports the
# accesses of an interrupt as accesses to no memory.
CMDLINE = {"kasan": "no5lvl"}
# Modules that are built, but that no guest needs.
COMPILED_ONLY = ("nova-core", "nova-drm", "mlx5_core", "mlx5_ib")
# Fixed names, so that the kernel is relinked only after a change and contains no host name.
IDENTITY = {"KBUILD_BUILD_TIMESTAMP": "2026-01-01 00:00:00Z",
            "KBUILD_BUILD_USER": "lab", "KBUILD_BUILD_HOST": "vvram"}
# clippy-driver compiles everything that rustc would: one build serves the boots and the lint
# gate, and with CONFIG_WERROR no warning of either passes.
MAKE = ["make", "LLVM=1", "CLIPPY=1", "O=/build/out"]
# The objects that kcov instruments: the Rust abstractions, and our drivers. These settings are on
# the command line, because they are for the fuzzer alone and not part of the series.
TRACED = [f"KCOV_INSTRUMENT_{name}.o=y"
          for name in ("kernel", "vvram", "mgpu", "avram", "edu_peer", "bar_export")]


def flavour():
    """The flavour asked for with FLAVOUR=."""
    name = os.environ.get("FLAVOUR") or DEFAULT
    if name not in FLAVOURS:
        raise LabError(f"there is no FLAVOUR={name}", f"choose one of: {', '.join(FLAVOURS)}")
    return name


def need_checks():
    """Refuse a kernel without options that the tests need, such as fault injection."""
    if not has("CONFIG_FAULT_INJECTION=y"):
        raise LabError(f"FLAVOUR={flavour()} lacks options that tests need",
                       f"choose one of: {', '.join((DEFAULT, *SANITIZERS))}")


def has(option, name=None):
    """Whether a flavour, the one asked for if none is given, asks for an option."""
    lines = [line for fragment in FLAVOURS[name or flavour()]
             for line in (FRAGMENTS / fragment).read_text().splitlines()]
    return option in lines


def jobs():
    """The number of parallel compilers asked for with JOBS=, else one per processor."""
    return os.environ.get("JOBS") or str(os.cpu_count())


class Kernel:
    """A build folder: out (objects), share (what the guest sees), ext (external modules)."""

    def __init__(self, source, box, config=None):
        self.source = source
        self.flavour = config or flavour()
        self.folder = cache.base() / (
            f"build-{cache.digest(source.key, toolchain.KEY)}-{self.flavour}")
        self.out = self.folder / "out"
        self.share = self.folder / "share"
        for folder in (self.out, self.share):
            folder.mkdir(parents=True, exist_ok=True)
        self.box = box.with_binds({"/build/out": self.out, "/build/share": self.share},
                                  readonly={"/build/src": source.tree})

    @property
    def cmdline(self):
        """The parameters that this kernel needs on its command line."""
        return CMDLINE.get(self.flavour, "")

    @property
    def command(self):
        """The kernel's make, as this kernel needs it."""
        return [*MAKE, *(["ARCH=arm64"] if self.flavour in ARM64 else []),
                *(TRACED if has("CONFIG_KCOV=y", self.flavour) else ())]

    def make(self, step, targets, hint, box=None):
        """Run the kernel's make."""
        step.count_objects()
        remove_half_made(self.folder)
        step.run([*self.command, f"-j{jobs()}", *targets], hint, box or self.box,
                 cwd="/build/src", env=IDENTITY)

    def ensure(self, steps):
        """Configure, build and install the kernel and its modules if the inputs have changed."""
        config = self._configure(steps)
        self.key = cache.digest(self.source.state, config, toolchain.KEY, self.command, IDENTITY,
                                COMPILED_ONLY)
        stamp = cache.Stamp(self.folder / "built")
        if stamp.holds(self.key):
            steps.current("kernel")
            return
        stamp.clear()
        with steps.step(f"kernel ({self.flavour})") as step:
            self.make(step, ["Image" if self.flavour in ARM64 else "bzImage", "modules"],
                      "the log names the file: fix it, or see tools/lab/build/kconfig")
            shutil.rmtree(self.share / "lib", ignore_errors=True)
            self.make(step, ["INSTALL_MOD_PATH=/build/share", "modules_install"],
                      "see that the disk is not full")
            self._leave_out(step)
        stamp.set(self.key)

    def _leave_out(self, step):
        """Remove the modules that are only compiled from the folder that the guest sees."""
        [modules] = (self.share / "lib/modules").iterdir()
        for name in COMPILED_ONLY if self.flavour not in ARM64 else ():
            [module] = modules.rglob(f"{name}.ko")
            module.unlink()
        step.run(["depmod", "--basedir", "/build/share", modules.name],
                 "the log names the module", self.box)

    def _configure(self, steps):
        fragment = "".join((FRAGMENTS / name).read_text() for name in FLAVOURS[self.flavour])
        key = cache.digest(fragment, self.source.kconfig, toolchain.KEY)
        stamp = cache.Stamp(self.folder / "configured")
        config = self.out / ".config"
        if not (stamp.holds(key) and config.is_file()):
            stamp.clear()
            with steps.step("kernel configuration") as step:
                (self.out / "lab.config").write_text(fragment)
                step.run([*self.command, "KCONFIG_ALLCONFIG=/build/out/lab.config",
                          "KCONFIG_CONFIG=/build/out/lab.result", "allnoconfig"],
                         "see the log: a Kconfig file does not parse", self.box,
                         cwd="/build/src", env=IDENTITY)
                result = (self.out / "lab.result").read_text()
                lost = unmet(fragment, result)
                if lost:
                    raise LabError("options that did not end up as asked for: " + ", ".join(lost),
                                   "a dependency is missing or the option is gone: see its "
                                   "Kconfig entry, then correct tools/lab/build/kconfig")
                cache.write_if_changed(config, result.encode())
            stamp.set(key)
        return cache.digest(config)

    def external(self, step, folder, name, hint):
        """Build a folder of modules against the kernel; return where the modules are."""
        out = self.folder / name
        out.mkdir(exist_ok=True)
        box = self.box.with_binds({f"/build/{name}": out}, readonly={"/build/ext-src": folder})
        self.make(step, ["M=/build/ext-src", f"MO=/build/{name}", "modules"], hint, box)
        return sorted(out.rglob("*.ko"))


def remove_half_made(folder):
    """Remove the targets that a killed make may have left incomplete, as make only compares times.

    kbuild records the command of a target once the target is made. If a target is newer than its
    record, it was being made again with the same command. If the record is truncated, neither was
    complete.
    """
    for record in folder.rglob(".*.cmd"):
        target = record.with_name(record.name[1:].removesuffix(".cmd"))
        cut = not record.read_bytes().endswith(b"\n")
        if target.is_file() and (cut or target.stat().st_mtime_ns > record.stat().st_mtime_ns):
            target.unlink()
        if cut:
            record.unlink()


def unmet(fragment, config):
    """The options of a fragment that a finished configuration does not have as asked for."""
    have = set(config.splitlines())
    names = {line.split("=")[0] for line in have if line.startswith("CONFIG_")}
    wanted = {}
    for line in fragment.splitlines():
        match = re.match(r"(?:# )?(CONFIG_\w+)(=| is not set)", line)
        if match:
            wanted[match.group(1)] = line    # as in Kconfig, the last line counts
    return [line for name, line in wanted.items()
            if (line not in have if line.startswith("CONFIG_") else name in names)]
