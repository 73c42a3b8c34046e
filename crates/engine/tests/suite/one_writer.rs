//! One process at a time writes a file: who is refused, who is not, and when the lock goes.

use crate::common::*;
use fastmap::{Cache, Error, Fallback, MapOptions};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

fn file_in(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("file");
    create(&path, &pattern(10 * PAGE));
    path
}

/// Whether another process gets a mutable map; if not, the error's text and whom it names.
fn elsewhere(path: &Path) -> Result<(), String> {
    match run_child("map", path) {
        said if said.contains("mapped well") => Ok(()),
        said => Err(said),
    }
}

#[test]
fn a_second_process_is_refused_and_told_who_has_the_file() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let cache = small();
    let map = map_mut(&cache, &open(&path));
    let said = elsewhere(&path).unwrap_err();
    let pid = std::process::id();
    let command = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert!(said.contains(&format!("process {pid} ({})", command.trim_end())), "{said}");
    assert!(said.contains(&format!("pid: Some({pid})")) && said.contains("MapOptions::one_writer"), "{said}");
    assert!(said.contains(&path.display().to_string()) && said.contains("ResourceBusy"), "{said}");
    drop(map);
    elsewhere(&path).expect("the last map is gone");
}

#[test]
fn the_other_way_round() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let other = Waiting::start("hold", &path);
    // SAFETY: nobody stores to it.
    match unsafe { options(&small()).map_mut(&open(&path)) } {
        Err(Error::Locked { pid: Some(pid), .. }) => assert_eq!(pid, other.pid(), "the program and not its keeper"),
        other => panic!("{other:?}"),
    }
    other.finish();
    drop(map_mut(&small(), &open(&path)));
}

#[test]
fn maps_for_reading_are_shared() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let read_only = map(&small(), &File::open(&path).unwrap());
    elsewhere(&path).expect("a map for reading locks nothing");
    drop(read_only);
    let _mutable = map_mut(&small(), &open(&path));
    run_child("map-read-only", &path);
}

#[test]
fn a_map_that_becomes_mutable_takes_the_lock() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let cache = small();
    let read_only = map(&cache, &open(&path));
    // SAFETY: nobody stores to it.
    let unlocked = unsafe { options(&cache).one_writer(false).map_mut(&open(&path)) }.unwrap();
    elsewhere(&path).expect("by choice nothing is locked");
    let locked = map_mut(&cache, &open(&path));
    elsewhere(&path).unwrap_err();
    drop((unlocked, locked));
    elsewhere(&path).expect_err("the file stays writable, and locked, until its last map goes");
    drop(read_only);
    elsewhere(&path).unwrap();
}

#[test]
fn who_is_refused_can_still_read() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let other = Waiting::start("hold", &path);
    let cache = small();
    let read_only = map(&cache, &open(&path));
    // SAFETY: nobody stores to it.
    let refused = unsafe { options(&cache).map_mut(&open(&path)) };
    assert!(matches!(refused, Err(Error::Locked { .. })), "{refused:?}");
    assert!(read_only[PAGE..] == pattern(10 * PAGE)[PAGE..]);
    other.finish();
    drop(map_mut(&cache, &open(&path)));
}

#[test]
fn one_process_maps_as_often_as_it_likes() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let cache = small();
    let (mut one, two) = (map_mut(&cache, &open(&path)), map_mut(&cache, &open(&path)));
    one[5] = 99;
    assert_eq!(two[5], 99);
    drop(one);
    elsewhere(&path).unwrap_err();
    drop(two);
    elsewhere(&path).unwrap();
}

#[test]
fn several_write_by_choice() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let _map = map_mut(&small(), &open(&path));
    run_child("map-anyway", &path);
}

#[test]
fn locks_of_the_program_on_the_file_still_work() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let own = open(&path);
    let map = map_mut(&small(), &open(&path));
    // Where SQLite locks, and over all the data.
    for (start, len) in [(0x4000_0000, 512), (0, 10 * PAGE as i64)] {
        assert!(fcntl_lock(&own, start, len));
        run_child("locked-out", &path);
    }
    // SAFETY: a lock of another kind, on a descriptor of this test's.
    assert_eq!(unsafe { libc::flock(own.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }, 0);
    drop(map);
    // A lock on the whole file, held before: it is the program's business who may write.
    assert!(fcntl_lock(&own, 0, 0));
    let mut map = map_mut(&small(), &open(&path));
    map[0] = 1;
    map.flush().unwrap();
}

