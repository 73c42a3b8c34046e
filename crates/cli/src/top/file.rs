//! `fastmap top FILE` shows which parts of a file are in memory, and which processes map it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fastmap_steer::observe::{Cached, Mapping, Mappings, Process, cached, glances, identity, readahead};
use serde_json::{Value, json};

use super::observed::PAGE;
use super::rows;
use crate::failure::Failure;
use crate::machine::FileSystem;
use crate::size::short as bytes;
use crate::table::{self, printable};

/// The most parts into which a file is divided.
const CELLS: u64 = 64;

/// The facts about a file that are shown.
pub struct Told {
    path: String,
    size_bytes: u64,
    in_memory: Cached,
    /// For each part of the file, the share that is in memory, 0 to 1.
    cells: Vec<f64>,
    mapped_by: Vec<MappedBy>,
    /// The number of processes that this user may not look at.
    left_out: usize,
    readahead_bytes: Option<u64>,
    file_system: FileSystem,
}

/// A process that maps the file, and the kind of its mappings.
#[derive(Debug, Clone, PartialEq)]
struct MappedBy {
    pid: u32,
    name: String,
    is_writable: bool,
    is_shared: bool,
    mapped_bytes: u64,
}

impl Told {
    /// Looks at the file at `path`.
    pub fn of(path: &Path) -> Result<Told, Failure> {
        let shown = path.display();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::new(&shown, error, "name a file, or a process by its number as ps(1) shows it")
            }
            io::ErrorKind::PermissionDenied => Failure::new(
                &shown,
                "only its owner, and those who may write it, are told what is in memory",
                "be its user, or root",
            ),
            _ => Failure::new(&shown, error, "name a file that you may read"),
        };
        let metadata = path.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Failure::new(&shown, "is not a regular file", "name a regular file"));
        }
        let file = File::open(path).map_err(|error| Failure::new(&shown, error, "name a file that you may read"))?;
        let pages = metadata.len().div_ceil(PAGE);
        let mut cells = Vec::new();
        for part in parts(pages) {
            let len = part.end - part.start;
            cells.push(cached(&file, part).map_err(failed)?.pages as f64 / len as f64);
        }
        let in_memory = cached(&file, 0..pages).map_err(failed)?;
        let device = (u64::from(libc::major(metadata.dev())), u64::from(libc::minor(metadata.dev())));
        let (device, inode) = identity(&file).unwrap_or((device, metadata.ino()));
        let (mapped_by, left_out) = mapped_by(device, inode);
        Ok(Told {
            path: path.to_string_lossy().into_owned(),
            size_bytes: metadata.len(),
            in_memory,
            cells,
            mapped_by,
            left_out,
            readahead_bytes: readahead(device).map(|pages| pages * PAGE),
            file_system: FileSystem::of(path),
        })
    }

    fn cached_bytes(&self) -> u64 {
        (self.in_memory.pages * PAGE).min(self.size_bytes)
    }

    /// The text for people.
    pub fn text(&self) -> String {
        let FileSystem { kind, device } = &self.file_system;
        let percent = self.cached_bytes() as f64 / self.size_bytes.max(1) as f64 * 100.0;
        let dirty = self.in_memory.dirty.filter(|pages| *pages > 0);
        let dirty = dirty.map_or(String::new(), |pages| format!(", {} not written back yet", bytes(pages * PAGE)));
        let mut lines = vec![format!(
            "{}: {}, of which {} in memory ({percent:.0}%){dirty}",
            printable(&self.path),
            bytes(self.size_bytes),
            bytes(self.cached_bytes())
        )];
        if !self.cells.is_empty() {
            let map: String = self.cells.iter().map(|share| cell(*share)).collect();
            lines.push(format!("|{map}| {} each", bytes(self.size_bytes.div_ceil(self.cells.len() as u64))));
        }
        let readahead = self.readahead_bytes.map_or_else(|| "not told".into(), bytes);
        lines.push(format!("{kind} on {}, readahead {readahead}", printable(device)));
        lines.extend(self.mapped_by.iter().map(MappedBy::text));
        if self.mapped_by.is_empty() {
            lines.push("no process maps it".into());
        }
        lines.extend(rows::hidden(self.left_out));
        lines.join("\n") + "\n"
    }

    /// The text for programs: JSON, with a line feed at the end.
    pub fn json(&self) -> String {
        let by = self.mapped_by.iter().map(|one| {
            json!({
                "pid": one.pid,
                "name": one.name,
                "writable": one.is_writable,
                "shared": one.is_shared,
                "mapped_bytes": one.mapped_bytes,
            })
        });
        let file: Value = json!({
            "path": self.path,
            "size_bytes": self.size_bytes,
            "cached_bytes": self.cached_bytes(),
            "dirty_bytes": self.in_memory.dirty.map(|pages| pages * PAGE),
            "cells": self.cells,
            "mapped_by": by.collect::<Vec<_>>(),
            "processes_left_out": self.left_out,
            "readahead_bytes": self.readahead_bytes,
            "file_system": self.file_system.kind,
            "device": self.file_system.device,
        });
        table::json(&json!({ "file": file }))
    }
}

