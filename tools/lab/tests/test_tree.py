# SPDX-License-Identifier: GPL-2.0
"""Tests of the git tree that `make tree` makes, and of building its commits one by one."""

import io
import os
import re
import shutil
import subprocess
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

from boot import pipeline
from build import cache, kernel, source, steps, tree
from build.steps import LabError
from commands import compiled, onebyone

WHO = tree.Author("A. Nother", "a@example.org")
UPSTREAM = """A list of maintainers.

Maintainers List
----------------

ALPHA
M:	One <one@example.org>
F:	alpha/

ZETA OUT OF ORDER
M:	Two <two@example.org>

BETA
S:	Maintained

DELTA
S:	Maintained

THE REST
S:	Buried alive in reporters
"""


def in_repo():
    """The commits of this repository."""
    return tree.commits(pipeline.REPO, types.SimpleNamespace(tree=Path("/nonexistent")))


class Direct:
    """Stands for a sandbox: runs what is to be run in it as it is, with the folders' real paths."""

    def __init__(self, binds=()):
        self.binds = dict(binds)

    def with_binds(self, binds=(), readonly=()):
        """The same with more folders."""
        return Direct({**self.binds, **dict(binds), **dict(readonly)})

    def argv(self, command, cwd="/", env=()):
        """The command with the real paths."""
        def real(text):
            for inside, outside in self.binds.items():
                if text == inside or text.startswith(f"{inside}/"):
                    return f"{outside}{text.removeprefix(inside)}"
            return text
        return ["env", "-C", real(cwd), *(f"{key}={value}" for key, value in dict(env).items()),
                *(real(str(part)) for part in command)]


class Commits(unittest.TestCase):
    def test_each_patch_is_in_one(self):
        self.assertEqual([commit.patch for commit in in_repo()], source.series_of(pipeline.REPO))

    def test_each_new_file_is_in_one(self):
        files = [path for commit in in_repo() for path in commit.files]
        ours = [*source.overlay_files(pipeline.REPO), *source.suite_files(pipeline.REPO)]
        self.assertEqual(sorted(files), sorted([*(path for path, _ in ours), source.MAINTAINERS]))

    def test_table_of_the_series(self):
        head, *rows = tree.table(in_repo())
        self.assertEqual(head.split(), ["series", "commits", "lines", "largest"])
        self.assertEqual([row.split()[0][:2] for row in rows], ["a-", "b-", "c-", "d-", "e-", "f-"])
        self.assertEqual(sum(int(row.split()[1]) for row in rows), len(in_repo()))

    def test_patches_for_tests_are_in_none(self):
        self.assertFalse([commit for commit in in_repo() if "test-only" in str(commit.patch)])
        self.assertTrue(source.test_only_of(pipeline.REPO))

    def test_what_is_built_comes_with_what_builds_it(self):
        """A helper with its #include, the file of a module with its declaration."""
        there = set()
        for commit in in_repo():
            there |= set(commit.files)
            patch = commit.patch.read_text()
            included = re.findall(r'^\+#include "(.+\.c)"$', patch, re.M)
            self.assertEqual(sorted(f"rust/helpers/{name}" for name in included), sorted(
                path for path in commit.files if path.startswith("rust/helpers/")), commit.subject)
            for name in re.findall(r"^\+pub mod (\w+);$", patch, re.M):
                self.assertTrue(any(path.endswith((f"/{name}.rs", f"/{name}/mod.rs"))
                                    for path in commit.paths), f"{commit.patch.name}: {name}")
            for path in re.findall(r'^\+source "(.+)"$', patch, re.M):
                self.assertIn(path, there)

    def made(self, new_files, patches=("1.patch", "2.patch"), files=("rust/a", "rust/b/c")):
        """The commits of a repository."""
        with tempfile.TemporaryDirectory() as folder:
            repo = Path(folder)
            for path in [*(f"patches/a-x/{name}" for name in patches), *files]:
                (repo / path).parent.mkdir(parents=True, exist_ok=True)
                (repo / path).touch()
            (repo / tree.NEW_FILES).write_text(new_files)
            return [[commit.patch.name, *sorted(commit.files)] for commit in
                    tree.commits(repo, types.SimpleNamespace(tree=repo))]

    def test_are_what_the_list_says(self):
        self.assertEqual(self.made("# head\n\n2.patch\n\trust/b/\n\trust/a\n\tMAINTAINERS\n"),
                         [["1.patch"], ["2.patch", "MAINTAINERS", "rust/a", "rust/b/c"]])

    def test_folder_in_a_folder_may_be_of_another(self):
        self.assertEqual(self.made("1.patch\n\trust/\n2.patch\n\trust/b/\n\tMAINTAINERS\n"),
                         [["1.patch", "rust/a"], ["2.patch", "MAINTAINERS", "rust/b/c"]])

    def test_mistakes_of_the_list_are_told(self):
        good = "1.patch\n\trust/a\n\trust/b/\n\tMAINTAINERS\n"
        for text, says in ((good + "2.patch\n\trust/a\n", "2 commits have rust/a"),
                           (good + "3.patch\n", "there is no patch 3.patch"),
                           (good.replace("\trust/a\n", ""), "no commits have rust/a"),
                           (good.replace("rust/b/", "rust/b"), "rust/b, of 1.patch, is not there"),
                           (good.replace("\tMAINTAINERS\n", ""), "no commits have MAINTAINERS"),
                           (good + "1.patch\n", "has 1.patch twice"), ("\trust/a\n" + good, "any")):
            with self.assertRaisesRegex(LabError, re.escape(says)):
                self.made(text)


