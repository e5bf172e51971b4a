# SPDX-License-Identifier: GPL-2.0
"""Breaks the code on purpose: the list of mutations, and the kernel tree that has all of them.

One kernel has every mutation, and each boot turns one on (mutant.active= of the
command line): an expression becomes `if on(N) { new } else { old }`, a statement
`if !on(N) { old }`. So one build serves all mutations, and a failure of a test
is the effect of one mutation alone.
"""

import re
import tomllib
import zlib
from dataclasses import dataclass

from build.steps import LabError
from commands import sites

# The sections of the list that are no file.
WITHOUT, UNREACHED = "without", "unreached"
# The parts of a mutation, by their first character, in this order.
PARTS = {" ": "after", "-": "old", "+": "new", "!": "unfindable"}
# In what finds a mutation: suites instead of programs, and what may follow.
KUNIT = "kunit "
OPTIONS = re.compile(r" (on|by|processors) (\S+)")
# What finds a mutation beside the failure of its tests: any failure of its boot, or a limit of time.
ANY, HANG = "any", "hang"
# Stands for the condition in the replacement of a whole old text.
CONDITION = "MUTANT"
# Files that only the mutated tree has, and files that name them: the repository changes these
# anyway.
TEMPLATES = {"drivers/misc/mutant.c": "mutant.c", "include/linux/mutant.h": "mutant.h",
             "rust/kernel/mutant.rs": "mutant.rs"}
PRELUDE = "#![allow(warnings, clippy::all)]"
MAKEFILE = "drivers/misc/Makefile"
CRATE = "rust/kernel/lib.rs"
# The first character of a text that begins inside of an expression, with those before it.
INSIDE = re.compile(r"(?:[\w.]|->)\w$")


@dataclass(frozen=True)
class Mutation:
    """One line that is wrong on purpose, and the tests that find it."""

    id: str
    file: str            # path in the kernel tree
    old: str             # its text, which is there once, or is the first one after `after`
    new: str = ""        # the mutated text; nothing if a statement is dropped
    after: str = ""      # text that is there once
    whole: str = ""      # the replacement of old, if that is no expression and no statement
    patch: str = ""      # the patch that changes the line, by the start of its source.name()
    tests: tuple = ()    # program or program@subtest
    suites: str = ""     # or a pattern of KUnit suites
    on: str = ""         # the topology, or bounce
    by: str = ""         # what finds it as well: ANY or HANG
    processors: int = 0  # of the guest, if not those of a test that is repeated
    unfindable: str = ""  # why nothing can find it

    @property
    def number(self):
        """Its number in the kernel, which does not depend on the other mutations of the list."""
        return zlib.crc32(self.id.encode()) & 0x7FFFFFFF

    @property
    def text(self):
        """The mutation on one line."""
        change = f"`{self.old}` -> `{self.new or self.whole}`" if self.new or self.whole \
            else f"without `{self.old}`"
        return " ".join(change.split())


def parse(text):
    """Read a list; return the mutations, {file or patch: why it has none}, and {allocation: why no
    test makes it fail}."""
    sections = tomllib.loads(text)
    without, unreached = sections.pop(WITHOUT, {}), sections.pop(UNREACHED, {})
    return [_mutation(name, *section.partition(" ")[::2], *parts)
            for section, here in sections.items() for name, parts in here.items()], without, unreached


def _mutation(name, file, patch, finders, *parts):
    """A mutation from what the list has of it."""
    keys = [PARTS.get(part[:1]) for part in parts]
    if keys != [key for key in PARTS.values() if key in keys] or "old" not in keys:
        raise ValueError(f"mutation {name}: it has {', '.join(map(str, keys))}")
    found = dict(zip(keys, (part[1:] for part in parts)))
    if re.search(rf"\b{CONDITION}\b", found.get("new", "")):
        found["whole"] = found.pop("new")
    if re.match(r"let (?!_ = )", found["old"]) and not found.keys() & {"new", "whole"}:
        raise ValueError(f"mutation {name}: without its `let` the code means another variable, also "
                         "where the mutation is off")
    options = dict(OPTIONS.findall(finders))
    if options.get("by", ANY) not in (ANY, HANG):
        raise ValueError(f"mutation {name}: by is {ANY} or {HANG}")
    options["processors"] = int(options.get("processors", 0))
    finders = OPTIONS.sub("", finders)
    suites = finders.removeprefix(KUNIT) if finders.startswith(KUNIT) else ""
    if len(suites.split()) > 1:
        raise ValueError(f"mutation {name}: one suite, or a pattern, finds it")
    tests = () if suites else tuple(finders.split())
    return Mutation(name, file, patch=patch, tests=tests, suites=suites, **options, **found)