impl MappedBy {
    fn of(process: Process, mappings: &[Mapping]) -> Option<MappedBy> {
        let first = mappings.first()?;
        Some(MappedBy {
            pid: process.pid,
            name: process.name(),
            is_writable: mappings.iter().any(|one| one.is_writable),
            is_shared: first.is_shared,
            mapped_bytes: mappings.iter().map(|one| one.bytes()).sum(),
        })
    }

    fn text(&self) -> String {
        let mark = if self.is_writable { "rw" } else { "r-" };
        let kind = if self.is_shared { "shared" } else { "private" };
        format!("  {} {}: {mark} {kind}, {}", self.pid, printable(&self.name), bytes(self.mapped_bytes))
    }
}

/// The processes that map a file, and the number of processes that this user may not look at.
fn mapped_by(device: (u64, u64), inode: u64) -> (Vec<MappedBy>, usize) {
    let (mut found, mut left_out) = (Vec::new(), 0);
    // Kernel threads have no memory of their own, and map nothing.
    for one in glances().into_iter().filter(|one| one.virtual_bytes > 0) {
        let pid = one.process.pid;
        if super::processes::is_hidden(pid) {
            left_out += 1;
            continue;
        }
        let mappings = Mappings::of(&pid.to_string()).of_file(device, inode);
        found.extend(MappedBy::of(one.process, &mappings));
    }
    (found, left_out)
}

/// Divides the pages into at most [`CELLS`] parts of nearly the same length.
fn parts(pages: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    let count = pages.min(CELLS);
    let at = move |part: u64| (u128::from(pages) * u128::from(part) / u128::from(count.max(1))) as u64;
    (0..count).map(move |part| at(part)..at(part + 1))
}

fn cell(share: f64) -> char {
    match share {
        share if share <= 0.0 => '.',
        share if share < 1.0 / 3.0 => '░',
        share if share < 2.0 / 3.0 => '▒',
        share if share < 1.0 => '▓',
        _ => '█',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole() {
        for pages in [0, 1, 63, 64, 65, 1000, u64::MAX >> 12] {
            let all: Vec<_> = parts(pages).collect();
            assert_eq!(all.len() as u64, pages.min(CELLS));
            assert!(all.windows(2).all(|two| two[0].end == two[1].start) && all.iter().all(|part| !part.is_empty()));
            assert_eq!(all.last().map_or(0, |part| part.end), pages);
        }
    }

    #[test]
    fn a_file_has_a_map_and_users() {
        let told = Told {
            path: "/data/db".into(),
            size_bytes: 64 << 20,
            in_memory: Cached { pages: 4096, dirty: Some(1) },
            cells: vec![0.0, 0.1, 0.5, 0.9, 1.0],
            mapped_by: vec![MappedBy {
                pid: 7,
                name: "db".into(),
                is_writable: true,
                is_shared: true,
                mapped_bytes: 64 << 20,
            }],
            left_out: 2,
            readahead_bytes: Some(128 << 10),
            file_system: FileSystem { kind: "ext4".into(), device: "/dev/vda".into() },
        };
        let text = told.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "/data/db: 64.0M, of which 16.0M in memory (25%), 4.0K not written back yet");
        assert!(lines[1].starts_with("|.░▒▓█| 12.8M each"), "{text}");
        assert_eq!(lines[2], "ext4 on /dev/vda, readahead 128K");
        assert_eq!(lines[3], "  7 db: rw shared, 64.0M");
        assert_eq!(lines[4], "2 processes that you may not look at are left out; the machine's root sees them");
        let json: Value = serde_json::from_str(&told.json()).unwrap();
        assert_eq!((&json["file"]["cached_bytes"], &json["file"]["cells"][4]), (&(16 << 20).into(), &1.0.into()));
    }
}
