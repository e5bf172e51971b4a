# SPDX-License-Identifier: GPL-2.0
"""Tests of the folders of the lab: imports between them go one way."""

import ast
import unittest
from pathlib import Path

LAB = Path(__file__).resolve().parents[1]
# Each of them imports itself, and those before it.
ORDER = ("build", "boot", "judge", "commands")


def imported(path):
    """The folders that a file imports from; one without a name if an import is relative."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("" if node.level else node.module.partition(".")[0])
    return found


class Folders(unittest.TestCase):
    def test_none_imports_from_one_behind_it(self):
        for number, folder in enumerate(ORDER):
            files = sorted((LAB / folder).rglob("*.py"))
            self.assertTrue(any(folder in imported(path) for path in files), folder)
            for path in files:
                self.assertFalse(imported(path) & {"", *ORDER[number + 1:]}, path)

    def test_each_module_is_in_one(self):
        self.assertEqual([path.name for path in LAB.glob("*.py")], ["__main__.py"])
        self.assertEqual({path.parent.name for path in LAB.glob("*/*.py")}, {*ORDER, "tests"})


if __name__ == "__main__":
    unittest.main()
