//! Looks at programs, mostly by /proc: a file for each interface.

mod at_address;
mod cached;
mod descriptor;
mod effort;
mod mappings;
mod memory;
mod pages;
mod processes;
mod readahead;
mod rights;
pub(crate) mod text;
mod waits;

pub use at_address::at_address;
pub use cached::{Cached, cached, identity};
pub use descriptor::{Descriptor, close_descriptors};
pub use effort::{Effort, Spent, is_alone};
pub use mappings::{Flags, Mapping, Mappings, WORTH, are_worth, has_library};
pub use memory::{Memory, same_group};
pub use pages::{Pages, Seen};
pub use processes::{Glance, Process, glances, in_group, processes, with_children};
pub use readahead::readahead;
pub use rights::Rights;
pub use waits::{Waited, Waits};
