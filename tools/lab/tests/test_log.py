# SPDX-License-Identifier: GPL-2.0
"""Tests of how kernel logs are judged."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import check
import kernel
import kernellog
import plan
import qemu
import topologies


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
*/vvram_a@x* | nothing | a test wants it
?* | sometimes | by chance
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
        for line in ("a | b", "a | b | ", " | b | c", "x:a | b | c"):
            with self.assertRaises(ValueError, msg=line):
                kernellog.parse(line, "check")

    def test_the_list_can_be_read(self):
        for flavour in kernel.FLAVOURS:
            self.assertTrue(kernellog.expected(flavour))


class Leaks(unittest.TestCase):
    LEAK = "unreferenced object 0xffff888003a5e000 (size 64):\n  comm \"insmod\", pid 1\n"

    def verdicts(self, text=None, flavour="check", error=""):
        with tempfile.TemporaryDirectory() as share, \
                mock.patch.dict(check.os.environ, FLAVOUR=flavour):
            folder = Path(share) / "results/check-switch"
            folder.mkdir(parents=True)
            (Path(share) / "bin").mkdir()
            if text is not None:
                (folder / "kmemleak.txt").write_text(text)
            boot = plan.igt("check-switch", topologies.find("switch"), ("vvram_*",))
            return [(v.result, v.detail) for v in
                    check.judge(qemu.Outcome(boot, folder, 1.0, error),
                                check.Lists({}, {}, None), {})
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
