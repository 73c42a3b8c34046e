//! Memory of a mapped file, handed to whatever the C library takes a pointer for: what is absent, or crosses a page's border, is
//! read and filled like any other. `programs/io.c` has the checks.

use crate::common;

/// Runs one case on the kernel's map, and on the engine's with a cache of 32 pages.
fn io(case: &str) {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let program = common::compile(folder.path(), "io.c", &["-Wno-unused-result"]);
    for library in [None, Some(common::library())] {
        let place = folder.path().join(if library.is_some() { "served" } else { "kernel" });
        std::fs::create_dir(&place).expect("a folder");
        let mut command = common::command(&program, library, &[("FASTMAP_CACHE", "128KiB")]);
        command.arg(case).arg(place.join("data"));
        let what = format!("{case} {}", if library.is_some() { "with the library" } else { "on the kernel" });
        common::expect_success(&what, &command.output().expect("timeout"));
    }
}

macro_rules! cases {
    ($($case:ident)*) => { $(
        #[test]
        fn $case() {
            io(stringify!($case));
        }
    )* };
}

cases! { absent files pipes sockets waiting paths system_calls futexes streams flushing printing interruptions }
