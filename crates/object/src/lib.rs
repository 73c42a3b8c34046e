#![doc = include_str!("../README.md")]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("fastmap-object needs Linux on x86-64, as fastmap-io does");

mod aws;
mod client;
mod error;
mod fetch;
mod object;
mod plan;
mod process;
mod serve;
mod times;
mod url;

pub use error::{Error, Result};
pub use object::{Object, ObjectMap, ObjectOptions, ObjectStats, serve};
pub use url::shown;
