//! Looks at programs, mostly by /proc: a file for each interface.

mod asked;
mod at_address;
mod cached;
mod descriptor;
mod effort;
mod mapped_file;
mod mappings;
mod memory;
mod pages;
mod processes;
mod readahead;
mod rights;
pub(crate) mod text;
mod waits;

pub(crate) use asked::close_there;
pub use asked::{Answer, Asked, Device};
pub use at_address::at_address;
pub use cached::{Cached, cached, identity};
pub use descriptor::Descriptor;
pub use effort::{Effort, Spent};
pub use mapped_file::Key;
pub(crate) use mapped_file::{AGAIN, open_found, open_only};
pub use mappings::{Flags, Mapping, Mappings, WORTH, are_worth};
pub use memory::{Memory, may_load, same_group};
pub use pages::{Pages, Seen};
pub use processes::{Glance, Process, glances, in_group, processes, with_children};
pub use readahead::readahead;
pub use rights::Rights;
pub use waits::{Waited, Waits};
