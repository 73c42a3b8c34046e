//! Programs that count their threads, or enter a sandbox, do so as without the engine.

use crate::common;

/// The cache holds the file: a thread of the program's that has to write pages back for want of room may be given a thread by
/// the kernel (io_uring), which stays, and counts.
fn case(name: &str) {
    common::case_with("alone.c", &[], name, true, &[("FASTMAP_CACHE", "16MiB")]);
}

macro_rules! cases {
    ($($name:ident)*) => { $(#[test] fn $name() { case(stringify!($name)); })* };
}

cases! { counts many namespaces processes sandbox child_in_sandbox probes }
