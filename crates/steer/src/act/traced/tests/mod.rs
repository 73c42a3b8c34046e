//! Attachments to programs that would notice: `program.c`, built here.

use super::attachment::{End, Job, Outcome, Process, Visit, attach};
use super::filters::{Filters, Proof};
use super::maps::Maps;
use super::status::Status;
use super::threads::{May, Met, Watched, running, waiting};
use super::tracee::{Stop, Tracee};
use super::{Made, Refusal, Traced, code};
use crate::act::Advice;
use crate::act::{Hand, Outside};
use crate::observe::{Flags, Mapping, Mappings};
use crate::run::Run;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
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
    /// Its threads: number, where they spend their time, name.
    threads: Vec<(u32, String, String)>,
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
                    let (thread, place) = (words.next().unwrap().parse().unwrap(), words.next().unwrap().to_owned());
                    started.threads.push((thread, place, words.collect::<Vec<_>>().join(" ")));
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
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        (said.trim_end().to_owned(), self.child.wait().unwrap().code())
    }

    fn say(&mut self, what: &str) {
        self.input.as_mut().unwrap().write_all(what.as_bytes()).unwrap();
    }

    fn mapping(&self) -> Mapping {
        self.find_mapping().unwrap()
    }

    fn find_mapping(&self) -> Option<Mapping> {
        let found = Mappings::of(&self.pid().to_string()).look();
        found.into_iter().find(|one| one.at.start == self.mapping.0)
    }

    fn flags(&self) -> Flags {
        let at = self.mapping.0..self.mapping.0 + self.mapping.1;
        Mappings::of(&self.pid().to_string()).flags(&[at]).unwrap()[0]
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
    match Traced::of(program.pid(), false) {
        Ok(hand) => Some(hand),
        Err(refusal @ (Refusal::Denied { .. } | Refusal::Yama { .. }))
            if std::env::var("CI").as_deref() != Ok("true") =>
        {
            eprintln!("skipped: {refusal}");
            None
        }
        Err(refusal) => panic!("{refusal}"),
    }
}

/// Attaches to a thread as the hand would.
fn attach_as_is(of: &Process, thread: u32, mapping: &Mapping, advice: i32) -> Outcome {
    let may = May { sleep: advice == libc::MADV_NORMAL, run: false };
    attach(thread, of, may, &mut Job { mapping, advice, given: Vec::new() }, Watched::is_there)
}

/// Attaches to a thread wherever it is.
fn attach_anywhere(of: &Process, thread: u32, mapping: &Mapping, advice: i32) -> Outcome {
    let may = May { sleep: true, run: true };
    attach(thread, of, may, &mut Job { mapping, advice, given: Vec::new() }, |_| true)
}

/// Root may do more.
fn has(capability: u32) -> bool {
    Status::own().unwrap().bits("CapEff:") & 1 << capability != 0
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
    let whole = || Made::Given(vec![mapping.at.clone()]);
    assert_eq!(advise(&mut hand, &mapping, Advice::Random), whole());
    assert!(program.flags().random);
    let but_maps = |mut state: BTreeMap<String, String>| state.remove("smaps").map(|_| state);
    assert_eq!(but_maps(state(program.pid())), but_maps(before.clone()));
    assert_eq!(advise(&mut hand, &mapping, Advice::Normal), whole());
    assert!(!program.flags().random);
    assert_eq!(state(program.pid()), before);
    let (stops, longest) = hand.stops();
    assert!(stops >= 2 && longest > Duration::ZERO);
    let other = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
    assert_eq!(advise(&mut hand, &other, Advice::Random), Made::Given(Vec::new()));
    assert!(!program.flags().random);
    // Threads that neither wait for pages nor run are never stopped.
    let still = Program::start(&["plain"]);
    let mut hand = Traced::of(still.pid(), false).unwrap();
    for advice in [Advice::Random, Advice::Normal] {
        assert_eq!(hand.advise(&still.mapping(), advice), Made::NotNow);
    }
    assert_eq!(hand.stops().0, 0);
    let at_last = still.mapping();
    still.end("");
    assert_eq!(hand.advise(&at_last, Advice::Random), Made::Given(Vec::new()));
}

