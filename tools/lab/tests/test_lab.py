# SPDX-License-Identifier: GPL-2.0
"""Tests of the lab's own logic: what it concludes from what it reads."""

import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import good
from boot import guestroot, pipeline, plan, qemu, topologies
from build import cache, debianroot, host, kernel, programs, source, toolchain
from build.steps import LabError
from commands import mutants, style
from commands.mutation import Mutation
from judge import costs, debugging, guests, igt, transfer

SWITCH = topologies.find("switch")
NO_ROUTE = topologies.find("no-route")
LISTS = guests.Lists({}, {}, None, frozenset({"vvram_a@x", "vvram_a@y", "vvram_b@x", "rdma_c@x"}))
GOOD = {"decision": "bus", "reason": "none", "distance": 4, "ranges": 3, "bytes_written": 4 << 20,
        "bytes_read": 4 << 20, "verified": True, "error": None}


class Cache(unittest.TestCase):
    def test_equal_content_keeps_its_time(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a/b"
            self.assertTrue(cache.write_if_changed(path, b"x"))
            os.utime(path, (1, 1))
            self.assertFalse(cache.write_if_changed(path, b"x"))
            self.assertEqual(path.stat().st_mtime, 1)
            self.assertTrue(cache.write_if_changed(path, b"y"))

    def test_digest_keeps_parts_apart(self):
        self.assertNotEqual(cache.digest("ab", "c"), cache.digest("a", "bc"))

    def test_stamp_is_for_one_key(self):
        with tempfile.TemporaryDirectory() as folder:
            stamp = cache.Stamp(Path(folder) / "stamp")
            stamp.set("a")
            self.assertTrue(stamp.holds("a"))
            self.assertFalse(stamp.holds("b"))
            stamp.clear()
            self.assertFalse(stamp.holds("a"))


class Mirror(unittest.TestCase):
    def choose(self, given, has):
        """The choice among the given mirror and apt's a and b; has lists (mirror, suite)."""
        host.mirror.cache_clear()
        with mock.patch.dict(os.environ, MIRROR=given), \
                mock.patch.object(host, "_apt_mirrors", return_value=["http://a", "http://b"]), \
                mock.patch.object(host, "_has_suite", lambda *asked: asked in has):
            return host.mirror("trixie", "forky")

    def test_a_mirror_must_have_every_suite(self):
        has = {("http://a", "trixie"), ("http://b", "trixie"), ("http://b", "forky")}
        self.assertEqual(self.choose("", has), "http://b")
        self.assertEqual(self.choose("http://b/", has), "http://b")
        with self.assertRaisesRegex(LabError, "http://a does not give forky"):
            self.choose("http://a", has)


class Transport(unittest.TestCase):
    DUMP = ('Acquire::http::Proxy "http://p:1";\nAcquire::Retries "3";\nAcquire::https "";\n'
            'Acquire::https::mirror.example::SslCert "{0}/cert";\n'
            'Acquire::https::Verify-Peer "true";\nAcquire::Check-Date "false";\n')
    BUNDLE = f'Acquire::https::CaInfo "{host.CA_BUNDLE}";'

    def test_settings_of_the_machine(self):
        options = host.transport(self.DUMP.format("/x"), "http://a")
        self.assertEqual(options, [
            'Acquire::http::Proxy "http://p:1";',
            'Acquire::https::mirror.example::SslCert "/x/cert";',
            'Acquire::https::Verify-Peer "true";', 'Acquire::Check-Date "false";'])

    def test_https_needs_an_authority(self):
        self.assertIn(self.BUNDLE, host.transport(self.DUMP, "https://a"))
        own = 'Acquire::https::CaInfo "/own.crt";\n'
        self.assertEqual(host.transport(own, "https://a"), [own.strip()])

    def test_the_root_sees_the_files(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "cert").touch()
            options = [*host.transport(self.DUMP.format(folder), "http://a"),
                       'Acquire::https::CaInfo "/not/there";']
            self.assertEqual(host.certificates(options), [f"{folder}/cert"])


class Missing(unittest.TestCase):
    ROOTS = (toolchain, guestroot)

    def test_only_what_is_not_in_the_caches(self):
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.dict(os.environ, XDG_CACHE_HOME=folder):
            self.assertEqual(pipeline.missing("", self.ROOTS), [toolchain, guestroot, source])
            toolchain.path().mkdir(parents=True)
            tree = source.Source(cache.base() / "source", "key")
            with mock.patch.object(source, "locate", return_value=tree):
                self.assertEqual(pipeline.missing("", self.ROOTS), [guestroot, source])
                tree.tree.mkdir(parents=True)
                self.assertEqual(pipeline.missing("", self.ROOTS), [guestroot])
                self.assertEqual(pipeline.missing("", [toolchain]), [])

    def test_what_is_asked_of_the_machine(self):
        for absent, gigabytes, suites in (
                ([], 0, []), ([source], source.GB, []),
                ([guestroot], guestroot.GB, guestroot.SUITES),
                ([toolchain, guestroot], toolchain.GB + guestroot.GB,
                 ["trixie", "trixie-backports", "forky"])):
            with mock.patch.object(pipeline, "missing", return_value=absent), \
                    mock.patch.object(host, "preflight"), \
                    mock.patch.object(debianroot, "sweep"), \
                    mock.patch.object(host, "supplies", side_effect=LabError("asked")) as asked:
                with self.assertRaisesRegex(LabError, "asked"):
                    pipeline.sources(None, self.ROOTS)
            asked.assert_called_once_with(gigabytes, suites)


class Config(unittest.TestCase):
    def test_what_did_not_end_up_as_asked(self):
        fragment = "CONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\n# a remark\nCONFIG_D=\"x\"\n"
        self.assertEqual(kernel.unmet(fragment, "CONFIG_A=y\nCONFIG_B=m\nCONFIG_D=\"x\"\n"), [])
        self.assertEqual(kernel.unmet(fragment, "CONFIG_A=m\nCONFIG_C=y\nCONFIG_D=\"x\"\n"),
                         ["CONFIG_A=y", "CONFIG_B=m", "# CONFIG_C is not set"])

    def test_a_later_fragment_overrides(self):
        fragment = "CONFIG_A=y\n# CONFIG_A is not set\n"
        self.assertEqual(kernel.unmet(fragment, ""), [])


class Patches(unittest.TestCase):
    def test_created_changed_and_removed_files(self):
        patch = ("--- a/one.c\n+++ b/one.c\n@@ -1 +1 @@\n--- /dev/null\n+++ b/dir/new.c\n"
                 "--- a/old.c\n+++ /dev/null\n")
        self.assertEqual(source.touched_by(patch), {"one.c", "dir/new.c", "old.c"})

    def test_patches_can_be_left_out(self):
        patches = [Path(name) for name in ("0001-a.patch", "0011-b.patch", "0011a-c.patch")]
        self.assertEqual(source.applied(patches, ""), patches)
        self.assertEqual(source.applied(patches, "0011"), patches[:1])
        self.assertEqual(source.applied(patches, "0011-,0001"), patches[2:])
        with self.assertRaises(LabError):
            source.applied(patches, "0002")


class Skips(unittest.TestCase):
    SKIPS = igt.expected_skips("# remark\nvvram_a@x  no such thing\nswitch:vvram_a@y  switches\n")

    def judge(self, topology, **results):
        tests = {f"igt@vvram_a@{k}": {"result": v, "err": "why\n"} for k, v in results.items()}
        return [(v.name, v.result) for v in
                igt.verdicts(json.dumps({"tests": tests}), self.SKIPS, topology, {"route"}, {})]

    def test_expected_and_unexpected(self):
        self.assertEqual(self.judge("switch", x="skip", y="skip", z="skip", p="pass"), [
            ("switch: vvram_a@p", "pass"), ("switch: vvram_a@x", "skip"),
            ("switch: vvram_a@y", "skip"), ("switch: vvram_a@z", "fail")])

    def test_a_listed_skip_that_passes_fails(self):
        self.assertEqual(self.judge("switch", x="pass"), [("switch: vvram_a@x", "fail")])
        self.assertEqual(self.judge("no-route", y="pass"), [("no-route: vvram_a@y", "pass")])

    def test_a_listed_skip_of_no_test_fails(self):
        seen = {"switch": {"vvram_a@x"}}
        self.assertEqual([v.name for v in igt.stale(self.SKIPS, seen)], ["skips.txt: vvram_a@y"])
        seen["switch"].add("vvram_a@y")
        self.assertEqual(igt.stale(self.SKIPS, seen), [])
        self.assertEqual(igt.stale(self.SKIPS, {"no-route": {"vvram_a@x"}}), [])

    def test_a_skip_needs_a_reason(self):
        with self.assertRaises(ValueError):
            igt.expected_skips("vvram_a@x\n")

    def test_skips_of_a_flavour(self):
        text = "kasan:vvram_a@x  slow\n"
        self.assertEqual(igt.expected_skips(text), {})
        self.assertEqual(igt.expected_skips(text, "kasan"), {(None, "vvram_a@x"): "slow"})

    def test_a_failure_is_told_without_the_stack_below_it(self):
        entry = {"out": "seed 1\nFailed: too late, stack:\n[<0>] f+0x1/0x2\n",
                 "err": "Starting subtest: x\n"}
        self.assertEqual(igt.said(entry), "Failed: too late, stack:")

    def test_other_results_fail(self):
        for result in ("fail", "crash", "timeout", "incomplete", "notrun", "dmesg-fail", "abort"):
            self.assertEqual(self.judge("switch", p=result), [("switch: vvram_a@p", "fail")])


class Needs(unittest.TestCase):
    def judge(self, need, has):
        entry = {"result": "skip", "out": f"seed 1\nSkipped: needs {need}\n",
                 "err": "Starting subtest: x\nSubtest x: SKIP (0.1s)\n"}
        text = json.dumps({"tests": {"igt@vvram_a@x": entry}})
        return [(v.result, v.detail) for v in igt.verdicts(text, {}, "switch", has, {})]

    def test_a_need_that_the_machine_has_not(self):
        self.assertEqual(self.judge("route", set()), [("skip", "needs route")])
        self.assertEqual(self.judge("own-slot", {"route"}), [("skip", "needs own-slot")])

    def test_a_need_that_the_machine_has(self):
        self.assertEqual([result for result, _ in self.judge("route", {"route"})], ["fail"])

    def test_a_need_that_nobody_knows(self):
        self.assertEqual([result for result, _ in self.judge("luck", set())], ["fail"])
        self.assertEqual([result for result, _ in self.judge("route for it", set())], ["fail"])

    def test_what_the_machines_have(self):
        for topology in topologies.ALL:
            self.assertLessEqual(topology.has, topologies.NEEDS)
            self.assertEqual("route" in topology.has, topology.decision != topologies.REFUSED)
            self.assertEqual("iommu" in topology.has,
                             any("iommu" in argument for argument in topology.machine))
            self.assertEqual("own-slot" in topology.has,
                             not any("multifunction" in word for word in topology.machine))

    def test_a_skip_on_every_boot_fails(self):
        boots = [{"a": "skip", "b": "skip", "c": "skip", "d": "incomplete"},
                 {"a": "skip", "b": "pass", "c": "skip", "d": "skip"}, {"e": "skip"}]
        texts = [json.dumps({"tests": {f"igt@vvram_a@{name}": {"result": result}
                                       for name, result in boot.items()}}) for boot in boots]
        listed = {(None, "vvram_a@c"): "slow", ("switch", "vvram_a@e"): "odd"}
        self.assertEqual([v.name for v in igt.never_ran(texts, listed)],
                         ["every boot: vvram_a@a", "every boot: vvram_a@e"])


class Findings(unittest.TestCase):
    FAILURES = igt.expected_failures("# remark\n\nvvram_a@x  L1  cannot be killed\n")
    AT_TIMES = igt.expected_failures("?vvram_a@x  L1  cannot be killed\n")

    @staticmethod
    def text(**results):
        return json.dumps({"tests": {f"igt@vvram_a@{name}": {"result": result, "err": "why\n"}
                                     for name, result in results.items()}})

    def test_what_is_expected_to_fail(self):
        verdicts = igt.verdicts(self.text(x="fail", y="fail"), {}, "switch", set(), self.FAILURES)
        self.assertEqual([(v.result, v.detail) for v in verdicts],
                         [("skip", "expected to fail: L1: cannot be killed"),
                          ("fail", "fail: why")])
        for result in ("pass", "crash", "timeout", "incomplete"):
            verdicts = igt.verdicts(self.text(x=result), {}, "switch", set(), self.FAILURES)
            self.assertEqual([v.result for v in verdicts], ["pass" if result == "pass" else "fail"])

    def test_what_always_passes_is_mended(self):
        mended = lambda *texts: len(igt.mended(texts, self.FAILURES))
        self.assertEqual(mended(self.text(x="pass"), self.text(x="pass")), 1)
        self.assertEqual(mended(self.text(x="pass"), self.text(x="fail")), 0)
        self.assertEqual(mended(self.text(y="pass")), 1)

    def test_what_passes_at_times_is_said_to(self):
        self.assertEqual([v.result for v in igt.verdicts(self.text(x="fail"), {}, "switch", set(),
                                                         self.AT_TIMES)], ["skip"])
        self.assertEqual(igt.mended([self.text(x="pass")], self.AT_TIMES), [])
        self.assertEqual(len(igt.mended([self.text(y="pass")], self.AT_TIMES)), 1)

    def test_letters_of_findings(self):
        for letter in ("H1", "M5", "F3", "A2", "L4", "D1", "D12", "H1,M5"):
            found = igt.expected_failures(f"vvram_a@x  {letter}  a reason\n")
            self.assertEqual(found["vvram_a@x"].reason, f"{letter}: a reason")

    def test_each_has_a_letter_and_a_reason(self):
        for line in ("vvram_a@x", "vvram_a@x  L1", "vvram_a@x  slow  machine", "vvram_a@x  L  one",
                     "vvram_a@x  h1  one", "vvram_a@x  HM1  one", "vvram_a@x  H1,  one"):
            with self.assertRaises(ValueError):
                igt.expected_failures(line)


class Boots(unittest.TestCase):
    FAULT = "qemu-system-x86_64: virtio_iommu_translate no mapping for 0x1000 for sid=512"
    TESTS = ("vvram_a@x", "vvram_a@y", "vvram_b@x")

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def outcome(self, plan_of_it=("vvram_*",), ran=TESTS, unwanted="", listed=(), **logs):
        """A boot that ran some tests; listed are those in the list of the runner."""
        text = good.log(*logs.pop("kernel", ()), tests=ran)
        for name, content in {"kernel": text, "qemu": "", **logs}.items():
            (self.folder / f"{name}.log").write_text(content)
        (self.folder / "results.json").write_text(json.dumps(
            {"tests": {f"igt@{test}": {"result": "pass"} for test in ran}}))
        (self.folder / "runner").mkdir(exist_ok=True)
        (self.folder / "runner/joblist.txt").write_text("".join(f"{job}\n" for job in listed))
        igt.jobs.cache_clear()
        boot = plan.igt("check-switch", SWITCH, plan_of_it,
                        **({"LAB_EXCEPT": unwanted} if unwanted else {}))
        return qemu.Outcome(boot, self.folder, 1.0)

    def failing(self, *arguments, **more):
        """What fails in such a boot."""
        return [v.name for v in guests.judge(self.outcome(*arguments, **more), LISTS, {})
                if v.result == "fail"]

    def test_each_log_is_judged(self):
        for logs, failing in (({}, []), ({"qemu": f"\n{self.FAULT}\n"}, ["switch: qemu log"]),
                              ({"kernel": ["BUG: x"]}, ["switch: kernel log"])):
            self.assertEqual(self.failing(**logs), failing)

    def test_each_test_of_the_plan_has_a_result(self):
        self.assertEqual(self.failing(ran=("vvram_a@x", "vvram_b@x")), ["switch: vvram_a@y"])
        self.assertEqual(self.failing(ran=("vvram_a@x", "vvram_a@y")), ["switch: vvram_b@x"])
        self.assertEqual(self.failing(("vvram_a",), ran=("vvram_a@x",)), ["switch: vvram_a@y"])
        self.assertEqual(self.failing(("vvram_a@x", "vvram_b@*"), ran=("vvram_a@x", "vvram_b@x")),
                         [])
        self.assertEqual(self.failing(unwanted="vvram_a@y", ran=("vvram_a@x", "vvram_b@x")), [])

    def test_each_name_of_the_plan_has_a_test(self):
        for name in ("vvram_a@z", "vvram_a@either-*", "vvram_d", "rdma_d*", "vvram"):
            self.assertEqual(self.failing((*self.TESTS, name)), [f"switch: {name}"])
        self.assertEqual(self.failing(unwanted="vvram_a@z"), ["switch: vvram_a@z"])
        # What a boot leaves out may be part of another boot.
        self.assertEqual(self.failing(unwanted="rdma_c@x"), [])

    def test_each_test_in_the_list_of_the_runner_has_a_result(self):
        # Of its own programs the lab knows no subtests.
        names = (*self.TESTS, "core_*")
        listed = ("vvram_a x,y", "vvram_b x", "core_auth one,two", "core_getversion")
        ran = (*self.TESTS, "core_auth@one", "core_getversion")
        self.assertEqual(self.failing(names, ran=ran, listed=listed), ["switch: core_auth@two"])
        self.assertEqual(self.failing(names, ran=(*ran, "core_auth@two"), listed=listed), [])
        self.assertEqual(self.failing(names), ["switch: core_*"])

    def test_the_exit_status_of_the_runner_is_that_of_the_job(self):
        job = (pipeline.GUEST / "jobs/igt").read_text()
        self.assertNotIn("|| true", job)
        self.assertIn('"$root" runner || status=$?', job)
        self.assertTrue(job.endswith("exit $status\n"))

    def test_the_programs_list_their_subtests(self):
        program = "#!/bin/sh\nprintf 'x\\ny\\n'\n"
        box = mock.Mock()
        box.with_binds.return_value.argv = lambda argv: [
            word.replace("/build/bin", str(self.folder)) for word in argv]
        for name, text in (("vvram_a", program), ("p2p-demo", "not a program"),
                           ("libfio_buffer.so", "nor this")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        self.assertEqual(programs.subtests(box, self.folder), {"vvram_a@x", "vvram_a@y"})
        (self.folder / "vvram_b").write_text("#!/bin/sh\nexit 1\n")
        (self.folder / "vvram_b").chmod(0o755)
        with self.assertRaises(LabError):
            programs.subtests(box, self.folder)

    def test_the_demo_sees_them_too(self):
        (self.folder / "demo.json").write_text(json.dumps(GOOD))
        (self.folder / debugging.STATE).write_text("lockdep 1\ndma-debug N\n")
        self.assertEqual(transfer.judge(self.outcome())[1], [])
        self.assertEqual(transfer.judge(self.outcome(qemu=self.FAULT))[1], [f"QEMU: {self.FAULT}"])
        self.assertEqual(len(transfer.judge(self.outcome(kernel=["x"]))[1]), 1)
        (self.folder / debugging.STATE).write_text("lockdep 0\ndma-debug N\n")
        self.assertEqual(transfer.judge(self.outcome())[1],
                         ["switch: lockdep: it was off at the end: 0"])
        outcome = self.outcome()
        (self.folder / "kernel.log").write_text("")
        self.assertEqual(len(transfer.judge(outcome)[1]), 2)

    def test_the_benchmark_needs_a_whole_log_too(self):
        outcome = self.outcome()
        self.assertEqual(costs.complaints(outcome), [])
        (self.folder / "kernel.log").write_text("")
        self.assertEqual(len(costs.complaints(outcome)), 1)


class Demo(unittest.TestCase):
    def test_as_expected(self):
        self.assertEqual(transfer.deviations(SWITCH, GOOD), [])
        refused = {**GOOD, "decision": "refused", "reason": "no-route", "distance": -1,
                   "bytes_written": 0, "bytes_read": 0, "verified": False}
        self.assertEqual(transfer.deviations(NO_ROUTE, refused), [])

    def test_each_deviation_is_seen(self):
        for change in ({"decision": "host-bridge"}, {"distance": 5}, {"ranges": 2},
                       {"reason": "no-opt-in"},
                       {"bytes_written": 4096}, {"bytes_read": 0}, {"verified": False},
                       {"error": "no"}):
            self.assertEqual(len(transfer.deviations(SWITCH, {**GOOD, **change})), 1, change)

    def test_silence_is_not_success(self):
        self.assertTrue(transfer.deviations(SWITCH, {}))
        self.assertTrue(transfer.deviations(NO_ROUTE, {}))

    def test_bytes_in_spite_of_a_refusal(self):
        moved = {**GOOD, "decision": "refused", "reason": "no-route", "distance": -1}
        self.assertEqual(len(transfer.deviations(NO_ROUTE, moved)), 1)


class Maintained(unittest.TestCase):
    def test_each_file_needs_a_section(self):
        def run(command, *_):
            if command[-1] == "b.c":
                raise LabError("no section")

        steps = mock.MagicMock()
        steps.step.return_value.__enter__.return_value.run = run
        files = [("a.c", None), ("b.c", None)]
        with mock.patch.object(source, "overlay_files", return_value=files):
            verdicts = style.maintained(steps, None)
        self.assertEqual([(v.name.removeprefix("MAINTAINERS: "), v.result) for v in verdicts], [
            ("self-test", "pass"), ("form", "pass"), ("a.c", "pass"), ("b.c", "fail")])


class Broken(unittest.TestCase):
    def test_a_mutation_needs_its_place(self):
        made = [Mutation("one", "a.c", "f(x);"), Mutation("two", "b.c", "g(y);"),
                Mutation("three", "c.c", "h(z);")]
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(mutants, "everything", return_value=made):
            src = mock.MagicMock(tree=Path(folder))
            (src.tree / "a.c").write_text("// licence\nf(x);\n")
            (src.tree / "b.c").write_text("// licence\ng(z);\n")
            verdicts = style.broken(mock.MagicMock(), src)
        self.assertEqual([(v.name.removeprefix("mutations: "), v.result) for v in verdicts], [
            ("a.c", "pass"), ("b.c", "fail"), ("c.c", "fail")])


class Unsafe(unittest.TestCase):
    def test_code_counts_and_comments_do_not(self):
        with tempfile.TemporaryDirectory() as folder:
            repo = Path(folder)
            for driver in style.SAFE:
                (repo / driver).mkdir(parents=True)
            good, bad = (repo / style.SAFE[0] / name for name in ("a.rs", "deep/b.rs"))
            bad.parent.mkdir()
            good.write_text("//! Nothing is unsafe.\nf(); // unsafe\nlet unsafety = 1;\n")
            bad.write_text("fn f() {\n    // SAFETY: none\n    unsafe { g() }\n}\n")
            verdicts = style.safe(mock.MagicMock(), repo)
        self.assertEqual(verdicts, [
            igt.Verdict(f"unsafe: {style.SAFE[0]}/a.rs", "pass"),
            igt.Verdict(f"unsafe: {style.SAFE[0]}/deep/b.rs", "fail",
                        "there is unsafe code in line 3")])

    def test_each_driver_is_there(self):
        names = {verdict.name for verdict in style.safe(mock.MagicMock(), pipeline.REPO)}
        for driver in style.SAFE:
            self.assertTrue(any(name.startswith(f"unsafe: {driver}/") for name in names), driver)


class Topologies(unittest.TestCase):
    def test_the_peer_never_truncates_addresses(self):
        for topology in topologies.ALL:
            self.assertIn("dma_mask=0xffffffffffffffff", " ".join(topology.machine))

    def test_a_pair_has_two_gpus(self):
        def gpus(topology):
            return sum(word.startswith("ivshmem-plain") for word in topology.machine)
        self.assertEqual({gpus(t) for t in topologies.TOPOLOGIES}, {1})
        self.assertEqual({gpus(t) for t in topologies.PAIRS + topologies.RDMA}, {2})

    def test_a_machine_for_rdma_has_a_nic(self):
        for topology in topologies.ALL:
            nics = [word for word in topology.machine if word.startswith("virtio-net")]
            self.assertEqual(len(nics), 1 if topology in topologies.RDMA else 0, topology.name)


if __name__ == "__main__":
    unittest.main()
