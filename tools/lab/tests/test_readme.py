# SPDX-License-Identifier: GPL-2.0
"""Tests of what the READMEs show of the output of programs."""

import re
import unittest

from boot import pipeline, topologies
from build import programs
from judge import transfer

README = (pipeline.REPO / "README.md").read_text()
TOOL = pipeline.REPO / programs.TOOL / "src"
OF_TOOL = (pipeline.REPO / programs.TOOL / "README.rst").read_text()


def literals(path):
    """The pieces of text between the arguments of format strings of a Rust file."""
    text = path.read_text().partition("#[cfg(test)]")[0]
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text, re.S)
    # A text goes on in the next line after a backslash.
    whole = [re.sub(r"\\\n\s*", "", string) for string in strings]
    return {piece for string in whole for piece in re.split(r"{[^}]*}", string)}


class Shown(unittest.TestCase):
    def test_the_demo_prints_that_table(self):
        table = re.search(r"```\n(topology .*?)```", README, re.S)[1].splitlines()
        self.assertEqual(tuple(re.split(r"  +", table[0])), transfer.HEADER)
        self.assertEqual([re.split(r"  +", row)[0] for row in table[2:]],
                         [machine.title for machine in topologies.TOPOLOGIES])

    def test_the_tool_prints_these_texts(self):
        shown = {"why.rs": ["What decides:", "What to do:", "sends requests of peers to the host:",
                            "no bridge is above both: they meet at the root bus of",
                            "AMD since Zen forwards between root ports",
                            "put both below one switch, or use a machine whose host bridge or "
                            "processor forwards",
                            "for the direct way", ", boot with pci=disable_acs_redir="],
                 "topo.rs": ["Row: the device whose memory it is. Column: the device that "
                             "accesses it."],
                 "ls.rs": ["held by", "(may live in", "exported by", "inode"]}
        # Lines are wrapped there.
        readme = " ".join(OF_TOOL.split())
        for name, texts in shown.items():
            for text in texts:
                self.assertIn(text, readme)
                self.assertTrue(any(text in piece for piece in literals(TOOL / name)),
                                f"{name} does not print {text!r}")


if __name__ == "__main__":
    unittest.main()
