# SPDX-License-Identifier: GPL-2.0
"""The pages of the documentation, as the kernel's Sphinx renders them: `make docs`.

Only our pages are built, with the configuration, the extensions and the headers of the kernel tree.
A warning is a failure.
"""

from boot import pipeline
from build import cache, debianroot, docsroot, source, toolchain
from build.steps import LabError
from judge.igt import Verdict

HINT = "the log names the page and the line"
TOP = "Documentation/"
# The page that links to our pages.
INDEX = """.. SPDX-License-Identifier: GPL-2.0

Peer-to-peer VRAM
=================

.. toctree::
   :maxdepth: 2

"""
SPHINX = ["sphinx-build", "-q", "-W", "--keep-going", "-j", "auto", "-b", "html",
          "-c", f"/build/src/{TOP}", "-d", "/build/docs/doctrees", f"/build/docs/{TOP}",
          "/build/docs/html"]
ENV = {"srctree": "/build/src", "PYTHONDONTWRITEBYTECODE": "1"}


def run(steps):
    """Build the pages; return the verdict, and where the first of them is."""
    _, src = pipeline.sources(steps, (toolchain, docsroot))
    return verdict(steps, docsroot.ensure(steps), src), folder() / "html/index.html"


def folder():
    """Where the pages are built."""
    return cache.base() / "documentation"


def verdict(steps, box, src):
    """Whether the pages build without a warning."""
    try:
        build(steps, box, src, pages(pipeline.REPO))
    except LabError as error:
        return Verdict("documentation", "fail", f"{error}, log: {error.log}")
    return Verdict("documentation", "pass")


def pages(repo):
    """The files of ours below Documentation, by their paths there."""
    return {name.removeprefix(TOP): file for name, file in source.overlay_files(repo)
            if name.startswith(TOP)}


def build(steps, box, src, found):
    """Build these pages, unless they were built without a warning and nothing has changed since."""
    made = folder()
    stamp = cache.Stamp(made / "built")
    # The files of the repository in the tree include the pages, and the headers that they show.
    key = cache.digest(src.key, src.state, SPHINX, INDEX, docsroot.KEY)
    if stamp.holds(key):
        steps.current("documentation")
        return
    # Sphinx reports the warnings of a page only when it reads the page, so all are read again.
    debianroot.remove(made)
    lay(made / TOP, found)
    # An extension of the kernel reads this file, even if no page shows a part of it.
    cache.write(made / source.MAINTAINERS, (pipeline.REPO / source.MAINTAINERS).read_bytes())
    with steps.step("documentation") as step:
        step.run(SPHINX, HINT, box.with_binds({"/build/docs": made},
                                              readonly={"/build/src": src.tree}),
                 cwd=f"/build/src/{TOP}", env=ENV)
    stamp.set(key)


def lay(where, found):
    """Put the pages below a folder, with a page that links to all of them."""
    names = sorted(name.removesuffix(".rst") for name in found if name.endswith(".rst"))
    cache.write(where / "index.rst", (INDEX + "".join(f"   {name}\n" for name in names)).encode())
    for name, file in found.items():
        cache.write(where / name, file.read_bytes())
