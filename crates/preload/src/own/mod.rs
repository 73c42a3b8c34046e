//! What belongs to this library and not to the program: its memory, its critical sections, stacks for them, errno, the account of
//! which process has maps of the engine, and what is remembered of descriptors. Calls no other room: only the engine, the kernel, and functions of the C
//! library that are not intercepted.

pub(crate) mod allocator;
pub(crate) mod guard;
pub(crate) mod owner;
pub(crate) mod remembered;
mod sanitizers;
pub(crate) mod stack;

pub(crate) use guard::{caught, errno, set_errno, undisturbed};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
