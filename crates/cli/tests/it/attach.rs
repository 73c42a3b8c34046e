//! `fastmap attach`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::FASTMAP;
use crate::prompt::{dir, fastmap, make_program, run_in};

/// A child that sleeps until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_is_not_there_is_named() {
    let dir = dir();
    fastmap(dir.path(), "attach 4194305").failed_with(1, &["4194305: no such process"]);
    fastmap(dir.path(), "attach --group no/such/group").failed_with(1, &["no/such/group: no such cgroup"]);
    fastmap(dir.path(), "attach").failed_with(2, &["PID", "--name", "--group"]);
    fastmap(dir.path(), "attach --for soon 1").failed_with(2, &["--for", "\"soon\" is not a time", "60s"]);
}

#[test]
fn one_that_needs_nothing_is_left_as_it_is() {
    let (dir, sleeper) = (dir(), Sleeper::start());
    let line = format!("{} sleep: nothing was to be done\n", sleeper.pid());
    for flags in ["", "--dry-run ", "--children "] {
        let said = fastmap(dir.path(), &format!("attach {flags}--for 1s {}", sleeper.pid()));
        said.succeeded();
        assert_eq!(said.stdout, line, "{flags}");
    }
}

#[test]
fn one_that_is_not_there_does_not_keep_the_others_from_it() {
    let (dir, sleeper) = (dir(), Sleeper::start());
    let said = fastmap(dir.path(), &format!("attach --for 1s {} 4194305", sleeper.pid()));
    said.succeeded();
    assert_eq!(said.stdout, format!("{} sleep: nothing was to be done\n", sleeper.pid()));
    assert!(said.stderr.contains("4194305: no such process"), "{}", said.stderr);
}

#[test]
fn a_name_waits_for_programs_to_come() {
    let dir = dir();
    let said = fastmap(dir.path(), "attach --for 1s --name no-such-program");
    said.succeeded();
    assert_eq!(said.stdout, "");
    assert_eq!(said.stderr, "fastmap: no-such-program: no process has this name yet: waiting for one\n");
    // Nor does it follow itself, or another that steers.
    let other = Sleeper(Command::new(FASTMAP).args(["attach", "--name", "no-such-program"]).spawn().unwrap());
    let said = fastmap(dir.path(), "attach --for 1s --name fastmap");
    assert_eq!((said.status, said.stdout.as_str()), (Some(0), ""), "{}", said.stderr);
    assert!(said.stderr.starts_with("fastmap: fastmap: no process has this name yet"), "{}", said.stderr);
    fastmap(dir.path(), &format!("attach {}", other.pid())).failed_with(1, &["is FastMap itself", "the program's"]);
    let own = std::process::id();
    let said = fastmap(dir.path(), &format!("attach --children --for 1s {own}"));
    assert!(!said.stdout.contains(" fastmap: "), "{}", said.stdout);
}

#[test]
fn a_number_that_is_not_a_process_here_is_explained() {
    let dir = dir();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: no preconditions.
        sender.send(unsafe { libc::gettid() }).unwrap();
        let _ = end.recv();
    });
    let (thread_id, own) = (receiver.recv().unwrap(), std::process::id());
    fastmap(dir.path(), &format!("attach {thread_id}"))
        .failed_with(1, &[&format!("{thread_id}: is a thread of process {own}: give {own}")]);
    drop(ends);
    thread.join().unwrap();
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--kill-child", "sh", "-c", "(sleep 600) & echo $!; wait"]).stdout(Stdio::piped());
    let mut line = String::new();
    let inside = inside.spawn().ok().map(|mut inside| {
        let _ = BufReader::new(inside.stdout.take().unwrap()).read_line(&mut line);
        Sleeper(inside)
    });
    let number: Option<u32> = line.trim().parse().ok();
    match number.filter(|number| !Path::new(&format!("/proc/{number}")).exists()) {
        Some(number) => {
            let said = format!("{number}: no such process here: in its container, process ");
            fastmap(dir.path(), &format!("attach {number}")).failed_with(1, &[&said, " has this number: give "]);
        }
        None => println!("skipped: no PID namespace can be made, or the number is in use here"),
    }
    drop(inside);
}

#[test]
fn names_do_not_steer_the_terminal() {
    let dir = dir();
    let name = "\x1b]0;OWNED\x07\x1b[31mred\nnew";
    let program = dir.path().join(name);
    make_program(&program, &std::fs::read("/bin/sleep").unwrap());
    let sleeper = Sleeper(Command::new(&program).arg("600").spawn().unwrap());
    let said = fastmap(dir.path(), &format!("attach --for 1s {}", sleeper.pid()));
    said.succeeded();
    assert_eq!(said.stdout, format!("{} ?]0;OWNED??[31mred?new: nothing was to be done\n", sleeper.pid()));
    let unknown = ["attach", "--for", "1s", "--name", name];
    let said = run_in(dir.path(), Command::new(FASTMAP).args(unknown).arg(sleeper.pid()));
    assert!(!(said.stdout + &said.stderr).contains(['\x1b', '\x07']));
    let said = run_in(dir.path(), Command::new(FASTMAP).args(["attach", "--name", "a\x1b[2J", "--for", "1s"]));
    assert_eq!(said.stderr, "fastmap: a?[2J: no process has this name yet: waiting for one\n");
}

#[test]
fn it_ends_when_the_last_of_them_has_ended() {
    let (dir, mut sleeper) = (dir(), Sleeper::start());
    let pid = sleeper.pid();
    let attached = std::thread::spawn(move || fastmap(dir.path(), &format!("attach {pid}")));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let _ = sleeper.0.kill();
    let _ = sleeper.0.wait();
    attached.join().unwrap();
}
