//! `fastmap run`: what the program gets, what is handed through untouched, and what is refused. The preload libraries are a tiny
//! one of the tests' own, which says that it is there: the real one has tests of its own.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::FASTMAP;
use crate::prompt::{Ran, dir, files_in, is_root, make_program, run_in, skipped};
use crate::terminal::{c_library, gcc};

/// A directory with a preload library in it.
struct Place {
    dir: tempfile::TempDir,
    library: PathBuf,
}

impl Place {
    fn new() -> Place {
        let dir = dir();
        let library = dir.path().join("libtest.so");
        c_library(&library, "");
        Place { dir, library }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// `fastmap run ARGS`, with nothing of FastMap's in the environment.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FASTMAP);
        for variable in ["CACHE", "MAP", "HEAP", "FAULTS", "STATS", "RUN_PID", "RISK_STORES", "STEER_OVERRIDE"] {
            command.env_remove(format!("FASTMAP_{variable}"));
        }
        command.arg("run").args(args).env_remove("LD_PRELOAD").env("FASTMAP_PRELOAD", &self.library);
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        run_in(self.path(), &mut self.command(args))
    }

    /// A file that can be executed.
    fn program(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        make_program(&path, bytes);
        path
    }
}

/// Has the shell print variables.
const SHOW: &str =
    r#"printf '%s|' "$FASTMAP_CACHE" "$FASTMAP_MAP" "$FASTMAP_FAULTS" "$FASTMAP_HEAP" "$FASTMAP_STATS" "$LD_PRELOAD""#;

#[test]
fn a_small_stack_is_enough_and_the_programs_as_well() {
    let place = Place::new();
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -s 64 && exec \"$@\"",
        "sh",
        FASTMAP,
        "run",
        "--cache",
        "1MiB",
        "--",
        "sh",
        "-c",
        "ulimit -s",
    ]);
    command.env("FASTMAP_PRELOAD", &place.library).env_remove("LD_PRELOAD");
    let ran = run_in(place.path(), &mut command);
    ran.succeeded();
    assert_eq!(ran.stdout, "64\n");
}

#[test]
fn risks_are_taken_on_demand() {
    let place = Place::new();
    let show = "echo _$FASTMAP_RISK_STORES";
    let shown = |args: &[&str]| place.run(&[args, &["--", "sh", "-c", show]].concat()).stdout;
    assert_eq!(shown(&["--cache", "auto"]), "_\n");
    assert_eq!(shown(&["--cache", "auto", "--risk-stores"]), "_1\n");
}

#[test]
fn the_program_is_a_child_and_gets_what_it_is_given() {
    let place = Place::new();
    let ran = place.run(&["--", "sh", "-c", "echo $PPID $0 $1", "zero", "--one"]);
    ran.succeeded();
    assert_eq!(ran.stdout, format!("{} zero --one\n", ran.pid));
    assert_eq!(ran.stderr, "");
    // Without the dashes too, and what looks like a flag of ours is the program's.
    assert_eq!(place.run(&["echo", "--cache", "--", "-x"]).stdout, "--cache -- -x\n");
    // The engine tells the program by its number from what the program starts.
    let ran = place.run(&["--cache", "1MiB", "--", "sh", "-c", "echo $(($$ - FASTMAP_RUN_PID))"]);
    assert_eq!(ran.stdout, "0\n");
    // Without the engine its environment is as it was, byte for byte.
    let mut command = place.command(&["--override", "--", "sh", "-c", "tr '\\0' '\\n' </proc/self/environ"]);
    let through = run_in(place.path(), &mut command);
    let mut direct = Command::new("sh");
    direct.args(["-c", "tr '\\0' '\\n' </proc/self/environ"]).env("FASTMAP_PRELOAD", &place.library);
    assert_eq!(run_in(place.path(), &mut direct).stdout, through.stdout);
}

#[test]
fn status_and_signals_are_the_programs_own() {
    let place = Place::new();
    for status in [0, 1, 2, 7, 126, 255] {
        assert_eq!(place.run(&["--", "sh", "-c", &format!("exit {status}")]).status, Some(status));
    }
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV] {
        let mut command = place.command(&["--", "sh", "-c", &format!("ulimit -c 0; kill -{signal} $$")]);
        assert_eq!(command.status().unwrap().signal(), Some(signal));
    }
}

