# SPDX-License-Identifier: GPL-2.0
"""The style gates: rustfmt, clippy, checkpatch, git am, mutations, MAINTAINERS, unsafe code, layers,
prose and the documentation.

Each file is a check of its own.
"""

import re

from boot import models, pipeline
from build import cache, debianroot, docsroot, programs, source, toolchain, tree
from build.steps import LabError
from commands import docs, layers, mutants, mutation, prose
from judge.igt import Verdict

C_CODE = (".c", ".h")
# The crates that are built for this machine, and not by the kernel's make.
CRATES = (programs.CRATE, models.CRATE, programs.TOOL)
# The drivers that have no unsafe code, because the abstractions have it.
SAFE = tuple(f"drivers/gpu/drm/{name}" for name in ("avram", "mgpu", "vvram"))
HINT = "the log shows what is asked for"
# The submitter of a patch signs it off, so no sign-off is expected here. The tree is not a git tree
# in which checkpatch could look up commits. New files of patches are in folders that have a
# maintainer.
CHECKPATCH = ["perl", "/build/src/scripts/checkpatch.pl", "--root=/build/src", "--strict",
              "--quiet", "--show-types", "--no-signoff", "--ignore=UNKNOWN_COMMIT_ID,FILE_PATH_CHANGES"]
# The script's self-test reads the MAINTAINERS of the git tree it is in: it gets a tree that has our
# files and no others.
SELF_TEST = f"""
cd /tmp && cp -r {" ".join(f"/repo/{top}" for top in ["MAINTAINERS", *source.OVERLAY])} .
git init -q . && git add . || exit
said=$(perl /build/src/scripts/get_maintainer.pl --self-test=sections,patterns 2>&1) || exit
echo "$said"
test -z "$said"
"""
# This script writes MAINTAINERS in the order and with the blanks of the kernel's file.
FORM = """
perl /build/src/scripts/parse-maintainers.pl --order --input=/repo/MAINTAINERS --output=/tmp/form &&
diff -u /repo/MAINTAINERS /tmp/form
"""
# The script's exit status does not say whether it found a section.
IN_A_SECTION = """
cd /build/src && perl scripts/get_maintainer.pl --mpath=/repo/MAINTAINERS \\
	--no-git --no-git-fallback --sections -f "$0" | grep ^F:
"""
# In a git tree checkpatch takes a tracked patch for a source file.
NO_GIT = {"GIT_DIR": "/nonexistent"}


def run(steps):
    """Run the gates; return the verdicts. A kernel that does not build fails clippy."""
    box, src = pipeline.sources(steps, (toolchain, docsroot))
    inside = box.with_binds(readonly={"/build/src": src.tree, "/repo": pipeline.REPO})
    verdicts = formatted(steps, inside) + checkpatch(steps, inside)
    verdicts += maintained(steps, inside)
    verdicts += broken(steps, src) + safe(steps, pipeline.REPO) + layered(steps, src.tree)
    verdicts += plain(steps, pipeline.REPO)
    verdicts.append(docs.verdict(steps, docsroot.ensure(steps), src))
    verdicts.append(_gate("git am: the series", lambda: taken(steps, box, src)))
    verdicts.append(_gate("clippy: kernel", lambda: pipeline.kernel_only(steps)))
    return verdicts + [_gate(f"clippy: {crate}", lambda it=crate: _clippy_programs(steps, box, it))
                       for crate in CRATES]


def _gate(name, action):
    """Turn a step's failure into a verdict."""
    try:
        action()
    except LabError as error:
        return Verdict(name, "fail", f"{error}, log: {error.log}")
    return Verdict(name, "pass")


def _clippy_programs(steps, box, crate):
    with steps.step(f"clippy of {crate}") as step:
        programs.cargo(step, box, pipeline.REPO, "clippy", HINT, "--all-targets", "--",
                       "-Dwarnings", crate=crate)


def formatted(steps, box):
    """rustfmt of every Rust file of the repository, and of those its patches change.

    Files of the kernel tree are read in the tree, with its configuration and
    their neighbours around them.
    """
    overlay = [f"/build/src/{path}" for path, _ in source.overlay_files(pipeline.REPO)]
    patched = {f"/build/src/{path}" for patch in source.patches_of(pipeline.REPO)
               for path in source.touched_by(patch.read_text())}
    others = [f"/repo/{path.relative_to(pipeline.REPO)}" for top in ("kunit", *CRATES)
              for path in sorted((pipeline.REPO / top).rglob("*.rs"))]
    verdicts = []
    with steps.step("rustfmt") as step:
        for path in [*overlay, *sorted(patched), *others]:
            if path.endswith(".rs"):
                verdicts.append(_gate(f"rustfmt: {path}", lambda file=path: step.run(
                    ["rustfmt", "--check", "--edition", "2021",
                     "--config-path", "/build/src/.rustfmt.toml", file], HINT, box)))
    return verdicts


