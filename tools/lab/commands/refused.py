# SPDX-License-Identifier: GPL-2.0
"""Code that would be unsound, if the compiler did not refuse it.

Each file of tools/refused is compiled twice: as it is, which has to work, and with `--cfg refused`,
which adds the unsound code. The comment above that code has the code of the error that the compiler
has to report, or the start of its message if it has no code.
"""

import re

from boot import pipeline
from build import cache
from build.steps import LabError
from judge.igt import Verdict

FOLDER = pipeline.REPO / "tools/refused"
COMMENT = re.compile(r"^ *// refused: (.+)$", re.M)
MAKE = ("M=/build/refused-src", "MO=/build/refused", "--keep-going", "--output-sync=target")


def wanted(text):
    """The error that the compiler has to report for a file."""
    [says] = COMMENT.findall(text)
    return says


def judge(name, says, log):
    """The verdict about a file, from the compiler's output about all files."""
    said = re.findall(rf"^error(?:\[(E\d+)\])?: (.*)\n +--> \S*\b{name}\.rs:", log, re.M)
    if not said:
        return Verdict(f"refused: {name}", "fail", "the compiler accepts it")
    if any(not (code or text).startswith(says) for code, text in said):
        others = "; ".join(f"{code} {text}".strip() for code, text in said)
        return Verdict(f"refused: {name}", "fail", f"expected was {says}, the compiler says: {others}")
    return Verdict(f"refused: {name}", "pass")


def run(steps, built):
    """Compile all of them, unless that was done with this kernel; return the verdicts."""
    files = sorted(FOLDER.glob("*.rs"))
    good = [Verdict(f"refused: {file.stem}", "pass") for file in files]
    key = cache.digest(built.kernel.key, cache.digest_tree(FOLDER))
    stamp = cache.Stamp(built.kernel.folder / "refused-built")
    if stamp.holds(key):
        steps.current("what the compiler refuses")
        return good
    stamp.clear()
    verdicts = _compiled(steps, built, files)
    if verdicts == good:
        stamp.set(key)
    return verdicts


def _compiled(steps, built, files):
    """Compile them in both ways."""
    out = built.kernel.folder / "refused"
    out.mkdir(exist_ok=True)
    box = built.kernel.box.with_binds({"/build/refused": out},
                                      readonly={"/build/refused-src": FOLDER})
    objects = [f"{file.stem}.o" for file in files]
    with steps.step("what the compiler refuses") as step:
        try:
            built.kernel.make(step, [*MAKE, *objects], "the log names the file", box)
        except LabError as error:
            return [Verdict("refused: as they are", "fail", f"{error}, log: {error.log}")]
        before = step.log.stat().st_size
        try:
            built.kernel.make(step, [*MAKE, "KRUSTFLAGS=--cfg refused", *objects], "", box)
        except LabError:
            # A failure of the compiler is expected here.
            pass
        log = step.log.read_bytes()[before:].decode(errors="replace")
    return [judge(file.stem, wanted(file.read_text()), log) for file in files]
