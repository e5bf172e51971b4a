# SPDX-License-Identifier: GPL-2.0
"""Tests of how the kernel crate is compiled without PCI."""

import contextlib
import re
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import cache
import portable
from steps import LabError


class Steps:
    """Takes note of what is run."""

    def __init__(self, fail=None):
        self.ran = []
        self.fail = fail
        self.out = None

    def current(self, name):
        self.ran.append(f"current: {name}")

    @contextlib.contextmanager
    def step(self, _name):
        yield self

    def count_objects(self):
        pass

    def run(self, argv, _hint, *_box, **_more):
        self.ran.append(argv[-1])
        if argv[-1] == "allnoconfig":
            (self.out / "portable.result").write_text(portable.FRAGMENT.read_text())
        if argv[-1] == self.fail:
            error = LabError("it does not compile", "")
            error.log = "a log"
            raise error


class Portable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        (self.top / "Kconfig").write_text("mainmenu\n")
        patch = mock.patch.object(cache, "base", lambda: self.top)
        patch.start()
        self.addCleanup(patch.stop)

    def run_once(self, state="one", fail=None):
        steps = Steps(fail)
        source = types.SimpleNamespace(key="key", state=state, kconfig="kconfig", tree=self.top)
        box = types.SimpleNamespace(with_binds=lambda *_args, **_more: None)
        steps.out = self.top / f"portable-{cache.digest('key', portable.toolchain.KEY)}"
        [verdict] = portable.run(steps, types.SimpleNamespace(box=box, source=source))
        return verdict.result, steps.ran

    def test_is_compiled_when_something_changed(self):
        self.assertEqual(self.run_once(), ("pass", ["allnoconfig", "prepare"]))
        self.assertEqual(self.run_once(), ("pass", [f"current: {portable.NAME}"]))
        self.assertEqual(self.run_once("two"), ("pass", ["prepare"]))

    def test_what_does_not_compile_fails_each_time(self):
        for _ in range(2):
            result, ran = self.run_once(fail="prepare")
            self.assertEqual(result, "fail")
            self.assertEqual(ran[-1], "prepare")

    def test_has_neither_pci_nor_64_bits(self):
        text = portable.FRAGMENT.read_text()
        for option in ("PCI", "64BIT"):
            self.assertIn(f"# CONFIG_{option} is not set\n", text)
        self.assertIn("CONFIG_WERROR=y\n", text)
        self.assertTrue(re.findall(r"^\tselect \w+$", portable.LAYERS.read_text(), re.M))


if __name__ == "__main__":
    unittest.main()
