# SPDX-License-Identifier: GPL-2.0
"""The content of the report of a run."""

import collections
import dataclasses
import time

from boot import qemu, topologies
from build import kernel
from build.steps import TAIL, duration
from judge import costs, guests, igt, matrix, transfer
from judge.report import drawing, logs
from judge.report.blocks import (BAD, GOOD, NONE, OFF, WARN, Cell, Folded, Gallery, Output, Page,
                                 Picture, Section, Table, Text)

STATES = {"pass": GOOD, "fail": BAD, "skip": OFF, "unsteady": WARN}
WORDS = {"pass": "passed", "fail": "failed", "skip": "skipped", "unsteady": "unsteady"}
DECISIONS = {topologies.BUS: "peer to peer by bus address, below the switch",
             topologies.HOST_BRIDGE: "peer to peer through the host bridge",
             topologies.REFUSED: "refused: PCI permits no route"}


def page(record):
    """The page of a run."""
    verdicts = [verdict for part in record.parts for verdict in part.verdicts]
    count = collections.Counter(verdict.result for verdict in verdicts)
    title, state = ending(record)
    sections = [wrong(record), *benchmark(record), topology_pictures(record), demo_table(record),
                *matrices(record), slowest(record), boots(record), *all_verdicts(record),
                work(record)]
    counts = [(count[result], WORDS[result], STATES[result])
              for result in STATES if verdicts and (count[result] or result in ("pass", "fail"))]
    if record.rows:
        count = collections.Counter(row.verdict for row in record.rows)
        counts += [(count["ok"], "targets met", GOOD), (count["MISSED"], "targets missed", BAD),
                   (count["met"], "goals met", GOOD), (count["not met"], "goals not met", WARN)]
    if record.demo:
        good = sum(not bad for *_, bad in record.demo)
        counts += [(good, "machines as expected", GOOD), (len(record.demo) - good, "not as expected", BAD)]
    return Page(f"make {record.command}", state, title, facts(record),
                [(number, what, state if number else NONE) for number, what, state in counts],
                [section for section in sections if section and section.blocks])


def ending(record):
    """The end of a run, in words and as a state."""
    if record.status == 0:
        return "everything as expected", GOOD
    if record.status is not None and record.status >= 128:
        return "cut short", WARN
    return "failed", BAD


def facts(record):
    """(name, value) of the facts about a run."""
    found = [("begin", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record.begin))),
             ("time", duration(record.seconds)),
             ("kernel", ", ".join(part.title for part in record.parts) or
              (costs.FLAVOUR if record.command == "bench" else kernel.DEFAULT))]
    if record.parts and record.outcomes():
        found.append(("seed", str(record.seed or qemu.seed())))
    return found


def wrong(record):
    """The verdicts that have failed, or are unsteady."""
    blocks = []
    if record.error:
        blocks.append(Text([str(record.error)]))
        hint, log = getattr(record.error, "hint", ""), getattr(record.error, "log", None)
        if hint:
            blocks.append(Text([f"What to do: {hint}"]))
        if log and log.is_file():
            blocks += [Output(log.read_text(errors="replace").splitlines()[-TAIL:]),
                       Table("The log", ("step",), [[Cell(log.stem, BAD, log=log)]])]
    if record.wrong:
        blocks.append(Table("Deviations from what is expected", ("deviation",),
                            [[Cell(line, BAD, log=deviation_log(record, line))]
                             for line in record.wrong]))
    for part in record.parts:
        places = logs.Places(part)
        rows = [verdict_row(verdict, places) for verdict in part.verdicts
                if verdict.result in ("fail", "unsteady")]
        if rows:
            blocks.append(Table(f"Failed or unsteady{of(record, part)}",
                                ("check", "result", "what it said"), rows))
    return Section("wrong", "What is wrong", blocks)


def deviation_log(record, line):
    """The log of a deviation, which begins with a boot, a machine or a row of the benchmark."""
    logs_of = bench_logs(record)
    where, _, said = line.partition(": ")
    boots_of_rows = [row.boot for row in record.rows if line.startswith(f"{row.what}: ")]
    for name in (where, f"bench-{where}-1", *boots_of_rows):
        if log := logs_of.get(name):
            other = next((file for start, file in OTHER_LOGS.items() if said.startswith(start)), "")
            return log.with_name(other or log.name)
    return None


