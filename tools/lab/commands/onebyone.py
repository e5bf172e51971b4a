# SPDX-License-Identifier: GPL-2.0
"""Builds the commits of `make tree` one after the other, for each architecture: FLAVOUR=tree.

There is one build folder for each architecture, so that a commit rebuilds only what it changes. A
commit that was built before with the same content is not built again. All commits are checked out
into the same folder, so that a run that continues an interrupted one finds its objects.
"""

import re
import time

from boot import pipeline
from build import cache, kernel, toolchain, tree
from build.steps import LabError, duration
from judge.igt import Verdict

# Its value of FLAVOUR=.
FLAVOUR = "tree"
ARCHITECTURES = ("x86_64", "arm64")
FRAGMENT = kernel.FRAGMENTS / "tree.config"
# The entries after the kernel's own Kconfig.
LAYERS = kernel.FRAGMENTS / "tree.Kconfig"
# Without clippy, which `make style` and `make check` run on the last commit.
MAKE = ["make", "LLVM=1", "O=/build/out", "KBUILD_KCONFIG=/build/out/tree.Kconfig"]
TARGETS = ["vmlinux", "modules"]
NAME = re.compile(r"(?:# )?CONFIG_(\w+)")
# An entry of a Kconfig file, or of a patch to one.
ENTRY = re.compile(r"^\+?(?:menu)?config (\w+)$", re.M)
SELECTED = re.compile(r"^\tselect (\w+)$", re.M)


def run(steps):
    """Build all commits; return the verdicts."""
    box, src = pipeline.sources(steps)
    series = tree.commits(pipeline.REPO, src)
    folder = cache.base() / f"tree-{src.key}"
    # The time of each build, by its content.
    built, repository = cache.Times(folder / "built.json"), None
    rows = planned(src, series)
    if all(build.key in built.seconds for row in rows for build in row):
        steps.current("commits one by one")
    else:
        with steps.step(f"tree of {len(series)} commits") as step:
            repository = refreshed(step, src, box, folder, series)
    verdicts = []
    for number, row in enumerate(rows, 1):
        for build in row:
            verdicts.append(verdict_of(steps, built, build, f"{number}/{len(rows)}",
                                       lambda step, it=build: made(step, repository, folder, it)))
    report(steps.console, rows, built)
    return verdicts


def planned(src, series):
    """The builds of each commit."""
    return [[Build(commit, arch, content, options, later) for arch in ARCHITECTURES]
            for commit, (content, options), later in zip(series, contents(src, series),
                                                         not_yet(series))]


def report(console, rows, built):
    """Print which commits build, and the time of each build."""
    console.say("".join(f"{arch:<14}" for arch in ARCHITECTURES) + "commit")
    for row in rows:
        times = [duration(built.seconds[build.key]) if build.key in built.seconds else "FAILS"
                 for build in row]
        console.say("".join(f"{text:<14}" for text in times) + row[0].commit.subject)


class Build:
    """A commit on an architecture, the digests of its content and of its configuration, and the
    options that only later commits have.
    """

    def __init__(self, commit, arch, content, options, later):
        inputs = (arch, FRAGMENT, LAYERS, toolchain.KEY, MAKE, TARGETS)
        self.commit = commit
        self.arch = arch
        self.key = cache.digest(content, *inputs)
        self.config = cache.digest(options, *inputs)
        self.later = later


def contents(src, series):
    """The digests of the tree, and of its Kconfig files, at each commit, without the messages."""
    found = [(src.key, src.key)]
    for commit in series:
        content, options = found[-1]
        patch = tree.END_OF_MESSAGE.split(commit.patch.read_text(), maxsplit=1)[-1]
        content = cache.digest(content, patch, *[part for path, file in commit.files.items()
                                                 for part in (path, file)])
        if any("Kconfig" in path for path in commit.paths):
            options = content
        found.append((content, options))
    return found[1:]