class Messages(unittest.TestCase):
    def test_have_no_marks_of_an_e_mail(self):
        for end in ("---\n a | 1 +\n\ndiff --git a/a b/a\n", "diff --git a/a b/a\n",
                    "--- a/a\n+++ b/a\n", "--- /dev/null\n+++ b/a\n"):
            text = f"Subject: [PATCH] rust: a subject\n that is long\n\nSome: text.\n\nMore.\n{end}"
            self.assertEqual(tree.message(text),
                             "rust: a subject that is long\n\nSome: text.\n\nMore.\n")

    def test_are_signed_among_the_trailers(self):
        line = "Signed-off-by: A. Nother <a@example.org>\n"
        for before, after in (("subject\n", "subject\n\n"), ("subject: of\n", "subject: of\n\n"),
                              ("s\n\nText.\n", "s\n\nText.\n\n"),
                              ("s\n\nText:\nnot one\n", "s\n\nText:\nnot one\n\n"),
                              ("s\n\nText.\n\nFixes: 1 (a)\n", "s\n\nText.\n\nFixes: 1 (a)\n")):
            self.assertEqual(tree.signed(before, WHO), after + line)

    def test_of_this_repository_are_for_git(self):
        for commit in in_repo():
            first, second, *_ = commit.message.split("\n")
            self.assertRegex(first, r"^\w[\w/-]*: \S.{10,}[^.]$")
            self.assertLessEqual(len(first), 75, first)
            self.assertEqual(second, "")
            self.assertNotIn("Signed-off-by", commit.message)


class Authors(unittest.TestCase):
    NO_CONFIG = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}

    def author(self, given, config=None):
        """The author that the environment, or the configuration of git, names."""
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.dict(os.environ, {**self.NO_CONFIG, "AUTHOR": given}):
            subprocess.run(["git", "init", "-q", folder], check=True)
            for key, value in (config or {}).items():
                subprocess.run(["git", "-C", folder, "config", key, value], check=True)
            return str(tree.author(Path(folder)))

    def test_is_the_one_asked_for(self):
        config = {"user.name": "G. It", "user.email": "g@example.org"}
        self.assertEqual(self.author(str(WHO), config), str(WHO))
        self.assertEqual(self.author("", config), "G. It <g@example.org>")

    def test_is_told_how_to_be_given(self):
        for config in ({}, {"user.name": "G. It"}, {"user.email": "g@example.org"}):
            with self.assertRaisesRegex(LabError, "git does not know who you are") as caught:
                self.author("", config)
            self.assertIn("AUTHOR='Name <mail@example.org>'", caught.exception.hint)
        for text in ("a", "a@example.org", "<a@example.org>", "A <a>", "A <a@b> x", "A <a@b>\nB:"):
            with self.assertRaisesRegex(LabError, "is no name with an address"):
                self.author(text)