# The start of a complaint that is not about the output of a boot, and the log that has it.
OTHER_LOGS = {"kernel log: ": "kernel.log", "QEMU: ": "qemu.log"}


def of(record, part):
    """The name of a part, if there are several."""
    return f", kernel {part.title}" if len(record.parts) > 1 else ""


def verdict_row(verdict, places):
    """A verdict as a row of a table."""
    return [Cell(verdict.name, log=places.log(verdict)),
            Cell(WORDS[verdict.result], STATES[verdict.result]),
            Cell(verdict.detail)]


def all_outcomes(record):
    """(part, outcome) of all boots; there are no parts without tests."""
    if not record.parts:
        return [(None, outcome) for outcome in record.outcomes()]
    return [(part, outcome) for part in record.parts for outcome in part.outcomes]


def tally(verdicts):
    """The number of verdicts of a kind, in words."""
    count = collections.Counter(verdict.result for verdict in verdicts)
    return ", ".join(f"{count[result]} {WORDS[result]}" for result in STATES if count[result])


def topology_pictures(record):
    """A tree of each machine that was booted."""
    by_name = collections.defaultdict(list)
    for part, outcome in all_outcomes(record):
        by_name[outcome.boot.topology.name].append((part, outcome))
    told = {outcome.boot.topology.name: (transfer.account(outcome), bad)
            for outcome, _, bad in record.demo}
    places = {id(part): logs.Places(part) for part in record.parts}
    main, others = [], []
    for machine in topologies.ALL:
        if machine.name not in by_name:
            continue
        verdicts = [verdict for part, outcome in by_name[machine.name] if part
                    for verdict in places[id(part)].verdicts(outcome)]
        said, deviations = told.get(machine.name, ({}, []))
        shown = dataclasses.replace(machine, decision=said.get("decision", machine.decision),
                                    distance=said.get("distance", machine.distance))
        lines = [DECISIONS.get(shown.decision, shown.decision)]
        if shown.distance >= 0:
            lines[0] += f", distance {shown.distance}"
        errors = [outcome.error for _, outcome in by_name[machine.name] if outcome.error]
        bad = any(verdict.result == "fail" for verdict in verdicts) or bool(errors) or bool(deviations)
        if machine.name in told:
            lines.append(moved(said))
        elif verdicts:
            lines.append(tally(verdicts))
        picture = Picture(drawing.topology(shown, f"{machine.title} ({machine.name})"),
                          f"{machine.title} ({machine.name})", BAD if bad else GOOD, lines)
        (main if machine in topologies.TOPOLOGIES else others).append(picture)
    blocks = [Gallery(main)] if main else []
    if others:
        state = BAD if any(picture.state == BAD for picture in others) else GOOD
        blocks.append(Folded(f"More machines: {len(others)}", state, [Gallery(others)]) if main
                      else Gallery(others))
    if blocks:
        blocks.insert(0, Text(["The path of the bytes from the VRAM to the device that accesses it: "
                               "a solid green line if PCI permits it, a dashed red one with a "
                               "stop sign if it does not, so that no byte moves. The sign in front "
                               "of a title says whether all checks on the machine have passed."]))
    return Section("topologies", "Topologies", blocks)


def moved(said):
    """The transfers of the demo, in words."""
    if not said.get("bytes_written") and not said.get("bytes_read"):
        return "no bytes moved"
    return (f"{transfer.megabytes(said.get('bytes_written', 0))} written, "
            f"{transfer.megabytes(said.get('bytes_read', 0))} read by the peer, "
            + ("all compared" if said.get("verified") else "NOT as expected"))


def linked(cells, log):
    """The cells of a row, which lead to a log."""
    return [dataclasses.replace(cell, log=log) for cell in cells]


def demo_table(record):
    """The table of the demo."""
    rows = []
    for outcome, (*texts, verdict), bad in record.demo:
        cells = [*[Cell(str(text)) for text in texts],
                 Cell(str(verdict), BAD if bad else GOOD, hint="\n".join(bad))]
        rows.append(linked(cells, outcome.results / "output.log"))
    blocks = [Table("One transfer on each machine", transfer.HEADER, rows)] if rows else []
    return Section("demo", "The demo", blocks)


