//! `fastmap attach`.

use std::process::{Child, Command};

use crate::prompt::{dir, fastmap};

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
    fastmap(dir.path(), "attach --name no-such-program").failed_with(1, &["no-such-program: no process has this name"]);
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
fn it_ends_when_the_last_of_them_has_ended() {
    let (dir, mut sleeper) = (dir(), Sleeper::start());
    let pid = sleeper.pid();
    let attached = std::thread::spawn(move || fastmap(dir.path(), &format!("attach {pid}")));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let _ = sleeper.0.kill();
    let _ = sleeper.0.wait();
    attached.join().unwrap();
}
