//! `fastmap attach` steers running programs from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastmap_steer::Settings;
use fastmap_steer::attach::Party;
use fastmap_steer::observe::{Mappings, Process, are_worth, in_group, processes, with_children};

use crate::args::AttachArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::table::printable;

/// The time between two looks at which processes there are.
const OFTEN: Duration = Duration::from_millis(500);
/// The pause is at least this many times as long as a look took, and at most [`LONGEST`].
const SELDOM: u32 = 100;
const LONGEST: Duration = Duration::from_secs(5);
/// A signal is noticed after this time at most.
const BLINK: Duration = Duration::from_millis(100);

/// Steers until all processes have ended, the time of `--for` is over, or a signal comes.
pub fn run(args: &AttachArgs) -> Result<ExitCode, Failure> {
    interrupt::watch();
    let until = args.lasting.map(|time| Instant::now() + time);
    let mut who = Who::of(args)?;
    let mut party = Party::new(Settings { overrides: args.r#override, is_dry: args.dry_run, ..Settings::default() });
    let (mut refused, mut is_any_refused, mut is_any_steered) = (BTreeSet::new(), false, false);
    let (mut steered, mut told) = (BTreeMap::new(), BTreeMap::new());
    while !interrupt::requested() && until.is_none_or(|until| Instant::now() < until) {
        let looked = Instant::now();
        let wanted: BTreeSet<Process> = who.now()?.difference(&refused).copied().collect();
        refused.retain(|process: &Process| process.is_there());
        for (process, refusal) in party.watch(&wanted) {
            let who = format!("{} {}: {refusal}", process.pid, process.name());
            eprintln!("fastmap: {}", printable(who));
            refused.insert(process);
            is_any_refused = true;
        }
        for process in wanted.difference(&refused) {
            steered.entry(*process).or_insert_with(|| process.name());
            is_any_steered = true;
        }
        if !who.may_come() && who.family.difference(&refused).next().is_none() {
            break;
        }
        let pause = OFTEN.max(looked.elapsed() * SELDOM).min(LONGEST);
        let now = Instant::now();
        let end = until.map_or(now + pause, |until| until.min(now + pause));
        while !interrupt::requested() && Instant::now() < end {
            sleep(BLINK.min(end.saturating_duration_since(Instant::now())));
        }
        told.extend(party.reports());
        // Where processes come and go, those that have ended are reported at once, and forgotten.
        steered.retain(|process, name| {
            let stays = process.is_there() || !who.may_come();
            if !stays {
                tell(*process, name, told.remove(process));
            }
            stays
        });
        told.retain(|process, _| steered.contains_key(process));
    }
    steered.iter().for_each(|(process, name)| tell(*process, name, told.remove(process)));
    drop(party);
    // Each refusal was reported above.
    interrupt::leave(u8::from(!is_any_steered && is_any_refused))
}

fn tell(process: Process, name: &str, line: Option<String>) {
    let line = line.as_deref().unwrap_or("nothing was to be done");
    crate::print(&format!("{}\n", printable(format_args!("{} {name}: {line}", process.pid))));
}

/// The processes to steer.
struct Who<'a> {
    args: &'a AttachArgs,
    /// The processes that were given by number.
    named: BTreeSet<Process>,
    /// All processes found so far that still live: by number, name or group, and their children if `--children` is given.
    family: BTreeSet<Process>,
    group: Option<PathBuf>,
}

impl Who<'_> {
    fn of(args: &AttachArgs) -> Result<Who<'_>, Failure> {
        let found: Vec<_> = args.pid.iter().map(|pid| numbered(*pid)).collect();
        let family: BTreeSet<Process> = found.iter().flatten().copied().collect();
        let is_nobody = family.is_empty() && args.name.is_none() && args.group.is_none();
        for failure in found.into_iter().filter_map(Result::err) {
            if is_nobody {
                return Err(failure);
            }
            eprintln!("fastmap: {failure}");
        }
        let group = args.group.as_deref().map(folder).transpose()?;
        if let Some(name) = args.name.as_deref().filter(|name| named(name).is_empty()) {
            eprintln!("fastmap: {}: no process has this name yet: waiting for one", printable(name));
        }
        Ok(Who { args, named: family.clone(), family, group })
    }

    fn now(&mut self) -> Result<BTreeSet<Process>, Failure> {
        if let Some(name) = &self.args.name {
            self.family.extend(named(name));
        }
        if let Some(folder) = &self.group {
            match in_group(folder) {
                Ok(found) => self.family.extend(found),
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.group = None,
                Err(error) => return Err(Failure::new(folder.display(), error, "name a cgroup that you may read")),
            }
        }
        if self.args.children {
            with_children(&mut self.family);
        } else {
            self.family.retain(|process| process.is_there());
        }
        let own = std::process::id();
        self.family.retain(|process| process.pid != own);
        // A process that was given by number is always watched. Any other is watched once it has enough mapped.
        let is_worth = |process: &Process| are_worth(&Mappings::of(&process.pid.to_string()).look());
        let is_wanted = |process: &&Process| self.named.contains(process) || is_worth(process) && !is_fastmap(process);
        Ok(self.family.iter().filter(is_wanted).copied().collect())
    }

    /// Whether more processes may come.
    fn may_come(&self) -> bool {
        self.args.name.is_some() || self.group.is_some()
    }
}

