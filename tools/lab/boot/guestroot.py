# SPDX-License-Identifier: GPL-2.0
"""The guest's root: a read-only image that is made once, for all builds and tests."""

from pathlib import Path

from build import cache, debianroot

STUB, FSTAB = [Path(__file__).parent / "guest" / name for name in ("stub", "fstab")]
SUITES = ["trixie", "forky"]
PACKAGES = """
mount kmod iproute2 python3 procps pciutils udev e2fsprogs fio
python3-pyverbs ibverbs-providers ibverbs-utils rdma-core
libpython3.13 libibumad3 libpci3 libfabric1
""".split()
# IGT's tests and runner are only in forky, and need newer versions of these libraries.
FORKY = """
igt-gpu-tools-tests igt-gpu-tools intel-gpu-tools
libxv1 libdrm-amdgpu1 libdrm-nouveau2 libdrm2 libdrm-common
""".split()
PREFERENCES = "Package: *\nPin: release n=forky\nPin-Priority: 100\n"
INIT = "/usr/sbin/lab-init"
GB = 3
# Not compressed: an emulated processor takes a second of each boot to decompress what it reads.
MKFS = ("mkfs.erofs", "--quiet")
KEY = cache.digest(SUITES, PACKAGES, FORKY, PREFERENCES, MKFS, STUB, FSTAB)


def path():
    """Where the image is or will be."""
    return cache.base() / f"guest-{KEY}.erofs"


def ensure(steps, toolchain):
    """Make the image if it is not there; return its path."""
    image = path()
    if image.exists():
        steps.current("guest root")
        return image
    with steps.step("guest root") as step:
        root = image.with_suffix(f".root{cache.PARTIAL}")
        debianroot.build(step, root, SUITES,
                         [*PACKAGES, *[f"{name}/forky" for name in FORKY]], PREFERENCES)
        pack(step, root, image, toolchain)
    return image


def pack(step, root, image, toolchain):
    """Add what a guest starts with to a root, and make the image of it."""
    (root / "lab").mkdir()
    init = root / INIT.lstrip("/")
    init.write_bytes(STUB.read_bytes())
    init.chmod(0o755)
    (root / "etc/fstab").write_bytes(FSTAB.read_bytes())
    # Modules change with each kernel; the image does not.
    (root / "usr/lib/modules").symlink_to("/lab/lib/modules")
    partial = image.with_suffix(cache.PARTIAL)
    partial.unlink(missing_ok=True)
    partial.touch()
    box = toolchain.with_binds({"/build/image": partial}, readonly={"/build/root": root})
    step.run([*MKFS, "/build/image", "/build/root"], "see that the disk is not full", box)
    partial.rename(image)
    debianroot.remove(root)
