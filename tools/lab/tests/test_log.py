# SPDX-License-Identifier: GPL-2.0
"""Tests of how kernel logs are judged."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import good
from boot import pipeline, plan, qemu, topologies
from build import kernel
from judge import debugging, guests, igt, kernellog


def log(*texts, level=4):
    """A log of these lines."""
    return "".join(f"<{level}>[{i:5}.000000] {text}\r\n" for i, text in enumerate(texts))


def program(*texts):
    """Lines that are printed while a test program runs."""
    return [f"[IGT] {text}" for text in ("vvram_a: executing", *texts)]


class Levels(unittest.TestCase):
    TEXT = "edu 0000:02:00.0: not good"

    def test_a_warning_is_a_complaint_whatever_it_says(self):
        for level, bad in ((0, True), (3, True), (4, True), (5, False), (6, False), (12, True),
                           (27, True), (30, False)):
            self.assertEqual(kernellog.complaints(log(self.TEXT, level=level), "x", []),
                             [self.TEXT] if bad else [], level)

    def test_a_warning_of_a_test_is_one_too(self):
        text = log(*program("vvram_a: starting subtest x"), level=14) + log(self.TEXT)
        self.assertEqual(kernellog.complaints(text, "x", []), [f"{self.TEXT} (during vvram_a@x)"])

    def test_quiet_complaints(self):
        for text in ("vvram_a[12]: segfault at 0 ip 0 sp 0 error 4 in vvram_a",
                     "FAULT_INJECTION: forcing a failure.",
                     "traps: vvram_a[12] general protection fault ip:0 sp:0 error:0",
                     "kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)"):
            self.assertEqual(kernellog.complaints(log(text, level=6), "x", []), [text])
        good = log("kmemleak: Kernel memory leak detector initialized (mem pool available: 1)",
                   "    # traps: a note of a suite", level=6)
        self.assertEqual(kernellog.complaints(good, "x", []), [])

    def test_what_the_kernel_did_not_print(self):
        text = "SeaBIOS\n\n" + log("Linux", level=5) + "/lab/guest/init: 7: mount: not found\n\n"
        self.assertEqual(kernellog.complaints(text, "x", []),
                         ["/lab/guest/init: 7: mount: not found"])

    def test_an_empty_line_says_nothing(self):
        self.assertEqual(kernellog.complaints(log("x", "", "y"), "x", []), ["x", "y"])

    def test_what_is_printed_again_counts_once(self):
        whole, other = log("a b"), log("x")
        for part in (whole[:-3] + "\r\n", whole[:2] + "\r\n", whole, ""):
            text = f"{other}{part}{kernellog.REPLAY}\r\n{whole}"
            self.assertEqual(list(kernellog.lines(text)), [(4, "x"), (4, "a b")])
        # A log that ends there.
        self.assertEqual(list(kernellog.lines(f"{other}{kernellog.REPLAY}\n")), [(4, "x")])

    def test_many_are_shortened(self):
        found = [str(n) for n in range(kernellog.SHOWN)]
        self.assertEqual(kernellog.brief(found), found)
        for more in (1, 2):
            self.assertEqual(kernellog.brief([*found, *"abc"[:more]]),
                             [*found, f"and {more} more like these"])


class Expected(unittest.TestCase):
    LIST = """# a remark

