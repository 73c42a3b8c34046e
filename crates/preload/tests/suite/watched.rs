//! When the thread begins that looks after mappings of the kernel's, and what the program itself advises.

use crate::common;

fn case(name: &str) {
    common::case_with("watched.c", &[], name, false, &[("FASTMAP_CACHE", "auto")]);
}

macro_rules! cases {
    ($($name:ident)*) => { $(#[test] fn $name() { case(stringify!($name)); })* };
}

cases! { little much adds_up grows nothing children advice }
