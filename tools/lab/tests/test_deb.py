# SPDX-License-Identifier: GPL-2.0
"""Tests of the packages for a real machine."""

import gzip
import io
import os
import re
import subprocess
import tarfile
import types
import unittest
from pathlib import Path
from unittest import mock

from boot import pipeline
from build import cache, kernel, programs, source, steps
from build.packages import kerneldeb, tooldeb
from build.steps import LabError
from commands import deb
from in_caches import InCaches


class Folder(InCaches):
    def setUp(self):
        super().setUp()
        for name in ("CONFIG", "OUT"):
            os.environ.pop(name, None)


class Tool(Folder):
    """The package of p2p, as dpkg-deb reads it."""

    def setUp(self):
        super().setUp()
        built = [self.top / name for name in (tooldeb.NAME, tooldeb.WITH_VERBS)]
        for path in built:
            path.write_text(f"#!/bin/sh\necho {path.name}\n")
        umask = os.umask(0o077)
        try:
            name = tooldeb.stage(self.top / "tree", pipeline.REPO, built)
        finally:
            os.umask(umask)
        self.package = self.top / name
        subprocess.run([*tooldeb.BUILD, self.top / "tree", self.package], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, **tooldeb.ENV})

    def dpkg(self, *command):
        """The output of dpkg-deb about the package."""
        return subprocess.run(["dpkg-deb", *command], check=True, stdout=subprocess.PIPE).stdout

    def field(self, name):
        """A field of its control file."""
        return self.dpkg("--field", self.package, name).decode().strip()

    def members(self):
        """All that it installs, by path."""
        data = self.dpkg("--fsys-tarfile", self.package)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {member.name: (member, member.isfile() and archive.extractfile(member).read())
                    for member in archive.getmembers()}

    def test_says_what_it_is(self):
        self.assertEqual(self.field("Package"), "p2p")
        self.assertEqual(self.field("Architecture"), "amd64")
        self.assertEqual(self.package.name, f"p2p_{self.field('Version')}_amd64.deb")
        manifest = (pipeline.REPO / programs.TOOL / "Cargo.toml").read_text()
        self.assertIn(f'version = "{self.field("Version")}"', manifest)
        self.assertIn(self.field("Description").splitlines()[0], manifest)
        # A static program depends on nothing.
        self.assertEqual(self.field("Depends"), "")

    def test_installs_programs_and_manual(self):
        members = self.members()
        files = {name.removeprefix("./") for name, (member, _) in members.items()
                 if member.isfile()}
        self.assertEqual(files, {
            "usr/bin/p2p", "usr/bin/p2p-rdma", "usr/share/man/man1/p2p.1.gz",
            "usr/share/doc/p2p/README.rst", "usr/share/doc/p2p/copyright",
            "usr/share/doc/p2p/peer-to-peer-attachment.dot",
            "usr/share/doc/p2p/peer-to-peer-buffer.dot",
            "usr/share/doc/p2p/peer-to-peer-terms.rst",
            "usr/share/doc/p2p/real-machine.rst"})
        manual = gzip.decompress(members["./usr/share/man/man1/p2p.1.gz"][1])
        self.assertEqual(manual, (pipeline.REPO / programs.TOOL / "p2p.1").read_bytes())

    def test_has_the_pages_and_figures_that_it_refers_to(self):
        pages = {Path(name).name: data.decode() for name, (_, data) in self.members().items()
                 if name.endswith(".rst")}
        self.assertIn("tools/p2p/real-machine.rst", pages["README.rst"])
        for name, text in pages.items():
            named = re.findall(r"(?:Documentation/gpu/(?=peer-to-peer-)|tools/p2p/)([\w-]+\.rst)",
                               text)
            self.assertLessEqual(set(named), set(pages), name)
            for figure in re.findall(r"kernel-figure:: (\S+)", text):
                self.assertIn(f"./usr/share/doc/p2p/{figure}", self.members())

    def test_belongs_to_root_whoever_made_it(self):
        for name, (member, _) in self.members().items():
            self.assertEqual((member.uid, member.gid), (0, 0), name)
            mode = 0o755 if member.isdir() or name.startswith("./usr/bin/") else 0o644
            self.assertEqual(member.mode & 0o777, mode, name)

    def test_has_the_digests_of_its_files(self):
        self.dpkg("--control", self.package, self.top / "control")
        sums = (self.top / "control/md5sums").read_text()
        self.assertEqual(len(sums.splitlines()), 9)
        subprocess.run(["md5sum", "--check", "--quiet", "-"], input=sums.encode(), check=True,
                       cwd=self.top / "tree")

    def test_is_the_same_each_time(self):
        again = self.top / "again.deb"
        subprocess.run([*tooldeb.BUILD, self.top / "tree", again], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, **tooldeb.ENV})
        self.assertEqual(again.read_bytes(), self.package.read_bytes())


