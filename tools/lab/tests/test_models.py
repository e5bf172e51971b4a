# SPDX-License-Identifier: GPL-2.0
"""Tests of how the modelled devices are run beside QEMU."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from boot import models, plan, qemu, topologies
from build import processes
from build.steps import LabError
from judge import guests

GPU = topologies.find("gpu-switch")
# A stub of the program: it prints the same messages, and ends when its standard input does.
PROGRAM = """
import sys
print("{first}", flush=True)
sys.stdin.read()
{then}
"""


class Box:
    """A sandbox that only tells what it would run, or runs a program of the test's own."""

    def __init__(self, program="", binds=()):
        self.program = program
        self.binds = dict(binds)

    def with_binds(self, binds=(), readonly=()):
        """The same with more folders."""
        return Box(self.program, {**self.binds, **dict(binds), **dict(readonly)})

    def argv(self, command):
        """The command line."""
        return [sys.executable, "-c", self.program] if self.program else list(command)


class Running(unittest.TestCase):
    def setUp(self):
        self.share = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.boot = plan.test(["x"], GPU)
        self.folder = self.share / "results" / self.boot.name
        self.folder.mkdir(parents=True)

    def devices(self, first="ready", then=""):
        """The devices of a boot, by a program of the test's own."""
        box = Box(PROGRAM.format(first=first, then=then))
        kernel = mock.Mock(share=self.share, folder=self.share, box=box)
        return models.Models(kernel, self.boot, 7)

    def log(self):
        """The log of the devices."""
        return (self.folder / models.LOG).read_text()

    def test_the_program_runs_as_long_as_qemu(self):
        devices = self.devices(then="sys.stderr.write('over\\n')")
        with devices.running():
            self.assertEqual(self.log(), "")
        self.assertEqual(self.log(), "over\n")
        self.assertFalse((self.folder / models.REMOVED).exists())

    def test_one_that_does_not_start_fails_the_boot(self):
        with self.assertRaises(LabError), self.devices(first="usage").running():
            self.fail("it runs")

    def test_seeds_come_before_it_listens(self):
        with self.devices(first="chaos gpu-a 7\\nready").running():
            pass
        self.assertEqual(self.log(), "")

    def test_one_that_dies_is_told(self):
        with self.devices(then="sys.exit(3)").running():
            pass
        self.assertEqual(self.log(), "the exit status of the modelled devices was 3\n")

    def test_one_that_does_not_end_is_killed_and_told(self):
        with mock.patch.object(models, "END", 0.5), \
                self.devices(then="import time; time.sleep(1000)").running():
            pass
        self.assertEqual(self.log(), "the exit status of the modelled devices was none within 0.5 s\n")

    def test_it_is_killed_if_qemu_is(self):
        started, real = [], subprocess.Popen

        def start(*args, **streams):
            process = real(*args, **streams)
            started.append(process)
            return process

        with mock.patch.object(processes.subprocess, "Popen", start), \
                self.assertRaises(ZeroDivisionError), self.devices().running():
            raise ZeroDivisionError
        self.assertEqual(started[0].returncode, -9)

    def test_a_removal_is_kept(self):
        with self.devices(then="print('removed gpu-b')").running():
            pass
        self.assertEqual((self.folder / models.REMOVED).read_text(), "removed gpu-b\n")

    def test_exact_boots_have_none(self):
        kernel = mock.Mock(share=self.share, folder=self.share, box=Box())
        boot = dataclasses.replace(plan.test(["x"], topologies.find("switch")), exact=True)
        devices = models.Models(kernel, boot, 7)
        box = Box()
        self.assertIs(devices.inside(box), box)
        with devices.running():
            pass
        self.assertEqual(os.listdir(self.folder), [])

    def test_qemu_sees_the_sockets(self):
        self.assertEqual(self.devices().inside(Box()).binds,
                         {models.SOCKETS: self.folder / models.FOLDER})


