//! The keeper itself: what it saves, what it leaves alone, and that nobody notices it. That it saves whatever ends the
//! program is in `killed.rs`.

use crate::common::*;
use fastmap::{Cache, MapMut};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

fn voluntary_switches(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).unwrap().to_owned()
}

/// A file of some pages in a folder.
fn file_in(folder: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    create(&path, &pattern(40 * PAGE));
    path
}

/// Waits until the keeper of an ended program has saved the file: a mutable map gets its lock then.
fn saved(path: &Path) -> Vec<u8> {
    drop(map_mut(&Cache::builder().capacity(Cache::MIN_CAPACITY).keeper(false).build().unwrap(), &open(path)));
    std::fs::read(path).unwrap()
}

#[test]
fn it_lives_as_long_as_the_program_and_sleeps() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder, "file");
    let child = Waiting::start("work", &path);
    let keeper = awaited_keeper_of(&path);
    assert_ne!(keeper, child.pid());
    child.finish();
    until("the keeper's end", || keeper_of(&path).is_none());
    // The child itself has seen that it does not wake.
    assert!(saved(&path).iter().step_by(PAGE).all(|byte| *byte == 9));
}

#[test]
fn wait_does_not_see_it() {
    if ready() {
        let folder = folder();
        run_child("wait", &file_in(&folder, "file"));
        run_child("wait-as-subreaper", &file_in(&folder, "file"));
    }
}

#[test]
fn it_is_there_for_mutable_maps_of_caches_that_want_it() {
    if !ready() {
        return;
    }
    let folder = folder();
    for role in ["turned-off", "read-only"] {
        let path = file_in(&folder, role);
        let child = Waiting::start(role, &path);
        assert_eq!(keeper_of(&path), None, "{role}");
        child.finish();
    }
}

#[test]
fn it_saves_the_files_of_every_cache_that_wants_it() {
    if !ready() {
        return;
    }
    let folder = folder();
    let paths = ["one", "two", "off"].map(|name| file_in(&folder, name));
    let mut child = Waiting::start("three-caches", folder.path());
    child.kill();
    for (path, kept) in paths.iter().zip([true, true, false]) {
        let bytes = saved(path);
        let expected = |page: usize| if kept { 9 } else { pattern(40 * PAGE)[page * PAGE] };
        assert!((0..40).all(|page| bytes[page * PAGE] == expected(page)), "{}", path.display());
    }
}

#[test]
fn a_last_page_that_is_not_whole_keeps_its_length() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &pattern(2 * PAGE + 100));
    Waiting::start("last-byte", &path).kill();
    let mut expected = pattern(2 * PAGE + 100);
    expected[2 * PAGE + 99] = 77;
    assert!(saved(&path) == expected);
}

#[test]
fn the_ends_of_forked_children_are_none_of_its_business() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder, "file");
    let mut child = Waiting::start("fork", &path);
    // It still waits for the program's end.
    awaited_keeper_of(&path);
    child.kill();
    assert!(saved(&path).iter().step_by(PAGE).all(|byte| *byte == 9));
}

/// What a process or a thread may do, as proc(5) has it.
fn status_of(task: &str, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t")).unwrap();
    line.to_owned()
}

/// Neither the keeper nor the engine's threads keep rights that the program has given up.
#[test]
fn a_daemon_that_drops_its_rights_leaves_none_with_it() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder, "file");
    let mut child = Waiting::start("daemon", &path);
    let keeper = awaited_keeper_of(&path).to_string();
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status_of(&keeper, set), 16), Ok(0), "{set}");
    }
    assert_eq!((status_of(&keeper, "NoNewPrivs"), status_of(&keeper, "Seccomp")), ("1".into(), "2".into()));
    // The C library has taken the threads along: setuid(3) is all threads'.
    for thread in std::fs::read_dir(format!("/proc/{}/task", child.pid())).unwrap().flatten() {
        if std::fs::read_to_string(thread.path().join("comm")).unwrap().starts_with("iou-") {
            // The kernel's, for io_uring: it runs nothing of this process's memory.
            continue;
        }
        let task = format!("{}/task/{}", child.pid(), thread.file_name().to_str().unwrap());
        assert_eq!(u64::from_str_radix(&status_of(&task, "CapEff"), 16), Ok(0), "{task}");
        assert!(!status_of(&task, "Uid").split('\t').any(|uid| uid == "0"), "{task}");
    }
    // And saves all the same, for a program that is nobody any more.
    child.kill();
    assert!(saved(&path).iter().step_by(PAGE).all(|byte| *byte == 9));
}

/// A file system that takes no writes for a while (fsfreeze(8)); thawed when dropped.
struct Frozen(std::fs::File);

