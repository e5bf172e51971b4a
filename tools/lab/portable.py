# SPDX-License-Identifier: GPL-2.0
"""The kernel crate where there is neither PCI nor 64 bits: compiled, and no more.

Fences, reservations, importers and exporters of system memory are for all drivers; only what is
about BARs needs PCI. A 32-bit processor shows that nothing else needs it, nor takes an address for
64 bits. Any warning is an error.
"""

import cache
import kernel
import toolchain
from igt import Verdict
from steps import LabError

NAME = "kernel crate without PCI and 64 bits"
ARCHITECTURE = "arm"
FRAGMENT = kernel.FRAGMENTS / "portable.config"
# What comes after the kernel's own Kconfig.
LAYERS = kernel.FRAGMENTS / "portable.Kconfig"
MAKE = [*kernel.MAKE, f"ARCH={ARCHITECTURE}", "KBUILD_KCONFIG=/build/out/portable.Kconfig"]
# Makes what modules in Rust need: the crate, its helpers and bindings.
TARGET = "prepare"


def run(steps, built):
    """Compile it, unless that was done; return the verdict."""
    out = cache.base() / f"portable-{cache.digest(built.source.key, toolchain.KEY)}"
    out.mkdir(exist_ok=True)
    key = cache.digest(built.source.state, FRAGMENT, LAYERS, toolchain.KEY, MAKE, kernel.IDENTITY)
    stamp = cache.Stamp(out / "portable.built")
    if stamp.holds(key):
        steps.current(NAME)
        return [Verdict(NAME, "pass")]
    stamp.clear()
    kernel.remove_half_made(out)
    box = built.box.with_binds({"/build/out": out}, readonly={"/build/src": built.source.tree})
    try:
        with steps.step(NAME) as step:
            _configured(step, built.source, out, box)
            step.count_objects()
            step.run([*MAKE, f"-j{kernel.jobs()}", TARGET],
                     "the log names what needs PCI or 64 bits: see the cfgs of its module", box,
                     cwd="/build/src", env=kernel.IDENTITY)
    except LabError as error:
        return [Verdict(NAME, "fail", f"{error}, log: {error.log}")]
    stamp.set(key)
    return [Verdict(NAME, "pass")]


def _configured(step, src, out, box):
    """Make the configuration, unless there is nothing new to ask for."""
    key = cache.digest(FRAGMENT, LAYERS, src.kconfig, MAKE)
    stamp = cache.Stamp(out / "portable.configured")
    if stamp.holds(key):
        return
    stamp.clear()
    fragment = FRAGMENT.read_text()
    (out / "portable.config").write_text(fragment)
    (out / "portable.Kconfig").write_bytes((src.tree / "Kconfig").read_bytes()
                                           + b"\n" + LAYERS.read_bytes())
    step.run([*MAKE, "KCONFIG_ALLCONFIG=/build/out/portable.config",
              "KCONFIG_CONFIG=/build/out/portable.result", "allnoconfig"],
             "a Kconfig file does not parse", box, cwd="/build/src", env=kernel.IDENTITY)
    result = (out / "portable.result").read_text()
    lost = kernel.unmet(fragment, result)
    if lost:
        raise LabError("options that did not end up as asked for: " + ", ".join(lost),
                       f"a dependency is missing or the option is gone: correct {FRAGMENT.name}")
    cache.write_if_changed(out / ".config", result.encode())
    stamp.set(key)