class CommandLines(unittest.TestCase):
    MACHINES = (*topologies.MODELS, *map(topologies.modelled, topologies.ALL))

    def test_each_device_of_the_program_is_one_of_qemu(self):
        for topology in self.MACHINES:
            said = models.arguments(topology, models.SIZES, 0)
            sockets = [dict(part.split("=") for part in word.split(",") if "=" in part)["socket"]
                       for word in said if word.startswith("socket=")]
            devices = [json.loads(word) for word in topology.machine if word.startswith("{")]
            self.assertEqual({device["driver"] for device in devices}, {"vfio-user-pci"})
            self.assertCountEqual([device["socket"]["path"] for device in devices], sockets)
            self.assertCountEqual([device["id"] for device in devices], topology.models)

    def test_a_device_that_an_iommu_tells_all_is_strict(self):
        for topology in self.MACHINES:
            strict = {",strict" in word for word in models.arguments(topology, models.SIZES, 0)
                      if word.startswith("socket=")}
            self.assertEqual(strict, {any("intel-iommu" in word for word in topology.machine)})

    def test_an_iommu_tells_the_devices_what_it_maps(self):
        for topology in self.MACHINES:
            iommus = [word for word in topology.machine if "intel-iommu" in word]
            self.assertTrue(all("caching-mode=on" in word for word in iommus))

    def test_the_modelled_peer_takes_the_place_of_the_other_one(self):
        for topology in topologies.ALL:
            there = topologies.modelled(topology)
            self.assertEqual(there.models, ("peer", *topology.models))
            self.assertNotIn("edu,", " ".join(there.machine))
            changed = [(a, b) for a, b in zip(topology.machine, there.machine) if a != b]
            [(qemu_edu, model)] = [pair for pair in changed if "iommu" not in pair[0]]
            place = dict(word.split("=") for word in qemu_edu.split(",")[1:])
            del place["dma_mask"]
            self.assertLessEqual(place.items(), json.loads(model).items())

    def test_the_kind_of_each_device_is_told(self):
        peer, *gpus = topologies.modelled(GPU).models
        said = models.arguments(topologies.modelled(GPU), "vram=1G", 0)
        self.assertEqual(said[1:3], ["--edu", f"socket=/build/sockets/{peer}.sock,name={peer}"])
        self.assertEqual(said[3::2], ["--gpu"] * len(gpus))
        self.assertTrue(all(word.endswith(",vram=1G") for word in said[4::2]))

    def test_each_gpu_has_a_seed_of_its_own(self):
        topology = topologies.modelled(GPU)
        seeds = [word.rpartition(",chaos=")[2]
                 for word in models.arguments(topology, "vram=1G", 7)[4::2]]
        self.assertEqual(seeds, ["8", "9"])

    def test_exact_boots_are_in_order(self):
        kernel = mock.Mock(share=Path("/share"), folder=Path("/folder"), box=Box())
        boot, told = (plan.test(["x"], topology)
                      for topology in (GPU, topologies.find("gpu-intel-iommu")))
        chaos = [",chaos=" in " ".join(models.Models(kernel, one, 7).argv)
                 for one in (boot, told, dataclasses.replace(boot, exact=True))]
        self.assertEqual(chaos, [True, True, False])

    def test_qemus_edu_can_be_had(self):
        for chosen, original in ({}, False), ({"EDU": "qemu"}, True):
            with mock.patch.dict(os.environ, chosen):
                boot = plan.test(["x"], topologies.find("intel-iommu"))
            self.assertEqual(boot.machine is boot.topology, original)

    def test_each_kind_of_route_is_also_shown_by_a_device_of_others(self):
        def kind(boot):
            return boot.topology.decision, boot.topology.is_translated

        boots = [boot for boot in plan.check() if boot.job == "igt"]
        self.assertEqual({kind(boot) for boot in boots if boot.original},
                         {kind(boot) for boot in boots})

    def test_sizes_can_be_chosen(self):
        boot = plan.test(["x"], GPU)
        self.assertIn(models.SIZES, " ".join(models.arguments(GPU, boot.sizes, 0)))
        with mock.patch.dict(os.environ, GPU="vram=64G,aperture=256M"):
            boot = plan.test(["x"], GPU)
        self.assertEqual(models.arguments(GPU, boot.sizes, 0)[2],
                         "socket=/build/sockets/gpu-a.sock,name=gpu-a,vram=64G,aperture=256M")

    def test_their_memory_can_be_mapped_by_others(self):
        machine = qemu.Machine(mock.Mock(cmdline=""), "/image")
        for name, exact, shared in (("gpu-switch", True, True), ("switch", True, False),
                                    ("switch", False, True)):
            boot = dataclasses.replace(plan.test(["x"], topologies.find(name)), exact=exact)
            argv = machine.argv(boot, ())
            memory = [word for word in argv if word.startswith("memory-backend-")]
            files = [word for word in memory if word.startswith("memory-backend-memfd")]
            self.assertEqual(len(files), 2 if shared else 0)
            self.assertTrue(all("share=on" in word for word in memory))
            self.assertEqual("q35,memory-backend=ram" in argv, shared)


