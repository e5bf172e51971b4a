# SPDX-License-Identifier: GPL-2.0
"""Tests that nothing hangs or is left running, and that incomplete results are not used.

The process that a test kills is a lab of its own: a Python that runs the lab's main function with a
command made for the test.
"""

import contextlib
import dataclasses
import fcntl
import errno
import http.server
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from boot import guestroot, plan, qemu, topologies
from build import cache, debianroot, host, kernel, processes, sandbox, source, steps
from judge import igt, rdma
from in_caches import InCaches

LAB = Path(__file__).resolve().parents[1]
# Seconds after which something hangs. The machine may be busy.
PATIENCE = 60
# Runs `make demo` with a function of the test in the place of the demo. What the function starts
# tells its pid in a file: the shell reads it from /proc, which is that of the machine.
CHILD = """
import errno, os, runpy, signal, subprocess, sys, threading, time
from pathlib import Path
# The tests may run in the background, where some are ignored.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
sys.path.insert(0, {lab!r})
from boot import qemu, topologies
from build import cache, processes, sandbox, steps
lab = runpy.run_path({lab!r} + "/__main__.py", run_name="lab")
SLEEP = ["sh", "-c", 'read -r pid rest </proc/self/stat; echo "$pid" >"$0"; exec sleep 1000']

def work(work):
{body}

lab["COMMANDS"]["demo"] = work
sys.argv = ["lab", "demo"]
sys.exit(lab["main"]())
"""
# A step that waits for a command, as every one does.
STEP = """
with work.step("sleep") as step:
    step.run([*SLEEP, cache.base() / "pid"], "no hint")
"""
# One that waits for a command that is not on the leash.
LOOSE = """
processes.run([*SLEEP, cache.base() / "pid"])
"""
# Boots, of which two run and the others wait for their turn.
BOOTS = """
class Kernel:
    share = folder = cache.base()
    box = sandbox.Sandbox("/")

class Machine(qemu.Machine):
    def run(self, boot, cpu):
        processes.run([*sandbox.contained([*SLEEP, cache.base() / f"pid-{boot.name}"])])

os.environ["GUESTS"] = "2"
boots = [qemu.Boot(str(n), topologies.TOPOLOGIES[0], "igt", 1000) for n in range(4)]
with work.step("boot") as step:
    Machine(Kernel, cache.base()).run_all(step, work.console, boots)
"""


