# SPDX-License-Identifier: GPL-2.0
"""Debian's copies of the crates that programs use: nothing comes from the registry of crates."""

from build.packages import unpacked

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
SET = unpacked.Unpacked("crates", tuple(PACKAGES), "usr/share/cargo/registry")
