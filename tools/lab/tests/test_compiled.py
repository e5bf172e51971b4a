# SPDX-License-Identifier: GPL-2.0
"""Tests of what is compiled in configurations that no guest boots."""

import contextlib
import re
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

from build import cache
from build.steps import LabError
from commands import compiled


IT, WITHOUT_TTM, GPUS = compiled.ALL


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
            (self.out / f"{IT.file}.result").write_text(IT.fragment.read_text())
        if argv[-1] == self.fail:
            error = LabError("it does not compile", "")
            error.log = "a log"
            raise error


class Compiled(unittest.TestCase):
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
        steps.out = self.top / f"{IT.file}-{cache.digest('key', compiled.toolchain.KEY)}"
        verdict = compiled.compiled(steps, types.SimpleNamespace(box=box, source=source), IT)
        return verdict.result, steps.ran

    def test_is_compiled_when_something_changed(self):
        self.assertEqual(self.run_once(), ("pass", ["allnoconfig", "prepare"]))
        self.assertEqual(self.run_once(), ("pass", [f"current: {IT.name}"]))
        self.assertEqual(self.run_once("two"), ("pass", ["prepare"]))

    def test_what_does_not_compile_fails_each_time(self):
        for _ in range(2):
            result, ran = self.run_once(fail="prepare")
            self.assertEqual(result, "fail")
            self.assertEqual(ran[-1], "prepare")

    def test_has_neither_pci_nor_64_bits(self):
        text = IT.fragment.read_text()
        for option in ("PCI", "64BIT"):
            self.assertIn(f"# CONFIG_{option} is not set\n", text)
        self.assertTrue(re.findall(rb"^\tselect \w+$", IT.layers, re.M))

    def test_has_no_ttm(self):
        text = WITHOUT_TTM.fragment.read_text()
        for option in ("DRM_TTM", "RUST_DRM_TTM"):
            self.assertIn(f"# CONFIG_{option} is not set\n", text)
        self.assertEqual(WITHOUT_TTM.layers, b"")
        self.assertIn("drivers/gpu/drm/avram/", WITHOUT_TTM.targets)

    def test_the_drivers_have_peers(self):
        text = GPUS.fragment.read_text()
        for option in ("PCI_P2PDMA", "DRM_XE_PAGEMAP_P2P", "DRM_NOUVEAU_SVM_P2P"):
            self.assertIn(f"CONFIG_{option}=y\n", text)

    def test_warnings_are_errors(self):
        for it in compiled.ALL:
            self.assertIn("CONFIG_WERROR=y\n", it.fragment.read_text())


if __name__ == "__main__":
    unittest.main()
