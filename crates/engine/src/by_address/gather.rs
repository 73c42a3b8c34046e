//! Scattered bytes of mapped memory copied in one call, by address.

use super::access::{self, Part, as_it_is, parts_of, unusable};
use super::table::pages_at;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::fault::child;
use crate::map::gather::{copy_by_kernel, will_need};
use crate::pin::gather::{self, HALF_WINDOW, copy_pages, half_window, in_windows};
use crate::readahead::prefetch;
use crate::region::region::Region;
use crate::sys::{PAGE, fork};
use std::ops::Range;
use std::sync::Arc;

/// Copies ranges of bytes to an output, one after the other. As [`Map::gather`](crate::Map::gather), over any number of maps and other
/// memory.
///
/// # Errors
/// * [`Error::OutputLength`], and [`Error::Io`] with EFAULT for part of a cached map that may not be read: before anything is read.
/// * [`Error::PastEnd`] and [`Error::Load`]; [`Error::Io`] with EFAULT for what is not mapped, and of kernel mappings for what lies past the
///   file's end or cannot be read. The output's bytes are unspecified then.
///
/// ```
/// let numbers = [1u8, 2, 3, 4];
/// let at = numbers.as_ptr() as usize;
/// let mut output = [0; 3];
/// fastmap::by_address::gather(&[at + 3..at + 4, at..at + 2], &mut output)?;
/// assert_eq!(output, [4, 1, 2]);
/// # Ok::<(), fastmap::Error>(())
/// ```
pub fn gather(ranges: &[Range<usize>], output: &mut [u8]) -> Result<()> {
    gather::check_output(ranges.iter().map(Range::len), output.len())?;
    if fork::is_child() && child::has_maps() {
        let mut rest = output;
        return ranges.iter().try_for_each(|range| {
            let (to, behind) = std::mem::take(&mut rest).split_at_mut(range.len());
            rest = behind;
            // SAFETY: so much room.
            unsafe { access::read(range.start, to.as_mut_ptr(), to.len()) }
        });
    }
    as_it_is(|| gather_parts(ranges, output))
}

fn gather_parts(ranges: &[Range<usize>], output: &mut [u8]) -> Result<()> {
    let mut rows = gather::rows(ranges.iter().cloned());
    let starts = rows.iter().map(|row| row.from.start);
    let ends = rows.iter().map(|row| row.from.end);
    let (Some(start), Some(end)) = (starts.min(), ends.max()) else { return Ok(()) };
    if end > isize::MAX as usize {
        // The kernel's half: nothing of a program's lies there, and pages could not be counted to its end.
        return Err(unusable(&(start..end), libc::EFAULT));
    }
    // Looked up once. A share keeps its region should another thread unmap it meanwhile.
    let parts = parts_of(&(start..end));
    rows.iter()
        .flat_map(|row| parts_in(&parts, &row.from))
        .try_for_each(|(part, _)| part.allow(libc::PROT_READ | libc::PROT_WRITE))?;
    for (part, region) in parts.iter().filter_map(|part| Some((part, part.region()?))) {
        let is_its = |row: &&gather::Row| part.at.start <= row.from.start && row.from.end <= part.at.end;
        gather::ask_for(region, region.address().start() as usize, rows.iter().filter(is_its));
    }
    let pools = || parts.iter().filter_map(Part::region).map(|region| region.pool());
    let bytes_of = |pages: &Range<usize>| pages.start * PAGE..pages.end * PAGE;
    let is_absent = |of_kernel: bool| {
        let parts = &parts;
        move |pages: &Range<usize>| {
            let absent = |region: &Region, at: &Range<usize>| gather::is_absent(region, &pages_at(region, at));
            parts_in(parts, &bytes_of(pages))
                .any(|(part, at)| part.region().map_or(of_kernel, |region| absent(region, &at)))
        }
    };
    gather::sort(&mut rows, is_absent(false));
    let mut of_one: Vec<Range<usize>> = Vec::new();
    let ask = |runs: &[Range<usize>]| {
        let mut asked: Option<&Arc<Region>> = None;
        for (part, at) in runs.iter().flat_map(|pages| parts_in(&parts, &bytes_of(pages))) {
            let Some(region) = part.region() else {
                will_need(&(at.start / PAGE..at.end.div_ceil(PAGE)));
                continue;
            };
            // Pages of one region at a time: each call wakes a reader.
            if let Some(before) = asked.replace(region).filter(|before| !Arc::ptr_eq(before, region)) {
                prefetch::offer(before, &of_one);
                of_one.clear();
            }
            of_one.push(pages_at(region, &at));
        }
        if let Some(region) = asked {
            prefetch::offer(region, &of_one);
            of_one.clear();
        }
    };
    let half = pools().map(|pool| half_window(pool)).min().unwrap_or(HALF_WINDOW);
    in_windows(&rows, half, is_absent(true), ask, |pieces| {
        let mut pieces = pieces.peekable();
        while let Some(next) = pieces.peek() {
            let part = &parts[parts.partition_point(|part| part.at.end <= next.from.start)];
            match part.region() {
                Some(region) => {
                    let base = region.address().start() as usize;
                    copy_pages(region, base, &mut pieces, &part.at, output)?;
                }
                None => {
                    let failed = |(at, error)| unusable(&at, error);
                    copy_by_kernel(&mut pieces, &part.at, output).map_err(failed)?;
                }
            }
        }
        Ok(())
    })
}

/// The parts that a range meets, and what it has of each.
fn parts_in<'a>(parts: &'a [Part], range: &Range<usize>) -> impl Iterator<Item = (&'a Part, Range<usize>)> + use<'a> {
    let Range { start, end } = *range;
    let first = parts.partition_point(|part| part.at.end <= start);
    let met = parts[first..].iter().take_while(move |part| part.at.start < end);
    met.map(move |part| (part, start.max(part.at.start)..end.min(part.at.end)))
}
