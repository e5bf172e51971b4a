# SPDX-License-Identifier: GPL-2.0
"""The layers of the Rust code: imports go down only, and the picture is drawn from the imports.

`python3 -B tools/lab/commands/layers.py TREE` prints the picture of a patched kernel tree,
Documentation/gpu/peer-to-peer-layers.dot.
"""

import re
import sys
from pathlib import Path

CRATE = "rust/kernel"
PICTURE = "Documentation/gpu/peer-to-peer-layers.dot"
# From the bottom to the top: the modules of a layer, and its name in the picture, if it is there. A
# module that is not here has the layer of the one it is in. A layer imports only layers that come
# before it in this list.
LAYERS = (
    (("devres", "iosys_map", "ratelimit", "devcoredump", "pci::address", "pci::interrupt",
      "pci::master", "drm::devres", "drm::printer", "drm::workqueue", "drm::wedged"), ""),
    (("pm",), ""),
    (("drm::debugfs",), ""),
    (("pci::p2pdma",), "provider, distance, pages of a BAR"),
    (("mm::interval_notifier",), ""),
    (("mm::pagemap",), ""),
    (("dma_buf::fence",), "fences"),
    (("dma_resv",), "reservation"),
    (("dma_buf",), "importer"),
    (("dma_buf::exporter",), "exporter, exports, tables"),
    (("dma_buf::peer",), "path to a BAR"),
    (("mm::hmm",), "memory of a process"),
    (("drm::exec",), "several objects locked"),
    (("drm::syncobj",), "fences of userspace"),
    (("drm::queue",), "jobs of a ring"),
    (("drm::vram",), "allocator, ranges"),
    (("drm::pagemap",), "device-private memory"),
    (("drm::gem::locked", "drm::gem::mappings", "drm::gem::import", "drm::gem::shared_resv"),
     "page tables, imports"),
    (("drm::ttm",), "engines, places, managers"),
    (("drm::gem::peer",), "policy of the export"),
    (("drm::gem::aperture",), "windows of a BAR"),
    (("drm::gem::vram",), "objects that stay"),
    (("drm::gem::ttm",), "objects that move"),
    (("drm::gpuvm",), "address spaces"),
)
# The folders of the drivers, which are above all layers.
DRIVERS = {"bar_export": "drivers/misc/bar_export", "edu_peer": "drivers/misc/edu_peer",
           "avram": "drivers/gpu/drm/avram", "vvram": "drivers/gpu/drm/vvram",
           "mgpu": "drivers/gpu/drm/mgpu"}
HEAD = """// SPDX-License-Identifier: GPL-2.0
// Drawn by tools/lab/commands/layers.py from the imports, without arrows that follow from others.
digraph layers {
	rankdir = TB; ranksep = 0.4; nodesep = 0.18;
	node [shape = box, style = rounded, fontname = "DejaVu Sans", fontsize = 10, height = 0.35];
	edge [arrowsize = 0.6, color = gray40];
"""
USE = re.compile(r"\b(pub(?:\([^)]*\))? )?use ([^;]+);")
COMMENT = re.compile(r"""//[^\n]*|b?'(?:\\.[^']*|[^'\\])'|"(?:\\.|[^"\\])*\"""")
INLINE = re.compile(r"(?<![\w:])(?:::)?(\w+(?:::\w+)+)")
# What a path of the crate begins with.
ROOTS = ("crate", "kernel", "self", "super")
# A module inside of a file: `super` is the file's there.
INSIDE = re.compile(r"^mod \w+ \{$", re.M)


def leaves(tree, prefix=()):
    """The paths of a `use`, with the name that each gets."""
    tree = tree.strip()
    if "{" not in tree:
        path, _, name = tree.partition(" as ")
        path = (*prefix, *path.strip().split("::"))
        path = path[:-1] if path[-1] == "self" and len(path) > 1 else path
        yield path, name.strip() or path[-1]
        return
    head, _, body = tree.partition("{")
    prefix = (*prefix, *(part for part in head.strip().split("::") if part))
    depth, start = 0, 0
    body = body[:body.rindex("}")] + ","
    for at, char in enumerate(body):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if body[start:at].strip():
                yield from leaves(body[start:at], prefix)
            start = at + 1