def position(text, mutation):
    """Where the old text is in a file."""
    start = 0
    if mutation.after:
        if text.count(mutation.after) != 1:
            raise ValueError(f"{mutation.id}: `{mutation.after}` is {text.count(mutation.after)} "
                             f"times in {mutation.file}, not once")
        start = text.index(mutation.after)
    elif text.count(mutation.old) > 1:
        raise ValueError(f"{mutation.id}: `{mutation.old}` is more than once in {mutation.file}")
    at = text.find(mutation.old, start)
    if at < 0:
        raise ValueError(f"{mutation.id}: `{mutation.old}` is not in {mutation.file}")
    line = text[text.rfind("\n", 0, at) + 1:at + 2].lstrip()
    if line.startswith(("//", "* ", "/*")):
        raise ValueError(f"{mutation.id}: `{mutation.old}` is in a comment of {mutation.file}")
    # A condition would be put inside of the expression.
    if not mutation.whole and INSIDE.search(text[max(at - 2, 0):at + 1]):
        raise ValueError(f"{mutation.id}: `{mutation.old}` is only the end of an expression of "
                         f"{mutation.file}")
    return at


def replacement(mutation):
    """The replacement of the old text."""
    number, old, new = mutation.number, mutation.old, mutation.new
    if mutation.file.endswith(".rs"):
        crate = "crate" if mutation.file.startswith("rust/kernel/") else "kernel"
        on = f"{crate}::mutant::on({number})"
        either, dropped = f"(if {on} {{ {new} }} else {{ {old} }})", f"if !{on} {{ {old} }}"
    else:
        on = f"mutant_on({number})"
        either, dropped = f"({on} ? ({new}) : ({old}))", f"if (!{on}) {{ {old} }}"
    if mutation.whole:
        return re.sub(rf"\b{CONDITION}\b", on, mutation.whole)
    return either if new else dropped


def by_file(mutations):
    """The mutations of each file: {path in the kernel tree: mutations}."""
    return {path: [mutation for mutation in mutations if mutation.file == path]
            for path in sorted({mutation.file for mutation in mutations})}


def rewrite(text, mutations):
    """The text of a file that has all of these mutations."""
    places = sorted(((position(text, m), m) for m in mutations), key=lambda place: place[0])
    done, end = "", 0
    for at, mutation in places:
        if at < end:
            raise ValueError(f"{mutation.id}: another mutation is in the same place")
        done += text[end:at] + replacement(mutation)
        end = at + len(mutation.old)
    return _with_prelude(done + text[end:], mutations[0].file)


def _with_prelude(text, file):
    """The text with the declarations for the new code, below the comment with the licence."""
    if PRELUDE in text:
        return text
    begin = text.index("*/") if text.startswith("/*") else 0
    end = text.index("\n", begin)
    first, newline, rest = text[:end], text[end], text[end + 1:]
    if file.endswith(".rs"):
        # Neither the compiler nor clippy may warn about the new code.
        prelude = PRELUDE
    else:
        prelude = "#include <linux/mutant.h>"
    return f"{first}{newline}{prelude}\n{rest}"


class Mutator:
    """Puts mutations into the repository's files of the kernel tree, and marks allocations."""

    def __init__(self, mutations, templates, ours=()):
        self.mutations = mutations
        self.templates = templates
        self.ours = ours         # the Rust files, by their paths in the kernel tree

    def __call__(self, wanted, folder):
        """Take {path in the tree: file}; return the same with files of folder for mutated ones."""
        texts = {path: (self.templates / name).read_text() for path, name in TEMPLATES.items()}
        for path, line in ((MAKEFILE, "obj-y += mutant.o\n"), (CRATE, "pub mod mutant;\n")):
            texts[path] = wanted[path].read_text() + line
        for path, here in by_file(self.mutations).items():
            try:
                # The repository does not change this file, so a mutation of it would test nothing.
                texts[path] = rewrite(wanted[path].read_text(), here)
            except (KeyError, ValueError) as error:
                raise LabError(f"mutations of {path}: {error}",
                               "bring tools/mutants/list.toml up to date") from error
        for path in self.ours:
            marked = sites.mark(path, texts.get(path) or wanted[path].read_text())
            if sites.CALL in marked:
                texts[path] = _with_prelude(marked, path)
        mutated = dict(wanted)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            mutated[path] = folder / path
        return mutated
