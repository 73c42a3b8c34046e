//! Other processes see the files as the program left them, and closing what is open does no harm.

mod common;

cases! {
    "process.c", &["-ldl"];
    fork_child fork_one_file fork_calls fork_exec_only fork_orphans fork_and_stir fork_and_wait clone_child fork_in_threads programs execs ends killed closing record_locks own_table in_background;
    kernel
}

/// A library that is loaded with dlopen(3) maps files as the program does.
#[test]
fn loaded() {
    let folder = common::folder();
    let library = common::compile(folder.path(), "loaded.c", &["-shared", "-fPIC"]);
    // SAFETY: nothing else in this process reads or changes the environment at the same time: the variable is set before
    // the case's processes are made, and by this test only.
    unsafe { std::env::set_var("LOADED", library) };
    common::case("process.c", &["-ldl"], "loaded", true);
}

/// Whoever registers handlers around fork(2) first, the maps are there in all of them.
#[test]
fn handlers() {
    let folder = common::folder();
    let library = common::compile(folder.path(), "atfork_library.c", &["-shared", "-fPIC"]);
    common::case("atfork.c", &["-Wl,--no-as-needed", library.to_str().expect("a plain path")], "handlers", true);
}