class Code:
    """The modules of a kernel tree, and what each imports."""

    def __init__(self, tree):
        self.tree = Path(tree)
        self.modules = {}
        for file in sorted((self.tree / CRATE).rglob("*.rs")):
            path = file.relative_to(self.tree / CRATE).with_suffix("").parts
            path = path[:-1] if path[-1] in ("mod", "lib") else path
            self.modules[path] = COMMENT.sub("", file.read_text())
        # What a module re-exports: {module: {name: path}}.
        self.exports = {module: {name: self.absolute(path, module)
                                 for visible, body in USE.findall(text) if visible
                                 for path, name in leaves(body)}
                        for module, text in self.modules.items()}

    @staticmethod
    def absolute(path, module):
        """A path of the crate from its root, or nothing for another crate."""
        if path[0] not in ROOTS:
            return ()
        if path[0] in ("crate", "kernel"):
            return path[1:]
        while path and path[0] in ("self", "super"):
            module = module[:-1] if path[0] == "super" else module
            path = path[1:]
        return (*module, *path)

    def definition(self, path):
        """The module that has what a path names, behind re-exports."""
        for _ in range(8):
            module = next((path[:end] for end in range(len(path), 0, -1)
                           if path[:end] in self.modules), ())
            onward = self.exports.get(module, {}).get(path[len(module)]) \
                if len(path) > len(module) else None
            if not onward or onward == path:
                return module
            path = (*onward, *path[len(module) + 1:])
        return module

    def imports(self, module, text):
        """The modules that a file imports, or names in its code. What it re-exports of modules in
        it is no import."""
        file, *inside = INSIDE.split(text, maxsplit=1)
        found = self._named(module, file)
        return found | self._named((*module, "inside"), inside[0]) if inside else found

    def _named(self, module, text):
        """The modules that a text of a module names."""
        names, paths = {}, []
        for visible, body in USE.findall(text):
            for path, name in leaves(body):
                if path := self.absolute(path, module):
                    names.setdefault(name, []).append(path)
                    if not (visible and path[:len(module)] == module):
                        paths.append(path)
        for path in INLINE.findall(USE.sub("", text)):
            head, *rest = path.split("::")
            own = [self.absolute((head,), module)] if head in ROOTS else []
            paths += [(*start, *rest) for start in names.get(head, own)]
        return {self.definition(path) for path in paths if path}


def layer_of(module):
    """The number of the layer of a module, or nothing if it is none of ours."""
    for end in range(len(module), 0, -1):
        for number, (modules, _) in enumerate(LAYERS):
            if "::".join(module[:end]) in modules:
                return number
    return None


def arrows(code):
    """The arrows between layers: {(from, to): (file, module) of one import}."""
    found = {}
    for module, text in code.modules.items():
        here = layer_of(module)
        for other in code.imports(module, text) if here is not None else ():
            there = layer_of(other)
            if there not in (None, here):
                found.setdefault((here, there), ("::".join(module), "::".join(other)))
    return found


def wrong(code):
    """A line for each arrow that goes up."""
    return [f"{module} imports {other}, which is above it"
            for (here, there), (module, other) in sorted(arrows(code).items()) if there > here]


def reduced(edges):
    """The arrows without those between layers that others connect."""
    below = {}
    for here, there in edges:
        below.setdefault(here, set()).add(there)

    def reach(node):
        return set().union(*({it} | reach(it) for it in below.get(node, ())))

    return sorted((here, there) for here, there in edges
                  if not any(there in reach(it) for it in below[here] if it != there))


def node(number, separator="::"):
    """The name of a layer: its module, or the one that its modules are in."""
    (module, *more), _ = LAYERS[number]
    return (module.rpartition("::")[0] if more else module).replace("::", separator)


def picture(code):
    """The layers as a graph."""
    drawn = {number for number, (_, title) in enumerate(LAYERS) if title}
    names = {number: node(number, "_") for number in drawn}
    edges = {(names[here], names[there]) for here, there in arrows(code)
             if {here, there} <= drawn}
    lines = []
    for name, folder in DRIVERS.items():
        lines.append(f'\t{name} [style = "rounded,bold"];')
        for file in sorted((code.tree / folder).rglob("*.rs")):
            if "tests" in file.relative_to(code.tree / folder).parts:
                continue
            for module in code.imports((), COMMENT.sub("", file.read_text())):
                if (number := layer_of(module)) in drawn:
                    edges.add((name, names[number]))
    for number in sorted(drawn, reverse=True):
        lines.append(f'\t{node(number, "_")} [label = "{node(number)}\\n{LAYERS[number][1]}"];')
    return "\n".join([HEAD, *lines, "",
                      *(f"\t{here} -> {there};" for here, there in reduced(edges)), "}", ""])


def problems(tree):
    """What is wrong with the layers of a tree, and with its picture of them."""
    code = Code(tree)
    found = wrong(code)
    file = Path(tree) / PICTURE
    if not found and (not file.is_file() or file.read_text() != picture(code)):
        found.append(f"{PICTURE} is not the picture of the imports")
    return found


if __name__ == "__main__":
    sys.stdout.write(picture(Code(sys.argv[1])))