def matrices(record):
    """The migration matrix, of each kernel that has it."""
    for part in record.parts:
        outcomes = {}
        for machine in topologies.TOPOLOGIES:
            for outcome in part.outcomes:
                if guests.place(outcome.boot) == machine.name and \
                        any(name.startswith(matrix.TEST) for name in
                            igt.tests(igt.results(outcome))):
                    outcomes[machine] = outcome
        if outcomes:
            yield Section(f"matrix-{part.title}", f"Migration matrix{of(record, part)}",
                          list(matrix_tables(outcomes)))


def matrix_tables(outcomes):
    """The tables of a migration matrix, by machines that agree."""
    reasons = ", ".join(f"{word} ({REASONS[name.partition('/')[2]]})"
                        for name, word in matrix.SHORT.items() if name.startswith("system/"))
    yield Text(["The paths of each pair of importers to each kind of object. A row is the first "
                "importer, and whether the second one attaches before the first one maps (early) or "
                "after that (late); a column is the second importer. A cell begins with the placement: "
                "V means that the object is in VRAM, S that it is in system memory. The path of "
                "the first importer follows, and that of the second one; + separates the importers. "
                "A path is peer (peer to peer), or system memory for the reason that the word gives: "
                f"{reasons}. no:X is refused for reason X. ? was not tried. "
                "Green: peer to peer for all. Blue: system memory "
                "for at least one. Grey: refused for at least one. A cell with ✗ is not as expected. "
                "Hover over a cell for the reasons; it leads to the log of the test."])
    texts = {machine: igt.results(outcome) for machine, outcome in outcomes.items()}
    for title, group in matrix.groups(texts):
        cells = matrix.merge(group)
        names = ", ".join(machine.name for machine in group)
        first = next(iter(group))
        for bo in matrix.OBJECTS:
            rows = []
            for importer in matrix.IMPORTERS:
                for order in matrix.ORDERS:
                    keys = [(bo, importer, order, second) for second in matrix.IMPORTERS]
                    if order == matrix.ORDERS[0]:
                        keys.insert(0, (bo, importer, "alone", "none"))
                    found = [matrix_cell(key, cells[key], group, outcomes, first) for key in keys]
                    if order != matrix.ORDERS[0]:
                        found.insert(0, Cell(""))
                    rows.append([Cell(importer), Cell(order), *found])
            yield Table(f"Object of {OBJECTS[bo]}, {title} ({names})",
                        ("first importer", "second attaches", "first one alone",
                         *[f"and {name}" for name in matrix.IMPORTERS]),
                        rows, kind="matrix", headers=2)


OBJECTS = {"vram": "VRAM only", "system": "system memory only", "either": "either memory"}
PLACES = {"vram": "in VRAM", "system": "in system memory"}
REASONS = {"no-opt-in": "the importer does not take peer-to-peer memory",
           "not-pci": "the importer is not a PCI device",
           "no-route": "PCI permits no route to it",
           "outside-bar": "the BAR does not show that part of VRAM",
           "suspended": "the exporter was suspended",
           "other-importer": "another importer needs it there", "no-vram": "VRAM is full",
           "system-only": "the object was made for it",
           "not-revocable": "the importer cannot be revoked",
           "no-window": "the aperture is full",
           "encoded": "it is compressed or encrypted in VRAM",
           "pinned-elsewhere": "it is pinned there",
           "quota": "the pin is over the limit"}


def matrix_cell(key, cell, group, outcomes, first):
    """A cell of the migration matrix."""
    bo, importer, _, _ = key
    machine = next((machine for machine in group if machine.name in cell.wrong), first)
    hints = []
    for place, got in cell.seen:
        words = ", ".join(f"{which} importer: {path_words(item)}"
                          for which, item in zip(("first", "second"), got))
        hints.append(f"object {PLACES.get(place, place)}; {words}")
    hints += [f"{where}: {why}" for where, why in cell.wrong.items()]
    paths = {item.partition("/")[0] for _, got in cell.seen for item in got}
    if not paths:
        kind = "unseen"
    elif topologies.REFUSED in paths:
        kind = "refused"
    else:
        kind = "system" if "system" in paths else "peer"
    return Cell(cell.text, BAD if cell.wrong else NONE, "\n".join(hints) or "it was not tried",
                logs.of_test(outcomes[machine], f"{matrix.TEST}{bo}-{importer}"), kind=kind)


