//! `fastmap run --warm` remembers which pages of the program's mapped files are in memory, every minute and at the program's end. At the
//! program's next start, it reads these pages back while the program already runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastmap_steer::observe::{Answer, Asked, Key, Mapping, Memory, Process};
use fastmap_steer::warm::{Error, PageSet, Records, add_mapped, key, load};

use crate::failure::Failure;

/// The pages are remembered this often. If that takes long, the pause is [`SHARE`] times as long: at most a hundredth of a processor is used.
const OFTEN: Duration = Duration::from_secs(60);
const SHARE: u32 = 100;
/// Records may take so long to be written, at first and at the end. A file system may not answer.
const BRIEFLY: Duration = Duration::from_millis(50);
const AT_THE_END: Duration = Duration::from_millis(700);
/// Files that take longer to be opened are not read back.
const TO_OPEN: Duration = Duration::from_secs(2);
/// The most files that are remembered of one program.
const MOST_FILES: usize = 256;

/// The key of this command's records. It is made of the program, its arguments, and the current folder.
pub fn command(program: &Path, arguments: &[OsString]) -> String {
    let program = std::fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
    let folder = std::env::current_dir().unwrap_or_default();
    let words = [program.as_os_str(), folder.as_os_str()];
    key(words.into_iter().chain(arguments.iter().map(OsString::as_os_str)).map(OsStrExt::as_bytes))
}

/// Remembers which pages of one program's files are in memory, for its next start.
pub struct Warmth {
    records: Records,
    command: String,
    /// Each file that was seen in the program's mappings, by its path.
    files: BTreeMap<String, Seen>,
    reading: Reading,
    due: Instant,
    tells: bool,
}

/// A file that was seen in the program's mappings.
struct Seen {
    key: Key,
    /// The pages that were mapped when it was last found mapped.
    pages: Option<PageSet>,
    /// Its record is being written.
    saved: Option<Asked<Result<(), Error>>>,
}

/// The state of the thread that reads pages back.
#[derive(Clone, Default)]
struct Reading {
    is_over: Arc<AtomicBool>,
    is_unwanted: Arc<AtomicBool>,
}

impl Warmth {
    /// Starts a thread that reads back the remembered pages of the files that the command had mapped the last time. Process `pid` is to run the
    /// command: its memory cgroup limits how much is read. `logs`: say what was read. `None`: there is no folder for records.
    pub fn begin(command: String, pid: u32, logs: bool) -> Option<Warmth> {
        let records = match Records::of_user() {
            Ok(records) => records,
            Err(error) => {
                tell(true, "records", &error);
                return None;
            }
        };
        let reading = Reading::default();
        let (own, of, listed) = (reading.clone(), records.clone(), records.files_of(&command));
        let body = move || {
            own.read_back(&of, &listed, pid, logs);
            own.is_over.store(true, Ordering::Release);
        };
        if std::thread::Builder::new().name("fastmap-warm".into()).spawn(body).is_err() {
            reading.is_over.store(true, Ordering::Release);
        }
        Some(Warmth { records, command, files: BTreeMap::new(), reading, due: Instant::now() + OFTEN, tells: true })
    }

    /// Notes which files are mapped.
    pub fn note(&mut self, mappings: &[Mapping]) {
        for mapping in mappings {
            let is_known = self.files.get(&mapping.path).is_some_and(|seen| seen.key == mapping.key());
            if !is_known && (self.files.len() < MOST_FILES || self.files.contains_key(&mapping.path)) {
                self.files.insert(mapping.path.clone(), Seen { key: mapping.key(), pages: None, saved: None });
            }
        }
    }

    /// If it is time to, looks which pages these processes have mapped, and writes the records.
    pub fn remember_now_and_then(&mut self, family: &BTreeSet<Process>) {
        let began = Instant::now();
        if began < self.due {
            return;
        }
        let mut mapped = BTreeMap::new();
        family.iter().for_each(|process| add_mapped(process.pid, &mut mapped));
        for (path, seen) in &mut self.files {
            // A file that is not mapped any more keeps its pages: they may still be in memory, and were hot.
            seen.pages = mapped.remove(path).or(seen.pages.take());
        }
        self.remember(BRIEFLY);
        self.due = began + OFTEN.max(began.elapsed() * SHARE);
    }

    /// Writes the records for the last time. The program has ended, but pages of its files are still in memory.
    pub fn remember_at_the_end(mut self) {
        self.reading.is_unwanted.store(true, Ordering::Relaxed);
        self.remember(AT_THE_END);
    }

    /// Waits so long for the file systems at most. What takes longer is noted the next time.
    fn remember(&mut self, patience: Duration) {
        // While pages are still being read back, the old records name pages that are not in memory yet. They must not be overwritten.
        if !self.reading.is_over.load(Ordering::Acquire) || self.files.is_empty() {
            return;
        }
        for (path, seen) in &mut self.files {
            let (records, of, pages) = (self.records.clone(), PathBuf::from(path), seen.pages.clone());
            let key = seen.key;
            let save = move || records.save(&of, Some(key), pages.as_ref()).map(drop);
            seen.saved.get_or_insert_with(|| Asked::of(key.0, save));
        }
        let until = Instant::now() + patience;
        let mut kept = Vec::new();
        let mut wrong = None;
        for (path, seen) in &mut self.files {
            let Some(saved) = &seen.saved else { continue };
            match saved.answer_within(until.saturating_duration_since(Instant::now())) {
                Answer::NotYet => {
                    kept.push(PathBuf::from(path));
                    continue;
                }
                Answer::Known(Ok(())) => kept.push(PathBuf::from(path)),
                // The file is gone, is no regular file, or is on a file system in memory: nothing is remembered.
                Answer::Known(Err(Error::File(_) | Error::Irregular | Error::InMemory)) | Answer::Lost => {}
                Answer::Known(Err(error)) => drop(wrong.get_or_insert((path.clone(), error))),
            }
            seen.saved = None;
        }
        if !kept.is_empty()
            && let Err(error) = self.records.note_files(&self.command, &kept)
        {
            wrong.get_or_insert((kept[0].display().to_string(), error));
        }
        if let Some((path, error)) = wrong {
            // Only the first error is reported.
            tell(std::mem::take(&mut self.tells), &path, &error);
        }
    }
}

impl Reading {
    fn read_back(&self, records: &Records, listed: &[PathBuf], pid: u32, logs: bool) {
        let ask = |path: &PathBuf| {
            let (records, of) = (records.clone(), path.clone());
            Asked::about(path, move || records.open(&of).ok())
        };
        let asked: Vec<_> = listed.iter().map(ask).collect();
        let until = Instant::now() + TO_OPEN;
        let opened = |one: &Asked<_>| match one.answer_within(until.saturating_duration_since(Instant::now())) {
            Answer::Known(file) => file,
            Answer::NotYet | Answer::Lost => None,
        };
        let files: Vec<_> = asked.iter().filter_map(opened).collect();
        if files.is_empty() {
            return;
        }
        let began = Instant::now();
        let loaded = load(&files, &mut Memory::of(pid), || !self.is_unwanted.load(Ordering::Relaxed));
        if logs {
            super::voice::say(&format!(
                "warm: {} in {:.1} s",
                crate::warm::told(&loaded),
                began.elapsed().as_secs_f64()
            ));
        }
    }
}

/// Prints an error to standard error, if `tells`.
fn tell(tells: bool, thing: &str, error: &Error) {
    if tells {
        super::voice::say(&Failure::new(format_args!("--warm: {thing}"), error, error.remedy()).to_string());
    }
}
