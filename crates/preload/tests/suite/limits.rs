//! Limits of a process do not hold for what the engine does in its place; and where there is no room for the engine, the kernel has the file.

cases! {
    "limits.c", &[];
    file_size stack_size memory mappings;
    kernel
}
