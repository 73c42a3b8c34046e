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

/// The time between two looks at which processes there are.
const OFTEN: Duration = Duration::from_millis(500);
/// The pause is at least this many times as long as a look took, and at most [`LONGEST`].
const SELDOM: u32 = 100;
const LONGEST: Duration = Duration::from_secs(5);

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
            eprintln!("fastmap: {} {}: {refusal}", process.pid, process.name());
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
            sleep(OFTEN.min(end.saturating_duration_since(Instant::now())));
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
    // Each refusal was reported above.
    Ok(if !is_any_steered && is_any_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn tell(process: Process, name: &str, line: Option<String>) {
    println!("{} {name}: {}", process.pid, line.as_deref().unwrap_or("nothing was to be done"));
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
        let mut family = BTreeSet::new();
        family.extend(args.pid.iter().filter_map(|pid| Process::of(*pid)));
        for pid in args.pid.iter().filter(|pid| !family.iter().any(|process| process.pid == **pid)) {
            let missing = Failure::new(pid, "no such process", "give one that ps(1) shows");
            if family.is_empty() {
                return Err(missing);
            }
            eprintln!("fastmap: {missing}");
        }
        let group = args.group.as_deref().map(folder).transpose()?;
        let who = Who { args, named: family.clone(), family, group };
        if let Some(name) = args.name.as_deref().filter(|name| named(name).is_empty()) {
            return Err(Failure::new(name, "no process has this name", "give one that ps(1) shows"));
        }
        Ok(who)
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
        // A process that was given by number is always watched. Any other is watched once it has enough mapped.
        let is_worth = |process: &Process| are_worth(&Mappings::of(&process.pid.to_string()).look());
        Ok(self.family.iter().filter(|process| self.named.contains(process) || is_worth(process)).copied().collect())
    }

    /// Whether more processes may come.
    fn may_come(&self) -> bool {
        self.args.name.is_some() || self.group.is_some()
    }
}

fn named(name: &str) -> Vec<Process> {
    let own = std::process::id();
    let is_named = |process: &Process| process.pid != own && (process.name() == name || process.short_name() == name);
    processes().into_iter().filter(is_named).collect()
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
