# SPDX-License-Identifier: GPL-2.0
"""Makes Debian roots: the toolchain's and the guest's."""

import os
import shlex

from build import cache, host, processes, sandbox
from build.steps import LabError

HINT = ("see the log; if a download failed, run again or name another mirror with MIRROR=, "
        "if a package is missing, the mirror is too old or too new for this list")


def tools(steps, title, final, suites, apt_arguments, foreign=()):
    """Make a root at final if there is none; return a sandbox in it."""
    if final.exists():
        steps.current(title)
    else:
        with steps.step(title) as step:
            partial = final.with_suffix(cache.PARTIAL)
            build(step, partial, suites, apt_arguments, foreign=foreign)
            partial.rename(final)
    return sandbox.Sandbox(final)


def build(step, dest, suites, apt_arguments, preferences="", foreign=()):
    """Make a root of suites[0] in dest, then install packages from any of the suites.

    There may be packages of foreign architectures as well.

    mmdebstrap writes a tar that is unpacked here, so that files belong to the
    ids of our own namespace whether or not we are root.
    """
    mirror = host.mirror(*suites)
    # The roots are caches, which are made as a whole: syncing each file to disk only costs time.
    _bootstrap(step, dest, suites[0], mirror, "--variant=apt", "--dpkgopt=force-unsafe-io",
               *([f"--architectures={','.join(('amd64', *foreign))}"] if foreign else []))
    (dest / "etc/apt/sources.list").write_text(
        "".join(f"deb {mirror} {suite} main\n" for suite in suites))
    (dest / "etc/apt/preferences.d/lab").write_text(preferences)
    box = networked(sandbox.Sandbox(dest), mirror)
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    host.persistently(lambda: step.run(["apt-get", "update", "--error-on=any"], HINT, box))
    host.persistently(lambda: step.run(["apt-get", "install", "-y", "--no-install-recommends",
                                        *apt_arguments], HINT, box, env=env))
    step.run(["sh", "-c", "apt-get clean && rm -rf /var/lib/apt/lists/*"], HINT, box)


def extract(step, dest, suite, architecture, packages):
    """Unpack packages, and those they depend on, in dest. No script of theirs runs, since this
    machine cannot run their programs. No package counts as essential.
    """
    _bootstrap(step, dest, suite, host.mirror(suite), "--variant=extract",
               f"--architectures={architecture}", f"--include={','.join(packages)}")


def _bootstrap(step, dest, suite, mirror, *arguments):
    options = [*host.apt_options(mirror), host.RETRIES, 'Acquire::Check-Valid-Until "false";',
               'Acquire::Languages "none";']
    debstrap = [*sandbox.LEASH, "mmdebstrap", "--format=tar",
                *[f"--aptopt={o}" for o in options],
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                *arguments, suite, "-", mirror]
    unpack = [*sandbox.unshare(), "tar", "-x", "-p", "--numeric-owner",
              "--exclude=./dev/*", "-C", dest]

    def bootstrap():
        remove(dest)
        dest.mkdir(parents=True)
        step.run(["bash", "-c", f"set -o pipefail; {_quoted(debstrap)} | {_quoted(unpack)}"], HINT)

    host.persistently(bootstrap)


def networked(box, mirror=None):
    """A sandbox in a root whose apt reaches the mirror: the one it was made from, if none is given."""
    if not mirror:
        mirror = (box.root / "etc/apt/sources.list").read_text().split()[1]
    return box.with_binds(readonly={file: file for file in (
        "/etc/resolv.conf", "/etc/hosts", *host.certificates(host.apt_options(mirror)))})


def remove(folder):
    """Remove a folder, in a namespace that owns all of its files.

    It is renamed first, because a folder that is removed in part must not be used as a whole one.
    """
    if not os.path.lexists(folder):
        return
    if folder.suffix != cache.PARTIAL:
        partial = folder.with_name(f"{folder.name}{cache.PARTIAL}")
        remove(partial)
        folder = folder.rename(partial)
    if processes.run([*sandbox.unshare(), "rm", "-rf", "--one-file-system", folder]):
        raise LabError(f"{folder} cannot be removed", "see whether something is mounted in it")


def sweep(steps):
    """Remove folders that interrupted runs have made or removed in part only."""
    left = sorted(cache.base().glob(f"*{cache.PARTIAL}"))
    if left:
        with steps.step("remove what an interrupted run left"):
            for path in left:
                remove(path)


def _quoted(argv):
    return " ".join(shlex.quote(str(a)) for a in argv)
