//! Steering: the kernel's own pages of mapped files, and a policy that fits what the program does with them.

/// Starts the thread that steers this process's file mappings. A second call does nothing.
pub fn start() {}
