# SPDX-License-Identifier: GPL-2.0
"""Tests of the list of mutations, and of what becomes of the code."""

import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import good
from boot import pipeline, plan, qemu, topologies
from build import source
from build.steps import LabError
from commands import mutants, mutation, sites
from commands.mutation import Mutation
from judge import suites
from judge.igt import LATE, LOST, Verdict

RUST = "rust/kernel/a.rs"
DRIVER = "drivers/misc/a/a.rs"
C = "drivers/a.c"


def one(file, old, **more):
    """A mutation of that text."""
    return Mutation("id", file, old, **more)


# Files without statements, and lines that declare: there is nothing to break.
NO_CODE = (".h", ".rst", "/Kconfig", "/Makefile", "/MAINTAINERS")
DECLARES = re.compile(r"\s*($|//|/?\*|#!?\[|#include|#define|obj-|(pub(\([^)]*\))? )?(use|mod) |"
                      r"[\w:]+(::\{|,)( //)?$|[}]?[,;]?$)")
IMPORTS = re.compile(r"\buse [^;]*;")


def declares_only(patch):
    """Whether a patch adds no statement."""
    return all(path.endswith(NO_CODE) or no_code("\n".join(
        line[1:] for line in diff.splitlines()[1:] if line.startswith("+")))
               for path, _, diff in (part.partition("\n") for part in patch.split("\n+++ b/")[1:]))


def no_code(text):
    """Whether there is no statement."""
    return all(map(DECLARES.match, IMPORTS.sub("use ", text).splitlines()))


def changed(text, mutation_of_it):
    """The text without the lines that come in front, and with a short number."""
    lines = mutation.rewrite(f"// licence\n{text}", [mutation_of_it]).splitlines()
    return "\n".join(lines[2:]).replace(str(mutation_of_it.number), "N")


class Rewriting(unittest.TestCase):
    def test_expression(self):
        self.assertEqual(changed("let x = a > b;", one(RUST, "a > b", new="a >= b")),
                         "let x = (if crate::mutant::on(N) { a >= b } else { a > b });")
        self.assertEqual(changed("let x = a > b;", one(DRIVER, "a > b", new="a >= b")),
                         "let x = (if kernel::mutant::on(N) { a >= b } else { a > b });")
        self.assertEqual(changed("x = a > b;", one(C, "a > b", new="a >= b")),
                         "x = (mutant_on(N) ? (a >= b) : (a > b));")

    def test_dropped_statement(self):
        self.assertEqual(changed("f();\ng();", one(RUST, "f();")),
                         "if !crate::mutant::on(N) { f(); }\ng();")
        self.assertEqual(changed("f();\ng();", one(C, "f();")), "if (!mutant_on(N)) { f(); }\ng();")

    def test_whole(self):
        self.assertEqual(changed("Ok(_) if a => b,", one(RUST, "if a", whole="if !MUTANT && a")),
                         "Ok(_) if !crate::mutant::on(N) && a => b,")
        self.assertEqual(changed("f(a);", one(C, "f(a", whole="f(MUTANT ? NULL : a")),
                         "f(mutant_on(N) ? NULL : a);")

    def test_what_the_code_needs_comes_first(self):
        self.assertEqual(mutation.rewrite("// licence\nf();", [one(C, "f();")]).splitlines()[1],
                         "#include <linux/mutant.h>")
        self.assertTrue(mutation.rewrite("// licence\nf();", [one(RUST, "f();")])
                        .splitlines()[1].startswith("#![allow("))

    def test_several_in_a_file(self):
        text = mutation.rewrite("// licence\na();\nb();\n", [
            Mutation("second", C, "b();"), Mutation("first", C, "a();")])
        self.assertRegex(text, r"(?s)\{ a\(\); \}.*\{ b\(\); \}")
        with self.assertRaisesRegex(ValueError, "same place"):
            mutation.rewrite("// licence\na(b);", [Mutation("x", C, "a(b);"),
                                                   Mutation("y", C, "b")])

    def test_old_text_is_there_once(self):
        for text in ("g();", "f(); f();"):
            with self.assertRaises(ValueError):
                mutation.position(text, one(C, "f();"))
        self.assertEqual(mutation.position("f(); x; f(); f();", one(C, "f();", after="x;")), 8)
        for text in ("f(); x", "x x f();", "f();"):
            with self.assertRaises(ValueError):
                mutation.position(text, one(C, "f();", after="x"))

    def test_a_condition_is_not_put_inside_of_an_expression(self):
        for text in ("a.f();", "a->f();", "of();"):
            with self.assertRaisesRegex(ValueError, "end of an expression"):
                mutation.position(text, one(RUST, "f();"))
        self.assertEqual(mutation.position("a.f();", one(RUST, "f();", whole="g(MUTANT);")), 2)
        self.assertEqual(mutation.position("!f();", one(RUST, "f();")), 1)

    def test_comments_are_not_mutated(self):
        for line in ("// f();", "\t * f();", "/* f(); */", "    /// f();"):
            with self.assertRaisesRegex(ValueError, "comment"):
                mutation.position(f"a\n{line}\n", one(C, "f();"))
        self.assertEqual(mutation.position("a\n*f();", one(C, "*f();")), 2)

    def test_list_is_strict(self):
        good = '[b]\na = ["x y", " e", "-c", "+MUTANT ? d : c"]\n'
        found, *_ = mutation.parse(good)
        self.assertEqual(found, [Mutation("a", "b", "c", after="e", whole="MUTANT ? d : c",
                                          tests=("x", "y"))])
        found, *_ = mutation.parse('["b 0001-"]\na = ["kunit x* on y by any processors 2", "-c", "+d"]')
        self.assertEqual(found, [Mutation("a", "b", "c", new="d", patch="0001-", suites="x*", on="y",
                                          by="any", processors=2)])
        variable = good.replace("-c", "-let c = 1;")
        mutation.parse(variable)
        for bad in (good.replace('" e"', '"e"'), good.replace('"-c", ', ""),
                    good.replace('" e", "-c"', '"-c", " e"'), good.replace("x y", "x by luck"),
                    variable.replace(', "+MUTANT ? d : c"', "")):
            with self.assertRaises(ValueError):
                mutation.parse(bad)


