//! Steers the program, and all that it starts, from this process: its parent. With `--warm`, remembers which pages of the program's files are in
//! memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fastmap_steer::attach::{Party, may_trace_strangers};
use fastmap_steer::observe::{Effort, Glance, Mappings, Memory, Process, Spent, are_worth, with_children};
use fastmap_steer::{Settings, processor_time};

use super::{voice, warm::Warmth};

/// The time between two looks at which processes there are: at first, and later.
const OFTEN: Duration = Duration::from_millis(30);
const SELDOM: Duration = Duration::from_secs(1);
const AT_FIRST: Duration = Duration::from_secs(3);
/// Looks take this part of a processor at most: at first, and later.
const SHARE_AT_FIRST: u32 = 100;
const SHARE: u32 = 600;

const CACHESTAT: libc::c_long = 451;

/// Whether this process's own system call filter (seccomp(2)), if it has one, lets what steering needs pass: a child tries the calls, which the filter
/// may answer by a kill. (ptrace(2) is tried where it is needed: without it there are readers.) Called while this process has one thread.
pub fn is_allowed() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0")) {
        return true;
    }
    // SAFETY: the child makes calls on memory, descriptors and processes of its own, or on none, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            super::signals::set_mask(0);
            let page =
                libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            // A thread's end gives its stack back.
            libc::madvise(page, 4096, libc::MADV_DONTNEED);
            let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(|| ());
            let _ = thread.map(std::thread::JoinHandle::join);
            let own = libc::getpid();
            libc::process_vm_readv(own, std::ptr::null(), 0, std::ptr::null(), 0, 0);
            libc::posix_fadvise(-1, 0, 0, libc::POSIX_FADV_WILLNEED);
            libc::ioctl(-1, 0);
            for call in [CACHESTAT, libc::SYS_openat2, libc::SYS_pidfd_open, libc::SYS_statx, libc::SYS_process_madvise]
            {
                libc::syscall(call, -1, 0, 0, 0, 0);
            }
            libc::_exit(0);
        }
        let mut status = 0;
        child > 0 && libc::waitpid(child, &mut status, libc::__WALL) == child && libc::WIFEXITED(status)
    }
}

/// The program's family, and what is done for it.
pub struct Companion {
    program: u32,
    family: BTreeSet<Process>,
    party: Party,
    refused: BTreeSet<Process>,
    lines: BTreeMap<Process, String>,
    sizes: BTreeMap<Process, Known>,
    /// The program's own line, for `--stats`.
    last: Option<String>,
    /// Whether a line was said of any process.
    has_told: bool,
    warm: Option<Warmth>,
    /// Whether a line is said also where nothing was done.
    logs: bool,
    began: Instant,
}

/// The last look at a process's mappings, and the size of its address space then.
struct Known {
    bytes: u64,
    /// Enough of files is mapped to be steered.
    is_large: bool,
    until: Instant,
}

impl Companion {
    /// Of the program, a child of this process.
    pub fn new(program: u32, overrides: bool, warm: Option<Warmth>, logs: bool) -> Companion {
        let settings = Settings { overrides, descends: true, ..Settings::default() };
        Companion {
            program,
            family: Process::of(program).into_iter().collect(),
            party: Party::new(settings),
            refused: BTreeSet::new(),
            lines: BTreeMap::new(),
            sizes: BTreeMap::new(),
            last: None,
            has_told: false,
            warm,
            logs,
            began: Instant::now(),
        }
    }

