//! One page fault, from trap to return.
//!
//! Owns the SIGBUS handler, the decision by the page's word, the load of a page, service threads and poison. May call:
//! `readahead` and the rooms above it.
//!
//! # Why it is so
//!
//! *All signals are blocked.* A handler of the program could otherwise interrupt this one, touch the same page, and wait
//! for the thread that it interrupted.
//!
//! *The handler has a stack of the engine's own size.* The thread's stack may have room for the kernel's frame and no
//! more, so the handler uses registers alone until it has changed stacks.
//!
//! *Large regions are cut into stripes*, four a processor. Each has its own userfaultfd, and so its own VMA in the
//! kernel, with its own lock.
//!
//! *Service threads.* Their userfaultfds are opened without SIGBUS mode, and for faults inside the kernel. This takes a
//! privilege, or access to /dev/userfaultfd. A page that cannot be served is poisoned. A signal would not do: one that
//! another thread sends cannot say BUS_ADRERR, waits while it is masked, and leaves a system call asleep. Poison is
//! lifted after 10 ms at the latest; until then a system call may fail on a page that has just come into being. Staging
//! memory has a userfaultfd of its own in SIGBUS mode, since nobody serves it. The keeper poisons pages that may be
//! absent before it writes, since nobody would bring them in.

pub mod child;
pub mod handler;
pub mod late;
pub mod load;
pub mod poison;
pub mod serve;
pub mod service;
pub mod zero_ahead;
