//! A summary of all comparisons: where FastMap is ahead, level or behind.

use super::words::{count, times};
use super::{Results, names};
use crate::results::{Headline, Spread};

/// A ratio this close to 1 is level, whatever its repetitions are.
const LEVEL: f64 = 0.03;

/// The verdict on a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every repetition is at least as good, and the median is better by more than `LEVEL`.
    Ahead,
    /// Repetitions are on both sides of 1, or the median is within `LEVEL` of 1.
    Level,
    /// No repetition is better, and the median is worse by more than `LEVEL`.
    Behind,
}

impl Verdict {
    /// All verdicts, best first.
    pub const ALL: [Verdict; 3] = [Verdict::Ahead, Verdict::Level, Verdict::Behind];

    /// The verdict on a ratio.
    pub fn of(ratio: Spread) -> Verdict {
        match ratio {
            r if r.low >= 1.0 && r.median > 1.0 + LEVEL => Verdict::Ahead,
            r if r.high <= 1.0 && r.median < 1.0 - LEVEL => Verdict::Behind,
            _ => Verdict::Level,
        }
    }

    /// The verdict in one word.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ahead => "ahead",
            Verdict::Level => "level",
            Verdict::Behind => "behind",
        }
    }

    /// The heading above comparisons with this verdict.
    pub fn heading(self) -> &'static str {
        match self {
            Verdict::Ahead => "FastMap is ahead",
            Verdict::Level => "Level",
            Verdict::Behind => "FastMap is behind",
        }
    }
}

/// The reason why a ratio is level, if its median is not close to 1.
pub fn why_level(ratio: Spread) -> Option<&'static str> {
    let crosses = ratio.low < 1.0 && ratio.high > 1.0 && (ratio.median - 1.0).abs() > LEVEL;
    (Verdict::of(ratio) == Verdict::Level && crosses).then_some("repetitions fall on both sides of 1")
}

/// A headline with its experiment.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// The number of the experiment.
    pub experiment: usize,
    /// The headline.
    pub headline: &'a Headline,
}

/// All headlines, in order.
pub fn all(experiments: &[Results]) -> Vec<Said<'_>> {
    let of = |(experiment, results)| -> Vec<Said<'_>> {
        let results: &Results = results;
        results.headlines.iter().map(|headline| Said { experiment, headline }).collect()
    };
    experiments.iter().enumerate().flat_map(of).collect()
}

/// The headlines with one verdict, the largest ratio first.
pub fn with<'a>(all: &[Said<'a>], verdict: Verdict) -> Vec<Said<'a>> {
    let mut some: Vec<_> = all.iter().copied().filter(|s| Verdict::of(s.headline.ratio) == verdict).collect();
    some.sort_by(|a, b| b.headline.ratio.median.total_cmp(&a.headline.ratio.median));
    some
}

/// How to read the ratios.
pub const HOW_TO_READ: &str = "A ratio says how many times as good FastMap is as what it was compared with in the same run: above 1 \
    FastMap is better, also where less is better, as of time. It is a median over repetitions; in brackets stand the lowest and the \
    highest of them. Where these are on both sides of 1, or the median is within 3 % of it, the two are called level.";

/// A summary of all comparisons in a few sentences.
pub fn in_short(experiments: &[Results]) -> String {
    let all = all(experiments);
    if all.is_empty() {
        return "None of these experiments compares FastMap with anything.".to_owned();
    }
    let [ahead, level, behind] = Verdict::ALL.map(|verdict| with(&all, verdict));
    let mut text = format!(
        "Of {} FastMap is ahead in {}, level in {} and behind in {}.",
        count(all.len(), "comparison"),
        ahead.len(),
        level.len(),
        behind.len()
    );
    let once = all.iter().filter(|s| s.headline.ratio.low == s.headline.ratio.high).count();
    if once > 0 {
        text.push_str(&format!(" Without a repetition, which can mislead: {once}."));
    }
    let names = names(experiments);
    let mut most = |what: &str, said: Option<&Said<'_>>| {
        if let Some(Said { experiment, headline }) = said {
            let (ratio, of) = (times(headline.ratio.median), &headline.what);
            let name = if names.len() == 1 { String::new() } else { format!("{}: ", names[*experiment]) };
            text.push_str(&format!(" {what} {ratio} ({name}{of})."));
        }
    };
    most("The greatest gain is", ahead.first());
    most("The greatest loss is", behind.last());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::results;

    fn headline(what: &str, low: f64, median: f64, high: f64) -> Headline {
        Headline { what: what.to_owned(), ratio: Spread { median, low, high }, paper: None }
    }

    #[test]
    fn a_spread_across_1_is_level_however_good_the_median() {
        let verdict = |low, median, high| Verdict::of(Spread { median, low, high });
        assert_eq!(verdict(1.1, 1.2, 1.3), Verdict::Ahead);
        assert_eq!(verdict(0.9, 1.5, 1.9), Verdict::Level);
        assert_eq!(verdict(1.0, 1.02, 1.04), Verdict::Level);
        assert_eq!(verdict(0.5, 0.6, 1.1), Verdict::Level);
        assert_eq!(verdict(0.5, 0.6, 0.9), Verdict::Behind);
        assert!(why_level(Spread { median: 1.5, low: 0.9, high: 1.9 }).is_some());
        assert!(why_level(Spread { median: 1.01, low: 0.9, high: 1.9 }).is_none());
    }

    #[test]
    fn the_whole_in_short() {
        let kv = vec![headline("load A", 1.9, 2.0, 2.1), headline("load E", 0.7, 0.8, 0.9)];
        let all = [results("kv", kv, Vec::new()), results("scale", vec![headline("reads", 0.9, 1.0, 1.1)], Vec::new())];
        assert_eq!(
            in_short(&all),
            "Of 3 comparisons FastMap is ahead in 1, level in 1 and behind in 1. The greatest gain is 2.00x (kv: load A). \
             The greatest loss is 0.80x (kv: load E)."
        );
        assert!(in_short(&all[..0]).starts_with("None"));
    }
}
