# SPDX-License-Identifier: GPL-2.0
"""Tests of how it is judged what the compiler refuses."""

import unittest

from commands import refused


class Judge(unittest.TestCase):
    LOG = """  CLIPPY [M] one.o
error[E0599]: no method named `map` found for struct `A` in the current scope
   --> /build/refused-src/one.rs:16:16
    |
 16 |     let _ = at.map();

error: aborting due to 1 previous error

error: lifetime may not live long enough
  --> /build/refused-src/another_one.rs:35:28
"""

    def result(self, name, says):
        return refused.judge(name, says, self.LOG).result

    def test_the_error_has_to_be_the_one_that_is_meant(self):
        self.assertEqual(self.result("one", "E0599"), "pass")
        self.assertEqual(self.result("one", "E0308"), "fail")
        self.assertEqual(self.result("another_one", "lifetime may not"), "pass")
        self.assertEqual(self.result("another_one", "E0599"), "fail")

    def test_what_is_accepted_fails(self):
        self.assertEqual(self.result("two", "E0599"), "fail")

    def test_each_file_says_what_it_expects(self):
        files = sorted(refused.FOLDER.glob("*.rs"))
        self.assertTrue(files)
        for file in files:
            self.assertTrue(refused.wanted(file.read_text()), file)


if __name__ == "__main__":
    unittest.main()
