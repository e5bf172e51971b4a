# SPDX-License-Identifier: GPL-2.0
"""The layout of the blocks of a report, as HTML."""

import functools
import os
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote

from judge.report import blocks

LOOKS = Path(__file__).with_name("looks")
# A sign for each state, because some readers cannot tell colours apart.
SIGNS = {blocks.GOOD: "✓", blocks.BAD: "✗", blocks.WARN: "!", blocks.OFF: "–"}


def render(page, folder):
    """The text of the page, for a file in a folder: links to logs are relative to it."""
    template = Template((LOOKS / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=(LOOKS / "style.css").read_text(encoding="utf-8"), title=escape(page.title),
        state=page.state, sign=SIGNS[page.state], verdict=escape(page.verdict),
        facts="".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
                      for name, value in page.facts),
        counts="".join(f'<li class="{state}"><b>{number:,}</b> {escape(what)}</li>'
                       for number, what, state in page.counts),
        contents="".join(f'<li><a href="#{section.name}">{escape(section.title)}</a></li>'
                         for section in page.sections),
        sections="".join(f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
                         + "".join(drawn(block, folder) for block in section.blocks)
                         + "</section>\n" for section in page.sections))


def sign(state):
    """The sign of a state."""
    return f'<span class="sign {state}">{SIGNS[state]}</span> ' if state else ""


@functools.singledispatch
def drawn(block, folder):
    """The HTML of a block."""
    raise TypeError(f"{block} in {folder} has no look")


@drawn.register
def _(block: blocks.Text, _):
    return "".join(f"<p>{escape(line)}</p>" for line in block.lines)


@drawn.register
def _(block: blocks.Output, _):
    return f'<div class="wide"><pre>{escape(chr(10).join(block.lines))}</pre></div>'


@drawn.register
def _(block: blocks.Picture, _):
    lines = "".join(f"<p>{escape(line)}</p>" for line in block.lines)
    return (f"<figure><figcaption><h3>{sign(block.state)}{escape(block.title)}</h3>{lines}"
            f"</figcaption>{block.svg}</figure>")


@drawn.register
def _(block: blocks.Gallery, folder):
    return f'<div class="gallery">{"".join(drawn(it, folder) for it in block.pictures)}</div>'


@drawn.register
def _(block: blocks.Folded, folder):
    return (f"<details><summary>{sign(block.state)}{escape(block.title)}</summary>"
            + "".join(drawn(it, folder) for it in block.blocks) + "</details>\n")


@drawn.register
def _(block: blocks.Table, folder):
    # Adjacent columns with the same header share one cell.
    header, names = [], list(block.header)
    while names:
        same = next((n for n, name in enumerate(names) if name != names[0]), len(names))
        span = f' colspan="{same}"' if same > 1 else ""
        header.append(f'<th scope="col"{span}>{escape(names[0])}</th>')
        names = names[same:]
    rows = "".join("<tr>" + "".join(cell(it, folder, column < block.headers)
                                    for column, it in enumerate(row)) + "</tr>\n"
                   for row in block.rows)
    table = (f'<div class="wide" tabindex="0" role="region" aria-label="{escape(block.caption)}">'
             f'<table class="{block.kind}"><caption>{escape(block.caption)}</caption>'
             f'<thead><tr>{"".join(header)}</tr></thead><tbody>\n{rows}</tbody></table></div>\n')
    if block.closed:
        return f"<details><summary>{escape(block.caption)}</summary>{table}</details>\n"
    return table


def cell(it, folder, is_header):
    """A cell of a table."""
    words = escape(it.text)
    hint = f' title="{escape(it.hint)}"' if it.hint else ""
    if it.log and it.text and it.log.exists():
        link = quote(os.path.relpath(it.log, folder))
        # The hint is on an element that can be reached without a mouse.
        words, hint = f'<a href="{link}"{hint}>{words}</a>', ""
    kinds = " ".join(kind for kind in (it.state, it.kind, "number" if it.number else "") if kind)
    name, scope = ("th", ' scope="row"') if is_header else ("td", "")
    of_kind = f' class="{kinds}"' if kinds else ""
    if it.bar:
        words = f'{it.bar}<span class="value">{words}</span>'
    return f"<{name}{scope}{of_kind}{hint}>{sign(it.state)}{words}</{name}>"
