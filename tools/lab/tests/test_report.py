# SPDX-License-Identifier: GPL-2.0
"""Tests of what the report of a run says, and that it can be read in light and dark."""

import dataclasses
import errno
import json
import re
import signal
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

from boot import pipeline, qemu, topologies
from build import processes, steps
from build.steps import LabError
from commands import check
from judge import costs, guests, matrix, record, report
from judge.igt import Verdict
from judge.report import blocks, content, devices, drawing, logs, page, sheet

SWITCH = topologies.find("switch")
NO_ROUTE = topologies.find("no-route")
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Reads a page, and sees that each element is closed where it has to be."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.words = [], [], []
        self.feed(text)
        if self.open:
            raise AssertionError(f"{self.open} are not closed")

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), [name for name, _ in self.open]))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs), [name for name, _ in self.open]))

    def handle_endtag(self, tag):
        name, _ = self.open.pop()
        if name != tag:
            raise AssertionError(f"{name} is closed by {tag}")

    def handle_data(self, data):
        self.words.append((data, [name for name, _ in self.open]))

    def all(self, tag):
        """The attributes of all elements of a kind."""
        return [attrs for name, attrs, _ in self.found if name == tag]

    def text(self):
        """The text of the page, in one line."""
        return " ".join(" ".join(data for data, _ in self.words).split())


def cells(machine, change=lambda line: line):
    """The output of vvram_matrix, by test."""
    tests = {}
    for bo, first, order, second in matrix.keys():
        got = f"{machine.decision}/none" + (",system/no-opt-in" if second != "none" else "")
        line = (f"cell object={bo} first={first} second={second} order={order} placement=vram "
                f"got={got} verdict=ok")
        tests.setdefault(f"vvram_matrix@{bo}-{first}", []).append(change(line))
    return {name: "\n".join(lines) for name, lines in tests.items()}


