//! Descriptors' numbers that become other files, and several descriptors of one.

cases! { "descriptors.c", &[]; reused mapped_later tables shared_memory two_descriptors one_position; kernel }
