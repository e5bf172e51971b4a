# SPDX-License-Identifier: GPL-2.0
"""Builds the selftests of the kernel tree that guests run."""

import shutil

from build import cache

FOLDER = "tools/testing/selftests"
PROGRAM = "hmm-tests"
# The sources and flags of its Makefile, without the exported headers of the kernel, which would
# have to be made for all selftests.
SOURCES = ("mm/hmm-tests.c", "mm/vm_util.c", "mm/hugepage_settings.c")
COMPILE = ["cc", "-Wall", "-O2", "-D_GNU_SOURCE=", "-U_FORTIFY_SOURCE", "-I/build/src",
           f"-I/build/src/{FOLDER}", "-isystem", "/build/src/tools/include/uapi"]
LIBRARIES = ["-lrt", "-lpthread", "-lm"]


def ensure(steps, kernel):
    """Build them, unless they are up to date, and put them into the share."""
    folder = kernel.share / "selftests"
    key = cache.digest(kernel.source.state, COMPILE, SOURCES, LIBRARIES)
    stamp = cache.Stamp(kernel.folder / "selftests-built")
    if stamp.holds(key):
        steps.current("selftests")
        return
    stamp.clear()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with steps.step("selftests") as step:
        step.run([*COMPILE, *(f"/build/src/{FOLDER}/{path}" for path in SOURCES), *LIBRARIES,
                  "-o", f"/build/share/selftests/{PROGRAM}"],
                 "the log names the file: fix its patch", kernel.box)
    stamp.set(key)