/// Until a thread was stopped: a machine that has much to do may not stop one in time, and there are few tries a second.
fn advise(hand: &mut Traced, mapping: &Mapping, advice: Advice) -> Made {
    let mut made = Made::NotNow;
    for _ in 0..100 {
        made = hand.advise(mapping, advice);
        if made != Made::NotNow {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    made
}

#[test]
fn only_what_lies_there_now_is_advised() {
    let mut program = Program::start(&["replaced"]);
    let Some(mut hand) = hand(&program) else { return };
    let listed = program.mapping();
    program.say("x");
    assert_eq!(program.line(), "ready");
    let part = LENGTH / 4;
    let parts: Vec<_> =
        (0..4).map(|index| listed.at.start + index * part..listed.at.start + (index + 1) * part).collect();
    assert_eq!(advise(&mut hand, &listed, Advice::Random), Made::Given(vec![parts[3].clone()]));
    let flags = Mappings::of(&program.pid().to_string()).flags(&parts).unwrap();
    assert_eq!(flags.iter().map(|flags| flags.random).collect::<Vec<_>>(), [false, false, false, true]);
}

#[test]
fn what_is_replaced_meanwhile_inherits_nothing() {
    let mut program = Program::start(&["churn"]);
    let Some(hand) = hand(&program) else { return };
    program.say("x");
    let mut said = program.line();
    // Both halves are there.
    while said != "file" {
        program.say("yx");
        said = program.line();
    }
    let listed = program.mapping();
    let half = listed.at.start + LENGTH / 2..listed.at.end;
    let (mut done, mut others) = (0, 0);
    while done < 200 {
        program.say("y");
        // Its toucher is found as the hand finds it.
        let may = May { sleep: false, run: false };
        let mut job = Job { mapping: &listed, advice: libc::MADV_RANDOM, given: Vec::new() };
        let found = waiting(program.pid(), may, &hand.of.proof, &mut Met::default());
        let is_done = found
            .first()
            .is_some_and(|thread| attach(*thread, &hand.of, may, &mut job, Watched::is_there).end == End::Done);
        done += i32::from(is_done);
        program.say("x");
        if program.line() == "other" {
            others += 1;
            assert!(!Mappings::of(&program.pid().to_string()).flags(std::slice::from_ref(&half)).unwrap()[0].random);
        }
    }
    assert!(others > 0);
}

/// The end of a child would otherwise end another thread's call.
#[test]
fn a_thread_with_children_is_stopped_only_where_it_is_alone() {
    for alone in [true, false] {
        let program = Program::start(&["parent", if alone { "alone" } else { "beside" }]);
        let Some(mut hand) = hand(&program) else { return };
        let mapping = program.mapping();
        let tries = if alone { 100 } else { 20 };
        let made = (0..tries).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            matches!(hand.advise(&mapping, Advice::Random), Made::Given(_))
        });
        assert_eq!((made, hand.stops().0 > 0), (alone, alone));
        let (said, code) = program.end("");
        assert_eq!((said.as_str(), code), ("wrong 0", Some(0)));
    }
}

#[test]
fn there_are_few_stops_a_second() {
    let mut budget = super::Budget::default();
    let at = Duration::from_millis;
    for time in 0..8 {
        assert!(budget.has(at(time)));
        budget.take(at(time));
    }
    assert!(!budget.has(at(999)) && budget.has(at(1000)));
    budget.take(at(1000));
    assert!(!budget.has(at(1000)) && budget.has(at(1001)));
}

#[test]
fn pages_are_read_ahead_and_dropped_from_outside() {
    let program = Program::start(&["maps"]);
    let Some(mut hand) = hand(&program) else { return };
    let mapping = program.mapping();
    let mut outside = Outside::of(program.pid(), true, false).unwrap();
    assert!(outside.read_ahead(&mapping, &Run { at: 0, len: 64 }));
    let dropped = hand.drop(&mapping, &Run { at: 0, len: 64 });
    let may = has(23);
    assert_eq!((dropped, hand.may_drop), (may, may));
}

