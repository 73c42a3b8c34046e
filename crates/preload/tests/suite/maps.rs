//! mmap(2) and its kin on the engine's maps do what the kernel does.

use crate::common;
use crate::effort::skip;

cases! {
    "maps.c", &[];
    unmap_whole unmap_part unmap_across fixed_over fixed_under remap protect residency locking two_maps whole_calls one_stream populated
    private_beside_shared past_the_end offsets syncing large_then_small small_grows many_small
    windows windows_at_random parts_of_what_grows memory_in_a_hole beside_a_sparse_window fixed_noreplace fixed_in_another_table
    refused_of_the_engines;
    kernel refused small_then_large executable private_only
}

/// A file that was named, by which small mappings that only read are served as well.
#[test]
fn readers_grow() {
    common::case_with("maps.c", &[], "readers_grow", true, &[("FASTMAP_MAP", "data")]);
}

/// A range that is sealed is the kernel's first.
#[test]
fn sealed() {
    if !common::ready() {
        return;
    }
    // SAFETY: of no length, it seals nothing.
    if unsafe { libc::syscall(462, 0, 0, 0) } != 0 {
        return skip("this kernel has no mseal(2), which came with Linux 6.10");
    }
    for library in [None, Some(common::library())] {
        let folder = common::folder();
        let exe = common::compile(folder.path(), "maps.c", &[]);
        let output = common::command(&exe, library, &[]).arg("sealed").arg(folder.path().join("data")).output();
        common::expect_success("maps.c sealed", &output.expect("timeout"));
    }
}

/// One line says that a file ends before what is touched, and where it ends now, however often that happens.
#[test]
fn cut_by_others() {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let exe = common::compile(folder.path(), "maps.c", &[]);
    let mut command = common::command(&exe, Some(common::library()), &[]);
    let output = command.arg("cut_by_others").arg(folder.path().join("data")).output().expect("timeout");
    common::expect_success("maps.c cut_by_others", &output);
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = said.lines().filter(|line| line.contains("past the end")).collect();
    assert!(lines.len() <= 1 && lines.iter().all(|line| line.contains("5242885 bytes")), "{said}");
}