class Destinations(unittest.TestCase):
    def test_are_new_or_empty(self):
        with tempfile.TemporaryDirectory() as folder:
            top = Path(folder)
            (top / "empty").mkdir()
            (top / "full").mkdir()
            (top / "full/file").touch()
            (top / "beside.patches").mkdir()
            (top / "beside.patches/file").touch()
            (top / "broken").symlink_to("nowhere")
            for name in ("new", "empty"):
                self.assertEqual(tree.destination(str(top / name)), top / name)
            for name in ("full", "full/file", "beside", "broken", "none/new"):
                with self.assertRaises(LabError):
                    tree.destination(str(top / name))
        with self.assertRaisesRegex(LabError, "no OUT= is given"):
            tree.destination(None)


class Maintainers(unittest.TestCase):
    def test_sections_come_where_the_alphabet_has_them(self):
        ours = "BETAMAX\nS:\tMaintained\nF:\tbeta/\n\nZULU\nS:\tMaintained\n"
        text = source.with_sections(UPSTREAM, ours)
        titles = [line for line in text.split("\n") if line.isupper() and ":" not in line]
        self.assertEqual(titles, ["ALPHA", "ZETA OUT OF ORDER", "BETA", "BETAMAX", "DELTA", "ZULU",
                                  "THE REST"])
        for section in ours.strip().split("\n\n"):
            self.assertIn(f"\n\n{section}\n\n", text)
            text = text.replace(f"{section}\n\n", "")
        self.assertEqual(text, UPSTREAM)


class Small(unittest.TestCase):
    """A tree of a few files, and a repository for it."""

    FIRST = "Subject: [PATCH] x: first\n\nText.\n---\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+new\n"
    SECOND = ("Subject: [PATCH] x: second\n\nText.\n\nFixes: 1 (\"a\")\n---\n--- a/Kconfig\n"
              "+++ b/Kconfig\n@@ -1 +1,2 @@\n config A\n+config B\n")
    LIST = "2.patch\n\tdrivers/\n\tMAINTAINERS\n"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        top = Path(folder.name)
        self.enterContext(mock.patch.dict(os.environ, {"XDG_CACHE_HOME": folder.name}))
        self.repo, self.top = top / "repo", top
        for path, text in (("patches/a-x/1.patch", self.FIRST), ("patches/a-x/2.patch", self.SECOND),
                           (tree.NEW_FILES, self.LIST), ("drivers/d", "d\n"),
                           ("drivers/Kconfig", "config C\n"),
                           ("MAINTAINERS", "B\nS:\tMaintained\n")):
            (self.repo / path).parent.mkdir(parents=True, exist_ok=True)
            (self.repo / path).write_text(text)
        (self.repo / "drivers/d").chmod(0o755)
        self.src = source.Source(top / "source", "key")
        # As sync() leaves it.
        (self.src.tree / "drivers").mkdir(parents=True)
        (self.src.tree / "scripts").mkdir()
        for path, text in (("scripts/get_maintainer.pl", 'print "list\\@example.org\\n";\n'),
                           ("f", "new\n"), ("Kconfig", "config A\nconfig B\n"), ("ignored", "i\n"),
                           (".gitignore", "ignored\n"), ("drivers/d", "d\n"),
                           ("drivers/Kconfig", "config C\n"), ("Makefile",
                           "VERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\nEXTRAVERSION =\n"),
                           ("MAINTAINERS", "A\nS:\tx\n\nB\nS:\tMaintained\n\nTHE REST\nS:\tx\n")):
            (self.src.tree / path).write_text(text)
        (self.src.tree / "drivers/d").chmod(0o755)
        originals = self.src.folder / "originals"
        originals.mkdir()
        for path, text in (("f", "old\n"), ("Kconfig", "config A\n"),
                           ("MAINTAINERS", "A\nS:\tx\n\nTHE REST\nS:\tx\n")):
            (originals / path).write_text(text)
        cache.write(self.src.folder / "managed.json",
                    b'["f", "Kconfig", "MAINTAINERS", "drivers/d", "drivers/Kconfig"]')
        self.console = steps.Console(io.StringIO())
        self.steps = steps.Steps(self.console, top / "logs")

    def make(self, name="out", who=WHO):
        """Make a tree."""
        out = self.top / name
        tree.make(self.steps, self.src, self.repo, Direct(), out, who)
        return out

    @staticmethod
    def git(out, *args):
        """The output of git about a tree."""
        return subprocess.run(["git", "-C", str(out), *args], check=True, text=True,
                              stdout=subprocess.PIPE).stdout


