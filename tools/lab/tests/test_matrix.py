# SPDX-License-Identifier: GPL-2.0
"""Tests of the table of the migration matrix."""

import json
import unittest

from boot import topologies
from judge import matrix

SWITCH = topologies.find("switch")
BRIDGE = topologies.find("host-bridge")
NO_ROUTE = topologies.find("no-route")


def results(topology, change=lambda key, line: line):
    """A results.json in which all cells are well; change(key, line) alters lines."""
    tests = {}
    for key in matrix.keys():
        bo, first, order, second = key
        got = f"{topology.decision}/none"
        if second != "none":
            got += ",system/no-opt-in"
        line = change(key, f"cell object={bo} first={first} second={second} order={order} "
                           f"placement=vram got={got} verdict=ok")
        entry = tests.setdefault(f"igt@vvram_matrix@{bo}-{first}", {"out": "Starting\n"})
        entry["out"] += f"{line}\n"
    return json.dumps({"tests": tests})


class Matrix(unittest.TestCase):
    KEY = ("either", "static", "late", "dynamic")

    def altered(self, old, new):
        return results(SWITCH, lambda key, line: line.replace(old, new) if key == self.KEY else line)

    def test_there_are_165_cells(self):
        self.assertEqual(len(set(matrix.keys())), 3 * 5 * (1 + 2 * 5))

    def test_topologies_that_agree_share_a_table(self):
        lines, verdict = matrix.report({SWITCH: results(SWITCH), BRIDGE: results(BRIDGE)})
        self.assertEqual((verdict.result, verdict.detail), ("pass", ""))
        rows = [line for line in lines if line.startswith("either  revocable  late")]
        self.assertEqual(len(rows), 1)
        self.assertEqual(rows[0].count("V peer+opt-in"), 5)
        self.assertIn("330 cells, 0 of them not as expected.", lines)

    def test_those_without_a_route_have_their_own(self):
        lines, verdict = matrix.report({SWITCH: results(SWITCH), NO_ROUTE: results(NO_ROUTE)})
        self.assertEqual(verdict.result, "pass")
        self.assertEqual(sum(line.startswith("The migration matrix") for line in lines), 2)

    def test_a_wrong_cell_is_marked_and_named(self):
        text = self.altered("verdict=ok", "verdict=WRONG src/x.rs:1: placement")
        lines, verdict = matrix.report({SWITCH: text, BRIDGE: results(BRIDGE)})
        self.assertEqual(verdict.result, "fail")
        self.assertEqual(verdict.detail, "switch: either static late dynamic: src/x.rs:1: placement")
        self.assertEqual(sum("! V peer+opt-in" in line for line in lines), 1)

    def test_a_cell_that_is_not_there_is_missed(self):
        lines, verdict = matrix.report({SWITCH: self.altered("cell ", "sell ")})
        self.assertEqual(verdict.detail, "switch: either static late dynamic: it was not tried")
        self.assertEqual(sum("! ?" in line for line in lines), 1)
        self.assertEqual(matrix.report({SWITCH: '{"tests": {}}'})[1].result, "fail")
        self.assertEqual(matrix.report({})[1].result, "fail")

    def test_system_memory_is_tried_once_for_each_kind_of_address(self):
        def without(topology):
            return results(topology, lambda key, line: "" if key[0] == "system" else line)

        lines, verdict = matrix.report({SWITCH: results(SWITCH), BRIDGE: without(BRIDGE)})
        self.assertEqual((verdict.result, verdict.detail), ("pass", ""))
        self.assertIn("275 cells, 0 of them not as expected.", lines)
        _, verdict = matrix.report({SWITCH: without(SWITCH), BRIDGE: results(BRIDGE)})
        self.assertEqual(verdict.result, "fail")

    def test_topologies_have_to_agree(self):
        text = self.altered("placement=vram", "placement=system")
        _, verdict = matrix.report({SWITCH: text, BRIDGE: results(BRIDGE)})
        self.assertEqual(verdict.detail,
                         "all: either static late dynamic: the topologies do not agree")

    def test_another_path_than_that_of_the_topology_is_spelled_out(self):
        self.assertEqual(matrix.short("vram", ["host-bridge/none"], "bus"), "V host-bridge/none")


if __name__ == "__main__":
    unittest.main()