class InFolder(unittest.TestCase):
    """Tests with a folder for logs and results."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name)
        self.logs = self.top / "logs/check"
        self.logs.mkdir(parents=True)
        self.record = record.Record("check", seed=7)

    def step(self, *outcomes, name="boot the tests", result="pass"):
        """A step that has run boots."""
        step = steps.Step(name, self.logs / "01-step.log")
        step.log.write_text("the first line\nthe last line\n")
        step.result, step.boots, step.outcomes = result, len(outcomes), list(outcomes)
        self.record.steps.append(step)
        return step

    def outcome(self, machine=SWITCH, tests=(), error="", name=""):
        """A boot that has run tests: {name: output}."""
        boot = qemu.Boot(f"check-{name or machine.name}", machine, "igt", 100)
        results = self.top / "results" / boot.name
        (results / "runner").mkdir(parents=True)
        for file in ("kernel.log", "output.log"):
            (results / file).write_text("x\n")
        found, programs = {}, {}
        for number, (test, text) in enumerate(dict(tests).items()):
            found[f"igt@{test}"] = {"result": "pass", "out": text,
                                    "time": {"start": 0, "end": 10 + number}}
            program, _, subtest = test.partition("@")
            programs.setdefault(program, {})[subtest] = text
        # igt_runner starts a program once for all of its subtests.
        lines = []
        for number, (program, texts) in enumerate(programs.items()):
            lines.append(f"{program} {','.join(texts)}".rstrip() + "\n")
            (results / f"runner/{number}").mkdir()
            (results / f"runner/{number}/out.txt").write_text("\n".join(texts.values()))
        (results / "runner/joblist.txt").write_text("".join(lines))
        (results / "results.json").write_text(json.dumps({"tests": found}))
        return qemu.Outcome(boot, results, 12.5, error)

    def part(self, outcomes, *verdicts):
        """A part with these boots and verdicts."""
        part = self.record.part("check", lambda outcome: [Verdict(
            f"{outcome.boot.topology.name}: boot", "pass")])
        part.first = 0
        part.outcomes, part.verdicts = list(outcomes), list(verdicts)
        return part

    def read(self, status=0, error=None):
        """End the run, render its report, and check what holds for all of them."""
        self.record.end(status, error)
        text = page.render(content.page(self.record), self.logs)
        reader = Reader(text)
        self.sound(reader, text)
        return reader

    def sound(self, reader, text):
        """One file without a network, which a reader of the screen can read."""
        self.assertNotRegex(text.replace("http://www.w3.org/2000/svg", ""), r"https?://|url\(|@import")
        self.assertFalse(reader.all("script") + reader.all("link") + reader.all("img"))
        names = [attrs["id"] for _, attrs, _ in reader.found if "id" in attrs]
        self.assertEqual(len(names), len(set(names)))
        for attrs in reader.all("a"):
            link = attrs["href"]
            if link.startswith("#"):
                self.assertIn(link[1:], names)
            else:
                self.assertFalse(Path(link).is_absolute(), link)
                self.assertTrue((self.logs / link).exists(), link)
        self.assertEqual(len(reader.all("table")), len(reader.all("caption")))
        for attrs in reader.all("th"):
            self.assertIn(attrs["scope"], ("col", "row"))
        for attrs in reader.all("svg"):
            # A bar is beside its number.
            self.assertTrue(attrs.get("role") == "img" or attrs.get("aria-hidden") == "true")
        self.assertEqual(sum(attrs.get("role") == "img" for attrs in reader.all("svg")),
                         sum(tag == "title" and "svg" in above for tag, _, above in reader.found))


class Page(InFolder):
    def test_what_passed_is_counted_and_links_to_its_log(self):
        outcome = self.outcome(tests={"a@one": "", "b@two": ""})
        self.step(outcome)
        self.part([outcome], Verdict("switch: b@two", "pass"), Verdict("switch: a@one", "skip", "why"),
                  Verdict("switch: kernel log", "pass"))
        reader = self.read()
        self.assertIn("everything as expected", reader.text())
        self.assertIn("2 passed", reader.text())
        self.assertIn("1 skipped", reader.text())
        links = {attrs["href"] for attrs in reader.all("a")}
        for end in ("runner/1/out.txt", "runner/0/out.txt", "kernel.log"):
            self.assertIn(f"../../results/check-switch/{end}", links)
        self.assertNotIn("What is wrong", reader.text())

    def test_a_failure_comes_first_and_is_escaped(self):
        outcome = self.outcome(tests={"a@one": ""})
        self.step(outcome)
        self.part([outcome], Verdict("switch: a@one", "fail", "<script>&\"'"))
        reader = self.read(1)
        self.assertIn("make check ✗ failed", reader.text())
        self.assertIn("<script>&\"'", reader.text())
        self.assertEqual([attrs["id"] for attrs in reader.all("section")][0], "wrong")

    def test_an_unsteady_test_is_told(self):
        outcome = self.outcome(tests={"a@one": ""})
        self.step(outcome)
        self.part([outcome], Verdict("switch: a@one", "unsteady", "late"))
        text = self.read().text()
        self.assertIn("What is wrong", text)
        self.assertIn("! unsteady", text)

    def test_a_step_that_failed_shows_the_end_of_its_log(self):
        step = self.step(name="kernel", result="fail")
        text = self.read(1, LabError("kernel: exit status 2", "read it", step.log)).text()
        for words in ("kernel: exit status 2", "What to do: read it", "the last line", "✗ failed"):
            self.assertIn(words, text)

    def test_a_run_that_was_cut_short_tells_what_ended(self):
        outcome = self.outcome()
        self.step(outcome, result="").boots = 3
        self.part([], Verdict("external modules", "pass"))
        text = self.read(130, processes.Interrupted(signal.SIGINT)).text()
        for words in ("! cut short", "ended by SIGINT", "2 passed", "did not end",
                      "2 boots did not come to their end."):
            self.assertIn(words, text)

    def test_the_parts_of_a_run_are_told_apart(self):
        first, second = self.outcome(), self.outcome(NO_ROUTE)
        self.step(first)
        self.part([first], Verdict("switch: boot", "pass"))
        self.step(second)
        part = self.record.part("kasan", lambda outcome: [])
        part.outcomes, part.verdicts = [second], [Verdict("no-route: boot", "fail", "late")]
        text = self.read(1).text()
        self.assertIn("All checks, kernel check", text)
        self.assertIn("Failed or unsteady, kernel kasan", text)

    def test_thousands_of_verdicts_are_folded(self):
        outcome = self.outcome()
        self.step(outcome)
        verdicts = [Verdict(f"switch: a@{number}", "pass") for number in range(3000)]
        self.part([outcome], *verdicts, *[Verdict("lab: unit tests", "pass")] * 5)
        reader = self.read()
        folded = [above for words, above in reader.words if words.startswith("a@")]
        self.assertEqual(len(folded), 3000)
        self.assertTrue(all("details" in above for above in folded))
        self.assertFalse(any("open" in attrs for attrs in reader.all("details")))
        self.assertIn("lab: unit tests (5 times)", reader.text())
        self.assertLess(len(page.render(content.page(self.record), self.logs)), 1 << 20)

    def test_the_slowest_tests_are_told(self):
        outcome = self.outcome(tests={"a@one": "", "a@two": "", "b@three": ""})
        self.step(outcome)
        self.part([outcome], Verdict("switch: a@one", "pass"))
        reader = self.read()
        self.assertIn("a 21.0 s b 12.0 s", reader.text())
        self.assertIn("b@three check-switch 12.0 s a@two", reader.text())
        # A program leads to the log of its slowest test.
        [link] = [attrs["href"] for attrs in reader.all("a")
                  if attrs.get("title") == "the log of its slowest test, a@two"]
        self.assertEqual(link, "../../results/check-switch/runner/0/out.txt")

    def test_each_reason_is_explained(self):
        header = (pipeline.REPO / "include/uapi/drm/drm_peer.h").read_text()
        names = {name.lower().replace("_", "-")
                 for name in re.findall(r"DRM_PEER_REASON_(\w+) = \d+", header)}
        self.assertEqual(set(content.REASONS), names - {"none"})


class Matrix(InFolder):
    def cell(self, change=lambda line: line):
        """The cell of either, static, late, dynamic, on a machine alone."""
        outcome = self.outcome(tests=cells(SWITCH, change))
        self.step(outcome)
        self.part([outcome], Verdict("switch: boot", "pass"))
        self.read()
        [table] = [block for section in content.page(self.record).sections
                   if section.name == "matrix-check" for block in section.blocks
                   if isinstance(block, blocks.Table) and block.caption.startswith("Object of either")]
        [row] = [row for row in table.rows if [it.text for it in row[:2]] == ["static", "late"]]
        return row[table.header.index("and dynamic")]

    def altered(self, old, new):
        """That cell, with another line."""
        return self.cell(lambda line: line.replace(old, new) if
                         "object=either first=static second=dynamic order=late" in line else line)

    def test_a_cell_has_a_colour_its_reasons_and_its_log(self):
        cell = self.cell()
        self.assertEqual((cell.text, cell.kind, cell.state), ("V peer+opt-in", "system", ""))
        self.assertEqual(cell.hint, "object in VRAM; first importer: peer to peer by bus address, second "
                         "importer: system memory, because the importer does not take peer-to-peer "
                         "memory")
        self.assertEqual(cell.log.read_text().count("object=either first=static"), 11)
        link = f'title="{cell.hint}">V peer+opt-in</a></td>'
        self.assertTrue(page.cell(cell, self.logs, False).endswith(link))

    def test_all_peer_to_peer_is_another_colour_than_refused(self):
        self.assertEqual(self.altered("system/no-opt-in", "bus/none").kind, "peer")

    def test_refused_is_a_colour(self):
        self.assertEqual(self.altered("bus/none", "refused/no-route").kind, "refused")

    def test_what_is_not_as_expected_has_a_sign(self):
        cell = self.altered("verdict=ok", "verdict=WRONG src/x.rs:1: placement")
        self.assertEqual(cell.state, blocks.BAD)
        self.assertIn("switch: src/x.rs:1: placement", cell.hint)
        self.assertIn("✗", page.cell(cell, self.logs, False))

    def test_the_legend_has_each_word_of_a_cell(self):
        [[legend]] = [block.lines for section in self.sections() for block in section.blocks
                      if isinstance(block, blocks.Text)]
        for name, word in matrix.SHORT.items():
            path, _, reason = name.partition("/")
            if path == "system":
                self.assertIn(f"{word} ({content.REASONS[reason]})", legend)
            self.assertRegex(" ".join(matrix.LEGEND), rf"[ :]{word.removeprefix('no:')}[,:]")
        for words in ("V means that the object is in VRAM", "no:X is refused for reason X",
                      "+ separates the importers", "? was not tried"):
            self.assertIn(words, legend)

    def sections(self):
        """The sections with the matrix of a machine."""
        outcome = self.outcome(tests=cells(SWITCH))
        self.part([outcome])
        return list(content.matrices(self.record))

    def test_what_was_not_seen_is_no_path(self):
        self.assertEqual(self.altered("cell ", "sell ").kind, "unseen")


class Topologies(InFolder):
    def test_the_way_is_as_long_as_the_kernel_says(self):
        for machine in topologies.ALL:
            way = devices.way(machine, devices.tree(machine))
            with self.subTest(machine.name):
                self.assertEqual(way.open, machine.decision != topologies.REFUSED)
                self.assertEqual(way.names[0], "gpu")
                if machine.name == "acs-pair":
                    # ACS sends the bytes up to the host bridge, which the kernel does not count.
                    self.assertEqual(way.names, ("gpu", "rp1", "host-bridge", "rp1", "peer"))
                elif way.open:
                    self.assertEqual(len(way.names) - 1, machine.distance)

    def test_the_way_turns_at_the_switch_or_at_the_host_bridge(self):
        for machine in topologies.ALL:
            apex = "up" if machine.decision == topologies.BUS else "host-bridge"
            self.assertEqual(devices.way(machine, devices.tree(machine)).apex, apex, machine.name)

    def test_every_device_of_a_machine_is_in_its_picture(self):
        for machine in topologies.ALL:
            root = devices.tree(machine)
            # Those that are no PCI devices with a place of their own.
            count = sum(word == "-device" for word in machine.machine) - bool(root.detail)
            self.assertEqual(len(list(root.walk())), 1 + count, machine.name)
            text = drawing.topology(machine, "title")
            for device, _ in root.walk():
                self.assertIn(f">{device.label}</text>", text)

    def test_a_way_that_is_shut_is_not_only_red(self):
        text = drawing.topology(NO_ROUTE, "title")
        self.assertIn('class="stop"', text)
        self.assertIn("PCI does not permit it", text)
        self.assertNotIn('class="stop"', drawing.topology(SWITCH, "title"))

    def test_a_machine_with_a_failure_has_the_sign_of_one(self):
        good, bad = self.outcome(), self.outcome(NO_ROUTE)
        self.step(good, bad)
        self.part([good, bad], Verdict("switch: boot", "pass"), Verdict("no-route: boot", "fail", "x"))
        text = self.read(1).text()
        self.assertIn("✓ two ports of a switch (switch)", text)
        self.assertIn("✗ two root ports, not Zen (no-route)", text)


    def test_the_documentation_has_them_as_they_are(self):
        self.assertEqual(sheet.FILE.read_text(), sheet.sheet(), "see tools/lab/judge/report/sheet.py")


class Demo(InFolder):
    def test_the_picture_is_that_of_what_happened(self):
        outcome = self.outcome()
        (outcome.results / "demo.json").write_text(json.dumps(
            {"decision": "refused", "reason": "no-route", "distance": -1}))
        self.record.command = "demo"
        self.step(outcome)
        self.record.demo = [(outcome, ("two ports", *["-"] * 7), ["decision is refused, not bus"])]
        reader = self.read(1)
        self.assertIn("✗ two ports of a switch (switch)", reader.text())
        self.assertIn("refused: PCI permits no route no bytes moved", reader.text())
        self.assertTrue(any(attrs.get("class") == "stop" for attrs in reader.all("circle")))

    def test_what_moved_is_told(self):
        outcome = self.outcome()
        (outcome.results / "demo.json").write_text(json.dumps(
            {"bytes_written": 4 << 20, "bytes_read": 2 << 20, "verified": True}))
        self.record.command = "demo"
        self.step(outcome)
        self.record.demo = [(outcome, ("two ports", "bus", 4, 4, "4.0 MiB", "2.0 MiB", "yes", "WRONG"),
                             ["less than 4194304 bytes moved"])]
        self.record.wrong = ["switch: less than 4194304 bytes moved"]
        reader = self.read(1)
        self.assertIn("4.0 MiB written, 2.0 MiB read by the peer, all compared", reader.text())
        self.assertIn("✗ WRONG", reader.text())
        self.assertIn("less than 4194304 bytes moved",
                      [attrs.get("title") for attrs in (*reader.all("td"), *reader.all("a"))])

    def test_each_cell_leads_to_the_log(self):
        outcome = self.outcome()
        (outcome.results / "output.log").write_text("one transfer\n")
        self.record.demo = [(outcome, ("two ports", *["-"] * 6, "WRONG"), ["not compared"])]
        [row] = content.demo_table(self.record).blocks[0].rows
        self.assertEqual({cell.log for cell in row}, {outcome.results / "output.log"})


class Benchmark(InFolder):
    def figures(self):
        """The figures of which the curves are made."""
        return {f"{what}.{n}.{who}": 100 + 10 * n for what in ("map", "whole") for n in costs.GROWTH
                for who in ("ours", "vfio")}

    def test_rows_have_bars_and_verdicts(self):
        self.record.command = "bench"
        self.step()
        self.record.rows = [costs.Row("bus address: 1 x 4 KiB, vvram", 5, 10, "vfio-pci", 0.5,
                                      most=1.05),
                            costs.Row("life", 30, 10, "10 alive", 3.0, most=1.2)]
        self.record.figures = {"switch": self.figures()}
        text = self.read(1).text()
        for words in ("Bus address", "1 x 4 KiB, vvram", "0.500 less at most 1.05 ✓ ok", "✗ MISSED",
                      "1 targets met", "65,536"):
            self.assertIn(words, text)

    def test_a_row_leads_to_the_log_of_its_boot(self):
        outcome, other = self.outcome(), self.outcome(name="huge")
        self.step(outcome, other)
        self.record.rows = [costs.Row("bus address: 1 x 4 KiB, vvram", 5, 10, "vfio-pci", 0.5,
                                      boot=outcome.boot.name),
                            costs.Row("life", 30, 10, "10 alive", 3.0)]
        logs = {block.caption: {cell.log for cell in block.rows[0]}
                for block in content.ratios(self.record) if isinstance(block, content.Table)}
        self.assertEqual(logs, {"Bus address": {outcome.results / "output.log"},
                                "General": {None}})

    def test_the_better_direction_is_told(self):
        self.record.command = "bench"
        self.step()
        self.record.rows = [costs.Row("a move", 10, 9, "copy", 0.9, better="more"),
                            costs.Row("life", 11, 10, "10 alive", 1.1)]
        text = self.read().text()
        for words in ("what ratio better target", "a move 0.900 more", "life 1.100 less"):
            self.assertIn(words, text)

    def test_a_deviation_leads_to_the_log_of_its_boot(self):
        names = ("bench-switch-1", "bench-switch-2", "bench-switch-huge-1")
        outcomes = {name: self.outcome(name=name) for name in names}
        for name, outcome in outcomes.items():
            outcome.boot = dataclasses.replace(outcome.boot, name=name)
        self.step(*outcomes.values())
        first, second, large = [outcome.results for outcome in outcomes.values()]
        self.record.rows = [costs.Row("bus address: 1 x 4 KiB, vvram", 20, 10, "vfio-pci", 2.0,
                                      most=1.05, boot="bench-switch-1")]
        found = {"bench-switch-2: the job failed": second / "output.log",
                 "bench-switch-2: kernel log: BUG": second / "kernel.log",
                 "bench-switch-2: QEMU: no memory": second / "qemu.log",
                 "switch-huge: two runs differ: map.huge.ours: 1 and 2": large / "output.log",
                 "switch: map.4k.ours: 3, at most 2 are allowed": first / "output.log",
                 "bus address: 1 x 4 KiB, vvram: 2.000, the target is at most 1.05":
                 first / "output.log",
                 "elsewhere: unknown": None}
        self.record.wrong = list(found)
        [table] = [block for block in content.wrong(self.record).blocks
                   if isinstance(block, blocks.Table)]
        self.assertEqual({cell.text: cell.log for [cell] in table.rows}, found)

    def test_a_bar_begins_at_one(self):
        self.assertIn('<rect x="25.00" y="4" width="25.00"', drawing.bar(0.5, None, "good"))
        self.assertIn('<rect x="50.00" y="4" width="25.00"', drawing.bar(1.5, None, "good"))
        self.assertIn("L100 8Z", drawing.bar(24, 20, "good"))
        self.assertNotIn("L100 8Z", drawing.bar(1.9, 1.2, "good"))

    def test_curves_need_all_of_their_figures(self):
        figures = self.figures()
        log = Path("switch.log")
        picture, table = content.growth(figures, "bus address", log)
        self.assertEqual({cell.log for row in table.rows for cell in row}, {log})
        self.assertEqual(picture.svg.count("<circle"), 4 * len(costs.GROWTH))
        self.assertTrue(table.closed)
        del figures["whole.1.vfio"]
        self.assertIsNone(content.growth(figures, "bus address", log))


class Looks(unittest.TestCase):
    STYLE = (page.LOOKS / "style.css").read_text()

    def colours(self):
        """The names of colours, with the light and the dark one."""
        light, dark = re.findall(r":root \{(.*?)\}", self.STYLE, re.S)
        return [dict(re.findall(r"--([\w-]+): (#\w{6});", text)) for text in (light, dark)]

    @staticmethod
    def brightness(colour):
        """The relative luminance of a colour, as WCAG has it."""
        parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
                            for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def test_each_colour_has_a_dark_one(self):
        light, dark = self.colours()
        self.assertEqual(light.keys(), dark.keys())
        self.assertEqual(set(re.findall(r"var\(--([\w-]+)\)", self.STYLE)), light.keys())

    def test_words_stand_out(self):
        for colours in self.colours():
            for front, backs in {"text": ("page", "card", "peer", "system", "refused", "bad-back"),
                                 "dim": ("page", "card"), "link": ("page", "card"),
                                 "good": ("page", "card", "good-back"), "off": ("page", "card"),
                                 "bad": ("page", "card", "bad-back", "peer", "system", "refused"),
                                 "warn": ("page", "card", "warn-back")}.items():
                for back in backs:
                    dark, bright = sorted(self.brightness(colours[name]) for name in (front, back))
                    self.assertGreaterEqual((bright + 0.05) / (dark + 0.05), 4.5, f"{front} on {back}")


class Leave(InFolder):
    def work(self):
        """Steps that have a record."""
        self.step()
        self.record.end(0)
        return mock.MagicMock(record=self.record, logs=self.logs)

    def test_it_is_written_and_named(self):
        work = self.work()
        report.leave(work, ("check",))
        work.console.say.assert_called_once_with(f"report: {self.logs / report.NAME}")
        self.assertIn("make check", (self.logs / report.NAME).read_text())

    def test_other_commands_have_none(self):
        work = self.work()
        report.leave(work, ("demo",))
        work.console.say.assert_not_called()

    def test_a_full_disk_does_not_change_the_end(self):
        work = self.work()
        with mock.patch("build.cache.write", side_effect=OSError(errno.ENOSPC, "full")):
            report.leave(work, ("check",))
        self.assertIn("no report", work.console.say.call_args.args[0])

    def test_a_report_of_an_earlier_run_is_removed(self):
        (self.logs / report.NAME).touch()
        steps.Steps(mock.MagicMock(), self.logs)
        self.assertFalse((self.logs / report.NAME).exists())


class Parts(InFolder):
    """The parts that the commands with tests leave in the record."""

    def run_with(self, function, *arguments):
        """Run a command over one boot; return its verdicts and those in the record at the end."""
        outcome = self.outcome()
        work = mock.MagicMock(record=self.record)

        def boots(*_):
            self.step(outcome)
            return [outcome]

        nothing = mock.Mock(return_value=[])
        with mock.patch.multiple(
                check, boot=boots, migration=lambda *_: Verdict("migration matrix", "pass"),
                slowest=mock.Mock(), sums=mock.Mock(),
                **dict.fromkeys(("unit_tests", "program_tests", "modules"), nothing)), \
                mock.patch.multiple(
                    guests, judge=lambda *_: [Verdict("switch: boot", "pass")],
                    Lists=mock.MagicMock(), kunit_together=nothing), \
                mock.patch("judge.rdma.report"), \
                mock.patch("commands.refused.run", nothing), \
                mock.patch("commands.compiled.run", nothing), \
                mock.patch("judge.igt.stale", nothing), mock.patch("judge.igt.mended", nothing), \
                mock.patch("judge.kernellog.stale", nothing):
            returned = function(work, mock.MagicMock(), *arguments)
            self.record.end(0)
        [part] = self.record.parts
        self.assertEqual(part.outcomes, [outcome])
        return [verdict.name for verdict in returned], [verdict.name for verdict in part.verdicts]

    def test_each_boot_is_judged_once(self):
        returned, recorded = self.run_with(check.run)
        self.assertEqual(returned, ["switch: boot", "migration matrix"])
        self.assertEqual(recorded, returned)

    def test_so_it_is_by_other_commands(self):
        returned, recorded = self.run_with(check.run_test, ["a"], SWITCH)
        self.assertEqual((returned, recorded), (["switch: boot"], ["switch: boot"]))

    def test_a_kernel_of_soak_is_a_part(self):
        returned, recorded = self.run_with(check.run_soak)
        self.assertEqual((returned, recorded), (["check: switch: boot"], ["switch: boot"]))


class Logs(InFolder):
    def test_each_kind_of_check_has_its_log(self):
        outcome = self.outcome(tests={"a@one": "", "b@two": ""})
        places = logs.Places(self.part([outcome]))
        for name, file in (("b@two", "runner/1/out.txt"), ("kernel log", "kernel.log"),
                           ("qemu log", "qemu.log"), ("a@gone", "output.log")):
            self.assertEqual(places.log(Verdict(f"switch: {name}", "pass")), outcome.results / file)
        outcome.boot.job = "kunit"
        self.assertEqual(places.log(Verdict("switch: suite.case", "pass")),
                         outcome.results / "kernel.log")

    def test_a_named_log_is_the_log(self):
        part = self.part([])
        verdict = Verdict("external modules", "fail", "exit status 2, log: /x/y.log")
        self.assertEqual(logs.Places(part).log(verdict), Path("/x/y.log"))

    def test_a_test_without_a_place_in_the_list_has_the_log_of_all(self):
        outcome = self.outcome(tests={"a@one": ""})
        self.assertEqual(logs.of_test(outcome, "a@two"), outcome.results / "output.log")

    def test_the_subtests_of_a_program_share_its_output(self):
        outcome = self.outcome(tests={"a@one": "", "a@two": "", "b@three": "", "c": ""})
        self.assertEqual((outcome.results / "runner/joblist.txt").read_text(),
                         "a one,two\nb three\nc\n")
        for test, number in (("a@one", 0), ("a@two", 0), ("a", 0), ("b@three", 1), ("c", 2)):
            self.assertEqual(logs.of_test(outcome, test),
                             outcome.results / f"runner/{number}/out.txt")


if __name__ == "__main__":
    unittest.main()