#[test]
fn a_killed_process_holds_it_until_its_keeper_is_done() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    for writable in [true, false] {
        let mut other = Waiting::start("hold", &path);
        let keeper = awaited_keeper_of(&path) as i32;
        // SAFETY: stops the keeper of this test's child, and lets it go on below.
        unsafe { libc::kill(keeper, libc::SIGSTOP) };
        other.kill();
        let going_on = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let (path, going_on) = (&path, &going_on);
            let mapping = scope.spawn(move || {
                // SAFETY: no preconditions.
                tell.send(unsafe { libc::gettid() }).unwrap();
                let cache = small();
                let first = if writable { map_mut(&cache, &open(path))[0] } else { map(&cache, &open(path))[0] };
                assert!(going_on.load(Ordering::Acquire), "mapped before the keeper was done");
                assert_eq!(first, 200);
            });
            let thread = told.recv().unwrap();
            until("it waits, or is through", || mapping.is_finished() || sleeps(thread));
            going_on.store(true, Ordering::Release);
            // SAFETY: as above.
            unsafe { libc::kill(keeper, libc::SIGCONT) };
            mapping.join().unwrap();
        });
        // It ends a moment after it has given the file up, and is not the next one's keeper.
        until("the keeper goes", || keeper_of(&path) != Some(keeper as u32));
        create(&path, &pattern(10 * PAGE));
    }
}

/// Whoever may read a file can lock any byte of it for reading.
#[test]
fn a_reader_keeps_no_writer_out() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let reader = File::open(&path).unwrap();
    for (byte, command) in
        [(i64::MAX - 1, libc::F_OFD_SETLK), (i64::MAX, libc::F_OFD_SETLK), (i64::MAX - 1, libc::F_SETLK)]
    {
        // SAFETY: a zeroed flock is a valid one.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            (lock.l_type, lock.l_start, lock.l_len) = (libc::F_RDLCK as i16, byte, 1);
            assert_eq!(libc::fcntl(reader.as_raw_fd(), command, &mut lock), 0);
        }
        let mut map = map_mut(&small(), &open(&path));
        map[1] += 1;
        map.flush().unwrap();
        assert_eq!(map[1], std::fs::read(&path).unwrap()[1]);
        // SAFETY: as above.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_UNLCK as i16;
            assert_eq!(libc::fcntl(reader.as_raw_fd(), command, &mut lock), 0);
        }
    }
}

#[test]
fn forked_children_do_not_hold_it() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = file_in(&folder);
    let mut other = Waiting::start("fork-and-drop", &path);
    drop(map_mut(&small(), &open(&path)));
    other.kill();
    // Killed this time, with the map there: the keeper gives the lock up, though the forked child lives on.
    let mut other = Waiting::start("fork-and-hold", &path);
    other.kill();
    until("the end of the lock", || {
        // SAFETY: nobody stores to it.
        unsafe { options(&small()).map_mut(&open(&path)) }.is_ok()
    });
}

/// A lock of this process (fcntl(2)); false if somebody else's is in the way.
fn fcntl_lock(file: &File, start: i64, len: i64) -> bool {
    // SAFETY: a zeroed flock is a valid one.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as i16, start, len);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) == 0
    }
}

// --- the children -----------------------------------------------------------------------------------------------------

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, path)) = role_of_child() else { return };
    let file = open(&path);
    match role.as_str() {
        // SAFETY: nobody stores to it.
        "map" => match unsafe { options(&small()).map_mut(&file) } {
            Ok(_) => println!("mapped well"),
            Err(error) => {
                if let Error::Locked { pid, .. } = &error {
                    println!("{error}: pid: {pid:?}");
                }
                println!("{:?}", std::io::Error::from(error).kind());
            }
        },
        "map-read-only" => {
            let map = map(&small(), &file);
            assert!(map[..] == pattern(10 * PAGE));
            // SAFETY: nobody stores to it. The kernel's maps know nothing of the lock.
            let kernel = unsafe { MapOptions::new().fallback(Fallback::Kernel).map(&file) }.unwrap();
            assert!(kernel[..] == pattern(10 * PAGE));
        }
        // SAFETY: nobody stores to it.
        "map-anyway" => assert_eq!(unsafe { options(&small()).one_writer(false).map_mut(&file) }.unwrap()[1], 8),
        "hold" => {
            let map = Box::leak(Box::new(map_mut(&Cache::new(1 << 20).unwrap(), &file)));
            map[0] = 200;
            wait_for_parent();
        }
        "locked-out" => {
            assert!(!fcntl_lock(&file, 0x4000_0000, 512), "the parent has it");
            assert!(fcntl_lock(&file, 0x5000_0000, 512), "nobody has it");
        }
        "fork-and-drop" | "fork-and-hold" => {
            let map = map_mut(&small(), &file);
            // SAFETY: the child sleeps, and ends with the pipe that it has from the parent's parent.
            if unsafe { libc::fork() } == 0 {
                wait_for_end_of_input();
            }
            let kept = (role == "fork-and-hold").then_some(map);
            wait_for_parent();
            drop(kept);
        }
        other => panic!("no role {other}"),
    }
}

/// Sleeps until nobody can write to standard input any more, then ends.
fn wait_for_end_of_input() -> ! {
    let mut byte = 0u8;
    // SAFETY: reads into a byte of our own; ends this process.
    unsafe {
        while libc::read(0, std::ptr::from_mut(&mut byte).cast(), 1) > 0 {}
        libc::_exit(0)
    }
}
