# SPDX-License-Identifier: GPL-2.0
"""The Debian root with the tools that render the documentation.

It is separate from the toolchain root, so that a new package does not cause a new kernel build.
"""

from build import cache, debianroot

SUITES = ["trixie"]
PACKAGES = "python3-sphinx python3-yaml graphviz fonts-dejavu-core".split()
GB = 1
KEY = cache.digest(SUITES, PACKAGES)


def path():
    """Where the root is or will be."""
    return cache.base() / f"docs-{KEY}"


def ensure(steps):
    """Make the root if it is not there; return a sandbox in it."""
    return debianroot.tools(steps, "root of the documentation", path(), SUITES, PACKAGES)
