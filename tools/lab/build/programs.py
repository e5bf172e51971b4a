# SPDX-License-Identifier: GPL-2.0
"""Builds the programs that run in the guest, the crate in igt-tests/, and other crates."""

import shutil
import subprocess
from pathlib import Path

from build import cache, crates, toolchain
from build.steps import LabError

CRATE = "igt-tests"
# The crate of the tool for operators, which the guest has as well.
TOOL = "tools/p2p"
LOCK = "Cargo.lock"
# The programs that speak the protocol of igt_runner, by their names.
TESTS = "*_*"
# Prints the subtests of all of them.
LIST = """
cd /build/bin
for program in "$@"; do
	"./$program" --list-subtests | sed "s/^/$program@/"
done
"""
# Debian's own copies of crates: cargo fetches nothing.
OFFLINE = ["--offline",
           "--config", 'source.crates-io.replace-with="debian"',
           "--config", f'source.debian.directory="{crates.REGISTRY}"']


def cargo(step, box, repo, command, hint, *more, crate=CRATE, key=toolchain.KEY, env=()):
    """Run a cargo command on a crate; return the folder of the programs.

    Cargo works on a copy with a lock file of its own: a crate in Debian's
    registry has no checksum that a lock file made elsewhere could agree with.
    """
    folder = cache.base() / f"programs-{key}"
    _copy(repo / crate, folder / crate)
    (folder / "target").mkdir(exist_ok=True)
    inside = box.with_binds({"/build/programs": folder}, {crates.REGISTRY: crates.SET.path()})
    step.run(["cargo", command, *OFFLINE, "--release", *more], hint, inside,
             cwd=f"/build/programs/{crate}", env={"CARGO_TARGET_DIR": "/build/programs/target", **dict(env)})
    return folder / "target/release"


def _copy(crate, copy):
    """Bring the copy to the state of the crate; only changed files get new times."""
    files = {p.relative_to(crate): p for p in crate.rglob("*")
             if p.is_file() and p.name != LOCK and "target" not in p.relative_to(crate).parts}
    for name, path in files.items():
        cache.write_if_changed(copy / name, path.read_bytes())
    for path in [p for p in copy.rglob("*") if p.is_file()]:
        if path.name != LOCK and path.relative_to(copy) not in files:
            path.unlink()


def ensure(steps, box, repo, kernel):
    """Build the crate and the tool, and put the programs into the share."""
    with steps.step("guest programs") as step:
        built = cargo(step, box, repo, "build", "the log names the file: fix it",
                      "--bins", "--examples")
        cargo(step, box, repo, "build", "the log names the file: fix it", "--bins", crate=TOOL)
        names = [p.stem for p in sorted((repo / CRATE / "src/bin").glob("*.rs"))]
        names.append(Path(TOOL).name)
        folder = kernel.share / "bin"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in names:
            shutil.copy2(built / name, folder)
        for path in sorted((repo / CRATE / "examples").glob("*.rs")):
            shutil.copy2(built / f"examples/lib{path.stem}.so", folder)


def subtests(box, folder):
    """The subtests of the programs in a folder, as program@subtest."""
    names = sorted(path.name for path in folder.glob(TESTS) if path.suffix != ".so")
    done = subprocess.run(box.with_binds(readonly={"/build/bin": folder}).argv(
        ["bash", "-o", "pipefail", "-ec", LIST, "bash", *names]),
        text=True, capture_output=True, check=False)
    if done.returncode:
        raise LabError(f"a program does not list its subtests: {done.stderr.strip()}",
                       f"run it with --list-subtests: they are in {folder}")
    return frozenset(done.stdout.split())