impl Frozen {
    fn new(folder: &Path) -> Self {
        let folder = std::fs::File::open(folder).unwrap();
        // SAFETY: a request without an argument.
        assert_eq!(unsafe { libc::ioctl(folder.as_raw_fd(), 0xC004_5877, 0) }, 0, "FIFREEZE");
        Frozen(folder)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // SAFETY: likewise.
        unsafe { libc::ioctl(self.0.as_raw_fd(), 0xC004_5878, 0) };
    }
}

/// Whoever opens the file while the keeper writes waits for it: nothing is seen half written, nor overwritten later. A disk that takes no writes
/// shows that the keeper writes.
#[test]
fn who_opens_the_file_meanwhile_waits_for_it() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("file");
    create(&path, &pattern(40 * PAGE)).sync_all().unwrap();
    let mut child = Waiting::start("forty", &path);
    let frozen = Frozen::new(path.parent().unwrap());
    child.kill();
    let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap()));
    let is_leased = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains("LEASE") && lock.contains("WRITE") && lock.contains(&inode))
    };
    until("a write lease", is_leased);
    let mut nonblocking = std::fs::File::options();
    std::os::unix::fs::OpenOptionsExt::custom_flags(nonblocking.read(true), libc::O_NONBLOCK);
    assert_eq!(nonblocking.open(&path).unwrap_err().raw_os_error(), Some(libc::EWOULDBLOCK));
    let reader = std::thread::spawn({
        let path = path.clone();
        move || std::fs::read(path).unwrap()
    });
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!reader.is_finished());
    drop(frozen);
    assert!(reader.join().unwrap().iter().step_by(PAGE).all(|byte| *byte == 9));
}

#[test]
fn what_the_program_held_is_let_go_before_all_is_saved() {
    let Some(disk) = small_disk() else { return };
    let folder = folder();
    let (path, other) = (disk.path("file"), file_in(&folder, "file"));
    create(&path, &pattern(40 * PAGE)).sync_all().unwrap();
    std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
    let mut child = Waiting::start("holder", folder.path());
    let lock = open(&other);
    assert!(!fcntl_lock(&lock), "the child has it");
    let frozen = Frozen::new(path.parent().unwrap());
    child.kill();
    // The keeper saves, for as long as the disk takes nothing; output, sockets and locks end with the program.
    std::io::copy(child.0.stdout.as_mut().unwrap(), &mut std::io::sink()).unwrap();
    until("the end of the child's lock", || fcntl_lock(&lock));
    assert!(keeper_of(&path).is_some());
    drop(frozen);
    assert!(saved(&path).iter().step_by(PAGE).all(|byte| *byte == 9));
}

/// A write of the dead program's that is still in flight could land on top of what the keeper writes.
#[test]
fn it_waits_for_writes_in_flight() {
    let Some(disk) = small_disk() else { return };
    let path = disk.path("file");
    create(&path, &pattern(40 * PAGE)).sync_all().unwrap();
    let mut child = Waiting::start("flush", &path);
    let keeper = awaited_keeper_of(&path);
    let frozen = Frozen::new(path.parent().unwrap());
    drop(child.0.stdin.take());
    let pid = child.pid();
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let stat = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
    until("a write that the disk does not take", || threads().any(|thread| stat(thread).contains(") D ")));
    child.0.kill().unwrap();
    // It looks at the threads again and again; in a write of its own it would not wake.
    for _ in 0..5 {
        let before = voluntary_switches(keeper);
        until("another look", || voluntary_switches(keeper) != before);
    }
    drop(frozen);
    child.0.wait().unwrap();
    assert!(saved(&path).iter().step_by(PAGE).all(|byte| *byte == 9));
}

/// Locks a whole file for this process (fcntl(2)); false if somebody else has it.
fn fcntl_lock(file: &std::fs::File) -> bool {
    // SAFETY: a zeroed flock is a valid one.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as i16;
        libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) == 0
    }
}

#[test]
fn it_says_what_a_full_disk_does_not_take_and_saves_the_rest() {
    let Some(disk) = small_disk() else { return };
    let folder = folder();
    let path = file_in(&folder, "file");
    let full = disk.path("full-disk");
    create(&full, &[]).set_len(1 << 20).unwrap();
    std::os::unix::fs::symlink(&full, folder.path().join("full")).unwrap();
    let mut child = Waiting::start("full-disk", folder.path());
    child.kill();
    let mut said = String::new();
    std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("cannot be saved")).collect();
    assert!(
        lines.len() == 1
            && lines[0].contains("full-disk: page at offset 20480")
            && lines[0].contains("error 28")
            && lines[0].contains("3 pages"),
        "{said}"
    );
    assert!(saved(&path).iter().step_by(PAGE).all(|byte| *byte == 9));
}

