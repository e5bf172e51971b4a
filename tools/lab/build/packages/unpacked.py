# SPDX-License-Identifier: GPL-2.0
"""Debian packages that are unpacked beside the toolchain root, since one more of them must not make
the root, and with it the kernel, anew.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from build import cache, debianroot, host, toolchain

# Dependencies of the packages are not looked at.
FETCH = """
set -e
mkdir -p /tmp/lists/partial /tmp/cache/archives/partial /tmp/root
sed -n "/ $0 /p" /etc/apt/sources.list >/tmp/sources.list
apt() {
	apt-get -o Dir::State::Lists=/tmp/lists -o Dir::Cache=/tmp/cache \\
		-o Dir::Etc::SourceList=/tmp/sources.list -o Dir::Etc::SourceParts=- \\
		-o APT::Sandbox::User=root "$@"
}
folder=$1
shift
apt update
cd /tmp
apt download "$@"
for package in ./*.deb; do
	dpkg-deb -x "$package" /tmp/root
done
# A link may lead to a package that is not here.
find -L "/tmp/root/$folder" -type l -delete
cp -rL "/tmp/root/$folder/." /build/unpacked
"""


@dataclass(frozen=True)
class Unpacked:
    """A name, packages, and the folder of theirs that is kept."""

    name: str
    packages: tuple
    folder: str

    @property
    def key(self):
        """The digest of the inputs."""
        return cache.digest(toolchain.SUITES[0], self.packages, self.folder, FETCH)

    def path(self) -> Path:
        """Where they are or will be."""
        return cache.base() / f"{self.name}-{self.key}"

    def ensure(self, steps, box):
        """Fetch them if they are not there."""
        final = self.path()
        if final.exists():
            steps.current(self.name)
            return
        partial = final.with_suffix(cache.PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        inside = debianroot.networked(box.with_binds({"/build/unpacked": partial}))
        with steps.step(self.name) as step:
            host.persistently(lambda: step.run(
                ["sh", "-c", FETCH, toolchain.SUITES[0], self.folder, *self.packages],
                debianroot.HINT, inside))
            partial.rename(final)
