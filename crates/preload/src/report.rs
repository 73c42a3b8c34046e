//! The report when the process ends: statistics, and a message if no mapped file matched the user's globs.
//!
//! `FASTMAP_STATS` names the file of the process that `fastmap run` became. Other processes that mapped something
//! through the engine append a dot and their process id to this name.

use crate::own::{owner, undisturbed};
use crate::{config, say};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// The number of candidates: mappings of the kind that the engine takes, of any file. They are large and not executable,
/// and either shared, or private and read-only.
pub(crate) static CANDIDATES: AtomicU64 = AtomicU64::new(0);
/// The number of candidates whose file the user named.
pub(crate) static MATCHES: AtomicU64 = AtomicU64::new(0);
/// The number of mappings that were meant for the engine and went to the kernel.
pub(crate) static KERNEL: AtomicU64 = AtomicU64::new(0);

/// The number of direct mappings: mappings of files that are memory already (DAX, tmpfs), whose msync(2) is done in user
/// space.
static DIRECT: AtomicU64 = AtomicU64::new(0);
/// The process that has the direct mappings; zero: none.
static DIRECT_OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether a file that the user named was mapped by the kernel.
static NAMED: AtomicBool = AtomicBool::new(false);

/// The first mapped file that the user did not name.
static UNNAMED: OnceLock<PathBuf> = OnceLock::new();

/// Whether the process has made children, which may have mapped the files that the user named.
static CHILDREN: AtomicBool = AtomicBool::new(false);

static DONE: AtomicBool = AtomicBool::new(false);

/// Counts a candidate, of the file at this path.
pub(crate) fn note_candidate(path: &Path, matches: bool) {
    CANDIDATES.fetch_add(1, Ordering::Relaxed);
    MATCHES.fetch_add(u64::from(matches), Ordering::Relaxed);
    if !matches {
        note_unnamed(path);
    }
}

/// Notes a mapping, of any kind, of a file that the user did not name.
pub(crate) fn note_unnamed(path: &Path) {
    UNNAMED.get_or_init(|| path.to_owned());
}

/// Notes a kernel mapping of a file that the user named.
pub(crate) fn note_named() {
    NAMED.store(true, Ordering::Relaxed);
}

/// Counts a direct mapping.
pub(crate) fn note_direct() {
    DIRECT.fetch_add(1, Ordering::Relaxed);
    DIRECT_OWNER.store(std::process::id() as i32, Ordering::Relaxed);
}

/// Whether this process or an ancestor has direct mappings. It makes no system call.
pub(crate) fn may_have_direct() -> bool {
    DIRECT_OWNER.load(Ordering::Relaxed) != 0
}

/// Whether this process has direct mappings.
pub(crate) fn has_direct() -> bool {
    DIRECT_OWNER.load(Ordering::Relaxed) == std::process::id() as i32
}

pub(crate) fn note_child() {
    CHILDREN.store(true, Ordering::Relaxed);
}

/// Resets the counts in a child made by fork(2).
pub(crate) fn in_child() {
    for counter in [&CANDIDATES, &MATCHES, &KERNEL, &DIRECT] {
        counter.store(0, Ordering::Relaxed);
    }
    CHILDREN.store(false, Ordering::Relaxed);
    NAMED.store(false, Ordering::Relaxed);
    DONE.store(owner::has_left(), Ordering::Relaxed);
}

/// Writes the report when the process ends, unless it is written already.
pub(crate) fn write() {
    write_at(true);
}

