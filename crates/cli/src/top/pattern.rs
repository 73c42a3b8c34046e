//! Tells the pattern in which a mapping is touched, in one word.

use fastmap_steer::Looks;
use fastmap_steer::classify::{Pieces, Shape, is_dense, pieces};

/// The pattern in which pages of a mapping were touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pattern {
    /// No page was touched.
    #[default]
    Idle,
    Forward,
    Backward,
    Stride,
    Scattered,
    /// Pieces of about 2 MiB at different places, each read forward.
    Pieces,
    /// Long rows of pages, from slow storage, while memory is free.
    Load,
    /// Several of these patterns, or none that is clear.
    Mixed,
}

impl Pattern {
    /// The word that is shown.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Idle => "idle",
            Pattern::Forward => "forward",
            Pattern::Backward => "backward",
            Pattern::Stride => "stride",
            Pattern::Scattered => "scattered",
            Pattern::Pieces => "pieces",
            Pattern::Load => "load",
            Pattern::Mixed => "mixed",
        }
    }

    /// Tells the pattern from three looks at the mapping. `is_slow`: faults wait as for slow storage, and memory is free. `offset`: the mapping's first
    /// page in the file. `is_mapped`: whether a page is mapped now.
    pub fn of(looks: &Looks, is_slow: bool, offset: u64, is_mapped: impl Fn(u64) -> bool) -> Pattern {
        let all = looks.all();
        if is_slow && is_dense(&all) == Some(true) {
            return Pattern::Load;
        }
        let (found, _) = looks.shape();
        let begun = if found.is_scattered() { Pieces::default() } else { pieces(&all, offset, is_mapped) };
        Pattern::told(&found, begun)
    }

    fn told(shape: &Shape, pieces: Pieces) -> Pattern {
        match shape {
            shape if shape.windows == 0 => Pattern::Idle,
            _ if pieces.are_blocks => Pattern::Pieces,
            shape if shape.is_scattered() => Pattern::Scattered,
            shape if shape.has_strides() => Pattern::Stride,
            shape if shape.is_backward() => Pattern::Backward,
            shape if shape.is_ordered() && shape.fronts.iter().all(|front| front.stride > 0) => Pattern::Forward,
            _ => Pattern::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastmap_steer::Run;

    fn runs(runs: &[(u64, u64)]) -> Vec<Run> {
        runs.iter().map(|(at, len)| Run { at: *at, len: *len }).collect()
    }

    fn told(before: &[(u64, u64)], first: &[(u64, u64)], second: &[(u64, u64)], is_slow: bool) -> &'static str {
        let (before, first, second) = (runs(before), runs(first), runs(second));
        Pattern::of(&Looks { before, first, second }, is_slow, 0, |_| false).name()
    }

    #[test]
    fn each_pattern_has_its_word() {
        assert_eq!(told(&[], &[], &[], false), "idle");
        assert_eq!(told(&[], &[(5000, 400)], &[(5400, 300)], false), "forward");
        assert_eq!(told(&[], &[(5400, 300)], &[(5000, 400)], false), "backward");
        let every = |from: u64, step| (0..40).map(|index: u64| (from + index * step, 1)).collect::<Vec<_>>();
        assert_eq!(told(&[], &every(1000, 64), &every(1000 + 40 * 64, 64), false), "stride");
        let odd: Vec<_> = (1..40).map(|index: u64| (index * index * 97, 1)).collect();
        assert_eq!(told(&odd, &odd[..20], &odd[20..], false), "scattered");
        let blocks: Vec<_> = [3, 9, 17, 20, 31, 44, 58, 70, 91].map(|at| (at * 512, 512)).to_vec();
        assert_eq!(told(&[], &blocks[..5], &blocks[5..], false), "pieces");
        assert_eq!(told(&[(0, 300)], &[(300, 200)], &[(500, 200)], true), "load");
        assert_eq!(told(&[(0, 300)], &[(300, 200)], &[(500, 200)], false), "forward");
    }

    #[test]
    fn few_touches_are_told_from_the_long_look() {
        let odd: Vec<_> = (1..40).map(|index: u64| (index * index * 97, 1)).collect();
        assert_eq!(told(&odd, &[(3, 1)], &[(900_000, 1)], false), "scattered");
        assert_eq!(told(&[], &[], &[(4, 1)], false), "scattered");
    }
}