def path_words(item):
    """A path and its reason, in words."""
    path, _, reason = item.partition("/")
    words = {"system": "system memory", topologies.REFUSED: "refused",
             topologies.BUS: "peer to peer by bus address",
             topologies.HOST_BRIDGE: "peer to peer through the host bridge"}.get(path, path)
    return words if reason == "none" else f"{words}, because {REASONS.get(reason, reason)}"


def benchmark(record):
    """Ratios against 1.0, and how costs grow."""
    if record.rows:
        yield Section("ratios", "Costs and what they are compared with", list(ratios(record)))
    logs_of = bench_logs(record)
    charts = [chart for machine, path in costs.MACHINES.items() if machine in record.figures
              for chart in [growth(record.figures[machine], path, logs_of.get(machine))] if chart]
    if charts:
        yield Section("growth", "Growth with the number of scattered blocks",
                      [Text(["Instructions of a map and an unmap, and of all operations from the export "
                             "to the close. Both axes are logarithmic."]),
                       Gallery([picture for picture, _ in charts]), *[table for _, table in charts],
                       *([Output(record.notes)] if record.notes else [])])


def bench_logs(record):
    """The log of each machine of the benchmark, by its name and by that of its boot."""
    found = {}
    for outcome in record.outcomes():
        log = outcome.results / "output.log"
        found.setdefault(outcome.boot.topology.name, log)
        found[outcome.boot.name] = log
    return found


def ratios(record):
    """The rows of the benchmark, grouped by their subject."""
    yield Text(["A bar begins at 1.0, the solid line: to the left the ratio is smaller, to the right it "
                "is larger. The column \"better\" says whether more or less is better. "
                "A bar with a tip is longer than 2.0. The dotted line is the target or the goal. "
                "A missed target fails the run, a goal that is not met does not."])
    states = {"ok": GOOD, "met": GOOD, "MISSED": BAD, "not met": WARN}
    logs_of = bench_logs(record)
    groups = {}
    for row in record.rows:
        head, colon, rest = row.what.partition(": ")
        known = colon and head in (*costs.MACHINES.values(), "RDMA")
        groups.setdefault(head if known else "general", []).append((rest if known else row.what, row))
    for head, rows in groups.items():
        lines = []
        for what, row in rows:
            state = states.get(row.verdict, NONE)
            limit = next((value for value in (row.least, row.most, row.goal) if value), None)
            _, ours, other, against, ratio, better, spread, target, verdict = row.cells()
            cells = [Cell(what),
                     Cell(ratio, number=True, bar=drawing.bar(row.ratio, limit, state or "plain")),
                     Cell(better), Cell(target), Cell("" if verdict == "-" else verdict, state),
                     Cell(ours, number=True), Cell(other, number=True), Cell(against),
                     Cell(spread, number=True)]
            lines.append(linked(cells, logs_of.get(row.boot)))
        yield Table(head[0].upper() + head[1:],
                    ("what", "ratio", "better", "target", "verdict", "ours", "compared", "with",
                     "spread"), lines, kind="bars")


SERIES = (("map", "ours", "map, ours", "ours"), ("map", "vfio", "map, vfio-pci", "theirs"),
          ("whole", "ours", "all, ours", "ours dashed"),
          ("whole", "vfio", "all, vfio-pci", "theirs dashed"))


def growth(figures, path, log):
    """The curves of a path and their numbers, or nothing if some were not measured."""
    names = [f"{what}.{n}.{who}" for what, who, *_ in SERIES for n in costs.GROWTH]
    if any(name not in figures for name in names):
        return None
    curves = [(title, kind, [(n, figures[f"{what}.{n}.{who}"]) for n in costs.GROWTH])
              for what, who, title, kind in SERIES]
    rows = [linked([Cell(f"{n:,}", number=True),
                    *[Cell(f"{points[column][1]:,}", number=True) for _, _, points in curves]], log)
            for column, n in enumerate(costs.GROWTH)]
    return (Picture(drawing.lines(f"Instructions: {path}", curves), path),
            Table(f"Instructions: {path}", ("blocks", *[title for title, *_ in curves]), rows,
                  closed=True))


