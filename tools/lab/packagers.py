# SPDX-License-Identifier: GPL-2.0
"""What the kernel makes Debian packages with, beside the toolchain: debhelper, and openssl, by which
configurations of distributions sign modules.
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
