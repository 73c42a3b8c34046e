//! The signs of a pattern in what was touched: walks, strides, single places, blocks, dense rows.

use crate::run::{BLOCK, Run, WINDOW};

/// From this stride on single pages are read ahead. The kernel, or blocks, serve shorter ones.
pub const WIDE: i64 = 8;

/// A place from which touches move on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Front {
    /// The page that was touched last.
    pub at: u64,
    /// Pages from one touch to the next; below zero where the walk is backward.
    pub stride: i64,
    /// Pages from the first touch that belongs to it to the last.
    pub span: u64,
    /// Pages of a touch, where single ones show; 1 in a walk.
    pub width: u64,
}

/// The pattern that two looks showed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Shape {
    /// Windows in which a page was touched.
    pub windows: u64,
    /// Of these, windows that no walk and no stride explains.
    pub scattered: u64,
    /// Of these, windows that wide strides explain (none of them is scattered).
    pub strided: u64,
    /// Walks and strides whose direction is known.
    pub fronts: Vec<Front>,
    /// Whether the strides are blurred by what the kernel maps around a touch.
    pub is_blurred: bool,
}

impl Shape {
    /// Whether at least three quarters of the touches are at single places.
    pub fn is_scattered(&self) -> bool {
        self.scattered * 4 >= self.windows * 3
    }

    /// Whether a walk in wide strides is among them.
    pub fn has_strides(&self) -> bool {
        self.fronts.iter().any(|front| front.stride.abs() >= WIDE)
    }

    /// Whether most touches belong to long walks forward, and not to pieces here and there.
    pub fn is_one_walk(&self) -> bool {
        let long = self.fronts.iter().filter(|front| front.stride == 1 && front.span >= LONG);
        let walked: u64 = long.map(|front| front.span / WINDOW).sum();
        self.fronts.iter().all(|front| front.stride == 1) && walked * 2 >= self.windows.max(1)
    }

    /// The front of the one walk forward to which most touches belong, if there is one.
    pub fn walk_forward(&self) -> Option<u64> {
        match &self.fronts[..] {
            [front] if self.is_one_walk() => Some(front.at),
            _ => None,
        }
    }

    /// Whether all fronts are walks backward that leave out seven pages at most, and less than an eighth of the touches is scattered.
    pub fn is_backward(&self) -> bool {
        let are_backward = self.fronts.iter().all(|front| -WIDE < front.stride && front.stride < 0);
        !self.fronts.is_empty() && are_backward && self.scattered * 8 < self.windows
    }

    /// Whether most touches belong to walks or strides.
    pub fn is_ordered(&self) -> bool {
        self.scattered * 2 < self.windows
    }

    /// Whether most touches belong to walks that the kernel can read ahead of.
    pub fn is_walked(&self) -> bool {
        (self.scattered + self.strided) * 2 < self.windows
    }

    /// Takes strides for chance: reading ahead of them was in vain.
    pub fn without_strides(mut self) -> Shape {
        self.fronts.retain(|front| front.stride.abs() < WIDE);
        self.scattered += std::mem::take(&mut self.strided);
        self
    }
}

/// Touches at most so many pages apart belong together: the usual readahead spans as many.
const NEAR: u64 = 32;
/// Pages that make a walk.
const WALK: u64 = 64;
/// Pages that make a walk which goes on.
const LONG: u64 = 256;
/// Equal distances that make a stride.
const EQUAL: usize = 8;

/// Runs of both looks that adjoin one another, as one.
#[derive(Debug, Clone, Copy)]
struct Piece {
    at: u64,
    len: u64,
    /// For each look: its pages here, and the sum of their numbers.
    looks: [(u64, u64); 2],
}

impl Piece {
    fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// Pieces of a file that are read forward, each at another place than the one before: a model's experts, a file's chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pieces {
    /// Whether most of what was touched lies in such pieces, each of about 2 MiB that lie together in the file.
    pub are_blocks: bool,
}

