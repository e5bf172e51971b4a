# SPDX-License-Identifier: GPL-2.0
"""The allocations in the code, and those of them that no test makes fail.

The kernel tree with the mutations reports each allocation once that is reached while a program of
FAULTS or GPU_FAULTS in plan.py makes the allocations of an operation fail. In the long form of the
test each one fails, unless it needs no memory, such as that of a list with free capacity.
"""

import re
import zlib

# The value of mutant.active= that makes a kernel report them.
ACTIVE = -1
REACHED = re.compile(r"allocation (\d+) reached")
# The flags of an allocation, outside of imports.
FLAGS = re.compile(r"(?<![\w:])(?:bindings::)?GFP_[A-Z_]+\b")
# The call that marks a place.
CALL = "::mutant::allocation("
FUNCTION = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)", re.M)
TESTS = re.compile(r"^#\[kunit_tests\(.*\)\]$|^mod tests", re.M)


def number(name):
    """The number of a place in the kernel."""
    return zlib.crc32(f"allocation {name}".encode()) & 0x7FFFFFFF


def find(path, text):
    """[(start, end, name)] of the places in a file; a name has the function, and counts in it."""
    end = TESTS.search(text)
    functions = [(match.start(1), match.group(1)) for match in FUNCTION.finditer(text)]
    count, found = {}, []
    for match in FLAGS.finditer(text, 0, end.start() if end else len(text)):
        line = text[text.rfind("\n", 0, match.start()) + 1:match.start()].lstrip()
        function = next((name for at, name in reversed(functions) if at < match.start()), "")
        if line.startswith(("//", "use ")) or not function:
            continue
        count[function] = count.get(function, 0) + 1
        name = f"{path}: {function}"
        if count[function] > 1:
            name += f" #{count[function]}"
        found.append((match.start(), match.end(), name))
    return found


def mark(path, text):
    """The text of a Rust file in which each place reports that it is reached."""
    crate = "crate" if path.startswith("rust/kernel/") else "kernel"
    done, end = "", 0
    for start, after, name in find(path, text):
        done += f"{text[end:start]}{crate}{CALL}{number(name)}, {text[start:after]})"
        end = after
    return done + text[end:]


def names(files):
    """The names of all places of some files, (path in the kernel tree, file)."""
    return [name for path, file in files if path.endswith(".rs")
            for _, _, name in find(path, file.read_text())]


def report(everything, log, explained):
    """The table of places that were never reached, as lines, and whether all are explained."""
    reached = {int(found) for found in REACHED.findall(log)}
    missing = [name for name in everything if number(name) not in reached]
    lines = [f"allocations: {len(everything) - len(missing)} of {len(everything)} places reached"]
    for name in missing:
        lines.append(f"{'explained' if name in explained else 'NEVER FAILED':14} {name}")
        lines.append(f"{'':14}     {explained.get(name, 'let an operation of a program of FAULTS do it')}")
    stale = [name for name in explained if name not in missing]
    lines += [f"{'STALE':14} {name} is reached, or gone" for name in stale]
    return lines, not stale and all(name in explained for name in missing)
