# SPDX-License-Identifier: GPL-2.0
"""Tests of what runs where, in which order, and of what is left of a boot that dies."""

import fnmatch
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import good
from boot import models, pipeline, plan, qemu, topologies, watch
from build import cache, host, kernel, source
from build.steps import LabError
from commands import check
from judge import guests, igt, tally, unsteady

SWITCH = topologies.find("switch")
# Programs without a test of concurrency: a task, and another one that waits for it.
ALONE = ("mgpu_large", "vvram_bounce", "vvram_direct_bounce", "vvram_sync")


class Console:
    """Keeps the lines that are printed."""

    def __init__(self):
        self.lines = []

    def say(self, line=""):
        """Keep a line."""
        self.lines.append(line)


class Machine(qemu.Machine):
    """A machine whose boots end as a test wants them to."""

    def __init__(self, share, came=None):
        self.kernel = mock.Mock(folder=Path(share), share=Path(share), cmdline="")
        self.came = came or {}
        self.started = []
        self.lock = threading.Lock()

    def _qemu(self, boot, pin=()):
        with self.lock:
            self.started.append((boot.name, boot.job))
        action = self.came.get((boot.name, boot.job), lambda results: "")
        return action(self.kernel.share / "results" / boot.name) or ""


def ends(results):
    """A boot of igt_runner that comes to its end."""
    (results / "status").write_text("0\n")
    (results / "results.json").write_text('{"tests": {}}')


def dies(results):
    """One that does not."""
    (results / "runner").mkdir()


def no_space(_):
    """One on a full disk."""
    raise OSError(28, "No space left on device")


class RunAll(unittest.TestCase):
    def run_all(self, came, names, guests="1"):
        """Run boots of these names; return the machine, the outcomes and what was said."""
        with mock.patch.dict(os.environ, GUESTS=guests):
            machine, console = Machine(self.share, came), Console()
            boots = [plan.igt(name, SWITCH, ["vvram_a"]) for name in names]
            return machine, machine.run_all(mock.Mock(), console, boots), console

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.share = folder.name

    def test_the_longest_first_and_new_ones_before_them(self):
        cache.Times(Path(self.share) / "boot-times.json").record({"a": 1, "b": 3, "c": 2})
        came = {(name, "igt"): ends for name in "abcd"}
        machine, outcomes, _ = self.run_all(came, "abcd")
        self.assertEqual([name for name, _ in machine.started], ["d", "b", "c", "a"])
        self.assertEqual([outcome.boot.name for outcome in outcomes], list("abcd"))

    def test_a_truncated_record_of_times_is_none(self):
        (Path(self.share) / "boot-times.json").write_text('{"a": ')
        _, outcomes, _ = self.run_all({("a", "igt"): ends}, "a")
        self.assertEqual(outcomes[0].error, "")

    def test_a_full_disk_stops_no_other_boot(self):
        came = {("a", "igt"): no_space, ("b", "igt"): no_space, ("c", "igt"): ends}
        for number in ("1", "3"):
            _, outcomes, console = self.run_all(came, "abc", number)
            self.assertEqual([bool(outcome.error) for outcome in outcomes], [True, True, False])
            self.assertIn("No space left on device", "\n".join(console.lines))
            self.assertEqual((outcomes[0].log, outcomes[0].qemu_log), ("", []))

    def test_what_a_dead_guest_has_left_is_collected(self):
        def collects(results):
            self.assertTrue((results / "runner").is_dir())
            (results / "results.json").write_text(
                json.dumps({"tests": {"igt@vvram_a@x": {"result": "pass"}}}))
            (results / "status").write_text("0\n")

        came = {("a", "igt"): dies, ("a", "collect"): collects}
        machine, [outcome], _ = self.run_all(came, "a")
        self.assertEqual(machine.started, [("a", "igt"), ("a", "collect")])
        self.assertIn("ended before its job did", outcome.error)
        self.assertIn("vvram_a@x", igt.tests(igt.results(outcome)))


