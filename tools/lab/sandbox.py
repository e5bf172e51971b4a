# SPDX-License-Identifier: GPL-2.0
"""Runs commands inside a Debian root, under fixed paths.

Paths inside never depend on where the checkout or the cache is: compilers put
paths into what they build, and caches must survive being shared.
"""

import os
import shlex
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def unshare():
    """The start of a command line that may mount, as root or as a plain user."""
    if os.geteuid() == 0:
        return ["unshare", "--mount"]
    return ["unshare", "--map-root-user", "--map-auto", "--mount"]


class Sandbox:
    """A Debian root plus the folders that a command may see in it."""

    def __init__(self, root, binds=(), readonly=()):
        self.root = Path(root)
        self.binds = dict(binds)
        self.readonly = dict(readonly)

    def with_binds(self, binds=(), readonly=()):
        """The same root with more folders."""
        return Sandbox(self.root, {**self.binds, **dict(binds)},
                       {**self.readonly, **dict(readonly)})

    def argv(self, command, cwd="/", env=()):
        """The command line that runs a command inside."""
        lines = ["set -e"]
        for name in ("proc", "dev"):
            lines.append(f"mount --rbind /{name} {shlex.quote(str(self.root / name))}")
        lines.append(f"mount -t tmpfs tmpfs {shlex.quote(str(self.root / 'tmp'))}")
        for inside, outside in {**self.binds, **self.readonly}.items():
            target = self.root / inside.lstrip("/")
            source, place = shlex.quote(str(outside)), shlex.quote(str(target))
            make = "mkdir -p" if Path(outside).is_dir() else "touch"
            lines.append(f"mkdir -p {shlex.quote(str(target.parent))}; {make} {place}")
            lines.append(f"mount --bind {source} {place}")
            if inside in self.readonly:
                lines.append(f"mount -o remount,bind,ro {place}")
        settings = {"HOME": "/root", "PATH": PATH, "LC_ALL": "C.UTF-8",
                    "TERM": os.environ.get("TERM", "dumb"), **dict(env)}
        lines.append(" ".join(
            ["exec chroot", shlex.quote(str(self.root)), "env -i"]
            + [shlex.quote(f"{k}={v}") for k, v in settings.items()]
            + ["sh -c 'cd \"$0\" && exec \"$@\"'", shlex.quote(cwd), '"$@"']))
        return [*unshare(), "sh", "-c", "\n".join(lines), "sandbox", *map(str, command)]
