# SPDX-License-Identifier: GPL-2.0
"""What is needed to boot QEMU's arm64 machine, `virt`: FLAVOUR=arm64 and FLAVOUR=arm64-64k.

The guests run the suites and some programs, without igt_runner.
"""

import json
import re
import shutil

from boot import arm64guest, models, pipeline, plan, qemu
from build import arm64root, kernel, programs, sandbox, toolchain

TARGET = "aarch64-unknown-linux-gnu"
CARGO = {f"CARGO_TARGET_{TARGET.upper().replace('-', '_')}_{name}": value for name, value in (
    ("LINKER", "clang"), ("RUSTFLAGS", "-Clink-arg=--target=aarch64-linux-gnu"))}
# What igt-tests/src/map.rs looks at, by flavour.
PAGES = {"arm64-64k": {"PAGES_64K": "1"}}
# The marks that a program prints around each of its subtests.
MARK = re.compile(r"^Starting subtest: (\S+)$|^Subtest (\S+): (SUCCESS|SKIP|FAIL) \(([\d.]+)s\)$")
RESULTS = {"SUCCESS": "pass", "SKIP": "skip", "FAIL": "fail"}


class Machine(qemu.Machine):
    """Turns boots into command lines of the other QEMU."""

    program, kind, console = "qemu-system-aarch64", "virt,gic-version=3", "ttyAMA0"
    image = "arch/arm64/boot/Image"
    without = ()

    def __init__(self, built, image, tools):
        super().__init__(built, image)
        self.box = sandbox.Sandbox(tools.root, self.box.binds, self.box.readonly)

    @staticmethod
    def busy():
        return ""

    def run(self, boot, cpu):
        outcome = super().run(boot, cpu)
        if boot.job == plan.PROGRAMS:
            (outcome.results / "results.json").write_text(json.dumps(
                {"tests": collected(outcome.results / "runner")}))
        return outcome


def collected(folder):
    """The tests in the output of programs, as the results.json of igt_runner has them."""
    found = {}
    for path in sorted(folder.glob("*.txt")):
        test = None
        for line in path.read_text(errors="replace").splitlines():
            begin, end, result, seconds = (mark := MARK.match(line)) and mark.groups() or [None] * 4
            if begin:
                test = {"result": "incomplete", "out": ""}
                found[f"igt@{path.stem}@{begin}"] = test
            if test:
                test["out"] += f"{line}\n"
            if end and test:
                test.update(result=RESULTS[result], time={"start": 0, "end": float(seconds)})
                test = None
    return found


def everything(steps):
    """Everything up to a guest that is ready to boot, of the flavour asked for with FLAVOUR=."""
    built = pipeline.kernel_only(steps, (toolchain, arm64root, arm64guest))
    tools = arm64root.ensure(steps)
    with steps.step("arm64 programs") as step:
        folder = programs.cargo(
            step, tools, pipeline.REPO, "build", "the log names the file: fix it",
            f"--target={TARGET}", *[f"--bin={name}" for name in plan.ARM64],
            key=f"{arm64root.KEY}-{kernel.flavour()}", env=CARGO | PAGES.get(kernel.flavour(), {}))
    shutil.rmtree(built.kernel.share / "bin", ignore_errors=True)
    (built.kernel.share / "bin").mkdir()
    for name in plan.ARM64:
        shutil.copy2(folder.parent / TARGET / "release" / name, built.kernel.share / "bin")
    models.ensure(steps, built.box, pipeline.REPO, built.kernel)
    image = arm64guest.ensure(steps, built.box)
    pipeline.add_scripts(built.kernel.share)
    built.machine = Machine(built.kernel, image, tools)
    return built
