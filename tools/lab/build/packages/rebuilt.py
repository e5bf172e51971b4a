# SPDX-License-Identifier: GPL-2.0
"""Builds sources of Debian packages again, with patches of this repository."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from build import cache, debianroot, host, toolchain

# The signed index of the sources has the paths and the digests of the files. They are fetched one
# by one, because a mirror may lack the description of a source package, which is not needed here.
FETCH = """
set -e
mkdir -p /tmp/lists/partial /tmp/cache/archives/partial
sed -n "s/^deb \\(.* $1 .*\\)/deb-src \\1/p" /etc/apt/sources.list >/tmp/sources.list
sources() {
	apt-get -o Dir::State::Lists=/tmp/lists -o Dir::Cache=/tmp/cache \\
		-o Dir::Etc::SourceList=/tmp/sources.list -o Dir::Etc::SourceParts=- "$@"
}
sources update
sources source --print-uris --only-source "$0" >/tmp/uris
cd /tmp
grep "^'" /tmp/uris | grep -v '\\.dsc ' | while read -r uri file _ digest; do
	uri=${uri#?}
	/usr/lib/apt/apt-helper download-file "${uri%?}" "$file" "$digest"
done
tar -x --strip-components=1 -C /build/source -f ./*.orig.tar.*
tar -x -C /build/source -f ./*.debian.tar.*
cd /build/source
test ! -e debian/patches/series || sed 's/#.*//' debian/patches/series | while read -r name _; do
	test -z "$name" || patch -p1 -i "debian/patches/$name"
done
"""
APPLY = 'for patch in /build/patches/*.patch; do patch -p1 --fuzz=0 -i "$patch" || exit; done'


@dataclass(frozen=True)
class Package:
    """A source package, a folder with patches, and how it is built.

    The commands run in the folder of the source. The outputs are patterns of
    the files and folders to keep.
    """

    name: str
    patches: Path
    commands: str
    outputs: tuple
    includes: Path = None        # more headers, in /build/include

    def complete(self, folder):
        """Whether a folder has every output."""
        return all(any(folder.glob(Path(output).name)) for output in self.outputs)


def ensure(steps, box, package):
    """Build a package unless it is there; return the folder of its outputs."""
    patches = sorted(package.patches.glob("*.patch"))
    headers = cache.digest_tree(package.includes) if package.includes else ""
    key = cache.digest(package.name, toolchain.KEY, FETCH, package.commands, package.outputs,
                       headers, *[part for patch in patches for part in (patch.name, patch)])
    final = cache.base() / f"{package.name}-{key}"
    if package.complete(final):
        steps.current(package.name)
        return final
    shutil.rmtree(final, ignore_errors=True)
    partial = final.with_suffix(cache.PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    folders = {name: partial / name for name in ("source", "work", "out")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    inside = box.with_binds({f"/build/{name}": folder for name, folder in folders.items()},
                            readonly={"/build/patches": package.patches,
                                      **({"/build/include": package.includes}
                                         if package.includes else {})})
    with steps.step(package.name) as step:
        host.persistently(lambda: step.run(["sh", "-c", FETCH, package.name, toolchain.SUITES[0]],
                                           debianroot.HINT, debianroot.networked(inside)))
        step.run(["sh", "-c", APPLY], "the source package is another one than the patches are "
                 f"for: refresh {package.patches}", inside, cwd="/build/source")
        keep = f"cp -rL {' '.join(package.outputs)} /build/out"
        for commands in (package.commands, keep):
            step.run(["sh", "-ec", commands], "the log names the file", inside,
                     cwd="/build/source")
        folders["out"].rename(final)
        shutil.rmtree(partial)
    return final
