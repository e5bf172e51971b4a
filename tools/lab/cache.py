# SPDX-License-Identifier: GPL-2.0
"""Where the lab keeps what it builds, and how it knows what is still good.

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


def write_if_changed(path, content, mode=0o644):
    """Write a file only if it differs, since make and cargo go by the mtime."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == content \
            and (path.stat().st_mode & 0o777) == mode:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.write_bytes(content)
    path.chmod(mode)
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
        return self.path.is_file() and self.path.read_text() == key

    def clear(self):
        """Forget the last result."""
        self.path.unlink(missing_ok=True)

    def set(self, key):
        """Record that the work is complete."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(key)


@contextlib.contextmanager
def lock(on_wait):
    """Hold the caches for one run; on_wait(pid) is called if another run has them."""
    base().mkdir(parents=True, exist_ok=True)
    with open(base() / "lock", "a+", encoding="ascii") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            f.seek(0)
            on_wait(f.read().strip() or "unknown")
            fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        f.truncate()
        f.write(str(os.getpid()))
        f.flush()
        yield