class ToolAlone(Folder):
    """`make p2p`."""

    def test_the_program_is_beside_the_package(self):
        package = self.top / "package/p2p_1_amd64.deb"
        program = self.top / "package/tree/usr/bin/p2p"
        program.parent.mkdir(parents=True)
        for path in (package, program):
            path.write_text(path.name)
        with mock.patch.object(pipeline, "tools"), \
                mock.patch.object(tooldeb, "ensure", return_value=package):
            made = deb.make_tool(None, self.top / "out")
        self.assertEqual(made, [self.top / "out" / path.name for path in (package, program)])
        self.assertEqual([path.read_text() for path in made], ["p2p_1_amd64.deb", "p2p"])


class Kernel(Folder):
    """How the packages of the kernel are configured, by a make that does nothing."""

    def setUp(self):
        super().setUp()
        self.made = []
        cache.base().mkdir()
        self.work = steps.Steps(steps.Console(io.StringIO()), cache.base() / "logs")
        src = types.SimpleNamespace(key="key", state="state", kconfig="kconfig", tree=self.top)
        box = mock.MagicMock()
        box.with_binds.return_value = box
        self.kernel = lambda: kerneldeb.Kernel(src, box, kerneldeb.configuration())
        run = mock.patch("build.steps.Step.run",
                         lambda _, command, *__, **___: self.pretend(command))
        run.start()
        self.addCleanup(run.stop)
        self.lost = ""

    def pretend(self, command):
        """Write the files that the kernel's make would leave."""
        out = self.kernel().out
        target = command[-1]
        self.made.append(target)
        if target == kerneldeb.DEFCONFIG:
            (out / ".config").write_text("CONFIG_DEFAULT=y\n")
        elif target == "olddefconfig":
            text = (out / ".config").read_text()
            (out / ".config").write_text(text.replace(f"{self.lost}\n", "") if self.lost else text)
        else:
            for name in ("linux-image-7_7-1_amd64", "linux-libc-dev_7-1_amd64",
                         "linux-headers-7_7-1_amd64"):
                (out.parent / f"{name}.deb").touch()

    def test_begins_with_defconfig(self):
        paths = self.kernel().ensure(self.work)
        self.assertEqual(self.made, [kerneldeb.DEFCONFIG, "olddefconfig", "bindeb-pkg"])
        self.assertEqual([path.name.split("-7")[0] for path in paths],
                         ["linux-image", "linux-headers", "linux-libc-dev_7-1_amd64.deb"])
        config = (self.kernel().out / ".config").read_text()
        self.assertIn("CONFIG_DEFAULT=y\n", config)
        for fragment in (kerneldeb.MACHINE, kerneldeb.PEER):
            self.assertEqual(kernel.unmet(fragment.read_text(), config), [])

    def test_begins_with_a_configuration_of_the_machine(self):
        own = self.top / "own.config"
        own.write_text("CONFIG_OWN=y\n")
        os.environ["CONFIG"] = str(own)
        self.kernel().ensure(self.work)
        self.assertEqual(self.made, ["olddefconfig", "bindeb-pkg"])
        config = (self.kernel().out / ".config").read_text()
        self.assertTrue(config.startswith("CONFIG_OWN=y\n"))
        self.assertIn("CONFIG_BAR_EXPORT=m\n", config)
        self.assertNotIn("CONFIG_MEGARAID_SAS", config)
        # Another content makes another configuration.
        own.write_text("CONFIG_OWN=m\n")
        self.kernel().ensure(self.work)
        self.assertEqual(self.made.count("olddefconfig"), 2)

    def test_what_is_there_is_not_made_again(self):
        for _ in range(2):
            paths = self.kernel().ensure(self.work)
            self.assertEqual(len(paths), 3)
        self.assertEqual(self.made.count("bindeb-pkg"), 1)

    def test_an_option_that_is_lost_is_named(self):
        self.lost = "CONFIG_BAR_EXPORT=m"
        with self.assertRaisesRegex(LabError, "CONFIG_BAR_EXPORT=m"):
            self.kernel().ensure(self.work)

    def test_a_list_of_keys_may_be_missing(self):
        self.lost = 'CONFIG_SYSTEM_TRUSTED_KEYS=""'
        self.assertEqual(len(self.kernel().ensure(self.work)), 3)

    def test_a_configuration_that_is_not_there_is_named(self):
        os.environ["CONFIG"] = str(self.top / "none")
        with self.assertRaisesRegex(LabError, "none is no file"):
            kerneldeb.configuration()

    def test_packages_go_where_out_says(self):
        self.assertEqual(deb.destination(str(self.top / "out")), self.top / "out")
        self.assertEqual(deb.destination(None).parent, cache.base())
        with self.assertRaises(LabError):
            deb.destination(str(self.top / "none/out"))


class Tree(unittest.TestCase):
    def test_what_only_tests_need_is_not_in_it(self):
        series = source.series_of(pipeline.REPO)
        self.assertTrue(series)
        self.assertFalse([path for path in series if "test-only" in path.parts])


if __name__ == "__main__":
    unittest.main()