def not_yet(series):
    """The options that do not exist yet at each commit."""
    found = [set()]
    for commit in reversed(series[1:]):
        texts = [commit.patch.read_text(), *(file.read_text() for path, file in commit.files.items()
                                             if "Kconfig" in path)]
        found.append(found[-1].union(*(ENTRY.findall(text) for text in texts)))
    return found[::-1]


def wanted():
    """The options that a configuration must have: those of the fragment, and the layers."""
    return FRAGMENT.read_text() + "".join(
        f"CONFIG_{name}=y\n" for name in SELECTED.findall(LAYERS.read_text()))


def lost(config, later):
    """The wanted options that a configuration lacks, without those that only later commits have."""
    return [line for line in kernel.unmet(wanted(), config)
            if NAME.match(line).group(1) not in later]


def refreshed(step, src, box, folder, series):
    """The repository of the caches, with the commits as they are now."""
    linux = folder / "linux"
    repository = tree.Repository(step, box, linux, tree.NOBODY)
    stamp = cache.Stamp(folder / "planted")
    if not stamp.holds(src.key):
        step.run(["rm", "-rf", folder], "see which process uses it")
        folder.mkdir(parents=True)
        tree.lay(step, src, linux)
        repository.plant(tree.version(src))
        stamp.set(src.key)
    repository.git("checkout", "--quiet", "--force", "-B", tree.BRANCH, tree.BASE)
    repository.git("clean", "-dffxq")
    for number, commit in enumerate(series, 1):
        repository.commit(commit, number)
        repository.git("tag", "--force", tag(commit))
    tree.check_same(step, src, pipeline.REPO, linux, box)
    return repository


def tag(commit):
    """The name of a commit in the repository of the caches."""
    return commit.patch.stem


def verdict_of(steps, built, build, place, action):
    """Build a commit, unless it was built before, and print the result; return the verdict."""
    name = f"{build.arch}: {build.commit.patch.name}"
    if build.key in built.seconds:
        return Verdict(name, "pass")
    title = f"{place} {build.arch}: {build.commit.subject}"
    begin = time.monotonic()
    try:
        with steps.step(title) as step:
            action(step)
    except LabError as error:
        steps.console.say(f"{title}: does NOT build")
        return Verdict(name, "fail", f"{error}, log: {error.log}")
    built.record({build.key: time.monotonic() - begin})
    return Verdict(name, "pass")


def made(step, repository, folder, build):
    """Check a commit out, configure it if it may need another configuration, and make it."""
    out, sources = folder / build.arch, folder / "sources"
    for each in (out, sources):
        each.mkdir(exist_ok=True)
    kernel.remove_half_made(out)
    repository.step = step
    repository.show(tag(build.commit), sources)
    box = repository.box.with_binds({"/build/out": out}, readonly={"/build/src": sources})
    make = [*MAKE, f"ARCH={build.arch}"]
    stamp = cache.Stamp(out / "tree.configured")
    if not stamp.holds(build.config):
        stamp.clear()
        configured(step, sources, out, build, make, box)
        stamp.set(build.config)
    step.count_objects()
    step.run([*make, f"-j{kernel.jobs()}", *TARGETS],
             "the log names what a commit needs, and only a later one has: see patches/new-files",
             box, cwd="/build/src", env=kernel.IDENTITY)


def configured(step, sources, out, build, make, box):
    """Configure the options that exist at a commit."""
    cache.write_if_changed(out / "tree.Kconfig", (sources / "Kconfig").read_bytes()
                           + b"\n" + LAYERS.read_bytes())
    (out / "tree.config").write_bytes(FRAGMENT.read_bytes())
    step.run([*make, "KCONFIG_ALLCONFIG=/build/out/tree.config",
              "KCONFIG_CONFIG=/build/out/tree.result", "allnoconfig"],
             "a Kconfig file does not parse", box, cwd="/build/src", env=kernel.IDENTITY)
    result = (out / "tree.result").read_bytes()
    missing = lost(result.decode(), build.later)
    if missing:
        raise LabError("options that did not end up as asked for: " + ", ".join(missing),
                       f"a dependency is missing or the option is gone: correct {FRAGMENT.name}")
    cache.write_if_changed(out / ".config", result)
