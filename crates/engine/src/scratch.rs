//! What can be done with memory that only borrows a file's space (`contents.rs`), beside using it.

use crate::error::Result;
use crate::fault::unclaim;
use crate::region::Region;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, file};
use crate::writers;
use std::fs::File;
use std::ops::Range;

/// Has a page of a scratch region that is not in memory be zeros; false: it is in memory, or on its way.
pub fn clear_absent(region: &Region, page: usize) -> bool {
    let Some(contents) = region.scratch() else { return false };
    let word = region.word(page);
    let _blocked = Blocked::all();
    let claimed = word.begin_load(word.look());
    if claimed {
        contents.forget(page..page + 1);
        unclaim(region, page);
    }
    claimed
}

/// Copies pages of a scratch region to the same places of a file that has holes there.
pub fn snapshot(region: &Region, pages: Range<usize>, to: &File) -> Result<()> {
    let (Some(contents), Some(from)) = (region.scratch(), region.store().writer()) else { return Ok(()) };
    // A clean page is what the file has, or zeros, or of no use to anybody.
    writers::write_out(region, pages.clone())?;
    let mut rest = pages;
    while let Some(run) = contents.run_from(rest.clone()) {
        rest.start = run.end;
        file::copy_range(from, to, run.start as u64 * PAGE as u64, run.len() * PAGE)
            .map_err(|source| region.io_error("copy it for a child (copy_file_range)", source))?;
    }
    Ok(())
}
