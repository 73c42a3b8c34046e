//! Copies scattered bytes out one after the other. Absent pages are asked for ahead of the copy.
//!
//! There are two walks over the same pieces, none of them longer than a page. The first walk takes pages by the half window, and asks
//! the readers for the absent ones. The second walk is half a window behind, and copies under a pin for each page. So a gather of any
//! length has many reads under way, and a page is copied before it can be evicted for later ones. Rows that lie close together are
//! copied in the order of the file: each page is read once, with its neighbours.

use crate::error::{Error, Result};
use crate::page::word::State;
use crate::pin::pin;
use crate::pool::pool::Pool;
use crate::readahead::prefetch;
use crate::region::region::Region;
use crate::sys::PAGE;
use std::iter::Peekable;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

/// Pages of a half window. Two of them are twice the reads that a reader has under way.
pub const HALF_WINDOW: usize = 128;

/// Pages of a half window in a cache. Both halves together are no more than the readers' queue takes.
pub fn half_window(pool: &Pool) -> usize {
    HALF_WINDOW.min(pool.capacity() / 16).max(1)
}

/// Bytes that are copied to a place in the output: a row, or the part of a row that lies in one page.
#[derive(Clone)]
pub struct Row {
    pub from: Range<usize>,
    pub to: usize,
}

/// Makes rows of ranges that are copied to the output one after the other.
pub fn rows(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Row> {
    let mut to = 0;
    let row = |from: Range<usize>| {
        let row = Row { to, from };
        to += row.from.len();
        row
    };
    ranges.filter(|range| !range.is_empty()).map(row).collect()
}

/// Sorts rows by the bytes that they are copied from, if that makes reads fewer and larger: the rows lie close together, and many of a
/// sample are absent.
pub fn sort(rows: &mut [Row], is_absent: impl Fn(&Range<usize>) -> bool) {
    const SAMPLE: usize = 64;
    /// Pages for each row from which on rows count as scattered.
    const SPARSE: usize = 16;
    if rows.len() < SAMPLE || rows.is_sorted_by_key(|row| row.from.start) {
        return;
    }
    let start = rows.iter().map(|row| row.from.start).min().unwrap_or(0);
    let end = rows.iter().map(|row| row.from.end).max().unwrap_or(0);
    if (end - start) / PAGE > rows.len() * SPARSE {
        return;
    }
    let sample = rows.iter().step_by(rows.len() / SAMPLE).map(|row| row.from.start / PAGE);
    if sample.filter(|page| is_absent(&(*page..page + 1))).count() > SAMPLE / 4 {
        rows.sort_unstable_by_key(|row| row.from.start);
    }
}

/// Rows, cut where pages end.
#[derive(Clone)]
struct Pieces<'a> {
    rows: std::slice::Iter<'a, Row>,
    rest: Row,
}

impl Iterator for Pieces<'_> {
    type Item = Row;

    #[inline]
    fn next(&mut self) -> Option<Row> {
        while self.rest.from.is_empty() {
            self.rest = self.rows.next()?.clone();
        }
        let Row { from: Range { start, end }, to } = self.rest.clone();
        let end = end.min((start / PAGE + 1) * PAGE);
        self.rest.from.start = end;
        self.rest.to += end - start;
        Some(Row { from: start..end, to })
    }
}

/// Checks that rows of these lengths, one after the other, fill an output exactly.
pub fn check_output(lengths: impl Iterator<Item = usize>, room: usize) -> Result<()> {
    let wanted = lengths.fold(0usize, usize::saturating_add);
    if wanted == room { Ok(()) } else { Err(Error::OutputLength { wanted, room }) }
}

