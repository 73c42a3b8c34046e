//! `fastmap run` leaves no trace in the program: the same calls return the same, /proc/self says the same, and the parent waits for
//! the same. Each test runs untouched.c as it is and under `fastmap run`, and compares the two.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::FASTMAP;
use crate::group::Group;
use crate::prompt::{dir, is_root, make_program, skipped};
use crate::terminal::{Terminal, c_library, gcc};

/// How a program is started.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    AsIs,
    Run,
    /// With a cache and files of its own, so that this command is traced. The engine's library is an empty one.
    Own,
}

use Way::{AsIs, Own, Run};

const BOTH: [Way; 2] = [AsIs, Run];
const ALL: [Way; 3] = [AsIs, Run, Own];

/// How long anything may take that has to happen. A test fails after it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder with the program.
struct Place {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Place {
    fn new() -> Place {
        Place::built("gcc", &[])
    }

    fn built(compiler: &str, flags: &[&str]) -> Place {
        let dir = dir();
        let program = dir.path().canonicalize().unwrap().join("program");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/untouched.c");
        let all = [flags, &["-O1", "-pthread", "-o", program.to_str().unwrap(), source]].concat();
        if compiler == "gcc" {
            gcc(&all);
        } else {
            let output = Command::new(compiler).args(&all).output().expect(compiler);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Place { dir, program }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The program's words, with `fastmap run --` before them or without.
    fn words<'a>(&'a self, way: Way, args: &[&'a str]) -> Vec<&'a str> {
        under(way, &[&[self.program.to_str().unwrap()], args].concat())
    }

    fn command(&self, way: Way, args: &[&str]) -> Command {
        self.start(&self.words(way, args))
    }

    /// A command in the folder, without FastMap's environment and without randomized addresses.
    fn start(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(self.path()).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FASTMAP_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        // SAFETY: one system call.
        unsafe {
            command.pre_exec(|| match libc::personality(libc::ADDR_NO_RANDOMIZE as _) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        command
    }

    /// The processes that execute the program. Tests run beside each other, each with a program of its own.
    fn processes(&self) -> Vec<i32> {
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.filter(|pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == self.program))
            .collect()
    }
}

impl Drop for Place {
    /// Ends what a failed test has left behind.
    fn drop(&mut self) {
        for pid in self.processes() {
            // SAFETY: sends a signal to a process that executes the test's own program.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// The words, with `fastmap run --` before them or without.
fn under<'a>(way: Way, words: &[&'a str]) -> Vec<&'a str> {
    match way {
        AsIs => words.to_vec(),
        Run => [&[FASTMAP, "run", "--"], words].concat(),
        Own => {
            let library = "FASTMAP_PRELOAD=own.so";
            [&["env", library, FASTMAP, "run", "--cache", "1MiB", "--own", "*", "--"], words].concat()
        }
    }
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process's state, as in proc_pid_stat(5); None if it is gone.
fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Runs to the end, and is killed after `PATIENCE`.
#[track_caller]
fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let (sender, receiver) = channel();
    let waiter = std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let output = receiver.recv_timeout(3 * PATIENCE);
    if output.is_err() {
        // SAFETY: sends a signal to a child that was not waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        panic!("no end after {:?}", 3 * PATIENCE);
    }
    waiter.join().unwrap().unwrap();
    output.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails with the lines that differ.
#[track_caller]
fn same(what: &str, as_is: &str, run: &str) {
    if as_is == run {
        return;
    }
    let (left, right): (Vec<&str>, Vec<&str>) = (as_is.lines().collect(), run.lines().collect());
    let from = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
    let part = |lines: &[&str]| lines[from.min(lines.len())..(from + 12).min(lines.len())].join("\n");
    let before = left[from.saturating_sub(4)..from].join("\n");
    panic!(
        "{what}: from line {from}, after\n{before}\n-- as it is:\n{}\n-- under fastmap run:\n{}",
        part(&left),
        part(&right)
    );
}

// --- what is compared ---

/// Replaces the numbers that stand alone.
fn with_numbers(line: &str, mut replace: impl FnMut(&str) -> Option<String>) -> String {
    let mut result = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let len = rest[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - start);
        let is_alone = !rest[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_')
            && !rest[start + len..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let number = &rest[start..start + len];
        result.push_str(&rest[..start]);
        result.push_str(&is_alone.then(|| replace(number)).flatten().unwrap_or_else(|| number.to_owned()));
        rest = &rest[start + len..];
    }
    result + rest
}

/// What the program printed, less what differs from run to run. While it is steered, a mapping may be cut where the advice ends, and the
/// advice is among its flags: neither changes what the program can do with it.
fn printed(output: &str, is_steered: bool) -> String {
    let (mut result, mut section) = (String::new(), "");
    let mut last_map: Option<(String, String, u64, String)> = None;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            section = name;
        }
        let kept = match section {
            "status" => match line.split_once(':').unwrap_or((line, "")) {
                ("TracerPid" | "PPid" | "Pid" | "Tgid" | "NSpid" | "NStgid", _)
                | ("VmHWM" | "VmRSS" | "RssAnon" | "RssFile" | "RssShmem" | "VmPTE" | "VmSwap", _)
                | ("voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches", _) => continue,
                // The count is of all processes of the user.
                ("SigQ", value) => format!("SigQ:{}", value.rsplit_once('/').unwrap().1),
                _ => line.to_owned(),
            },
            "maps" if line.contains('-') => {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let (from, to) = fields[0].split_once('-').unwrap();
                let offset = u64::from_str_radix(fields[2], 16).unwrap();
                let inode = if fields[3].starts_with("00:") { "-" } else { fields[4] };
                let rest = [fields[1], fields[3], inode, fields.get(5).unwrap_or(&"")].join(" ");
                let size = |from: &str, to: &str| {
                    u64::from_str_radix(to, 16).unwrap() - u64::from_str_radix(from, 16).unwrap()
                };
                if let Some((first, end, start, what)) = &mut last_map
                    && is_steered
                    && end == from
                    && *what == rest
                    && *start + size(first, end) == offset
                {
                    to.clone_into(end);
                } else {
                    if let Some((first, end, start, what)) = last_map.take() {
                        result += &format!("{first}-{end} {start:x} {what}\n");
                    }
                    last_map = Some((from.to_owned(), to.to_owned(), offset, rest));
                }
                continue;
            }
            "fd" => with_numbers(line, |_| Some("N".into())),
            "flags" if is_steered && line.starts_with("Vm") => continue,
            _ => line.to_owned(),
        };
        if let Some((first, end, start, what)) = last_map.take() {
            result += &format!("{first}-{end} {start:x} {what}\n");
        }
        result += &kept;
        result.push('\n');
    }
    result
}

/// What `strace -ff` wrote, a thread each: from the program's start, with processes and threads named by their order.
fn traced(folder: &Path, words: &[&str]) -> BTreeMap<String, String> {
    let mut files: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if let Some(pid) = name.strip_prefix("trace.") {
            let lines = text(&fs::read(entry.path()).unwrap()).lines().map(str::to_owned).collect();
            files.insert(pid.parse().unwrap(), lines);
        }
    }
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let start = format!("execve({}, [{}], ", quoted[0], quoted.join(", "));
    let mut roots = Vec::new();
    for (pid, lines) in &mut files {
        if let Some(at) = lines.iter().rposition(|line| line.starts_with(&start) && line.ends_with(" = 0")) {
            lines.drain(..at);
            // The list of variables lies in the caller's memory; their number tells.
            lines[0] = format!("execve {}", lines[0].rsplit_once("/*").unwrap().1);
            roots.push(*pid);
        }
    }
    assert_eq!(roots.len(), 1, "{start} in {} traces", files.len());
    let mut names = BTreeMap::new();
    name_threads(&files, roots[0], "P".to_owned(), &mut names);
    names.iter().map(|(pid, name)| (name.clone(), thread(&files[pid], &names))).collect()
}

fn name_threads(files: &BTreeMap<u32, Vec<String>>, pid: u32, name: String, names: &mut BTreeMap<u32, String>) {
    let mut count = 0;
    for line in &files[&pid] {
        if ["clone(", "clone3(", "fork(", "vfork("].iter().any(|call| line.starts_with(call))
            && let Ok(child) = line.rsplit_once(" = ").unwrap_or_default().1.parse()
        {
            count += 1;
            name_threads(files, child, format!("{name}.{count}"), names);
        }
    }
    names.insert(pid, name);
}

/// A thread's calls, less what differs from run to run.
fn thread(lines: &[String], names: &BTreeMap<u32, String>) -> String {
    const WITH_PIDS: [&str; 21] = [
        "getpid",
        "gettid",
        "clone",
        "clone3",
        "fork",
        "vfork",
        "wait4",
        "waitid",
        "kill",
        "tgkill",
        "rt_sigqueueinfo",
        "rt_sigtimedwait",
        "set_tid_address",
        "getsockopt",
        "pidfd_open",
        "process_vm_readv",
        "rt_sigtimedwait_time64",
        "waitpid",
        "getpgid",
        "---",
        "+++",
    ];
    let (mut kept, mut children, mut is_dump) = (String::new(), String::new(), false);
    let mut last = "";
    for line in lines {
        let call = line.split(['(', ' ']).next().unwrap();
        let name = |number: &str| Some(format!("<{}>", names.get(&number.parse().ok()?)?));
        let replaced = match call {
            // Whether a thread waits for another's end depends on which is first.
            "futex" if !line.contains("ERESTART") && !line.contains("EINTR") => continue,
            "access" if line.contains("/fastmap-test/dump\"") => {
                is_dump = true;
                line.clone()
            }
            "access" if line.contains("/fastmap-test/dumped\"") => {
                is_dump = false;
                line.clone()
            }
            // What these returned is compared as text.
            _ if is_dump && call == last => continue,
            _ if is_dump => call.to_owned(),
            "getrandom" | "getppid" => call.to_owned(),
            // From a signalfd(2): among the bytes is a PID.
            "read" if line.ends_with(", 128) = 128") => call.to_owned(),
            // Behind the new time is what was left of the old one.
            "setitimer" => line.split_once("}}, ").unwrap().0.to_owned(),
            _ if WITH_PIDS.contains(&call) => with_numbers(line, name),
            _ => line.clone(),
        };
        // What a call has left of its time limit, and what a child spent.
        let mut replaced = replaced;
        for times in [", left {", ", si_utime="] {
            if let Some((before, after)) = replaced.split_once(times) {
                replaced = before.to_owned() + &after[after.find('}').unwrap()..];
            }
        }
        last = call;
        let port = replaced.find("htons(").map(|at| at + 6..at + replaced[at..].find(')').unwrap());
        let replaced =
            port.map_or(replaced.clone(), |port| format!("{}PORT{}", &replaced[..port.start], &replaced[port.end..]));
        // strace pads a call to a column, by the length that its numbers had.
        let replaced = match replaced.rsplit_once(" = ") {
            Some((call, result)) => format!("{} = {result}", call.trim_end()),
            None => replaced,
        };
        // The end of a child comes before, during, or after the wait for it.
        let to = if replaced.starts_with("--- SIGCHLD") { &mut children } else { &mut kept };
        *to += &replaced;
        to.push('\n');
    }
    kept + &children
}

/// Runs the words under strace, as they are and under `fastmap run`, and compares all that can be seen.
#[track_caller]
fn compare_traces(place: &Place, words: &[&str], group: Option<&Group>) {
    if Command::new("strace").arg("--version").output().is_err() {
        return skipped("strace is not installed");
    }
    let mut seen = Vec::new();
    for way in BOTH {
        let folder = tempfile::tempdir_in(place.path()).unwrap();
        let prefix = folder.path().join("trace");
        let strace = ["strace", "-ff", "-qq", "-s", "256", "-o", prefix.to_str().unwrap()];
        let mut command = place.start(&[&strace[..], &under(way, words)].concat());
        enter(&mut command, group);
        let output = output(&mut command);
        seen.push((
            traced(folder.path(), words),
            printed(&text(&output.stdout), false),
            text(&output.stderr),
            output.status,
        ));
    }
    let [as_is, run] = &seen[..] else { unreachable!() };
    assert!(as_is.3.success(), "{:?} {}", as_is.3, as_is.2);
    assert!(as_is.1.ends_with("== end\n"), "it ran to its end:\n{}", as_is.1);
    let threads = |traces: &BTreeMap<String, String>| traces.keys().cloned().collect::<Vec<_>>();
    assert!(threads(&as_is.0).len() > 8, "{:?}", threads(&as_is.0));
    same("printed", &as_is.1, &run.1);
    assert_eq!(threads(&as_is.0), threads(&run.0));
    for (name, calls) in &as_is.0 {
        same(&format!("calls of {name}"), calls, &run.0[name]);
    }
    assert_eq!((&as_is.2, as_is.3), (&run.2, run.3));
}

/// Has the command begin in the memory group.
fn enter(command: &mut Command, group: Option<&Group>) {
    if let Some(group) = group {
        let list = File::options().write(true).open(group.0.join("cgroup.procs")).unwrap();
        // SAFETY: one system call, with a descriptor that the closure owns.
        unsafe {
            command.pre_exec(move || match libc::write(list.as_raw_fd(), c"0".as_ptr().cast(), 1) {
                1 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
    }
}

const MIB: usize = 1 << 20;

/// A file whose pages begin with their numbers, and a sparse one of 16 GiB.
fn data(place: &Place) {
    let mut file = std::io::BufWriter::new(File::create(place.path().join("data")).unwrap());
    let mut page = [0; 4096];
    for number in 0..(112 * MIB / 4096) as u32 {
        page[..4].copy_from_slice(&number.to_ne_bytes());
        file.write_all(&page).unwrap();
    }
    let file = file.into_inner().unwrap();
    file.sync_all().unwrap();
    // What is in memory now is not the group's: it would be no pressure.
    // SAFETY: the call takes numbers.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    File::create(place.path().join("sparse")).unwrap().set_len(16 << 30).unwrap();
}

#[test]
fn the_same_calls_return_the_same_under_pressure() {
    let place = Place::new();
    data(&place);
    let group = match Group::new(48 * MIB) {
        Ok(group) => group,
        Err(why) => return skipped(&why),
    };
    let words = [place.program.to_str().unwrap(), "press", "data", "sparse", "3", "500"];
    compare_traces(&place, &words, Some(&group));
}

#[test]
fn the_same_is_printed_while_steering_acts() {
    let place = Place::new();
    data(&place);
    let group = match Group::new(48 * MIB) {
        Ok(group) => group,
        Err(why) => return skipped(&why),
    };
    let mut seen = Vec::new();
    for way in BOTH {
        let mut command = place.command(way, &["press", "data", "sparse", "12", "250"]);
        enter(&mut command, Some(&group));
        // Both have the variable, because both print their environment.
        command.env("FASTMAP_LOG", "steer");
        let output = output(&mut command);
        assert!(output.status.success(), "{way:?}: {:?} {}", output.status, text(&output.stderr));
        seen.push((printed(&text(&output.stdout), true), text(&output.stderr)));
    }
    same("printed", &seen[0].0, &seen[1].0);
    assert!(seen[0].0.ends_with("== end\n") && seen[0].0.contains("wrong 0\n"));
    assert_eq!(seen[0].1, "");
    assert!(seen[1].1.contains("random"), "nothing was done: {}", seen[1].1);
}

#[test]
fn programs_of_all_kinds_are_untouched() {
    let installed = |program: &str, package: &str| {
        let is_there = Command::new(program).arg("--version").output().is_ok();
        if !is_there {
            skipped(&format!("{program} (package {package}) is not installed"));
        }
        is_there
    };
    let mut kinds = vec![("gcc", &["-static"][..])];
    if installed("musl-gcc", "musl-tools") {
        kinds.push(("musl-gcc", &[]));
    }
    // The compiler is there in any case; the libraries may not be.
    if !cfg!(target_arch = "x86_64") {
        println!("programs of 32 bits are tested on x86-64");
    } else if ["/usr/include/x86_64-linux-gnu/gnu/stubs-32.h", "/usr/include/gnu/stubs-32.h"]
        .iter()
        .any(|path| Path::new(path).exists())
    {
        kinds.push(("gcc", &["-m32"]));
    } else {
        skipped("libraries of 32 bits (package gcc-multilib) are not installed");
    }
    for (compiler, flags) in kinds {
        println!("{compiler} {flags:?}");
        let place = Place::built(compiler, flags);
        File::create(place.path().join("sparse")).unwrap().set_len(16 << 30).unwrap();
        compare_traces(&place, &[place.program.to_str().unwrap(), "calls", "sparse"], None);
        if flags.is_empty() {
            // The same program as an interpreter.
            let script = place.path().canonicalize().unwrap().join("calls");
            make_program(&script, format!("#!{} plain\n", place.program.display()).as_bytes());
            compare_traces(&place, &[script.to_str().unwrap()], None);
        }
    }
}

#[test]
fn valgrind_sees_the_same() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skipped("valgrind is not installed");
    }
    let place = Place::new();
    let program = place.program.to_str().unwrap();
    let seen = BOTH.map(|way| {
        let output =
            output(&mut place.start(&under(way, &["valgrind", "-q", "--error-exitcode=33", program, "emulated"])));
        (output.status, text(&output.stdout), with_numbers(&text(&output.stderr), |_| Some("N".into())))
    });
    assert!(seen[0].0.success() && seen[0].1.contains("close_range"), "{:?}", seen[0]);
    same("printed", &seen[0].1, &seen[1].1);
    same("said", &seen[0].2, &seen[1].2);
    assert_eq!(seen[0].0, seen[1].0);
}

#[test]
fn a_setuid_program_runs_and_is_left_alone() {
    if !is_root() {
        return skipped("only root can make a program of root's");
    }
    let place = Place::new();
    let open = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // SAFETY: all-zero bytes are a valid statvfs, which the call fills.
    let flags = unsafe {
        let mut about: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::statvfs(c"/var/tmp".as_ptr(), &mut about), 0);
        about.f_flag
    };
    if flags & libc::ST_NOSUID != 0 {
        return skipped("/var/tmp is mounted nosuid");
    }
    let (program, fastmap) = (open.path().join("program"), open.path().join("fastmap"));
    make_program(&program, &fs::read(&place.program).unwrap());
    make_program(&fastmap, &fs::read(FASTMAP).unwrap());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let ordinary = ["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups", "--"];
    for mode in [&["identity"][..], &["exit", "7"], &["kill", "15"]] {
        let seen = BOTH.map(|way| {
            let run = [fastmap.to_str().unwrap(), "run", "--"];
            let before = if way == Run { &run[..] } else { &[] };
            let mut command = place.start(&[&ordinary[..], before, &[program.to_str().unwrap()], mode].concat());
            let output = output(command.current_dir("/"));
            (output.status, text(&output.stdout), text(&output.stderr))
        });
        if mode == ["identity"] {
            assert!(seen[0].1.starts_with("uid 65532 euid 0 ") && seen[0].1.contains("secure 1"), "{:?}", seen[0]);
        }
        assert_eq!(seen[0], seen[1]);
    }
}

#[test]
fn a_go_program_sees_the_same() {
    if Command::new("go").arg("version").output().is_err() {
        return skipped("go is not installed");
    }
    let place = Place::new();
    let source = place.path().join("main.go");
    let code = r#"package main

import ("os"; "os/exec"; "os/signal"; "strings"; "sync"; "syscall")

func main() {
	print("arguments ", len(os.Args), " variables ", len(os.Environ()), "\n")
	var group sync.WaitGroup
	sums := make([]int, 50)
	for i := range sums {
		group.Add(1)
		go func() { defer group.Done(); for j := 0; j < 1000; j++ { sums[i] += j } }()
	}
	group.Wait()
	out, err := exec.Command("/bin/echo", "from a child").Output()
	print(string(out), err == nil, "\n")
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGUSR1)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	print((<-came).String(), "\n")
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, "SigIgn") || strings.HasPrefix(line, "SigCgt") || strings.HasPrefix(line, "Seccomp") { print(line, "\n") }
	}
	os.Exit(6)
}
"#;
    fs::write(&source, code).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o", "go-program", "main.go"]).current_dir(place.path()).env("GOFLAGS", "");
    build.env("GO111MODULE", "off");
    let built = build.output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let seen = BOTH.map(|way| {
        let output = output(&mut place.start(&under(way, &["./go-program"])));
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    });
    assert!(seen[0].0 == Some(6) && seen[0].2.contains("from a child\ntrue"), "{:?}", seen[0]);
    assert_eq!(seen[0], seen[1]);
}

// --- what the parent sees ---

#[test]
fn the_parent_waits_for_the_program_and_nothing_else() {
    let place = Place::new();
    let program = place.program.to_str().unwrap();
    let reaper = |way, before: &[&str], args: &[&str]| {
        let words = [&[program, "reaper"], before, &place.words(way, args)].concat();
        let output = output(&mut place.start(&words));
        assert_eq!(text(&output.stderr), "", "{way:?} {args:?}");
        text(&output.stdout)
    };
    for status in [0, 1, 2, 7, 100, 126, 127, 128, 137, 254, 255] {
        let expected = format!("child: exit {status}\npending 0\n");
        for way in BOTH {
            assert_eq!(reaper(way, &[], &["exit", &status.to_string()]), expected, "{way:?}");
        }
    }
    let without_cores = [program, "inherit", "--"];
    for signal in [libc::SIGHUP, libc::SIGPIPE, libc::SIGTERM, libc::SIGKILL, libc::SIGUSR1, libc::SIGRTMAX()] {
        let expected = format!("child: signal {signal}\npending 0\n");
        for way in BOTH {
            assert_eq!(reaper(way, &without_cores, &["kill", &signal.to_string()]), expected, "{way:?}");
        }
    }
    // Core files: of the program only.
    let with_cores = [program, "inherit", "core", "--"];
    for signal in [libc::SIGSEGV, libc::SIGABRT, libc::SIGQUIT, libc::SIGTRAP] {
        let seen = BOTH.map(|way| {
            let said = reaper(way, &with_cores, &["kill", &signal.to_string()]);
            let mut cores = Vec::new();
            for entry in fs::read_dir(place.path()).unwrap().map(Result::unwrap) {
                if entry.file_name().to_string_lossy().starts_with("core") {
                    let bytes = fs::read(entry.path()).unwrap();
                    let mark = b"this line is in the core of the program";
                    cores.push(bytes.windows(mark.len()).any(|part| part == mark));
                    fs::remove_file(entry.path()).unwrap();
                }
            }
            (said, cores)
        });
        assert!(seen[0].0.starts_with(&format!("child: signal {signal}")), "{:?}", seen[0]);
        assert_eq!(seen[0], seen[1], "what was said, and for each core file whether it is the program's");
    }
}

#[test]
fn a_child_of_the_launchers_makes_no_difference() {
    let place = Place::new();
    let program = place.program.to_str().unwrap();
    let script = "sleep 0.2 </dev/null >/dev/null 2>&1 & exec \"$@\"";
    for (args, expected) in
        [(&["exit", "5"][..], "child: exit 5\na stranger: exit 0\npending 0\n"), (&["wait", "600"], "child: exit 0\n")]
    {
        for way in BOTH {
            let words = [&[program, "reaper", "sh", "-c", script, "sh"], &place.words(way, args)[..]].concat();
            let output = output(&mut place.start(&words));
            let said = text(&output.stdout);
            assert!(said.starts_with(expected), "{way:?} {args:?}: {said}");
        }
    }
}

#[test]
fn streams_end_when_the_program_closes_them() {
    let place = Place::new();
    let fifo = place.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for way in BOTH {
        let mut command = place.command(way, &["close", fifo.to_str().unwrap()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, receiver) = channel();
        let (mut stdout, mut stderr, mut stdin) =
            (child.stdout.take().unwrap(), child.stderr.take().unwrap(), child.stdin.take().unwrap());
        std::thread::spawn(move || {
            let mut said = Vec::new();
            stdout.read_to_end(&mut said).unwrap();
            stderr.read_to_end(&mut said).unwrap();
            let _ = sender.send(said);
        });
        let ended = receiver.recv_timeout(PATIENCE);
        let refused = stdin.write(b"x").map_err(|error| error.kind());
        let still_runs = child.try_wait().unwrap().is_none();
        drop(File::options().write(true).open(&fifo).unwrap());
        assert_eq!(ended.as_deref(), Ok(&b""[..]), "{way:?}: standard output and error end while it runs");
        assert_eq!(refused, Err(std::io::ErrorKind::BrokenPipe), "{way:?}: nobody reads standard input");
        assert!(still_runs, "{way:?}");
        assert_eq!(child.wait().unwrap().code(), Some(3), "{way:?}");
    }
}

#[test]
fn a_memory_group_can_be_removed_at_the_end() {
    let place = Place::new();
    for way in BOTH {
        for round in 0..20 {
            let group = match Group::new(64 * MIB) {
                Ok(group) => group,
                Err(why) => return skipped(&why),
            };
            let args = [&["exit", "0"][..], &["wait", "20"], &["kill", "9"]][round % 3];
            let mut command = place.command(way, args);
            enter(&mut command, Some(&group));
            let _ = output(&mut command);
            fs::remove_dir(&group.0).unwrap_or_else(|why| panic!("{way:?}, round {round}: {why}"));
        }
    }
}

// --- signals ---

/// A program that runs in the mode, with the lines that it prints.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines(child.stdout.take().unwrap());
        Running { child, lines }
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    #[track_caller]
    fn line(&self, way: Way, what: &str) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.unwrap_or_else(|why| panic!("{way:?}: no line after {what}: {why}"))
    }

