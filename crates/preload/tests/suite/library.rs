//! A library under test, built first: cargo builds no cdylib for tests of its package.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library of a package. The Makefile has built it already, with all that is installed, and says where (`FASTMAP_BUILT`): alone it has
/// other features, and the engine is compiled once more.
pub fn built(package: &str, file: &str) -> PathBuf {
    if let Some(built) = std::env::var_os("FASTMAP_BUILT") {
        return Path::new(&built).join(file);
    }
    let own = std::env::current_exe().expect("this executable");
    let profile = own.parent().and_then(Path::parent).expect("target/PROFILE/deps");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", package, "--target-dir"]);
    cargo.arg(profile.parent().expect("target")).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo").success(), "the library builds");
    profile.join(file)
}
