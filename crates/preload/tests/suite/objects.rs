//! Objects at paths: `programs/objects.c` on a session of the test's own, whose server puts bytes of a pattern there.

use crate::common;
use crate::effort::skip;
use fastmap_tier::{Asking, Request, Tier, UNIT, Version};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const LEN: u64 = (8 << 20) + 1234;

/// The byte of `check.h`'s pattern.
fn pattern(offset: u64) -> u8 {
    (offset / 4096 * 7 + offset % 251 + 1) as u8
}

/// What the server does with a request.
#[derive(Clone, Copy, PartialEq)]
enum Serves {
    Bytes,
    Error(i32),
    Nothing,
}

/// An object at a path, and who fetches it.
struct Session {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    asking: Arc<Asking>,
    tier: Arc<Tier>,
    server: Option<JoinHandle<()>>,
}

impl Session {
    fn new(serves: Serves, deadline: &str, limit: u64) -> Session {
        let folder = common::folder();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let tier = Tier::open(Some(&folder.path().join("tier")), Some(limit)).unwrap();
        let version = Version {
            url: "test://bucket/object".into(),
            etag: Some("\"1\"".into()),
            version: None,
            modified: None,
            len: LEN,
        };
        let local = tier.local(&version).unwrap();
        let asking = Asking::create(&folder.path().join("asking")).unwrap();
        let path = folder.path().join("data/object");
        let fields = [
            folder.path().join("tier").to_str().unwrap(),
            deadline,
            path.to_str().unwrap(),
            &version.url,
            "\"1\"",
            "",
            "",
            "1700000000",
            &LEN.to_string(),
        ]
        .map(|field| format!("{field}\0"));
        std::fs::write(folder.path().join("manifest"), fields.concat()).unwrap();
        std::fs::write(folder.path().join("users"), "").unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (own_stop, own) = (stop.clone(), asking.clone());
        let its_tier = tier.clone();
        let server = std::thread::spawn(move || {
            let (_tier, mut kept) = (its_tier, Vec::new());
            own.serve(&own_stop, |request: Request| match serves {
                Serves::Bytes => {
                    for unit in request.range.start / UNIT..request.range.end.div_ceil(UNIT) {
                        let bytes: Vec<u8> = (unit * UNIT..LEN.min((unit + 1) * UNIT)).map(pattern).collect();
                        if !local.has(unit * UNIT..LEN.min((unit + 1) * UNIT)) {
                            local.put(unit, &bytes).unwrap();
                        }
                    }
                    request.answer(Ok(()));
                }
                Serves::Error(error) => request.answer(Err(error)),
                Serves::Nothing => kept.push(request),
            });
        });
        Session { folder, stop, asking, tier, server: Some(server) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("data/object")
    }

    fn end_server(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.asking.ring();
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }

    /// A case of the program, with a capacity given, and with one that follows.
    fn run(&self, case: &str) {
        if !common::ready() {
            return;
        }
        let exe = common::compile(self.folder.path(), "objects.c", &[]);
        for variables in [&[("FASTMAP_CACHE", "1MiB")][..], &[("FASTMAP_CACHE", "auto")]] {
            let output = self.command(&exe, variables).arg(case).arg(self.path()).output().expect("timeout");
            common::expect_success(&format!("objects.c {case} {variables:?}"), &output);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.matches("cannot be served").count() < 2, "a line a file, not a page: {said}");
        }
        std::fs::remove_file(exe).unwrap();
    }

    fn command(&self, exe: &Path, variables: &[(&str, &str)]) -> Command {
        let folder = self.folder.path().to_str().unwrap();
        common::command(exe, Some(common::library()), &[&[("FASTMAP_OBJECTS", folder)], variables].concat())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_server();
    }
}

macro_rules! cases {
    ($($case:ident)*) => { $(
        #[test]
        fn $case() {
            Session::new(Serves::Bytes, "30000", 16 << 20).run(stringify!($case));
        }
    )* };
}
cases! { reading mapping streams forks execs }

/// All that is there goes again and again, while it is read.
#[test]
fn threads() {
    let session = Session::new(Serves::Bytes, "30000", 16 << 20);
    let (tier, stop) = (session.tier.clone(), session.stop.clone());
    let evicts = std::thread::spawn(move || {
        while !stop.load(Ordering::SeqCst) {
            tier.remove(None).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    session.run("threads");
    drop(session);
    evicts.join().unwrap();
}

#[test]
fn no_server() {
    let mut session = Session::new(Serves::Bytes, "30000", 16 << 20);
    session.end_server();
    session.run("no_server");
}

#[test]
fn no_answer() {
    Session::new(Serves::Nothing, "100", 16 << 20).run("no_answer");
}

#[test]
fn changed() {
    Session::new(Serves::Error(libc::ESTALE), "30000", 16 << 20).run("changed");
}

/// What calls say of an object is what they say of a file on a read-only mount.
#[test]
fn verdicts() {
    if !common::ready() {
        return;
    }
    let session = Session::new(Serves::Bytes, "30000", 16 << 20);
    let exe = common::compile(session.folder.path(), "objects.c", &[]);
    let output = session.command(&exe, &[]).arg("verdicts").arg(session.path()).output().unwrap();
    common::expect_success("objects.c verdicts", &output);
    let object = String::from_utf8(output.stdout).unwrap();
    assert!(object.lines().count() > 120, "{object}");
    let bytes: Vec<u8> = (0..LEN).map(pattern).collect();
    std::fs::write(session.path(), bytes).unwrap();
    std::fs::set_permissions(session.path(), PermissionsExt::from_mode(0o444)).unwrap();
    let script =
        r#"mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 99; exec "$0" verdicts "$1/object""#;
    let mut mounted = Command::new("unshare");
    mounted.args(["-m", "sh", "-c", script]).arg(&exe).arg(session.folder.path().join("data"));
    match mounted.output() {
        Ok(output) if output.status.success() => {
            let file = String::from_utf8(output.stdout).unwrap();
            let differing: Vec<_> = file.lines().zip(object.lines()).filter(|(file, object)| file != object).collect();
            assert!(differing.is_empty() && file == object, "{differing:#?}\n{object}");
        }
        output => skip(format!("no read-only mount to compare with (as root): {output:?}")),
    }
}

/// An object is as a file where there is no folder, and hides a file.
#[test]
fn paths() {
    if !common::ready() {
        return;
    }
    let session = Session::new(Serves::Bytes, "30000", 16 << 20);
    let data = session.folder.path().join("data");
    let script = "cd $0 && [ -r object ] && ! [ -w object ] && [ $(wc -c < ../data/object) = 8389842 ] && cmp object $0/object && head -c 5 object";
    let run = |script: &str| {
        let output = session.command(Path::new("sh"), &[]).args(["-c", script]).arg(&data).output().unwrap();
        common::expect_success(script, &output);
        output.stdout
    };
    let first: Vec<u8> = (0..5).map(pattern).collect();
    assert_eq!(run(script), first);
    std::fs::write(session.path(), "another").unwrap();
    assert_eq!(run(script), first);
    std::fs::remove_dir_all(&data).unwrap();
    assert_eq!(run("cd $0/.. && head -c 5 $0/object && ! [ -e $0 ] && cmp data/object ./data/object"), first);
}
