//! System calls by number are as those by name.

mod common;

cases! { "by_number.c", &[]; maps descriptors children programs signals; kernel }
