# SPDX-License-Identifier: GPL-2.0
"""The kernel tree to build: Linux 7.3, with this repository laid over it.

The repository's state is always worked out afresh and compared with the tree
by content, so that make sees new times on the files that really changed, and
on no others.
"""

import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from build import cache, debianroot
from build.steps import LabError

# This repository.
REPO = Path(__file__).resolve().parents[3]
TARBALL = "usr/src/linux-source-7.3.tar.xz"
OVERLAY = ["rust", "drivers", "include", "Documentation"]
# The KUnit suites have another place in the kernel, without the skips that the lab expects.
KUNIT = "drivers/gpu/drm/vvram/tests"
NOT_KUNIT = ["skips.txt"]
# The repository has only the new sections of this file.
MAINTAINERS = "MAINTAINERS"
# A section of it begins with its title and a first entry.
SECTION = re.compile(r"(.+)\n[A-Z]:\t")
GB = 3


class Source:
    """One upstream tree in the cache, plus the files of the repository in it."""

    def __init__(self, folder, key, change=None, patches=None):
        self.folder = folder
        self.key = key
        self.change = change   # a function that may replace {path: file} of the repository's files
        self.patches = patches or patches_of   # a function that returns the patches of a repository
        self.tree = folder / "tree"
        self.state = ""        # digest of the repository's files in it
        self.kconfig = ""      # digest of the Kconfig files among it

    # The upstream version of each file that a patch touches, under its own path.
    @property
    def _originals(self):
        return self.folder / "originals"

    @property
    def _managed(self):
        return self.folder / "managed.json"

    @property
    def managed(self):
        """The paths of the repository's files in it."""
        return self._read_managed()

    def pristine(self, path):
        """The upstream version of a file, None if there is none."""
        file = (self._originals if path in self.managed else self.tree) / path
        return file if file.is_file() else None

    def complete(self):
        """Whether the tree is there, with a valid list of the repository's files in it."""
        try:
            return self.tree.exists() and isinstance(self._read_managed(), list)
        except ValueError:
            return False

    def _read_managed(self):
        return json.loads(self._managed.read_text()) if self._managed.is_file() else []

    def _write_managed(self, paths):
        cache.write(self._managed, json.dumps(sorted(paths)).encode())

    def sync(self, step, repo, box):
        """Bring the tree to upstream plus the repository's files and patches."""
        managed = self._read_managed()
        patches = applied(self.patches(repo), os.environ.get("WITHOUT", ""))
        touched = sorted({MAINTAINERS}.union(*(touched_by(patch.read_text()) for patch in patches)))
        wanted = self._patched(step, patches, touched, managed, box)
        if MAINTAINERS in wanted and (repo / MAINTAINERS).is_file():
            file = wanted[MAINTAINERS]
            file.write_text(with_sections(file.read_text(), (repo / MAINTAINERS).read_text()))
        for path, file in [*overlay_files(repo), *suite_files(repo)]:
            if path in wanted or (path not in managed and (self.tree / path).exists()):
                raise LabError(f"{path} exists upstream",
                               "a change to an upstream file is a patch in patches/, not a copy")
            wanted[path] = file
        if self.change:
            wanted = self.change(wanted, self.folder / "changed")
        # Record the paths before the files are written, so that the next run can repair this one.
        self._write_managed(set(managed) | set(wanted))
        for path in sorted(set(managed) - set(wanted)):
            self._restore(path)
        for path, file in wanted.items():
            if cache.write_if_changed(self.tree / path, file.read_bytes(),
                                      file.stat().st_mode & 0o777):
                with open(step.log, "a", encoding="utf-8") as log:
                    log.write(f"changed: {path}\n")
        self._write_managed(wanted)
        content = {path: cache.digest(file) for path, file in wanted.items()}
        self.state = cache.digest(content)
        self.kconfig = cache.digest({p: d for p, d in content.items() if "Kconfig" in p})

    def _patched(self, step, patches, touched, managed, box):
        """Apply the patches to copies of the upstream files; return path -> patched file."""
        for path in touched:
            if path not in managed and (self.tree / path).is_file():
                original = self._originals / path
                original.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.tree / path, original)
        staging = self.folder / "staging"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        for path in touched:
            if (self._originals / path).is_file():
                (staging / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._originals / path, staging / path)
        apply(step, patches, staging, box)
        return {path: staging / path for path in touched if (staging / path).is_file()}

    def _restore(self, path):
        original = self._originals / path
        if original.is_file():
            cache.write_if_changed(self.tree / path, original.read_bytes(),
                                   original.stat().st_mode & 0o777)
        else:
            (self.tree / path).unlink(missing_ok=True)


def apply(step, patches, folder, box):
    """Apply patches to the files in a folder."""
    inside = box.with_binds({"/build/staging": folder})
    for patch in patches:
        with_patch = inside.with_binds(readonly={"/build/patch": patch})
        step.run(["patch", "-p1", "--no-backup-if-mismatch", "--fuzz=0", "-i", "/build/patch"],
                 f"{patch.name} does not apply to this tree: refresh it",
                 with_patch, cwd="/build/staging")


def patches_of(repo):
    """The repository's patches in the order in which they apply.

    Those for tests only come last: the series does not need them.
    """
    return [*series_of(repo), *test_only_of(repo)]


