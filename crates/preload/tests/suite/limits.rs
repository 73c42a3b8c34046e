//! Limits of a process do not hold for what the engine does in its place.

cases! {
    "limits.c", &[];
    file_size stack_size;
    kernel
}
