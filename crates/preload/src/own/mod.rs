//! The library's own state: its memory, its critical sections and stacks for them, errno, which process has maps of the
//! engine, and what is known of descriptors.
//!
//! This room calls no other room. It calls the engine, the kernel (`kernel.rs`), and functions of the C library that are not intercepted.

pub(crate) mod allocator;
pub(crate) mod guard;
pub(crate) mod kernel;
pub(crate) mod owner;
pub(crate) mod remembered;
mod sanitizers;
pub(crate) mod stack;

pub(crate) use guard::{caught, errno, set_errno, undisturbed};

/// The size of a page, bytes.
pub(crate) const PAGE: usize = 4096;