    /// All lines to come until it ends, and its status.
    #[track_caller]
    fn rest(mut self) -> (Vec<String>, std::process::ExitStatus) {
        let mut all = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => all.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(_) => panic!("it goes on after {all:?}"),
            }
        }
        (all, self.child.wait().unwrap())
    }

    /// Waits until the parent is told of a change: a stop, a continuation or the end.
    #[track_caller]
    fn change(&self) -> i32 {
        let (mut status, pid) = (0, self.pid());
        until("the parent is told", || {
            // SAFETY: the call writes to the integer.
            unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED | libc::WCONTINUED | libc::WNOHANG) == pid }
        });
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[track_caller]
fn send(pid: i32, signal: i32) {
    // SAFETY: sends a signal to a process or group that the test started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn each_signal_reaches_the_program_once() {
    let place = Place::new();
    for way in BOTH {
        let running = Running::start(&mut place.command(way, &["signals"]));
        assert_eq!(running.line(way, "the start"), "ready");
        let not_these = [libc::SIGKILL, libc::SIGSTOP, libc::SIGUSR2, 32, 33];
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| !not_these.contains(signal)) {
            send(running.pid(), signal);
            assert_eq!(running.line(way, &signal.to_string()), format!("signal {signal}"), "{way:?}");
        }
        for (signal, values) in [(libc::SIGRTMIN() + 1, &[7, -8, 9][..]), (libc::SIGTERM, &[11])] {
            for value in values {
                let pointer = libc::sigval { sival_ptr: *value as usize as *mut libc::c_void };
                // SAFETY: sends a signal to a process that the test started; the value is an integer.
                assert_eq!(unsafe { libc::sigqueue(running.pid(), signal, pointer) }, 0);
                assert_eq!(running.line(way, &signal.to_string()), format!("signal {signal} value {value}"), "{way:?}");
            }
        }
        send(running.pid(), libc::SIGUSR2);
        let (rest, status) = running.rest();
        assert_eq!((rest, status.code()), (vec![format!("signal {}", libc::SIGUSR2)], Some(0)), "{way:?}");
    }
}

