#![doc = include_str!("../README.md")]
// Loom's models replace `sys` by their own.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("fastmap-tier needs Linux on x86-64, as fastmap-io does");

mod asking;
mod error;
mod local;
mod object;
mod origin;
mod room;
mod sys;
mod tier;
mod version;

pub use asking::{Asking, Request};
pub use error::{Error, Result};
pub use local::{Local, LocalStats, UnitLock};
pub use origin::TierOrigin;
pub use tier::{Listed, Tier, Verified};
pub use version::Version;

/// Bytes of a unit: the part of an object that a local copy has or lacks as a whole. An object's last unit ends with the object.
pub const UNIT: u64 = 256 << 10;
