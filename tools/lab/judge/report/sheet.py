# SPDX-License-Identifier: GPL-2.0
"""The topologies on one sheet, for the documentation.

After a change of a topology, in tools/lab:
python3 -B -c 'from judge.report import sheet; sheet.write()'
"""

import re

from boot import pipeline, topologies
from build import cache
from judge.report import devices, drawing, page

FILE = pipeline.REPO / "Documentation/gpu/vvram-topologies.svg"
COLUMNS = 3
WIDTH, TITLE, BELOW = 310, 36, 16
WORDS = {topologies.BUS: "bus address", topologies.HOST_BRIDGE: "through the host bridge",
         topologies.REFUSED: "refused"}


def style():
    """The rules for pictures, with the light colours in place of CSS variables, which not every
    program that shows SVG supports.
    """
    text = (page.LOOKS / "style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", text[:text.index("@media")]))
    rules = re.findall(r"^svg (?:text|\.box|\.edge|\.way|circle|path).*\}$", text, re.M)
    return re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match.group(1)], "\n".join(rules)) \
        + f"\n.page {{ fill: {colours['page']}; }}\nsvg text.title {{ font-weight: 600; }}"


def sheet():
    """The picture."""
    parts, top = [], 0
    for first in range(0, len(topologies.TOPOLOGIES), COLUMNS):
        row = topologies.TOPOLOGIES[first:first + COLUMNS]
        sizes = [drawing.placed(devices.tree(machine))[1] for machine in row]
        for column, (machine, (width, _)) in enumerate(zip(row, sizes)):
            parts += titled(machine, column * WIDTH, top, width)
        top += TITLE + max(height for _, height in sizes) + BELOW
    body = (f"<style>\n{style()}\n</style>"
            f'<rect class="page" width="{COLUMNS * WIDTH}" height="{top:.0f}"/>\n'
            + "\n".join(parts) + "\n")
    return "<!-- SPDX-License-Identifier: GPL-2.0 -->\n" \
        + drawing.svg(COLUMNS * WIDTH, top, "The topologies", body) + "\n"


def titled(machine, left, top, width):
    """A machine with its name and its decision, in a column."""
    middle = left + WIDTH / 2
    decision = WORDS[machine.decision]
    if machine.distance >= 0:
        decision += f", distance {machine.distance}"
    return [drawing.text(middle, top + 18, f"{machine.title} ({machine.name})", "title"),
            drawing.text(middle, top + 33, decision, "small"),
            drawing.topology(machine, machine.title).replace(
                "<svg ", f'<svg x="{middle - width / 2:.0f}" y="{top + TITLE}" ', 1)]


def write():
    """Write the file of the documentation."""
    cache.write(FILE, sheet().encode())