#[test]
fn signal_masks_and_dispositions_come_through() {
    let place = Place::new();
    let with = |before: &str, through: &str| {
        let script = "import os, signal, sys; exec(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])";
        let mut command = Command::new("python3");
        // A shell would change both.
        command.args(["-c", script, before]).args(through.split(' ')).args(["grep", "^Sig[^Q]", "/proc/self/status"]);
        let ran = run_in(place.path(), command.env_remove("LD_PRELOAD"));
        assert_eq!(ran.status, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("python3 sets what is inherited here");
    }
    let direct = "env";
    let through = format!("{FASTMAP} run --");
    for before in [
        "pass",
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
        "signal.signal(signal.SIGPIPE, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGCHLD])",
    ] {
        let expected = with(before, direct);
        assert!(expected.contains("SigBlk:") && expected.contains("SigIgn:"), "{expected}");
        assert_eq!(with(before, &through), expected, "{before}");
    }
}

#[test]
fn standard_streams_are_the_programs_own() {
    let place = Place::new();
    let mut command = place.command(&["--", "sh", "-c", "cat; echo said >&2"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"through\n"[..], &b"said\n"[..]));
}

#[test]
fn the_terminal_is_the_programs_own() {
    let place = Place::new();
    let mut terminal = crate::terminal::Terminal::start(
        &mut place.command(&[
            "--",
            "sh",
            "-c",
            "test -t 0 && test -t 1 && test -t 2 && stty size && read line && echo got $line",
        ]),
        33,
        101,
    );
    terminal.until("33 101");
    terminal.type_in("hello\r");
    terminal.until("got hello");
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn flags_become_variables() {
    let place = Place::new();
    let stats = place.path().join("stats.json");
    let library = place.library.display();
    assert_eq!(place.run(&["--", "sh", "-c", SHOW]).stdout, "||||||");
    assert_eq!(place.run(&["--cache", "auto", "--", "sh", "-c", SHOW]).stdout, format!("auto|||||{library}|"));
    let heap = place.path().canonicalize().unwrap().join("heap");
    let ran = place.run(&["--heap", "heap", "--", "sh", "-c", SHOW]);
    assert_eq!(ran.stdout, format!("auto|||{}||{library}|", heap.display()));
    let flags =
        ["--cache", "1MiB", "--map", "/data/**", "--map", "*.db", "--faults", "service", "--heap", "heap:64KiB"];
    let ran = place.run(&[&flags[..], &["--stats", "stats.json", "--", "sh", "-c", SHOW]].concat());
    ran.succeeded();
    let here = place.path().canonicalize().unwrap();
    let (heap, stats_there) = (here.join("heap"), here.join("stats.json"));
    assert_eq!(
        ran.stdout,
        format!("1048576|/data/**:**/*.db|service|{}:64KiB|{}|{library}|", heap.display(), stats_there.display())
    );
    assert!(stats.exists(), "it can be made, and was");
    // A relative glob begins here.
    let ran = place.run(&["--cache", "auto", "--map", "./x/*", "--", "sh", "-c", "echo $FASTMAP_MAP"]);
    assert_eq!(ran.stdout, format!("{}/x/*\n", here.display()));
}

#[test]
fn variables_count_where_no_flag_is_given() {
    let place = Place::new();
    let set = |args: &[&str]| {
        let mut command = place.command(&[args, &["--", "sh", "-c", SHOW]].concat());
        command.envs([("FASTMAP_CACHE", "2MiB"), ("FASTMAP_MAP", "/a/*:*.b"), ("FASTMAP_FAULTS", "signal")]);
        command.env("LD_PRELOAD", "libm.so.6").env("FASTMAP_HEAP", place.path().join("h"));
        run_in(place.path(), &mut command)
    };
    let (heap, library) = (place.path().join("h").display().to_string(), place.library.display());
    let ran = set(&[]);
    assert_eq!(ran.stdout, format!("2097152|/a/*:**/*.b|signal|{heap}||{library}:libm.so.6|"), "{}", ran.stderr);
    assert!(set(&["--cache", "1MiB", "--faults", "service"]).stdout.starts_with("1048576|/a/*:**/*.b|service|"));
    for (variable, value, part) in [
        ("FASTMAP_CACHE", "lots", "is not a size: give"),
        ("FASTMAP_CACHE", "4096", "is too small: give at least 64KiB"),
        ("FASTMAP_MAP", "", "an empty glob"),
        ("FASTMAP_FAULTS", "no", "is not one of its values: give signal or service"),
        ("FASTMAP_DIRECT", "no", "is not one of its values: give auto or always or never"),
        ("FASTMAP_PERSIST", "no", "is not one of its values: give auto or cache-lines"),
    ] {
        let with_heap = ["--heap", "heap", "--", "true"];
        run_in(place.path(), place.command(&with_heap).env(variable, value)).failed_with(2, &[variable, part]);
    }
    // They are the engine's, and without a cache there is none.
    run_in(place.path(), place.command(&["--", "true"]).env("FASTMAP_FAULTS", "no")).succeeded();
    // A run inside of a run.
    let inner = format!("exec {FASTMAP} run --cache 1MiB -- sh -c '{}'", SHOW.replace('\'', "\""));
    let ran = place.run(&["--cache", "3MiB", "--", "sh", "-c", &inner]);
    assert_eq!(ran.stdout, format!("1048576|||||{library}|"));
}

#[test]
fn usage() {
    let place = Place::new();
    place.run(&[]).failed_with(2, &["PROGRAM"]);
    place.run(&["--bogus", "--", "true"]).failed_with(2, &["--bogus", "see `fastmap run --help`"]);
    place.run(&["--cache", "4XB", "--", "true"]).failed_with(2, &["--cache: \"4XB\" is not a size", "or auto"]);
    place
        .run(&["--cache", "60KiB", "--", "true"])
        .failed_with(2, &["--cache: 60KiB is too small: give at least 64KiB"]);
    let ran = place.run(&["--cache", "4096TiB", "--", "true"]);
    ran.failed_with(
        2,
        &["--cache: a cache of 4PiB is larger than the ".replace("4PiB", "4096TiB").as_str(), "give less"],
    );
    let cached = |args: &[&str]| place.run(&[&["--cache", "auto"], args].concat());
    cached(&["--faults", "maybe", "--", "true"]).failed_with(2, &["--faults: ", "signal or service"]);
    cached(&["--async-stores", "--faults", "service", "--", "true"])
        .failed_with(2, &["--async-stores: ", "--faults service", "leave one of the two out"]);
    assert_eq!(cached(&["--async-stores", "--", "sh", "-c", "echo $FASTMAP_ASYNC_STORES"]).stdout, "1\n");
    cached(&["--direct", "maybe", "--", "true"]).failed_with(2, &["--direct: ", "auto or always or never"]);
    cached(&["--persist", "maybe", "--", "true"]).failed_with(2, &["--persist: ", "auto or cache-lines"]);
    let show = "printf %s \"$FASTMAP_DIRECT,$FASTMAP_PERSIST\"";
    let ran = cached(&["--direct", "never", "--persist", "cache-lines", "--", "sh", "-c", show]);
    assert_eq!(ran.stdout, "never,cache-lines");
    cached(&["--map", "/a[", "--", "true"]).failed_with(2, &["--map: \"/a[\" is not a glob: ", "--help"]);
    cached(&["--map", "", "--", "true"]).failed_with(2, &["--map: an empty glob"]);
    cached(&["--map", "/a:b", "--", "true"]).failed_with(2, &["--map: \"/a:b\" has a colon"]);
    cached(&["--own", "/a[", "--", "true"]).failed_with(2, &["--own: \"/a[\" is not a glob: ", "--help"]);
    let ran = cached(&["--own", "/a/*.db", "--own", "*.{x,y}", "--", "sh", "-c", "printf %s \"$FASTMAP_OWN\""]);
    assert_eq!(ran.stdout, "/a/*.db:**/*.x:**/*.y");
    for flags in [
        &["--map", "*"][..],
        &["--own", "*"],
        &["--faults", "service"],
        &["--async-stores"],
        &["--risk-stores"],
        &["--direct", "never"],
        &["--persist", "cache-lines"],
    ] {
        let refused = format!("{}: needs --cache", flags[0]);
        place.run(&[flags, &["--", "true"]].concat()).failed_with(2, &[&refused, "add --cache SIZE"]);
        place.run(&[flags, &["--heap", "heap", "--", "true"]].concat()).succeeded();
    }
    place
        .run(&["--heap", "h:abc", "--", "true"])
        .failed_with(2, &["--heap: \"abc\" is not a size", "part of the file's name"]);
    let help = place.run(&["--help"]);
    help.succeeded();
    for part in [
        "--cache",
        "--map",
        "--own",
        "--heap",
        "--faults",
        "--direct",
        "--persist",
        "--override",
        "--stats",
        "FASTMAP_CACHE",
        "127",
        "setuid",
    ] {
        assert!(help.stdout.contains(part), "{part}");
    }
}

#[test]
fn programs_that_are_not_there_or_cannot_run() {
    let place = Place::new();
    place.run(&["--", "no-such-program"]).failed_with(127, &["no-such-program: not found", "PATH"]);
    place.run(&["--", "./no-such-program"]).failed_with(127, &["./no-such-program: not found"]);
    place.run(&["--", "no/such/program"]).failed_with(127, &["not found"]);
    place.run(&["--", ""]).failed_with(127, &["not found"]);
    fs::write(place.path().join("text"), "echo hello\n").unwrap();
    place.run(&["--", "./text"]).failed_with(126, &["./text: cannot be executed: Permission denied"]);
    place.run(&["--", "./"]).failed_with(126, &["cannot be executed: Is a directory"]);
    let mut command = place.command(&["--", "text"]);
    run_in(place.path(), command.env("PATH", place.path())).failed_with(126, &["text: cannot be executed"]);
    place.program("lost", b"#!/no/such/interpreter\n");
    place.run(&["--", "./lost"]).failed_with(127, &["./lost: cannot be executed: No such file"]);
    // A text without a first line is the shell's, as everywhere.
    place.program("text", b"echo hello from $0\n");
    assert_eq!(place.run(&["--", "./text"]).stdout, "hello from ./text\n");
}

#[test]
fn programs_that_no_library_gets_into() {
    let place = Place::new();
    let source = place.path().join("static.c");
    fs::write(&source, "void _start(void) { __asm__(\"mov $60, %eax; xor %edi, %edi; syscall\"); }\n").unwrap();
    let built = place.path().join("static");
    gcc(&["-static", "-nostdlib", "-o", built.to_str().unwrap(), source.to_str().unwrap()]);
    assert!(Command::new(&built).status().unwrap().success(), "it runs by itself");
    // A process beside them steers them.
    place.run(&["--", "./static"]).succeeded();
    let cached = |program: &str| place.run(&["--cache", "16MiB", "--", program]);
    cached("./static").failed_with(1, &["./static: is statically linked", "linked dynamically"]);
    place.program("script", format!("#!{}\n", built.display()).as_bytes());
    cached("./script").failed_with(1, &["./script: its interpreter ", "static: is statically linked"]);
    place.program("twice", format!("#! {}/script\n", place.path().display()).as_bytes());
    cached("./twice").failed_with(1, &["./twice: its interpreter ", "is statically linked"]);
    place.run(&["--", "./twice"]).succeeded();
    let mut head = fs::read(&built).unwrap();
    head[4] = 1;
    place.program("small", &head);
    cached("./small").failed_with(1, &["./small: is a 32-bit program"]);
    head[4] = 2;
    head[18] = 183;
    place.program("arm", &head);
    cached("./arm").failed_with(1, &["./arm: is built for another processor (ELF machine 183)"]);
}

#[test]
fn programs_with_rights_of_their_own() {
    let place = Place::new();
    let own = place.path().join("own");
    make_program(&own, &fs::read("/bin/true").unwrap());
    let mode = |mode| fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o4755);
    place.run(&["--", "./own"]).succeeded();
    if !is_root() {
        return skipped("only root can give a file to another user");
    }
    mode(0o755);
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    place.run(&["--", "./own"]).succeeded();
    for (bits, name) in [(0o4755, "(setuid)"), (0o2755, "(setgid)")] {
        mode(bits);
        let cached = place.run(&["--cache", "1MiB", "--", "./own"]);
        cached.failed_with(1, &["./own: runs with other rights than yours", name, "LD_PRELOAD"]);
        place.run(&["--", "./own"]).succeeded();
    }
}

#[test]
fn heap_files() {
    let place = Place::new();
    let heap = |argument: &str| place.run(&["--heap", argument, "--", "true"]);
    heap("heap").succeeded();
    assert!(!place.path().join("heap").exists(), "the library makes it");
    fs::write(place.path().join("full"), "precious").unwrap();
    heap("full").failed_with(1, &["--heap: ", "/full: exists and holds 8 bytes", "remove it"]);
    heap("full:1GiB").failed_with(1, &["/full: exists and holds 8 bytes"]);
    assert_eq!(fs::read(place.path().join("full")).unwrap(), b"precious");
    fs::write(place.path().join("empty"), "").unwrap();
    heap("empty:1MiB").succeeded();
    heap("none/heap").failed_with(1, &["none/heap: there is no directory", "make it"]);
    heap(".").failed_with(1, &["is a directory"]);
    heap("/dev/null").failed_with(1, &["/dev/null: is not a regular file"]);
    heap("heap:1048576TiB").failed_with(1, &["heap: a heap of 1048576TiB does not fit into the ", "that are free"]);
    heap("heap:0").failed_with(2, &["--heap: ", "0 bytes"]);
}

#[test]
fn files_for_counters() {
    let place = Place::new();
    place.run(&["--stats", "none/stats", "--", "true"]).failed_with(1, &["--stats: ", "none/stats: cannot be written"]);
    place.run(&["--stats", ".", "--", "true"]).failed_with(1, &["cannot be written: Is a directory"]);
    // What is refused for another reason leaves none behind.
    let before = files_in(place.path());
    place.run(&["--stats", "stats", "--", "./nothing"]).failed_with(127, &["not found"]);
    place.program("lost", b"#!/no/such/interpreter\n");
    place.run(&["--stats", "stats", "--", "./lost"]).failed_with(127, &["cannot be executed"]);
    fs::remove_file(place.path().join("lost")).unwrap();
    assert_eq!(files_in(place.path()), before);
}

/// The library of these tests writes none: so it is with programs that are killed, or that end by a system call of their own.
#[test]
fn a_file_for_counters_is_never_empty() {
    let place = Place::new();
    fs::write(place.path().join("stats"), "{}".repeat(10_000)).unwrap();
    let ran = place.run(&["--cache", "1MiB", "--stats", "stats", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(ran.status, None, "a signal ends it");
    let text = fs::read_to_string(place.path().join("stats")).unwrap();
    assert!(text.starts_with("{\"pid\":") && text.ends_with("\"caches\":[],\"maps\":[]}\n"), "{text}");
    assert!(text.contains("\"complete\":false,") && text.contains("not by exit(3)") && text.contains("sh\""), "{text}");
    // Without the engine its parent writes them, however it ends.
    assert_eq!(place.run(&["--stats", "stats", "--", "sh", "-c", "kill -9 $$"]).status, None);
    let text = fs::read_to_string(place.path().join("stats")).unwrap();
    assert!(text.ends_with(",\"complete\":true,\"steered\":\"\",\"caches\":[],\"maps\":[]}\n"), "{text}");
}

/// What the linker of Go puts into each program says that it is one.
#[test]
fn a_go_program_is_told_that_nothing_is_served() {
    let place = Place::new();
    let note = "__attribute__((section(\".note.go.buildid\"), used, aligned(4))) static const struct { unsigned sizes[2], kind; char name[4], id[8]; } \
                note = {{4, 8}, 4, \"Go\", \"abcdefg\"};\nint main(void) { return 0; }\n";
    for (name, text, is_go) in [("g\x1b[31mo", note, true), ("c", "int main(void) { return 0; }\n", false)] {
        let source = place.path().join("source.c");
        fs::write(&source, text).unwrap();
        gcc(&["-o", place.path().join(name).to_str().unwrap(), source.to_str().unwrap()]);
        let ran = place.run(&["--cache", "8MiB", "--", &format!("./{name}")]);
        assert!(!ran.stderr.contains('\x1b'), "{}", ran.stderr);
        assert_eq!(
            ran.stderr.contains("is a Go program") && ran.stderr.contains("outside any cache"),
            is_go,
            "{}",
            ran.stderr
        );
        ran.succeeded();
        assert_eq!(place.run(&["--", &format!("./{name}")]).stderr, "", "nothing is said where it is steered");
    }
}

#[test]
fn names_do_not_steer_the_terminal() {
    let place = Place::new();
    let source = place.path().join("filtered.c");
    fs::write(&source, FILTERED).unwrap();
    let name = "\x1b]0;OWNED\x07red\nnew";
    gcc(&["-o", place.path().join(name).to_str().unwrap(), source.to_str().unwrap()]);
    fs::File::create(place.path().join("data")).unwrap().set_len(64 << 20).unwrap();
    let mut command = place.command(&["--", &format!("./{name}"), "data"]);
    command.current_dir(place.path()).env("FASTMAP_LOG", "steer");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(line.starts_with("fastmap: ?]0;OWNED?red?new: process ") && line.contains("seccomp"), "{line:?}");
}

/// Maps a file, filters its system calls, which all pass, and waits for the end of its input, a minute at most.
const FILTERED: &str = r#"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **arguments) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {1, all};
    alarm(60);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 1;
    int file = open(arguments[count - 1], O_RDONLY);
    if (mmap(0, 64 << 20, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED) return 2;
    char byte;
    return read(0, &byte, 1) != 0;
}
"#;

#[test]
fn libraries_are_found_or_missed() {
    let place = Place::new();
    let mut command = place.command(&["--cache", "1MiB", "--", "true"]);
    run_in(place.path(), command.env("FASTMAP_PRELOAD", "nowhere.so"))
        .failed_with(1, &["libfastmap_preload.so: not found: looked for nowhere.so: ", "FASTMAP_PRELOAD"]);
    let spaced = place.path().join("a b.so");
    fs::copy(&place.library, &spaced).unwrap();
    run_in(place.path(), command.env("FASTMAP_PRELOAD", &spaced)).failed_with(1, &["no path with a space or a colon"]);
    // Installed: bin/fastmap and the libraries in lib/fastmap.
    for folder in ["bin", "lib/fastmap"] {
        fs::create_dir_all(place.path().join(folder)).unwrap();
    }
    let fastmap = place.path().join("bin/fastmap");
    make_program(&fastmap, &fs::read(FASTMAP).unwrap());
    let installed = |args: &[&str]| {
        let mut command = Command::new(&fastmap);
        command.arg("run").args(args).args(["--", "sh", "-c", "echo $LD_PRELOAD"]);
        run_in(place.path(), command.env_remove("FASTMAP_PRELOAD").env_remove("LD_PRELOAD"))
    };
    let lib = place.path().canonicalize().unwrap().join("lib/fastmap");
    assert_eq!(installed(&[]).stdout, "\n");
    for (name, args) in
        [("libfastmap_preload.so", &["--cache", "1MiB"]), ("libfastmap_preload_heap.so", &["--heap", "heap"])]
    {
        let places =
            [format!("{name}: not found: looked for "), format!("/bin/{name} and "), format!("/lib/fastmap/{name}")];
        installed(args).failed_with(1, &places.each_ref().map(String::as_str));
        fs::copy(&place.library, lib.join(name)).unwrap();
        assert_eq!(installed(args).stdout, format!("{}/{name}\n", lib.display()));
    }
}

/// Sessions' folders there.
fn sessions(place: &Place) -> Vec<PathBuf> {
    let folders = fs::read_dir(place.path().join("tmp")).unwrap();
    folders.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn objects_come_with_a_server() {
    let place = Place::new();
    let here = place.path().canonicalize().unwrap();
    fs::create_dir(here.join("tmp")).unwrap();
    fs::write(here.join("one=1"), "an object").unwrap();
    let run = |args: &[&str], script: &str| {
        let mut command = place.command(&[args, &["--tier", "tier", "--", "sh", "-c", script]].concat());
        run_in(&here, command.env("TMPDIR", here.join("tmp")))
    };
    let object = format!("file://{}/one=1=data/none/../one", here.display());
    let script = r#"set -e; stat -c %a "$FASTMAP_OBJECTS"; tr '\0' '\n' <"$FASTMAP_OBJECTS/manifest"; echo $FASTMAP_TIER_LIMIT; exit 7"#;
    let ran = run(&["--object", &object, "--deadline", "2.5", "--tier-limit", "1GiB"], script);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(ran.status, Some(7), "{}", ran.stderr);
    let (tier, path) = (here.join("tier"), here.join("data/none/../one"));
    let first = ["700", tier.to_str().unwrap(), "2500", path.to_str().unwrap()];
    assert_eq!(lines[..4], first, "{}", ran.stdout);
    assert_eq!(lines[4], format!("file://{}/one=1", here.display()));
    assert!(lines[8].parse::<u64>().unwrap() > 1_700_000_000, "modified: {}", lines[8]);
    assert_eq!(lines[9..], ["9", "1073741824"]);
    // It ends with the program, and its folder goes.
    let gone = || {
        let start = std::time::Instant::now();
        while !sessions(&place).is_empty() {
            assert!(start.elapsed().as_secs() < 30, "{:?} is still there", sessions(&place));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    gone();
    // It is no child of the program's, and keeps nothing of it open.
    let ran = run(&["--object", &object], "wait; ps -o comm= --ppid $$; echo $FASTMAP_TIER_LIMIT");
    assert_eq!(ran.stdout.split_whitespace().collect::<Vec<_>>(), ["ps"], "{}", ran.stderr);
    assert_eq!(run(&["--object", &object, "--deadline", "never"], "kill -9 $$").status, None);
    gone();
    assert_eq!(run(&[], "echo $FASTMAP_OBJECTS").status, Some(2), "a folder for no object");
}

#[test]
fn objects_that_cannot_be() {
    let place = Place::new();
    let here = place.path().canonicalize().unwrap();
    fs::create_dir(here.join("tmp")).unwrap();
    let refused = |args: &[&str], status: i32, parts: &[&str]| {
        let mut command = place.command(&[args, &["--", "true"]].concat());
        command.env("TMPDIR", here.join("tmp")).env("FASTMAP_TIER", here.join("tier"));
        run_in(&here, &mut command).failed_with(status, parts);
        assert!(sessions(&place).is_empty());
    };
    let file = format!("file://{}/none=at", here.display());
    refused(&["--object", &file], 1, &["--object: ", "/none: ", "no such object"]);
    refused(
        &["--object", "http://127.0.0.1:1/key=at"],
        1,
        &["--object: http://127.0.0.1:1/key: ", "refused", "reached"],
    );
    refused(&["--object", "s4://bucket/key=at"], 2, &["--object: s4://bucket/key: ", "s3://BUCKET/KEY"]);
    refused(&["--object", "s3://bucket/key"], 2, &["--object: s3://bucket/key: names no path", "give URL=PATH"]);
    for url in [
        "http://me:hunter2@h/x",
        "http://h/x?token=hunter2=.",
        "http://me:hunter2/x@h/y=at",
        "http://me:hunter2#@h/y=at",
    ] {
        let mut command = place.command(&["--object", url, "--", "true"]);
        let said = run_in(&here, command.env("FASTMAP_TIER", here.join("tier")));
        assert!(!said.stderr.contains("hunter2"), "{}", said.stderr);
        said.failed_with(2, &["--object: http://h/"]);
    }
    refused(&["--object", "s3://bucket/key=."], 2, &["--object: ", "directory"]);
    refused(&["--object", &file, "--object", "s3://b/k=./at"], 2, &["--object: ", "/at: two objects"]);
    refused(&["--deadline", "1"], 2, &["--deadline: there is no object"]);
    refused(&["--object", &file, "--deadline", "soon"], 2, &["--deadline: \"soon\" is not a deadline", "never"]);
    refused(&["--object", &file, "--tier-limit", "1MiB"], 2, &["--tier-limit: ", "too small"]);
    refused(
        &["--object", &file, "--tier", "/dev/null/tier"],
        1,
        &["/dev/null/tier: cannot make the folder: Not a directory"],
    );
}
