# SPDX-License-Identifier: GPL-2.0
"""Debian packages for a real machine: `make deb`, and `make p2p` for the tool alone."""

import shutil
from pathlib import Path

from boot import pipeline
from build import cache, source
from build.packages import kerneldeb, tooldeb
from build.steps import LabError


def destination(text):
    """The folder that OUT= names for the packages; the folder of the caches if it names none."""
    if not text:
        return cache.base() / "deb"
    out = Path(text).expanduser().absolute()
    if not out.parent.is_dir():
        raise LabError(f"{out.parent} is no folder", "make it, or name another one with OUT=")
    return out


def packages(steps, repo, box, src):
    """Make all packages; return the paths of those of the kernel, and of the one of p2p."""
    config = kerneldeb.configuration()
    src = source.variant(steps, src, repo, box, "packages", patches=source.series_of)
    kerneldeb.PACKAGERS.ensure(steps, box)
    return kerneldeb.Kernel(src, box, config).ensure(steps), tooldeb.ensure(steps, box, repo)


def make(steps, out):
    """Make all packages and put them into a folder; return their paths there."""
    box, src = pipeline.sources(steps)
    kernels, tool = packages(steps, pipeline.REPO, box, src)
    out.mkdir(exist_ok=True)
    for path in (*kernels, tool):
        shutil.copy2(path, out)
    return [out / path.name for path in (*kernels, tool)]


def make_tool(steps, out):
    """Make the package of p2p; put it and the program into a folder, and return their paths."""
    package = tooldeb.ensure(steps, pipeline.tools(steps), pipeline.REPO)
    made = [package, tooldeb.program(package)]
    out.mkdir(exist_ok=True)
    return [Path(shutil.copy2(path, out)) for path in made]


def tell(console, paths):
    """Say where the packages are, and how large."""
    width = max(len(path.name) for path in paths)
    console.say(f"made in {paths[0].parent}:")
    for path in paths:
        console.say(f"    {path.name:<{width}}  {path.stat().st_size / (1 << 20):8.1f} MiB")