/// Walks over rows. `ask` is given runs of pages of which `is_absent` says that some may be absent. `copy` is given pieces, half a window
/// later.
pub fn in_windows(
    rows: &[Row],
    half_window: usize,
    is_absent: impl Fn(&Range<usize>) -> bool,
    mut ask: impl FnMut(&[Range<usize>]),
    mut copy: impl FnMut(&mut dyn Iterator<Item = Row>) -> Result<()>,
) -> Result<()> {
    let mut behind = Pieces { rows: rows.iter(), rest: Row { from: 0..0, to: 0 } };
    let mut ahead = behind.clone();
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut draw = |is_first: bool| {
        runs.clear();
        let (mut drawn, mut pages) = (0, 0);
        while pages < half_window
            && let Some(piece) = ahead.next()
        {
            drawn += 1;
            let new = piece.from.start / PAGE..piece.from.end.div_ceil(PAGE);
            match runs.last_mut() {
                Some(run) if (run.start..=run.end).contains(&new.start) => {
                    pages += new.end.saturating_sub(run.end);
                    run.end = run.end.max(new.end);
                }
                _ => {
                    pages += 1;
                    if is_absent(&new) {
                        runs.push(new);
                    }
                }
            }
        }
        // A single page that is copied next is loaded as fast by the copy.
        let is_alone = is_first && matches!(&runs[..], [run] if run.len() == 1);
        if !runs.is_empty() && !is_alone {
            ask(&runs);
        }
        drawn
    };
    let mut due = draw(true);
    while due > 0 {
        let next = draw(false);
        copy(&mut behind.by_ref().take(due))?;
        due = next;
    }
    Ok(())
}

/// Gathers rows of a region.
pub fn gather(region: &Region, mut rows: Vec<Row>, output: &mut [u8]) -> Result<()> {
    ask_for(region, 0, rows.iter());
    sort(&mut rows, |pages| is_absent(region, pages));
    in_windows(
        &rows,
        half_window(region.pool()),
        |pages| is_absent(region, pages),
        |runs| {
            prefetch::offer(region, runs);
        },
        |pieces| copy_pages(region, 0, &mut pieces.peekable(), &(0..usize::MAX), output),
    )
}

/// Asks a region's origin, if it has one, for all of some rows at once. The region begins at `base`.
pub fn ask_for<'a>(region: &Region, base: usize, rows: impl Iterator<Item = &'a Row>) {
    if region.store().origin().is_some() {
        for Row { from, .. } in rows {
            let pages = (from.start - base) / PAGE..(from.end - base).div_ceil(PAGE);
            region.store().ask(pages.start, pages.len());
        }
    }
}

/// Whether any of these pages is absent: neither in memory nor on its way.
pub fn is_absent(region: &Region, pages: &Range<usize>) -> bool {
    pages.clone().any(|page| region.word(page).look().state() == State::Absent)
}

/// Copies pieces of a region that begins at `base`, as long as they begin inside of `limit`.
pub fn copy_pages<I>(
    region: &Region,
    base: usize,
    pieces: &mut Peekable<I>,
    limit: &Range<usize>,
    output: &mut [u8],
) -> Result<()>
where
    I: Iterator<Item = Row>,
{
    while let Some(piece) = pieces.next_if(|piece| limit.contains(&piece.from.start)) {
        let page = (piece.from.start - base) / PAGE;
        let bytes: *const u8 = region.address_of(page);
        let mut aside = MaybeUninit::<[u8; PAGE]>::uninit();
        let had_room = pin::with_page(region, page, false, |room| {
            if room {
                // SAFETY: the page is pinned.
                unsafe { copy_pieces(bytes, piece.clone(), pieces, limit, output) };
            } else {
                // SAFETY: a pinned page, to as many bytes on the stack.
                unsafe { ptr::copy_nonoverlapping(bytes, aside.as_mut_ptr().cast(), PAGE) };
            }
            room
        })?;
        if !had_room {
            // SAFETY: filled above.
            unsafe { copy_pieces(aside.as_ptr().cast(), piece, pieces, limit, output) };
        }
    }
    Ok(())
}

/// Copies a piece of a page, and the following pieces of the same page.
///
/// # Safety
/// The page's bytes are at `bytes`.
unsafe fn copy_pieces<I>(
    bytes: *const u8,
    first: Row,
    pieces: &mut Peekable<I>,
    limit: &Range<usize>,
    output: &mut [u8],
) where
    I: Iterator<Item = Row>,
{
    let page = first.from.start / PAGE;
    let mut next = Some(first);
    while let Some(Row { from, to }) = next {
        let to = &mut output[to..to + from.len()];
        // SAFETY: a piece ends in its page. The output may be another map of the same bytes, so they may overlap.
        unsafe { ptr::copy(bytes.add(from.start % PAGE), to.as_mut_ptr(), to.len()) };
        next = pieces.next_if(|piece| piece.from.start / PAGE == page && limit.contains(&piece.from.start));
    }
}
