# SPDX-License-Identifier: GPL-2.0
"""Tests of the gate of the layers."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

from commands import layers

LAYERS = ((("low",), "at the bottom"), (("mid",), ""), (("top::a", "top::b"), "at the top"))
FILES = {
    "rust/kernel/low.rs": """// use crate::mid;
pub(crate) mod inner;
pub use self::inner::{Thing, Other as Another};
""",
    "rust/kernel/low/inner.rs": "pub struct Thing; pub struct Other;\n",
    "rust/kernel/mid/mod.rs": "use crate::low::{self, Thing};\nfn f() { low::inner::g(); }\n",
    "rust/kernel/top/mod.rs": "pub use self::a::A;\npub use super::low::Another;\n",
    "rust/kernel/top/a.rs": "use crate::{\n    mid::*,\n    top::Another, //\n};\nfn f() -> A { }\n",
    "rust/kernel/top/b.rs": "use super::A;\n",
    "drivers/x/x.rs": "use kernel::top::A;\n",
}


class Layers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name)
        for name, text in FILES.items():
            self.write(name, text)
        for name, value in (("LAYERS", LAYERS), ("DRIVERS", {"x": "drivers/x"})):
            patch = mock.patch.object(layers, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def write(self, name, text):
        """Put a file into the tree."""
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text(text)

    def arrows(self):
        """The arrows of the tree."""
        return set(layers.arrows(layers.Code(self.tree)))

    def test_paths_of_a_use(self):
        found = dict((name, path) for path, name in
                     layers.leaves("crate::{\n a::{self, b as c}, d::e,\n}"))
        self.assertEqual(found, {"a": ("crate", "a"), "c": ("crate", "a", "b"),
                                 "e": ("crate", "d", "e")})

    def test_arrows_lead_to_what_is_behind_a_re_export(self):
        self.assertEqual(self.arrows(), {(1, 0), (2, 1), (2, 0)})
        self.assertEqual(layers.wrong(layers.Code(self.tree)), [])

    def test_arrow_that_goes_up(self):
        for text in ("use crate::mid::F;\n", "use super::super::mid;\n",
                     "use crate::mid as other;\nfn f() { other::f() }\n",
                     "fn f() { crate::mid::f() }\n", "pub(crate) use crate::mid::F;\n",
                     "fn f() { ::kernel::mid::f() }\n", "use crate::mid::*;\nuse crate::low::*;\n",
                     "fn f() { use crate::mid::F; }\nfn g() { use crate::low::F; }\n",
                     "fn f() { g('\"'); crate::mid::f(); g('\"') }\n",
                     "fn f() {}\nmod tests {\n    use super::super::super::mid::F;\n}\n"):
            self.write("rust/kernel/low/inner.rs", text)
            self.assertEqual(layers.problems(self.tree), ["low::inner imports mid, which is above it"])

    def test_picture_has_no_arrow_that_others_make(self):
        picture = layers.picture(layers.Code(self.tree))
        self.assertIn('\ttop [label = "top\\nat the top"];', picture)
        self.assertNotIn("mid", picture)
        self.assertEqual([line for line in picture.splitlines() if " -> " in line],
                         ["\ttop -> low;", "\tx -> top;"])
        self.assertEqual(layers.problems(self.tree), [f"{layers.PICTURE} is not the picture of the imports"])
        self.write(layers.PICTURE, picture)
        self.assertEqual(layers.problems(self.tree), [])