/// So many pieces are a pattern.
const MANY: usize = 8;

/// Tells the pieces among runs that were new, in order. `is_mapped` tells whether a page is mapped: a run behind a mapped page goes on
/// where an earlier look ended. `offset` is the mapping's first page in the file.
pub fn pieces(runs: &[Run], offset: u64, is_mapped: impl Fn(u64) -> bool) -> Pieces {
    let joined = join(runs, &[]);
    let is_begun = |piece: &&Piece| piece.at == 0 || !is_mapped(piece.at - 1);
    let begun: Vec<&Piece> = joined.iter().filter(is_begun).collect();
    let (all, in_pieces) =
        (joined.iter().map(|piece| piece.len).sum::<u64>(), begun.iter().map(|piece| piece.len).sum::<u64>());
    // A piece that is being read during a look is cut, so a fifth of the blocks' pages may be missing.
    let blocks = |piece: &&Piece| (piece.end() + offset).div_ceil(BLOCK) - (piece.at + offset) / BLOCK;
    let touched: u64 = begun.iter().map(blocks).sum();
    let are_many = begun.len() >= MANY && in_pieces * 10 >= all * 7;
    Pieces {
        are_blocks: are_many && in_pieces * 10 >= touched * BLOCK * 8 && in_pieces <= begun.len() as u64 * 2 * BLOCK,
    }
}

/// Tells the pattern of the pages that were new in two looks, each in order.
pub fn shape(first: &[Run], second: &[Run]) -> Shape {
    let pieces = join(first, second);
    let mut shape = Shape::default();
    let mut index = 0;
    while index < pieces.len() {
        let rest = &pieces[index..];
        if let Some(count) = equal_distances(rest) {
            let windows = rest[..count].windows(2).filter(|two| two[0].at / WINDOW != two[1].at / WINDOW).count();
            let windows = windows as u64 + 1;
            shape.windows += windows;
            index += count;
            // Equal distances alone are no walk: a good hash has them, too.
            if is_mixed(&rest[..count]) {
                shape.scattered += windows;
                continue;
            }
            let mut steps: Vec<u64> = rest[..count].windows(2).map(|two| two[1].at - two[0].at).collect();
            steps.sort_unstable();
            let step = steps[steps.len() / 2];
            let exact = steps.iter().filter(|one| **one == step).count();
            shape.is_blurred |= exact * 4 < steps.len() * 3;
            shape.strided += if step as i64 >= WIDE { windows } else { 0 };
            front(&mut shape, &rest[..count], step as i64);
            continue;
        }
        let near = rest.windows(2).take_while(|two| two[1].at - two[0].end() <= NEAR).count() + 1;
        let (span, pages) = (rest[near - 1].end() - rest[0].at, rest[..near].iter().map(|one| one.len).sum::<u64>());
        // Many touches at random lie as close together.
        let is_random = pages * 4 < span * 3 && is_mixed(&rest[..near]);
        if pages >= WALK && pages * 4 >= span && !is_random {
            shape.windows += pages.div_ceil(WINDOW);
            front(&mut shape, &rest[..near], 1);
            index += near;
        } else {
            // One piece at a time is passed over: a stride may begin at the next.
            shape.windows += 1;
            shape.scattered += 1;
            index += 1;
        }
    }
    shape
}

/// Pages that are enough to tell whether touches are dense.
const DENSE_ENOUGH: u64 = 256;
/// A row of dense touches has so many pages at least: 192 KiB.
const ROW: u64 = 48;

