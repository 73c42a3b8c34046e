//! Steering: the kernel keeps serving a program's mapped files, with advice that fits what the program does with them.
//!
//! A *watcher* does three things by turns:
//! * It looks at which pages of the program's file mappings were touched ([`observe`]).
//! * It asks the patterns what was touched in which order, and what would help (`patterns/`, a file each).
//! * It tells the kernel ([`act`]): do not read around a miss, read this ahead, drop that.
//!
//! The mappings stay the kernel's, so nothing can be lost. Steering changes how long a program takes, and nothing else.
//!
//! A watcher runs in one of two places:
//! * a thread of a program that asked for it ([`start`]);
//! * a thread of another process ([`attach`]).
//!
//! [`warm`] stands apart from the watcher: it remembers which pages of files are in memory, and reads them back later.

pub mod act;
pub mod attach;
pub mod classify;
mod clock;
mod given;
mod inside;
mod mapping;
pub mod observe;
mod patterns;
mod program;
mod report;
pub mod requirements;
mod run;
mod sampler;
mod sampling;
mod settings;
mod trial;
pub mod warm;
mod watcher;

pub use act::Advice;
pub use clock::processor_time;
pub use given::{Image, Ledger};
pub use inside::{report, start, start_here};
pub use report::Report;
pub use run::Run;
pub use sampler::{Sampler, Samples};
pub use sampling::Looks;
pub use settings::Settings;
pub use watcher::Watcher;

/// Bytes in a page.
pub(crate) const PAGE: u64 = 4096;
