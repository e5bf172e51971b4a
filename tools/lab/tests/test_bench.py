# SPDX-License-Identifier: GPL-2.0
"""Tests of what the benchmark concludes from its figures."""

import os
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import good
from boot import pipeline, qemu
from build.steps import LabError
from commands import bench
from judge import costs

COSTS = {"move.out": 1100, "move.out.still": 100, "move.back": 1100, "move.back.still": 100,
         "copy.out": 900, "copy.back": 900, "cycle.10": 100, "cycle.10000": 110,
         "transfer.direct.cpu": 100, "transfer.bounce.cpu": 150,
         "transfer.direct.time": 1000, "transfer.bounce.time": 1010,
         **{f"{what}.{size}.{kind}": 100 for what in ("register", "deregister")
            for size, _ in costs.REGISTRATIONS for kind in ("vram", "system", "host")},
         **{f"find.{size}.{place}": cost for size, _ in costs.FOUND
            for place, cost in (("ram", 1000), ("vram", 1200), ("back", 24_000))},
         **{f"engine.{name}.{way}": 50 + 2 * (size >> 12) for name, size in costs.MOVED
            for way, _ in costs.WAYS}}
FIGURES = {"move.bytes": 2 << 20, **COSTS,
           **{f"{name}{which}": value for name, value in COSTS.items() for which in costs.SPREAD},
           **{f"map.{name}.ours": 10 for name, _, _ in costs.MAPPINGS},
           **{f"map.{name}.vfio": 1000 for name, _, _ in costs.MAPPINGS},
           **{f"{name}.{blocks}.{who}": 100 + 10 * blocks for name in ("map", "whole")
              for blocks in costs.GROWTH for who in ("ours", "vfio")},
           **{f"first.{name}.{who}": 60 for name in costs.FIRST for who in ("ours", "vfio")},
           **{f"attach.{count}.{who}": 50 for count, _ in costs.ATTACHES
              for who in ("ours", "vfio")},
           **{f"find.{size}.pages": 100 for size, _ in costs.FOUND},
           **{f"{name}.{part}": cost for name, _ in costs.JOBS
              for part, cost in (("submit", 5000), ("finish", 3000))},
           "rdma.write.vram": 90, "rdma.write.host": 100,
           "map.huge.ours": 10, "map.huge.vfio": 20, "map.huge.ours.entries": 24,
           "map.huge.vfio.entries": 24,
           "map.huge.ours.bytes": 48 << 30}
MEASURED = dict.fromkeys((*costs.MACHINES, costs.RDMA, costs.ENGINE), FIGURES)


