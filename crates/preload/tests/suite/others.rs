//! Files that other processes open and map as well: what they write shows here, and what is stored here there.

use crate::common;

cases! {
    "others.c", &[];
    seen_at_once seen_soon opened_late read_late mapped_late protected_late;
    kernel open_elsewhere mapped_elsewhere mapped_before
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
            common::command(&exe, library, &[]).arg("seen_of_strangers").arg(folder.path().join("data")).output();
        common::expect_success("others.c seen_of_strangers", &output.unwrap());
    }
}
