# SPDX-License-Identifier: GPL-2.0
"""Tests of the evaluation of KUnit's results. The parser is that of the kernel tree."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from boot import pipeline, plan
from commands import check
from judge import ktap, suites

TREE = os.environ.get(check.TREE)


@unittest.skipUnless(TREE, f"{check.TREE}= names no kernel tree")
class Ktap(unittest.TestCase):
    SUITE = """KTAP version 1
1..1
    KTAP version 1
    # Subtest: suite
    # module: mod
    1..3
    ok 1 first
    # second: EXPECTATION FAILED at x.c:1
    Expected 1 == 0, but
pci 0000:00:01.0: something in between
    not ok 2 second
    ok 3 third # SKIP no device
# suite: pass:1 fail:1 skip:1 total:3
# Totals: pass:1 fail:1 skip:1 total:3
not ok 1 suite
"""
    PARAMETERS = """KTAP version 1
1..1
    KTAP version 1
    # Subtest: many
    1..2
        KTAP version 1
        # Subtest: each
        1..2
        ok 1 one
        {} 2 two
    # each: pass:1 fail:1 skip:0 total:2
    {} 1 each
    ok 2 other
{} 1 many
"""
    NONE = "KTAP version 1\n1..0\n"
    EXPECTED = [("suite.first", "pass", ""),
                ("suite.second", "fail", "second: EXPECTATION FAILED at x.c:1"),
                ("suite.third", "skip", "no device")]

    def results(self, text):
        """The results of a log with these lines."""
        stamped = [f"<{4 if 'FAILED' in line else 6}>[    1.{n:06}] {line}\r\n"
                   for n, line in enumerate(text.splitlines())]
        return ktap.results("SeaBIOS\n<5>[    0.000000] Linux\n" + "".join(stamped), Path(TREE))

    def test_each_case_counts_once(self):
        self.assertEqual(self.results(self.SUITE), self.EXPECTED)

    def test_each_document_counts(self):
        good = self.PARAMETERS.format("ok", "ok", "ok")
        self.assertEqual(self.results(good + "x\n" + self.SUITE + good),
                         [("many.each", "pass", ""), ("many.other", "pass", ""), *self.EXPECTED,
                          ("many.each", "pass", ""), ("many.other", "pass", "")])

    def test_no_suites_at_all(self):
        self.assertEqual(self.results(self.NONE + self.SUITE), self.EXPECTED)
        self.assertEqual(self.results(""), [])

    def test_a_parameter_that_fails(self):
        other = ("many.other", "pass", "")
        for words in (("not ok", "not ok", "not ok"), ("not ok", "ok", "ok")):
            self.assertEqual(self.results(self.PARAMETERS.format(*words)),
                             [("many.each", "fail", "two"), other])
        text = self.PARAMETERS.format("ok", "not ok", "not ok")
        self.assertEqual([case[:2] for case in self.results(text)],
                         [("many.each", "fail"), other[:2]])

    def test_a_suite_that_stopped_fails(self):
        """Wherever the log ends before its end, something fails."""
        for text in (self.SUITE.replace("not ok", "ok"), self.PARAMETERS.format("ok", "ok", "ok")):
            lines = text.splitlines()
            self.assertNotIn("fail", [case[1] for case in self.results(text)])
            for end in range(1, len(lines)):
                if lines[end - 1].startswith("ok 1 "):
                    break
                found = self.results("\n".join(lines[:end]))
                self.assertIn("fail", [case[1] for case in found], lines[:end])
                # The next suite does not suffer.
                found = self.results("\n".join([*lines[:end], *self.SUITE.splitlines()]))
                self.assertEqual(found[-3:], self.EXPECTED)
        cut = self.SUITE[:self.SUITE.index("    not ok 2")]
        self.assertEqual(self.results(cut),
                         [self.EXPECTED[0], ("suite", "fail", "ended after 1 of 3 cases")])

    def test_a_document_that_stopped_fails(self):
        start = "KTAP version 1\n"
        self.assertEqual(self.results(f"{start}1..2\nok 1 a\n"),
                         [("a", "pass", ""), ("KUnit", "fail", "1 of 2 suites did not run")])
        self.assertEqual([case[:2] for case in self.results(start)], [("KUnit", "fail")])

    def test_what_the_parser_does_not_understand_fails(self):
        found = self.results(self.PARAMETERS.format("ok", "ok", "ok").replace("ok 2 o", "ok 3 o"))
        self.assertEqual(found[2:], [
            ("KUnit", "fail", "Test: other: Expected test number 2 but found 3")])

    def test_suites_that_have_no_cases(self):
        for line, result in (("ok 1 suite # SKIP no device", ("suite", "skip", "no device")),
                             ("not ok 1 suite", ("suite", "fail", "failure"))):
            self.assertEqual(self.results(f"KTAP version 1\n1..1\n{line}\n"), [result])

    def test_a_suite_that_fails_although_its_cases_pass(self):
        text = self.PARAMETERS.format("ok", "ok", "not ok")
        self.assertEqual(self.results(text)[2:], [("many", "fail", "failure")])


def one_of_each(path):
    """The result of a module of tests with one that passes, and one that is skipped."""
    return 2, [(path.stem, "no reason")], "log"


class Skipped(unittest.TestCase):
    def test_a_test_of_the_lab_must_not_be_skipped(self):
        class Example(unittest.TestCase):
            def test_good(self):
                pass

            def test_skipped(self):
                self.skipTest("no reason")

        with mock.patch.object(unittest.defaultTestLoader, "discover", return_value=(
                unittest.defaultTestLoader.loadTestsFromTestCase(Example))):
            ran, bad, log = check.unit_tests_of(Path("/none/test_example.py"))
        self.assertEqual((ran, [text for _, text in bad]), (2, ["no reason"]))
        self.assertIn("skipped=1", log)
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch("commands.check.unit_tests_of", one_of_each):
            steps = mock.MagicMock()
            steps.step.return_value.__enter__.return_value.log = Path(folder) / "log"
            verdicts = check.unit_tests(steps, mock.MagicMock())
        files = len(list(Path(__file__).parent.glob("test_*.py")))
        self.assertEqual([(v.result, v.detail) for v in verdicts],
                         [("fail", "no reason")] * files + [("pass", "")] * files)


class Suites(unittest.TestCase):
    FILE = """
