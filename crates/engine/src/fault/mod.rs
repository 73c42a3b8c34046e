//! One page fault, from trap to return.
//!
//! Owns the SIGBUS handler, the decision by the page's word, the load of a page, service threads and poison. May call:
//! `readahead` and the rooms above it.
//!
//! # Why it is so
//!
//! All signals are blocked: a handler of the program that interrupted this one and touched the same page would wait for
//! itself. The handler begins in registers and goes on on a stack of the engine's own size, for the stack of the thread
//! may have room for the kernel's frame and no more. Large regions are cut into stripes with a userfaultfd, and so a
//! kernel VMA and its lock, each: four a processor.
//!
//! *Service threads.* The userfaultfds are opened without SIGBUS mode and for kernel faults (a privilege; the device
//! /dev/userfaultfd is the second way). Poison and not a signal tells of a page that cannot be served: a signal sent by
//! another thread cannot say BUS_ADRERR, waits behind a mask, and would leave a system call asleep. Poison is lifted
//! after 10 ms at the latest; until then a call may fail on a page that has just come into being. Staging memory has a
//! userfaultfd of its own in SIGBUS mode, since nobody serves it. The keeper poisons what may be absent before it
//! writes: nobody would bring it in.

pub mod child;
pub mod handler;
pub mod late;
pub mod load;
pub mod poison;
pub mod serve;
pub mod service;
pub mod zero_ahead;