def wait_for(condition, seconds=PATIENCE):
    """The value of a condition, once it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.02)
    return found


def runs(pid):
    """Whether a process still does anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class InLab(InCaches):
    """Tests that start the lab."""

    def setUp(self):
        super().setUp()
        cache.base().mkdir()

    def start(self, body, **streams):
        """A lab that runs this, as a child process."""
        for file in cache.base().glob("pid*"):
            file.unlink()
        script = CHILD.format(lab=str(LAB), body=textwrap.indent(body.strip(), "    "))
        child = subprocess.Popen([sys.executable, "-B", "-c", script], stdin=subprocess.DEVNULL,
                                 **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
                                    "text": True, **streams})
        self.addCleanup(self.end, child)
        return child

    @staticmethod
    def end(child):
        """End the processes of a test that failed."""
        child.kill()
        for file in cache.base().glob("pid*"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        child.communicate()

    @staticmethod
    def pid(name="pid"):
        """The process that the child started, once it runs."""
        file = cache.base() / name
        return int(wait_for(lambda: file.is_file() and file.read_text().endswith("\n")
                            and file.read_text()))


class Leftovers(InLab):
    def assert_free(self):
        """The lock can be had, as soon as the kernel has ended the last process."""
        with open(cache.base() / "lock", "rb") as file:
            def is_free():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True

            wait_for(is_free)

    def test_a_killed_lab_leaves_nothing(self):
        child = self.start(STEP)
        pid = self.pid()
        self.assertTrue(runs(pid))
        child.kill()
        wait_for(lambda: not runs(pid))
        self.assert_free()

    def test_what_is_left_is_waited_for_and_named(self):
        child = self.start(LOOSE)
        pid = self.pid()
        child.kill()
        child.wait()
        self.assertTrue(runs(pid))
        said = []

        def on_wait(who):
            said.append(who)
            os.kill(pid, signal.SIGKILL)

        with cache.lock(on_wait):
            self.assertFalse(runs(pid))
        self.assertEqual(said, [f"what is left of a run that was killed (process {child.pid}): "
                                f"sleep ({pid})"])

    def test_the_lock_of_a_test_is_not_that_of_the_lab(self):
        before = cache.held()
        with cache.lock(self.fail):
            self.assertEqual(len(cache.held()), len(before) + 1)
        self.assertEqual(cache.held(), before)

    def test_a_second_run_waits_and_says_for_whom(self):
        first = self.start(STEP)
        self.pid()
        second = self.start("work.console.say('second')")
        self.assertEqual(second.stdout.readline(), f"another run of the lab (process {first.pid}) "
                         "uses the caches: waiting\n")
        time.sleep(0.3)
        self.assertIsNone(second.poll())
        first.kill()
        self.assertEqual(second.communicate(timeout=PATIENCE)[0], "second\n")

    def test_a_signal_ends_lab_and_command(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                child = self.start(STEP)
                pid = self.pid()
                child.send_signal(number)
                said, _ = child.communicate(timeout=PATIENCE)
                self.assertEqual(child.returncode, 128 + number)
                self.assertIn(f"ended by {number.name}", said)
                self.assertNotIn("Traceback", said)
                self.assertFalse(runs(pid))
                self.assert_free()
                (cache.base() / "pid").unlink()

    def test_a_signal_ends_boots_and_starts_no_others(self):
        child = self.start(BOOTS)
        pids = [self.pid(f"pid-{boot}") for boot in range(2)]
        child.terminate()
        said, _ = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 128 + signal.SIGTERM, said)
        self.assertFalse(any(runs(pid) for pid in pids))
        self.assertEqual(len(list(cache.base().glob("pid-*"))), 2)
        report = cache.base() / "logs/demo/report.html"
        self.assertIn(f"report: {report}", said)
        self.assertIn("4 boots did not come to their end.", report.read_text())

    def test_a_lab_that_fails_leaves_a_report(self):
        child = self.start("with work.step('x'):\n    raise steps.LabError('the error', 'the hint')")
        said, _ = child.communicate(timeout=PATIENCE)
        report = cache.base() / "logs/demo/report.html"
        self.assertTrue(said.endswith(f"report: {report}\n"), said)
        self.assertIn("What to do: the hint", report.read_text())

    def test_a_command_that_starts_while_the_lab_ends_does_not_stay(self):
        with mock.patch.object(processes, "_ending", mock.Mock(is_set=lambda: True)):
            self.assertEqual(processes.run(["sleep", "1000"], lambda it: it.wait(PATIENCE)),
                             -signal.SIGKILL)

    def test_a_terminal_that_takes_nothing_does_not_keep_the_lab(self):
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        with open(write, "wb", buffering=0) as full:
            os.set_blocking(write, False)
            with contextlib.suppress(BlockingIOError):
                while full.write(bytes(4096)):
                    pass
            os.set_blocking(write, True)
            child = self.start("processes.LAST_WORDS = 1\n"
                               "(cache.base() / 'pid').write_text(f'{os.getpid()}\\n')\n"
                               "work.console.say('x')", stdout=full)
            self.pid()
            child.terminate()
            self.assertNotEqual(child.wait(timeout=PATIENCE), 0)

    def test_a_reader_that_went_away_ends_the_lab(self):
        child = self.start("time.sleep(0.5)\nwork.console.say('x')", stderr=subprocess.PIPE)
        child.stdout.close()
        self.assertEqual(child.stderr.read(), "")
        self.assertEqual(child.wait(), 128 + signal.SIGPIPE)

    def test_a_heartbeat_does_not_keep_the_lab(self):
        child = self.start("steps.HEARTBEAT, steps.JOIN = 0.05, 0.1\n"
                           "with work.step('x') as step:\n"
                           "    step.progress = lambda: time.sleep(1000)\n"
                           "    time.sleep(0.5)\n"
                           "    raise steps.LabError('the error')")
        self.assertIn("FAILED: the error", child.communicate(timeout=PATIENCE)[0])
        self.assertEqual(child.returncode, 1)

    def test_a_command_ends_in_time(self):
        child = self.start("try:\n"
                           "    command = [*SLEEP, cache.base() / 'pid']\n"
                           "    processes.run(sandbox.contained(command), lambda it: it.wait(5))\n"
                           "except subprocess.TimeoutExpired:\n"
                           "    work.console.say('late')")
        pid = self.pid()
        self.assertEqual(child.communicate(timeout=PATIENCE)[0], "late\n")
        self.assertFalse(runs(pid))


class Sandboxed(unittest.TestCase):
    def status(self, *command):
        """The exit status of a command in a sandbox, of which the machine is the root."""
        argv = [*sandbox.unshare(), *sandbox.FIRST, *command]
        return subprocess.run(argv, stdin=subprocess.DEVNULL, check=False,
                              stderr=subprocess.DEVNULL).returncode

    def test_the_exit_status_is_that_of_the_command(self):
        self.assertEqual(self.status("true"), 0)
        self.assertEqual(self.status("sh", "-c", "exit 3"), 3)

    def test_a_command_may_be_ended_by_a_signal(self):
        # The first process of a namespace would ignore it.
        self.assertEqual(self.status("sh", "-c", "kill -TERM $$; exit 3"), 128 + signal.SIGTERM)

    def test_each_boot_has_a_limit_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            built = mock.MagicMock(share=Path(folder), box=sandbox.Sandbox("/root-of-it"), cmdline="")
            boot = dataclasses.replace(plan.test(["vvram_create"], topologies.TOPOLOGIES[0]),
                                       original=True)
            with mock.patch("build.processes.run", return_value=0) as run:
                qemu.Machine(built, Path("/image")).run(boot, 0)
        argv = run.call_args_list[0].args[0]
        start = argv.index("timeout")
        self.assertEqual(argv[start:start + 4], ["timeout", "--signal=KILL",
                                                 str(boot.timeout + qemu.GRACE),
                                                 "qemu-system-x86_64"])


class HalfMade(InLab):
    def setUp(self):
        super().setUp()
        self.file = cache.base() / "folder/file"

    def test_a_write_that_fails_leaves_the_old_content(self):
        cache.write(self.file, b"old")
        for method in ("write_bytes", "chmod", "rename"):
            with mock.patch.object(Path, method, side_effect=OSError(errno.ENOSPC, "full")), \
                    self.assertRaises(OSError):
                cache.write(self.file, b"new")
            self.assertEqual(self.file.read_bytes(), b"old")
            self.assertEqual(list(self.file.parent.iterdir()), [self.file], method)

    def test_no_part_of_a_file_is_ever_seen(self):
        seen = []
        write_bytes = Path.write_bytes

        def slow(path, content):
            write_bytes(path, content[:1])
            seen.append(self.file.read_bytes())
            return write_bytes(path, content)

        cache.write(self.file, b"old")
        with mock.patch.object(Path, "write_bytes", slow):
            cache.write_if_changed(self.file, b"new")
            cache.Stamp(self.file).set("key")
        self.assertEqual(seen, [b"old", b"new"])
        self.assertTrue(cache.Stamp(self.file).holds("key"))

    def test_a_link_is_replaced_not_followed(self):
        target = cache.base() / "target"
        target.write_bytes(b"theirs")
        self.file.parent.mkdir()
        self.file.symlink_to(target)
        self.assertTrue(cache.write_if_changed(self.file, b"theirs"))
        self.assertFalse(self.file.is_symlink())
        cache.write_if_changed(self.file, b"ours")
        self.assertEqual(target.read_bytes(), b"theirs")

    def test_what_make_was_at_is_made_again(self):
        names = ("made", "cut", "making", "next")
        for name in names:
            (cache.base() / name).touch()
            (cache.base() / f".{name}.cmd").write_text("savedcmd := x\n")
            os.utime(cache.base() / name, (1, 1))
            os.utime(cache.base() / f".{name}.cmd", (2, 2))
        os.utime(cache.base() / "making", (3, 3))
        (cache.base() / ".cut.cmd").write_text("savedcmd := x")
        kernel.remove_half_made(cache.base())
        self.assertEqual({path.name for path in cache.base().iterdir()},
                         {"made", "next", ".made.cmd", ".next.cmd", ".making.cmd"})

    def test_what_is_half_removed_has_no_name(self):
        root = cache.base() / "toolchain-1"
        (root / "usr").mkdir(parents=True)
        with mock.patch("build.processes.run", return_value=1), self.assertRaises(steps.LabError):
            debianroot.remove(root)
        self.assertFalse(root.exists())
        work = steps.Steps(steps.Console(io.StringIO()), cache.base() / "logs")
        debianroot.sweep(work)
        self.assertEqual([path.name for path in cache.base().iterdir()], ["logs"])

    def test_an_interrupted_image_is_made_again(self):
        """At whichever command it stops, what is there afterwards is whole or not there."""
        work = steps.Steps(steps.Console(io.StringIO()), cache.base() / "logs")
        box = sandbox.Sandbox("/")
        calls = []

        def build(_, dest, *__):
            debianroot.remove(dest)
            (dest / "usr/lib").mkdir(parents=True)
            (dest / "usr/sbin").mkdir()
            (dest / "etc").mkdir()

        def run(_, command, __, inside, **___):
            calls.append(command[0])
            inside.binds["/build/image"].write_bytes(b"image")
            if len(calls) == 1:
                raise KeyboardInterrupt

        with mock.patch("build.debianroot.build", build), mock.patch("build.steps.Step.run", run):
            with self.assertRaises(KeyboardInterrupt):
                guestroot.ensure(work, box)
            self.assertFalse(guestroot.path().exists())
            with mock.patch("build.debianroot.remove", side_effect=[None, KeyboardInterrupt]), \
                    mock.patch("shutil.rmtree"), self.assertRaises(KeyboardInterrupt), \
                    mock.patch("pathlib.Path.mkdir"), mock.patch("pathlib.Path.symlink_to"):
                guestroot.ensure(work, box)
            self.assertEqual(guestroot.ensure(work, box).read_bytes(), b"image")
        debianroot.sweep(work)
        self.assertEqual({path.name for path in cache.base().iterdir()},
                         {"logs", guestroot.path().name})

    def test_an_interrupted_tree_is_made_again(self):
        tree = source.Source(cache.base() / "source", "key")
        self.assertFalse(tree.complete())
        tree.tree.mkdir(parents=True)
        self.assertTrue(tree.complete())
        managed = tree.folder / "managed.json"
        for content, complete in (('["a"]', True), ('["a', False), ("", False), ("3", False)):
            managed.write_text(content)
            self.assertEqual(tree.complete(), complete, content)

    def test_boot_times_that_are_cut_are_forgotten(self):
        path = cache.base() / "boot-times.json"
        for content in ("", '{"a": 1', "\udcff"):
            path.write_text(content, errors="surrogateescape")
            times = cache.Times(path)
            self.assertEqual(times.expected("a"), float("inf"), content)
            times.record({"b": 1})
            self.assertEqual(json.loads(path.read_text()), {"b": 1})

    def test_results_that_are_cut_are_none(self):
        boot = plan.pyverbs("check-pyverbs", ("pinned/vram",))
        for content in ("", '{"tests": {"a": ', "\udcff"):
            for name in ("results.json", "pyverbs.json"):
                (cache.base() / name).write_text(content, errors="surrogateescape")
            outcome = qemu.Outcome(boot, cache.base(), 1)
            self.assertEqual(igt.tests(igt.results(outcome)), {})
            self.assertEqual({verdict.result for verdict in rdma.pyverbs(outcome, "x")}, {"fail"})


class Sync(InLab):
    """The repository's files in the kernel tree, interrupted at each write."""

    PATCH = "--- a/patched\n+++ b/patched\n--- /dev/null\n+++ b/new\n"

    class Stop(BaseException):
        """Where the lab is killed."""

    def setUp(self):
        super().setUp()
        self.source = source.Source(cache.base() / "source", "key")
        self.source.tree.mkdir(parents=True)
        (self.source.tree / "patched").write_text("upstream\n")
        self.repo = cache.base() / "repo"
        (self.repo / "patches/a-x").mkdir(parents=True)
        (self.repo / "rust").mkdir()
        self.log = cache.base() / "log"

    def sync(self, stop_at=None):
        """Sync, and be killed at a write or a removal, before or after it."""
        count = [0]

        def counted(real):
            def call(*args, **more):
                count[0] += 1
                if count[0] == stop_at:
                    raise self.Stop
                done = real(*args, **more)
                count[0] += 1
                if count[0] == stop_at:
                    raise self.Stop
                return done
            return call

        def patch(_, __, box, **___):
            staging = box.binds["/build/staging"]
            self.assertEqual((staging / "patched").read_text(), "upstream\n")
            (staging / "patched").write_text("ours\n")
            (staging / "new").write_text("new\n")

        step = mock.MagicMock(log=self.log)
        step.run = counted(patch)
        with contextlib.ExitStack() as stack:
            for where, name in ((cache, "write"), (Path, "rename"), (Path, "unlink"),
                                (shutil, "copy2")):
                stack.enter_context(mock.patch.object(where, name, counted(getattr(where, name))))
            self.source.sync(step, self.repo, sandbox.Sandbox("/"))

    def files(self):
        """The files of the tree."""
        return {path.name: path.read_text() for path in self.source.tree.rglob("*")
                if path.is_file() and path.suffix != cache.PARTIAL}

    def ours(self):
        """Put a patch and a file into the repository."""
        (self.repo / "patches/a-x/1.patch").write_text(self.PATCH)
        (self.repo / "rust/file").write_text("file\n")

    def theirs(self):
        """Take them out again."""
        (self.repo / "patches/a-x/1.patch").unlink()
        (self.repo / "rust/file").unlink()

    def test_an_interruption_is_put_right_by_the_next_run(self):
        with_ours = {"patched": "ours\n", "new": "new\n", "file": "file\n"}
        for change, undo, expected in ((self.ours, self.theirs, with_ours),
                                       (self.theirs, self.ours, {"patched": "upstream\n"})):
            points = 0
            while True:
                points += 1
                change()
                try:
                    self.sync(stop_at=points)
                    break
                except self.Stop:
                    pass
                # The next run has what this one was to have, or what the one before had.
                self.sync()
                self.assertEqual(self.files(), expected, points)
                undo()
                with contextlib.suppress(self.Stop):
                    self.sync(stop_at=points)
                self.sync()
                undone = with_ours if expected != with_ours else {"patched": "upstream\n"}
                self.assertEqual(self.files(), undone, points)
            self.assertGreater(points, 6)


class FullDisk(InLab):
    HINT = "free some space"

    def test_of_the_lab(self):
        child = self.start("raise OSError(errno.ENOSPC, 'No space left on device', '/a/file')")
        said, _ = child.communicate(timeout=PATIENCE)
        self.assertEqual(child.returncode, 1)
        self.assertIn("FAILED: [Errno 28] No space left on device: '/a/file': the disk is full",
                      said)
        self.assertIn(self.HINT, said)
        self.assertNotIn("Traceback", said)

    def test_other_errors_are_not_taken_for_it(self):
        child = self.start("raise OSError(errno.EIO, 'Input/output error')")
        self.assertIn("Traceback", child.communicate(timeout=PATIENCE)[0])

    def test_of_a_command(self):
        log = cache.base() / "log"
        for command, full in (("cat /dev/zero >/dev/full", True), ("exit 1", False)):
            log.unlink(missing_ok=True)
            with self.assertRaises(steps.LabError) as caught:
                steps.Step("x", log).run(["env", "LC_ALL=C", "sh", "-c", command], "own hint")
            self.assertEqual("the disk is full" in str(caught.exception), full)
            self.assertEqual(self.HINT in caught.exception.hint, full)

    def test_of_the_log(self):
        log = cache.base() / "log"
        with mock.patch("shutil.disk_usage", return_value=mock.MagicMock(free=4096)), \
                self.assertRaisesRegex(steps.LabError, "the disk is full"):
            steps.Step("x", log).run(["false"], "own hint")

    def test_boot_times_are_not_worth_an_error(self):
        times = cache.Times(cache.base() / "boot-times.json")
        with mock.patch.object(Path, "write_bytes", side_effect=OSError(errno.ENOSPC, "full")):
            times.record({"a": 1})
        self.assertEqual(times.expected("a"), 1)

    def test_boots_that_ended_are_kept(self):
        def run(_, boot, __):
            if boot.name == "b":
                raise OSError(errno.ENOSPC, "No space left on device")
            return qemu.Outcome(boot, cache.base(), 1)

        boots = [qemu.Boot(name, topologies.TOPOLOGIES[0], "igt", 1) for name in "abc"]
        machine = qemu.Machine(mock.MagicMock(share=cache.base(), folder=cache.base()), "/image")
        with mock.patch.object(qemu.Machine, "run", run), \
                mock.patch.object(Path, "write_bytes", side_effect=OSError(errno.ENOSPC, "full")):
            outcomes = machine.run_all(mock.MagicMock(), mock.MagicMock(), boots)
        self.assertEqual([bool(outcome.error) for outcome in outcomes], [False, True, False])

    def test_the_lock_can_be_had(self):
        with mock.patch("os.getpid", side_effect=OSError(errno.ENOSPC, "full")):
            with cache.lock(self.fail):
                pass

    def test_a_line_without_space_does_not_end_the_lab(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            console = steps.Console(full)
            console.say("x")
            console.status("y")
            with contextlib.suppress(OSError):
                full.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


class Hiccup(http.server.BaseHTTPRequestHandler):
    """A mirror that fails once."""

    def do_GET(self):
        self.server.requests += 1
        if self.server.requests == 1:
            if not self.server.failure:
                self.close_connection = True
                return
            self.send_response(self.server.failure)
            self.send_header("Content-Length", "0")
        else:
            self.send_response(200)
            self.send_header("Content-Length", "4")
        self.end_headers()
        if self.server.requests > 1:
            self.wfile.write(b"file")

    def log_message(self, *_):
        """Say nothing."""


@unittest.skipUnless(os.path.exists(host.APT_HELPER[0]), "no apt here")
class Mirror(InLab):
    FAILURES = (None, 503)       # the connection ends without an answer, or with this one

    def setUp(self):
        super().setUp()
        for patch in (mock.patch("build.host.PAUSES", (0, 0)),
                      mock.patch("build.host.APT_HELPER",
                                 [*host.APT_HELPER, "-o", "Acquire::http::Proxy=DIRECT"])):
            patch.start()
            self.addCleanup(patch.stop)

    @contextlib.contextmanager
    def mirror(self, failure):
        """A mirror that fails once; at the end it must have been asked twice."""
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hiccup) as server:
            server.requests, server.failure = 0, failure
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()
            self.assertEqual(server.requests, 2)

    def test_the_probe_asks_again(self):
        for failure in self.FAILURES:
            with self.mirror(failure) as uri:
                self.assertTrue(host._has_suite(uri, "suite"))

    def test_what_downloads_is_done_again(self):
        fetched = cache.base() / "fetched"
        step = steps.Step("x", cache.base() / "log")
        for failure in self.FAILURES:
            fetched.unlink(missing_ok=True)
            with self.mirror(failure) as uri:
                host.persistently(lambda where=uri: step.run(
                    [*host.APT_HELPER, "download-file", f"{where}/x", fetched], "hint"))
            self.assertEqual(fetched.read_bytes(), b"file")

    def test_it_comes_to_an_end(self):
        for error, times in ((steps.LabError("x"), 3), (steps.DiskFull("x"), 1)):
            action = mock.MagicMock(side_effect=error)
            with self.assertRaises(steps.LabError):
                host.persistently(action)
            self.assertEqual(action.call_count, times)

    def test_every_root_gets_the_setting(self):
        step = mock.MagicMock()
        step.run.side_effect = KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt), \
                mock.patch("build.host.mirror", return_value="http://a"):
            debianroot.build(step, cache.base() / "root", ["suite"], [])
        self.assertIn(f"--aptopt={host.RETRIES}", step.run.call_args.args[0][2].replace("'", ""))


if __name__ == "__main__":
    unittest.main()
