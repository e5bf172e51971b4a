# SPDX-License-Identifier: GPL-2.0
"""The caches: where the lab keeps its builds, and how it knows which of them are up to date.

Everything lives outside the checkout, in folders named after the content that
went into them, so that a second checkout finds the same folders and a changed
input finds none.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from pathlib import Path

# The end of a name as long as the content is not complete.
PARTIAL = ".partial"

_held = []


def base():
    """The folder of all caches."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "vvram-lab"


def digest(*parts):
    """A short name for some content: strings, bytes, or anything JSON can hold."""
    h = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            part = part.read_bytes()
        elif isinstance(part, str):
            part = part.encode()
        elif not isinstance(part, bytes):
            part = json.dumps(part, sort_keys=True).encode()
        h.update(len(part).to_bytes(8, "little"))
        h.update(part)
    return h.hexdigest()[:16]


def digest_tree(folder):
    """The digest of every file below a folder, names and contents."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return digest(*[x for p in files for x in (str(p.relative_to(folder)), p)])


def write(path, content, mode=0o644):
    """Write a file atomically: a reader never sees a part of it, not even after an interruption."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}{PARTIAL}")
    try:
        partial.write_bytes(content)
        partial.chmod(mode)
        partial.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_if_changed(path, content, mode=0o644):
    """Write a file only if it differs, since make and cargo go by the mtime."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == content \
            and (path.stat().st_mode & 0o777) == mode:
        return False
    write(path, content, mode)
    return True


class Stamp:
    """Remembers with which inputs a folder's content was last made.

    The stamp is cleared before the work starts: work that was interrupted is
    done again.
    """

    def __init__(self, path):
        self.path = path

    def holds(self, key):
        """Whether the work was finished with exactly these inputs."""
        return self.path.is_file() and self.path.read_bytes() == key.encode()

    def clear(self):
        """Forget the last result."""
        self.path.unlink(missing_ok=True)

    def set(self, key):
        """Record that the work is complete."""
        write(self.path, key.encode())


class Times:
    """Remembers how many seconds things took."""

    def __init__(self, path):
        self.path = path
        try:
            self.seconds = json.loads(path.read_text())
        except (OSError, ValueError):
            self.seconds = {}

    def expected(self, name):
        """Seconds that something took the last time, or infinity if it is new, so that the longest
        one, or one that may be the longest, can start first.
        """
        return self.seconds.get(name, float("inf"))

    def record(self, seconds):
        """Remember more times. If the disk is full they are lost, which is no error."""
        self.seconds.update(seconds)
        with contextlib.suppress(OSError):
            write_if_changed(self.path, json.dumps(self.seconds, sort_keys=True).encode())


@contextlib.contextmanager
def lock(on_wait):
    """Hold the caches for one run; on_wait(who) is called if they are in use.

    The commands of the run inherit the lock: it is free once the last of them is gone.
    """
    base().mkdir(parents=True, exist_ok=True)
    with open(base() / "lock", "a+b", buffering=0) as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait(_holders(f))
            fcntl.flock(f, fcntl.LOCK_EX)
        # A full disk must not prevent the removal of the caches.
        with contextlib.suppress(OSError):
            f.truncate(0)
            f.write(str(os.getpid()).encode())
        _held.append(f.fileno())
        try:
            yield
        finally:
            _held.remove(f.fileno())


def held():
    """The descriptors of the lock."""
    return tuple(_held)


def _holders(lock_file):
    """The processes that hold the lock: the run that took it, or the rest of its processes."""
    lock_file.seek(0)
    pid = lock_file.read().decode().strip()
    path = os.path.realpath(lock_file.name)
    names = {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        # Processes come and go, and processes of other users cannot be read.
        with contextlib.suppress(OSError):
            if os.readlink(link) == path:
                names[link.parts[2]] = (link.parents[1] / "comm").read_text().strip()
    names.pop(str(os.getpid()), None)
    if pid in names or not names:
        return f"another run of the lab (process {pid or 'unknown'})"
    return f"what is left of a run that was killed (process {pid}): " + ", ".join(
        f"{name} ({number})" for number, name in sorted(names.items()))