/// Whether touches are dense: at least seven tenths of the pages lie in rows of 48 or more, longer than what the kernel maps for one
/// touch. `None` if there are too few.
pub fn is_dense(runs: &[Run]) -> Option<bool> {
    let (mut all, mut in_rows) = (0, 0);
    let mut row = Run { at: 0, len: 0 };
    for run in runs.iter().chain([&Run { at: u64::MAX / 2, len: 0 }]) {
        all += run.len;
        // One page may be missing: the one that the kernel has marked for readahead.
        if run.at <= row.end() + 1 {
            row.len = run.end() - row.at;
            continue;
        }
        if row.len >= ROW {
            in_rows += row.len;
        }
        row = *run;
    }
    (all >= DENSE_ENOUGH).then_some(in_rows * 10 >= all * 7)
}

fn join(first: &[Run], second: &[Run]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(first.len() + second.len());
    let (mut a, mut b) = (first.iter().peekable(), second.iter().peekable());
    loop {
        let from_first = match (a.peek(), b.peek()) {
            (Some(one), Some(other)) => one.at <= other.at,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return pieces,
        };
        let Some(run) = (if from_first { a.next() } else { b.next() }) else { return pieces };
        let look = usize::from(!from_first);
        let sum = run.len * run.at + run.len * (run.len - 1) / 2;
        match pieces.last_mut() {
            Some(last) if run.at <= last.end() || is_marker(last, run) => {
                last.len = last.len.max(run.end() - last.at);
                last.looks[look].0 += run.len;
                last.looks[look].1 += sum;
            }
            _ => {
                let mut looks = [(0, 0); 2];
                looks[look] = (run.len, sum);
                pieces.push(Piece { at: run.at, len: run.len, looks });
            }
        }
    }
}

/// Whether only one page lies between, which the kernel has marked for readahead: it does not map that page around a touch.
fn is_marker(last: &Piece, run: &Run) -> bool {
    run.at == last.end() + 1 && last.len + run.len >= WINDOW / 2
}

/// How many pieces, from the first on, lie at equal distances, if that is a stride. Wide strides are blurred by what the kernel maps
/// around a touch.
fn equal_distances(pieces: &[Piece]) -> Option<usize> {
    let step = pieces.get(1)?.at - pieces[0].at;
    let blur = if step >= 4 * WINDOW { WINDOW - 1 } else { step / 16 + 1 };
    let is_equal = |two: &[Piece]| (two[1].at - two[0].at).abs_diff(step) <= blur && two[0].len * 2 <= step;
    let equal = pieces.windows(2).take_while(|two| is_equal(two)).count();
    (step >= 2 && equal >= EQUAL).then_some(equal + 1)
}

/// For each look, the mean of its pages' numbers. `None` where it has none.
fn means(pieces: &[Piece]) -> [Option<u64>; 2] {
    [0, 1].map(|look| {
        let (count, sum) =
            pieces.iter().fold((0, 0), |(count, sum), piece| (count + piece.looks[look].0, sum + piece.looks[look].1));
        (count > 0).then(|| sum / count)
    })
}

/// Whether the pages of the second look lie among those of the first. In a walk they lie beyond: the means are half of the span apart.
fn is_mixed(pieces: &[Piece]) -> bool {
    let span = pieces[pieces.len() - 1].end() - pieces[0].at;
    matches!(means(pieces), [Some(first), Some(second)] if first.abs_diff(second) * 4 < span)
}