//! ```
//! let driver = KBox::pin_init(
//!     driver::Registration::<pci::Adapter<Example>>::new(
//!         c"an_example",
//! ```
//!
//! ```text
//! no code
//! ```

/// ```ignore
/// code();
/// ```
///
///  ```no_run
///  code();
///  ```
fn f() { "```"; }
// #[kunit_tests(not_this)]
#[kunit_tests(of_rust)]
mod tests {}
"""
    SUITE = 'static struct kunit_suite x = {\n\t.init = y,\n\t.name = "of_c",\n};\n'

    def wanted(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                file = Path(folder) / path.replace("__", "/").replace("DOT", ".")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return suites.wanted(Path(folder))

    def test_they_are_found_in_the_tree(self):
        want = self.wanted(rust__kernel__a_b__modDOTrs=self.FILE, kunit__xDOTc=self.SUITE,
                           drivers__y__zDOTrs="#[kunit_tests(of_a_driver)]\n",
                           patches__pDOTpatch="+#[kunit_tests(of_a_patch)]\n")
        self.assertEqual(want.modules, {"of_c", "of_a_driver"})
        self.assertEqual(want.once, {"of_rust", "of_a_patch"})
        self.assertEqual(want.examples, tuple(
            f"rust_doctests_kernel.rust_doctest_kernel_a_b_mod_rs_{n}" for n in (0, 1)))
        self.assertEqual(want.drivers, {"an_example"})

    def test_those_without_devices_run_once(self):
        want = self.wanted(kunit__queue_kunitDOTrs="#[kunit_tests(a)]\n",
                           kunit__queue__xDOTrs="#[kunit_tests(b)]\n",
                           kunit__vram__xDOTrs="#[kunit_tests(c)]\n")
        self.assertEqual((want.modules, want.once), ({"c"}, {"a", "b"}))
        modules = {path.stem for path in (pipeline.REPO / "kunit").iterdir()}
        self.assertLessEqual(set(plan.WITHOUT_DEVICES), modules)

    def test_there_are_some_of_each_kind(self):
        want = suites.wanted(pipeline.REPO)
        for kind in (want.modules, want.once, want.examples, want.drivers):
            self.assertTrue(kind)

    def test_what_ran_in_no_boot(self):
        want = suites.Wanted(frozenset({"m"}), frozenset({"b"}), ("d.e",), frozenset({"drv"}))
        cases, log = [("b.x", "pass", ""), ("d.e", "pass", "")], "drv 0000:01:00.0: found"
        self.assertEqual(suites.lost(cases, log, want), [])
        self.assertEqual([v.name for v in suites.lost(cases[1:], log, want)], ["KUnit: b"])
        self.assertEqual([v.name for v in suites.lost(cases[:1], log, want)], ["KUnit: d.e"])
        self.assertEqual([v.name for v in suites.lost(cases, "drv has no device", want)],
                         ["KUnit: drv"])
        skipped = [(case, "skip", "") for case, _, _ in cases]
        self.assertEqual([v.name for v in suites.lost(skipped, log, want)],
                         ["KUnit: b", "KUnit: d.e"])

    def judge(self, *cases, boot="kunit", modules=frozenset()):
        """The cases that fail, if suite.a is expected to skip in one boot."""
        skips = {("kunit", "suite.a"): "why"}
        return [v.name for v in suites.verdicts(boot, [(*case, "") for case in cases], skips,
                                                modules) if v.result == "fail"]

    def test_a_suite_of_a_module_runs_in_each_boot(self):
        self.assertEqual(self.judge(("suite.b", "pass"), modules={"suite", "other"}),
                         ["kunit: other"])

    def test_a_skip_must_be_expected(self):
        self.assertEqual(self.judge(("suite.a", "skip"), ("suite.b", "pass")), [])
        self.assertEqual(self.judge(("suite.b", "skip")), ["kunit: suite.b"])
        self.assertEqual(self.judge(("suite.a", "skip"), boot="kunit-x"), ["kunit-x: suite.a"])

    def test_an_expected_skip_must_skip(self):
        self.assertEqual(self.judge(("suite.a", "pass")), ["kunit: suite.a"])
        self.assertEqual([v.name for v in suites.stale([("suite.b", "pass", "")],
                                                       {("kunit", "suite.a"): "why"})],
                         ["kunit/skips.txt: suite.a"])

    def test_a_case_that_always_skips(self):
        cases = [("a", "skip", ""), ("b", "skip", ""), ("a", "pass", ""), ("b", "skip", ""),
                 ("c", "pass", "")]
        self.assertEqual([v.name for v in suites.skipped_everywhere(cases)], ["KUnit: b"])

    def test_the_list_of_skips_can_be_read(self):
        self.assertTrue(suites.skips(pipeline.REPO, "check"))


if __name__ == "__main__":
    unittest.main()
