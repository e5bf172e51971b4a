# SPDX-License-Identifier: GPL-2.0
"""Tests of what is concluded from pyverbs' results."""

import unittest

from boot import plan
from judge import rdma

BEFORE = {"tests.test_mr.MRTest.test_dereg_mr": "pass", "tests.test_odp.Odp.test_x": "skip",
          "tests.test_mr.DmaBufMRTest.test_write": "skip"}
AFTER = {name: ["pass" if "DmaBuf" in name else result, ""] for name, result in BEFORE.items()}
CASES = ("pinned/vram", "dynamic/system")
DMABUF = {f"{case}/{test}": ["pass", ""] for case in CASES
          for test in ("tests.test_mr.DmaBufMRTest.test_write", "memory")}
ON_DEMAND = {f"{plan.ON_DEMAND}/{test}": ["pass", ""] for test in rdma.ODP_TESTS}


class Pyverbs(unittest.TestCase):
    def failures(self, what, found):
        """The tests that are judged as failed."""
        verdicts = rdma.pyverbs_verdicts("boot", what, found, BEFORE)
        return [verdict.name for verdict in verdicts if verdict.result == "fail"]

    def test_as_before_and_with_dma_bufs(self):
        self.assertEqual(self.failures("modules", AFTER), [])
        self.assertEqual(self.failures(",".join(CASES), DMABUF), [])
        self.assertEqual(self.failures(plan.ON_DEMAND, ON_DEMAND), [])
        self.assertEqual(self.failures(",".join([*CASES, plan.ON_DEMAND]), {**DMABUF, **ON_DEMAND}),
                         [])

    def test_each_deviation_fails(self):
        for name, (result, _) in AFTER.items():
            for other in {"pass", "skip", "fail"} - {result}:
                self.assertEqual(self.failures("modules", {**AFTER, name: [other, "why"]}),
                                 [f"boot: {name}"], other)

    def test_what_did_not_run_fails(self):
        for what, found in (("modules", AFTER), (",".join(CASES), DMABUF),
                            (plan.ON_DEMAND, ON_DEMAND)):
            for name in found:
                rest = {other: came for other, came in found.items() if other != name}
                self.assertEqual(self.failures(what, rest), [f"boot: {name}"])

    def test_a_dma_buf_may_not_be_skipped(self):
        for name in DMABUF:
            self.assertEqual(self.failures(",".join(CASES), {**DMABUF, name: ["skip", "no GPU"]}),
                             [f"boot: {name}"])

    def test_an_unknown_test_fails(self):
        self.assertEqual(self.failures("modules", {**AFTER, "tests.test_new": ["pass", ""]}),
                         ["boot: tests.test_new"])

    def test_baseline_is_read(self):
        self.assertEqual(rdma.baseline("# text\n\npass  a.b\nskip  c\n"), {"a.b": "pass", "c": "skip"})


if __name__ == "__main__":
    unittest.main()