/// Notes the front of pieces that belong together. They moved from where the first look saw them to where the second did.
fn front(shape: &mut Shape, pieces: &[Piece], step: i64) {
    let [Some(first), Some(second)] = means(pieces) else { return };
    let (start, end) = (pieces[0].at, pieces[pieces.len() - 1].end() - 1);
    let (at, stride) = if second > first { (end, step) } else { (start, -step) };
    let mut widths: Vec<u64> = pieces.iter().map(|piece| piece.len).collect();
    widths.sort_unstable();
    // A whole window is what the kernel maps around a single touch.
    let width = Some(widths[widths.len() / 2]).filter(|width| *width < WINDOW && step > 1).unwrap_or(1);
    shape.fronts.push(Front { at, stride, span: end - start, width });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn singles(pages: impl IntoIterator<Item = u64>) -> Vec<Run> {
        let mut pages: Vec<u64> = pages.into_iter().collect();
        pages.sort();
        pages.dedup();
        pages.into_iter().map(|at| Run { at, len: 1 }).collect()
    }

    fn random(seed: u64, count: usize, below: u64) -> Vec<u64> {
        let mut state = seed.wrapping_mul(7919).wrapping_add(88172645463325252);
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn touches_at_random_are_scattered() {
        for count in [12, 100, 3000] {
            let shape = shape(&singles(random(1, count, 262144)), &singles(random(2, count, 262144)));
            assert!(shape.is_scattered() && shape.fronts.is_empty(), "{count}: {shape:?}");
        }
    }

    #[test]
    fn windows_that_the_kernel_maps_around_them_are_scattered_too() {
        let around = |seed| {
            let starts = singles(random(seed, 500, 16384));
            starts.iter().map(|run| Run { at: run.at * 16, len: 16 }).collect::<Vec<_>>()
        };
        let shape = shape(&around(1), &around(2));
        assert!(shape.is_scattered(), "{shape:?}");
    }

    #[test]
    fn a_walk_has_a_direction() {
        let (low, high) = ([Run { at: 5000, len: 400 }], [Run { at: 5400, len: 300 }]);
        let up = shape(&low, &high);
        assert_eq!(up.fronts, [Front { at: 5699, stride: 1, span: 699, width: 1 }]);
        assert_eq!(up.scattered, 0);
        let down = shape(&high, &low);
        assert_eq!(down.fronts, [Front { at: 5000, stride: -1, span: 699, width: 1 }]);
    }

    #[test]
    fn pieces_here_and_there_are_no_walk_that_goes_on() {
        assert!(shape(&[Run { at: 5000, len: 400 }], &[Run { at: 5400, len: 300 }]).is_one_walk());
        let pieces = |from: u64| -> Vec<Run> { (0..6).map(|at| Run { at: 4000 * at + from, len: 40 }).collect() };
        assert!(!shape(&pieces(0), &pieces(40)).is_one_walk());
        assert!(!Shape::default().is_one_walk());
    }

    #[test]
    fn several_walks_at_once_have_a_front_each() {
        let shape = shape(
            &[Run { at: 100, len: 200 }, Run { at: 90000, len: 200 }],
            &[Run { at: 300, len: 100 }, Run { at: 89900, len: 100 }],
        );
        let fronts: Vec<_> = shape.fronts.iter().map(|front| (front.at, front.stride)).collect();
        assert_eq!(fronts, [(399, 1), (89900, -1)]);
    }

    #[test]
    fn a_stride_is_told_from_its_distances() {
        for step in [2, 16, 24, 100, 256] {
            let first = singles((0..40).map(|index| 1000 + index * step));
            let second = singles((40..80).map(|index| 1000 + index * step));
            let shape = shape(&first, &second);
            assert_eq!(shape.fronts.len(), 1, "{step}: {shape:?}");
            assert_eq!((shape.fronts[0].at, shape.fronts[0].stride), (1000 + 79 * step, step as i64));
            assert!(shape.is_ordered());
        }
    }

    #[test]
    fn many_touches_at_random_are_no_walk() {
        let shape = shape(&singles(random(1, 8000, 30_000)), &singles(random(2, 8000, 30_000)));
        assert!(shape.is_scattered(), "{} of {}", shape.scattered, shape.windows);
    }

    #[test]
    fn the_equal_distances_of_a_hash_are_no_stride() {
        let place = |number: u64| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16) % 196_608;
        for count in [40, 200, 1000] {
            let shape = shape(&singles((0..count).map(place)), &singles((count..2 * count).map(place)));
            assert!(shape.is_scattered() && !shape.has_strides(), "{count}: {shape:?}");
        }
    }

    #[test]
    fn a_walk_among_touches_at_random_is_ordered_only_if_most_belong_to_it() {
        let mut mixed = singles(random(3, 60, 262144));
        mixed.retain(|run| !(100_000..110_000).contains(&run.at));
        mixed.push(Run { at: 100_000, len: 640 });
        mixed.sort_by_key(|run| run.at);
        let shape = shape(&mixed, &[Run { at: 100_640, len: 64 }]);
        assert!(!shape.is_scattered() && !shape.is_ordered(), "{shape:?}");
        assert_eq!(shape.fronts.len(), 1);
    }

    #[test]
    fn blocks_are_told_from_walks_and_from_single_places() {
        let blocks: Vec<Run> = [3, 9, 17, 20, 31, 44, 58, 70, 91].map(|at| Run { at: at * 512, len: 512 }).to_vec();
        assert_eq!(pieces(&blocks, 0, |_| false), Pieces { are_blocks: true });
        // Nine walks that go on.
        assert_eq!(pieces(&blocks, 0, |_| true), Pieces { are_blocks: false });
        // At an odd place each lies in two blocks.
        assert!(!pieces(&blocks, 200, |_| false).are_blocks);
        assert!(!pieces(&blocks[..5], 0, |_| false).are_blocks);
        assert!(!pieces(&singles(random(1, 1000, 262144)), 0, |_| false).are_blocks);
        assert!(!pieces(&[Run { at: 0, len: 5000 }], 0, |_| false).are_blocks);
    }

    #[test]
    fn rows_are_dense_and_single_places_with_what_is_mapped_around_them_are_not() {
        let rows: Vec<Run> = (0..20).map(|index| Run { at: index * 1000, len: 64 }).collect();
        assert_eq!(is_dense(&rows), Some(true));
        assert_eq!(is_dense(&rows[..3]), None);
        let around: Vec<Run> = (0..40).map(|index| Run { at: index * 1000, len: 16 }).collect();
        assert_eq!(is_dense(&around), Some(false));
        // The kernel's markers lie between.
        let marked: Vec<Run> = (0..40).map(|index| Run { at: index * 32, len: 31 }).collect();
        assert_eq!(is_dense(&marked), Some(true));
    }

    #[test]
    fn nothing_has_no_shape() {
        assert_eq!(shape(&[], &[]), Shape::default());
    }

    /// Looks at real programs, 20 ms apart, made with `examples/record.rs` on a disk with a readahead of 128 KiB, 1 GiB in 256 MiB.
    fn recorded(text: &str) -> Vec<Vec<Run>> {
        let run = |word: &str| {
            let (at, len) = word.split_once('+').expect("first+count");
            Run { at: at.parse().expect("a page"), len: len.parse().expect("a count") }
        };
        text.lines().map(|line| line.split(' ').skip(2).map(run).collect()).collect()
    }

    #[test]
    fn real_programs_are_told_apart() {
        // Rows of a numpy array at random; gets from LMDB.
        for text in [include_str!("../traces/rows"), include_str!("../traces/lmdb")] {
            let looks = recorded(text);
            let shape = shape(&looks[0], &looks[1]);
            assert!(shape.is_scattered() && !shape.has_strides(), "{shape:?}");
        }
        // Means of a numpy array's rows in their order; a column, which lies in every fourth page, with what is read around it.
        for text in [include_str!("../traces/mean"), include_str!("../traces/column")] {
            let looks = recorded(text);
            let shape = shape(&looks[0], &looks[1]);
            assert!(shape.is_ordered() && shape.fronts.iter().all(|front| front.stride == 1), "{shape:?}");
            assert!(!shape.fronts.is_empty());
        }
        // Blocks of rows, each read forward, the last one first; lists of an index of faiss, by two threads.
        for text in [include_str!("../traces/rev"), include_str!("../traces/faiss")] {
            let looks = recorded(text);
            let shape = shape(&looks[0], &looks[1]);
            assert!(shape.is_ordered() && !shape.is_scattered() && !shape.has_strides(), "{shape:?}");
        }
    }
}