class Settings(unittest.TestCase):
    def together(self, loads, guests, least, processors=2):
        """Which loads run at the same time, for each boot that was started.

        The first boots end when `least` of them have run at the same time.
        """
        most, running, lock = [], [], threading.Lock()
        reached = threading.Event()

        def one(boot):
            with lock:
                running.append(boot.load)
                most.append(list(running))
                if len(running) >= least:
                    reached.set()
            reached.wait(20)
            time.sleep(0.1)
            with lock:
                running.remove(boot.load)

        boots = [qemu.Boot(str(n), SWITCH, "demo", 1, load=load) for n, load in enumerate(loads)]
        with mock.patch.dict(os.environ, GUESTS=str(guests)), \
                mock.patch("os.sched_getaffinity", return_value=range(processors)):
            done = qemu.Room(boots).run(one)
        self.assertEqual(len(done), len(loads))
        return most

    def test_boots_have_room_on_the_processors(self):
        for most in self.together([1, 0.3, 0.3, 1, 0.3, 0.3, 0.3], 8, 4):
            self.assertLessEqual(sum(most), 2.001)
        self.assertEqual(max(map(len, self.together([0.2] * 10, 8, 8))), 8)
        self.assertEqual(max(map(len, self.together([0.2] * 10, 3, 3))), 3)
        self.assertEqual(max(map(len, self.together([1] * 5, 8, 2))), 2)

    def test_one_that_fits_overtakes_one_that_does_not(self):
        self.assertIn([1, 0.9, 0.1], self.together([1, 0.9, 1, 0.1], 8, 3))

    def test_one_that_needs_more_than_there_is_runs_alone(self):
        self.assertEqual(max(map(len, self.together([3, 3], 8, 1))), 1)

    def test_an_error_ends_all(self):
        def one(_):
            raise ValueError("broken")

        boots = [qemu.Boot(str(n), SWITCH, "demo", 1) for n in range(5)]
        with self.assertRaisesRegex(ValueError, "broken"):
            qemu.Room(boots).run(one)

    def test_a_number_must_be_one(self):
        with mock.patch.dict(os.environ, GUESTS="many"), self.assertRaisesRegex(LabError, "GUESTS"):
            qemu.guests()

    def test_a_seed_is_kept_and_handed_on(self):
        qemu.seed.cache_clear()
        self.addCleanup(qemu.seed.cache_clear)
        with mock.patch.dict(os.environ, SEED="42", KVM=""):
            argv = Machine("/none").argv(plan.igt("a", SWITCH, ["x"]), ())
        self.assertIn(" VVRAM_SEED=42", argv[argv.index("-append") + 1])
        self.assertEqual(argv[argv.index("-seed") + 1], "42")
        self.assertEqual(argv[argv.index("-smp") + 1], "4")

    def test_without_one_each_run_has_its_own(self):
        self.addCleanup(qemu.seed.cache_clear)
        seeds = set()
        for _ in range(3):
            qemu.seed.cache_clear()
            with mock.patch.dict(os.environ, SEED=""):
                seeds.add(qemu.seed())
                self.assertEqual(qemu.seed(), qemu.seed())
        self.assertGreater(len(seeds), 1)

    def test_a_guest_is_told_how_fast_its_clock_runs(self):
        argv = Machine("/none").argv(plan.igt("a", SWITCH, ["x"]), ())
        cmdline = argv[argv.index("-append") + 1]
        self.assertIn(" tsc=nowatchdog ", cmdline)
        found = re.search(r" tsc_early_khz=(\d+) ", cmdline)
        self.assertAlmostEqual(int(found[1]) / host.tsc_khz(), 1, places=3)
        loops = re.search(r" lpj=(\d+) ", cmdline)
        self.assertEqual(int(loops[1]), int(found[1]) * 1000 // qemu.HZ)
        self.assertIn(f"CONFIG_HZ_{qemu.HZ}=y", (kernel.FRAGMENTS / "base.config").read_text())
        with mock.patch("mmap.mmap", side_effect=PermissionError):
            self.assertIsNone(host.tsc_khz())

    def test_an_exact_boot_has_one_processor_and_always_the_same_seed(self):
        argv = Machine("/none").argv(qemu.Boot("a", SWITCH, "demo", 1, exact=True), ())
        self.assertIn("shift=0,sleep=off", argv)
        self.assertEqual(argv[argv.index("-smp") + 1], "1")
        self.assertIn(" VVRAM_SEED=1", argv[argv.index("-append") + 1])

    def test_a_kernel_has_what_its_flavour_needs(self):
        for flavour, wanted in (("kasan", "no5lvl"), ("check", "")):
            machine = Machine("/none")
            machine.kernel.cmdline = kernel.Kernel.cmdline.fget(mock.Mock(flavour=flavour))
            argv = machine.argv(plan.igt("a", SWITCH, ["x"]), ())
            self.assertEqual("no5lvl" in argv[argv.index("-append") + 1], bool(wanted))

    def test_kcov_instruments_the_drivers_and_the_abstractions(self):
        drivers = (pipeline.REPO / "drivers").rglob("Makefile")
        objects = re.findall(r"\+= (\S+\.o)$", "\n".join(map(Path.read_text, drivers)), re.M)
        command = kernel.Kernel.command.fget
        added = set(command(mock.Mock(flavour="kasan"))) - set(kernel.MAKE)
        self.assertEqual(added, {f"KCOV_INSTRUMENT_{name}=y" for name in (*objects, "kernel.o")})
        self.assertTrue(kernel.has("# CONFIG_KCOV_INSTRUMENT_ALL is not set", "kasan"))
        self.assertEqual(command(mock.Mock(flavour="check")), kernel.MAKE)

    def test_what_the_kernel_would_cut_is_refused(self):
        boot = qemu.Boot("a", SWITCH, "igt", 1, {"LAB_TESTS": "x" * qemu.CMDLINE})
        with self.assertRaises(LabError):
            Machine("/none").argv(boot, ())


class Plan(unittest.TestCase):
    def test_each_program_is_in_the_table_once(self):
        programs = {path.stem for path in (pipeline.REPO / "igt-tests/src/bin").glob("*_*.rs")}
        table = [*plan.EVERYWHERE, *plan.KINDS, *plan.ONCE, *plan.TOOL, *plan.PAIR,
                 *plan.PAIR_ONCE, *plan.RDMA, *plan.RDMA_KINDS, *plan.RDMA_ONCE, *plan.DISK_KINDS, *plan.DISK_ONCE,
                 *{test.partition("@")[0] for test in plan.DISK_BOUNCED + plan.DISK_UNMAPPED},
                 *plan.GPU_KINDS,
                 *plan.GPU_ONCE, *plan.GPU_LARGE, "mgpu_chaos", *plan.GPU_FAULTS, *plan.FUZZ]
        table += set(plan.BOUNCED) - set(table)
        self.assertEqual(sorted(table), sorted(programs))

    def test_the_check_runs_all_of_it(self):
        named = {test for boot in plan.check() if boot.job == "igt"
                 for test in boot.settings["LAB_TESTS"].split(",")}
        for program in (*plan.EVERYWHERE, *plan.KINDS, *plan.ONCE, *plan.TOOL, *plan.PAIR,
                        *plan.PAIR_ONCE, *plan.RDMA, *plan.RDMA_KINDS, *plan.RDMA_ONCE, *plan.GENERIC, *plan.BOUNCED,
                        *plan.DISK_KINDS, *plan.DISK_ONCE, *plan.DISK_BOUNCED,
                        *plan.DISK_UNMAPPED, *plan.GPU_KINDS,
                        *plan.GPU_ONCE, *plan.GPU_CHAOS_SHORT, *plan.GPU_FAULTS_OWN):
            self.assertIn(program, named)

    def test_what_a_boot_leaves_out_another_one_runs(self):
        boots = [boot for boot in plan.check() if boot.job == "igt"]
        left_out = {test for boot in boots
                    for test in boot.settings.get("LAB_EXCEPT", "").split(",") if test}
        self.assertEqual(left_out, {*plan.GPU_HUNG, *plan.GPU_HUNG_DMA, *plan.RDMA_GIVES_UP})
        whole = {test for boot in boots if "LAB_EXCEPT" not in boot.settings
                 for test in boot.settings["LAB_TESTS"].split(",")}
        for test in left_out:
            program, _, subtest = test.partition("@")
            self.assertIn(program, whole)
            text = (pipeline.REPO / f"igt-tests/src/bin/{program}.rs").read_text()
            self.assertIn(f'\n    "{subtest}", ', text)

    def test_without_a_route_the_tests_are_those_that_need_none(self):
        tests = {boot.name: boot.settings["LAB_TESTS"].split(",") for boot in plan.own()}
        for program in plan.WITHOUT_ROUTE:
            self.assertIn(program, tests["check-switch"])
            self.assertNotIn(program, tests["check-no-route"])
            text = (pipeline.REPO / f"igt-tests/src/bin/{program}.rs").read_text()
            named = [test.partition("@")[2] for test in tests["check-no-route"]
                     if test.startswith(f"{program}@")]
            self.assertTrue(named)
            for subtest in named:
                self.assertIn(f'\n    "{subtest.partition("*")[0]}', text)

    def test_the_tool_is_tried_without_privileges_where_they_decide(self):
        tests = {boot.name: boot.settings["LAB_TESTS"].split(",") for boot in plan.own()}
        for test in ("p2p_agrees@nobody", "p2p_agrees@others", "p2p_agrees@why"):
            self.assertIn(test, tests["check-acs-pair"])
        # No redirection decides about the path between GPU and peer here.
        self.assertNotIn("p2p_agrees@nobody", tests["check-host-bridge"])

    def test_no_round_of_chaos_is_repeated(self):
        rounds = [number for boot in plan.chaos()
                  for number in range(boot.settings["VVRAM_FIRST"],
                                      boot.settings["VVRAM_FIRST"] + boot.settings["VVRAM_SOAK"])]
        self.assertEqual(rounds, list(range(20)))

    def test_sanitizers_see_all_programs(self):
        programs = {path.stem for path in (pipeline.REPO / "igt-tests/src/bin").glob("*_*.rs")}
        named = {test.partition("@")[0] for boot in plan.sanitized() if boot.job == "igt"
                 for test in boot.settings["LAB_TESTS"].split(",")}
        self.assertEqual(named - set(plan.GENERIC), programs)

    def test_a_kernel_with_preempt_rt_runs_all_suites(self):
        boots = plan.realtime()
        self.assertEqual(boots[:len(plan.kunit())], plan.kunit())
        for option in ("CONFIG_PREEMPT_RT=y", "CONFIG_DEBUG_ATOMIC_SLEEP=y",
                       "CONFIG_PROVE_RAW_LOCK_NESTING=y"):
            self.assertTrue(kernel.has(option, kernel.REALTIME), option)

    def test_each_case_that_a_patch_adds_to_hmm_tests_is_run(self):
        patches = "".join(patch.read_text() for patch in source.series_of(pipeline.REPO))
        program = (pipeline.REPO / "igt-tests/src/bin/hmm_cases.rs").read_text()
        cases = re.findall(r"^\+TEST_F\(hmm_(private|p2p), (\w+)\)$", patches, re.M)
        self.assertTrue(cases)
        self.assertEqual(sorted(cases),
                         sorted(re.findall(r'\|\| (private|p2p)\("(\w+)"\)', program)))

    def test_check_and_soak_run_each_case_of_pyverbs(self):
        check, soak = ([boot.settings for boot in boots if boot.job == "pyverbs"]
                       for boots in (plan.check(), plan.soak()))
        self.assertEqual([settings["LAB_PYVERBS"] for settings in check], [",".join(plan.PYVERBS)])
        self.assertFalse([settings for settings in soak if "LAB_FLAGS" in settings])
        cases = [case for settings in soak for case in settings["LAB_PYVERBS"].split(",")]
        self.assertEqual(sorted(cases), sorted([plan.MODULES, plan.ON_DEMAND, *[
            f"{mode}/{memory}" for mode in ("pinned", "revocable", "dynamic")
            for memory in ("vram", "system")]]))

    def test_each_program_runs_with_all_processors(self):
        boots = plan.check()
        several = [boot for boot in boots if boot.processors == qemu.PROCESSORS]
        self.assertEqual({boot.processors for boot in boots}, {plan.FEWER, qemu.PROCESSORS})
        for pattern in plan.CONCURRENT:
            self.assertTrue(any(fnmatch.fnmatch(boot.name, f"check-{pattern}")
                                for boot in several), pattern)
        named = {test.partition("@")[0] for boot in several if boot.job == "igt"
                 for test in boot.settings["LAB_TESTS"].split(",")}
        programs = {path.stem for path in (pipeline.REPO / "igt-tests/src/bin").glob("*_*.rs")}
        self.assertEqual(programs - named, set(ALONE))
        for boots in (plan.soak(), plan.sanitized(), plan.realtime()):
            self.assertEqual({boot.processors for boot in boots}, {qemu.PROCESSORS})

    def test_boots_have_names_of_their_own(self):
        for boots in ((*plan.check(), *plan.soak()), plan.sanitized(), plan.realtime()):
            names = [boot.name for boot in boots]
            self.assertEqual(len(names), len(set(names)))


class Again(unittest.TestCase):
    """Boots that failed get a second try if each of their failures is one of time."""

    TEST = "vvram_a@x"
    LISTS = guests.Lists({}, {}, None, frozenset({TEST}))
    NO_END = "Failed: no end after 300 s; it slept"
    HANG = "left no mark for 600 s"
    LIMIT = "did not end within 2400 s"
    ENDED = "the guest ended before its job did, last words: x"

    def setUp(self):
        self.share = self.enterContext(tempfile.TemporaryDirectory())

    def outcome(self, name, result="pass", out="", log="", qemu_log="", error="", cut=False,
                removed=False):
        """The outcome of a boot of one test; the log of one that was cut has no end."""
        results = Path(self.share) / "results" / name
        results.mkdir(parents=True)
        (results / "results.json").write_text(json.dumps(
            {"tests": {f"igt@{self.TEST}": {"result": result, "out": f"seed 1\n{out}\n",
                                            "err": "Starting subtest: x\n"}} if result else {}}))
        text = good.log(*([log] if log else []), tests=[self.TEST] if result else [])
        (results / "kernel.log").write_text("".join(text.splitlines(True)[:-1]) if cut else text)
        (results / "qemu.log").write_text(qemu_log)
        if removed:
            (results / models.REMOVED).write_text("removed gpu-a\n")
        return qemu.Outcome(plan.igt(name, SWITCH, ("vvram_a",)), results, 1.0, error)

    def once_more(self, *first, **second):
        """The boots that were tried again, what counts in the end, and what does not."""
        tried = []

        def boot(_steps, _built, _title, boots):
            tried.extend(boot.name for boot in boots)
            return [self.outcome(boot.name, **second) for boot in boots]

        with mock.patch.object(check, "boot", boot):
            outcomes, late = check.once_more(None, None, self.LISTS, list(first))
        return tried, [o.boot.name for o in outcomes], [(v.name, v.result) for v in late]

    def test_what_passes_is_not_tried_again(self):
        self.assertEqual(self.once_more(self.outcome("check-a")), ([], ["check-a"], []))

    def test_what_was_late_is_tried_again_and_counts_if_it_is_good(self):
        for how in ({"result": "timeout"}, {"result": "fail", "out": self.NO_END}):
            with self.subTest(how):
                self.setUp()
                self.assertEqual(
                    self.once_more(self.outcome("check-a"), self.outcome("check-b", **how)),
                    (["again-b"], ["check-a", "again-b"], [("b: vvram_a@x", "unsteady")]))

    def test_a_guest_that_was_ended_is_tried_again_with_all_that_it_lacks(self):
        asked = "Uhhuh. NMI received for unknown reason 30 on CPU 0."
        for how in ({"error": self.HANG, "log": asked}, {"error": self.LIMIT},
                    {"error": self.HANG, "result": None},
                    {"error": self.LIMIT, "result": "notrun"}):
            with self.subTest(how):
                self.setUp()
                first = self.outcome("check-a", **{"result": "incomplete", "cut": True, **how})
                tried, last, late = self.once_more(first)
                self.assertEqual((tried, last), (["again-a"], ["again-a"]))
                self.assertIn(("a: boot", "unsteady"), late)
                self.assertIn(("a: kernel log", "unsteady"), late)

    def test_an_abort_of_qemu_after_a_removal_is_tried_again(self):
        abort = ("qemu-system-x86_64: util/error.c:62: error_setv: Assertion `*errp == NULL' "
                 "failed.\nAborted\n")
        for removed, again in ((True, ["again-a"]), (False, [])):
            self.setUp()
            first = self.outcome("check-a", "incomplete", qemu_log=abort, removed=removed,
                                 error=self.ENDED, cut=True)
            self.assertEqual(self.once_more(first)[0], again)

    def test_the_first_one_counts_if_both_are_bad(self):
        for how in ({"result": "fail"}, {"result": "timeout"}, {"log": "clock: late"}):
            with self.subTest(how):
                self.setUp()
                self.assertEqual(self.once_more(self.outcome("check-a", "timeout"), **how),
                                 (["again-a"], ["check-a"], []))

    def test_no_other_failure_is_tried_again(self):
        for how in ({"result": "fail", "out": "Failed: bytes differ"}, {"result": "crash"},
                    {"result": "fail", "out": f"{self.NO_END}\nFailed: VRAM leaks: 1"},
                    {"result": "fail", "out": f"{self.NO_END}\nFailed: it does not bind"},
                    {"result": "incomplete"}, {"result": "notrun"}, {"result": None},
                    {"log": "clock: late"}, {"log": "BUG: KASAN: use-after-free"},
                    {"log": "WARNING: possible circular locking dependency detected"},
                    {"qemu_log": "invalid access"}, {"cut": True},
                    {"result": "incomplete", "error": self.ENDED, "cut": True},
                    {"error": "the job's exit status was 1: it left no mark for 600 s"},
                    {"result": "incomplete", "error": self.HANG, "log": "INFO: task a blocked"}):
            with self.subTest(how):
                self.setUp()
                first = (self.outcome("check-a", "timeout"), self.outcome("check-b", **how))
                self.assertEqual(self.once_more(*first), ([], ["check-a", "check-b"], []))

    def test_what_is_said_of_a_guest_that_was_ended(self):
        for text, limit in ((self.HANG, 1000), (self.LIMIT, 0)):
            guard = watch.Watch(self.share, limit, 0 if limit else 1000)
            self.assertTrue(watch.ENDED.fullmatch(guard.complaint()), text)

    def test_many_failures_are_no_chance(self):
        first = [self.outcome(f"check-{n}", "timeout") for n in range(check.AGAIN + 1)]
        self.assertEqual(self.once_more(*first), ([], [o.boot.name for o in first], []))

    def test_it_is_counted_and_does_not_fail_the_run(self):
        console = Console()
        console.elapsed = lambda: "1 s"
        verdicts = [igt.Verdict("a: x", "unsteady", "too late"), igt.Verdict("a: x", "pass")]
        self.assertEqual(tally.close(console, verdicts), 0)
        self.assertEqual(console.lines, ["UNSTEADY, passed the second time: a: x: too late",
                                         "total time: 1 s", "1 unsteady",
                                         "1 passed, 0 failed, 0 skipped"])

    def test_a_run_remembers_what_was_unsteady_before(self):
        late = [igt.Verdict("a: x", "unsteady", "late"), igt.Verdict("b: y", "unsteady", "late")]
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=self.share):
            said = [[v.detail for v in unsteady.told(found, 7)] for found in (late[:1], late, late)]
            text = unsteady.path().read_text()
        first, once, twice = "late [for the first time]", "late [unsteady 1 times before]", \
            "late [unsteady 2 times before]"
        self.assertEqual(said, [[first], [once, first], [twice, once]])
        self.assertRegex(text, r"^\d{4}-\d\d-\d\d 7 a: x\n")
        self.assertEqual(len(text.splitlines()), 5)

    def test_the_gate_of_a_change_adds_both_up(self):
        make = Path(self.share) / "make"
        make.write_text('#!/bin/sh\n[ "$2" = check ] && echo "2 unsteady" && '
                        'echo "5 passed, 0 failed, 1 skipped" && exit\n'
                        'echo "3 passed, 0 failed, 0 skipped"\n')
        make.chmod(0o755)
        done = subprocess.run([pipeline.REPO / ".ci/run"], text=True, capture_output=True,
                              check=False,
                              env={"PATH": f"{self.share}:{os.environ['PATH']}"})
        self.assertEqual((done.returncode, done.stdout.splitlines()[-2:]),
                         (0, ["2 unsteady", "8 passed, 0 failed, 1 skipped"]))


class Slowest(unittest.TestCase):
    def test_the_slowest_come_first(self):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = []
            for name, length in (("a", 3), ("b", 5)):
                results = Path(folder) / name
                results.mkdir()
                tests = {f"igt@vvram_{name}@{i}": {"time": {"start": 1, "end": 1 + length}}
                         for i in range(2)}
                (results / "results.json").write_text(json.dumps({"tests": tests}))
                outcomes.append(qemu.Outcome(plan.igt(name, SWITCH, ["x"]), results, 10.0 * length))
            console = Console()
            check.slowest(console, outcomes)
        self.assertEqual([line.split()[-1] for line in console.lines if line.startswith("    ")],
                         ["b", "a", "vvram_b", "vvram_a"])
        self.assertTrue(fnmatch.fnmatch(console.lines[4], "*10.0 s  vvram_b"), console.lines)
