//! What others do to parts of a file that no map here covers, and other company: it must not be overwritten, nor missed.

use crate::common::*;
use fastmap::Cache;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// pwrite to bytes that no map covers, then map them.
#[test]
fn a_second_map_sees_what_was_written_before_it() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = sparse(&path, 2 << 20);
    let cache = Cache::new(1 << 20).unwrap();
    // SAFETY: the file is this test's own.
    let head = unsafe { options(&cache).len(PAGE).map(&file).unwrap() };
    assert_eq!(head[0], 0);
    file.write_all_at(&[7; PAGE], 100 * PAGE as u64).unwrap();
    file.sync_all().unwrap();
    // SAFETY: the file is this test's own.
    let whole = unsafe { options(&cache).map(&file).unwrap() };
    assert_eq!(whole[100 * PAGE], 7, "stale zeros");
}

/// Likewise, and the stale zeros reach the file.
#[test]
fn a_second_mutable_map_keeps_what_was_written_before_it() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = sparse(&path, 2 << 20);
    let cache = Cache::new(1 << 20).unwrap();
    // SAFETY: the file is this test's own.
    let mut head = unsafe { options(&cache).len(PAGE).map_mut(&file).unwrap() };
    head[0] = 1;
    head.flush().unwrap();
    file.write_all_at(&[7; PAGE], 100 * PAGE as u64).unwrap();
    file.sync_all().unwrap();
    {
        // SAFETY: the file is this test's own.
        let mut part = unsafe { options(&cache).offset(100 * PAGE as u64).len(PAGE).map_mut(&file).unwrap() };
        part[1] = 9;
        part.flush().unwrap();
    }
    drop(head);
    let mut page = [0; PAGE];
    file.read_exact_at(&mut page, 100 * PAGE as u64).unwrap();
    assert_eq!((page[0], page[1], page[2]), (7, 9, 7));
}

/// Fill ahead past the map's end: over bytes that are nobody's map's.
#[test]
fn filling_ahead_stays_inside_the_map() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = sparse(&path, 8 << 20);
    let cache = Cache::new(16 << 20).unwrap();
    // SAFETY: the file is this test's own.
    let mut map = unsafe { options(&cache).len(200 * PAGE).map_mut(&file).unwrap() };
    for page in 0..200 {
        map[page * PAGE] = 1;
    }
    map.flush().unwrap();
    println!("{:?}", cache.stats());
    file.write_all_at(&[7; 60 * PAGE], 200 * PAGE as u64).unwrap();
    file.sync_all().unwrap();
    drop(map);
    let mut bytes = vec![0; 60 * PAGE];
    file.read_exact_at(&mut bytes, 200 * PAGE as u64).unwrap();
    let lost = bytes.chunks(PAGE).filter(|page| page[0] != 7).count();
    assert_eq!(lost, 0, "pages written with pwrite and overwritten with zeros");
}

/// Several writers, each a part of its own in whole pages; this one reads the other's part, too.
#[test]
fn a_guess_does_not_overwrite_another_writers_part() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let half = 2000;
    let file = create(&path, &vec![1; 2 * half * PAGE]);
    file.sync_all().unwrap();
    let cache = Cache::new(32 << 20).unwrap();
    // SAFETY: the file is this test's own.
    let mut map = unsafe { options(&cache).one_writer(false).map_mut(&file).unwrap() };
    for page in 0..half {
        map[page * PAGE] += 1; // ours: read, then written
    }
    let mut sum = 0u64;
    for page in half..2 * half {
        sum += u64::from(map[page * PAGE]); // the other's: only read
    }
    println!("{sum} {:?}", cache.stats());
    // The other process writes its part.
    file.write_all_at(&vec![7; half * PAGE], (half * PAGE) as u64).unwrap();
    file.sync_all().unwrap();
    drop(map);
    let mut bytes = vec![0; half * PAGE];
    file.read_exact_at(&mut bytes, (half * PAGE) as u64).unwrap();
    let lost = bytes.chunks(PAGE).filter(|page| page[0] != 7).count();
    assert_eq!(lost, 0, "pages of the other writer overwritten by pages never stored to here");
}

/// Filling up to the end of the address range while the file is longer.
#[test]
fn filling_to_the_end_of_the_address_range() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let file = sparse(&path, 288 << 20);
    let cache = Cache::new(16 << 20).unwrap();
    // SAFETY: the file is this test's own.
    let mut map = unsafe { options(&cache).map_mut(&file).unwrap() };
    let start = map.as_ptr();
    map.grow(576 << 20).unwrap();
    assert_eq!(start, map.as_ptr(), "in place");
    file.set_len(700 << 20).unwrap();
    map.flush().unwrap();
    let pages = (576 << 20) / PAGE;
    for page in pages - 100..pages {
        map[page * PAGE] = 1;
    }
}

/// stderr is a broken pipe when the last map goes and cannot be saved.
#[test]
fn a_closed_standard_error_does_not_keep_a_file_from_being_mapped_again() {
    alone!();
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &vec![1; 64 * PAGE]);
    file.sync_all().unwrap();
    let cache = Cache::new(1 << 20).unwrap();
    // SAFETY: the file is this test's own.
    let mut map = unsafe { options(&cache).map_mut(&file).unwrap() };
    map[0] = 9;
    // SAFETY: plain system calls on our own descriptors and limits.
    unsafe {
        let saved = libc::dup(2);
        let mut pipe = [0; 2];
        libc::pipe(pipe.as_mut_ptr());
        libc::close(pipe[0]);
        libc::dup2(pipe[1], 2);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut old = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut old);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: old.rlim_max };
        libc::setrlimit(libc::RLIMIT_FSIZE, &none);
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(map)));
        libc::setrlimit(libc::RLIMIT_FSIZE, &old);
        libc::dup2(saved, 2);
        println!("drop panicked: {}", dropped.is_err());
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: the file is this test's own.
        let map = unsafe { options(&cache).map_mut(&file).unwrap() };
        tell.send(map[0]).unwrap();
    });
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(9), "mapping the file again hangs");
}
