# SPDX-License-Identifier: GPL-2.0
"""From a bare machine to a guest that is ready to boot: the first steps of every command."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from boot import guestroot, models, qemu
from build import crates, debianroot, host, kernel, programs, sandbox, selftests, source, toolchain
from build.source import REPO
from build.steps import LabError

GUEST = Path(__file__).parent / "guest"


@dataclass
class Built:
    """The results of the pipeline."""

    box: sandbox.Sandbox
    source: source.Source
    kernel: kernel.Kernel
    machine: qemu.Machine = None


def missing(ksrc, roots):
    """The roots, of those given, and the kernel tree, if the caches do not have them."""
    absent = [root for root in roots if not root.path().exists()]
    # The name of the tree depends on the version of the package, which must be there first.
    named = ksrc or toolchain not in absent
    if not (named and source.locate(ksrc, sandbox.Sandbox(toolchain.path())).complete()):
        return [*absent, source]
    return absent


def tools(steps):
    """Check the host for what the compilers need; make the toolchain root, and fetch the crates."""
    host.preflight(None)
    debianroot.sweep(steps)
    return _tools(steps, (toolchain,), [] if toolchain.path().exists() else [toolchain])


def sources(steps, roots=(toolchain,)):
    """Check the host for everything that the caches lack; make the toolchain root and the tree."""
    kernel.flavour()
    ksrc = os.environ.get("KSRC")
    host.preflight(ksrc)
    debianroot.sweep(steps)
    box = _tools(steps, roots, missing(ksrc, roots))
    return box, source.ensure(steps, REPO, ksrc, box)


def _tools(steps, roots, absent):
    new_roots = [root for root in roots if root in absent]
    suites = dict.fromkeys(suite for root in new_roots for suite in root.SUITES)
    host.supplies(sum(part.GB for part in absent), list(suites))
    if new_roots:
        host.install_packages(steps)
    box = toolchain.ensure(steps)
    crates.SET.ensure(steps, box)
    return box


def kernel_only(steps, roots=(toolchain,), flavour=None, variant=None):
    """Everything up to a built kernel, of the flavour asked for with FLAVOUR= if none is given.

    If there is a variant, a function of the steps, the tree and the sandbox, it returns the tree.
    """
    box, src = sources(steps, roots)
    if variant:
        src = variant(steps, src, box)
    built = Built(box, src, kernel.Kernel(src, box, flavour))
    built.kernel.ensure(steps)
    return built


def everything(steps, flavour=None, variant=None):
    """Everything up to a guest that is ready to boot."""
    if (flavour or kernel.flavour()) in kernel.ARM64:
        raise LabError(f"FLAVOUR={kernel.flavour()} is for make soak alone",
                       "it boots the suites and some programs: see arm64() in plan.py")
    built = kernel_only(steps, (toolchain, guestroot), flavour, variant)
    programs.ensure(steps, built.box, REPO, built.kernel)
    models.ensure(steps, built.box, REPO, built.kernel)
    selftests.ensure(steps, built.kernel)
    image = guestroot.ensure(steps, built.box)
    add_scripts(built.kernel.share)
    built.machine = qemu.Machine(built.kernel, image)
    return built


def add_scripts(share):
    """Put the scripts that a guest runs into what it sees."""
    scripts = share / "guest"
    shutil.rmtree(scripts, ignore_errors=True)
    shutil.copytree(GUEST, scripts)
