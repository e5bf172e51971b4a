# SPDX-License-Identifier: GPL-2.0
"""Makes Debian roots: the toolchain's and the guest's."""

import shlex
import shutil
import subprocess

import host
import sandbox

HINT = ("see the log; if a download failed, run again or name another mirror with MIRROR=, "
        "if a package is missing, the mirror is too old or too new for this list")


def build(step, dest, suites, apt_arguments, preferences=""):
    """Make a root of suites[0] in dest, then install packages with the other suites known too.

    mmdebstrap writes a tar that is unpacked here, so that files belong to the
    ids of our own namespace whether or not we are root.
    """
    remove(dest)
    dest.mkdir(parents=True)
    mirror = host.mirror(*suites)
    options = [*host.apt_options(mirror), 'Acquire::Check-Valid-Until "false";',
               'Acquire::Languages "none";']
    # The roots are caches, made in one go: syncing each file to disk only costs time.
    debstrap = ["mmdebstrap", "--variant=apt", "--format=tar",
                *[f"--aptopt={o}" for o in options],
                "--dpkgopt=force-unsafe-io",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                suites[0], "-", mirror]
    unpack = [*sandbox.unshare(), "tar", "-x", "-p", "--numeric-owner",
              "--exclude=./dev/*", "-C", dest]
    step.run(["bash", "-c", f"set -o pipefail; {_quoted(debstrap)} | {_quoted(unpack)}"], HINT)
    (dest / "etc/apt/sources.list").write_text(
        "".join(f"deb {mirror} {suite} main\n" for suite in suites))
    (dest / "etc/apt/preferences.d/lab").write_text(preferences)
    box = networked(sandbox.Sandbox(dest), mirror)
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    step.run(["apt-get", "update"], HINT, box)
    step.run(["apt-get", "install", "-y", "--no-install-recommends", *apt_arguments], HINT,
             box, env=env)
    step.run(["sh", "-c", "apt-get clean && rm -rf /var/lib/apt/lists/*"], HINT, box)


def networked(box, mirror=None):
    """A sandbox in a root whose apt reaches the mirror: the one it was made from, if none is given."""
    if not mirror:
        mirror = (box.root / "etc/apt/sources.list").read_text().split()[1]
    return box.with_binds(readonly={file: file for file in (
        "/etc/resolv.conf", "/etc/hosts", *host.certificates(host.apt_options(mirror)))})


def remove(folder):
    """Remove a root, in a namespace that owns all of its files."""
    if folder.exists():
        subprocess.run([*sandbox.unshare(), "rm", "-rf", "--one-file-system", folder], check=True)
    assert not folder.exists()


def publish(partial, final):
    """Give a complete root its name; a root under its final name is always complete."""
    if final.exists():
        remove(final)
    shutil.move(partial, final)


def _quoted(argv):
    return " ".join(shlex.quote(str(a)) for a in argv)
