# SPDX-License-Identifier: GPL-2.0
"""The clients of RDMA: rdma-core and perftest with our patches, and one of libfabric."""

import shutil

from build.packages import rebuilt
from build.source import REPO

TOOLS = REPO / "tools"
UAPI = REPO / "include/uapi/drm"
# The provider of rxe, pyverbs and its tests.
CORE = rebuilt.Package("rdma-core", TOOLS / "rdma-core", """
cmake -G Ninja -S . -B /build/work -DCMAKE_BUILD_TYPE=Release -DNO_MAN_PAGES=1 \\
	-DENABLE_VALGRIND=0 -DCMAKE_C_FLAGS=-I/build/include
ninja -C /build/work providers/rxe/all pyverbs/all
""", ("/build/work/lib/librxe-rdmav*.so", "/build/work/python/pyverbs", "tests"), UAPI)
# Bandwidth, with VRAM.
PERFTEST = rebuilt.Package("perftest", TOOLS / "perftest", """
./autogen.sh
./configure CPPFLAGS="-I/build/include -I/usr/include/libdrm"
make -j"$(nproc)" ib_write_bw ib_read_bw
""", ("ib_write_bw", "ib_read_bw"), UAPI)
CLIENT = TOOLS / "libfabric/fi_dmabuf.c"


def ensure(steps, built):
    """Build the clients and put them into the share."""
    parts = [rebuilt.ensure(steps, built.box, package) for package in (CORE, PERFTEST)]
    folder = built.kernel.share / "rdma"
    shutil.rmtree(folder, ignore_errors=True)
    for part in parts:
        shutil.copytree(part, folder, dirs_exist_ok=True)
    box = built.box.with_binds({"/build/out": folder}, readonly={"/build/client": CLIENT.parent})
    with steps.step("libfabric client") as step:
        step.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", "/build/out/fi_dmabuf",
                  f"/build/client/{CLIENT.name}", "-lfabric"], "the log names the line", box)
