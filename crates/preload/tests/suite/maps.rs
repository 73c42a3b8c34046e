//! mmap(2) and its kin on the engine's maps do what the kernel does.

use crate::common;

cases! {
    "maps.c", &[];
    unmap_whole unmap_part unmap_across fixed_over fixed_under remap protect residency locking two_maps whole_calls one_stream
    private_beside_shared past_the_end offsets syncing large_then_small small_grows many_small
    windows parts_of_what_grows memory_in_a_hole;
    kernel refused small_then_large executable private_only
}

/// A file that was named, by which small mappings that only read are served as well.
#[test]
fn readers_grow() {
    common::case_with("maps.c", &[], "readers_grow", true, &[("FASTMAP_MAP", "data")]);
}
