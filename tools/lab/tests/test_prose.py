# SPDX-License-Identifier: GPL-2.0
"""Tests of the measure of the prose."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from commands import prose

RUST = """// SPDX-License-Identifier: GPL-2.0

//! The buffers that a driver exports, which are revoked.
//!
//! # That is a heading
//!
//! ```
//! // The code that is shown, which counts nothing.
//! ```
use that::which; // that which that which

/// Returns the size, in bytes, of `that_which(a, b)`.
///
/// - `EINVAL` if the size is zero. The size
///   of a page is not.
fn that() {}
"""
PAGE = """.. SPDX-License-Identifier: GPL-2.0

That is a title
===============

A page that is short, and a list:

* one buffer that was exported

======  ==========================
that    which that which that which
======  ==========================

The call is::

  that(which, that, which)

It returns ``that``, a number.
"""


class Prose(unittest.TestCase):
    def measured(self, name, text):
        """The measure of one file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(text)
            return prose.measure([path])

    def test_counts_comments_and_neither_code_nor_examples(self):
        found = self.measured("a.rs", RUST)
        self.assertEqual((found.sentences, found.clauses, found.commas), (4, 2, 3))

    def test_counts_pages_and_neither_tables_nor_literals(self):
        found = self.measured("a.rst", PAGE)
        self.assertEqual((found.sentences, found.clauses, found.commas), (4, 2, 2))

    def test_complains_above_a_limit(self):
        with tempfile.TemporaryDirectory() as folder:
            repo = Path(folder)
            (repo / "a.rs").write_text("/// One word that is there, in ten words or less here.\n")
            for clauses, commas, count in ((90.0, 1.0, 1), (91.0, 0.9, 1), (91.0, 1.0, 0)):
                part = ("all", ("a.rs",), ".rs", clauses, commas)
                with mock.patch.object(prose, "PARTS", (part,)):
                    self.assertEqual(len(prose.complaints(repo)), count, (clauses, commas))