class Bench(unittest.TestCase):
    def run_with(self, *runs, status=None, base="", without=""):
        """Run the command over boots that leave these figures, in turn, for each machine."""
        with tempfile.TemporaryDirectory() as folder:
            outcomes = []
            for boot in bench.boots():
                results = Path(folder) / boot.name
                results.mkdir()
                (results / "kernel.log").write_text(good.log())
                (results / "qemu.log").touch()
                figures = runs[int(boot.name.rpartition("-")[2]) - 1]
                text = "".join(f"{key} {value}\n" for key, value in figures.items())
                (results / "figures").write_text(text)
                outcomes.append(qemu.Outcome(boot, results, 1.0, status or ""))
            steps, built = mock.MagicMock(), mock.MagicMock()
            steps.logs = Path(folder)
            built.machine.run_all.return_value = outcomes
            recorded = Path(folder) / "recorded" / costs.CEILINGS.name
            recorded.parent.mkdir()
            recorded.write_text(base)
            try:
                with mock.patch.object(costs, "CEILINGS", recorded), \
                        mock.patch.dict(os.environ, WITHOUT=without):
                    bench.run(steps, built)
            finally:
                self.report = (Path(folder) / "bench.txt").read_text()
                written = Path(folder) / recorded.name
                self.ceilings = written.read_text() if written.exists() else ""

    def test_all_targets_are_met(self):
        self.run_with(FIGURES, FIGURES)
        self.assertNotIn("MISSED", self.report)
        self.assertIn("bus address: 1 x 4 KiB", self.report)
        self.assertIn("host bridge, no IOMMU: 4096 scattered blocks", self.report)
        self.assertIn("4 KiB pages: 10.0 instructions for a page in system memory, 12.0 in VRAM, "
                      "240.0 if it is moved back", self.report)
        for _, title in costs.JOBS:
            self.assertIn(f"{title}: 5,000 instructions from the ioctl to the doorbell, 3,000 from "
                          "the interrupt to the signalled fence", self.report)
        self.assertIn("move n pages by the engine, VRAM to system memory: 50 + 2.00 n", self.report)

    def test_each_target_can_be_missed(self):
        for name, value in (("move.out", 2000), ("move.back", 2000), ("cycle.10000", 121),
                            ("map.scattered.ours", 1011), ("map.adjacent.ours", 51),
                            ("find.4k.vram", 1501), ("find.2m.vram", 1251),
                            ("find.2m.back", 23_999)):
            worse = {**FIGURES, name: value, f"{name}.median": value, f"{name}.most": value}
            with self.assertRaises(LabError, msg=name):
                self.run_with(worse, worse)
            self.assertIn("MISSED", self.report)

    def test_a_goal_is_shown_and_its_ceiling_kept(self):
        for name, most in (("map.4k.ours", 1050), ("first.4k.ours", 60), ("whole.4096.ours", 41_060),
                           ("attach.1.ours", 60)):
            self.run_with({**FIGURES, name: most}, {**FIGURES, name: most})
            self.assertNotIn("not met", self.report)
            worse = {**FIGURES, name: most + 1}
            self.run_with(worse, worse)
            self.assertEqual(self.report.count("not met"), len(costs.MACHINES), name)
            with self.assertRaises(LabError):
                self.run_with(worse, worse, base=f"switch {name} {most}\n")
            self.assertIn(f"switch: {name}: {most + 1:,}, at most {most:,}", self.report)

    def test_figures_have_limits_of_their_own(self):
        self.run_with(FIGURES, FIGURES, base="# why\n\nswitch map.4k.ours 10\n")
        with self.assertRaises(LabError):
            self.run_with(FIGURES, FIGURES, base="intel-iommu map.4k.ours 9\n")
        self.assertIn("intel-iommu: map.4k.ours: 10, at most 9 are allowed", self.report)
        self.assertIn("intel-iommu map.4k.ours 20\n", self.ceilings)
        self.assertIn("gpu-switch engine.2m.out 1130\n", self.ceilings)
        with self.assertRaises(LabError):
            self.run_with(FIGURES, FIGURES, base="switch map.3k.ours 9\n")
        self.assertIn("switch: map.3k.ours was not measured", self.report)

    def test_a_kernel_without_patches_has_no_ceilings(self):
        self.run_with(FIGURES, FIGURES, base="switch map.4k.ours 9\n", without="0011")
        self.assertNotIn("are allowed", self.report)

    def test_the_recorded_figures_are_of_known_machines(self):
        base = costs.recorded(costs.CEILINGS.read_text())
        self.assertLessEqual(base.keys(), MEASURED.keys())

    def test_each_row_has_a_target_or_a_ceiling_or_a_reason(self):
        rows = costs.rows(MEASURED)
        base = costs.recorded(costs.CEILINGS.read_text())
        self.assertEqual([row.what for row in rows if row.figure not in FIGURES], [])
        # A reason is for rows that have neither, and for no others.
        self.assertEqual([row.what for row in rows if row.is_bounded(base) == bool(row.reason)], [])
        for start in costs.UNBOUNDED:
            self.assertTrue(any(row.figure.startswith(start) for row in rows), start)
        # The lines below the table are of figures with ceilings, too.
        figures = [f"{name}.{part}" for name, _ in costs.JOBS for part in ("submit", "finish")]
        self.assertLessEqual({*figures}, base[costs.ENGINE].keys())

    def test_figures_that_no_work_can_have_are_errors(self):
        for name, value, text in (("engine.2m.out", -540_468, "-540,468 is no number"),
                                  ("map.4k.ours", 0, "0 is no number"),
                                  ("map.4k.ours", (1 << 64) - 3, "is no number"),
                                  ("cycle.10.median", 99, "are [100, 99, 100]"),
                                  ("cycle.10.most", 99, "are [100, 100, 99]")):
            odd = {**FIGURES, name: value}
            with self.assertRaises(LabError, msg=name):
                self.run_with(odd, odd)
            self.assertIn(text, self.report)

    def test_what_cannot_be_compared_is_an_error(self):
        for name, value in (("register.4k.vram", 10 ** 7), ("move.out.still", 1200)):
            odd = {**FIGURES, name: value, f"{name}.median": value, f"{name}.most": value}
            with self.assertRaises(LabError, msg=name):
                self.run_with(odd, odd)
            self.assertIn("is not one of the same work", self.report)

    def test_more_work_takes_more(self):
        odd = {**FIGURES, "engine.256m.out": 20, "engine.2m.out": 40}
        with self.assertRaises(LabError):
            self.run_with(odd, odd)
        self.assertIn("VRAM to system memory: ", self.report)
        self.assertIn("more work cannot take less", self.report)

    def test_growth_is_a_line(self):
        start, slope, worst = costs.fit([(n, 7 + 3 * n) for n in costs.GROWTH])
        self.assertAlmostEqual(start, 7)
        self.assertAlmostEqual(slope, 3)
        self.assertAlmostEqual(worst, 0)
        self.assertGreater(costs.fit([(1, 1), (10, 20), (100, 100)])[2], 0.1)
        self.run_with(FIGURES, FIGURES)
        self.assertIn("n scattered blocks, vfio-pci: 100 + 10.00 n instructions, within 0 %", self.report)

    def test_the_large_buffer_has_a_row(self):
        self.run_with(FIGURES, FIGURES)
        self.assertIn("bus address: 1 x 48 GiB, 24 entries, bar_export", self.report)

    def test_rows_name_the_boots_that_measured_them(self):
        found = {row.boot for row in costs.rows(MEASURED)}
        self.assertEqual(found, {boot.name for boot in bench.boots() if boot.name.endswith("-1")})

    def test_each_row_says_which_ratio_is_better(self):
        rows = costs.rows(MEASURED)
        more = [row for row in rows if row.better == "more"]
        self.assertEqual({row.what for row in rows if row.least is not None},
                         {row.what for row in more if row.least is not None})
        self.assertEqual([row for row in more if (row.most, row.goal) != (None, None)], [])
        # The others divide the figure of ours by that to compare with.
        for row in rows:
            figures = (row.other, row.ours) if row.better == "more" else (row.ours, row.other)
            self.assertAlmostEqual(row.ratio, figures[0] / figures[1], msg=row.what)
        self.run_with(FIGURES, FIGURES)
        self.assertRegex(self.report, r"what +ours +to compare +with +ratio +better +spread")
        self.assertRegex(self.report, r"move 2 MiB from VRAM .* 0\.900  more ")
        self.assertRegex(self.report, r"life of an export, .* 1\.100  less ")

    def test_two_runs_have_to_agree(self):
        with self.assertRaises(LabError):
            self.run_with(FIGURES, {**FIGURES, "copy.out": 901})
        self.assertIn("two runs differ: copy.out: 900 and 901", self.report)
        with self.assertRaises(LabError):
            self.run_with(FIGURES, {k: v for k, v in FIGURES.items() if k != "map.4k.vfio"})

    def test_some_figures_are_not_exact(self):
        for name, value, close in (("move.out", 10_000, 10_200),
                                   ("transfer.direct.cpu", 10_000, 10_500),
                                   ("cycle.10000", 10_000, 10_100),
                                   ("whole.4096.ours", 100_000, 100_100),
                                   ("map.65536.vfio", 1_000_000, 1_000_200),
                                   ("map.scattered.vfio", 1_000_000, 1_000_000)):
            self.assertEqual(costs.differences({name: value}, {name: close}), [])
            self.assertEqual(len(costs.differences({name: value}, {name: close + 1})), 1)

    def test_tables_of_the_same_ranges_are_alike(self):
        other = {**FIGURES, "map.huge.ours.entries": 25}
        with self.assertRaises(LabError):
            self.run_with(other, other)
        self.assertIn("map.huge: entries of ours and of vfio-pci differ", self.report)

    def test_the_spread_may_differ(self):
        self.run_with(FIGURES, {**FIGURES, "cycle.10.most": 9999})

    def test_a_boot_that_failed_is_no_success(self):
        with self.assertRaises(LabError):
            self.run_with(FIGURES, FIGURES, status="the job's exit status was 1")

    def test_the_documentation_has_the_tolerances(self):
        text = (pipeline.REPO / "tools/lab/README.md").read_text()
        rows = dict(re.findall(r"^\| `([a-z]+\.(?:[a-z0-9-]+\.)?)` \| ([\d.]+) % \|", text, re.M))
        self.assertEqual({name: float(part) for name, part in rows.items()},
                         {name: 100 * part for name, part in costs.TOLERANCES.items()})


if __name__ == "__main__":
    unittest.main()
