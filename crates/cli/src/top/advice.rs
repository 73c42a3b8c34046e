//! One line of advice for a process. There is none where nothing is wrong, or where FastMap steers the process already.

use std::time::Duration;

use fastmap_steer::observe::may_load;

use super::pattern::Pattern;

/// The facts about a process that advice depends on. Rates are per second.
#[derive(Debug, Clone)]
pub struct Facts {
    pub pid: u32,
    pub pattern: Pattern,
    /// Page faults that waited for a device, per second.
    pub waited_faults: f64,
    pub read_bytes: f64,
    /// Bytes read for each byte touched.
    pub read_per_touched: Option<f64>,
    /// The time that one fault waits: an upper bound.
    pub wait: Option<Duration>,
    /// A thread was seen to wait for storage in at least two of the last looks, of which there are at most three.
    pub is_blocked: bool,
    /// Pages that its memory group read again soon after they were dropped, per second.
    pub refaults: Option<f64>,
    pub mapped_bytes: u64,
    /// Bytes of files that can be in memory at once.
    pub room_bytes: u64,
    pub is_steered: bool,
}

/// Below these rates, in faults and bytes per second, nothing is wrong. Steering has the same limits.
const FAULTS: f64 = 30.0;
const READ: f64 = 8e6;
/// From this many bytes read for each byte touched on, reading around is in vain.
const DEAR: f64 = 4.0;
/// A fault that waits so long is one of slow storage.
const SLOW: Duration = Duration::from_micros(300);

impl Facts {
    /// Whether more is mapped than fits into memory.
    fn is_short(&self) -> bool {
        self.mapped_bytes > self.room_bytes
    }

    /// Whether faults wait as long as they do for slow storage.
    pub fn is_slow(&self) -> bool {
        self.is_blocked && self.wait.is_some_and(|wait| wait >= SLOW)
    }

    /// Whether all that is mapped fits into memory, with room to spare.
    pub fn fits(&self) -> bool {
        self.mapped_bytes <= may_load(self.room_bytes)
    }

    /// The line of advice.
    pub fn advice(&self) -> Option<String> {
        let is_calm = self.waited_faults < FAULTS && self.read_bytes < READ;
        match self.pattern {
            _ if self.is_steered => None,
            Pattern::Load => self.of_load(),
            _ if is_calm || !self.is_short() => None,
            Pattern::Scattered => self.of_scattered(),
            Pattern::Backward | Pattern::Stride => self.of_waits(),
            Pattern::Pieces => self.of_pieces(),
            Pattern::Forward => self.of_loop(),
            Pattern::Idle | Pattern::Mixed => None,
        }
    }

    fn of_load(&self) -> Option<String> {
        let wait = self.wait.filter(|_| self.is_slow() && self.fits())?;
        let pid = self.pid;
        Some(format!("waits {} a fault and memory is free: `fastmap run` or `fastmap attach {pid}`", time(wait)))
    }

    fn of_scattered(&self) -> Option<String> {
        let ratio = self.read_per_touched.filter(|ratio| *ratio >= DEAR)?;
        Some(format!("reads {ratio:.0} MB for each MB touched: `fastmap attach {}`", self.pid))
    }

    fn of_waits(&self) -> Option<String> {
        let (waits, pid) = (self.waited_faults, self.pid);
        (waits >= FAULTS).then(|| format!("waits {waits:.0} times a second: `fastmap run` or `fastmap attach {pid}`"))
    }

    /// Steering leaves pieces to the kernel.
    fn of_pieces(&self) -> Option<String> {
        let waits = self.waited_faults;
        (waits >= FAULTS).then(|| format!("waits {waits:.0} times a second, for pieces: `fastmap run --cache SIZE`"))
    }

    /// Advice for a forward walk that begins again, and then reads pages again that were dropped since.
    fn of_loop(&self) -> Option<String> {
        let again = self.refaults? * 4096.0;
        let is_most = again >= READ && again * 2.0 >= self.read_bytes;
        is_most.then(|| {
            format!("reads again what was dropped, {:.0} MB a second: `fastmap run` keeps a part of it", again / 1e6)
        })
    }
}

/// A time for people: 310us, 2.1ms, 1.0s.
pub fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 0.9995e-3 => format!("{:.0}us", seconds * 1e6),
        seconds if seconds < 0.09995 => format!("{:.1}ms", seconds * 1e3),
        seconds if seconds < 0.9995 => format!("{:.0}ms", seconds * 1e3),
        seconds if seconds < 99.95 => format!("{seconds:.1}s"),
        seconds => format!("{seconds:.0}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The facts of a process with 1 GiB mapped and 256 MiB of room.
    fn facts(pattern: Pattern) -> Facts {
        Facts {
            pid: 4711,
            pattern,
            waited_faults: 500.0,
            read_bytes: 64e6,
            read_per_touched: Some(18.2),
            wait: Some(Duration::from_micros(2100)),
            is_blocked: true,
            refaults: Some(0.0),
            mapped_bytes: 1 << 30,
            room_bytes: 256 << 20,
            is_steered: false,
        }
    }

    #[test]
    fn what_is_wrong_has_a_line() {
        let line = |pattern| facts(pattern).advice().unwrap();
        assert_eq!(line(Pattern::Scattered), "reads 18 MB for each MB touched: `fastmap attach 4711`");
        for pattern in [Pattern::Backward, Pattern::Stride] {
            assert_eq!(line(pattern), "waits 500 times a second: `fastmap run` or `fastmap attach 4711`");
        }
        assert_eq!(line(Pattern::Pieces), "waits 500 times a second, for pieces: `fastmap run --cache SIZE`");
        let load = Facts { room_bytes: 2 << 30, ..facts(Pattern::Load) }.advice().unwrap();
        assert_eq!(load, "waits 2.1ms a fault and memory is free: `fastmap run` or `fastmap attach 4711`");
        let round = Facts { refaults: Some(10_000.0), ..facts(Pattern::Forward) }.advice().unwrap();
        assert!(round.starts_with("reads again what was dropped, 41 MB a second: `fastmap run`"), "{round}");
    }

    #[test]
    fn what_is_right_has_none() {
        let none = |facts: Facts| assert_eq!(facts.advice(), None, "{facts:?}");
        let all = [Pattern::Scattered, Pattern::Backward, Pattern::Stride, Pattern::Pieces, Pattern::Forward];
        for pattern in all.into_iter().chain([Pattern::Load, Pattern::Idle, Pattern::Mixed]) {
            none(Facts { is_steered: true, ..facts(pattern) });
            let calm = Facts { waited_faults: 3.0, read_bytes: 1e6, is_blocked: false, ..facts(pattern) };
            none(Facts { room_bytes: 2 << 30, ..calm.clone() });
            none(calm);
        }
        // Nothing is read in vain; everything fits; or threads sleep for other reasons.
        none(Facts { read_per_touched: Some(1.1), ..facts(Pattern::Scattered) });
        none(Facts { room_bytes: 2 << 30, ..facts(Pattern::Scattered) });
        none(Facts { is_blocked: false, room_bytes: 2 << 30, ..facts(Pattern::Load) });
        none(facts(Pattern::Load));
        none(facts(Pattern::Forward));
    }

    #[test]
    fn times_are_short() {
        let times = [0, 310_000, 999_600, 2_100_000, 99_960_000, 1_000_000_000, 123_000_000_000];
        let texts = times.map(|nanos| time(Duration::from_nanos(nanos)));
        assert_eq!(texts, ["0us", "310us", "1.0ms", "2.1ms", "100ms", "1.0s", "123s"]);
    }
}
