//! The properties of a file that matter for mapping it.

use crate::error::{Error, Result};
use crate::sys::file;
use std::fs::File;

/// Looks at a file that is to be mapped.
pub fn facts_of(from: &File) -> Result<file::Facts> {
    file::facts(from).map_err(|why| match why {
        Ok(kind) => Error::NotMappable { path: file::path_of(from), kind },
        Err(source) => Error::Io { path: file::path_of(from), operation: "look at it", source },
    })
}
