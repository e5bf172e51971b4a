// SPDX-License-Identifier: GPL-2.0

//! Makes the bindings of libibverbs from the header that is installed.
//!
//! It runs the command bindgen, as the kernel does, because distributions package few crates.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

const HEADER: &str = "infiniband/verbs.h";
const NEEDED: &str = "bindgen, clang, lld and libibverbs-dev are needed";

fn main() {
    // Programs that do not call libibverbs must run where it is not installed. The modules of the
    // library that they link have some callers of it, which are dropped as unused code. Unlike ld,
    // lld does not count the references of code that it drops.
    println!("cargo:rustc-link-arg-bins=-fuse-ld=lld");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=/usr/include/{HEADER}");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let (header, bindings) = (
        Path::new(&out).join("verbs.h"),
        Path::new(&out).join("verbs.rs"),
    );
    fs::write(&header, format!("#include <{HEADER}>\n")).expect("OUT_DIR can be written to");
    let status = Command::new("bindgen")
        .args(["--allowlist-item", "(ibv|IBV)_.*|ib_uverbs_advise_mr_.*"])
        .args(["--no-prepend-enum-name", "--no-layout-tests"])
        .args(["--no-doc-comments", "--rust-edition", "2021"])
        .arg("--output")
        .arg(&bindings)
        .arg(&header)
        .status();
    assert!(
        status.as_ref().is_ok_and(|status| status.success()),
        "bindgen of {HEADER}: {status:?}; {NEEDED}"
    );
}