switch,pair-* | pci .*: (no|bad) IRQ | it has none
*/vvram_a@x* 2 | nothing | a test wants it
?* 3 | sometimes | by chance
kasan:* | slowly | it is
"""

    def complaints(self, boot, *texts, flavour="check"):
        return kernellog.complaints(log(*texts), boot, kernellog.parse(self.LIST, flavour))

    def test_it_is_limited_to_boots(self):
        text = "pci 0000:00:01.0: no IRQ"
        self.assertEqual(self.complaints("switch", text), [])
        self.assertEqual(self.complaints("pair-a", text), [])
        self.assertEqual(self.complaints("bridge", text), [text])

    def test_the_whole_line_has_to_fit(self):
        for text in ("pci 0000:00:01.0: no IRQ at all", "a pci 0000:00:01.0: no IRQ"):
            self.assertEqual(self.complaints("switch", text), [text])

    def test_it_is_limited_to_tests(self):
        for before, bad in ((["vvram_a: starting subtest x1"], []),
                            (["vvram_a: starting subtest y"], ["nothing (during vvram_a@y)"]),
                            ([], ["nothing (during vvram_a)"]),
                            (["vvram_a: starting subtest x", "vvram_a: exiting, ret=0"],
                             ["nothing"])):
            self.assertEqual(self.complaints("b", *program(*before), "nothing"), bad, before)

    def test_it_is_limited_to_a_flavour(self):
        self.assertEqual(self.complaints("b", "slowly"), ["slowly"])
        self.assertEqual(self.complaints("b", "slowly", flavour="kasan"), [])

    def test_a_line_has_a_number(self):
        again = "sometimes [more often than expected]"
        self.assertEqual(self.complaints("b", *["sometimes"] * 3), [])
        self.assertEqual(self.complaints("b", *["sometimes"] * 5), [again, again])
        once = "pci a: no IRQ"
        self.assertEqual(self.complaints("switch", once, once),
                         [f"{once} [more often than expected]"])
        entries = kernellog.parse(self.LIST, "check")
        self.assertEqual(kernellog.judge(log(*["sometimes"] * 6), "b", entries, rounds=2).lines, [])
        # A line of a second entry has its room.
        two = kernellog.parse("a | x. | one\na | xy | another", "check")
        self.assertEqual(kernellog.complaints(log("xy", "xy"), "a", two), [])

    def test_a_line_has_to_be_there(self):
        entries = kernellog.parse("a* =2 | x | it has to\nb | y | may", "check")
        for number, missing, more in ((0, 1, 0), (1, 1, 0), (2, 0, 0), (3, 0, 1)):
            found = kernellog.judge(log(*["x"] * number), "a1", entries, rounds=10)
            self.assertEqual((len(found.missing), len(found.complaints)), (missing, more), number)
        self.assertEqual(kernellog.complaints(log("x"), "a", entries),
                         ["1 lines `x`, not 2: it has to"])
        # At another level it is not there, and so the judge sees its own blindness.
        self.assertEqual(len(kernellog.complaints(log("x", "x", level=6), "a", entries)), 1)
        self.assertEqual(kernellog.complaints(log("y"), "b", entries), [])

    STACK = """?*/*_faults@* 2 | \\S+: vmalloc error: .* | no memory
kasan:*/*_faults@* 2 | head of another flavour | no memory
?*/vvram_b@x | another head | no memory
+ | CPU: .* | the stack
+ | Call Trace: | the stack
+ 3 | \\s.* | the stack
* | other | anything
"""

    def test_what_follows_a_line_is_expected_behind_it_alone(self):
        entries = kernellog.parse(self.STACK, "check")
        trace = ["CPU: 1 UID: 0", "Call Trace:", " <TASK>", " f+0x1", " </TASK>"]
        head = "a: vmalloc error: size 1"
        begin = program("vvram_faults: starting subtest copy")

        def complaints(*texts):
            return [line.partition(" (during")[0]
                    for line in kernellog.complaints(log(*begin, *texts), "b", entries)]

        self.assertEqual(complaints(head, *trace), [])
        self.assertEqual(complaints(*trace), trace)
        self.assertEqual(complaints(head, *trace, head, *trace), [])
        # A second stack behind one line, and a line too much in the first one.
        self.assertEqual(complaints(head, *trace, *trace), trace)
        self.assertEqual(complaints(head, *trace[:4], " g+0x1", trace[4]), [trace[4]])
        # Another processor may print meanwhile.
        self.assertEqual(complaints(head, *trace[:2], "other", *trace[2:]), [])
        self.assertEqual(complaints("[IGT] vvram_b: starting subtest x", "another head", *trace), [])
        # Neither in another test, nor behind a line that is one too many.
        self.assertEqual(complaints("[IGT] vvram_a: starting subtest x", head, *trace),
                         [head, *trace])
        self.assertEqual(complaints(*[head, *trace] * 3), [f"{head} [more often than expected]",
                                                           *trace])

    def test_stale_entries_are_told(self):
        entries = kernellog.parse(self.LIST, "check")

        def stale(**logs):
            return [v.name.partition(": ")[2] for v in kernellog.stale(logs, entries)]

        self.assertEqual(stale(b=log("x")), ["nothing"])
        self.assertEqual(stale(switch=log("x")), ["pci .*: (no|bad) IRQ", "nothing"])
        used = log("pci a: bad IRQ", *program("vvram_a: starting subtest x"), "nothing")
        self.assertEqual(stale(switch=log("x"), **{"pair-a": used}), [])
        # A line of another level is none that needs the entry.
        self.assertEqual(stale(switch=log("pci a: bad IRQ", level=6)),
                         ["pci .*: (no|bad) IRQ", "nothing"])

    def test_an_entry_is_whole(self):
        for line in ("a | b", "a | b | ", " | b | c", "x:a | b | c", "a x | b | c", "a 1 2 | b | c",
                     "+ | b | c", "a | b | c\n\n+ | b | c", "a | b | c\n+ =2 | b | c"):
            with self.assertRaises(ValueError, msg=line):
                kernellog.parse(line, "check")

    def test_the_list_can_be_read(self):
        for flavour in kernel.FLAVOURS:
            self.assertTrue(kernellog.expected(flavour))


class Whole(unittest.TestCase):
    """A log that is not whole is a failure, wherever it ends."""

    TESTS = ("vvram_a@x", "vvram_b@y")

    def verdict(self, text, begun=TESTS):
        """The verdict about the kernel log of a boot in which these tests have begun."""
        boot = plan.igt("check-switch", topologies.find("switch"), ("vvram_*",))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "kernel.log").write_text(text)
            return guests.kernel_log(qemu.Outcome(boot, Path(folder), 1.0), "switch", set(begun))

    def test_an_empty_or_truncated_log_fails(self):
        lines = good.log(tests=self.TESTS).splitlines(keepends=True)
        self.assertEqual(self.verdict("".join(lines)).result, "pass")
        for end in range(len(lines)):
            found = self.verdict("".join(lines[:end]))
            self.assertEqual((found.result, found.kind), ("fail", igt.LOST), end)
        # Nor is it whole without its begin, or with a hole.
        for missing in (lines[1:], [*lines[:5], lines[-1]]):
            self.assertEqual(self.verdict("".join(missing)).result, "fail")

    def test_a_log_without_warnings_fails(self):
        text = good.log(tests=self.TESTS)
        lines = [line for line in text.splitlines(keepends=True) if not line.startswith("<4>")]
        self.assertIn("not 2", self.verdict("".join(lines)).detail)

    def test_each_test_has_left_a_mark(self):
        found = self.verdict(good.log(tests=self.TESTS), [*self.TESTS, "vvram_c@z"])
        self.assertEqual(found.detail, "no mark of vvram_c@z")

    def test_a_complaint_is_final_also_in_a_log_that_is_not_whole(self):
        found = self.verdict(good.log("x", tests=self.TESTS)[:-20])
        self.assertEqual((found.result, found.kind), ("fail", ""))

    def test_suites_are_named(self):
        text = log("    # Subtest: vram_lru", level=6) + log("x") + log("ok 1 vram_lru", level=6) \
            + log("y")
        self.assertEqual(kernellog.complaints(text, "b", []), ["x (during vram_lru)", "y"])

    def test_a_guest_is_asked_at_the_end_only(self):
        text = log("x", "Uhhuh. NMI received for unknown reason 20 on CPU 0.", "y")
        self.assertEqual(kernellog.until_asked(text), log("x"))
        self.assertEqual(kernellog.until_asked(log("x")), log("x"))


class Checks(unittest.TestCase):
    """The checks of the kernel are on at the end of each boot."""

    OFF = "DMA-API: cacheline tracking ENOMEM, dma-debug disabled"

    def verdicts(self, text, log_text="", checks=frozenset({"lockdep", "dma-debug"})):
        """(name, result) of the verdicts about them."""
        boot = plan.igt("check-switch", topologies.find("switch"), ("vvram_*",))
        with tempfile.TemporaryDirectory() as folder:
            if text is not None:
                (Path(folder) / debugging.STATE).write_text(text)
            (Path(folder) / "kernel.log").write_text(log_text)
            outcome = qemu.Outcome(boot, Path(folder), 1.0)
            return [(v.name, v.result) for v in debugging.verdicts(outcome, "switch", checks)]

    def expect(self, dma, lockdep):
        """The verdicts with these results."""
        return [("switch: dma-debug", dma), ("switch: lockdep", lockdep)]

    def test_what_has_turned_itself_off_fails(self):
        self.assertEqual(self.verdicts("lockdep 1\ndma-debug N\n"), self.expect("pass", "pass"))
        self.assertEqual(self.verdicts("lockdep 0\ndma-debug N\n"), self.expect("pass", "fail"))
        self.assertEqual(self.verdicts("lockdep 1\ndma-debug Y\n"), self.expect("fail", "pass"))
        for nothing in (None, "", "lockdep\n"):
            self.assertEqual(self.verdicts(nothing), self.expect("fail", "fail"))
        self.assertEqual(self.verdicts(None, checks=frozenset()), [])

    def test_a_test_without_memory_may_turn_one_off_and_this_is_told(self):
        state = "lockdep 1\ndma-debug Y\n"
        for test, result in (("mgpu_faults", "skip"), ("vvram_p2p", "fail")):
            said = log(f"[IGT] {test}: executing", f"[IGT] {test}: starting subtest x",
                       self.OFF)
            self.assertEqual(self.verdicts(state, said), self.expect(result, "pass"))
        self.assertEqual(self.verdicts("lockdep 0\ndma-debug N\n", log(self.OFF)),
                         self.expect("pass", "fail"))

    def test_the_state_of_memory_hides_nothing_of_dma_debug(self):
        said = log("[IGT] vvram_faults: executing", "[IGT] vvram_faults: starting subtest x",
                   "vvram_faults: vmalloc error: size 4096", "DMA32 free:8kB boost:0kB",
                   "DMA-API: pci 0: device driver maps memory from kernel text")
        entries = kernellog.expected("check")
        self.assertEqual([line for line in kernellog.complaints(said, "check-once-2", entries)
                          if "DMA" in line],
                         ["DMA-API: pci 0: device driver maps memory from kernel text "
                          "(during vvram_faults@x)"])

    def test_which_flavours_have_them(self):
        for flavour, found in (("check", {"lockdep", "dma-debug"}), ("kasan", {"dma-debug"}),
                               ("rt", {"lockdep", "dma-debug"}), ("plain", set())):
            with mock.patch.dict(os.environ, FLAVOUR=flavour):
                self.assertEqual(debugging.wanted(), found)

    def test_the_guest_says_so(self):
        init = (pipeline.GUEST / "init").read_text()
        for text in ("/proc/lockdep_stats", "dma-api/disabled", f">{debugging.STATE}"):
            self.assertIn(text, init)


class Leaks(unittest.TestCase):
    LEAK = "unreferenced object 0xffff888003a5e000 (size 64):\n  comm \"insmod\", pid 1\n"

    def verdicts(self, text=None, flavour="check", error=""):
        with tempfile.TemporaryDirectory() as share, \
                mock.patch.dict(os.environ, FLAVOUR=flavour):
            folder = Path(share) / "results/check-switch"
            folder.mkdir(parents=True)
            (Path(share) / "bin").mkdir()
            if text is not None:
                (folder / "kmemleak.txt").write_text(text)
            boot = plan.igt("check-switch", topologies.find("switch"), ("vvram_*",))
            return [(v.result, v.detail) for v in
                    guests.judge(qemu.Outcome(boot, folder, 1.0, error),
                                 guests.Lists({}, {}, None), {})
                    if v.name == "switch: kmemleak"]

    def test_where_there_is_kmemleak(self):
        self.assertEqual(self.verdicts("", "kmemleak"), [("pass", "")])
        (result, detail), = self.verdicts(self.LEAK, "kmemleak")
        self.assertEqual(result, "fail")
        self.assertIn("unreferenced object", detail)

    def test_a_scan_that_is_missing(self):
        self.assertEqual(self.verdicts(None, "kmemleak"), [("fail", "the guest has not scanned")])
        self.assertEqual(self.verdicts(None, "kmemleak", "died"), [])
        self.assertEqual(self.verdicts(None), [])


if __name__ == "__main__":
    unittest.main()
