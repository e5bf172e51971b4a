# SPDX-License-Identifier: GPL-2.0
"""The prose of doc comments and pages: it has no more relative clauses and commas than the kernel's.

`python3 -B tools/lab/commands/prose.py [FILE...]` prints the measures of each file, or of each part
of the repository.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

# Each part of the repository: its name, its files, and the maximum number of "that" and "which" in
# 1,000 words, and of commas in a sentence.
PARTS = (
    ("the kernel crate", ("rust",), ".rs", 20.0, 0.40),
    ("the drivers", ("drivers",), ".rs", 20.0, 0.40),
    ("the pages", ("Documentation", "README.md"), (".rst", ".md"), 18.0, 1.0),
)
COMMENT = re.compile(r"^\s*//([/!]?)(.*)$")
# What begins a paragraph in a comment, and is not one with the line before it.
BREAK = re.compile(r"(?:[#|*-]|\d+\.)")
ITEM = re.compile(r"^(?:[-*]|#?\d+\.)\s+")
CODE = re.compile(r"\[?`[^`]*`\]?(?:\([^)]*\)|\[[^\]]*\])?")
LITERAL = re.compile(r"``[^`]*``|:\w+:`[^`]*`")
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z])")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
UNDERLINE = re.compile(r"^([=~*#^-])\1{3,}$")
TABLE = re.compile(r"^=+\s+=+")


@dataclass
class Measure:
    """The counts of some prose."""

    words: int = 0
    sentences: int = 0
    clauses: int = 0         # "that" and "which"
    commas: int = 0

    def add(self, paragraph):
        """Count a paragraph; sentences of fewer than three words are labels."""
        for sentence in SENTENCE.split(paragraph):
            words = WORD.findall(sentence)
            if len(words) < 3:
                continue
            self.words += len(words)
            self.sentences += 1
            self.clauses += sum(word.lower() in ("that", "which") for word in words)
            self.commas += sentence.count(",")

    @property
    def clauses_per_1000(self):
        """How many "that" and "which" there are in 1,000 words."""
        return 1000 * self.clauses / max(self.words, 1)

    @property
    def commas_per_sentence(self):
        """How many commas a sentence has."""
        return self.commas / max(self.sentences, 1)

    def __str__(self):
        return (f"{self.words:6} words, {self.clauses_per_1000:5.1f} that/which per 1,000, "
                f"{self.commas_per_sentence:.2f} commas a sentence")


def comments(text):
    """The paragraphs of the comments of Rust code, without examples, headings and tables."""
    paragraph, in_example, found = [], False, []
    for line in text.split("\n") + [""]:
        comment = COMMENT.match(line)
        body = comment[2].strip() if comment else ""
        if body.startswith("```"):
            in_example, body = not in_example, ""
        in_example = in_example and bool(comment)
        if in_example:
            body = ""
        if not body or BREAK.match(body):
            found.append(" ".join(paragraph))
            paragraph = []
        if body and not body.startswith(("#", "|", "//")) and "SPDX" not in body:
            paragraph.append(ITEM.sub("", body))
    return [CODE.sub("X", part) for part in found if part]


def page(text, markdown=False):
    """The paragraphs of a page, without headings, tables and literal blocks."""
    lines, kept, literal = text.split("\n"), [], None
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if literal is not None:
            if not line.strip() or depth > literal:
                continue
            literal = None
        after = lines[number + 1] if number + 1 < len(lines) else ""
        if markdown:
            skipped = line.startswith(("    ", "|", "```", "#", "!["))
        else:
            skipped = line.startswith("..") or UNDERLINE.match(line) or UNDERLINE.match(after) \
                or TABLE.match(line) or re.match(r"^\S.*\s{3,}\S", line)
        kept.append("" if skipped else ITEM.sub("", line.strip()))
        if not markdown and line.rstrip().endswith("::"):
            literal = depth
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", LITERAL.sub("X", "\n".join(kept)))
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def measure(files):
    """The measure of files together."""
    total = Measure()
    for file in files:
        text = file.read_text()
        parts = comments(text) if file.suffix == ".rs" else page(text, file.suffix == ".md")
        for part in parts:
            total.add(part)
    return total


def files_of(repo, roots, suffix):
    """The files of a part of the repository."""
    return [path for root in roots for path in sorted([repo / root, *(repo / root).rglob("*")])
            if path.is_file() and path.name.endswith(suffix)]


def complaints(repo):
    """What is above the limits, one line each."""
    found = []
    for name, roots, suffix, clauses, commas in PARTS:
        total = measure(files_of(repo, roots, suffix))
        if total.clauses_per_1000 > clauses or total.commas_per_sentence > commas:
            found.append(f"{name}: {total} (limits: {clauses:g} and {commas:.2f})")
    return found


def main():
    """Print the measures."""
    repo = Path(__file__).resolve().parents[3]
    if len(sys.argv) > 1:
        for name in sys.argv[1:]:
            print(f"{measure([Path(name)])}  {name}")
        return
    for name, roots, suffix, *_ in PARTS:
        print(f"{measure(files_of(repo, roots, suffix))}  {name}")


if __name__ == "__main__":
    main()
