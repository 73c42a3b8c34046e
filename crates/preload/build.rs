//! Keeps the library's own calls away from its own wrappers.
//!
//! A preload library that exports `close` would also capture every `close` that the engine and the standard library, linked
//! into it, call themselves. The linker's `--wrap=close` makes those calls go to `__wrap_close`, which `next/mod.rs` defines as
//! the C library's; the exported `close` stays for the program. The names are those of `src/next/*.rs`.

use std::path::Path;
use std::{env, fs};

fn main() {
    // Of the crate beside this one, too, which has the same sources.
    let folder = Path::new("../preload/src/next");
    println!("cargo:rerun-if-changed={}", folder.display());
    for file in fs::read_dir(folder).expect("the folder of intercepted functions") {
        let path = file.expect("an entry").path();
        if path.ends_with("mod.rs") || path.ends_with("heap.rs") && env::var_os("CARGO_FEATURE_HEAP").is_none() {
            continue;
        }
        let text = fs::read_to_string(path).expect("a table of functions");
        for line in text.lines().filter_map(|line| line.strip_prefix("    fn ")) {
            let name = line.split('(').next().expect("a name");
            println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
        }
    }
    assert_eq!(env::var("CARGO_CFG_TARGET_ENV").as_deref(), Ok("gnu"), "the preload library is for glibc");
}
