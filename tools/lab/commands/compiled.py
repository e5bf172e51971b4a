# SPDX-License-Identifier: GPL-2.0
"""Configurations that are compiled only: no guest boots them. Any warning is an error.

Fences, reservations, importers and exporters of system memory are for all drivers; only code for
BARs needs PCI. A build for a 32-bit processor shows that no other code needs PCI, or assumes that
an address has 64 bits. Drivers whose memory does not move need no TTM. Some patches are for drivers
of GPUs that no machine of the tests has.
"""

from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

from build import cache, kernel, toolchain
from build.steps import LabError
from judge.igt import Verdict


@dataclass(frozen=True)
class Configuration:
    """A configuration, and what is compiled in it."""

    name: str
    file: str                 # its fragment, and that of its Kconfig if it has one
    architecture: str
    targets: tuple

    @property
    def fragment(self):
        """The options of the fragment."""
        return kernel.FRAGMENTS / f"{self.file}.config"

    @property
    def layers(self):
        """Entries after the kernel's own Kconfig, which select the options that drivers select."""
        path = kernel.FRAGMENTS / f"{self.file}.Kconfig"
        return path.read_bytes() if path.exists() else b""

    @property
    def make(self):
        """How make is called."""
        return [*kernel.MAKE, f"ARCH={self.architecture}",
                f"KBUILD_KCONFIG=/build/out/{self.file}.Kconfig"]


# "prepare" makes what modules in Rust need: the crate, its helpers and bindings.
ALL = (Configuration("kernel crate without PCI and 64 bits", "portable", "arm", ("prepare",)),
       Configuration("avram without TTM", "without-ttm", "x86_64",
                     ("prepare", "drivers/gpu/drm/avram/")),
       Configuration("device-private memory of xe and nouveau", "gpus", "x86_64",
                     ("prepare", "drivers/gpu/drm/xe/xe_svm.o",
                      "drivers/gpu/drm/nouveau/nouveau_dmem.o")))


def run(steps, built):
    """Compile them, unless that was done; return the verdicts.

    They are compiled in parallel: most of the work is crates, and each crate has one compiler.
    """
    with futures.ThreadPoolExecutor(len(ALL)) as pool:
        return list(pool.map(lambda it: compiled(steps, built, it), ALL))


def compiled(steps, built, it):
    """Compile one; return the verdict."""
    out = cache.base() / f"{it.file}-{cache.digest(built.source.key, toolchain.KEY)}"
    out.mkdir(exist_ok=True)
    key = cache.digest(built.source.state, it.fragment, it.layers, toolchain.KEY, it.make,
                       it.targets, kernel.IDENTITY)
    stamp = cache.Stamp(out / f"{it.file}.built")
    if stamp.holds(key):
        steps.current(it.name)
        return Verdict(it.name, "pass")
    stamp.clear()
    kernel.remove_half_made(out)
    box = built.box.with_binds({"/build/out": out}, readonly={"/build/src": built.source.tree})
    try:
        with steps.step(it.name) as step:
            _configured(step, built.source, it, out, box)
            step.count_objects()
            # One after the other: each target needs the results of the one before.
            for target in it.targets:
                step.run([*it.make, f"-j{kernel.jobs()}", target],
                         "the log names what needs an option: see the cfgs of its module", box,
                         cwd="/build/src", env=kernel.IDENTITY)
    except LabError as error:
        return Verdict(it.name, "fail", f"{error}, log: {error.log}")
    stamp.set(key)
    return Verdict(it.name, "pass")


def _configured(step, src, it, out: Path, box):
    """Make the configuration, unless it is up to date."""
    key = cache.digest(it.fragment, it.layers, src.kconfig, it.make)
    stamp = cache.Stamp(out / f"{it.file}.configured")
    if stamp.holds(key):
        return
    stamp.clear()
    fragment = it.fragment.read_text()
    (out / f"{it.file}.config").write_text(fragment)
    (out / f"{it.file}.Kconfig").write_bytes((src.tree / "Kconfig").read_bytes()
                                             + b"\n" + it.layers)
    result = out / f"{it.file}.result"
    step.run([*it.make, f"KCONFIG_ALLCONFIG=/build/out/{it.file}.config",
              f"KCONFIG_CONFIG=/build/out/{result.name}", "allnoconfig"],
             "a Kconfig file does not parse", box, cwd="/build/src", env=kernel.IDENTITY)
    lost = kernel.unmet(fragment, result.read_text())
    if lost:
        raise LabError("options that did not end up as asked for: " + ", ".join(lost),
                       f"a dependency is missing or the option is gone: correct {it.fragment.name}")
    cache.write_if_changed(out / ".config", result.read_bytes())
    stamp.set(key)