#[test]
fn a_signal_to_the_group_comes_once() {
    let place = Place::new();
    for way in BOTH {
        let running = Running::start(place.command(way, &["signals"]).process_group(0));
        assert_eq!(running.line(way, "the start"), "ready");
        let sent = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGRTMIN() + 1];
        for signal in sent {
            send(-running.pid(), signal);
            assert_eq!(running.line(way, &signal.to_string()), format!("signal {signal}"), "{way:?}");
            // A second one would come by now.
            assert!(running.lines.recv_timeout(Duration::from_millis(100)).is_err(), "{way:?}: {signal} came twice");
        }
        send(running.pid(), libc::SIGUSR2);
        assert_eq!(running.rest().1.code(), Some(0), "{way:?}");
    }
}

#[test]
fn keys_of_a_terminal_reach_the_program_once() {
    let place = Place::new();
    c_library(&place.path().join("own.so"), "");
    let program = place.program.to_str().unwrap();
    for way in ALL {
        let words = [&[program, "shell"], &place.words(way, &["terminal"])[..]].concat();
        let mut terminal = Terminal::start(&mut place.start(&words), 60, 100);
        terminal.until("foreground 1");
        terminal.type_in("\x03");
        terminal.until("caught 02");
        terminal.type_in("\x1c");
        terminal.until("caught 03");
        terminal.resize(61, 100);
        terminal.until("caught 28");
        terminal.type_in("\x1a");
        terminal.until("job: stopped 20");
        let stopped: Vec<i32> = place.processes().into_iter().filter(|pid| state(*pid) == Some('T')).collect();
        assert_eq!(stopped.len(), 1, "{way:?}: the program is stopped");
        // The shell goes on by a line, and the program reads the next.
        terminal.type_in("\r");
        terminal.until("caught 18");
        terminal.type_in("hello\r");
        terminal.until("typed hello");
        terminal.type_in("\x1a");
        until("stopped again", || {
            terminal.read();
            terminal.contents().matches("job: stopped 20").count() == 2
        });
        terminal.type_in("\r");
        until("continued again", || {
            terminal.read();
            terminal.contents().matches("caught 18").count() == 2
        });
        terminal.type_in("end\r");
        terminal.until("job: exit 4");
        assert_eq!(terminal.wait().code(), Some(0), "{way:?}");
        let contents = terminal.contents();
        for (what, count) in [("caught 02", 1), ("caught 03", 1), ("caught 28", 1), ("caught 18", 2), ("read: ", 0)] {
            assert_eq!(contents.matches(what).count(), count, "{way:?}: {what} in\n{contents}");
        }
    }
}

