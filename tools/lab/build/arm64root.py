# SPDX-License-Identifier: GPL-2.0
"""The root of the tools for arm64: QEMU, and what builds programs.

The kernel is built in the toolchain root. One more package in that one would make all kernels anew.
"""

from build import cache, debianroot

# Of this suite both architectures have the same version of Rust, which its library needs.
SUITES = ["forky"]
PACKAGES = """
rustc cargo bindgen clang lld gcc libc6-dev libstd-rust-dev:arm64 libc6-dev:arm64
libgcc-15-dev:arm64 libibverbs-dev:arm64 qemu-system-arm
""".split()
GB = 3
KEY = cache.digest(SUITES, PACKAGES)


def path():
    """Where the root is or will be."""
    return cache.base() / f"arm64-tools-{KEY}"


def ensure(steps):
    """Make the root if it is not there; return a sandbox in it."""
    return debianroot.tools(steps, "arm64 tools", path(), SUITES, PACKAGES, ("arm64",))
