# SPDX-License-Identifier: GPL-2.0
"""The toolchain root: all tools that build, check and boot the kernel."""

from build import cache, debianroot

SUITES = ["trixie", "trixie-backports"]
PACKAGES = """
rustc rust-src rustfmt rust-clippy cargo bindgen librust-libc-dev
gcc g++ clang lld llvm libc6-dev pahole make flex bison bc libelf-dev libdw-dev libssl-dev
pkg-config cpio kmod xz-utils zstd erofs-utils rsync patch git perl gawk
python3 python3-ply python3-git codespell
qemu-system-x86 linux-source-7.3
cmake ninja-build cython3 python3-dev libnl-3-dev libnl-route-3-dev libudev-dev libdrm-dev
autoconf automake libtool libpci-dev libibumad-dev librdmacm-dev libibverbs-dev libfabric-dev
""".split()
GB = 4
KEY = cache.digest(SUITES, PACKAGES)


def path():
    """Where the root is or will be."""
    return cache.base() / f"toolchain-{KEY}"


def ensure(steps):
    """Make the root if it is not there; return a sandbox in it."""
    return debianroot.tools(steps, "toolchain", path(), SUITES, ["-t", SUITES[1], *PACKAGES])