#[test]
fn stops_and_continuations_are_passed_on() {
    let place = Place::new();
    c_library(&place.path().join("own.so"), "");
    for way in ALL {
        let running = Running::start(&mut place.command(way, &["sleep"]));
        assert_eq!(running.line(way, "the start"), "asleep");
        let program = place.processes()[0];
        assert_eq!(program == running.pid(), way == AsIs);
        // The program is stopped, and its parent is told.
        for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN] {
            send(program, signal);
            let status = running.change();
            assert!(libc::WIFSTOPPED(status), "{way:?}: {status:x}");
            assert_eq!(libc::WSTOPSIG(status), signal, "{way:?}");
            until(&format!("{way:?}: stopped by {signal}"), || state(program) == Some('T'));
            send(running.pid(), libc::SIGCONT);
            assert!(libc::WIFCONTINUED(running.change()), "{way:?}");
            until(&format!("{way:?}: it goes on after {signal}"), || state(program) == Some('S'));
        }
        // The program alone is let go on, and its parent with it.
        for _ in 0..3 {
            send(program, libc::SIGSTOP);
            assert!(libc::WIFSTOPPED(running.change()), "{way:?}");
            send(program, libc::SIGCONT);
            assert!(libc::WIFCONTINUED(running.change()), "{way:?}");
            std::thread::sleep(std::time::Duration::from_millis(600));
            assert_eq!(state(program), Some('S'), "{way:?}: it is stopped once more");
        }
        // What was started is stopped, and the program is.
        for signal in [libc::SIGSTOP, libc::SIGTSTP] {
            send(running.pid(), signal);
            until(&format!("{way:?}: the program is stopped by {signal}"), || state(program) == Some('T'));
            assert!(libc::WIFSTOPPED(running.change()), "{way:?}");
            send(running.pid(), libc::SIGCONT);
            until(&format!("{way:?}: the program goes on after {signal}"), || state(program) == Some('S'));
            assert!(libc::WIFCONTINUED(running.change()), "{way:?}");
        }
        // Ended while it is stopped.
        send(program, libc::SIGSTOP);
        running.change();
        send(program, libc::SIGKILL);
        if way != AsIs {
            send(running.pid(), libc::SIGCONT);
        }
        let mut status = running.change();
        if libc::WIFCONTINUED(status) {
            status = running.change();
        }
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{way:?}: {status:x}");
    }
}

