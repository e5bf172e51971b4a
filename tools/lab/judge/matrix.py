# SPDX-License-Identifier: GPL-2.0
"""The migration matrix: the observations of vvram_matrix on each topology, as one table."""

import re
from dataclasses import dataclass, field

from boot import plan, topologies
from judge import igt
from judge.igt import Verdict

TEST = "vvram_matrix@"
OBJECTS = ("vram", "system", "either")
IMPORTERS = ("static", "no-p2p", "dynamic", "pinned", "revocable")
ORDERS = ("early", "late")
LINE = re.compile(r"cell object=(\S+) first=(\S+) second=(\S+) order=(\S+) placement=(\S+) "
                  r"got=(\S+) verdict=(ok|WRONG)\b ?(.*)")
# Short names, so that the table fits a screen.
PLACES = {"vram": "V", "system": "S"}
SHORT = {"system/no-opt-in": "opt-in", "system/no-route": "route",
         "system/other-importer": "other", "system/system-only": "only", "system/not-revocable": "holder",
         "system/pinned-elsewhere": "pinned", "system/no-vram": "full",
         "refused/no-opt-in": "no:opt-in", "refused/no-route": "no:route",
         "refused/pinned-elsewhere": "no:pinned"}
LEGEND = (
    "Rows: where the object may live; the first importer; whether the second one attaches before",
    "the first one maps (early) or after that (late). Columns: the second importer, if any.",
    "V, S: the object is in VRAM, in system memory. Then what the first and the second one have,",
    "separated by +. peer: peer to peer. opt-in, route, other, only, holder, pinned, full: system",
    "memory, because the importer does not take peer-to-peer memory, there is no route, another",
    "importer needs it there, the object was made for it, the importer cannot be revoked, it is",
    "pinned there, VRAM is full. no:X: refused for reason X. In front, !: not as expected.",
    "?: it was not tried.",
)


@dataclass
class Cell:
    """The observations of a combination; topologies with the same observations share a cell."""

    text: str
    wrong: dict = field(default_factory=dict)    # topology: error
    seen: list = field(default_factory=list)     # (placement, path/reason of each importer)


def parse(text):
    """The cells in a results.json: {(object, first, order, second): (observation, error)}."""
    found = {}
    for name, entry in igt.tests(text).items():
        if not name.startswith(TEST):
            continue
        for line in entry.get("out", "").splitlines():
            match = LINE.match(line)
            if match:
                bo, first, second, order, place, got, verdict, why = match.groups()
                error = "" if verdict == "ok" else why or "no reason given"
                found[(bo, first, order, second)] = (place, got.split(","), error)
    return found


def keys():
    """All combinations, in the order of the table."""
    for bo in OBJECTS:
        for first in IMPORTERS:
            yield (bo, first, "alone", "none")
            for order in ORDERS:
                for second in IMPORTERS:
                    yield (bo, first, order, second)


def short(place, got, decision):
    """An observation in a few letters; a path other than that of the topology is spelled out."""
    names = ["peer" if item == f"{decision}/none" else SHORT.get(item, item) for item in got]
    return f"{PLACES.get(place, place)} {'+'.join(names)}"


def merge(seen):
    """Merge the cells of some topologies; seen maps topologies to the results of parse()."""
    cells = {}
    for key in keys():
        texts, wrong, ways = [], {}, []
        for topology, found in seen.items():
            if key not in found:
                if key[0] != "system" or plan.of_kinds(topology):
                    wrong[topology.name] = "it was not tried"
                continue
            place, got, error = found[key]
            if error:
                wrong[topology.name] = error
            text = short(place, got, topology.decision)
            if text not in texts:
                texts.append(text)
                ways.append((place, got))
        if len(texts) > 1 and not wrong:
            wrong["all"] = "the topologies do not agree"
        cells[key] = Cell(" / ".join(texts) or "?", wrong, ways)
    return cells


def table(cells):
    """The lines of the table of some topologies."""
    rows = [("object", "first", "second", "alone", *IMPORTERS)]

    def text(*key):
        cell = cells[key]
        return ("! " if cell.wrong else "") + cell.text

    for bo in OBJECTS:
        for first in IMPORTERS:
            for order in ORDERS:
                alone = text(bo, first, "alone", "none") if order == ORDERS[0] else ""
                rows.append((bo, first, order, alone,
                             *[text(bo, first, order, second) for second in IMPORTERS]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(item.ljust(width) for item, width in zip(row, widths)).rstrip()
             for row in rows]
    rule = "-" * max(map(len, lines))
    out = [lines[0]]
    for index, line in enumerate(lines[1:]):
        if index % (len(IMPORTERS) * len(ORDERS)) == 0:
            out.append(rule)
        out.append(line)
    return out


def groups(texts):
    """(title, {topology: result of parse()}) of the topologies that share a table.

    texts maps topologies to the results.json of each.
    """
    seen = {topology: parse(text) for topology, text in texts.items()}
    found = [("with a path between the devices",
              {t: f for t, f in seen.items() if t.decision != topologies.REFUSED}),
             ("without a path, so that all importers are unreachable",
              {t: f for t, f in seen.items() if t.decision == topologies.REFUSED})]
    return [(title, group) for title, group in found if group]


def report(texts):
    """The lines to print and a verdict; texts is that of groups()."""
    lines, wrong, count = [], [], 0
    for title, group in groups(texts):
        cells = merge(group)
        names = ", ".join(t.name for t in group)
        lines += ["", f"The migration matrix {title} ({names}):", "", *table(cells)]
        for key, cell in cells.items():
            wrong += [f"{where}: {' '.join(key)}: {why}" for where, why in cell.wrong.items()]
        count += sum(len(cells.keys() & found.keys()) for found in group.values())
    lines += ["", *LEGEND, f"{count} cells, {len(wrong)} of them not as expected.", ""]
    return lines, Verdict("migration matrix", "fail" if wrong or not count else "pass",
                          "\n      ".join(wrong[:20]))
