//! Other processes: one copy for all of a user's, children made by fork(2), and programs that ask a server elsewhere.

use crate::common::*;
use crate::store::Store;
use fastmap_object::serve;
use fastmap_tier::Asking;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const URL: &str = "FASTMAP_TEST_URL";
const FOLDER: &str = "FASTMAP_TEST_FOLDER";

#[test]
fn two_programs_fetch_once() {
    if let (Ok(url), Ok(folder)) = (std::env::var(URL), std::env::var(FOLDER)) {
        let tier = tier(folder.as_ref(), 64 * MIB);
        let map = open(&tier, &url);
        let expected = pattern(map.len());
        assert!(map[..] == expected[..]);
        return;
    }
    if !ready() {
        return;
    }
    let bytes = pattern(16 * MIB);
    let (store, folder) = (Store::start(), folder());
    store.put("/object", &bytes);
    store.settings().latency = Duration::from_millis(5);
    let mut children: Vec<_> = (0..3)
        .map(|_| {
            let mut child = child("others::two_programs_fetch_once");
            child.env(URL, store.url("/object")).env(FOLDER, folder.path()).spawn().unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    // What two ask for at the same moment is asked for once.
    assert_eq!(store.sent(), bytes.len() as u64);
}

#[test]
fn a_child_by_fork_asks_its_parent() {
    alone!();
    let bytes = pattern(8 * MIB);
    let (store, _folder, tier) = store_with(&bytes);
    let object = options(&tier).open(&store.url("/object")).unwrap();
    // SAFETY: the child makes system calls, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let brought = object.asking().bring(object.number(), 0..object.len(), Some(Duration::from_secs(20)));
        let mut last = [0];
        let is_right = brought.is_ok() && object.local().file().read_exact_at(&mut last, object.len() - 1).is_ok();
        // SAFETY: nothing of the parent's is run.
        unsafe { libc::_exit(i32::from(!is_right || last[0] != bytes[bytes.len() - 1])) };
    }
    let mut status = 0;
    // SAFETY: our child, our word.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert!(object.local().has(0..object.len()));
}

#[test]
fn a_child_by_fork_opens_its_own() {
    alone!();
    let bytes = pattern(2 * MIB);
    let (store, folder, tier) = store_with(&bytes);
    let map = open(&tier, &store.url("/object"));
    assert_eq!(map[0], bytes[0]);
    let url = store.url("/object");
    // SAFETY: a test's process has few threads, and none of them allocates now.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let tier = fastmap_tier::Tier::open(Some(&folder.path().join("child")), Some(64 << 20)).unwrap();
        let object = options(&tier).open(&url).unwrap();
        let brought = object.asking().bring(object.number(), 0..object.len(), Some(Duration::from_secs(20)));
        let is_right = brought.is_ok() && object.local().has(0..object.len());
        // SAFETY: nothing of the parent's is run.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: our child, our word.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
}

#[test]
fn objects_are_served_to_others() {
    if !ready() {
        return;
    }
    let bytes = pattern(2 * MIB);
    let (store, folder, tier) = store_with(&bytes);
    let object = options(&tier).open(&store.url("/object")).unwrap();
    let local = object.local().clone();
    let path = folder.path().join("asking");
    let (asking, stop) = (Asking::create(&path).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let objects = [object];
        let (stop, served) = (&stop, asking.clone());
        let serving = scope.spawn(move || serve(served, &objects, stop));
        let asks = Asking::open(&path).unwrap();
        let wait = Some(Duration::from_secs(30));
        assert_eq!(asks.bring(0, 0..2 * MIB as u64, wait), Ok(()));
        assert!(local.has(0..2 * MIB as u64));
        assert_eq!(asks.bring(1, 0..1, wait), Err(libc::EIO));
        stop.store(true, Ordering::Release);
        asking.ring();
        serving.join().unwrap().unwrap();
        assert_eq!(asks.bring(0, 0..1, wait), Err(libc::ESHUTDOWN));
    });
}

#[test]
fn signals_are_not_taken_by_our_threads() {
    alone!();
    let (store, _folder, tier) = store_with(&pattern(MIB));
    let map = open(&tier, &store.url("/object"));
    std::hint::black_box(map[0]);
    let mut ours = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
        if ["fastmap-fetch", "fastmap-serve"].contains(&field("Name:").as_str()) {
            let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
            // All but SIGKILL, SIGSTOP and the C library's own two.
            assert_eq!(blocked | 0x1_8004_0100, u64::MAX, "{status}");
            ours += 1;
        }
    }
    assert!(ours >= 2, "{ours}");
}
