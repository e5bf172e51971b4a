# SPDX-License-Identifier: GPL-2.0
"""A git tree of Linux that has the repository as a series of commits: `make tree`.

A commit is a patch together with the new files that it needs, as patches/new-files has them.
Commits of the same tree by the same author are the same, down to their names.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from build import cache, debianroot, source
from build.steps import LabError

NEW_FILES = "patches/new-files"
# The cover letter of a series, in its folder.
COVER_LETTER = "cover-letter.txt"
# The tag of the commit below the series, and the branch that has the series.
BASE = "pristine"
BRANCH = "vvram"
# The end of the name of the folder with the patches for git am.
PATCHES = ".patches"
AUTHOR = re.compile(r"(?P<name>[^<>\n]*[^<>\s]) <(?P<mail>[^<>\s@]+@[^<>\s@]+)>")
# A commit a minute, from 2026-01-01 on.
BEGIN = 1767225600
# The user's own settings of git must not have an effect.
GIT = ["git", "-c", "core.fsync=none", "-c", "gc.auto=0", "-c", "core.compression=1"]
# Lets git put all files into one pack as it reads them, instead of a file for each. This is only
# for adding them, because git prints no differences of files above this size.
INTO_A_PACK = ["-c", "core.bigFileThreshold=1"]
ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
HINT = "see the log"
# The file with the mailing lists of each patch, and the command that writes it into a folder.
LISTS = "lists.txt"
ASK_FOR_LISTS = f"""
set -e
for patch in "$1"/*.patch; do
	echo "${{patch##*/}}"
	perl scripts/get_maintainer.pl --nogit --nogit-fallback --nom --nor --norolestats "$patch"
