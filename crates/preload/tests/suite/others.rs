//! Files that other processes open and map as well: the engine has one while the kernel vouches that nobody writes it (a lease), or the user
//! says that only this program uses it.

use crate::common;

const NOT_OWN: [(&str, &str); 1] = [("FASTMAP_OWN", "")];

macro_rules! not_own {
    ($($case:ident: $served:literal)*) => {
        $(#[test] fn $case() { common::case_with("others.c", &[], stringify!($case), $served, &NOT_OWN); })*
    };
}

not_own! {
    seen_at_once: true
    opened_without_waiting: true
    never_stale: true
    open_here: false
    open_elsewhere: false
    mapped_elsewhere: false
    shared: false
}

cases! {
    "others.c", &[];
    one_at_a_time child_maps_anew;
    kernel killed_before
}

/// A process without privileges, and with a file that is not its own: there is no lease for it.
#[test]
fn seen_of_strangers() {
    if !common::ready() {
        return;
    }
    // Where its statistics cannot be written they say nothing: whether the engine had the file is no matter here.
    let folder = common::folder();
    let exe = common::compile(folder.path(), "others.c", &[]);
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for library in [None, Some(common::library())] {
        let output =
            common::command(&exe, library, &NOT_OWN).arg("seen_of_strangers").arg(folder.path().join("data")).output();
        common::expect_success("others.c seen_of_strangers", &output.unwrap());
    }
}

/// Once a file that its stores are the kernel's, and once that a file is the program's own.
#[test]
fn whose_a_file_is_is_said() {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let exe = common::compile(folder.path(), "others.c", &[]);
    let said = |variables: &[(&str, &str)]| {
        let mut command = common::command(&exe, Some(common::library()), variables);
        let output = command.arg("two_files").arg(folder.path().join("data")).output().expect("timeout");
        common::expect_success("two_files", &output);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
        (
            count("other programs may use it; say that only this program does (fastmap run --own)"),
            count("by this program alone (--own)"),
        )
    };
    assert_eq!(said(&[]), (0, 1));
    assert_eq!(said(&NOT_OWN), (2, 0));
    assert_eq!(said(&[("FASTMAP_OWN", "data.2")]), (1, 1));
}