class Tree(unittest.TestCase):
    def test_only_mutated_files_are_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            names = {mutation.MAKEFILE: "Makefile", mutation.CRATE: "lib.rs", C: "a.c", "x": "x.c"}
            for name in names.values():
                (folder / name).write_text("// licence\nf();\n")
            wanted = {path: folder / name for path, name in names.items()}
            mutator = mutation.Mutator([one(C, "f();")], mutants.FOLDER)
            found = mutator(wanted, folder / "changed")
            self.assertEqual(found["x"], folder / "x.c")
            self.assertIn("mutant_on(", found[C].read_text())
            self.assertIn("mutant.o", found[mutation.MAKEFILE].read_text())
            self.assertLessEqual(mutation.TEMPLATES.keys(), found.keys())
            for wrong in (one("y.c", "f();"), one(C, "g();")):
                with self.assertRaises(LabError):
                    mutation.Mutator([wrong], mutants.FOLDER)(wanted, folder / "changed")


class List(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.mutations, cls.without, cls.unreached = mutation.parse(mutants.LIST.read_text())

    def test_names_are_different(self):
        for name in ("id", "number"):
            names = [getattr(m, name) for m in self.mutations]
            self.assertEqual(len(names), len(set(names)))
        self.assertNotIn(0, names)

    def test_all_fit_the_code(self):
        for path, file in source.overlay_files(pipeline.REPO):
            here = [m for m in self.mutations if m.file == path]
            if here:
                mutation.rewrite(file.read_text(), here)

    def test_places_that_allocate_have_the_same_names_in_mutated_files(self):
        for path, file in source.overlay_files(pipeline.REPO):
            here = [m for m in self.mutations if m.file == path]
            if here and path.endswith(".rs"):
                text = file.read_text()
                self.assertEqual([name for *_, name in sites.find(path, text)],
                                 [name for *_, name in
                                  sites.find(path, mutation.rewrite(text, here))])

    def test_places_that_no_test_reaches_exist(self):
        names = sites.names(source.overlay_files(pipeline.REPO))
        self.assertEqual(len({sites.number(name) for name in names}), len(names))
        self.assertLess(len(names), 256)
        self.assertLessEqual(self.unreached.keys(), set(names))

    def test_every_file_has_one(self):
        mutated = {m.file for m in self.mutations}
        for path, file in source.overlay_files(pipeline.REPO):
            if path.startswith(("rust/kernel/", "drivers/")) and path.endswith((".rs", ".c")) and \
                    not no_code(file.read_text()):
                self.assertNotEqual(path in mutated, path in self.without, path)

    def test_every_patch_has_one(self):
        touched = {}
        for patch in source.patches_of(pipeline.REPO):
            name = source.name(patch)
            touched[name] = source.touched_by(patch.read_text())
            of_it = any(m.patch and name.startswith(m.patch) for m in self.mutations)
            why_not = any(name.startswith(key) for key in self.without)
            nothing = declares_only(patch.read_text())
            self.assertEqual(of_it + why_not + nothing, 1, name)
        ours = dict(source.overlay_files(pipeline.REPO))
        for m in self.mutations:
            named = [files for name, files in touched.items() if m.patch and
                     name.startswith(m.patch)]
            self.assertTrue(m.file in ours if not m.patch else len(named) == 1 and
                            m.file in named[0], m.id)

    def test_each_says_who_finds_it(self):
        programs = {path.stem: path.read_text()
                    for path in (pipeline.REPO / "igt-tests/src/bin").glob("*.rs")}
        ran = {"": {*plan.EVERYWHERE, *plan.TOOL, *plan.KINDS, *plan.ONCE}, "bounce": plan.BOUNCED,
               "scramble": {test.partition("@")[0] for test in plan.SCRAMBLED},
               "pair": (*plan.PAIR, *plan.PAIR_ONCE), "rdma": {*plan.RDMA, *plan.RDMA_KINDS, *plan.RDMA_ONCE},
               "disk": {*plan.DISK_KINDS, *plan.DISK_ONCE, "vvram_direct_bounce"},
               "gpu": {*plan.GPU_KINDS, *plan.GPU_ONCE, *plan.GPU_FAULTS}}
        for m in self.mutations:
            self.assertNotEqual(bool(m.tests), bool(m.suites), m.id)
            mutants.machine(m)
            for test in m.tests:
                program, _, subtest = test.partition("@")
                self.assertIn(program, ran.get(m.on.partition("-")[0], {*plan.EVERYWHERE, *plan.KINDS}), m.id)
                if subtest:
                    self.assertIn(f'\n    "{subtest}', programs[program], m.id)


class Allocations(unittest.TestCase):
    TEXT = """use a::GFP_KERNEL;
// GFP_KERNEL in a comment
impl A {
    pub(crate) fn one(&self) -> Result {
        f(GFP_KERNEL)?;
        g(bindings::GFP_ATOMIC)
    }
}
fn two() { h(GFP_KERNEL) }
#[kunit_tests(a)]
mod tests {
    fn three() { h(GFP_KERNEL) }
}
"""
    NAMES = [f"{RUST}: one", f"{RUST}: one #2", f"{RUST}: two"]

    def test_places_have_the_names_of_their_functions(self):
        self.assertEqual([name for *_, name in sites.find(RUST, self.TEXT)], self.NAMES)

    def test_marked_places_say_who_they_are(self):
        text = sites.mark(RUST, self.TEXT)
        for name, flags in zip(self.NAMES, ("GFP_KERNEL", "bindings::GFP_ATOMIC", "GFP_KERNEL")):
            self.assertIn(f"(crate::mutant::allocation({sites.number(name)}, {flags}))", text)
        self.assertEqual(text.count(sites.CALL), 3)
        self.assertIn("kernel::mutant", sites.mark(DRIVER, self.TEXT))

    def test_what_is_not_reached_has_to_be_explained(self):
        log = "".join(f"[1.0] mutant: allocation {sites.number(name)} reached\n"
                      for name in self.NAMES[:2])
        lines, good = sites.report(self.NAMES, log, {})
        self.assertIn("2 of 3", lines[0])
        self.assertIn(self.NAMES[2], lines[1])
        self.assertFalse(good)
        self.assertTrue(sites.report(self.NAMES, log, {self.NAMES[2]: "why"})[1])
        self.assertFalse(sites.report(self.NAMES, log, {name: "why" for name in self.NAMES})[1])


class Judging(unittest.TestCase):
    REACHED = f"<6>[    1.0] mutant: mutant {one(RUST, 'f();').number} reached\n"
    NAMED = Verdict("switch: vvram_p2p@x", "fail", "no")
    OTHER = Verdict("switch: vvram_move@x", "fail", "no")
    HUNG = Verdict("switch: boot", "fail", "left no mark for 150 s", LATE)
    GONE = Verdict("switch: vvram_p2p@x", "fail", "incomplete", LOST)

    def row(self, *failing, log=REACHED, known=(), error="", **more):
        """The row of a mutation whose boot had these failures."""
        m = one(RUST, "f();", **{"tests": ("vvram_p2p",), **more})
        outcome = mock.Mock(log=log, error=error, qemu_log=[],
                            boot=mock.Mock(settings={}))
        with mock.patch("commands.mutants.failures", return_value={v.name: v for v in failing}), \
                mock.patch("boot.models.has_aborted", return_value=False):
            return mutants.row(m, outcome, {mutants.machine(m)[1]: set(known)}, None)

    def outcome(self, *failing, **more):
        """The outcome in words."""
        return self.row(*failing, **more).outcome

    def test_outcomes(self):
        self.assertEqual(self.outcome(self.NAMED), "found")
        self.assertEqual(self.outcome(self.NAMED, self.OTHER, self.HUNG), "found")
        self.assertEqual(self.outcome(self.OTHER), "ELSEWHERE")
        self.assertEqual(self.outcome(), "SURVIVED")
        self.assertEqual(self.outcome(log=""), "NEVER REACHED")
        self.assertEqual(self.outcome(unfindable="why"), "explained")
        self.assertTrue(all(self.row(*failing).is_bad for failing in ((), (self.OTHER,),
                                                                      (self.HUNG,))))
        self.assertFalse(self.row(self.NAMED).is_bad)

    def test_one_that_is_not_reached_is_not_found(self):
        self.assertEqual(self.outcome(self.NAMED, log=""), "NEVER REACHED")

    def test_one_that_nothing_can_find_is_not_found(self):
        self.assertEqual(self.outcome(self.NAMED, unfindable="why"), "FINDABLE")
        self.assertTrue(self.row(self.NAMED, unfindable="why").is_bad)
        self.assertEqual(self.outcome(self.OTHER, unfindable="why"), "explained")

    def test_the_list_may_say_what_else_finds_it(self):
        self.assertEqual(self.outcome(self.OTHER, by="any"), "found")
        self.assertEqual(self.outcome(self.HUNG, by="any"), "TIMED OUT")
        self.assertEqual(self.outcome(self.HUNG, by="hang"), "found")
        self.assertEqual(self.outcome(self.OTHER, by="hang"), "ELSEWHERE")
        self.assertEqual(self.outcome(by="any"), "SURVIVED")

    def test_a_limit_of_time_finds_nothing(self):
        self.assertEqual(self.outcome(self.HUNG), "TIMED OUT")
        hung = {"error": "left no mark for 150 s"}
        self.assertEqual(self.outcome(self.HUNG, self.GONE, **hung), "TIMED OUT")
        # A guest that dies in its test is another matter.
        self.assertEqual(self.outcome(self.GONE), "found")
        # So is one that dies before.
        for why in ("it has no result", "notrun: no output"):
            never = Verdict("switch: vvram_p2p@x", "fail", why, LOST)
            self.assertEqual(self.outcome(never), "ELSEWHERE")
        late = Verdict("switch: vvram_p2p@x", "fail", "fail: Failed: no end after 1 s", LATE)
        self.assertEqual(self.outcome(late), "TIMED OUT")

    def test_a_complaint_of_the_kernel_is_that_of_the_test_that_ran(self):
        bad = Verdict("switch: kernel log", "fail", "BUG: x (during ...)")
        for test, found in (("vvram_p2p", "found"), ("vvram_move", "ELSEWHERE")):
            log = self.REACHED + good.log() + "".join(good.line(text) for text in (
                f"[IGT] {test}: executing", f"[IGT] {test}: starting subtest x", "BUG: x"))
            self.assertEqual(self.outcome(bad, log=log), found)

    def test_suites_are_named_by_a_pattern(self):
        bad = Verdict("kunit-bridge: vram_lru.order", "fail", "no")
        for pattern, found in (("vram_lru", "found"), ("vram_*", "found"),
                               ("vram_loss", "ELSEWHERE")):
            self.assertEqual(self.outcome(bad, tests=(), suites=pattern), found)
        log = self.REACHED + good.line("    # Subtest: vram_lru", 6) + good.line("BUG: x")
        self.assertEqual(self.outcome(Verdict("kunit-bridge: kernel log", "fail", "BUG: x"),
                                      log=log, tests=(), suites="vram_lru"), "found")

    def test_what_fails_anyway_says_nothing(self):
        self.assertEqual(self.outcome(self.NAMED, known=[self.NAMED.name]), "SURVIVED")

    def test_a_suite_that_a_filter_holds_back_is_no_failure(self):
        boot = qemu.Boot("mutant-x", plan.SWITCH, "kunit", 1)
        judged = [Verdict("x: a", "fail", suites.DID_NOT_RUN, LOST), Verdict("x: b", "pass"),
                  Verdict("x: c", "fail", "ended after 1 of 2 cases", LOST)]
        with mock.patch("judge.guests.judge", return_value=judged):
            found = mutants.failures(qemu.Outcome(boot, Path(), 1), "switch", None)
        self.assertEqual(set(found), {"x: c"})

    def test_boots(self):
        m = one(RUST, "f();", tests=("vvram_p2p@pinned",), on="bounce")
        boot = mutants.boot(m)
        self.assertIn(f"mutant.active={m.number}", boot.cmdline)
        self.assertIn("swiotlb=force", boot.topology.cmdline)
        self.assertEqual(boot.settings["LAB_TESTS"], "vvram_p2p@pinned")
        suite = one(RUST, "f();", suites="range_list")
        self.assertIn("kunit.filter_glob=range_list", mutants.boot(suite).cmdline)
        self.assertEqual(mutants.machine(suite),
                         (topologies.find("host-bridge"), "kunit-bridge"))
        with self.assertRaises(LabError):
            mutants.machine(one(RUST, "f();", tests=("x",), on="nowhere"))

    def test_baseline_runs_all_tests_of_a_machine(self):
        some = [Mutation("a", RUST, "a", tests=("x", "y")), Mutation("b", RUST, "b", tests=("y",)),
                Mutation("c", RUST, "c", tests=("z",), on="intel-iommu"),
                Mutation("d", RUST, "d", suites="s")]
        boots = mutants.baseline_boots(some)
        self.assertEqual([(b.topology.name, b.settings.get("LAB_TESTS")) for b in boots],
                         [("switch", "x,y"), ("intel-iommu", "z"), ("host-bridge", None)])
        self.assertTrue(all("mutant.active=0" in b.cmdline for b in boots))
        self.assertEqual(len({b.name for b in boots}), 3)
        self.assertIsInstance(boots[0], qemu.Boot)

    def test_a_baseline_of_many_tests_has_several_boots(self):
        many = [Mutation(str(i), RUST, "a", tests=(f"t{i}",)) for i in range(mutants.AT_ONCE + 1)]
        many.insert(0, Mutation("s", RUST, "a", tests=("vvram_faults@copies",)))
        boots = mutants.baseline_boots(many)
        self.assertEqual([b.name for b in boots],
                         ["mutant-none-switch", "mutant-none-switch-1", "mutant-none-switch-2"])
        self.assertEqual([b.settings["LAB_TESTS"] for b in boots[1:]],
                         [f"t{mutants.AT_ONCE}", "vvram_faults@copies"])
        # Each allocation fails, also for the mutation.
        soak = ["VVRAM_SOAK" in b.settings for b in [*boots, mutants.boot(many[0])]]
        self.assertEqual(soak, [False, False, True, True])
        outcomes = [mock.Mock(boot=boot) for boot in boots]
        with mock.patch("commands.mutants.failures",
                        side_effect=[{"a": ""}, {"b": ""}, {}]) as failures:
            self.assertEqual(mutants.baseline(outcomes, None), {"switch": {"a", "b"}})
        self.assertEqual([call.args[1] for call in failures.call_args_list], ["switch"] * 3)

    def test_chosen(self):
        with mock.patch.dict("os.environ", {"MUTANT": "pm-never-put,fence-*"}):
            names = {m.id for m in mutants.chosen()}
        self.assertIn("pm-never-put", names)
        self.assertTrue(all(name.startswith(("pm-", "fence-")) for name in names))
        with mock.patch.dict("os.environ", {"MUTANT": "nobody"}), self.assertRaises(LabError):
            mutants.chosen()

    def test_bad_rows_come_last(self):
        found, bad = self.row(self.NAMED), self.row(self.OTHER)
        lines = mutants.table([bad, found])
        self.assertTrue(lines[0].startswith("found"))
        self.assertEqual(lines[-1], "1 ELSEWHERE, 1 found")