def checkpatch(steps, box):
    """checkpatch --strict of patches and of C code."""
    code = [path for top in ("rust", "drivers", "include", "kunit")
            for path in sorted((pipeline.REPO / top).rglob("*")) if path.suffix in C_CODE]
    verdicts = []
    with steps.step("checkpatch") as step:
        for path in [*source.patches_of(pipeline.REPO), *code]:
            name = path.relative_to(pipeline.REPO)
            whole = ["--file"] if path.suffix in C_CODE else []
            verdicts.append(_gate(f"checkpatch: {name}", lambda file=name, mode=whole: step.run(
                [*CHECKPATCH, *mode, file], HINT, box, cwd="/repo", env=NO_GIT)))
    return verdicts


def broken(steps, src):
    """The text that each mutation replaces is in the tree; this needs no mutated kernel."""
    verdicts = []
    with steps.step("mutations"):
        for path, here in mutation.by_file(mutants.everything()).items():
            try:
                mutation.rewrite((src.tree / path).read_text(), here)
                verdicts.append(Verdict(f"mutations: {path}", "pass"))
            except (OSError, ValueError) as error:
                verdicts.append(Verdict(f"mutations: {path}", "fail", str(error)))
    return verdicts


def layered(steps, tree):
    """No module imports one of a layer above it, and the documentation shows the layers."""
    with steps.step("layers"):
        found = layers.problems(tree)
    return [Verdict("layers", "fail", problem) for problem in found] or [Verdict("layers", "pass")]


def plain(steps, repo):
    """The prose has no more relative clauses and commas than the limits allow."""
    with steps.step("prose"):
        found = prose.complaints(repo)
    return [Verdict("prose", "fail", complaint) for complaint in found] or [Verdict("prose", "pass")]


def safe(steps, repo):
    """No file of the drivers has unsafe code. Comments may have the word."""
    verdicts = []
    with steps.step("unsafe code"):
        for path in sorted(path for driver in SAFE for path in (repo / driver).rglob("*.rs")):
            code = [line.partition("//")[0] for line in path.read_text().splitlines()]
            found = [str(number) for number, line in enumerate(code, 1)
                     if re.search(r"\bunsafe\b", line)]
            detail = f"there is unsafe code in line {', '.join(found)}" if found else ""
            verdicts.append(Verdict(f"unsafe: {path.relative_to(repo)}",
                                    "fail" if found else "pass", detail))
    return verdicts


def taken(steps, box, src):
    """git am applies the patches that `make tree` writes, with the tree of the lab as the result.

    The trees have only the files of the patches.
    """
    series = tree.commits(pipeline.REPO, src)
    paths = sorted({path for commit in series for path in commit.paths})
    folder = src.folder / f"am{cache.PARTIAL}"
    with steps.step("git am") as step:
        debianroot.remove(folder)
        made, told = (tree.Repository(step, box, folder / name, tree.NOBODY)
                      for name in ("made", "told"))
        for repository in (made, told):
            tree.lay(step, src, repository.folder, paths)
            repository.plant(tree.version(src))
        made.grow(series)
        made.export(folder / "patches")
        patches = [f"/build/patches/{patch.name}"
                   for patch in sorted((folder / "patches").iterdir())]
        told.git("am", "--quiet", "--whitespace=error", *patches,
                 box=told.box.with_binds(readonly={"/build/patches": folder / "patches"}),
                 hint="git am does not take what make tree writes")
        tree.check_same(step, src, pipeline.REPO, told.folder, box)
        debianroot.remove(folder)


def maintained(steps, box):
    """Our sections of MAINTAINERS are well-formed, and hold each file that we add to the kernel."""
    verdicts = []
    with steps.step("MAINTAINERS") as step:
        for name, *command in [
                ("self-test", SELF_TEST), ("form", FORM),
                *[(path, IN_A_SECTION, path) for path, _ in source.overlay_files(pipeline.REPO)]]:
            verdicts.append(_gate(f"MAINTAINERS: {name}", lambda args=command: step.run(
                ["sh", "-c", *args], HINT, box)))
    return verdicts
