//! The two kinds of record: which pages of a file were in memory, and which files a program had mapped. Each begins with a line that
//! names its kind and ends with a checksum of all before; numbers are LEB128. All that is read is checked.

use super::PageSet;
use crate::PAGE;
use crate::run::Run;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The pages of a file that were in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The file: an absolute path.
    pub path: PathBuf,
    /// Its version then.
    pub version: Version,
    /// When that was, in seconds since 1970.
    pub saved: u64,
    /// The runs that were in memory, in order.
    pub runs: Vec<Warm>,
}

/// Tells apart what a file holds at different times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Its length in bytes.
    pub length: u64,
    /// When it was written last: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
}

/// Pages of a file that adjoin one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warm {
    /// The pages.
    pub pages: Run,
    /// Whether a program had them mapped, or they were in memory before, too.
    pub is_hot: bool,
}

/// Why a record cannot be used.
pub(super) type Damage = &'static str;

const PAGES: &[u8] = b"fastmap warm pages 1\n";
const FILES: &[u8] = b"fastmap warm files 1\n";
/// Runs of one file at most. Each has two numbers, most of them of 1 or 2 bytes.
const MOST_RUNS: usize = 1 << 19;
/// Bytes of a record at most.
pub(super) const MOST_BYTES: u64 = 8 << 20;
/// Files of a program at most.
pub(super) const MOST_FILES: usize = 256;
const LONGEST_PATH: u64 = 4096;

impl Version {
    /// Of a file now.
    pub fn of(file: &Metadata) -> Version {
        Version { length: file.len(), modified: (file.mtime(), file.mtime_nsec() as u32) }
    }
}

impl Remembered {
    /// A file of which the pages `present` are in memory. Those that are in `hot`, too, are hot.
    pub(super) fn new(path: &Path, version: Version, saved: u64, present: &PageSet, hot: &PageSet) -> Remembered {
        let mut gap = 0;
        let runs = loop {
            // Where there are too many runs, the smallest gaps are filled.
            match runs(present, hot, gap) {
                Some(runs) => break runs,
                None => gap = (gap * 2).max(1),
            }
        };
        Remembered { path: path.to_owned(), version, saved, runs }
    }

    /// Bytes that were in memory.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.pages.len * PAGE).sum()
    }

    /// Of these, bytes that were hot.
    pub fn hot_bytes(&self) -> u64 {
        self.runs.iter().filter(|run| run.is_hot).map(|run| run.pages.len * PAGE).sum()
    }

    /// The pages that were in memory.
    pub(super) fn pages(&self) -> PageSet {
        self.runs.iter().map(|run| run.pages.at..run.pages.end()).collect()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Out(PAGES.to_vec());
        out.path(&self.path);
        out.number(self.version.length);
        // A time before 1970 is below zero: its bits are kept.
        out.number(self.version.modified.0 as u64);
        out.number(u64::from(self.version.modified.1));
        out.number(self.saved);
        out.number(self.runs.len() as u64);
        let mut end = 0;
        for run in &self.runs {
            out.number(run.pages.at - end);
            out.number(run.pages.len * 2 + u64::from(run.is_hot));
            end = run.pages.end();
        }
        out.finish()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Remembered, Damage> {
        let mut rest = In::of(bytes, PAGES)?;
        let path = rest.path()?;
        let length = rest.number_below(1 << 63, "the length")?;
        let seconds = rest.number("the time of modification")? as i64;
        let nanoseconds = rest.number_below(1_000_000_000, "the time of modification")? as u32;
        let saved = rest.number("the time")?;
        let count = rest.number_below(MOST_RUNS as u64 + 1, "the number of runs")?;
        let pages = length.div_ceil(PAGE);
        let (mut runs, mut end) = (Vec::new(), 0u64);
        for _ in 0..count {
            let at = end.checked_add(rest.number("a run")?).filter(|at| *at < pages).ok_or("a run is past the end")?;
            let word = rest.number("a run")?;
            let len = word / 2;
            if len == 0 || len > pages - at {
                return Err("a run is empty or past the end");
            }
            runs.push(Warm { pages: Run { at, len }, is_hot: word & 1 != 0 });
            end = at + len;
        }
        rest.finish()?;
        Ok(Remembered { path, version: Version { length, modified: (seconds, nanoseconds) }, saved, runs })
    }
}

/// Runs of present pages that are all hot, or all not. With a `gap` above 0, runs at most so many pages apart are one, which is hot if
/// one of them is. `None` if there are too many.
fn runs(present: &PageSet, hot: &PageSet, gap: u64) -> Option<Vec<Warm>> {
    let mut found: Vec<Warm> = Vec::new();
    for run in present.runs() {
        let mut at = run.start;
        while at < run.end {
            let is_hot = hot.has(at);
            let len = (at..run.end).take_while(|page| hot.has(*page) == is_hot).count() as u64;
            match found.last_mut().filter(|last| gap > 0 && at - last.pages.end() <= gap) {
                Some(last) => {
                    last.pages.len = at + len - last.pages.at;
                    last.is_hot |= is_hot;
                }
                None => found.push(Warm { pages: Run { at, len }, is_hot }),
            }
            if found.len() > MOST_RUNS {
                return None;
            }
            at += len;
        }
    }
    Some(found)
}

/// The list of files that a program had mapped.
pub(super) fn encode_files(files: &[PathBuf]) -> Vec<u8> {
    let files = &files[..files.len().min(MOST_FILES)];
    let mut out = Out(FILES.to_vec());
    out.number(files.len() as u64);
    files.iter().for_each(|path| out.path(path));
    out.finish()
}

