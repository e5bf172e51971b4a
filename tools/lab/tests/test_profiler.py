# SPDX-License-Identifier: GPL-2.0
"""Tests of what the profile makes of a trace."""

import unittest

from build.steps import LabError
from commands import profiler

USER = 0x5000
TEXT = 0xffffffff81000000
CALLED = TEXT + 0x100
MODULE = 0xffffffffc0000000
SYMBOLS = f"""
{TEXT - 16:x} T __pfx_caller
{TEXT:x} T caller
{CALLED:x} t called
{CALLED:x} t same_address
{CALLED + 0x80:x} D data
{MODULE:x} t _RNv6driver3map\t[driver]
"""


def insn(address, kind=0):
    """The number that the plugin writes for an instruction."""
    return kind << profiler.KIND | address & profiler.ADDRESS


def clock(address):
    """The same, of one that reads the clock."""
    return insn(address, profiler.CLOCK)


def window(*numbers):
    """A window that a program opens and closes."""
    return [insn(USER, profiler.BEGIN), *numbers, insn(USER, profiler.END)]


def called(times):
    """A program that reads the clock and calls the kernel so many times."""
    return window(insn(USER), clock(USER + 1), *[insn(CALLED)] * times, clock(USER + 2), insn(USER))


class Profiler(unittest.TestCase):
    def setUp(self):
        names = []

        def demangle(mangled):
            names.extend(mangled)
            plain = "driver[0123456789abcdef]::map"
            return [name.replace("_RNv6driver3map", plain) for name in mangled]
        self.symbols = profiler.Symbols(SYMBOLS.strip(), demangle)
        self.assertNotIn("data", names)

    def test_addresses_have_names(self):
        for address, name in ((TEXT, "caller"), (CALLED - 1, "caller"), (CALLED, "called"),
                              (CALLED + 0x90, "called"), (MODULE + 5, "driver::map [driver]"),
                              (TEXT - 16, profiler.UNKNOWN), (USER, profiler.USER)):
            self.assertEqual(self.symbols.name(address & profiler.ADDRESS), name)

    def test_a_program_measures_between_its_readings(self):
        figures = {"windows.attach.1.ours": 2, "attach.1.ours": 4}
        # Instructions outside of windows, and before and behind the readings, are not counted.
        # Nor is the window with more of them, in which an interrupt read the clock.
        late = window(clock(USER + 1), *[insn(CALLED)] * 8, clock(TEXT), clock(USER + 2))
        trace = [insn(CALLED), *late, insn(CALLED), *called(3)]
        lines, wrong = profiler.report(trace, figures, self.symbols)
        self.assertEqual(wrong, [])
        self.assertEqual([line.split() for line in lines[3:6]],
                         [["3", "called"], ["1", "(the", "program)"], ["4", "all"]])

    def test_a_mapping_is_measured_without_the_clock(self):
        reading = [clock(TEXT), insn(TEXT), insn(MODULE)]
        trace = window(clock(USER), *reading, *reading, *[insn(CALLED)] * 5, clock(TEXT),
                       insn(MODULE), clock(USER))
        figures = {"windows.first.4k.vfio": 1, "first.4k.vfio": 5}
        lines, wrong = profiler.report(trace, figures, self.symbols)
        self.assertEqual(wrong, [])
        self.assertEqual([line.split() for line in lines[3:5]], [["5", "called"], ["5", "all"]])

    def test_exporters_are_side_by_side(self):
        figures = {"windows.attach.1.ours": 1, "attach.1.ours": 3,
                   "windows.attach.1.vfio": 1, "attach.1.vfio": 2}
        trace = [*called(2), *window(clock(USER), insn(TEXT), clock(USER))]
        lines, wrong = profiler.report(trace, figures, self.symbols)
        self.assertEqual(wrong, [])
        self.assertEqual([line.split() for line in lines[3:7]],
                         [["2", "-", "called"], ["1", "1", "(the", "program)"],
                          ["-", "1", "caller"], ["3", "2", "all"]])

    def test_a_sum_that_is_not_the_figure_is_wrong(self):
        figures = {"windows.attach.1.ours": 1, "attach.1.ours": 5}
        _, wrong = profiler.report(called(3), figures, self.symbols)
        self.assertEqual(wrong, ["attach.1.ours: 4 instructions, the program has measured 5"])

    def test_all_windows_have_to_be_there(self):
        figures = {"windows.attach.1.ours": 2, "attach.1.ours": 4}
        with self.assertRaises(LabError):
            profiler.report(called(3), figures, self.symbols)
        # One that did not end is none.
        with self.assertRaises(LabError):
            profiler.report([*called(3), *called(3)[:-1]], figures, self.symbols)

    def test_the_clock_has_to_be_read(self):
        for name in ("attach.1.ours", "first.4k.ours"):
            with self.assertRaises(LabError):
                profiler.report(window(clock(USER)), {f"windows.{name}": 1, name: 1}, self.symbols)


if __name__ == "__main__":
    unittest.main()
