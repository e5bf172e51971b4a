# SPDX-License-Identifier: GPL-2.0
"""Tests of how the documentation is built."""

import io
import unittest
from unittest import mock

from boot import pipeline
from build import cache, steps
from build.steps import LabError
from commands import docs
from in_caches import InCaches


class Documentation(InCaches):
    def setUp(self):
        super().setUp()
        cache.base().mkdir()
        self.work = steps.Steps(steps.Console(io.StringIO()), cache.base() / "logs")
        self.source = mock.MagicMock(key="key", state="state")
        self.ran = []

    def verdict(self, error=None):
        """Build with a stub of Sphinx that records its calls."""
        def run(_, command, *__, **___):
            self.ran.append(command[0])
            if error:
                raise error

        with mock.patch("build.steps.Step.run", run):
            return docs.verdict(self.work, mock.MagicMock(), self.source)

    def test_all_pages_are_in_reach(self):
        self.assertEqual(self.verdict().result, "pass")
        top = docs.folder() / docs.TOP
        index = (top / "index.rst").read_text()
        names = {str(path.relative_to(pipeline.REPO / docs.TOP).with_suffix(""))
                 for path in (pipeline.REPO / docs.TOP).rglob("*.rst")}
        self.assertIn("gpu/vvram", names)
        for name in names:
            self.assertIn(f"   {name}\n", index)
            self.assertTrue((top / f"{name}.rst").is_file())

    def test_what_has_not_changed_is_not_built_again(self):
        for _ in range(2):
            self.assertEqual(self.verdict().result, "pass")
        self.assertEqual(self.ran, ["sphinx-build"])
        self.source.state = "another"
        self.verdict()
        self.assertEqual(len(self.ran), 2)

    def test_a_warning_fails_until_it_is_gone(self):
        self.assertEqual(self.verdict(LabError("exit status 1")).result, "fail")
        self.assertEqual(self.verdict(LabError("exit status 1")).result, "fail")
        self.assertEqual(self.verdict().result, "pass")
        self.assertIn("-W", docs.SPHINX)

    def test_what_is_gone_is_not_built(self):
        self.verdict()
        old = docs.folder() / docs.TOP / "gpu/old.rst"
        old.touch()
        self.source.state = "another"
        self.verdict()
        self.assertFalse(old.exists())


if __name__ == "__main__":
    unittest.main()
