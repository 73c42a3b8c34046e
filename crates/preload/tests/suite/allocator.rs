//! The library's own memory is not the program's malloc(3).

cases! { "allocator.c", &["-fno-builtin"]; extents children; kernel }
