# SPDX-License-Identifier: GPL-2.0
"""The root of guests for arm64. There is no igt_runner for arm64 in Debian, nor is it needed."""

from boot import guestroot
from build import cache, debianroot

# That of the tools: the programs are linked with its C library.
SUITES = ["forky"]
# Those that would be essential, and those that jobs and programs call.
PACKAGES = """
base-files bash coreutils dash findutils grep libc-bin sed util-linux
mount kmod iproute2 procps udev e2fsprogs
""".split()
GB = 1
KEY = cache.digest(SUITES, PACKAGES, guestroot.MKFS, guestroot.STUB, guestroot.FSTAB)


def path():
    """Where the image is or will be."""
    return cache.base() / f"arm64-guest-{KEY}.erofs"


def ensure(steps, toolchain):
    """Make the image if it is not there; return its path."""
    image = path()
    if image.exists():
        steps.current("arm64 guest root")
        return image
    with steps.step("arm64 guest root") as step:
        root = image.with_suffix(f".root{cache.PARTIAL}")
        debianroot.extract(step, root, *SUITES, "arm64", PACKAGES)
        guestroot.pack(step, root, image, toolchain)
    return image
