# SPDX-License-Identifier: GPL-2.0
"""Boots what the packages of `make deb` install: FLAVOUR=deb.

The kernel and the modules of the guest are those of the package, and so are the programs of p2p.
The other programs are the tests that `make check` runs.
"""

import dataclasses
import shutil

from boot import guestroot, pipeline, plan, qemu
from build import programs, toolchain
from build.steps import LabError
from commands import check, deb
from judge import guests

# The name that FLAVOUR= has for it.
FLAVOUR = "deb"
UNPACK = """
dpkg-deb -x /build/kernel.deb /build/share
dpkg-deb -x /build/p2p.deb /build/share
"""


class Kernel:
    """A kernel for qemu.Machine, from packages that are installed in a folder."""

    cmdline = ""

    def __init__(self, step, box, folder, kernel, tool):
        self.folder = folder
        self.share = folder / "share"
        shutil.rmtree(self.share, ignore_errors=True)
        self.share.mkdir()
        box = box.with_binds({"/build/share": self.share})
        step.run(["sh", "-ec", UNPACK], "see that the disk is not full",
                 box.with_binds(readonly={"/build/kernel.deb": kernel, "/build/p2p.deb": tool}))
        try:
            [image] = (self.share / "boot").glob("vmlinuz-*")
        except ValueError as error:
            raise LabError("the packages have no kernel, or several", "see the log") from error
        self.box = box.with_binds(readonly={f"/build/out/{qemu.IMAGE}": image})


def run(steps):
    """Make the packages and boot them; return the verdicts."""
    box, src = pipeline.sources(steps, (toolchain, guestroot))
    [kernel, *_], tool = deb.packages(steps, pipeline.REPO, box, src)
    image = guestroot.ensure(steps, box)
    with steps.step("installation of the packages") as step:
        installed = Kernel(step, box, kernel.parent, kernel, tool)
    programs.ensure(steps, box, pipeline.REPO, installed)
    for program in (installed.share / "usr/bin").iterdir():
        shutil.copy2(program, installed.share / "bin")
    pipeline.add_scripts(installed.share)
    built = pipeline.Built(box, src, installed, qemu.Machine(installed, image))
    # A kernel for a real machine has none of the checks.
    lists = guests.Lists.of(built, frozenset())
    part = steps.record.part(FLAVOUR, lambda outcome: guests.judge(outcome, lists, {}))
    part.outcomes = check.boot(steps, built, "boot the packages", plan.installed())
    part.verdicts += guests.judged(part.outcomes, {}, lists)
    return [dataclasses.replace(verdict, name=f"{FLAVOUR}: {verdict.name}")
            for verdict in part.verdicts]
