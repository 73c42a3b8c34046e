//! What two runs come to, in plain words.

use std::path::PathBuf;

use fastmap_cli::failure::Failure;
use fastmap_cli::size::Size;
use fastmap_cli::table::{figure, render};

use crate::substrates::programs::difference;
use crate::substrates::programs::lookups::Looked;

/// How the two are called.
pub const KERNEL: &str = "kernel mmap";
pub const OURS: &str = "fastmap run";

/// What is no gain and no loss: differences of a tenth.
const SAME: f64 = 1.1;

/// The end of a run is told by itself where that is not most of it.
const LAST: f64 = 5.0;

/// One of them.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// What the program said.
    pub looked: Looked,
    /// The most memory there was in use, bytes.
    pub peak: u64,
}

impl Run {
    /// Of a thousand lookups all but one are as fast as this, microseconds.
    fn slow(&self) -> f64 {
        self.looked.latency_us[1]
    }
}

/// Both.
pub struct Told {
    /// The file.
    pub bytes: u64,
    /// What each run might use of memory; nothing limited it if none.
    pub memory: Option<u64>,
    /// Then why, and the command `fastmap`.
    pub unlimited: Option<(String, PathBuf)>,
    /// On kernel mmap.
    pub kernel: Run,
    /// Under `fastmap run`.
    pub ours: Run,
}

impl Told {
    /// The table, and what was gained.
    ///
    /// # Errors
    ///
    /// They read something else.
    pub fn text(&self) -> Result<String, Failure> {
        let compared = self.compared()?;
        let memory = match self.memory {
            Some(memory) => format!("with memory for a quarter of it and a little ({})", mib(memory)),
            None => "with NO LIMIT on memory".to_owned(),
        };
        Ok(format!(
            "A program that maps a file of {} and looks keys up in it, {memory}; each time from a cold start:\n\n{}\n{}\n{}\n\n\
             The first {compared} lookups, which both did, gave the same in both.\n",
            Size(self.bytes),
            self.table(),
            self.gained(),
            self.how(),
        ))
    }

    /// Lookups whose results were compared.
    fn compared(&self) -> Result<u64, Failure> {
        let (kernel, ours) = (&self.kernel.looked, &self.ours.looked);
        if let Some(what) = difference(&kernel.sums, &ours.sums) {
            let what = format!("it read other data than on {KERNEL}: {what}");
            return Err(Failure::new(
                format!("lookups under `{OURS}`"),
                what,
                "this is an error in fastmap: please report it",
            ));
        }
        Ok(kernel.lookups.min(ours.lookups))
    }

    /// Whether the end is told by itself.
    fn has_end(&self) -> bool {
        self.kernel.looked.seconds.min(self.ours.looked.seconds) >= 2.0 * LAST
    }

    fn table(&self) -> String {
        let mut headings = vec!["", "lookups/s", "last 5 s", "slowest of 1000", "memory"];
        let row = |name: &str, run: &Run| {
            let Run { looked, peak, .. } = run;
            vec![name.to_owned(), rate(looked.rate()), rate(looked.last(LAST)), time(run.slow()), mib(*peak)]
        };
        let mut rows = vec![row(KERNEL, &self.kernel), row(OURS, &self.ours)];
        if !self.has_end() {
            headings.remove(2);
            rows.iter_mut().for_each(|row| drop(row.remove(2)));
        }
        render(&headings, &rows)
    }

    /// In one sentence.
    fn gained(&self) -> String {
        let (kernel, ours) = (&self.kernel.looked, &self.ours.looked);
        let whole = ours.rate() / kernel.rate();
        let end = if self.has_end() { ours.last(LAST) / kernel.last(LAST) } else { whole };
        let slow = self.kernel.slow() / self.ours.slow().max(1e-3);
        let and_end = match self.has_end() && (end / whole).max(whole / end) >= SAME {
            true => format!(", {} in the last 5 seconds", times(end)),
            false => String::new(),
        };
        let done = format!("the same program did {} as many lookups{and_end}", times(whole));
        let slowest = |to: &str| {
            let (from, now) = (time(self.kernel.slow()), time(self.ours.slow()));
            format!("the slowest of a thousand took {now}{to} {from}")
        };
        if self.memory.is_none() {
            return format!(
                "Nothing could be gained here, since the whole file fits into memory. Under `{OURS}` {done}."
            );
        }
        if end >= SAME || whole >= SAME {
            let slowest = match slow {
                slow if slow >= SAME => format!("; {}", slowest(" instead of")),
                slow if slow <= 1.0 / SAME => format!("; but {}", slowest(" instead of")),
                _ => String::new(),
            };
            return format!("Under `{OURS}` {done}{slowest}.");
        }
        if slow >= SAME && whole >= 1.0 / SAME {
            return format!(
                "Under `{OURS}` {}; it did about as many lookups ({}).",
                slowest(" instead of"),
                times(whole)
            );
        }
        format!("Nothing was gained here: under `{OURS}` {done}.")
    }

