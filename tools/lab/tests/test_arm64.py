# SPDX-License-Identifier: GPL-2.0
"""Boots of arm64: their machine, and the results of programs without igt_runner."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from boot import arm64, pipeline, plan, topologies
from build import kernel, sandbox
from build.steps import LabError
from judge import igt

OUTPUT = """IGT-Version: 2.5-vvram (aarch64) (Linux: 7.3 aarch64)
Starting subtest: good
a line
Subtest good: SUCCESS (1.250s)
Starting subtest: bad
Failed: one is not two
Subtest bad: FAIL (0.001s)
Starting subtest: none
Skipped: needs iommu
Subtest none: SKIP (0.000s)
Starting subtest: lost
"""


class Collected(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "vvram_a.txt").write_text(OUTPUT)
        self.tests = arm64.collected(self.folder)

    def test_each_subtest_has_its_result(self):
        self.assertEqual({name: entry["result"] for name, entry in self.tests.items()},
                         {"igt@vvram_a@good": "pass", "igt@vvram_a@bad": "fail",
                          "igt@vvram_a@none": "skip", "igt@vvram_a@lost": "incomplete"})

    def test_the_reasons_and_times_are_found(self):
        self.assertEqual(igt.said(self.tests["igt@vvram_a@bad"]), "Failed: one is not two")
        self.assertTrue(igt.NEEDS.match(igt.said(self.tests["igt@vvram_a@none"])))
        self.assertEqual(igt.seconds(self.tests["igt@vvram_a@good"]), 1.25)


class Boots(unittest.TestCase):
    def setUp(self):
        environment = mock.patch.dict(os.environ, FLAVOUR="arm64-64k")
        environment.start()
        self.addCleanup(environment.stop)

    def test_what_only_the_other_machine_has_is_left_out(self):
        machine = arm64.Machine(mock.Mock(cmdline="", box=sandbox.Sandbox("/")), "/image",
                                sandbox.Sandbox("/tools"))
        for boot in plan.arm64():
            argv = machine.argv(boot, ())
            cmdline = argv[argv.index("-append") + 1]
            self.assertEqual(argv[0], "qemu-system-aarch64")
            self.assertIn("console=ttyAMA0 ", cmdline)
            self.assertNotIn("tsc", cmdline)
            self.assertFalse([word for word in argv if "x86" in word or "q35" in word])

    def test_an_smmu_has_no_devices_outside_of_qemu(self):
        for boot in plan.arm64():
            if topologies.SMMU[1] in boot.topology.machine:
                self.assertFalse(boot.machine.models)

    def test_the_rows_that_are_slow_run_elsewhere(self):
        [switch, no_route] = [boot.settings["LAB_TESTS"].split(",") for boot in plan.arm64()
                              if boot.job == plan.PROGRAMS]
        self.assertIn(plan.MATRIX, switch)
        self.assertNotIn(plan.MATRIX, no_route)
        self.assertIn(f"{plan.MATRIX}@vram-*", no_route)
        with mock.patch.dict(os.environ, FLAVOUR="arm64"):
            for boot in plan.arm64():
                if boot.job == plan.PROGRAMS:
                    self.assertIn(plan.MATRIX, boot.settings["LAB_TESTS"].split(","))

    def test_only_make_soak_boots_it(self):
        with self.assertRaises(LabError):
            pipeline.everything(None)
        self.assertLessEqual(set(kernel.ARM64), kernel.FLAVOURS.keys() & plan.SLOWER.keys())

    def test_the_size_of_pages_is_that_of_the_kernel(self):
        for flavour in kernel.ARM64:
            large = kernel.has("CONFIG_ARM64_64K_PAGES=y", flavour)
            self.assertEqual(large, flavour in arm64.PAGES)
        names = {name for settings in arm64.PAGES.values() for name in settings}
        text = (pipeline.REPO / "igt-tests/src/map.rs").read_text()
        self.assertTrue(all(f'option_env!("{name}")' in text for name in names))