fn named(name: &str) -> Vec<Process> {
    let is_named = |process: &Process| process.name() == name || process.short_name() == name;
    processes().into_iter().filter(|process| is_named(process) && !is_fastmap(process)).collect()
}

/// Whether a process is this one, or another of FastMap's, which may steer. Nobody steers those.
fn is_fastmap(process: &Process) -> bool {
    process.pid == std::process::id() || ["fastmap", "fastmap-beside"].contains(&&process.name()[..])
}

/// The process that was given by number.
fn numbered(pid: u32) -> Result<Process, Failure> {
    let (what, instead) = match (Process::of(pid), field(pid, "Tgid:")) {
        (Some(_), Some(whole)) if whole != pid => (format!("is a thread of process {whole}"), whole.to_string()),
        (Some(process), _) if is_fastmap(&process) => {
            ("is FastMap itself".to_owned(), "the program's number".to_owned())
        }
        (Some(process), _) => return Ok(process),
        (None, _) => match outside(pid) {
            Some(outer) => {
                (format!("no such process here: in its container, process {outer} has this number"), outer.to_string())
            }
            None => ("no such process".to_owned(), "one that ps(1) shows".to_owned()),
        },
    };
    Err(Failure::new(pid, what, format_args!("give {instead}")))
}

/// The process that has this number in a PID namespace of its own.
fn outside(pid: u32) -> Option<u32> {
    let is_it = |process: &Process| field(process.pid, "NSpid:") == Some(pid);
    processes().iter().find(|process| is_it(process)).map(|process| process.pid)
}

/// The last number of a line of /proc/PID/status.
fn field(pid: u32, name: &str) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().last()?.parse().ok()
}

/// The directory of a cgroup. `group` is its path as in /proc/PID/cgroup, or the directory.
fn folder(group: &Path) -> Result<PathBuf, Failure> {
    let inside = group.strip_prefix("/").unwrap_or(group);
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"];
    let places = roots.iter().map(|root| Path::new(root).join(inside)).chain([group.to_owned()]);
    let is_group = |folder: &PathBuf| folder.join("cgroup.procs").is_file();
    let missing =
        || Failure::new(group.display(), "no such cgroup", "give its path as /proc/PID/cgroup has it, or its folder");
    places.into_iter().find(is_group).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_group_is_refused() {
        assert!(folder(Path::new("/no/such/group")).is_err());
    }
}