def series_of(repo):
    """The patches that change the kernel, in the order in which they apply: a folder for each series
    of patches, whose names begin with a letter in that order."""
    return sorted((repo / "patches").glob("?-*/*.patch"))


def test_only_of(repo):
    """The patches that only the tests need, in the order in which they apply."""
    return sorted((repo / "patches/test-only").glob("*.patch"))


def name(patch):
    """What the list of mutations calls a patch."""
    return f"{patch.parent.name}/{patch.name}" if patch.parent.name == "test-only" else patch.name


def with_sections(upstream, ours):
    """The text of MAINTAINERS with our sections, each in its place of the alphabet."""
    parts = upstream.rstrip("\n").split("\n\n")
    for section in ours.strip("\n").split("\n\n"):
        title = section.partition("\n")[0]
        titles = [(number, match.group(1)) for number, part in enumerate(parts)
                  if (match := SECTION.match(part))]
        # Some sections are out of order: the place is where the fewest are on the wrong side. The
        # last section is for all files, and ends the alphabet.
        place, wrong, fewest = titles[0][0], 0, 0
        for number, other in titles[:-1]:
            wrong += 1 if other > title else -1
            if wrong <= fewest:
                place, fewest = number + 1, wrong
        parts.insert(place, section)
    return "\n\n".join(parts) + "\n"


def applied(patches, without):
    """The patches, without those that WITHOUT= excludes by the start of their names."""
    unwanted = tuple(name for name in without.split(",") if name)
    for name in unwanted:
        if not any(patch.name.startswith(name) for patch in patches):
            raise LabError(f"there is no patch {name}", "see patches/ for what WITHOUT= can name")
    return [patch for patch in patches if not patch.name.startswith(unwanted)]


def touched_by(patch):
    """The paths that a patch creates, changes or removes."""
    paths = set()
    for line in patch.splitlines():
        if line.startswith(("--- a/", "+++ b/")):
            paths.add(line[6:].split("\t")[0].rstrip())
    return paths


def overlay_files(repo):
    """(path in the kernel tree, file) for all that the repository lays over it."""
    for top in OVERLAY:
        for file in sorted((repo / top).rglob("*")):
            if file.is_file() and not left_behind(file):
                yield str(file.relative_to(repo)), file


def suite_files(repo):
    """(path in the kernel tree, file) for the KUnit suites."""
    for file in sorted((repo / "kunit").rglob("*")):
        if file.is_file() and file.name not in NOT_KUNIT and not left_behind(file):
            yield f"{KUNIT}/{file.relative_to(repo / 'kunit')}", file


def left_behind(file):
    """Whether a file is what a build or an editor left."""
    return file.name.endswith((".o", ".ko", ".cmd", ".mod", "~"))


def locate(ksrc, box):
    """The cached tree of KSRC=, else that of the package in the toolchain root."""
    key = _ksrc_key(Path(ksrc)) if ksrc else cache.digest(
        (box.root / TARBALL).stat().st_size, _package_version(box))
    return Source(cache.base() / f"source-{key}", key)


def ensure(steps, repo, ksrc, box):
    """Extract the upstream tree if it is not there, and sync the repository into it."""
    source = locate(ksrc, box)
    if source.complete():
        steps.current("linux source")
    else:
        with steps.step("linux source") as step:
            _extract(step, source, ksrc, box)
    with steps.step("overlay and patches") as step:
        source.sync(step, repo, box)
    return source


def variant(steps, source, repo, box, name, change=None, patches=None):
    """A copy of a tree into which the repository is put with a change, or with other patches."""
    other = Source(source.folder.with_name(f"{source.folder.name}-{name}"),
                   f"{source.key}-{name}", change, patches)
    with steps.step(f"source of {name}") as step:
        if not other.folder.exists():
            partial = other.folder.with_name(f"{other.folder.name}.partial")
            step.run(["rm", "-rf", partial], "see which process uses it")
            step.run(["cp", "-a", source.folder, partial], "see that the disk is not full")
            partial.rename(other.folder)
        other.sync(step, repo, box)
    return other


def _package_version(box):
    return subprocess.run(box.argv(["dpkg-query", "-W", "-f", "${Version}", "linux-source-7.3"]),
                          check=True, stdout=subprocess.PIPE, text=True).stdout


@functools.cache
def _ksrc_key(ksrc):
    """The key of a tree by names, sizes and times: its content is too large to read each time."""
    entries = []
    for top, folders, files in os.walk(ksrc):
        folders[:] = sorted(f for f in folders if f != ".git")
        for name in sorted(files):
            info = os.lstat(os.path.join(top, name))
            entries.append((os.path.relpath(os.path.join(top, name), ksrc),
                            info.st_size, info.st_mtime_ns))
    return cache.digest(entries)


def _extract(step, source, ksrc, box):
    partial = source.folder / f"tree{cache.PARTIAL}"
    debianroot.remove(source.folder)
    partial.mkdir(parents=True)
    inside = box.with_binds({"/build/src": partial})
    if ksrc:
        step.run(["rsync", "-a", "--exclude=/.git", "/build/ksrc/", "/build/src/"],
                 "see that KSRC can be read", inside.with_binds(readonly={"/build/ksrc": ksrc}))
    else:
        step.run(["tar", "-x", "--strip-components=1", "-f", f"/{TARBALL}", "-C", "/build/src"],
                 "see that the disk is not full", inside)
    partial.rename(source.tree)