class Trees(Small):
    def test_have_a_commit_for_each_step(self):
        out = self.make()
        self.assertEqual(self.git(out, "log", "--reverse", "--format=%B%an %ae %cn %ce"),
                         "Linux 7.3.4\nA. Nother a@example.org A. Nother a@example.org\n"
                         f"x: first\n\nText.\n\nSigned-off-by: {WHO}\n"
                         "A. Nother a@example.org A. Nother a@example.org\n"
                         f"x: second\n\nText.\n\nFixes: 1 (\"a\")\nSigned-off-by: {WHO}\n"
                         "A. Nother a@example.org A. Nother a@example.org\n")
        times = self.git(out, "log", "--reverse", "--date=unix", "--format=%ad %cd").split()
        self.assertEqual(times, [str(tree.BEGIN + 60 * minute) for minute in (0, 0, 1, 1, 2, 2)])
        changed = self.git(out, "log", "--reverse", "--format=", "--name-status", f"{tree.BASE}..")
        self.assertEqual(changed.split("\n\n")[0].split(), [
            "M", "f", "M", "Kconfig", "M", "MAINTAINERS", "A", "drivers/Kconfig", "A", "drivers/d"])
        self.assertEqual(self.git(out, "status", "--porcelain", "--ignored"), "")
        self.assertEqual(self.git(out, "ls-files", "-s", "drivers/d").split()[0], "100755")
        self.assertEqual(self.git(out, "show", f"{tree.BASE}:ignored"), "i\n")
        self.assertEqual(self.git(out, "show", f"{tree.BASE}:f"), "old\n")

    def test_are_what_the_lab_builds(self):
        out = self.make()
        for file in self.src.tree.rglob("*"):
            if file.is_file():
                copy = out / file.relative_to(self.src.tree)
                self.assertEqual(copy.read_bytes(), file.read_bytes())
                self.assertEqual(copy.stat().st_mode, file.stat().st_mode)
        self.assertFalse(list(self.top.glob(f"*{cache.PARTIAL}")))

    def test_that_differ_from_it_are_not_made(self):
        for path in ("f", "drivers/d", "MAINTAINERS"):
            good = (self.src.tree / path).read_text()
            (self.src.tree / path).write_text("other\n")
            # The file of the commit is the one of the lab.
            other = "f" if path == "MAINTAINERS" else path
            (self.src.tree / other).write_text("other\n")
            with self.assertRaisesRegex(LabError, f"not what the lab builds: .*{other}"):
                self.make()
            self.assertFalse((self.top / "out").exists())
            (self.src.tree / path).write_text(good)
            (self.src.tree / other).write_text({"f": "new\n", "drivers/d": "d\n"}[other])

    def test_of_other_modes_are_not_made(self):
        (self.src.tree / "drivers/d").chmod(0o644)
        with self.assertRaisesRegex(LabError, "not what the lab builds: drivers/d"):
            self.make()

    def test_of_one_author_are_equal(self):
        heads = [self.git(self.make(name, who), "rev-parse", "HEAD")
                 for name, who in (("a", WHO), ("b", WHO), ("c", tree.NOBODY))]
        self.assertEqual(heads[0], heads[1])
        self.assertNotEqual(heads[0], heads[2])

    def test_come_with_patches_for_git_am(self):
        letter = self.repo / "patches/a-x" / tree.COVER_LETTER
        letter.write_text("Subject: [PATCH 0/2] x\n")
        out = self.make()
        self.git(out, "checkout", "-q", "-b", "again", tree.BASE)
        *patches, cover, lists = sorted((self.top / "out.patches").iterdir())
        self.assertEqual([patch.name for patch in patches], ["0001-x-first.patch",
                                                             "0002-x-second.patch"])
        self.assertEqual((cover.name, cover.read_text()),
                         ("cover-letter-a-x.txt", letter.read_text()))
        self.assertEqual(lists.read_text().splitlines(), [
            "0001-x-first.patch", "list@example.org", "0002-x-second.patch", "list@example.org"])
        self.assertIn("\n-old\n+new\n", patches[0].read_text())
        self.assertIn("\n+config C\n", patches[1].read_text())
        self.git(out, "-c", "user.name=x", "-c", "user.email=x@example.org", "am", "-q", *map(
            str, patches))
        self.assertEqual(self.git(out, "diff", tree.BRANCH), "")
        self.assertEqual(self.git(out, "log", "-1", "--format=%an <%ae>").strip(), str(WHO))

    def test_say_which_patch_does_not_apply(self):
        (self.repo / "patches/a-x/1.patch").write_text(self.FIRST.replace("-old", "-other"))
        with self.assertRaises(LabError) as caught:
            self.make()
        self.assertIn("1.patch does not apply", caught.exception.hint)
        self.assertFalse((self.top / "out").exists())