class Judged(unittest.TestCase):
    """Each line of the devices fails their boot."""

    def setUp(self):
        self.share = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.share / "bin").mkdir()

    def outcome(self, topology=GPU, original=False, **texts):
        """A boot that left these files."""
        boot = dataclasses.replace(plan.igt("check-a", topology, ("x",)),
                                   name=f"check-{len(texts)}", original=original)
        results = self.share / "results" / boot.name
        results.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (results / name.replace("_", ".")).write_text(text)
        return qemu.Outcome(boot, results, 1.0)

    def verdicts(self, outcome):
        """The verdicts about logs, by their names."""
        lists = guests.Lists({}, {}, None)
        return {v.name.partition(": ")[2]: (v.result, v.detail)
                for v in guests.judge(outcome, lists, {}) if v.name.endswith(guests.LOGS)}

    def test_silence_is_good(self):
        found = self.verdicts(self.outcome(model_log=""))
        self.assertEqual(found["model log"], ("pass", ""))

    def test_a_report_is_a_failure_and_final(self):
        outcome = self.outcome(model_log="gpu-a: ring 0, entry 1: read of 0x0\n\n")
        self.assertEqual(self.verdicts(outcome)["model log"],
                         ("fail", "gpu-a: ring 0, entry 1: read of 0x0"))
        failed = guests.failures(outcome, guests.Lists({}, {}, None))
        self.assertFalse(guests.is_late(outcome, [v for v in failed
                                                  if v.name.endswith("model log")]))

    def test_without_devices_there_is_no_verdict(self):
        found = self.verdicts(self.outcome(topologies.find("switch"), original=True))
        self.assertNotIn("model log", found)

    def test_what_qemu_says_of_a_removed_device_is_expected(self):
        lines = ["qemu-system-x86_64: failed to read header: EOF",
                 "qemu-system-x86_64: vfio_user_device_io_region_read: "
                 "Unable to write to socket: Broken pipe",
                 "qemu-system-x86_64: Unable to write to socket: Broken pipe",
                 "qemu-system-x86_64: vfio_region_read(vfio-user:/build/sockets/gpu-b.sock:"
                 "region0+0x0, 8) failed: Bad address",
                 "qemu-system-x86_64: vfio vfio-user:/build/sockets/gpu-b.sock: Failed to tear down "
                 "TRIGGER eventfd signaling for interrupt ERR-0"]
        other = "qemu-system-x86_64: vtd_iommu_translate: detected translation failure"
        text = "\n".join([*lines, other])
        self.assertEqual(self.outcome(qemu_log=text).qemu_log, [*lines, other])
        outcome = self.outcome(qemu_log=text, removed="removed gpu-b\n")
        self.assertEqual(outcome.qemu_log, [other])

    def test_an_abort_of_qemu_after_a_removal_is_not_final(self):
        abort = ("qemu-system-x86_64: util/error.c:62: error_setv: Assertion `*errp == NULL' failed.\n"
                 "Aborted\n")
        for text, removed, final in ((abort, True, False), (abort, False, True),
                                     (abort + "one more\n", True, True),
                                     ("one before\n" + abort, True, True),
                                     (abort.replace("62", "63"), True, False)):
            with self.subTest(text=text, removed=removed):
                self.setUp()
                more = {"removed": "removed gpu-b\n"} if removed else {}
                outcome = self.outcome(qemu_log=text, **more)
                outcome.error = "the guest ended before its job did"
                failed = guests.failures(outcome, guests.Lists({}, {}, None))
                self.assertTrue(failed)
                self.assertEqual(not guests.is_late(outcome, failed), final)


if __name__ == "__main__":
    unittest.main()