pub(super) fn decode_files(bytes: &[u8]) -> Result<Vec<PathBuf>, Damage> {
    let mut rest = In::of(bytes, FILES)?;
    let count = rest.number_below(MOST_FILES as u64 + 1, "the number of files")?;
    let files = (0..count).map(|_| rest.path()).collect::<Result<_, _>>()?;
    rest.finish()?;
    Ok(files)
}

/// FNV-1a, 64 bits.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

struct Out(Vec<u8>);

impl Out {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn path(&mut self, path: &Path) {
        let bytes = path.as_os_str().as_bytes();
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn finish(mut self) -> Vec<u8> {
        let sum = hash(&self.0);
        self.0.extend_from_slice(&sum.to_le_bytes());
        self.0
    }
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    /// The bytes between the line that names the kind and the checksum, which is checked.
    fn of(bytes: &'a [u8], kind: &[u8]) -> Result<In<'a>, Damage> {
        let rest = bytes.strip_prefix(kind).ok_or("it is no record, or of another version")?;
        let (rest, sum) = rest.split_last_chunk::<8>().ok_or("it is cut short")?;
        let covered = &bytes[..bytes.len() - sum.len()];
        if hash(covered) == u64::from_le_bytes(*sum) { Ok(In(rest)) } else { Err("its checksum is wrong") }
    }

    fn number(&mut self, what: Damage) -> Result<u64, Damage> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(what)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(what);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(what)
    }

    fn number_below(&mut self, end: u64, what: Damage) -> Result<u64, Damage> {
        self.number(what).and_then(|number| if number < end { Ok(number) } else { Err(what) })
    }

    fn path(&mut self) -> Result<PathBuf, Damage> {
        const WHAT: Damage = "a path";
        let length = self.number_below(LONGEST_PATH, WHAT)? as usize;
        let (path, rest) = self.0.split_at_checked(length).ok_or(WHAT)?;
        self.0 = rest;
        let is_path = path.starts_with(b"/") && !path.contains(&0);
        if is_path { Ok(OsStr::from_bytes(path).into()) } else { Err(WHAT) }
    }

    fn finish(self) -> Result<(), Damage> {
        if self.0.is_empty() { Ok(()) } else { Err("more follows than it has") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered() -> Remembered {
        let present = [0..5, 9..10, 300..3000].into_iter().collect();
        let hot = [3..6, 1000..1100].into_iter().collect();
        let version = Version { length: 3000 * PAGE - 1, modified: (-5, 999_999_999) };
        Remembered::new(Path::new("/data/a file"), version, 1_800_000_000, &present, &hot)
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let one = remembered();
        let run = |at, len, is_hot| Warm { pages: Run { at, len }, is_hot };
        let runs =
            [(0, 3, false), (3, 2, true), (9, 1, false), (300, 700, false), (1000, 100, true), (1100, 1900, false)];
        assert_eq!(one.runs, runs.map(|(at, len, is_hot)| run(at, len, is_hot)));
        assert_eq!((one.bytes(), one.hot_bytes()), (2706 * PAGE, 102 * PAGE));
        assert_eq!(Remembered::decode(&one.encode()), Ok(one));
        let files = vec![PathBuf::from("/a"), PathBuf::from("/b c\n")];
        assert_eq!(decode_files(&encode_files(&files)), Ok(files));
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let whole = remembered().encode();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert!(Remembered::decode(&bytes).is_err(), "byte {at}");
            assert!(Remembered::decode(&whole[..at]).is_err(), "cut at {at}");
        }
        assert!(decode_files(&whole).is_err());
    }

    /// A checksum that is right does not make a field right.
    #[test]
    fn fields_that_cannot_be_are_damage() {
        let with = |path: &str, length: u64, nanoseconds: u64, runs: &[(u64, u64)]| {
            let mut out = Out(PAGES.to_vec());
            out.path(Path::new(path));
            [length, 0, nanoseconds, 0, runs.len() as u64].into_iter().for_each(|number| out.number(number));
            runs.iter().for_each(|(gap, word)| {
                out.number(*gap);
                out.number(*word);
            });
            Remembered::decode(&out.finish())
        };
        assert!(with("/a", 8192, 0, &[(0, 4)]).is_ok());
        assert!(with("a", 8192, 0, &[(0, 4)]).is_err(), "a path that is relative");
        assert!(with("/a\0", 8192, 0, &[(0, 4)]).is_err(), "a path that cannot be");
        assert!(with("/a", 1 << 63, 0, &[(0, 4)]).is_err(), "a length that cannot be");
        assert!(with("/a", 8192, 1_000_000_000, &[(0, 4)]).is_err(), "too many nanoseconds");
        for runs in [&[(0, 1)][..], &[(0, 6)], &[(2, 2)], &[(0, 4), (0, 2)], &[(1, 2), (u64::MAX, 2)]] {
            assert!(with("/a", 8192, 0, runs).is_err(), "{runs:?}");
        }
        let mut long = Out(PAGES.to_vec());
        long.path(Path::new("/a"));
        [8192, 0, 0, 0, 0, 7].into_iter().for_each(|number| long.number(number));
        assert!(Remembered::decode(&long.finish()).is_err(), "more than it says");
    }

    #[test]
    fn too_many_runs_become_fewer() {
        let singles: PageSet = (0..2 * MOST_RUNS as u64).map(|index| index * 2..index * 2 + 1).collect();
        let version = Version { length: 4 * MOST_RUNS as u64 * PAGE, modified: (0, 0) };
        let one = Remembered::new(Path::new("/a"), version, 0, &singles, &PageSet::default());
        assert!(one.runs.len() <= MOST_RUNS && one.encode().len() as u64 <= MOST_BYTES, "{}", one.runs.len());
        assert!(one.bytes() >= singles.count() * PAGE);
    }
}
