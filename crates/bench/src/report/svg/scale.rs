//! From values to places along an axis, and the round values that are named there.

use super::text_width;
use crate::report::words::tick;

/// One axis's scale.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// From the least to the greatest of `values`, and from zero if that is to be seen; with `log`, zeros and less are no values.
    /// It is drawn from `from` to `to`.
    pub fn of(values: impl Iterator<Item = f64>, log: bool, from_zero: bool, (from, to): (f64, f64)) -> Scale {
        let values = values.filter(|v| v.is_finite() && (!log || *v > 0.0));
        let (mut low, mut high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = if log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if log {
            low = down(low);
            high = up(high);
            if low == high {
                (low, high) = (low / 10.0, high * 10.0);
            }
        } else {
            if from_zero {
                (low, high) = (low.min(0.0), high.max(0.0));
            }
            if low == high {
                (low, high) = if low == 0.0 { (0.0, 1.0) } else { (low - low.abs() / 2.0, low + low.abs() / 2.0) };
            }
            let step = step(high - low, 12);
            (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        }
        Scale { log, low, high, from, to }
    }

    /// Bars on a logarithmic axis begin below the smallest, or it would not be seen.
    pub fn with_room_below(self) -> Scale {
        if self.log { Scale { low: self.low / 2.0, ..self } } else { self }
    }

    /// Where a value is.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Where bars begin.
    pub fn base(&self) -> f64 {
        if self.log { self.from } else { self.at(0.0) }
    }

    /// Round values on it, about `most` of them.
    pub fn ticks(&self, most: usize) -> Vec<f64> {
        let most = most.max(2);
        if !self.log {
            let step = step(self.high - self.low, most);
            let first = (self.low / step).ceil() as i64;
            return (first..).map(|n| n as f64 * step).take_while(|v| *v <= self.high + step * 1e-6).collect();
        }
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let of = |multiples: &'static [f64]| {
            let all = decades.clone().flat_map(move |d| multiples.iter().map(move |m| m * 10f64.powi(d)));
            all.filter(|v| (self.low * 0.999..=self.high * 1.001).contains(v)).collect::<Vec<_>>()
        };
        let fine: [&[f64]; 2] = [&[1.0, 2.0, 5.0], &[1.0, 3.0]];
        let ticks = fine.into_iter().map(of).find(|ticks| ticks.len() <= most);
        ticks.unwrap_or_else(|| {
            let whole = of(&[1.0]);
            let every = whole.len().div_ceil(most);
            whole.into_iter().step_by(every).collect()
        })
    }

    /// Those ticks of a lying axis whose names do not run into each other.
    pub fn apart(&self, ticks: &[f64]) -> Vec<f64> {
        let mut end = f64::NEG_INFINITY;
        let mut kept = Vec::new();
        for &t in ticks {
            let half = text_width(&tick(t)) / 2.0 + 3.0;
            if self.at(t) - half >= end {
                end = self.at(t) + half;
                kept.push(t);
            }
        }
        kept
    }
}

/// The round number that cuts a span into at most so many pieces.
fn step(span: f64, most: usize) -> f64 {
    let least = span / most as f64;
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * decade).find(|s| *s >= least * 0.999).unwrap_or(decade * 10.0)
}

/// The next of 1, 2, 5, 10 … that is no more.
fn down(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|m| m * decade).find(|v| *v <= value * 1.001).unwrap_or(decade)
}

/// The next of 1, 2, 5, 10 … that is no less.
fn up(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * decade).find(|v| *v >= value * 0.999).unwrap_or(decade * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(values: &[f64], log: bool) -> Scale {
        Scale::of(values.iter().copied(), log, true, (0.0, 100.0))
    }

    #[test]
    fn linear() {
        let s = scale(&[3.0, 97.6], false);
        assert_eq!((s.at(0.0), s.at(50.0), s.at(100.0), s.base()), (0.0, 50.0, 100.0, 0.0));
        assert_eq!(s.ticks(5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(scale(&[-6.0, 10.0], false).base(), 37.5);
    }

    #[test]
    fn logarithmic() {
        let s = scale(&[0.0, 1.0, 1000.0], true);
        assert!((s.at(10.0) - 33.333).abs() < 0.01 && s.at(0.0) == 0.0);
        assert_eq!(s.ticks(5), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(scale(&[3.0, 18.0], true).ticks(5), [2.0, 5.0, 10.0, 20.0]);
        assert!(scale(&[1e-9, 1e9], true).ticks(5).len() <= 7);
    }

    #[test]
    fn nothing_one_value_or_only_zeros_still_make_an_axis() {
        for (values, log) in
            [(&[][..], false), (&[], true), (&[0.0], false), (&[0.0], true), (&[7.0], false), (&[7.0], true)]
        {
            let s = scale(values, log);
            assert!(s.low < s.high && s.ticks(5).len() >= 2 && s.at(7.0).is_finite(), "{values:?} {log}: {s:?}");
        }
    }
}
