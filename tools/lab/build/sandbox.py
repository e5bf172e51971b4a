# SPDX-License-Identifier: GPL-2.0
"""Runs commands inside a Debian root, under fixed paths.

Paths inside never depend on where the checkout or the cache is: compilers put
paths into what they build, and caches must survive being shared.
"""

import os
import shlex
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# Kills the command behind it when the thread that started it is gone.
LEASH = ["setpriv", "--pdeathsig", "KILL"]
# The first process of a namespace: it reaps orphans, and when it ends, all other processes end. The
# command must not be the last one of the script: it would become the first process itself, which
# ignores signals.
FIRST = ["sh", "-c", '"$@"; exit "$?"', "first"]


def unshare():
    """The start of a command line that may mount, as root or as a plain user.

    All its processes end when the process that started it ends, however that happens: the leash
    kills unshare, unshare kills the first process of the namespace, and that kills all others. The
    kernel may reset the leash when a process gets new credentials, so the leash comes after the
    user namespace is set up.
    """
    user = [] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--map-auto"]
    return [*user, *LEASH, "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"]


def contained(command):
    """The command line that runs a command outside of any root, and contains its children.

    A plain user's own namespaces would be in the way of those that mmdebstrap makes: there the
    command alone is on the leash.
    """
    return [*unshare(), *FIRST, *command] if os.geteuid() == 0 else [*LEASH, *command]


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
            + ["sh -c 'cd \"$0\" && \"$@\"; exit \"$?\"'", shlex.quote(cwd), '"$@"']))
        return [*unshare(), "sh", "-c", "\n".join(lines), "sandbox", *map(str, command)]
