//! `fastmap top`, over a child of the tests that maps a file and touches it all the time.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::FASTMAP;
use crate::prompt::{dir, fastmap, is_root, run_in, skipped};
use crate::terminal::{Terminal, gcc};
use fastmap::live::{Objects, count_objects};
use fastmap::{Advice, Cache, Fallback, MapOptions};
use serde_json::Value;

/// Pages of the file, of the cache.
const PAGES: (usize, usize) = (2048, 256);

/// A child that is at work until it is dropped.
struct Worker {
    child: Child,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Worker {
    /// `None`, with the reason printed, where nothing can be cached.
    fn start() -> Option<Worker> {
        let dir = dir();
        if fastmap(dir.path(), "doctor").status != Some(0) {
            skipped("FastMap cannot cache files here");
            return None;
        }
        let path = dir.path().canonicalize().unwrap().join("a-file-at-work");
        fs::write(&path, vec![7; PAGES.0 * 4096]).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["top::role", "--exact", "--nocapture"]).env("FASTMAP_TEST_FILE", &path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("at work")));
        Some(Worker { child, path, _dir: dir })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, number: i32) {
        // SAFETY: the child is this value's and not waited for yet.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, number) }, 0);
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Not a test: what a worker does, for two minutes at most, or until its parent has gone.
#[test]
fn role() {
    let Some(path) = std::env::var_os("FASTMAP_TEST_FILE") else { return };
    // SAFETY: no preconditions.
    unsafe {
        libc::alarm(120);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let cache = Cache::new(PAGES.1 * 4096).unwrap();
    // SAFETY: a file of the test's own.
    let mut map = unsafe { MapOptions::new().cache(&cache).fallback(Fallback::Refuse).map_mut(&file) }.unwrap();
    map.advise(Advice::Random).unwrap();
    count_objects(Objects { fetched_bytes: 3 << 20, hit_bytes: 5 << 20, wasted_bytes: 1 << 20 });
    println!("at work");
    std::io::stdout().flush().unwrap();
    for step in 0.. {
        let page = step * 1009 % PAGES.0;
        map[page * 4096] = step as u8;
        if step % 256 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// The object of this worker in what `top --once --json` printed.
fn program_of(text: &str, pid: u32) -> Value {
    let out: Value = serde_json::from_str(text).unwrap();
    let programs = out["programs"].as_array().unwrap();
    programs.iter().find(|program| program["pid"] == pid).unwrap_or_else(|| panic!("no {pid} in {text}")).clone()
}

#[test]
fn json_has_totals_and_rates() {
    let Some(worker) = Worker::start() else { return };
    for line in
        [format!("top --once --json --interval 0.5 {}", worker.pid()), "top --once --json --interval 0.5".into()]
    {
        // Until it has written something back within an interval.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let program = loop {
            let ran = fastmap(worker.path.parent().unwrap(), &line);
            ran.succeeded();
            let program = program_of(&ran.stdout, worker.pid());
            let written = program["caches"][0]["per_second"]["writeback_pages"].as_f64();
            if written.is_some_and(|pages| pages > 0.0) || std::time::Instant::now() > deadline {
                break program;
            }
        };
        assert!(program["interval_s"].as_f64().unwrap() >= 0.5, "{program}");
        assert!(program["traps_per_second"].as_f64().unwrap() > 0.0);
        assert!(program["ghost_share"].is_number() && program["staged_share"].is_number());
        let objects = &program["objects"];
        assert_eq!((&objects["fetched_bytes"], &objects["hit_bytes"]), (&(3 << 20).into(), &(5 << 20).into()));
        assert_eq!((&objects["wasted_bytes"], &objects["hit_bytes_per_second"]), (&(1 << 20).into(), &0.0.into()));
        let (cache, map) = (&program["caches"][0], &program["maps"][0]);
        assert_eq!(cache["capacity_bytes"], PAGES.1 * 4096);
        assert_eq!((&map["path"], &map["cache"]), (&worker.path.to_str().unwrap().into(), &0.into()));
        assert_eq!((&map["mapped_bytes"], &map["writable"]), (&(PAGES.0 * 4096).into(), &true.into()));
        for one in [cache, map] {
            for counter in ["misses", "evicted_pages", "writeback_pages"] {
                assert!(one["per_second"][counter].as_f64().unwrap() > 0.0, "{counter} in {one}");
                assert!(one["totals"][counter].as_u64().unwrap() > 0, "{counter} in {one}");
            }
            assert!(one["totals"]["resident_pages"].as_u64().unwrap() <= PAGES.1 as u64);
            assert!(one["per_second"]["resident_pages"].is_null(), "no counter");
        }
        assert!(cache["merged_run_pages"].as_f64().unwrap() >= 1.0 && cache["queue_depth"].as_f64().unwrap() >= 1.0);
    }
}

#[test]
fn a_table_has_the_program_and_its_files() {
    let Some(worker) = Worker::start() else { return };
    // Until it has written something back within an interval.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let ran = loop {
        let ran = fastmap(worker.path.parent().unwrap(), &format!("top --once --interval 0.2 {}", worker.pid()));
        ran.succeeded();
        if ran.stdout.contains(" pages a write") || std::time::Instant::now() > deadline {
            break ran;
        }
    };
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("PROGRAM, FILES ") && lines[0].ends_with("WASTE"), "{}", ran.stdout);
    assert!(lines[1].starts_with(&format!("{} ", worker.pid())) && lines[1].contains(" 1.0M "), "{}", ran.stdout);
    assert!(lines[2].contains(" traps/s: ") && lines[2].contains("% misses ("), "{}", ran.stdout);
    assert!(lines[3].contains(" pages a write, queue depth "), "{}", ran.stdout);
    assert_eq!(lines[4], "  objects: 3.0M fetched (0B/s), 5.0M hit (0B/s), 1.0M wasted (0B/s)", "{}", ran.stdout);
    assert!(lines[5].starts_with(&format!("  rw {} ", worker.path.display())) && lines[5].contains(" 8.0M "));
    assert_eq!(lines.len(), 6, "{}", ran.stdout);
}

#[test]
fn nothing_to_see() {
    let dir = dir();
    fastmap(dir.path(), "top --once --interval 0.1 4194304").failed_with(1, &["process 4194304: is not running"]);
    let own = format!("top --once {}", std::process::id());
    fastmap(dir.path(), &own).failed_with(1, &["maps no data file", "no files in a FastMap cache", "fastmap run"]);
    fastmap(dir.path(), "top --json").failed_with(2, &["--once"]);
    fastmap(dir.path(), "top --once --interval 0").failed_with(2, &["--interval: \"0\" is not an interval"]);
    fastmap(dir.path(), "top 99999999999").failed_with(2, &["is not a process id"]);
    fastmap(dir.path(), "top x").failed_with(1, &["x: No such file", "name a file, or a process"]);
    fastmap(dir.path(), "top .").failed_with(1, &["is not a regular file"]);
    fastmap(dir.path(), "top --metrics example")
        .failed_with(2, &["--metrics: \"example\" is not an address", "IP:PORT"]);
    fastmap(dir.path(), "top --metrics 0 --once").failed_with(2, &["--metrics", "--once"]);
    fastmap(dir.path(), "top --metrics 192.0.2.1:9742").failed_with(1, &["192.0.2.1:9742: ", "of this machine"]);
    let help = fastmap(dir.path(), "top --help");
    help.succeeded();
    assert!(help.stdout.contains("no hit rate") && help.stdout.contains("\"per_second\""));
    assert!(help.stdout.contains("\"processes\"") && help.stdout.contains("OpenMetrics"));
}

/// A program that has a file of 64 MiB mapped and reads of it at random, until it is dropped.
struct Mapper {
    /// It, or the command that runs it.
    child: Child,
    pid: u32,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

/// Pages of its file.
const MAPPED: u64 = 16384;

impl Mapper {
    fn start() -> Mapper {
        Mapper::under(&[])
    }

    /// Run by a command. It then lives on when that ends.
    fn under(words: &[&str]) -> Mapper {
        let dir = dir();
        let path = dir.path().canonicalize().unwrap().join("mapped");
        fs::write(&path, vec![7; MAPPED as usize * 4096]).unwrap();
        let (program, source) = (dir.path().join("mapper"), dir.path().join("mapper.c"));
        fs::write(&source, MAPPER).unwrap();
        gcc(&["-o", program.to_str().unwrap(), source.to_str().unwrap()]);
        let mut command = Command::new(words.first().map_or(program.as_os_str(), |word| word.as_ref()));
        if let [_, others @ ..] = words {
            command.args(others).arg(&program).arg("alone");
        }
        let mut child = command.arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = lines.next().unwrap().unwrap().parse().unwrap();
        Mapper { child, pid, path, _dir: dir }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // SAFETY: a signal to the test's own program.
        unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Ends with its parent, unless it is `alone`, at the latest after two minutes. It lets go of pages all the time, so that there are touches to be seen.
const MAPPER: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **arguments) {
    size_t length = 16384 * 4096;
    alarm(120);
    if (count == 2) prctl(PR_SET_PDEATHSIG, SIGKILL);
    int file = open(arguments[count - 1], O_RDONLY);
    volatile char *map = mmap(0, length, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED || madvise((void *)map, length, MADV_RANDOM) != 0) return 1;
    printf("%d\n", getpid());
    fflush(stdout);
    for (unsigned step = 0;; step++) {
        map[(size_t)(rand() % 16384) * 4096];
        if (step % 64 == 0) usleep(1000);
        if (step % 4096 == 0) madvise((void *)map, length, MADV_DONTNEED);
    }
}
"#;

/// The process of a number in what `top --once --json` printed.
fn process_of(text: &str, pid: u32) -> Value {
    let out: Value = serde_json::from_str(text).unwrap();
    let processes = out["processes"].as_array().unwrap();
    processes.iter().find(|one| one["pid"] == pid).unwrap_or_else(|| panic!("no {pid} in {text}")).clone()
}

#[test]
fn a_process_that_fastmap_has_nothing_to_do_with_is_shown() {
    let mapper = Mapper::start();
    let pid = mapper.pid;
    for line in ["top --once --json --interval 0.5".into(), format!("top --once --json --interval 0.5 {pid}")] {
        let ran = fastmap(Path::new("/"), &line);
        ran.succeeded();
        let process = process_of(&ran.stdout, pid);
        assert_eq!((&process["name"], &process["mapped_bytes"]), (&"mapper".into(), &(MAPPED * 4096).into()));
        assert!(process["resident_bytes"].as_u64().unwrap() <= MAPPED * 4096);
        assert!(process["interval_s"].as_f64().unwrap() >= 0.5 && process["steered"].is_null(), "{process}");
        assert!(process["pattern"].is_string() && process["waited_faults_per_second"].is_number(), "{process}");
        let file = &process["files"][0];
        assert_eq!((&file["path"], &file["writable"]), (&mapper.path.to_str().unwrap().into(), &false.into()));
    }
    let ran = fastmap(Path::new("/"), &format!("top --once --interval 0.2 {pid}"));
    ran.succeeded();
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("PROCESS, FILES ") && lines[0].ends_with("REFLT"), "{}", ran.stdout);
    assert!(lines[1].starts_with(&format!("{pid} mapper ")) && lines[1].contains(" 64.0M "), "{}", ran.stdout);
    assert!(lines.last().unwrap().starts_with(&format!("  r- {} ", mapper.path.display())), "{}", ran.stdout);
}

#[test]
fn one_that_is_attached_to_says_so() {
    let mapper = Mapper::start();
    let pid = mapper.pid.to_string();
    let mut attach = Command::new(FASTMAP);
    attach.args(["attach", &pid]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut attach = attach.spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let steered = loop {
        if attach.try_wait().unwrap().is_some() {
            return skipped("nothing can be attached to here");
        }
        let ran = fastmap(Path::new("/"), &format!("top --once --json --interval 0.1 {pid}"));
        let steered = process_of(&ran.stdout, mapper.pid)["steered"].clone();
        if !steered.is_null() || std::time::Instant::now() > deadline {
            break steered;
        }
    };
    // SAFETY: the child is this function's and not waited for yet.
    assert_eq!(unsafe { libc::kill(attach.id() as i32, libc::SIGTERM) }, 0);
    attach.wait().unwrap();
    assert_eq!((&steered["by"], &steered["pid"]), (&"process".into(), &attach.id().into()));
}

/// The process that steers one from outside, once it is not `before`.
fn steering(pid: u32, before: Option<u32>) -> u32 {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let ran = fastmap(Path::new("/"), &format!("top --once --json --interval 0.1 {pid}"));
        let steered = process_of(&ran.stdout, pid)["steered"].clone();
        match steered["pid"].as_u64().map(|by| by as u32) {
            Some(by) if Some(by) != before => {
                assert_eq!(steered["by"], "process");
                return by;
            }
            _ => assert!(std::time::Instant::now() < deadline, "{steered}"),
        }
    }
}

#[test]
fn one_that_runs_under_fastmap_says_so_and_so_does_what_it_leaves_behind() {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !is_root() && scope.trim().parse::<u32>().unwrap_or(0) > 0 {
        return skipped("Yama lets nobody trace orphans here");
    }
    let mut mapper = Mapper::under(&[FASTMAP, "run", "--", "sh", "-c", "\"$0\" \"$@\" & cat"]);
    let run = mapper.child.id();
    assert_eq!(steering(mapper.pid, None), run);
    drop(mapper.child.stdin.take());
    assert!(mapper.child.wait().unwrap().success());
    let beside = steering(mapper.pid, Some(run));
    assert_eq!(fs::read_to_string(format!("/proc/{beside}/comm")).unwrap(), "fastmap-beside\n");
}

#[test]
fn the_screen_shows_processes_too() {
    let mapper = Mapper::start();
    let mut terminal = top(Some(mapper.pid), 24, 80);
    terminal.until("PROCESS, FILES");
    terminal.until(" mapper ");
    terminal.until("1 process, every 0.2 s");
    drop(mapper);
    assert_eq!(terminal.wait().code(), Some(0));
    assert!(terminal.contents().contains("has ended"), "{}", terminal.contents());
}

#[test]
fn what_of_a_file_is_in_memory_is_told() {
    let mapper = Mapper::start();
    // All of it was written just now, and is read again.
    assert_eq!(fs::read(&mapper.path).unwrap().len() as u64, MAPPED * 4096);
    let place = mapper.path.parent().unwrap();
    let ran = fastmap(place, "top --json mapped");
    ran.succeeded();
    let out: Value = serde_json::from_str(&ran.stdout).unwrap();
    let file = &out["file"];
    assert_eq!((&file["path"], &file["size_bytes"]), (&"mapped".into(), &(MAPPED * 4096).into()));
    // Others may need the memory.
    assert!(file["cached_bytes"].as_u64().unwrap() > 0, "{file}");
    let cells: Vec<f64> = file["cells"].as_array().unwrap().iter().map(|cell| cell.as_f64().unwrap()).collect();
    assert!(cells.len() == 64 && cells.iter().all(|cell| (0.0..=1.0).contains(cell)), "{file}");
    let by = file["mapped_by"].as_array().unwrap();
    assert!(by.iter().any(|one| one["pid"] == mapper.pid && one["mapped_bytes"] == MAPPED * 4096), "{file}");
    let ran = fastmap(place, "top mapped");
    ran.succeeded();
    assert!(ran.stdout.starts_with("mapped: 64.0M, of which "), "{}", ran.stdout);
    assert!(ran.stdout.contains(&format!("  {} mapper: r- shared, 64.0M\n", mapper.pid)), "{}", ran.stdout);
    fs::write(place.join("empty"), "").unwrap();
    let ran = fastmap(place, "top empty");
    ran.succeeded();
    assert!(ran.stdout.starts_with("empty: 0B, of which 0B in memory (0%)\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("no process maps it\n"), "{}", ran.stdout);
}

/// The answer of a server at `address` to `request`.
fn ask(address: &str, request: &str) -> String {
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn metrics_are_served_until_a_signal_comes() {
    let mapper = Mapper::start();
    let mut command = Command::new(FASTMAP);
    command.args(["top", "--metrics", "127.0.0.1:0", "--interval", "0.1"]).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let line = BufReader::new(server.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let address = line.strip_prefix("http://").and_then(|line| line.strip_suffix("/metrics")).unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{line}");
    // A client that says nothing keeps nobody else waiting for ever.
    let silent = std::net::TcpStream::connect(address).unwrap();
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    drop(silent);
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0;"),
        "{answer}"
    );
    let labels = format!("{{pid=\"{}\",name=\"mapper\"}}", mapper.pid);
    assert!(answer.contains(&format!("fastmap_process_mapped_bytes{labels} {}\n", MAPPED * 4096)), "{answer}");
    assert!(answer.contains(&format!("fastmap_process_waited_faults_total{labels} ")), "{answer}");
    assert!(answer.ends_with("\n# EOF\n"), "{answer}");
    assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    // SAFETY: the child is this function's and not waited for yet.
    assert_eq!(unsafe { libc::kill(server.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn other_users_programs_are_not_shown() {
    let Some(worker) = Worker::start() else { return };
    if !is_root() {
        return skipped("only root can become nobody");
    }
    let place = dir();
    if let Some(ran) = crate::prompt::as_nobody(place.path(), &format!("top --once {}", worker.pid())) {
        ran.failed_with(1, &["you may not look at it", "root"]);
    }
    if let Some(ran) = crate::prompt::as_nobody(place.path(), "top --once --interval 0.1") {
        ran.failed_with(1, &["no program that you may look at"]);
    }
}

#[test]
fn without_a_terminal_it_wants_once() {
    let Some(worker) = Worker::start() else { return };
    let ran = fastmap(worker.path.parent().unwrap(), &format!("top {}", worker.pid()));
    ran.failed_with(2, &["standard output is not a terminal", "--once"]);
}

fn top(pid: Option<u32>, rows: u16, columns: u16) -> Terminal {
    let mut command = Command::new(FASTMAP);
    command.args(["top", "--interval", "0.2"]).args(pid.map(|pid| pid.to_string())).env("TERM", "xterm");
    Terminal::start(&mut command, rows, columns)
}

#[test]
fn the_screen_appears_and_q_ends_it() {
    let Some(worker) = Worker::start() else { return };
    let mut terminal = top(Some(worker.pid()), 24, 80);
    terminal.until("a-file-at-work");
    terminal.until(" traps/s: ");
    terminal.until(" pages a write, queue depth ");
    assert!(terminal.is_full_screen() && !terminal.is_as_before(), "keys come one by one");
    terminal.resize(10, 200);
    terminal.until(worker.path.to_str().unwrap());
    terminal.type_in("q");
    assert_eq!(terminal.wait().code(), Some(0));
    assert!(!terminal.is_full_screen() && terminal.is_as_before(), "{}", terminal.contents());
}

#[test]
fn signals_and_control_c_restore_the_terminal() {
    let Some(worker) = Worker::start() else { return };
    for end in ["\x03", "SIGTERM", "SIGINT", "SIGHUP"] {
        let mut terminal = top(None, 24, 80);
        terminal.until("a-file-at-work");
        let signal = match end {
            "SIGTERM" => libc::SIGTERM,
            "SIGINT" => libc::SIGINT,
            "SIGHUP" => libc::SIGHUP,
            keys => {
                terminal.type_in(keys);
                0
            }
        };
        if signal != 0 {
            // SAFETY: the child is the terminal's and not waited for yet.
            assert_eq!(unsafe { libc::kill(terminal.pid() as i32, signal) }, 0);
        }
        assert_eq!(terminal.wait().code(), Some(0), "{end}");
        assert!(!terminal.is_full_screen() && terminal.is_as_before(), "{end}: {}", terminal.contents());
    }
    drop(worker);
}

#[test]
fn programs_that_stop_or_end_while_they_are_shown() {
    let Some(mut worker) = Worker::start() else { return };
    let Some(other) = Worker::start() else { return };
    let mut all = top(None, 50, 160);
    let mut one = top(Some(worker.pid()), 24, 80);
    let names = |path: &Path| path.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    all.until(&names(&worker.path));
    one.until("traps/s: ");
    worker.signal(libc::SIGSTOP);
    one.until("does not answer");
    worker.signal(libc::SIGCONT);
    one.until("traps/s: ");
    worker.end();
    assert_eq!(one.wait().code(), Some(0));
    assert!(one.contents().contains("has ended") && !one.is_full_screen() && one.is_as_before(), "{}", one.contents());
    // The other's view goes on without it.
    let ran = run_in(Path::new("/"), Command::new(FASTMAP).args(["top", "--once", "--interval", "0.1"]));
    assert!(ran.stdout.contains(&names(&other.path)) && !ran.stdout.contains(&names(&worker.path)), "{}", ran.stdout);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while all.contents().contains(&names(&worker.path)) {
        assert!(std::time::Instant::now() < deadline, "{}", all.contents());
        std::thread::sleep(std::time::Duration::from_millis(20));
        all.read();
    }
    all.until(&names(&other.path));
    all.type_in("q");
    assert_eq!(all.wait().code(), Some(0));
}