// --- the children -----------------------------------------------------------------------------------------------------

/// Stores to every page of a map, which is never unmapped.
fn touch(cache: &Cache, path: &Path) -> &'static mut MapMut {
    let map = Box::leak(Box::new(map_mut(cache, &open(path))));
    (0..40).for_each(|page| map[page * PAGE] = 9);
    map
}

fn large(keeper: bool) -> Cache {
    Cache::builder().capacity(256 * PAGE).keeper(keeper).build().unwrap()
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, argument)) = role_of_child() else { return };
    match role.as_str() {
        "work" => {
            let map = touch(&large(true), &argument);
            let keeper = awaited_keeper_of(&argument);
            // It is asleep once its sleep in the kernel shows.
            until("its sleep", || {
                let stat = std::fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
                stat.contains("(fastmap-keeper) S") && !voluntary_switches(keeper).ends_with("\t0")
            });
            let before = voluntary_switches(keeper);
            let small = small();
            for round in 0..20 {
                map.flush().unwrap();
                (0..40).for_each(|page| map[page * PAGE] = 9 + round % 2);
                std::thread::spawn(|| ()).join().unwrap();
                let other = map_mut(&small, &create(&argument.with_extension("other"), &pattern(20 * PAGE)));
                assert!(other[..] == pattern(20 * PAGE));
            }
            (0..40).for_each(|page| map[page * PAGE] = 9);
            assert_eq!(voluntary_switches(keeper), before, "it woke");
            wait_for_parent();
        }
        "wait" | "wait-as-subreaper" => {
            // SAFETY: no preconditions.
            unsafe {
                if role == "wait-as-subreaper" {
                    assert_eq!(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1), 0);
                }
                touch(&large(true), &argument);
                awaited_keeper_of(&argument);
                let mut status = 0;
                assert_eq!(libc::waitpid(-1, &mut status, 0), -1);
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ECHILD));
                if role == "wait" {
                    assert_eq!(libc::waitpid(-1, &mut status, libc::__WALL), -1);
                    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ECHILD));
                }
            }
            // And a child of its own is waited for as ever.
            assert!(Command::new("true").status().unwrap().success());
        }
        "daemon" => {
            touch(&large(true), &argument);
            awaited_keeper_of(&argument);
            // SAFETY: numbers only. Where this is nobody important already there is nothing to drop.
            unsafe {
                if libc::geteuid() == 0 {
                    assert_eq!((libc::setgid(65534), libc::setuid(65534)), (0, 0));
                    assert_ne!(libc::setuid(0), 0);
                }
            }
            wait_for_parent();
        }
        "forty" => {
            touch(&large(true), &argument);
            wait_for_parent();
        }
        "turned-off" => {
            touch(&large(false), &argument);
            wait_for_parent();
        }
        "read-only" => {
            let map = map(&large(true), &open(&argument));
            assert!(map[..] == pattern(40 * PAGE));
            wait_for_parent();
        }
        "three-caches" => {
            for (name, keeper) in [("one", true), ("two", true), ("off", false)] {
                touch(&large(keeper), &argument.join(name));
            }
            wait_for_parent();
        }
        "last-byte" => {
            let map = Box::leak(Box::new(map_mut(&large(true), &open(&argument))));
            map[2 * PAGE + 99] = 77;
            wait_for_parent();
        }
        "fork" => {
            let map = touch(&large(true), &argument);
            for exec in [false, true] {
                // SAFETY: the child calls little and ends.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        if exec {
                            libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), std::ptr::null::<libc::c_char>());
                        }
                        libc::_exit(i32::from(exec));
                    }
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
                }
            }
            assert!(map.iter().step_by(PAGE).all(|byte| *byte == 9));
            wait_for_parent();
        }
        "flush" => {
            let map = touch(&large(true), &argument);
            wait_for_parent();
            map.flush().unwrap();
            panic!("the disk took it");
        }
        "holder" => {
            let lock = open(&argument.join("file"));
            assert!(fcntl_lock(&lock));
            touch(&large(true), &argument.join("link").canonicalize().unwrap());
            wait_for_parent();
        }
        "full-disk" => {
            let full = argument.join("full").canonicalize().unwrap();
            let map = Box::leak(Box::new(map_mut(&large(true), &open(&full))));
            [5, 8, 20].into_iter().for_each(|page| map[page * PAGE] = 1);
            rob_file(&open(&full), full.parent().unwrap());
            touch(&large(true), &argument.join("file"));
            wait_for_parent();
        }
        other => panic!("no role {other}"),
    }
}
