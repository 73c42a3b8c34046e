//! The kernel's path of mapped files as a model with a clock of its own. The watcher of `fastmap_steer` runs against it unchanged.
//!
//! * [`kernel`]: page cache, readahead, faults, advice.
//! * [`device`]: storage with latency, depth and bandwidth.
//! * [`workload`]: what threads touch.
//! * [`seed`]: workloads and machines by seed.
//! * [`program`]: threads that run on the model.
//! * [`steered`]: the watcher's samples and its actuator.
//! * [`policy`]: one workload as it is, with each single advice, and steered.
//!
//! The rules are Linux 6.18's unless a comment names another version. Times are in nanoseconds, sizes in pages of 4 KiB.

pub mod check;
pub mod device;
pub mod distribution;
pub mod kernel;
mod lists;
pub mod policy;
pub mod program;
pub mod random;
pub mod seed;
pub mod steered;
pub mod workload;

/// Nanoseconds.
pub type Time = u64;

/// Nanoseconds in a second.
pub const SECOND: Time = 1_000_000_000;
