//! `fastmap run --warm` remembers which pages of the program's mapped files are in memory, every minute and at the program's end. At the
//! program's next start, it reads these pages back while the program already runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastmap_steer::observe::{Mapping, Memory, Process};
use fastmap_steer::warm::{Error, PageSet, Records, add_mapped, key, load};

/// The pages are remembered this often. If that takes long, the pause is [`SHARE`] times as long: at most a hundredth of a processor is used.
const OFTEN: Duration = Duration::from_secs(60);
const SHARE: u32 = 100;
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
    /// Each file that was seen in the program's mappings, with the pages that were mapped when it was last found mapped.
    files: BTreeMap<String, Option<PageSet>>,
    reading: Reading,
    due: Instant,
    tells: bool,
}

/// The state of the thread that reads pages back.
#[derive(Clone, Default)]
struct Reading {
    is_over: Arc<AtomicBool>,
    is_unwanted: Arc<AtomicBool>,
}

impl Warmth {
    /// Starts a thread that reads back the remembered pages of the files that the command had mapped the last time. Process `pid` is to run the
    /// command: its memory cgroup limits how much is read. `logs`: say what was read. `tells`: say what is wrong. `None`: there is no folder
    /// for records.
    pub fn begin(command: String, pid: u32, logs: bool, tells: bool) -> Option<Warmth> {
        let records = match Records::of_user() {
            Ok(records) => records,
            Err(error) => {
                tell(tells, "records", &error);
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
        Some(Warmth { records, command, files: BTreeMap::new(), reading, due: Instant::now() + OFTEN, tells })
    }

    /// Notes which files are mapped.
    pub fn note(&mut self, mappings: &[Mapping]) {
        for path in mappings.iter().map(|mapping| &mapping.path) {
            if self.files.len() < MOST_FILES && !self.files.contains_key(path) {
                self.files.insert(path.clone(), None);
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
        for (path, pages) in &mut self.files {
            // A file that is not mapped any more keeps its pages: they may still be in memory, and were hot.
            *pages = mapped.remove(path).or(pages.take());
        }
        self.remember();
        self.due = began + OFTEN.max(began.elapsed() * SHARE);
    }

    /// Writes the records for the last time. The program has ended, but pages of its files are still in memory.
    pub fn remember_at_the_end(mut self) {
        self.reading.is_unwanted.store(true, Ordering::Relaxed);
        self.remember();
    }

    fn remember(&mut self) {
        // While pages are still being read back, the old records name pages that are not in memory yet. They must not be overwritten.
        if !self.reading.is_over.load(Ordering::Acquire) || self.files.is_empty() {
            return;
        }
        let mut kept = Vec::new();
        let mut wrong = None;
        for (path, mapped) in &self.files {
            match self.records.save(Path::new(path), mapped.as_ref()) {
                Ok(_) => kept.push(PathBuf::from(path)),
                // The file is gone, is no regular file, or is on a file system in memory: nothing is remembered.
                Err(Error::File(_) | Error::Irregular | Error::InMemory) => {}
                Err(error) => drop(wrong.get_or_insert((path.clone(), error))),
            }
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
        let files: Vec<_> = listed.iter().filter_map(|path| records.open(path).ok()).collect();
        if files.is_empty() {
            return;
        }
        let began = Instant::now();
        let loaded = load(&files, &mut Memory::of(pid), || !self.is_unwanted.load(Ordering::Relaxed));
        if logs {
            eprintln!("fastmap: warm: {} in {:.1} s", crate::warm::told(&loaded), began.elapsed().as_secs_f64());
        }
    }
}

/// Prints an error to standard error, if `tells`.
fn tell(tells: bool, thing: &str, error: &Error) {
    if tells {
        eprintln!("fastmap: --warm: {thing}: {error}: {}", error.remedy());
    }
}