done >"$1/{LISTS}"
"""
# The index of git for a folder that shows a commit.
INDEX = ".index"
END_OF_MESSAGE = re.compile(r"^(?:---$|--- a/|--- /dev/null|diff --git )", re.M)
TRAILER = re.compile(r"[A-Z][\w-]*: \S")


@dataclass(frozen=True)
class Author:
    """The person who signs off the commits."""

    name: str
    mail: str

    @classmethod
    def parse(cls, text):
        """The author that AUTHOR= names."""
        match = AUTHOR.fullmatch(text.strip())
        if not match:
            raise LabError(f"AUTHOR={text} is no name with an address",
                           "write it as: AUTHOR='Name <mail@example.org>'")
        return cls(**match.groupdict())

    def __str__(self):
        return f"{self.name} <{self.mail}>"


# The author of trees that are only compared.
NOBODY = Author("vvram lab", "lab@localhost.localdomain")


@dataclass(frozen=True)
class Commit:
    """A patch, and the new files that come with it: path in the kernel tree -> file."""

    patch: Path
    files: dict

    @property
    def message(self):
        """The commit message of the patch, without the marks of an e-mail."""
        return message(self.patch.read_text())

    @property
    def subject(self):
        """The first line of the message."""
        return self.message.partition("\n")[0]

    @property
    def paths(self):
        """All paths that it creates, changes or removes."""
        return sorted({*source.touched_by(self.patch.read_text()), *self.files})

    @property
    def lines(self):
        """How many lines it adds."""
        diff = END_OF_MESSAGE.split(self.patch.read_text(), maxsplit=1)[-1]
        return len(re.findall(r"^\+(?!\+\+ )", diff, re.M)) + sum(
            file.read_bytes().count(b"\n") for path, file in self.files.items()
            if path != source.MAINTAINERS)


def author(repo):
    """The author given by AUTHOR=, else the one that git is configured with."""
    given = os.environ.get("AUTHOR")
    if given:
        return Author.parse(given)
    known = [_configured(repo, key) for key in ("user.name", "user.email")]
    if not all(known):
        raise LabError("git does not know who you are, and a commit needs an author",
                       "give AUTHOR='Name <mail@example.org>', or set user.name and user.email "
                       "with git config")
    return Author.parse("{} <{}>".format(*known))


def _configured(repo, key):
    return subprocess.run(["git", "-C", str(repo), "config", "--get", key], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()


def message(patch):
    """The subject and the text of a patch."""
    head, _, text = END_OF_MESSAGE.split(patch, maxsplit=1)[0].partition("\n\n")
    [subject] = re.findall(r"^Subject: (?:\[[^]]*\] )?(.+)$", re.sub(r"\n[ \t]+", " ", head), re.M)
    return "\n\n".join(part for part in (subject, text.strip()) if part) + "\n"


def signed(text, who):
    """A message with a sign-off line, among the other trailers if there are any."""
    text = text.rstrip("\n")
    last = text.rpartition("\n\n")[2]
    has_trailers = "\n\n" in text and all(TRAILER.match(line) for line in last.splitlines())
    return text + ("\n" if has_trailers else "\n\n") + f"Signed-off-by: {who}\n"


def new_files(text):
    """The content of patches/new-files: patch -> files, and folders that end with a slash."""
    found, patch = {}, None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            patch = line.strip()
            if patch in found:
                raise LabError(f"{NEW_FILES} has {patch} twice", "make one of the two")
            found[patch] = []
        elif patch:
            found[patch].append(line.strip())
        else:
            raise LabError(f"{NEW_FILES} has a file before any patch: {line.strip()}",
                           "put it below the patch that it comes with")
    return found


def commits(repo, src):
    """The commits, in their order. Each new file is in one of them."""
    files = {**dict(source.overlay_files(repo)), **dict(source.suite_files(repo)),
             source.MAINTAINERS: src.tree / source.MAINTAINERS}
    series = source.series_of(repo)
    named = new_files((repo / NEW_FILES).read_text())
    entries = [(name, patch) for patch, names in named.items() for name in names]
    unknown = named.keys() - {patch.name for patch in series}
    wrong = [f"there is no patch {name}" for name in sorted(unknown)]
    of_patch, used = {patch: {} for patch in named}, set()
    for path, file in files.items():
        holders = [(len(name), name, patch) for name, patch in entries
                   if path == name or name.endswith("/") and path.startswith(name)]
        # A folder in a folder may come with another patch.
        closest = [(name, patch) for length, name, patch in holders
                   if length == max(holders)[0]]
        if len(closest) != 1:
            wrong.append(f"{len(closest) or 'no'} commits have {path}")
            continue
        of_patch[closest[0][1]][path] = file
        used.update(closest)
    wrong += [f"{name}, of {patch}, is not there" for name, patch in entries
              if (name, patch) not in used]
    if wrong:
        raise LabError("; ".join(wrong), f"correct {NEW_FILES}")
    return [Commit(patch, of_patch.get(patch.name, {})) for patch in series]


class Repository:
    """A git repository in a folder, for one author."""

    def __init__(self, step, box, folder, who):
        self.step = step
        self.folder = folder
        self.who = who
        self.box = box.with_binds({"/build/linux": folder})

    def git(self, *args, minute=0, box=None, hint=HINT):
        """Run git, at the time of the given minute."""
        date = f"{BEGIN + 60 * minute} +0000"
        env = {**ENV, "GIT_AUTHOR_NAME": self.who.name, "GIT_AUTHOR_EMAIL": self.who.mail,
               "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_NAME": self.who.name,
               "GIT_COMMITTER_EMAIL": self.who.mail, "GIT_COMMITTER_DATE": date}
        self.step.run([*GIT, *args], hint, box or self.box, cwd="/build/linux", env=env)

    def plant(self, version):
        """Make the first commit, of the files that are there."""
        self.git("init", "--quiet", "-b", BRANCH)
        self.git(*INTO_A_PACK, "add", "--all", "--force", ".", hint="see that the disk is not full")
        self.git("commit", "--quiet", "--no-verify", "-m", f"Linux {version}")
        self.git("tag", BASE)

    def commit(self, commit, minute):
        """Make a commit of a patch and its new files."""
        for path, file in commit.files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, self.folder / path)
        box = self.box.with_binds(readonly={"/build/patch": commit.patch})
        self.git("apply", "--index", "--whitespace=nowarn", "/build/patch", box=box,
                 hint=f"{commit.patch.name} does not apply to this tree: refresh it")
        if commit.files:
            self.git("add", "--force", *commit.files)
        self.git("commit", "--quiet", "--no-verify", "--cleanup=verbatim", "-m",
                 signed(commit.message, self.who), minute=minute)

    def grow(self, series):
        """Make all commits on top of the first one."""
        for number, commit in enumerate(series, 1):
            self.commit(commit, number)

    def show(self, name, folder):
        """Check a commit out into another folder, without touching files that are the same."""
        self.step.run([*GIT, "--git-dir", "/build/linux/.git", "--work-tree", "/build/work",
                       "read-tree", "--reset", "-u", name], HINT,
                      self.box.with_binds({"/build/work": folder}), cwd="/build/work",
                      env={**ENV, "GIT_INDEX_FILE": INDEX})

    def export(self, folder):
        """Write the commits as patches for git am."""
        folder.mkdir()
        self.git("format-patch", "--quiet", "--no-signature", "-o", "/build/patches", BASE,
                 box=self.box.with_binds({"/build/patches": folder}))

    def name_lists(self, folder):
        """Write the mailing lists of each patch in a folder. The tree has to be a whole one."""
        self.step.run(["sh", "-c", ASK_FOR_LISTS, "sh", "/build/patches"],
                      "MAINTAINERS does not parse", self.box.with_binds({"/build/patches": folder}),
                      cwd="/build/linux")


def version(src):
    """The version of the kernel, as its Makefile has it."""
    text = (src.pristine("Makefile") or Path("/dev/null")).read_text()
    parts = re.findall(r"^(?:VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", text, re.M)
    return ".".join(parts) + "".join(re.findall(r"^EXTRAVERSION = (\S+)$", text, re.M))


def lay(step, src, folder, paths=None):
    """Copy the upstream tree, or some files of it, into a new folder."""
    if paths is None:
        step.run(["cp", "-a", "--reflink=auto", src.tree, folder], "see that the disk is not full")
        paths = src.managed
    for path in paths:
        file = src.pristine(path)
        if file:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, folder / path)
        else:
            (folder / path).unlink(missing_ok=True)


def differing(step, src, repo, folder, box):
    """The paths at which a tree is not the one that the lab builds.

    That one also has the patches that only tests need: they are applied to copies first.
    """
    tests = source.test_only_of(repo)
    touched = {path for patch in tests for path in source.touched_by(patch.read_text())}
    staging = src.folder / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    for path in touched:
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        # The tree may have no files but those of the series.
        file = folder / path if (folder / path).is_file() else src.pristine(path)
        if file:
            shutil.copy2(file, staging / path)
    source.apply(step, tests, staging, box)
    return [path for path in sorted(src.managed)
            if _content((staging if path in touched else folder) / path)
            != _content(src.tree / path)]


def _content(path):
    """The content and mode that git would store for a file."""
    return (path.read_bytes(), bool(path.stat().st_mode & 0o100)) if path.is_file() else None


def check_same(step, src, repo, folder, box):
    """Check that a tree is the one that the lab builds."""
    paths = differing(step, src, repo, folder, box)
    if paths:
        raise LabError(f"not what the lab builds: {', '.join(paths)}",
                       "a patch does not say the same to git and to patch: refresh it")


def table(series):
    """A line for each series of patches: its commits, their lines, and those of the largest one."""
    rows = [("series", "commits", "lines", "largest")]
    for name in sorted({commit.patch.parent.name for commit in series}):
        lines = [commit.lines for commit in series if commit.patch.parent.name == name]
        rows.append((name, len(lines), sum(lines), max(lines)))
    return [f"{name:<12}{count:>8}{lines:>8}{largest:>9}" for name, count, lines, largest in rows]


def destination(text):
    """The folder that OUT= names, which must be new or empty, like the one of its patches."""
    if not text:
        raise LabError("no OUT= is given", "for example: make tree OUT=../linux-vvram")
    out = Path(text).expanduser().absolute()
    for folder in (out, beside(out)):
        if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            raise LabError(f"{folder} is there, and not an empty folder",
                           "remove it, or name another one with OUT=")
    if not out.parent.is_dir():
        raise LabError(f"{out.parent} is no folder", "make it, or name another one with OUT=")
    return out


def beside(out):
    """The folder of the patches of a tree."""
    return out.with_name(f"{out.name}{PATCHES}")


def make(steps, src, repo, box, out, who):
    """Make the tree and its patches. They get their names only when both are complete."""
    series = commits(repo, src)
    partial = out.with_name(f"{out.name}{cache.PARTIAL}")
    patches = beside(out).with_name(f"{beside(out).name}{cache.PARTIAL}")
    for left in (partial, patches):
        debianroot.remove(left)
    with steps.step("upstream tree") as step:
        lay(step, src, partial)
        repository = Repository(step, box, partial, who)
        repository.plant(version(src))
    with steps.step(f"{len(series)} commits") as step:
        repository.step = step
        repository.grow(series)
        repository.export(patches)
        repository.name_lists(patches)
        for letter in sorted((repo / "patches").glob(f"?-*/{COVER_LETTER}")):
            shutil.copy2(letter, patches / f"cover-letter-{letter.parent.name}.txt")
        check_same(step, src, repo, partial, box)
    patches.rename(beside(out))
    partial.rename(out)
    steps.console.say(f"{out}: branch {BRANCH}, {len(series)} commits by {who} on the tag {BASE}")
    steps.console.say(f"{beside(out)}: the same as patches for git am")
    for line in table(series):
        steps.console.say(line)
