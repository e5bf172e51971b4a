# SPDX-License-Identifier: GPL-2.0
"""The blocks of a report. They have the content; page.py has the layout."""

from dataclasses import dataclass, field
from pathlib import Path

# States. Each has a sign and a colour of its own.
GOOD, BAD, WARN, OFF, NONE = "good", "bad", "warn", "off", ""


@dataclass
class Cell:
    """A cell of a table."""

    text: str
    state: str = NONE
    hint: str = ""               # more, on hover and for screen readers
    log: Path | None = None      # the target of the link of the cell
    number: bool = False
    kind: str = ""               # its colour, where that is no state
    bar: str = ""                # a picture in front of the text


@dataclass
class Table:
    """A table. The first cell of each row is its header."""

    caption: str
    header: tuple
    rows: list
    closed: bool = False         # whether it is unfolded only on demand
    kind: str = ""
    headers: int = 1             # how many cells of a row are its headers


@dataclass
class Text:
    """Paragraphs."""

    lines: list


@dataclass
class Output:
    """Lines as a program has printed them."""

    lines: list


@dataclass
class Picture:
    """A drawing, with words below it."""

    svg: str
    title: str
    state: str = NONE
    lines: list = field(default_factory=list)


@dataclass
class Gallery:
    """Some pictures side by side."""

    pictures: list


@dataclass
class Folded:
    """Blocks that are unfolded only on demand."""

    title: str
    state: str
    blocks: list


@dataclass
class Section:
    """A chapter of the page."""

    name: str                    # of its anchor
    title: str
    blocks: list


@dataclass
class Page:
    """The whole page."""

    title: str
    state: str
    verdict: str
    facts: list                  # (name, value)
    counts: list                 # (number, what, state)
    sections: list
