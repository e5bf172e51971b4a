# SPDX-License-Identifier: GPL-2.0
"""The Debian package of p2p, for machines that have no lab."""

import gzip
import hashlib
import re
import shutil
import tomllib

from build import cache, programs, tree

# One program is static; the other one needs libibverbs, of which an operator of RDMA has it.
NAME = "p2p"
WITH_VERBS = "p2p-rdma"
# What the programs do, how to use both on a real machine, and the terms.
PAGES = (f"{programs.TOOL}/README.rst", f"{programs.TOOL}/real-machine.rst",
         "Documentation/gpu/peer-to-peer-terms.rst")
FIGURE = re.compile(r"^\s*\.\. kernel-figure:: (\S+)$", re.M)
# The bytes of a package depend on nothing but those in it.
BUILD = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build"]
ENV = {"SOURCE_DATE_EPOCH": str(tree.BEGIN)}
CONTROL = """\
Package: {name}
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {size}
Recommends: libibverbs1, ibverbs-providers
Section: admin
Priority: optional
Description: {about}
 The program p2p shows how each GPU, NIC and drive of a machine reaches the memory
 of each other one, what decides, and what to do about it. It runs on any Linux.
 .
 The program p2p-rdma registers memory of devices with an RDMA device, moves data
 between them, and compares every byte. It needs libibverbs1.
"""
COPYRIGHT = """\
Copyright: the vvram authors

License: GPL-2.0-only. On Debian systems the text of the licence is in
/usr/share/common-licenses/GPL-2.
"""
HINT = "the log names the file: fix it"


def ensure(steps, box, repo):
    """Build the programs and make the package; return its path."""
    folder = cache.base() / "package-p2p"
    with steps.step("package p2p") as step:
        built = [programs.cargo(step, box, repo, "build", HINT, "--bin", name, crate=crate) / name
                 for name, crate in ((NAME, programs.TOOL), (WITH_VERBS, programs.CRATE))]
        shutil.rmtree(folder, ignore_errors=True)
        name = stage(folder / "tree", repo, built)
        step.run([*BUILD, "/build/package/tree", f"/build/package/{name}"], "see the log",
                 box.with_binds({"/build/package": folder}), env=ENV)
    return folder / name


def program(package):
    """The program p2p of which the package was made."""
    return package.parent / "tree/usr/bin" / NAME


def documents(repo):
    """The pages that the package has, and the figures in them."""
    pages = [repo / page for page in PAGES]
    return [*pages, *(page.parent / name for page in pages
                      for name in FIGURE.findall(page.read_text()))]


def stage(folder, repo, built):
    """Lay out in a folder what the package has; return the name of the package."""
    crate = repo / programs.TOOL
    docs = folder / f"usr/share/doc/{NAME}"
    manual = folder / f"usr/share/man/man1/{NAME}.1.gz"
    for path in (folder / "DEBIAN", folder / "usr/bin", docs, manual.parent):
        path.mkdir(parents=True)
    for program in built:
        _put(folder / "usr/bin" / program.name, program.read_bytes(), 0o755)
    _put(manual, gzip.compress((crate / f"{NAME}.1").read_bytes(), mtime=0))
    for page in documents(repo):
        _put(docs / page.name, page.read_bytes())
    _put(docs / "copyright", COPYRIGHT.encode())
    files = sorted(path for path in (folder / "usr").rglob("*") if path.is_file())
    package = tomllib.loads((crate / "Cargo.toml").read_text())["package"]
    control = CONTROL.format(name=NAME, version=package["version"], maintainer=tree.NOBODY,
                             about=package["description"],
                             size=sum(-(-path.stat().st_size // 1024) for path in files))
    _put(folder / "DEBIAN/control", control.encode())
    _put(folder / "DEBIAN/md5sums", "".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        for path in files).encode())
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        path.chmod(0o755)
    return f"{NAME}_{package['version']}_amd64.deb"


def _put(path, content, mode=0o644):
    path.write_bytes(content)
    path.chmod(mode)
