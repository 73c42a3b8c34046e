//! Other processes see the files as the program left them, and closing what is open does no harm.

use crate::common;

cases! {
    "process.c", &["-ldl"];
    fork_child fork_one_file fork_calls fork_exec_only fork_orphans fork_and_stir fork_and_wait clone_child fork_in_threads programs execs ends killed killed_any_time closing record_locks whole_locks unlocked_whole gives_up_rights first_thread_ends own_table in_background owner_ends;
    kernel
}

/// A library that is loaded with dlopen(3) maps files as the program does.
#[test]
fn loaded() {
    let folder = common::folder();
    let library = common::compile(folder.path(), "loaded.c", &["-shared", "-fPIC"]);
    let variables = [("LOADED", library.to_str().expect("a plain path"))];
    common::case_with("process.c", &["-ldl"], "loaded", true, &variables);
}

/// Whoever registers handlers around fork(2) first, the maps are there in all of them.
#[test]
fn handlers() {
    let folder = common::folder();
    let library = common::compile(folder.path(), "atfork_library.c", &["-shared", "-fPIC"]);
    common::case("atfork.c", &["-Wl,--no-as-needed", library.to_str().expect("a plain path")], "handlers", true);
}
