# SPDX-License-Identifier: GPL-2.0
"""Tests of when a package counts as built."""

import unittest
from pathlib import Path
from unittest import mock

from build import sandbox
from build.packages import rebuilt
from in_caches import InCaches

PACKAGE = rebuilt.Package("name", Path("/nowhere"), "make", ("lib/a*.so", "tests"))


class Packaged(InCaches):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch("build.debianroot.networked", lambda box: box))

    def ensure(self, made):
        """Where a package is whose build leaves these files, and whether it was built now."""
        steps = mock.MagicMock()
        step = steps.step.return_value.__enter__.return_value
        step.run.side_effect = lambda _, hint, box, **where: [
            (box.binds["/build/out"] / name).touch() for name in made]
        return rebuilt.ensure(steps, sandbox.Sandbox("/"), PACKAGE), step.run.called

    def test_a_complete_one_is_kept(self):
        folder, _ = self.ensure(["a1.so", "tests"])
        self.assertEqual({path.name for path in folder.iterdir()}, {"a1.so", "tests"})
        self.assertEqual(self.ensure([]), (folder, False))

    def test_one_without_an_output_is_built_again(self):
        for made in ([], ["a1.so"], ["tests"], ["tests", "b.so"]):
            folder, _ = self.ensure(made)
            self.assertEqual(self.ensure(made), (folder, True), made)
        self.assertEqual(self.ensure(["a1.so", "tests"]), (folder, True))


if __name__ == "__main__":
    unittest.main()
