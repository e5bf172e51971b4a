# SPDX-License-Identifier: GPL-2.0
"""The Debian packages of the kernel, for a real machine.

The kernel's own bindeb-pkg makes them, from the tree that `make tree` makes: without what only the
tests need.
"""

import os
import shutil
from pathlib import Path

from build import cache, kernel, sandbox, toolchain, tree
from build.packages import unpacked
from build.steps import LabError

# The options that every configuration gets, and those that one made from defconfig gets besides.
PEER = kernel.FRAGMENTS / "peer.config"
MACHINE = kernel.FRAGMENTS / "machine.config"
DEFCONFIG = "x86_64_defconfig"
# The programs besides the toolchain with which the kernel makes packages: debhelper, and openssl,
# with which configurations of distributions sign modules. They are not where they expect to be.
PACKAGERS = unpacked.Unpacked("packagers", ("debhelper", "libdebhelper-perl", "openssl"), "usr")
THERE = "/build/packagers"
# dpkg-buildpackage puts the packages beside the folder that it builds.
INSIDE = "/build/packages"
# dpkg does not check the build dependencies, because debhelper is not installed in the root.
MAKE = ["make", "LLVM=1", f"O={INSIDE}/out", "DPKG_FLAGS=--no-check-builddeps"]
ENV = {**kernel.IDENTITY, "PATH": f"{THERE}/bin:{sandbox.PATH}",
       "PERL5LIB": f"{THERE}/share/perl5", "KDEB_CHANGELOG_DIST": toolchain.SUITES[0],
       "DEBFULLNAME": tree.NOBODY.name, "DEBEMAIL": tree.NOBODY.mail}
KERNEL_PACKAGES = ("linux-image-*.deb", "linux-headers-*.deb", "linux-libc-dev_*.deb")


def configuration():
    """The file that CONFIG= names, None for the configuration of `make deb`."""
    given = os.environ.get("CONFIG")
    if not given:
        return None
    path = Path(given).expanduser().absolute()
    if not path.is_file():
        raise LabError(f"CONFIG={given} is no file",
                       "name a configuration of a kernel, such as /boot/config-$(uname -r)")
    return path


class Kernel:
    """The folder in which the packages of the kernel are made."""

    def __init__(self, src, box, config):
        self.source = src
        self.config = config
        self.folder = cache.base() / f"packages-{cache.digest(src.key, toolchain.KEY)}"
        self.out = self.folder / "out"
        self.out.mkdir(parents=True, exist_ok=True)
        self.box = box.with_binds({INSIDE: self.folder}, readonly={
            THERE: PACKAGERS.path(), "/build/src": src.tree})

    @property
    def fragment(self):
        """The options on top of the configuration to begin with."""
        return ("" if self.config else MACHINE.read_text()) + PEER.read_text()

    def ensure(self, steps):
        """Make the packages, unless they are there; return their paths."""
        settings = self._configure(steps)
        key = cache.digest(self.source.state, settings, toolchain.KEY, PACKAGERS.key, MAKE,
                           ENV)
        stamp = cache.Stamp(self.folder / "packaged")
        if stamp.holds(key):
            steps.current("kernel packages")
            return self.packages()
        stamp.clear()
        for old in self.folder.glob("linux-*"):
            old.unlink()
        kernel.remove_half_made(self.out)
        with steps.step("kernel packages") as step:
            step.count_objects()
            self._make(step, f"-j{kernel.jobs()}", "bindeb-pkg",
                       hint="the log names the file: another configuration may not need it")
        stamp.set(key)
        return self.packages()

    def packages(self):
        """The packages, that with the kernel first."""
        return [path for name in KERNEL_PACKAGES for path in sorted(self.folder.glob(name))]

    def _make(self, step, *arguments, hint):
        step.run([*MAKE, *arguments], hint, self.box, cwd="/build/src", env=ENV)

    def _configure(self, steps):
        begin = self.config or DEFCONFIG
        key = cache.digest(begin, self.fragment, self.source.kconfig, toolchain.KEY)
        stamp = cache.Stamp(self.folder / "configured")
        config = self.out / ".config"
        if not (stamp.holds(key) and config.is_file()):
            stamp.clear()
            with steps.step("configuration of the packages") as step:
                if self.config:
                    shutil.copyfile(self.config, config)
                else:
                    self._make(step, DEFCONFIG, hint="a Kconfig file does not parse")
                with open(config, "a", encoding="utf-8") as file:
                    file.write(self.fragment)
                self._make(step, "olddefconfig", hint="a Kconfig file does not parse")
                # A kernel that has no keys has no list of them that is empty, either.
                lost = [line for line in kernel.unmet(self.fragment, config.read_text())
                        if not line.endswith('=""')]
                if lost:
                    raise LabError("options that did not end up as asked for: " + ", ".join(lost),
                                   "the log says what the configuration has against them")
            stamp.set(key)
        return cache.digest(config)
