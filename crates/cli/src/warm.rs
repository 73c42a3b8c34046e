//! `fastmap warm` records which pages of files are in memory (`save`), reads them back (`load`), and lists the records (`show`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fastmap_steer::observe::{Answer, Asked, Memory};
use fastmap_steer::warm::{Error, Found, Loaded, Records, Remembered, Version, load};
use serde_json::{Value, json};

use crate::args::{ShowArgs, WarmArgs, WarmCommand, WarmFiles};
use crate::cache::ago;
use crate::failure::Failure;
use crate::interrupt;
use crate::size::short;
use crate::table::{self, printable};

/// Runs the subcommand.
///
/// # Errors
/// There is no folder for records, or it cannot be read.
pub fn run(args: &WarmArgs) -> Result<ExitCode, Failure> {
    let records = Records::of_user().map_err(|error| failure("records", &error))?;
    // Said once, and not for each file.
    if let Err(error @ Error::NotOurs(..)) = records.check() {
        return Err(failure("records", &error));
    }
    match &args.command {
        WarmCommand::Save(args) => Ok(save(&records, args)),
        WarmCommand::Load(args) => Ok(read_back(&records, args)),
        WarmCommand::Show(args) => show(&records, args),
    }
}

fn failure(thing: impl std::fmt::Display, error: &Error) -> Failure {
    Failure::new(thing, error, error.remedy())
}

/// Reports an error with one file. The other files are still processed.
fn tell(path: &Path, error: &Error) {
    eprintln!("fastmap: {}", failure(path.display(), error));
}

/// The absolute path without symbolic links, as /proc/PID/maps shows it for a mapped file.
fn absolute(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

fn status(is_all: bool) -> ExitCode {
    if is_all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn save(records: &Records, args: &WarmFiles) -> ExitCode {
    let mut is_all = true;
    for path in &args.files {
        match records.save(&absolute(path), None, None) {
            Ok(saved) => {
                let (bytes, length) = (short(saved.bytes()), short(saved.version.length));
                crate::print(&format!("{}: {bytes} of {length} in memory\n", printable(path.to_string_lossy())));
            }
            Err(error) => {
                tell(path, &error);
                is_all = false;
            }
        }
    }
    status(is_all)
}

const INTERRUPTED: &str = "warm load: interrupted: run it again; what was read stays in memory";

fn read_back(records: &Records, args: &WarmFiles) -> ExitCode {
    let mut files = Vec::new();
    for path in &args.files {
        match records.open(&absolute(path)) {
            Ok(one) => files.push(one),
            Err(error) => tell(path, &error),
        }
    }
    // Until now a signal ends the process at once.
    interrupt::end_in_time(1, || eprintln!("fastmap: {INTERRUPTED}"));
    let (count, began) = (files.len(), Instant::now());
    let loaded = load(&files, &mut Memory::of(std::process::id()), || !interrupt::requested());
    if interrupt::requested() {
        eprintln!("fastmap: {INTERRUPTED}");
        interrupt::leave(1);
    }
    if count > 0 {
        let seconds = began.elapsed().as_secs_f64();
        let plural = if count == 1 { "" } else { "s" };
        crate::print(&format!("{count} file{plural}: {} in {seconds:.1} s\n", told(&loaded)));
    }
    status(count == args.files.len())
}

/// Says in words how much was read back.
pub fn told(loaded: &Loaded) -> String {
    let Loaded { wanted, asked, brought } = *loaded;
    let there = if brought < asked { format!(", {} were in memory", short(asked - brought)) } else { String::new() };
    let left =
        if asked < wanted { format!(", {} left out for lack of memory", short(wanted - asked)) } else { String::new() };
    format!("{} read back{there}{left}", short(brought))
}

fn show(records: &Records, args: &ShowArgs) -> Result<ExitCode, Failure> {
    let failed = |error| failure(records.folder().display(), &error);
    let mut is_all = true;
    let mut found = Vec::new();
    if args.files.is_empty() {
        found = records.all().map_err(failed)?;
        let name = |one: &Found| one.as_ref().map_or_else(|(record, _)| record.clone(), |one| one.path.clone());
        found.sort_by_key(name);
    }
    for path in &args.files {
        match records.find(&absolute(path)) {
            Err(error @ Error::Damaged(_)) => found.push(Err((absolute(path), error))),
            Err(error) => {
                tell(path, &error);
                is_all = false;
            }
            Ok(remembered) => found.push(Ok(remembered)),
        }
    }
    let used = records.used().map_err(failed)?;
    crate::print(&if args.json { in_json(records, &found, used) } else { as_table(records, &found, used) });
    Ok(status(is_all))
}

/// A file system may take so long to tell whether a file has changed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state of a record: `ok` if it can be used.
fn state(remembered: &Remembered) -> &'static str {
    let path = remembered.path.clone();
    let asked = Asked::about(&remembered.path, move || std::fs::metadata(path).map(|file| Version::of(&file)).ok());
    match asked.answer_within(PATIENCE) {
        Answer::Known(Some(version)) if version == remembered.version => "ok",
        Answer::Known(Some(_)) => "changed",
        Answer::Known(None) => "gone",
        // Its file system does not answer.
        Answer::NotYet | Answer::Lost => "unknown",
    }
}

fn as_table(records: &Records, found: &[Found], used: u64) -> String {
    let now = std::time::SystemTime::now();
    let row = |one: &Found| match one {
        Ok(one) => vec![
            printable(one.path.to_string_lossy()),
            short(one.version.length),
            short(one.bytes()),
            short(one.hot_bytes()),
            one.runs.len().to_string(),
            ago(std::time::UNIX_EPOCH + Duration::from_secs(one.saved.min(1 << 40)), now),
            state(one).to_owned(),
        ],
        Err((path, _)) => {
            let mut row = vec![printable(path.to_string_lossy())];
            row.extend(["-"; 5].map(String::from));
            row.push("damaged".to_owned());
            row
        }
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    let mut text = table::render(&["FILE", "LENGTH", "REMEMBERED", "HOT", "RUNS", "SAVED", "STATE"], &rows);
    let folder = printable(records.folder().display());
    text.push_str(&format!("{} of at most {} in {folder}\n", short(used), short(Records::MOST.0)));
    text
}

fn in_json(records: &Records, found: &[Found], used: u64) -> String {
    let file = |one: &Remembered| {
        json!({
            "path": one.path.to_string_lossy(),
            "length_bytes": one.version.length,
            "remembered_bytes": one.bytes(),
            "hot_bytes": one.hot_bytes(),
            "runs": one.runs.len(),
            "saved_unix_s": one.saved,
            "state": state(one),
        })
    };
    let record = |path: &Path, error: &Error| json!({ "path": path.to_string_lossy(), "why": error.to_string() });
    let files: Vec<Value> = found.iter().filter_map(|one| one.as_ref().ok().map(file)).collect();
    let damaged: Vec<Value> =
        found.iter().filter_map(|one| one.as_ref().err().map(|(path, error)| record(path, error))).collect();
    let folder = records.folder().to_string_lossy();
    let all = json!({
        "folder": folder, "used_bytes": used, "limit_bytes": Records::MOST.0, "files": files, "damaged": damaged,
    });
    table::json(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_back_is_said() {
        let told = |wanted, asked, brought| told(&Loaded { wanted, asked, brought });
        assert_eq!(told(4096, 4096, 4096), "4.0K read back");
        assert_eq!(
            told(3 << 20, 2 << 20, 1 << 20),
            "1.0M read back, 1.0M were in memory, 1.0M left out for lack of memory"
        );
    }
}
