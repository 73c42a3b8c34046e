//! One line of what was seen and done. It is complete at any time, since a program may be killed at any time.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

const BYTES: usize = 1024;

/// A line that the watcher writes and another thread may read. It has no lock: a watcher that was ended while it held one would hold it
/// for good.
#[derive(Debug)]
pub struct Report {
    /// Odd while the text changes.
    version: AtomicUsize,
    len: AtomicUsize,
    text: UnsafeCell<[u8; BYTES]>,
}

// SAFETY: one watcher writes; a reader takes a copy only if the version stayed the same and even.
unsafe impl Sync for Report {}

impl Default for Report {
    fn default() -> Report {
        Report::new()
    }
}

impl Report {
    /// An empty line: nothing was done yet.
    pub const fn new() -> Report {
        Report { version: AtomicUsize::new(0), len: AtomicUsize::new(0), text: UnsafeCell::new([0; BYTES]) }
    }

    /// Replaces the line. Only the watcher calls this and, before it starts, the thread that starts it.
    pub fn set(&self, line: &str) {
        let len = (0..=line.len().min(BYTES)).rev().find(|len| line.is_char_boundary(*len)).unwrap_or(0);
        // In a child of fork(2) a thread that is not there may have left it odd.
        let odd = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        for (index, byte) in line.as_bytes()[..len].iter().enumerate() {
            // SAFETY: within the array; readers expect it to change.
            unsafe { self.text.get().cast::<u8>().add(index).write_volatile(*byte) };
        }
        self.len.store(len, Ordering::Relaxed);
        self.version.store(odd + 1, Ordering::Release);
    }

    /// Replaces the line by what patterns have done, each with whether the engine, by a cache of `size` bytes, may do better, and by `notes`.
    pub(crate) fn tell(&self, done: &[(String, bool)], notes: &[String], size: u64) {
        let may_be_cached = done.iter().any(|(_, may_be_cached)| *may_be_cached);
        let cache = may_be_cached.then(|| format!("--cache {}MiB may serve it faster", size >> 20));
        let words: Vec<&str> =
            done.iter().map(|(words, _)| words).chain(notes).chain(&cache).map(String::as_str).collect();
        if !words.is_empty() {
            self.set(&words.join("; "));
        }
    }

    /// Copies the line to `into`, and returns its length in bytes. Returns 0 if nothing was done.
    pub fn read(&self, into: &mut [u8; BYTES]) -> usize {
        for _ in 0..1000 {
            let version = self.version.load(Ordering::Acquire);
            let len = self.len.load(Ordering::Relaxed).min(BYTES);
            for (index, byte) in into[..len].iter_mut().enumerate() {
                // SAFETY: within the array; a copy that was torn is not used.
                *byte = unsafe { self.text.get().cast::<u8>().add(index).read_volatile() };
            }
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return len;
            }
        }
        0
    }

    /// The line, if something was done.
    pub fn text(&self) -> Option<String> {
        let mut bytes = [0; BYTES];
        let len = self.read(&mut bytes);
        (len > 0).then(|| String::from_utf8_lossy(&bytes[..len]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_read_and_a_long_one_is_cut() {
        let report = Report::new();
        let mut bytes = [0; BYTES];
        assert_eq!(report.read(&mut bytes), 0);
        report.set("random");
        assert_eq!(report.read(&mut bytes), 6);
        assert_eq!(&bytes[..6], b"random");
        report.set(&"ä".repeat(BYTES));
        assert_eq!(report.read(&mut bytes), BYTES);
    }
}
