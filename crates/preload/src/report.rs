//! What is said when the process ends: statistics, and that no file matched.
//!
//! `FASTMAP_STATS` names the file for the process that `fastmap run` became; others that mapped something through the
//! engine write to the same name with their process id behind it.

use crate::own::{owner, undisturbed};
use crate::{config, say};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Mappings of the kind that the engine takes, whatever their file: shared, or private and only to be read; large, not executable.
pub(crate) static CANDIDATES: AtomicU64 = AtomicU64::new(0);
/// Of these, how many were of files that the user named.
pub(crate) static MATCHES: AtomicU64 = AtomicU64::new(0);
/// Mappings that were to be the engine's and went to the kernel.
pub(crate) static KERNEL: AtomicU64 = AtomicU64::new(0);

/// Mappings of files in memory whose msync(2) is done in user space.
static DIRECT: AtomicU64 = AtomicU64::new(0);
/// The process that has these mappings.
static DIRECT_OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether a file that the user named was mapped, in whatever way and whoever serves it.
static NAMED: AtomicBool = AtomicBool::new(false);

/// A file that was not named.
static UNNAMED: OnceLock<PathBuf> = OnceLock::new();

/// Whether the process has made others, which may have mapped the files that were named.
static CHILDREN: AtomicBool = AtomicBool::new(false);

static DONE: AtomicBool = AtomicBool::new(false);

/// Notes a candidate by its path.
pub(crate) fn note_candidate(path: &Path, matches: bool) {
    CANDIDATES.fetch_add(1, Ordering::Relaxed);
    MATCHES.fetch_add(u64::from(matches), Ordering::Relaxed);
    if !matches {
        note_unnamed(path);
    }
}

/// Notes a mapping of a file that the user did not name, of any kind.
pub(crate) fn note_unnamed(path: &Path) {
    UNNAMED.get_or_init(|| path.to_owned());
}

/// Notes a mapping of a file that the user named, which the kernel has.
pub(crate) fn note_named() {
    NAMED.store(true, Ordering::Relaxed);
}

/// Notes a mapping of a file in memory.
pub(crate) fn note_direct() {
    DIRECT.fetch_add(1, Ordering::Relaxed);
    DIRECT_OWNER.store(std::process::id() as i32, Ordering::Relaxed);
}

/// Whether this process or an ancestor has mappings of files in memory.
pub(crate) fn may_have_direct() -> bool {
    DIRECT_OWNER.load(Ordering::Relaxed) != 0
}

/// Whether this process has mappings of files in memory.
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

/// Writes the report, once, when the process ends.
pub(crate) fn write() {
    write_at(true);
}

/// The same; unless this is the process's `end`, more may be mapped, and what was is not all.
fn write_at(end: bool) {
    // Asked first: in a sandbox the process may be allowed no system call (`processes/sandbox.rs`).
    if DONE.load(Ordering::Relaxed) {
        return;
    }
    let config = config();
    let pid = std::process::id() as i32;
    let is_run = config.run_pid == Some(pid);
    let is_counted = is_run || owner::owns_maps() || has_direct();
    // A child that shares the memory (vfork(2)) must not report in its parent's place.
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

/// Writes now, and makes no system call afterwards: even a process that has nothing to say would ask for its process
/// id.
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

/// A JSON string; what is not UTF-8 is replaced.
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