#[test]
fn killed_at_once_it_takes_the_program_along() {
    let place = Place::new();
    for way in BOTH {
        let mut running = Running::start(&mut place.command(way, &["sleep"]));
        assert_eq!(running.line(way, "the start"), "asleep");
        send(running.pid(), libc::SIGKILL);
        assert_eq!(running.child.wait().unwrap().signal(), Some(libc::SIGKILL));
        until("the program is gone", || place.processes().is_empty());
    }
}

#[test]
fn what_is_inherited_is_the_programs() {
    let place = Place::new();
    let program = place.program.to_str().unwrap();
    for words in [&[][..], &["ignored"], &["blocked"], &["ignored", "blocked"], &["blocked", "pending"], &["alarm"]] {
        let seen = BOTH.map(|way| {
            let all = [&[program, "inherit"], words, &["--"], &place.words(way, &["states"])].concat();
            let output = output(&mut place.start(&all));
            (output.status, text(&output.stdout), text(&output.stderr))
        });
        assert!(seen[0].1.contains("SigIgn:"), "{:?}", seen[0]);
        assert_eq!(seen[0].1.contains("value 32"), words.contains(&"pending"), "{:?}", seen[0]);
        assert_eq!(seen[0].1.contains("alarm 1"), words.contains(&"alarm"), "{:?}", seen[0]);
        same(&format!("{words:?}"), &seen[0].1, &seen[1].1);
        assert_eq!(seen[0], seen[1], "{words:?}");
    }
    // Whose children's ends are ignored can have none to wait for; the status is the program's nevertheless.
    for way in BOTH {
        let all = [&[program, "inherit", "ignored", "--"], &place.words(way, &["exit", "7"])[..]].concat();
        assert_eq!(output(&mut place.start(&all)).status.code(), Some(7), "{way:?}");
        let all = [&[program, "inherit", "alarm", "--"], &place.words(way, &["sleep"])[..]].concat();
        assert_eq!(output(&mut place.start(&all)).status.signal(), Some(libc::SIGALRM), "{way:?}");
    }
}

// --- as a container's first process ---

#[test]
fn as_the_first_process_it_is_an_init() {
    let place = Place::new();
    let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !is_root()
        || !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success())
    {
        return skipped("no namespace of processes can be made here");
    }
    let inside = |args: &[&str]| place.start(&[&unshare[..], &place.words(Run, args)].concat());
    let ran = output(&mut inside(&["orphans"]));
    assert_eq!((text(&ran.stdout), text(&ran.stderr)), ("zombies 0\n".to_owned(), String::new()));
    assert_eq!(ran.status.code(), Some(9));
    let running = Running::start(&mut inside(&["signals"]));
    assert_eq!(running.line(Run, "the start"), "ready");
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let init = parent(place.processes()[0]).unwrap();
    assert_eq!(parent(init), Some(running.pid()), "the program's parent is the first process");
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1] {
        send(init, signal);
        assert_eq!(running.line(Run, &signal.to_string()), format!("signal {signal}"));
    }
    send(init, libc::SIGUSR2);
    let (rest, status) = running.rest();
    assert_eq!((rest.len(), status.code()), (1, Some(0)));
}
