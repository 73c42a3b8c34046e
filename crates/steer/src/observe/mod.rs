//! What /proc shows of a program, one reader each.

mod descriptor;
mod effort;
mod mappings;
mod memory;
mod pages;
mod readahead;
mod rights;
mod text;

pub use descriptor::Descriptor;
pub use effort::{Effort, Spent};
pub use mappings::{Flags, Mapping, Mappings, has_library};
pub use memory::Memory;
pub use pages::{Pages, Seen};
pub use readahead::readahead;
pub use rights::Rights;
