//! System calls by number are as those by name.

use crate::common;
use crate::effort::skip;

cases! { "by_number.c", &[]; maps descriptors children signals rings; kernel }

/// With a cache for all of the file, so that nothing is saved before the program is executed.
#[test]
fn programs() {
    common::case_with("by_number.c", &[], "programs", true, &[("FASTMAP_CACHE", "16MiB")]);
}

/// Memory that is handed to the kernel or to a guest for good is the kernel's from then on: they see one file with the program.
#[test]
fn handed_over() {
    if !common::ready() {
        return;
    }
    for case in ["registered", "guest"] {
        for library in [None, Some(common::library())] {
            let folder = common::folder();
            let exe = common::compile(folder.path(), "by_number.c", &[]);
            let output = common::command(&exe, library, &[]).arg(case).arg(folder.path().join("data")).output();
            let output = output.expect("timeout");
            common::expect_success(case, &output);
            for line in String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.starts_with("no ")) {
                skip(line);
            }
        }
    }
}
