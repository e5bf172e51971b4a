# SPDX-License-Identifier: GPL-2.0
"""The programs besides the toolchain with which the kernel makes Debian packages.

They are debhelper, and openssl, with which configurations of distributions sign modules.
"""

import sandbox
import unpacked

INSIDE = "/build/packagers"
SET = unpacked.Unpacked("packagers", ("debhelper", "libdebhelper-perl", "openssl"), "usr")
# They are not where they expect to be.
ENV = {"PATH": f"{INSIDE}/bin:{sandbox.PATH}", "PERL5LIB": f"{INSIDE}/share/perl5"}


def added(box):
    """A sandbox that has them as well, with the settings of ENV."""
    return box.with_binds(readonly={INSIDE: SET.path()})
