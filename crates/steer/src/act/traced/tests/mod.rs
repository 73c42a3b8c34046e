//! Attachments to programs that would notice: `program.c`, built here.

use super::attachment::{Call, End, Outcome, View, attach};
use super::calls::At;
use super::filters::Filters;
use super::status::Status;
use super::tracee::Tracee;
use super::{Refusal, Traced, code, threads};
use crate::act::{Hand, Outside};
use crate::judge::{Advice, Run};
use crate::observe::{Flags, Mapping, Mappings};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const LENGTH: u64 = 16 << 20;

/// The program, and a file for it.
fn built() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/act/traced/tests");
        // Beside the tests themselves: the system's folder may be in memory.
        let place = std::env::current_exe().unwrap().parent().unwrap().join("traced");
        std::fs::create_dir_all(&place).unwrap();
        let (program, file) = (place.join(format!("program-{}", std::process::id())), place.join("file"));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-pthread", "-o"]).arg(&program).arg(folder.join("program.c"));
        assert!(cc.status().unwrap().success(), "{cc:?}");
        if std::fs::metadata(&file).map(|file| file.len()).unwrap_or(0) != LENGTH {
            std::fs::write(&file, vec![1; LENGTH as usize]).unwrap();
        }
        (program, file)
    })
}

/// A program that runs in one of its modes.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    mapping: (u64, u64),
    /// Its threads: number, whether they are in calls that may be interrupted, name.
    threads: Vec<(u32, bool, String)>,
}