/// Writes the report. If this is not the process's `end`, it may still map files: the statistics are incomplete, and
/// nothing is said about globs.
fn write_at(end: bool) {
    // This check comes first: in a sandbox the process may be allowed no system call (`processes/sandbox.rs`).
    if DONE.load(Ordering::Relaxed) {
        return;
    }
    let config = config();
    let pid = std::process::id() as i32;
    let is_run = config.run_pid == Some(pid);
    // By process id, so that a child that shares the memory (vfork(2)) does not report in its parent's place.
    let is_counted = is_run || owner::owns_maps() || has_direct();
    let is_unmatched = || end && may_be_unmatched(is_run);
    if config.off || !is_counted && !is_unmatched() || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    undisturbed((), || {
        if is_unmatched() {
            tell_unmatched();
        }
        if let Some(file) = &config.stats
            && is_counted
        {
            let mut name = file.clone().into_os_string();
            if !is_run {
                name.push(format!(".{pid}"));
            }
            if let Err(why) = std::fs::write(&name, json(pid, end)) {
                say(format_args!("cannot write statistics to {}: {why}", Path::new(&name).display()));
            }
        }
    });
}

/// Writes the report now. Afterwards `write` makes no system call; without this, even a process with nothing to say
/// would ask for its process id.
pub(crate) fn close() {
    write_at(false);
    DONE.store(true, Ordering::Relaxed);
}

fn may_be_unmatched(is_run: bool) -> bool {
    let asked = CANDIDATES.load(Ordering::Relaxed) > 0 || is_run && !CHILDREN.load(Ordering::Relaxed);
    let is_one_mapped = MATCHES.load(Ordering::Relaxed) > 0 || NAMED.load(Ordering::Relaxed);
    config().names_files() && asked && !is_one_mapped
}

fn tell_unmatched() {
    let globs = std::env::var_os("FASTMAP_MAP").unwrap_or_default();
    let globs = globs.to_string_lossy();
    match UNNAMED.get() {
        Some(path) => say(format_args!(
            "no mapped file matches \"{globs}\" (--map, FASTMAP_MAP): {} was mapped, for one",
            path.display()
        )),
        None => say(format_args!(
            "no mapped file matches \"{globs}\" (--map, FASTMAP_MAP): no file was mapped through the C library"
        )),
    }
}

fn json(pid: i32, end: bool) -> String {
    let snapshot = fastmap::live::snapshot_of_self();
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut text = format!("{{\"pid\":{pid},\"complete\":{end},\"program\":{}", quoted(&program));
    if !end {
        text.push_str(",\"why\":\"the engine has left the process before its end: what came later is not counted\"");
    }
    let _ = write!(
        text,
        ",\"candidates\":{},\"matches\":{},\"kernel\":{},\"direct\":{},\"flushed_bytes\":{},\"caches\":[",
        count(&CANDIDATES),
        count(&MATCHES),
        count(&KERNEL),
        count(&DIRECT),
        fastmap::by_address::flushed_bytes()
    );
    let mut between = "";
    for cache in &snapshot.caches {
        let _ = write!(text, "{between}{{\"capacity_bytes\":{}", cache.capacity_bytes);
        add_numbers(&mut text, cache.stats.numbers());
        text.push('}');
        between = ",";
    }
    text.push_str("],\"maps\":[");
    between = "";
    for map in &snapshot.maps {
        let _ = write!(
            text,
            "{between}{{\"path\":{},\"cache\":{},\"mapped_bytes\":{},\"writable\":{}",
            quoted(&map.path),
            map.cache,
            map.mapped_bytes,
            map.writable
        );
        add_numbers(&mut text, map.stats.numbers());
        text.push('}');
        between = ",";
    }
    text.push_str("]}\n");
    text
}

fn add_numbers(text: &mut String, numbers: impl Iterator<Item = (&'static str, u64)>) {
    for (name, number) in numbers {
        let _ = write!(text, ",\"{name}\":{number}");
    }
}

/// A path as a JSON string. Bytes that are not UTF-8 are replaced.
fn quoted(path: &Path) -> String {
    let mut text = String::from("\"");
    for one in path.to_string_lossy().chars() {
        match one {
            '"' | '\\' => text.extend(['\\', one]),
            '\0'..='\x1f' => text.push_str(&format!("\\u{:04x}", one as u32)),
            _ => text.push(one),
        }
    }
    text + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_json() {
        assert_eq!(quoted(Path::new("/a \"b\"\\c\n\u{e9}")), "\"/a \\\"b\\\"\\\\c\\u000a\u{e9}\"");
    }
}
