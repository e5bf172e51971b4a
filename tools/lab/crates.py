# SPDX-License-Identifier: GPL-2.0
"""Debian's copies of the crates that programs use: nothing comes from the registry of crates.

They are not part of the toolchain root, because a new crate must not cause a new kernel build.
"""

import shutil

import cache
import debianroot
import host
import toolchain

# The folder in which cargo finds them.
REGISTRY = "/build/registry"
# All crates that a lock file names, also those that are never built for this machine. Dependencies
# of the packages are ignored, because they include those of every feature.
PACKAGES = """
librust-adler-dev librust-anstyle-dev librust-clap-builder-dev librust-clap-dev
librust-clap-lex-dev librust-clap-mangen-dev librust-itoa-dev librust-libc-dev librust-memchr-dev
librust-miniz-oxide-dev librust-proc-macro2-dev librust-quote-dev librust-roff-dev
librust-ryu-dev librust-serde-dev librust-serde-derive-dev librust-serde-json-dev librust-syn-dev
librust-unicode-ident-dev
""".split()
FETCH = """
set -e
mkdir -p /tmp/lists/partial /tmp/cache/archives/partial /tmp/root
sed -n "/ $0 /p" /etc/apt/sources.list >/tmp/sources.list
apt() {
	apt-get -o Dir::State::Lists=/tmp/lists -o Dir::Cache=/tmp/cache \\
		-o Dir::Etc::SourceList=/tmp/sources.list -o Dir::Etc::SourceParts=- \\
		-o APT::Sandbox::User=root "$@"
}
apt update
cd /tmp
apt download "$@"
for package in ./*.deb; do
	dpkg-deb -x "$package" /tmp/root
done
cp -rL /tmp/root/usr/share/cargo/registry/. /build/crates
"""
KEY = cache.digest(toolchain.SUITES[0], PACKAGES, FETCH)


def path():
    """Where the crates are or will be."""
    return cache.base() / f"crates-{KEY}"


def ensure(steps, box):
    """Fetch the crates if they are not there."""
    final = path()
    if final.exists():
        steps.current("crates")
        return
    partial = final.with_suffix(cache.PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    inside = debianroot.networked(box.with_binds({"/build/crates": partial}))
    with steps.step("crates") as step:
        host.persistently(lambda: step.run(["sh", "-c", FETCH, toolchain.SUITES[0], *PACKAGES],
                                           debianroot.HINT, inside))
        partial.rename(final)