impl Program {
    fn start(mode: &[&str]) -> Program {
        let (program, file) = built();
        let mut command = Command::new(program);
        command.arg(mode[0]).arg(file).args(&mode[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut started = Program { child, input, output, mapping: (0, 0), threads: Vec::new() };
        loop {
            let line = started.line();
            let mut words = line.split(' ');
            match words.next() {
                Some("mapping") => {
                    let mut hex = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
                    started.mapping = (hex(), hex());
                }
                Some("thread") => {
                    let (thread, fit) = (words.next().unwrap().parse().unwrap(), words.next() == Some("fit"));
                    started.threads.push((thread, fit, words.collect::<Vec<_>>().join(" ")));
                }
                Some("ready") => return started,
                _ => panic!("{mode:?} said {line:?}"),
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends its input, and gives what it says last.
    fn end(mut self, last: &str) -> (String, Option<i32>) {
        let _ = self.input.take().unwrap().write_all(last.as_bytes());
        let line = self.line();
        (line, self.child.wait().unwrap().code())
    }

    fn calls(&self, advice: i32) -> [Call; 1] {
        [Call { address: self.mapping.0, length: self.mapping.1, advice }]
    }

    fn mapping(&self) -> Mapping {
        let found = Mappings::of(&self.pid().to_string()).look();
        found.into_iter().find(|one| one.at.start == self.mapping.0).unwrap()
    }

    fn flags(&self) -> Flags {
        let at = self.mapping.0..self.mapping.0 + self.mapping.1;
        Mappings::of(&self.pid().to_string()).flags(&[at])[0]
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The hand for a program; `None`, with a word, where this machine lets nobody trace.
fn hand(program: &Program) -> Option<Traced> {
    match Traced::of(program.pid()) {
        Ok(hand) => Some(hand),
        Err(Refusal::Denied { .. } | Refusal::Yama { .. }) if std::env::var("CI").as_deref() != Ok("true") => {
            eprintln!("skipped: {}", Traced::of(program.pid()).unwrap_err());
            None
        }
        Err(refusal) => panic!("{refusal}"),
    }
}

/// Attaches to a thread as the hand would, if it may be stopped where it is.
fn attach_if_fit(hand: &Traced, thread: u32, calls: &[Call]) -> Option<Outcome> {
    let place = threads::place(hand.pid, thread)?;
    if place == At::Running && !threads::is_quiet(hand.pid, thread) {
        return None;
    }
    Some(attach(thread, hand.code, calls, &threads::Process(hand.pid)))
}

/// What a program could see of its own state: mappings and their flags, threads' signals, descriptors.
fn state(pid: u32) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let is_kept =
        |line: &&str| line.starts_with("VmFlags") || line.split(' ').next().is_some_and(|word| word.contains('-'));
    state.insert("smaps".to_owned(), smaps.lines().filter(is_kept).collect::<Vec<_>>().join("\n"));
    for kind in ["task", "fd"] {
        for entry in std::fs::read_dir(format!("/proc/{pid}/{kind}")).unwrap().flatten() {
            let name = format!("{kind}/{}", entry.file_name().to_string_lossy());
            let text = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let names = ["SigPnd", "SigBlk", "SigIgn", "SigCgt", "ShdPnd", "TracerPid", "Seccomp", "CoreDumping"];
            let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
            state.insert(name, lines.collect::<Vec<_>>().join("\n"));
        }
    }
    state
}

#[test]
fn advice_is_given_and_taken_back_and_nothing_else_changes() {
    let program = Program::start(&["maps"]);
    let Some(mut hand) = hand(&program) else { return };
    let (mapping, before) = (program.mapping(), state(program.pid()));
    assert!(advise(&mut hand, &mapping, Advice::Random, false));
    assert!(program.flags().random);
    let now = state(program.pid());
    assert!(before.iter().filter(|(name, _)| *name != "smaps").eq(now.iter().filter(|(name, _)| *name != "smaps")));
    assert!(advise(&mut hand, &mapping, Advice::Normal, false));
    assert!(!program.flags().random);
    assert_eq!(state(program.pid()), before);
    // A kernel without huge pages refuses these.
    if Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        assert!(advise(&mut hand, &mapping, Advice::Blocks, false));
        assert!(program.flags().random && program.flags().huge);
        assert!(advise(&mut hand, &mapping, Advice::Normal, true));
        assert!(!program.flags().random);
    }
    let (stops, longest) = hand.stops();
    assert!(stops >= 2 && longest > Duration::ZERO);
    assert!(!advise(&mut hand, &Mapping { inode: mapping.inode + 1, ..mapping }, Advice::Random, false));
}

/// Until it succeeds: a machine that has much to do may not stop a thread in time, and there are few tries a second.
fn advise(hand: &mut Traced, mapping: &Mapping, advice: Advice, was_blocks: bool) -> bool {
    (0..50).any(|_| {
        let done = hand.advise(mapping, advice, was_blocks);
        if !done && hand.has(mapping) {
            std::thread::sleep(Duration::from_millis(100));
        }
        done
    })
}

#[test]
fn there_are_few_stops_a_second() {
    let mut budget = super::Budget::default();
    let at = Duration::from_millis;
    assert!([0, 10, 20, 30].into_iter().all(|time| budget.take(at(time))));
    assert!(!budget.take(at(999)));
    assert!(budget.take(at(1000)) && !budget.take(at(1005)) && budget.take(at(1010)));
}

#[test]
fn pages_are_read_ahead_and_dropped_from_outside() {
    let program = Program::start(&["maps"]);
    let Some(mut hand) = hand(&program) else { return };
    let mapping = program.mapping();
    let mut outside = Outside::of(program.pid(), true).unwrap();
    assert!(outside.read_ahead(&mapping, &Run { at: 0, len: 64 }));
    let dropped = hand.drop(&mapping, &Run { at: 0, len: 64 });
    let may = Status::own().unwrap().bits("CapEff:") & 1 << 23 != 0;
    assert_eq!((dropped, hand.may_drop), (may, may));
}

#[test]
fn calls_that_sleep_end_as_they_would_have() {
    let program = Program::start(&["blocked"]);
    let Some(hand) = hand(&program) else { return };
    let (mut done, mut refused, mut let_go) = (BTreeMap::new(), BTreeMap::new(), 0);
    for round in 0..60 {
        let advice = if round % 2 == 0 { libc::MADV_RANDOM } else { libc::MADV_NORMAL };
        for (thread, _, name) in &program.threads {
            // A thread between two calls may be taken, also one whose calls may not be interrupted.
            match attach_if_fit(&hand, *thread, &program.calls(advice)) {
                None => *refused.entry(name).or_insert(0) += 1,
                Some(Outcome { end: End::Done, .. }) => *done.entry(name).or_insert(0) += 1,
                Some(Outcome { end: End::Unfit | End::Late | End::Signalled, .. }) => let_go += 1,
                Some(outcome) => panic!("{name}: {outcome:?}"),
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("made: {done:?}\nnot tried: {refused:?}\nlet go: {let_go}");
    for (_, is_fit, name) in &program.threads {
        let (done, refused) = (done.get(name).copied().unwrap_or(0), refused.get(name).copied().unwrap_or(0));
        assert!(if *is_fit { done > 0 } else { refused > 0 }, "{name}: made {done}, refused {refused}");
    }
    let kinds = program.threads.len();
    let writes_done = done.iter().find(|(name, _)| **name == "write pipe").map_or(0, |(_, done)| *done);
    let (said, code) = program.end("");
    assert!(kinds >= 20 && said.starts_with(&format!("kinds {kinds} ")), "{said}");
    // A thread that enters a write(2) between the last look and the stop returns what it has written: seldom, and never unnoticed.
    let cut: Option<usize> = said.split("cut ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(cut.is_some_and(|cut| cut <= writes_done.min(2)), "{said}");
    assert_eq!((said.split("wrong ").nth(1), code), (Some("0"), Some(0)), "{said}");
}

/// It looked fit before.
struct Looked;

impl View for Looked {
    fn is_fit(&self, _: u32) -> bool {
        true
    }

    fn reads_pipe(&self, _: u64) -> bool {
        false
    }
}

/// What happens if a thread enters such a call after it was looked at.
#[test]
fn an_interrupted_call_that_did_nothing_begins_again() {
    let program = Program::start(&["blocked"]);
    let Some(hand) = hand(&program) else { return };
    let begin_again = [
        "epoll_wait",
        "epoll_pwait",
        "epoll_pwait2",
        "semtimedop",
        "rt_sigtimedwait",
        "recv",
        "read socket",
        "accept",
        "io_getevents",
        "msgrcv",
    ];
    let mut tried = 0;
    for _ in 0..20 {
        for (thread, _, name) in program.threads.iter().filter(|(_, _, name)| begin_again.contains(&name.as_str())) {
            let outcome = attach(*thread, hand.code, &program.calls(libc::MADV_RANDOM), &Looked);
            tried += 1;
            assert!(matches!(outcome.end, End::Unfit | End::Done | End::Late), "{name}: {outcome:?}");
        }
        // Each time limit begins again too.
        std::thread::sleep(Duration::from_millis(60));
    }
    assert!(tried > 100);
    let (said, code) = program.end("");
    assert_eq!((said.split("wrong ").nth(1), code), (Some("0"), Some(0)), "{said}");
}

#[test]
fn signals_come_once_each_and_as_they_were_sent() {
    const ATTACHMENTS: usize = 400;
    let mut program = Program::start(&["signals"]);
    let Some(hand) = hand(&program) else { return };
    let (pid, names): (u32, Vec<u32>) = (program.pid(), program.threads.iter().map(|(thread, ..)| *thread).collect());
    let ends = std::sync::atomic::AtomicBool::new(false);
    let (mut done, mut signalled) = (0, 0);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(pid, &names, &ends));
        for round in 0..ATTACHMENTS * 100 {
            if done >= ATTACHMENTS && signalled > 0 {
                break;
            }
            let outcome = attach_if_fit(&hand, names[round % names.len()], &program.calls(libc::MADV_RANDOM));
            match outcome.map(|outcome| outcome.end) {
                Some(End::Done) => done += 1,
                Some(End::Signalled) => signalled += 1,
                Some(End::Failed(_)) => panic!("{outcome:?}"),
                _ => {}
            }
        }
        ends.store(true, std::sync::atomic::Ordering::Relaxed);
        sender.join().unwrap()
    });
    println!("{sent} signals, {done} attachments made, {signalled} with a signal first");
    assert!(done >= ATTACHMENTS && signalled > 0, "{done} {signalled}");
    let mut input = program.input.take().unwrap();
    input.write_all(format!("{sent}\n").as_bytes()).unwrap();
    let said = program.line();
    assert_eq!(said, format!("handled {sent} lost 0 twice 0 strange 0"));
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

/// Sends realtime signals with values, to the process and to its threads, until told to end: how many.
fn send(pid: u32, names: &[u32], ends: &std::sync::atomic::AtomicBool) -> i32 {
    let mut sent = 0;
    while !ends.load(std::sync::atomic::Ordering::Relaxed) && sent < 90_000 {
        let signal = libc::SIGRTMIN() + 1;
        // SAFETY: plain system calls; any bytes are a siginfo_t, whose third to fifth word here are the sender's and the value.
        let done = unsafe {
            let mut info: [i32; 32] = [0; 32];
            (info[0], info[2], info[4], info[5], info[6]) =
                (signal, libc::SI_QUEUE, std::process::id() as i32, libc::getuid() as i32, sent);
            match sent as usize % (names.len() + 1) {
                0 => libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, &raw const info),
                one => libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, names[one - 1], signal, &raw const info),
            }
        };
        // The queue may be full.
        sent += i32::from(done == 0);
        std::thread::sleep(Duration::from_micros(if done == 0 { 100 } else { 2000 }));
    }
    sent
}

#[test]
fn a_process_that_ends_or_executes_a_program_is_let_go() {
    let (mut made, mut gone) = (0, 0);
    for seed in 0..40 {
        let (again, seed_text) = (if seed % 2 == 0 { "0" } else { "3" }, seed.to_string());
        let mut program = Program::start(&["short", again, &seed_text]);
        let pid = program.pid();
        let Ok(Some(code)) = code::find(pid) else { continue };
        // Until only the parent's wait is left.
        while Status::of(pid).is_some_and(|status| status.state() != b'Z') {
            let mut names: Vec<u32> = std::fs::read_dir(format!("/proc/{pid}/task"))
                .map(|tasks| tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
                .unwrap_or_default();
            names.reverse();
            for thread in names {
                let outcome = attach(thread, code, &program.calls(libc::MADV_NORMAL), &Looked);
                match outcome.end {
                    End::Gone => gone += 1,
                    _ => made += outcome.made,
                }
            }
        }
        // The thread that held one lets go when it ends, which may be after it was joined.
        while Status::of(pid).unwrap().number("TracerPid:") != Some(0) {
            std::thread::yield_now();
        }
        assert_eq!(program.child.wait().unwrap().code(), Some(7));
    }
    println!("{made} calls made, {gone} threads gone");
    assert!(made > 0);
}

#[test]
fn a_process_that_stops_and_goes_on_is_not_disturbed() {
    let program = Program::start(&["signals"]);
    let Some(hand) = hand(&program) else { return };
    let pid = program.pid() as i32;
    for round in 0..50 {
        for (thread, ..) in &program.threads {
            let signal = if round % 2 == 0 { libc::SIGSTOP } else { libc::SIGCONT };
            // SAFETY: a plain system call.
            unsafe { libc::kill(pid, signal) };
            attach(*thread, hand.code, &program.calls(libc::MADV_NORMAL), &Looked);
        }
        if round % 2 == 0 {
            let is_stopped = || Status::of(program.pid()).unwrap().state() == b'T';
            assert!((0..10_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                is_stopped()
            }));
        }
    }
    let (said, code) = program.end("0\n");
    assert_eq!((said.as_str(), code), ("handled 0 lost 0 twice 0 strange 0", Some(0)));
}

#[test]
fn what_cannot_be_traced_is_refused_with_a_reason() {
    let program = Program::start(&["plain"]);
    if hand(&program).is_none() {
        return;
    }
    std::thread::scope(|scope| {
        let traced = scope.spawn(|| {
            let tracee = Tracee::seize(program.pid()).unwrap();
            let refused = Traced::of(program.pid()).unwrap_err();
            tracee.interrupt();
            tracee.wait(Duration::from_secs(60));
            tracee.let_go(0);
            refused
        });
        let refused = traced.join().unwrap();
        assert!(matches!(refused, Refusal::Traced { .. }), "{refused}");
    });
    let filtered = Program::start(&["filtered"]);
    assert_eq!(Traced::of(filtered.pid()).unwrap_err(), Refusal::Filtered(filtered.pid()));
    let strict = Program::start(&["strict"]);
    // It says so before it does.
    while Filters::of(&Status::of(strict.pid()).unwrap()) == Filters::None {
        std::thread::yield_now();
    }
    assert_eq!(Traced::of(strict.pid()).unwrap_err(), Refusal::Strict(strict.pid()));
    let protected = Program::start(&["protected"]);
    // Root may all the same.
    match Traced::of(protected.pid()) {
        Ok(_) => assert!(Status::own().unwrap().bits("CapEff:") & 1 << 19 != 0),
        Err(refused) => assert_eq!(refused, Refusal::Protected(protected.pid())),
    }
    let mut ended = Program::start(&["plain"]);
    let pid = ended.pid();
    ended.input = None;
    while Status::of(pid).unwrap().state() != b'Z' {
        std::thread::yield_now();
    }
    assert_eq!(Traced::of(pid).unwrap_err(), Refusal::Ended(pid));
}

#[test]
fn a_thread_with_filters_of_its_own_is_not_used() {
    let program = Program::start(&["filtered-thread"]);
    let Some(hand) = hand(&program) else { return };
    assert!(!threads::is_free(program.pid(), program.threads[0].0, &hand.known));
    assert!(threads::is_free(program.pid(), program.pid(), &hand.known));
}

/// The kernel aborts a sequence that was interrupted when it sees where the thread is: which a call put in would hide.
#[test]
fn a_thread_in_a_restartable_sequence_is_let_go() {
    let program = Program::start(&["sequence"]);
    let Some(hand) = hand(&program) else { return };
    let Some((thread, ..)) = program.threads.first() else { return eprintln!("skipped: a C library without rseq") };
    let ends = (0..200).map(|_| attach(*thread, hand.code, &program.calls(libc::MADV_RANDOM), &Looked).end);
    let mut counts = [0; 2];
    for end in ends {
        counts[0] += usize::from(end == End::Unfit);
        counts[1] += usize::from(end == End::Done);
    }
    let (said, _) = program.end("");
    println!("{} let go, {} outside; {said}", counts[0], counts[1]);
    let aborted: usize = said.strip_prefix("aborted ").unwrap().parse().unwrap();
    // Two stops may come before the thread is back in the program.
    assert!(counts[0] > 0 && aborted > 0, "{counts:?} {said}");
}

/// How long threads stand: `cargo test -p fastmap-steer --release measure -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn measure() {
    for (kind, place) in [("0", At::Running), ("1", At::Fault), ("2", At::Asleep)] {
        let program = Program::start(&["measured", kind]);
        let hand = hand(&program).unwrap();
        let (thread, _, name) = &program.threads[0];
        let (mut stood, mut whole, mut others) = (Vec::new(), Vec::new(), 0);
        while stood.len() < 1000 {
            let advice = if stood.len() % 2 == 0 { libc::MADV_RANDOM } else { libc::MADV_NORMAL };
            if threads::place(hand.pid, *thread) != Some(place) {
                continue;
            }
            let began = crate::clock::now();
            match attach(*thread, hand.code, &program.calls(advice), &threads::Process(hand.pid)) {
                Outcome { end: End::Done, stood: time, .. } => {
                    stood.push(time);
                    whole.push(crate::clock::now() - began);
                }
                _ => others += 1,
            }
        }
        for (what, mut times) in [("stood", stood), ("attached", whole)] {
            times.sort();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1e3;
            let (half, most, late, later) = (at(0.5), at(1.0), at(0.95), at(0.99));
            println!(
                "{name}, {what}: median {half:.0}, p95 {late:.0}, p99 {later:.0}, longest {most:.0} us; {others} others"
            );
        }
    }
}