def slowest(record):
    """Which boots and which programs took the longest."""
    outcomes = [outcome for _, outcome in all_outcomes(record)]
    ran = sorted(((igt.seconds(entry), test, outcome) for outcome in outcomes
                  for test, entry in igt.tests(igt.results(outcome)).items()),
                 key=lambda item: -item[0])
    # The log and the hint of each boot, and of each program: those of its slowest test.
    found = {outcome.boot.name: (outcome.results / "kernel.log", "") for outcome in outcomes}
    for _, test, outcome in ran:
        found.setdefault(test.partition("@")[0], (logs.of_test(outcome, test),
                                                  f"the log of its slowest test, {test}"))
    blocks = []
    for title, times in guests.longest(outcomes):
        if len(times) > 1:
            rows = [[Cell(name, hint=found[name][1], log=found[name][0]),
                     Cell(f"{seconds:.1f} s", number=True,
                          bar=drawing.share(seconds / max(times[0][1], 1e-9)))]
                    for name, seconds in times]
            blocks.append(Table(f"The slowest {title}", ("name", "time"), rows, kind="bars"))
    tests = ran[:guests.SLOWEST]
    if tests:
        blocks.append(Table("The slowest tests", ("test", "boot", "time"),
                            [[Cell(test, log=logs.of_test(outcome, test)), Cell(outcome.boot.name),
                              Cell(f"{seconds:.1f} s", number=True,
                                   bar=drawing.share(seconds / max(tests[0][0], 1e-9)))]
                             for seconds, test, outcome in tests], kind="bars"))
    return Section("slowest", "What took the longest", blocks)


def boots(record):
    """All boots with their logs."""
    rows = []
    for part, outcome in all_outcomes(record):
        verdicts = logs.Places(part).verdicts(outcome) if part else []
        bad = outcome.error or any(verdict.result == "fail" for verdict in verdicts)
        files = {name: outcome.results / name for name in logs.FILES}
        rows.append([Cell(outcome.boot.name), Cell(outcome.boot.topology.title),
                     Cell(outcome.error or tally(verdicts) or "ended", BAD if bad else GOOD),
                     Cell(duration(outcome.seconds), number=True),
                     *[Cell(name.partition(".")[0] if logs.holds(file) else "", log=file)
                       for name, file in files.items()]])
    planned = sum(step.boots for step in record.steps) - len(record.outcomes())
    blocks = [Table("All boots", ("boot", "machine", "result", "time",
                                  *["log"] * len(logs.FILES)), rows)] if rows else []
    if planned > 0:
        blocks.append(Text([f"{planned} boots did not come to their end."]))
    return Section("boots", "Boots", blocks)


def all_verdicts(record):
    """All verdicts, folded by boot."""
    for part in record.parts:
        places = logs.Places(part)
        folded = []
        for title, verdicts in places.groups():
            states = {verdict.result for verdict in verdicts}
            state = next((STATES[result] for result in ("fail", "unsteady", "pass", "skip")
                          if result in states), NONE)
            # A check that counts has an equal verdict for each item: show one, with the number.
            rows = [[Cell(verdict.name + (f" ({times} times)" if times > 1 else ""),
                          log=places.log(verdict, title)),
                     Cell(WORDS[verdict.result], STATES[verdict.result]), Cell(verdict.detail)]
                    for verdict, times in collections.Counter(verdicts).items()]
            folded.append(Folded(f"{title}: {tally(verdicts)}", state,
                                 [Table(title, ("check", "result", "what it said"), rows)]))
        if folded:
            yield Section(f"verdicts-{part.title}", f"All checks{of(record, part)}", folded)


def work(record):
    """The steps of the run with their logs."""
    rows = [[Cell(step.name, log=step.log), Cell(WORDS.get(step.result, "did not end"), STATES.get(step.result, NONE)),
             Cell(duration(step.seconds), number=True)] for step in record.steps]
    return Section("steps", "Steps", [Table("Steps of the run", ("step", "result", "time"), rows)]
                   if rows else [])