    /// What was done for it, and what could be.
    fn how(&self) -> String {
        if let Some((why, fastmap)) = &self.unlimited {
            return format!(
                "Memory could not be limited: {why}; nor did `systemd-run --user --scope` help. To see what there is to gain where files are \
                 larger than memory: `sudo {} bench try`.",
                fastmap.display()
            );
        }
        format!(
            "FastMap steered it: the kernel served the file, and was told what to read and what not. FASTMAP_LOG=steer {OURS} says what was done."
        )
    }
}

/// `34 times`.
fn times(ratio: f64) -> String {
    format!("{} times", if ratio >= 10.0 { format!("{ratio:.0}") } else { figure(ratio) })
}

/// A rate of lookups, short.
pub fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{} M", figure(rate / 1e6)),
        rate if rate >= 1e3 => format!("{} k", figure(rate / 1e3)),
        rate => figure(rate),
    }
}

/// Microseconds.
fn time(us: f64) -> String {
    if us >= 1e3 { format!("{} ms", figure(us / 1e3)) } else { format!("{} µs", figure(us)) }
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lookups: u64, last: u64, slow: f64, sums: &str) -> Run {
        let looked = Looked {
            lookups,
            seconds: 20.0,
            latency_us: [10.0, slow, 1e5],
            peak: 0,
            sums: sums.split_whitespace().map(str::to_owned).collect(),
            course: vec![(1.0, 1), (15.0, lookups - last)],
        };
        Run { looked, peak: 200 << 20 }
    }

    fn told(kernel: Run, ours: Run) -> Told {
        Told { bytes: 1 << 30, memory: Some(288 << 20), unlimited: None, kernel, ours }
    }

    #[test]
    fn what_was_gained_is_said() {
        let ours = run(800_000, 300_000, 900.0, "a b c d");
        let text = told(run(20_000, 5000, 9100.0, "a b"), ours).text().unwrap();
        for part in [
            "a file of 1GiB and looks keys up in it, with memory for a quarter of it and a little (288 MiB)",
            "kernel mmap     1.00 k    1.00 k          9.10 ms  200 MiB",
            "fastmap run     40.0 k    60.0 k           900 µs  200 MiB",
            "Under `fastmap run` the same program did 40 times as many lookups, 60 times in the last 5 seconds; the slowest of a thousand took \
             900 µs instead of 9.10 ms.",
            "FastMap steered it: the kernel served the file",
            "The first 20000 lookups",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn that_nothing_was_gained_is_said() {
        let text = told(run(20_000, 5000, 900.0, "a"), run(19_000, 5000, 900.0, "a")).text().unwrap();
        assert!(
            text.contains(
                "Nothing was gained here: under `fastmap run` the same program did 0.950 times as many lookups.\n"
            ),
            "{text}"
        );
        let slower = told(run(20_000, 5000, 900.0, "a"), run(10_000, 2500, 90.0, "a")).gained();
        assert!(slower.starts_with("Nothing was gained here"), "fewer lookups are no gain, however fast: {slower}");
        let steadier = told(run(20_000, 5000, 900.0, "a"), run(20_000, 5000, 90.0, "a")).gained();
        assert!(
            steadier.starts_with("Under `fastmap run` the slowest of a thousand took 90.0 µs instead of 900 µs"),
            "{steadier}"
        );
        let late = told(run(20_000, 5000, 90.0, "a"), run(40_000, 10_000, 900.0, "a")).gained();
        assert!(late.contains("2.00 times as many lookups; but the slowest of a thousand took 900 µs"), "{late}");
    }

    #[test]
    fn without_a_limit_it_says_so() {
        let unlimited = Some(("/sys: denied".to_owned(), PathBuf::from("/opt/fastmap")));
        let told = Told { memory: None, unlimited, ..told(run(90, 5, 1.0, "a"), run(900, 50, 1.0, "a")) };
        let text = told.text().unwrap();
        for part in [
            "NO LIMIT on memory",
            "Nothing could be gained here",
            "limited: /sys: denied;",
            "`sudo /opt/fastmap bench try`",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn another_answer_fails() {
        let why = told(run(90, 5, 1.0, "a b"), run(90, 5, 1.0, "a c d")).text().unwrap_err().to_string();
        let said = "lookups under `fastmap run`: it read other data than on kernel mmap: batch 1 has the sum c where b belongs";
        assert!(why.starts_with(said), "{why}");
    }
}
