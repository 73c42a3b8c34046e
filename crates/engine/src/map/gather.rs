//! Scattered bytes of a map copied in one call, whoever serves it. `pin/gather.rs` says how that of the cache is done.
//!
//! Of a kernel mapping the page cache is told what is wanted next (madvise(2), `MADV_WILLNEED`), and the kernel copies, since a load past
//! the end of a file that was cut would raise SIGBUS. The mapping, not the file: there may be no descriptor of that any more.

use crate::error::{Error, Result};
use crate::map::mapping::{Backing, Mapping};
use crate::pin::gather::{self, HALF_WINDOW};
use crate::sys::PAGE;
use crate::sys::guarded_copy::{self, MOST_RANGES};
use std::iter::Peekable;
use std::mem;
use std::ops::Range;

impl Mapping {
    pub fn gather(&self, ranges: &[(usize, usize)], output: &mut [u8]) -> Result<()> {
        self.check(0, 0)?;
        ranges.iter().try_for_each(|(offset, len)| self.check(*offset, *len))?;
        gather::check_output(ranges.iter().map(|(_, len)| *len), output.len())?;
        let rows = |base: usize| ranges.iter().map(move |(offset, len)| base + offset..base + offset + len);
        match &self.backing {
            Backing::Empty(_) => Ok(()),
            Backing::Cached(cached) => gather::gather(&cached.region, rows(cached.offset), output),
            Backing::Kernel(kernel) => {
                let is_in_memory = kernel.mapping.persist().is_some();
                gather_by_kernel(rows(self.start as usize), is_in_memory, output)
            }
            Backing::Placed(placed) => placed.gather(ranges, output),
        }
    }
}

/// Gathers rows of memory, by address.
fn gather_by_kernel<I>(rows: I, is_in_memory: bool, mut output: &mut [u8]) -> Result<()>
where
    I: Iterator<Item = Range<usize>> + Clone,
{
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
        |pieces| copy_by_kernel(&mut pieces.peekable(), &(0..usize::MAX), &mut output).map_err(failed),
    )
}

/// Has the kernel read pages ahead, by number. What cannot be is left to the copy.
pub(crate) fn will_need(pages: &Range<usize>) {
    // SAFETY: advice that destroys nothing.
    unsafe { libc::madvise((pages.start * PAGE) as *mut _, pages.len() * PAGE, libc::MADV_WILLNEED) };
}

/// Copies pieces of memory that is not cached, as long as they begin inside of `limit`; the output's rest is left. An error is that of
/// the bytes it comes with.
pub(crate) fn copy_by_kernel<I>(
    pieces: &mut Peekable<I>,
    limit: &Range<usize>,
    output: &mut &mut [u8],
) -> std::result::Result<(), (Range<usize>, i32)>
where
    I: Iterator<Item = Range<usize>>,
{
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut ranges = [nothing; MOST_RANGES / 8];
    loop {
        let (mut count, mut bytes) = (0, 0);
        while count < ranges.len()
            && let Some(piece) = pieces.next_if(|piece| limit.contains(&piece.start))
        {
            ranges[count] = libc::iovec { iov_base: piece.start as *mut _, iov_len: piece.len() };
            count += 1;
            bytes += piece.len();
        }
        if count == 0 {
            return Ok(());
        }
        let (to, rest) = mem::take(output).split_at_mut(bytes);
        *output = rest;
        let mut copied = guarded_copy::read_ranges(&ranges[..count], to);
        let mut left = to;
        for range in &ranges[..count] {
            let (to, rest) = mem::take(&mut left).split_at_mut(range.iov_len);
            left = rest;
            // What was copied of it before is copied again.
            if copied < to.len() {
                let at = range.iov_base as usize;
                guarded_copy::read(at, to).map_err(|error| (at..at + range.iov_len, error))?;
            }
            copied = copied.saturating_sub(range.iov_len);
        }
    }
}