#[test]
fn only_threads_that_fault_or_run_are_stopped_and_to_take_back_those_that_sleep() {
    let program = Program::start(&["blocked"]);
    let Some(hand) = hand(&program) else { return };
    let mapping = program.mapping();
    let (mut given, mut taken) = (BTreeMap::new(), BTreeMap::new());
    for round in 0..60 {
        let (advice, counts) =
            if round % 2 == 0 { (libc::MADV_RANDOM, &mut given) } else { (libc::MADV_NORMAL, &mut taken) };
        for (thread, _, name) in &program.threads {
            if attach_as_is(&hand.of, *thread, &mapping, advice).end == End::Done {
                *counts.entry(name.as_str()).or_insert(0) += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut run = BTreeSet::new();
    for _ in 0..20 {
        run.extend(running(program.pid(), May { sleep: false, run: true }, &hand.of.proof, &mut Met::default()));
    }
    println!("given: {given:?}\ntaken back: {taken:?}\nrun: {run:?}");
    for (thread, place, name) in &program.threads {
        let (given, taken) = (given.get(&**name).copied().unwrap_or(0), taken.get(&**name).copied().unwrap_or(0));
        // Any thread may wait for a page, of its code say: seldom.
        match (place.as_str(), name.as_str()) {
            ("faults", "spin") => assert!(run.contains(thread), "{name}"),
            ("faults", _) => assert!(given > 0 && taken > 0, "{name}"),
            ("sleeps", _) => assert!(given <= 2 && taken > 0 && !run.contains(thread), "{name}: {given} {taken}"),
            _ => assert!(given <= 2 && taken <= 2 && !run.contains(thread), "{name}: {given} {taken}"),
        }
    }
    let (said, code) = program.end("");
    assert_eq!((said.split("wrong ").nth(1), code), (Some("0"), Some(0)), "{said}");
}

/// Threads in 33 kinds of calls, timers, threads and programs that come and go, and as many stops as there can be.
#[test]
fn no_call_ends_early_and_no_signal_is_lost_in_a_storm_of_stops() {
    let stops = if std::env::var("FASTMAP_EFFORT").as_deref() == Ok("full") { 10_000 } else { 300 };
    let program = Program::start(&["storm"]);
    let Some(hand) = hand(&program) else { return };
    let mapping = program.mapping();
    let (mut ends, mut stopped) = (BTreeMap::new(), 0);
    for round in 0.. {
        if stopped >= stops {
            break;
        }
        let advice = if round % 2 == 0 { libc::MADV_RANDOM } else { libc::MADV_NORMAL };
        let may = May { sleep: advice == libc::MADV_NORMAL, run: round % 25 < 2 };
        let find = if may.run { running } else { waiting };
        for thread in find(hand.of.pid, may, &hand.of.proof, &mut Met::default()) {
            let mut job = Job { mapping: &mapping, advice, given: Vec::new() };
            let outcome = attach(thread, &hand.of, may, &mut job, Watched::is_there);
            stopped += u32::from(!outcome.stood.is_zero());
            *ends.entry(format!("{:?}", outcome.end)).or_insert(0) += 1;
        }
    }
    let (said, code) = program.end("");
    println!("{stopped} stops: {ends:?}; {said}");
    // The more there is to do, the more stops a signal of the timer breaks.
    assert!(ends["Done"] > stops / 2, "{ends:?}");
    assert_eq!((said.split("wrong ").nth(1), code), (Some("0"), Some(0)), "{said}");
}

/// What happens if a thread enters such a call after it was looked at.
#[test]
fn an_interrupted_call_that_did_nothing_begins_again() {
    let program = Program::start(&["blocked"]);
    let Some(hand) = hand(&program) else { return };
    let mapping = program.mapping();
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
            let outcome = attach_anywhere(&hand.of, *thread, &mapping, libc::MADV_RANDOM);
            tried += 1;
            assert!(matches!(outcome.end, End::InCall(_) | End::Done | End::Late), "{name}: {outcome:?}");
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
    let mapping = program.mapping();
    let ends = std::sync::atomic::AtomicBool::new(false);
    let (mut done, mut signalled) = (0, 0);
    let sent = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(pid, &names, &ends));
        for round in 0..ATTACHMENTS * 100 {
            if done >= ATTACHMENTS && signalled > 0 {
                break;
            }
            // Its threads make no call that ends early.
            let outcome = attach_anywhere(&hand.of, names[round % names.len()], &mapping, libc::MADV_RANDOM);
            match outcome.end {
                End::Done => done += 1,
                End::Signalled => signalled += 1,
                End::Failed(_) => panic!("{outcome:?}"),
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
        let of = Process { pid, code, proof: Proof::of(false, &Status::own().unwrap()) };
        // It may have no mapping any more when it is asked.
        let Some(mapping) = program.find_mapping() else { continue };
        // Until only the parent's wait is left.
        while Status::of(pid).is_some_and(|status| status.state() != b'Z') {
            let mut names: Vec<u32> = std::fs::read_dir(format!("/proc/{pid}/task"))
                .map(|tasks| tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
                .unwrap_or_default();
            names.reverse();
            for thread in names {
                match attach_anywhere(&of, thread, &mapping, libc::MADV_NORMAL).end {
                    End::Gone => gone += 1,
                    End::Done => made += 1,
                    _ => {}
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
    let (pid, mapping) = (program.pid() as i32, program.mapping());
    for round in 0..50 {
        for (thread, ..) in &program.threads {
            let signal = if round % 2 == 0 { libc::SIGSTOP } else { libc::SIGCONT };
            // SAFETY: a plain system call.
            unsafe { libc::kill(pid, signal) };
            attach_anywhere(&hand.of, *thread, &mapping, libc::MADV_NORMAL);
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
            let refused = Traced::of(program.pid(), false).unwrap_err();
            tracee.interrupt();
            tracee.wait(Duration::from_secs(60));
            tracee.let_go(0);
            refused
        });
        let refused = traced.join().unwrap();
        assert!(matches!(refused, Refusal::Traced { .. }), "{refused}");
    });
    let filtered = Program::start(&["filtered"]);
    let pid = filtered.pid();
    assert_eq!(Traced::of(pid, true).unwrap_err(), Refusal::Filtered { pid, descends: true });
    assert_eq!(Traced::of(pid, false).err(), (!has(21)).then_some(Refusal::Filtered { pid, descends: false }));
    let strict = Program::start(&["strict"]);
    // It says so before it does.
    while Filters::of(&Status::of(strict.pid()).unwrap()) == Filters::None {
        std::thread::yield_now();
    }
    assert_eq!(Traced::of(strict.pid(), false).unwrap_err(), Refusal::Strict(strict.pid()));
    let protected = Program::start(&["protected"]);
    // Root may all the same.
    match Traced::of(protected.pid(), false) {
        Ok(_) => assert!(has(19)),
        Err(refused) => assert_eq!(refused, Refusal::Protected(protected.pid())),
    }
    let mut ended = Program::start(&["plain"]);
    let pid = ended.pid();
    ended.input = None;
    while Status::of(pid).unwrap().state() != b'Z' {
        std::thread::yield_now();
    }
    assert_eq!(Traced::of(pid, false).unwrap_err(), Refusal::Ended(pid));
}

#[test]
fn a_thread_with_filters_of_its_own_is_not_used() {
    let program = Program::start(&["filtered-thread"]);
    if hand(&program).is_none() {
        return;
    }
    for descends in [true, false] {
        let mut hand = Traced::of(program.pid(), descends).unwrap();
        assert_eq!(advise(&mut hand, &program.mapping(), Advice::Random), Made::Refused);
        // It is stopped only to have its filters read.
        assert_eq!(hand.stops().0 > 0, !descends && has(21));
    }
    assert_eq!((program.flags().random, program.end("").1), (false, Some(0)));
}

#[test]
fn filters_of_strangers_are_read_by_root_and_only_harmless_ones_pass() {
    for (mode, is_harmless) in [("filtered", true), ("forbidden", false)] {
        let program = Program::start(&[mode]);
        let mut hand = match Traced::of(program.pid(), false) {
            Ok(hand) => hand,
            Err(refusal) => return eprintln!("skipped: {refusal}"),
        };
        let mapping = program.mapping();
        let made = if is_harmless { Made::Given(vec![mapping.at.clone()]) } else { Made::Refused };
        assert_eq!(advise(&mut hand, &mapping, Advice::Random), made);
        assert_eq!(program.flags().random, is_harmless);
        assert_eq!(program.end("").1, Some(0));
    }
}

#[test]
fn a_filter_that_comes_between_the_look_and_the_stop_is_seen() {
    let program = Program::start(&["late"]);
    let Some(mut hand) = hand(&program) else { return };
    hand.of.proof = Proof::of(true, &Status::own().unwrap());
    let (mapping, pid, may) = (program.mapping(), program.pid(), May { sleep: false, run: false });
    let find = || waiting(pid, may, &hand.of.proof, &mut Met::default()).first().copied();
    let thread = (0..10_000).find_map(|_| find()).unwrap();
    let comes = |watched: &Watched| {
        program.input.as_ref().unwrap().write_all(b"x").unwrap();
        while Filters::of(&watched.status().unwrap()) == Filters::None {
            std::thread::yield_now();
        }
        // It may be anywhere by now, but for a call that waits long.
        true
    };
    let mut job = Job { mapping: &mapping, advice: libc::MADV_RANDOM, given: Vec::new() };
    let outcome = attach(thread, &hand.of, may, &mut job, comes);
    assert!(matches!(outcome.end, End::Filtered | End::InCall(_)), "{outcome:?}");
    assert_eq!((program.flags().random, program.end("").1), (false, Some(0)));
}

/// As if another thread had just given this one filters.
#[test]
fn a_call_that_has_begun_is_replaced_if_the_filters_changed() {
    let program = Program::start(&["measured", "0"]);
    let Some(hand) = hand(&program) else { return };
    let (thread, mapping) = (program.threads[0].0, program.mapping());
    // As if this process had had so many from its start.
    let (own, seven) = (Status::made_up("Seccomp:\t2\nSeccomp_filters:\t7\n"), Filters::Programs(Some(7)));
    let of = &Process { proof: Proof::of(true, &own), ..hand.of };
    let replaced = std::thread::scope(|scope| {
        let held = scope.spawn(|| {
            let watched = Watched::open(of.pid, thread, May { sleep: false, run: true }).unwrap();
            let (tracee, maps) = (Tracee::seize(thread).unwrap(), Maps::open(of.pid).unwrap());
            tracee.interrupt();
            assert_eq!(tracee.wait(Duration::from_secs(60)).0, Stop::Asked);
            let saved = tracee.registers().unwrap();
            let visit = Visit { tracee: &tracee, watched: &watched, maps: &maps, of };
            let same = visit.call(&saved, Filters::None, &mapping.at, libc::MADV_RANDOM);
            let changed = visit.call(&saved, seven, &mapping.at, libc::MADV_NORMAL);
            // EBADF, of read(2).
            let result = tracee.registers().map(|registers| (registers.orig_rax, registers.rax as i64));
            tracee.set(&saved);
            tracee.let_go(0);
            (same, changed, result)
        });
        held.join().unwrap()
    });
    assert_eq!(replaced, (Ok(0), Err((End::Filtered, 0)), Some((0, -9))));
    assert!(program.flags().random);
    assert_eq!(program.end("").1, Some(0));
}

/// The kernel aborts a sequence that was interrupted when it sees where the thread is: which a call put in would hide.
#[test]
fn a_thread_in_a_restartable_sequence_is_let_go() {
    let program = Program::start(&["sequence"]);
    let Some(hand) = hand(&program) else { return };
    let Some((thread, ..)) = program.threads.first() else { return eprintln!("skipped: a C library without rseq") };
    let mapping = program.mapping();
    let ends = (0..200).map(|_| attach_anywhere(&hand.of, *thread, &mapping, libc::MADV_RANDOM).end);
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
    for kind in ["0", "1", "2"] {
        let program = Program::start(&["measured", kind]);
        let hand = hand(&program).unwrap();
        let mapping = program.mapping();
        let (thread, _, name) = &program.threads[0];
        let (mut stood, mut whole, mut others) = (Vec::new(), Vec::new(), 0);
        let may = May { sleep: kind == "2", run: kind == "0" };
        while stood.len() < 1000 {
            let advice = if stood.len() % 2 == 0 { libc::MADV_RANDOM } else { libc::MADV_NORMAL };
            let began = crate::clock::now();
            let mut job = Job { mapping: &mapping, advice, given: Vec::new() };
            match attach(*thread, &hand.of, may, &mut job, Watched::is_there) {
                Outcome { end: End::Done, stood: time } => {
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
