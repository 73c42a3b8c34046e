//! Lists processes: /proc/PID.

use super::effort::fields;
use super::text::{number, read};
use std::collections::BTreeSet;
use std::path::Path;

/// A process: its number and when it began, since numbers are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// In clock ticks since the machine started (field 22 of proc_pid_stat(5)).
    pub began: u64,
}

impl Process {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Process> {
        let mut text = Vec::new();
        if !read(&format!("/proc/{pid}/stat"), &mut text) {
            return None;
        }
        let mut fields = fields(&text)?;
        let state = fields.next()?;
        let began = number(fields.nth(18)?)?;
        (state != b"Z" && state != b"X").then_some(Process { pid, began })
    }

    /// Where its code and its stack begin: this tells its program from the one that it executes next.
    pub fn image(self) -> Option<(u64, u64)> {
        let mut text = Vec::new();
        if !read(&format!("/proc/{}/stat", self.pid), &mut text) {
            return None;
        }
        let mut fields = fields(&text)?;
        Some((number(fields.nth(23)?)?, number(fields.nth(1)?)?))
    }

    /// Whether it has not ended.
    pub fn is_there(self) -> bool {
        Process::of(self.pid) == Some(self)
    }

    /// The name of its program's file, or of itself where that may not be seen.
    pub fn name(self) -> String {
        let program = std::fs::read_link(format!("/proc/{}/exe", self.pid)).ok();
        let name = program.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        name.map(|name| name.trim_end_matches(" (deleted)").to_owned()).unwrap_or_else(|| self.short_name())
    }

    /// Its first thread's name.
    pub fn short_name(self) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        text.trim_end().to_owned()
    }

    /// Whether one of its threads has this name.
    pub fn has_thread(self, name: &str) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|one| one.trim_end() == name)
    }

    /// Its children (`/proc/PID/task/TID/children`).
    pub fn children(self) -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists
            .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect()
    }
}

/// The parts of proc_pid_stat(5) that every user may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glance {
    /// The process.
    pub process: Process,
    /// Its first thread's name.
    pub name: String,
    /// Bytes of its address space. 0 for a thread of the kernel.
    pub virtual_bytes: u64,
}

impl Glance {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Option<Glance> {
        let mut text = Vec::new();
        if read(&format!("/proc/{pid}/stat"), &mut text) { glance(pid, &text) } else { None }
    }
}

fn glance(pid: u32, stat: &[u8]) -> Option<Glance> {
    let from = stat.iter().position(|byte| *byte == b'(')? + 1;
    let to = stat.iter().rposition(|byte| *byte == b')')?;
    let name = String::from_utf8_lossy(stat.get(from..to)?).into_owned();
    let mut fields = fields(stat)?;
    let state = fields.next()?;
    let began = number(fields.nth(18)?)?;
    let virtual_bytes = number(fields.next()?)?;
    (state != b"Z" && state != b"X").then_some(Glance { process: Process { pid, began }, name, virtual_bytes })
}

/// All processes, at a glance.
pub fn glances() -> Vec<Glance> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Glance::of(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// All processes.
pub fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::of(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Adds all descendants of these processes, and removes processes that have ended. A process that was found once stays while it lives,
/// also when its parent has ended.
pub fn with_children(found: &mut BTreeSet<Process>) {
    found.retain(|process| process.is_there());
    let mut new: Vec<Process> = found.iter().copied().collect();
    while let Some(process) = new.pop() {
        for child in process.children().into_iter().filter_map(Process::of) {
            if found.insert(child) {
                new.push(child);
            }
        }
    }
}

/// The processes of a memory group and of all groups in it, by its folder (`cgroup.procs`).
pub fn in_group(folder: &Path) -> std::io::Result<Vec<Process>> {
    let list = std::fs::read_to_string(folder.join("cgroup.procs"))?;
    let mut found: Vec<Process> = list.lines().filter_map(|line| Process::of(line.parse().ok()?)).collect();
    for entry in std::fs::read_dir(folder)?.flatten().filter(|entry| entry.path().is_dir()) {
        found.extend(in_group(&entry.path()).unwrap_or_default());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_with_its_children_and_ends() {
        let own = Process::of(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let its = Process::of(child.id()).unwrap();
        let mut found = BTreeSet::from([own]);
        with_children(&mut found);
        assert!(found.contains(&own) && found.contains(&its) && its.is_there());
        child.kill().unwrap();
        child.wait().unwrap();
        with_children(&mut found);
        assert!(!found.contains(&its));
        assert!(processes().contains(&own));
    }

    #[test]
    fn a_glance_tells_the_name_and_the_size() {
        let fields = (4..=23).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let of = |state| glance(7, format!("7 (a) (b) {state} {fields} 24\n").as_bytes());
        let process = Process { pid: 7, began: 22 };
        assert_eq!(of("S"), Some(Glance { process, name: "a) (b".into(), virtual_bytes: 23 }));
        assert_eq!(of("Z"), None);
        let own = Process::of(std::process::id()).unwrap();
        assert!(glances().iter().any(|one| one.process == own && one.virtual_bytes > 0));
    }
}