class OneByOne(Small):
    def setUp(self):
        super().setUp()
        self.series = tree.commits(self.repo, self.src)

    def test_options_are_asked_for_once_they_are_there(self):
        self.assertEqual(onebyone.not_yet(self.series), [{"B", "C"}, set()])
        with mock.patch.object(onebyone, "wanted", lambda: "CONFIG_A=y\nCONFIG_C=y\n"):
            self.assertEqual(onebyone.lost("CONFIG_A=y\n", {"B", "C"}), [])
            self.assertEqual(onebyone.lost("CONFIG_A=y\n", set()), ["CONFIG_C=y"])
            self.assertEqual(onebyone.lost("CONFIG_C=y\n", {"B", "C"}), ["CONFIG_A=y"])

    def test_everything_that_there_is_is_asked_for(self):
        asked = set(onebyone.NAME.findall(onebyone.wanted()))
        # Of large drivers only some files are compiled, of the last commit.
        for it in compiled.ALL:
            asked |= set(onebyone.NAME.findall(it.fragment.read_text()))
        series = in_repo()
        there = onebyone.not_yet([series[0], *series])[0]
        self.assertGreaterEqual(len(there), 5)
        self.assertLessEqual(there, asked)

    def test_what_counts_is_the_content(self):
        before = onebyone.contents(self.src, self.series)
        (self.repo / "patches/a-x/1.patch").write_text(self.FIRST.replace("Text.", "Other text."))
        self.assertEqual(onebyone.contents(self.src, self.series), before)
        (self.repo / "drivers/d").write_text("other\n")
        after = onebyone.contents(self.src, self.series)
        self.assertEqual([a == b for a, b in zip(before, after)], [True, False])
        # The first one leaves the options as they are upstream.
        self.assertEqual([content == options for content, options in after], [False, True])
        self.assertEqual(after[0][1], self.src.key)
        (self.repo / "patches/a-x/1.patch").write_text(self.FIRST.replace("+new", "+newer"))
        for (new, _), (old, _) in zip(onebyone.contents(self.src, self.series), after):
            self.assertNotEqual(new, old)

    def run_all(self, fail=()):
        """Build all commits, some of which do not build; return the verdicts and what was built."""
        ran = []

        def made(step, repository, _, build):
            subject = self.git(repository.folder, "log", "-1", "--format=%s",
                               onebyone.tag(build.commit))
            self.assertEqual(subject.strip(), build.commit.subject)
            ran.append((build.commit.patch.name, build.arch))
            if ran[-1] in fail:
                raise LabError("no", "hint", step.log)

        with mock.patch.object(pipeline, "sources", lambda _: (Direct(), self.src)), \
                mock.patch.object(pipeline, "REPO", self.repo), \
                mock.patch.object(onebyone, "made", made):
            verdicts = onebyone.run(self.steps)
        return [(verdict.name, verdict.result) for verdict in verdicts], ran

    def test_each_is_built_for_each_architecture(self):
        verdicts, ran = self.run_all(fail=[("1.patch", "arm64")])
        self.assertEqual(verdicts, [("x86_64: 1.patch", "pass"), ("arm64: 1.patch", "fail"),
                                    ("x86_64: 2.patch", "pass"), ("arm64: 2.patch", "pass")])
        self.assertEqual(len(ran), 4)
        said = self.console.stream.getvalue()
        self.assertIn("1/2 arm64: x: first: does NOT build", said)
        self.assertRegex(said, r"\n[\d.]+ s +FAILS +x: first\n[\d.]+ s +[\d.]+ s +x: second\n$")
        # Commits that were built are not built again, the others are.
        verdicts, ran = self.run_all()
        self.assertEqual({result for _, result in verdicts}, {"pass"})
        self.assertEqual(ran, [("1.patch", "arm64")])
        self.assertEqual(self.run_all()[1], [])
        (self.repo / "drivers/d").write_text("other\n")
        (self.src.tree / "drivers/d").write_text("other\n")
        self.assertEqual([name for name, _ in self.run_all()[1]], ["2.patch"] * 2)

    def test_is_configured_when_a_kconfig_file_changes(self):
        ran, result = [], ["CONFIG_A=y\n"]

        def run(command, *_, **__):
            ran.append("config" if "allnoconfig" in command else command[-1])
            if ran[-1] == "config":
                (self.top / "arm64/tree.result").write_text(result[0])

        step = mock.MagicMock(run=run)
        repository = mock.MagicMock()
        (self.top / "sources").mkdir()
        shutil.copy2(self.src.tree / "Kconfig", self.top / "sources")
        (_, first), (_, second) = onebyone.planned(self.src, self.series)
        with mock.patch.object(onebyone, "wanted", lambda: "CONFIG_A=y\nCONFIG_C=y\n"):
            onebyone.made(step, repository, self.top, first)
            onebyone.made(step, repository, self.top, first)
            self.assertEqual(ran, ["config", "modules", "modules"])
            self.assertEqual((self.top / "arm64/.config").read_text(), result[0])
            repository.show.assert_called_with("1", self.top / "sources")
            # The configuration lacks the option that the second commit adds: each try asks for it.
            for _ in range(2):
                with self.assertRaisesRegex(LabError, "as asked for: CONFIG_C=y"):
                    onebyone.made(step, repository, self.top, second)
            result[0] += "CONFIG_C=y\n"
            onebyone.made(step, repository, self.top, second)
        self.assertEqual(ran[3:], ["config"] * 3 + ["modules"])
        kconfig = (self.top / "arm64/tree.Kconfig").read_text()
        self.assertTrue(kconfig.startswith((self.src.tree / "Kconfig").read_text()))
        self.assertTrue(kconfig.endswith(onebyone.LAYERS.read_text()))

    def test_a_commit_costs_what_it_changes(self):
        sources = self.top / "sources"
        sources.mkdir()
        with self.steps.step("x") as step, mock.patch.object(pipeline, "REPO", self.repo):
            repository = onebyone.refreshed(step, self.src, Direct(), self.top / "x", self.series)
            repository.show("1", sources)
            self.assertEqual((sources / "Kconfig").read_text(), "config A\n")
            before = (sources / "f").stat()
            # In between there were other commits.
            repository = onebyone.refreshed(step, self.src, Direct(), self.top / "x", self.series)
            repository.show("2", sources)
        self.assertEqual((sources / "f").read_text(), "new\n")
        self.assertEqual((sources / "f").stat().st_mtime_ns, before.st_mtime_ns)
        self.assertEqual((sources / "Kconfig").read_text(), "config A\nconfig B\n")
        self.assertEqual((sources / "drivers/d").stat().st_mode & 0o777, 0o755)

    def test_is_a_flavour_of_soak_alone(self):
        self.assertNotIn(onebyone.FLAVOUR, kernel.FLAVOURS)


if __name__ == "__main__":
    unittest.main()
