//! System calls by number are as those by name.

use crate::common;

cases! { "by_number.c", &[]; maps descriptors children signals; kernel }

/// With a cache for all of the file, so that nothing is saved before the program is executed.
#[test]
fn programs() {
    common::case_with("by_number.c", &[], "programs", true, &[("FASTMAP_CACHE", "16MiB")]);
}
