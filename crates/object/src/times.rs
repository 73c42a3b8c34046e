//! How long requests take. From this follow two decisions: when a second request is sent beside the first, and how much one request asks for.

use fastmap_tier::UNIT;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Requests that are remembered.
const REMEMBERED: usize = 128;
/// With fewer requests seen, nothing is known of the slowest.
const FEWEST: usize = 20;

/// Most bytes that a request outside of a stream fetches.
const LARGEST: u64 = 4 << 20;

/// The times of an object's requests.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Times until the first byte, seconds.
    first: VecDeque<f64>,
    /// Bytes a second of one request after its first byte; 0 until a request was long enough to tell.
    rate: f64,
}

impl Times {
    /// Notes a request: the time to its first byte, and its bytes in the time after that.
    pub fn note(&self, first: Duration, bytes: u64, rest: Duration) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.first.len() == REMEMBERED {
            seen.first.pop_front();
        }
        seen.first.push_back(first.as_secs_f64());
        // Bytes that come along with the first one seem to take no time. So requests of a unit say too little.
        if bytes > UNIT {
            let rate = (bytes - UNIT / 2) as f64 / rest.as_secs_f64().max(1e-6);
            seen.rate = if seen.rate == 0.0 { rate } else { seen.rate + (rate - seen.rate) / 8.0 };
        }
    }

    /// The time to the first byte after which a request counts as late: the 95th percentile, or twice the median if that is longer.
    pub fn late(&self) -> Option<Duration> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.first.len() >= FEWEST).then(|| seen.quantile(0.95).max(2 * seen.quantile(0.5)))
    }

    /// Most bytes, in whole units, that are worth asking for at once: they take as long to arrive as a request takes to be answered.
    pub fn chunk(&self) -> u64 {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.first.is_empty() || seen.rate == 0.0 {
            return 4 * UNIT;
        }
        let bytes = seen.quantile(0.5).as_secs_f64() * seen.rate;
        (bytes as u64 / UNIT * UNIT).clamp(UNIT, LARGEST)
    }
}

impl Seen {
    fn quantile(&self, of: f64) -> Duration {
        let mut sorted: Vec<f64> = self.first.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let at = ((sorted.len() as f64 * of) as usize).min(sorted.len().saturating_sub(1));
        Duration::from_secs_f64(sorted.get(at).copied().unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_is_learnt() {
        let times = Times::default();
        for at in 0..FEWEST {
            assert_eq!(times.late(), None);
            times.note(Duration::from_millis(at as u64), UNIT, Duration::ZERO);
        }
        assert_eq!(times.late(), Some(Duration::from_millis(20)));
    }

    #[test]
    fn chunks_are_between_a_unit_and_the_largest() {
        let times = Times::default();
        assert_eq!(times.chunk(), 4 * UNIT);
        times.note(Duration::from_millis(1), 4 * UNIT, Duration::from_secs(1));
        assert_eq!(times.chunk(), UNIT);
        let times = Times::default();
        times.note(Duration::from_secs(1), 4 * UNIT, Duration::from_millis(1));
        assert_eq!(times.chunk(), LARGEST);
    }
}
