//! Programs that count their threads, or enter a sandbox, do so as without the engine.

mod common;

cases! {
    "alone.c", &[];
    counts many namespaces processes sandbox child_in_sandbox;
    kernel
}
