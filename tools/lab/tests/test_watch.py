# SPDX-License-Identifier: GPL-2.0
"""Tests that a guest which hangs prints its state, and is ended."""

import json
import os
import socket
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from boot import plan, qemu, topologies, watch
from build import processes

PATIENCE = 60


class Qemu(threading.Thread):
    """The side of QEMU of its monitor."""

    def __init__(self, path, refuse=()):
        super().__init__(daemon=True)
        self.refuse = refuse
        self.executed = []
        self.socket = socket.socket(socket.AF_UNIX)
        folder = os.open(path.parent, os.O_PATH)
        self.socket.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        self.socket.listen()
        self.start()

    def run(self):
        connection, _ = self.socket.accept()
        with self.socket, connection, connection.makefile("rw", encoding="utf-8") as lines:
            self.answer(lines, {"QMP": {}})
            decoder = json.JSONDecoder()
            text = ""
            while data := connection.recv(4096):
                text += data.decode()
                request, end = decoder.raw_decode(text)
                text = text[end:]
                self.executed.append(request["execute"])
                self.answer(lines, {"event": "STOP"})
                refused = request["execute"] in self.refuse
                self.answer(lines, {"error": {}} if refused else {"return": "RIP=1234"})

    def answer(self, lines, what):
        """Write a line."""
        lines.write(json.dumps(what) + "\n")
        lines.flush()


class Watching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # Longer than the path of a socket may be.
        self.folder = Path(folder.name) / ("x" * 120)
        self.folder.mkdir()
        for name, value in (("INTERVAL", 0.05), ("LAST_WORDS", 0.2), ("ANSWER", 5)):
            patch = mock.patch.object(watch, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def ended(self, script, limit, silence):
        """The reason why a command in the folder is ended, and the seconds until then."""
        begin = time.monotonic()
        with self.assertRaises(watch.Ended) as caught:
            processes.run(["sh", "-c", f"cd {self.folder}; {script}"],
                          watch.Watch(self.folder, limit, silence).wait)
        return str(caught.exception), time.monotonic() - begin

    def test_one_that_ends_is_left_alone(self):
        guard = watch.Watch(self.folder, PATIENCE, PATIENCE)
        self.assertEqual(processes.run(["sh", "-c", "sleep 0.2; exit 3"], guard.wait), 3)

    def test_one_without_a_mark_is_ended(self):
        self.assertEqual(self.ended("exec sleep 1000", 1000, 0.4)[0], "left no mark for 0.4 s")

    def test_one_that_leaves_marks_goes_on_to_its_limit(self):
        why, after = self.ended("mkdir -p a/b; while sleep 0.1; do echo >a/b/c; done", 3, 1.5)
        self.assertEqual(why, "did not end within 3 s")
        self.assertGreaterEqual(after, 3)

    def test_marks_that_stop_are_noticed(self):
        why, after = self.ended("for i in 1 2 3 4 5 6 7 8; do echo >c; sleep 0.2; done; exec sleep 1000",
                                1000, 1)
        self.assertEqual(why, "left no mark for 1 s")
        self.assertGreater(after, 2)

    def test_without_a_limit_to_silence_there_is_the_other(self):
        self.assertEqual(self.ended("exec sleep 1000", 1, None)[0], "did not end within 1 s")

    def test_it_is_asked_where_it_is(self):
        monitor = Qemu(self.folder / watch.MONITOR)
        self.ended("exec sleep 1000", 1, 0.4)
        self.assertEqual(monitor.executed,
                         ["qmp_capabilities", "human-monitor-command", "inject-nmi"])
        self.assertEqual((self.folder / watch.REGISTERS).read_text(), "RIP=1234")

    def test_what_it_prints_then_is_waited_for(self):
        Qemu(self.folder / watch.MONITOR)
        with mock.patch.object(watch, "LAST_WORDS", PATIENCE):
            self.ended(f"until [ -e {watch.REGISTERS} ]; do sleep 0.1; done; echo >words", 1, 1)
        self.assertTrue((self.folder / "words").exists())

    def test_one_that_does_not_answer_is_ended_all_the_same(self):
        Qemu(self.folder / watch.MONITOR, refuse=["human-monitor-command"])
        self.ended("exec sleep 1000", 1, 0.4)
        deaf = socket.socket(socket.AF_UNIX)
        self.addCleanup(deaf.close)
        (self.folder / watch.MONITOR).unlink()
        folder = os.open(self.folder, os.O_PATH)
        self.addCleanup(os.close, folder)
        deaf.bind(f"/proc/self/fd/{folder}/{watch.MONITOR}")
        deaf.listen()
        with mock.patch.object(watch, "ANSWER", 0.2):
            self.assertLess(self.ended("exec sleep 1000", 1, 0.4)[1], PATIENCE)


class Limits(unittest.TestCase):
    def test_a_test_may_take_less_than_silence(self):
        for boot in (*plan.check(), *plan.soak()):
            self.assertLess(boot.silence, boot.timeout)
            if boot.job == "igt":
                self.assertLess(boot.settings["LAB_TIMEOUT"], boot.silence)

    def test_the_monitor_is_in_the_folder_of_the_boot(self):
        built = mock.Mock(share=Path("/none"), cmdline="")
        boot = qemu.Boot("a", topologies.TOPOLOGIES[0], "igt", 1)
        argv = qemu.Machine(built, Path("/image")).argv(
            boot, watch.arguments("/build/share/results/a"))
        self.assertIn("unix:/build/share/results/a/monitor,server=on,wait=off", argv)
        self.assertIn("unknown_nmi_panic", argv[argv.index("-append") + 1])