    /// Looks which processes there are, and steers those that have enough mapped. Returns when to look again.
    pub fn look(&mut self) -> Duration {
        let (looked, began) = (Instant::now(), processor_time());
        with_children(&mut self.family);
        self.sizes.retain(|process, _| self.family.contains(process));
        for process in &self.family {
            // An address space of the same size is looked at again only now and then: a mapping may have taken another's place.
            let size = Glance::of(process.pid).map_or(0, |glance| glance.virtual_bytes);
            let known = self.sizes.get(process).is_some_and(|known| known.bytes == size && looked < known.until);
            if known {
                continue;
            }
            let mappings = Mappings::of(&process.pid.to_string()).look();
            let is_large = are_worth(&mappings);
            self.sizes.insert(*process, Known { bytes: size, is_large, until: looked + SELDOM * 60 });
            if let Some(warm) = &mut self.warm {
                warm.note(&mappings);
            }
        }
        let large = self.sizes.iter().filter(|(_, known)| known.is_large).map(|(process, _)| *process).collect();
        for (process, refusal) in self.party.watch(&large) {
            if self.refused.insert(process) {
                voice::say(&format!("{}: {refusal}", process.name()));
            }
        }
        self.refused.retain(|process| self.family.contains(process));
        self.lines.extend(self.party.reports());
        let ended: Vec<Process> = self.lines.keys().filter(|process| !self.family.contains(process)).copied().collect();
        ended.into_iter().for_each(|process| self.tell(process));
        if let Some(warm) = &mut self.warm {
            warm.remember_now_and_then(&self.family);
        }
        let is_first = self.began.elapsed() < AT_FIRST;
        let (pause, share) = if is_first { (OFTEN, SHARE_AT_FIRST) } else { (SELDOM, SHARE) };
        pause.max((processor_time() - began) * share).min(SELDOM * 10)
    }

    fn tell(&mut self, process: Process) {
        let Some(line) = self.lines.remove(&process) else { return };
        voice::say(&line);
        self.has_told = true;
        if process.pid == self.program {
            self.last = Some(line);
        }
    }

    /// The program has ended, and its status is not taken yet. Says what was done, writes the records, and returns what was done for the
    /// program. Processes that it has started and that live on are left to a process that goes on by itself: it ends with the last of them.
    pub fn end(mut self) -> Option<String> {
        let spent = Effort::of(self.program).look().unwrap_or_default();
        with_children(&mut self.family);
        self.family.retain(|process| process.pid != self.program);
        let is_worth = |process: &Process| are_worth(&Mappings::of(&process.pid.to_string()).look());
        let goes_on = self.family.iter().any(is_worth);
        let mut party = std::mem::replace(&mut self.party, Party::new(Settings::default()));
        if goes_on && !may_trace_strangers() {
            // Nobody could take the advice back later.
            party.end();
        }
        let mut party = party.hand_over();
        self.lines.extend(party.reports());
        let all: Vec<Process> = self.lines.keys().copied().collect();
        all.into_iter().for_each(|process| self.tell(process));
        if self.logs && !self.has_told {
            voice::say(&nothing(&spent, self.began.elapsed()));
        }
        if let Some(warm) = self.warm.take_if(|_| !goes_on) {
            warm.remember_at_the_end();
        }
        let last = self.last.take();
        if goes_on {
            self.party = party;
            self.go_on();
        }
        last
    }

    /// Goes on in a process of its own.
    fn go_on(mut self) {
        // SAFETY: threads of this process may hold locks of its own, of which the child uses none: all of them belonged to the party that has
        // ended. The C library's are free in the child.
        if std::process::id() == 1 || unsafe { libc::fork() } != 0 {
            return;
        }
        // SAFETY: the calls take numbers and a C string.
        unsafe {
            libc::setsid();
            libc::prctl(libc::PR_SET_NAME, c"fastmap-beside".as_ptr());
            libc::signal(libc::SIGTERM, libc::SIG_DFL);
            // This process must hold up nobody who reads the program's standard error to its end.
            libc::dup2(libc::STDOUT_FILENO, libc::STDERR_FILENO);
        }
        voice::be_silent();
        super::parent::close_but(&[]);
        super::parent::forget_program();
        crate::interrupt::watch();
        super::signals::set_mask(0);
        while !self.family.is_empty() && !crate::interrupt::requested() {
            let next = Instant::now() + self.look();
            while Instant::now() < next
                && self.family.iter().any(|process| process.is_there())
                && !crate::interrupt::requested()
            {
                std::thread::sleep(next.saturating_duration_since(Instant::now()).min(SELDOM / 2));
            }
        }
        drop(self.party);
        if let Some(warm) = self.warm {
            warm.remember_at_the_end();
        }
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
}

/// Why nothing was to be done.
fn nothing(spent: &Spent, lasted: Duration) -> String {
    let seconds = lasted.as_secs_f64().max(0.001);
    let free = Memory::of(std::process::id()).for_files();
    format!(
        "nothing was to be done: {:.0} faults a second waited, {:.1} MB a second were read, {} MiB of memory are free for files",
        spent.major_faults as f64 / seconds,
        spent.read_bytes as f64 / seconds / 1e6,
        free >> 20
    )
}
