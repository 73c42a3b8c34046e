//! One mapped file: its addresses, its page words, what is known of it, and how a page comes into its memory.
//!
//! Owns [`region::Region`] and its parts, and the registry that finds a region by address, by number or by file. May call: `sys`,
//! `page`, `counters`, `store`, `pool`.

pub mod address;
pub mod arrivals;
pub mod by_file;
pub mod extents;
pub mod frames;
pub mod hints;
pub mod holes;
pub mod in_flight;
pub mod install;
pub mod page_ref;
pub mod prediction;
pub mod reach;
#[allow(clippy::module_inception)] // the room is named after the type that it is about
pub mod region;
pub mod registry;
pub mod report;
pub mod saved;
pub mod seats;
pub mod space;
pub mod store_groups;
pub mod userfaultfds;
pub mod write_state;
