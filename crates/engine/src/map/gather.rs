//! Copies scattered bytes of a map in one call, whoever serves it. `pin/gather.rs` does so for the cache.
//!
//! On a kernel mapping, madvise(2) (`MADV_WILLNEED`) tells the page cache which bytes are wanted next. The kernel makes
//! the copy as well, since a load past the end of a file that was cut would raise SIGBUS. Both work by address: there
//! may be no descriptor of the file any more.

use crate::error::{Error, Result};
use crate::map::mapping::{Backing, Mapping};
use crate::pin::gather::{self, HALF_WINDOW, Row};
use crate::sys::PAGE;
use crate::sys::guarded_copy::{self, MOST_RANGES};
use std::iter::Peekable;
use std::ops::Range;

impl Mapping {
    pub fn gather(&self, ranges: &[(usize, usize)], output: &mut [u8]) -> Result<()> {
        self.check(0, 0)?;
        ranges.iter().try_for_each(|(offset, len)| self.check(*offset, *len))?;
        gather::check_output(ranges.iter().map(|(_, len)| *len), output.len())?;
        let rows = |base: usize| gather::rows(ranges.iter().map(|(offset, len)| base + offset..base + offset + len));
        match &self.backing {
            Backing::Empty(_) => Ok(()),
            Backing::Cached(cached) => gather::gather(&cached.region, rows(cached.offset), output),
            Backing::Kernel(kernel) => {
                let is_in_memory = kernel.mapping.persist().is_some();
                gather_by_kernel(&rows(self.start as usize), is_in_memory, output)
            }
        }
    }
}

/// Gathers rows of memory, by address.
fn gather_by_kernel(rows: &[Row], is_in_memory: bool, output: &mut [u8]) -> Result<()> {
    let failed = |(_, error)| Error::Io {
        path: "kernel mapping".into(),
        operation: "copy part of it (EFAULT is past the file's end, or a failed read)",
        source: std::io::Error::from_raw_os_error(error),
    };
    gather::in_windows(
        rows,
        HALF_WINDOW,
        |_| !is_in_memory,
        |runs| runs.iter().for_each(will_need),
        |pieces| copy_by_kernel(&mut pieces.peekable(), &(0..usize::MAX), output).map_err(failed),
    )
}

/// Asks the kernel to read pages ahead, by their numbers in the address space. Pages that cannot be read are left to
/// the copy.
pub(crate) fn will_need(pages: &Range<usize>) {
    // SAFETY: advice that destroys nothing.
    unsafe { libc::madvise((pages.start * PAGE) as *mut _, pages.len() * PAGE, libc::MADV_WILLNEED) };
}

/// Copies pieces of memory that is not cached, as long as they begin inside `limit`. An error comes with the addresses
/// of the bytes that could not be copied.
pub(crate) fn copy_by_kernel<I>(
    pieces: &mut Peekable<I>,
    limit: &Range<usize>,
    output: &mut [u8],
) -> std::result::Result<(), (Range<usize>, i32)>
where
    I: Iterator<Item = Row>,
{
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut from, mut to) = ([nothing; MOST_RANGES / 8], [nothing; MOST_RANGES / 8]);
    let mut rows = [const { 0..0 }; MOST_RANGES / 8];
    loop {
        let mut count = 0;
        while count < from.len()
            && let Some(Row { from: piece, to: at }) = pieces.next_if(|piece| limit.contains(&piece.from.start))
        {
            let part = &mut output[at..at + piece.len()];
            from[count] = libc::iovec { iov_base: piece.start as *mut _, iov_len: piece.len() };
            to[count] = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: piece.len() };
            rows[count] = at..at + piece.len();
            count += 1;
        }
        if count == 0 {
            return Ok(());
        }
        // SAFETY: parts of the output, which is borrowed mutable.
        let mut copied = unsafe { guarded_copy::read_ranges(&from[..count], &to[..count]) };
        for (from, row) in from[..count].iter().zip(&rows) {
            // Bytes of it that were copied before are copied again.
            if copied < row.len() {
                let at = from.iov_base as usize;
                guarded_copy::read(at, &mut output[row.clone()]).map_err(|error| (at..at + row.len(), error))?;
            }
            copied = copied.saturating_sub(row.len());
        }
    }
}
