# SPDX-License-Identifier: GPL-2.0
"""From a bare machine to a guest that is ready to boot: what every command starts with."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import guestroot
import host
import kernel
import programs
import qemu
import sandbox
import source
import toolchain

REPO = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).parent / "guest"


@dataclass
class Built:
    """Everything that the pipeline made."""

    box: sandbox.Sandbox
    source: source.Source
    kernel: kernel.Kernel
    machine: qemu.Machine = None


def sources(steps):
    """Preflight, toolchain root and kernel tree."""
    kernel.flavour()
    host.preflight(os.environ.get("KSRC"), toolchain.path().exists())
    host.install_packages(steps)
    box = toolchain.ensure(steps)
    return box, source.ensure(steps, REPO, box)


def kernel_only(steps):
    """Everything up to a built kernel."""
    box, src = sources(steps)
    built = Built(box, src, kernel.Kernel(src, box))
    built.kernel.ensure(steps)
    return built


def everything(steps):
    """Everything up to a guest that is ready to boot."""
    built = kernel_only(steps)
    programs.ensure(steps, built.box, REPO, built.kernel)
    image = guestroot.ensure(steps, built.box)
    scripts = built.kernel.share / "guest"
    shutil.rmtree(scripts, ignore_errors=True)
    shutil.copytree(GUEST, scripts)
    built.machine = qemu.Machine(built.kernel, image)
    return built
