//! Scattered bytes copied out one after the other, with what is absent asked for ahead of the copy.
//!
//! Two walks over the same pieces, none of them longer than a page. The first draws pages by the half window and has the readers bring
//! in what is absent; the second copies, half a window behind it, under a pin for each page. So a gather of any length has many reads
//! under way, and what it brings in is copied before it can be evicted again for what follows.

use crate::error::{Error, Result};
use crate::page::word::State;
use crate::pin::pin;
use crate::pool::pool::Pool;
use crate::readahead::prefetch;
use crate::region::region::Region;
use crate::sys::PAGE;
use std::iter::Peekable;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::ptr;

/// Pages drawn before those that were drawn before them are copied: two of these are twice what a ring has under way.
pub const HALF_WINDOW: usize = 128;

/// As many as the readers take of a cache, both halves together.
pub fn half_window(pool: &Pool) -> usize {
    HALF_WINDOW.min(pool.capacity() / 16).max(1)
}

/// Rows of bytes, cut where pages end.
#[derive(Clone)]
struct Pieces<I> {
    rows: I,
    rest: Range<usize>,
}

impl<I: Iterator<Item = Range<usize>>> Iterator for Pieces<I> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        while self.rest.is_empty() {
            self.rest = self.rows.next()?;
        }
        let end = self.rest.end.min((self.rest.start / PAGE + 1) * PAGE);
        let piece = self.rest.start..end;
        self.rest.start = end;
        Some(piece)
    }
}

/// Checks that rows of so many bytes, one after the other, are what an output has room for.
pub fn check_output(lengths: impl Iterator<Item = usize>, room: usize) -> Result<()> {
    let wanted = lengths.fold(0usize, usize::saturating_add);
    if wanted == room { Ok(()) } else { Err(Error::OutputLength { wanted, room }) }
}

/// Walks over rows: `ask` is given runs of pages, where `is_absent` says that some may be, and `copy` pieces a while later.
pub fn in_windows<I>(
    rows: I,
    half_window: usize,
    is_absent: impl Fn(&Range<usize>) -> bool,
    mut ask: impl FnMut(&[Range<usize>]),
    mut copy: impl FnMut(&mut dyn Iterator<Item = Range<usize>>) -> Result<()>,
) -> Result<()>
where
    I: Iterator<Item = Range<usize>> + Clone,
{
    let mut behind = Pieces { rows, rest: 0..0 };
    let mut ahead = behind.clone();
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut draw = |is_first: bool| {
        runs.clear();
        let (mut drawn, mut pages) = (0, 0);
        while pages < half_window
            && let Some(piece) = ahead.next()
        {
            drawn += 1;
            let new = piece.start / PAGE..piece.end.div_ceil(PAGE);
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
        // One page alone, which is copied next, is loaded as fast by the copy.
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
pub fn gather<I>(region: &Region, rows: I, mut output: &mut [u8]) -> Result<()>
where
    I: Iterator<Item = Range<usize>> + Clone,
{
    in_windows(
        rows,
        half_window(region.pool()),
        |pages| is_absent(region, pages),
        |runs| {
            prefetch::offer(region, runs);
        },
        |pieces| copy_pages(region, 0, &mut pieces.peekable(), &(0..usize::MAX), &mut output),
    )
}

/// Whether any of these pages is neither in memory nor on its way.
pub fn is_absent(region: &Region, pages: &Range<usize>) -> bool {
    pages.clone().any(|page| region.word(page).look().state() == State::Absent)
}

/// Copies pieces as long as they begin inside of `limit`, of a region that begins at `base`; the output's rest is left.
pub fn copy_pages<I>(
    region: &Region,
    base: usize,
    pieces: &mut Peekable<I>,
    limit: &Range<usize>,
    output: &mut &mut [u8],
) -> Result<()>
where
    I: Iterator<Item = Range<usize>>,
{
    while let Some(piece) = pieces.next_if(|piece| limit.contains(&piece.start)) {
        let page = (piece.start - base) / PAGE;
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

/// Copies a piece of a page, and those after it that are of the same page.
///
/// # Safety
/// The page's bytes are at `bytes`.
unsafe fn copy_pieces<I>(
    bytes: *const u8,
    first: Range<usize>,
    pieces: &mut Peekable<I>,
    limit: &Range<usize>,
    output: &mut &mut [u8],
) where
    I: Iterator<Item = Range<usize>>,
{
    let page = first.start / PAGE;
    let mut next = Some(first);
    while let Some(piece) = next {
        let (to, rest) = mem::take(output).split_at_mut(piece.len());
        *output = rest;
        // SAFETY: a piece does not reach over its page's end. The output may be another map of the same bytes.
        unsafe { ptr::copy(bytes.add(piece.start % PAGE), to.as_mut_ptr(), to.len()) };
        next = pieces.next_if(|piece| piece.start / PAGE == page && limit.contains(&piece.start));
    }
}
