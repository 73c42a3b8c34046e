//! Programs that close what they have not opened, and take numbers as they like.

use crate::common;
use crate::common::*;
use fastmap::descriptors::{is_engine, next_engine};
use fastmap::{Advice, Cache, Engine, Fallback, Mode};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

#[test]
fn every_descriptor_of_the_engines_is_known_and_out_of_the_way() {
    if ready() {
        run_child("known", Path::new(""));
    }
}

#[test]
fn a_program_closes_everything_above_two() {
    if ready() {
        run_child("close-all", Path::new(""));
    }
}

#[test]
fn what_such_a_program_stored_is_saved_when_it_is_killed() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &pattern(40 * PAGE));
    let mut child = Waiting::start("close-all-and-wait", &path);
    child.kill();
    until("the keeper's end", || keeper_of(&path).is_none());
    let bytes = std::fs::read(&path).unwrap();
    (0..40).for_each(|page| assert_eq!(bytes[page * PAGE], 200 - page as u8, "page {page}"));
}

#[test]
fn record_locks_of_the_program_outlive_its_maps() {
    if ready() {
        run_child("record-locks", Path::new(""));
    }
}

#[test]
fn threads_with_a_descriptor_table_of_their_own_map_through_the_kernel() {
    if ready() {
        run_child("other-table", Path::new(""));
        run_child("other-table", Path::new("closed"));
    }
}

/// Open descriptors, less the one that this look takes.
fn open_descriptors() -> BTreeSet<RawFd> {
    let listed: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    // SAFETY: reads flags.
    listed.into_iter().filter(|one| unsafe { libc::fcntl(*one, libc::F_GETFD) } >= 0).collect()
}

fn engine_descriptors() -> BTreeSet<RawFd> {
    std::iter::successors(next_engine(0), |last| next_engine(last + 1)).collect()
}

/// As a wrapper of close(2) would have a program do it that closes all it can think of.
fn close_what_is_not_the_engines() {
    for number in 3..5000 {
        if !is_engine(number) {
            // SAFETY: the role has nothing open that it needs.
            unsafe { libc::close(number) };
        }
    }
}

#[test]
fn role() {
    let Some((role, argument)) = role_of_child() else { return };
    match role.as_str() {
        "known" => known(),
        "close-all" => close_all(),
        "record-locks" => record_locks(),
        "other-table" => other_table(argument == Path::new("closed")),
        "close-all-and-wait" => {
            let mut map = map_mut(&Cache::new(64 * PAGE).unwrap(), &open(&argument));
            close_what_is_not_the_engines();
            (0..40).for_each(|page| map[page * PAGE] = 200 - page as u8);
            wait_for_parent();
        }
        other => panic!("no role {other}"),
    }
}

fn known() {
    let folder = folder();
    let before = open_descriptors();
    assert!(engine_descriptors().is_empty());
    let cache = Cache::new(4 << 20).unwrap();
    let file = stamped(&folder.path().join("file"), 2000);
    let mut map = map_mut(&cache, &file);
    map.advise(Advice::Sequential).unwrap();
    assert!((0..2000).all(|page| map[page * PAGE] == stamp(page)[0]));
    map[7] = 8;
    map.flush().unwrap();
    let opened: BTreeSet<RawFd> = open_descriptors().difference(&before).copied().collect();
    let own = engine_descriptors();
    let not_ours = BTreeSet::from([file.as_raw_fd()]);
    assert_eq!(opened.difference(&own).copied().collect::<BTreeSet<_>>(), not_ours);
    // Two userfaultfds, two pairs for the file, its process, its threads, and rings where they are allowed.
    assert!(own.is_subset(&opened) && own.len() >= 8, "{own:?}");
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let least = (limit.rlim_cur / 4 * 3).min(3072) as RawFd;
    assert!(own.first() >= Some(&least), "{own:?}, from {least} on");
    // SAFETY: the child looks and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let none = next_engine(0).is_none() && own.iter().all(|one| !is_engine(*one));
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(!none)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "in a child nothing is the engine's: {status:#x}"
    );
    // What is closed is forgotten; the process's own stay.
    drop(map);
    drop(cache);
    until("the file's descriptors are closed, and its readers' rings", || {
        let left = engine_descriptors();
        left.len() <= own.len() - 4 && left.is_subset(&open_descriptors())
    });
}

fn close_all() {
    let folder = folder();
    let path = folder.path().join("file");
    let bytes = pattern(3000 * PAGE);
    let cache = Cache::new(4 << 20).unwrap();
    let mut map = map_mut(&cache, &create(&path, &bytes));
    assert_eq!(map[0], bytes[0]);
    close_what_is_not_the_engines();
    // Numbers that programs choose are taken by something else.
    for number in (3..1024).filter(|number| !is_engine(*number)) {
        // SAFETY: nothing else is open there.
        assert_eq!(unsafe { libc::dup2(2, number) }, number);
    }
    assert!(map[..] == bytes[..]);
    (0..3000).for_each(|page| map[page * PAGE + 5] = page as u8);
    map.flush().unwrap();
    // SAFETY: as before.
    unsafe { libc::close(3) };
    map.grow(3100 * PAGE).unwrap();
    map[3050 * PAGE] = 77;
    drop(map);
    let after = std::fs::read(&path).unwrap();
    assert_eq!((after.len(), after[3050 * PAGE]), (3100 * PAGE, 77));
    for page in 0..3000 {
        assert_eq!(
            (after[page * PAGE + 5], after[page * PAGE + 6]),
            (page as u8, bytes[page * PAGE + 6]),
            "page {page}"
        );
    }
}

fn set_lock(file: &File, kind: i32) {
    // SAFETY: a zeroed lock is one, of all the file.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as i16;
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock), 0);
    }
}

/// Whether this process has a record lock on the file's first byte: its open file descriptions are told of it as others are.
fn is_locked(file: &File) -> bool {
    // SAFETY: likewise, of a byte.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_len) = (libc::F_WRLCK as i16, 1);
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock), 0);
        lock.l_type != libc::F_UNLCK as i16
    }
}

fn record_locks() {
    let folder = folder();
    let path = folder.path().join("file");
    let file = create(&path, &pattern(64 * PAGE));
    let cache = small();
    // With a tick of the writers', which meets what is put aside as everybody does.
    set_lock(&file, libc::F_WRLCK);
    let before = open_descriptors();
    let mut most = 0;
    for round in 0..20 {
        let mut map = map_mut(&cache, &file);
        assert!(is_locked(&file), "mapped, {round}");
        map[PAGE] = round;
        map.flush().unwrap();
        map.grow((65 + round as usize) * PAGE).unwrap();
        drop(map);
        assert!(is_locked(&file), "unmapped, {round}");
        assert_eq!(common::map(&cache, &file)[PAGE], round);
        assert!(is_locked(&file), "for reading, {round}");
        // SAFETY: the file is this process's own; in memory nothing is opened but what it grows by.
        let by_kernel =
            unsafe { options(&cache).mode(Mode::Direct).fallback(Fallback::Kernel).map_mut(&file) }.unwrap();
        assert!(by_kernel.engine() == Engine::Kernel && is_locked(&file));
        drop(by_kernel);
        // SAFETY: likewise. A request that is refused opens the file as well.
        assert!(unsafe { options(&cache).mode(Mode::Cached).offset(1 << 40).map(&file) }.is_err());
        fastmap::requirements::of_file(&file);
        assert!(is_locked(&file), "by the kernel, {round}");
        if round == 1 {
            most = open_descriptors().len();
        }
        // Another thread of the engine's may be looking at one just then: a few more, not one a round.
        assert!(most == 0 || open_descriptors().len() <= most + 8, "the same ones are used again: {round}");
    }
    set_lock(&file, libc::F_UNLCK);
    let of_file = || {
        let is_same = |number: &RawFd| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|to| to == path);
        open_descriptors().difference(&before).copied().filter(is_same).count()
    };
    assert!(of_file() > 0);
    // Looked at again whenever the engine opens or closes something.
    let other = create(&folder.path().join("other"), &pattern(PAGE));
    until("what was put aside is closed", || {
        drop(common::map(&cache, &other));
        of_file() == 0
    });
    // Its own end of a lock is a program's close(2), of any descriptor.
    set_lock(&file, libc::F_RDLCK);
    drop(common::map(&cache, &file));
    assert!(is_locked(&file));
    drop(file.try_clone().unwrap());
    assert!(!is_locked(&file));
}

fn other_table(closed: bool) {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let [one, _, three] = ["one", "two", "three"].map(|name| create(&path(name), &pattern(64 * PAGE)));
    let cache = small();
    let mut first = map_mut(&cache, &one);
    first[0] = 11;
    let last = common::map(&cache, &three);
    let own = engine_descriptors();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: from here on the thread's own table; the files that it needs are opened anew.
            unsafe {
                match closed {
                    true => assert_eq!(libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_UNSHARE), 0),
                    false => assert_eq!(libc::unshare(libc::CLONE_FILES), 0),
                }
            }
            let [one, two] = ["one", "two"].map(|name| open(&path(name)));
            // SAFETY: files of this test's own, and through the maps of one thread.
            unsafe {
                let refused = refusal(&path("two"), options(&cache).map_mut(&two));
                assert!(refused.contains("descriptor table"), "{refused}");
                let mut by_kernel = options(&cache).fallback(Fallback::Kernel).map_mut(&two).unwrap();
                assert_eq!(by_kernel.engine(), Engine::Kernel);
                by_kernel[PAGE] = 22;
                by_kernel.flush().unwrap();
                by_kernel.grow(80 * PAGE).unwrap();
                // Both kinds side by side would not agree.
                refusal(&path("one"), options(&cache).fallback(Fallback::Kernel).map_mut(&one));
                refusal(&path("one"), options(&cache).fallback(Fallback::Kernel).map(&one));
            }
            if !closed {
                // What was mapped before works on: this table has it all.
                assert_eq!(last[5 * PAGE], pattern(64 * PAGE)[5 * PAGE]);
            }
            drop(last);
        });
    });
    // By a thread that has them the descriptors of what was dropped there are closed.
    until("the last map's descriptors are closed", || {
        drop(common::map(&cache, &open(&path("two"))));
        let is_third =
            |number: &RawFd| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|to| to == path("three"));
        !own.iter().any(is_third)
    });
    first[PAGE] = 12;
    drop(first);
    let bytes = |name| std::fs::read(path(name)).unwrap();
    let expected = |changes: &[(usize, u8)]| {
        let mut expected = pattern(64 * PAGE);
        changes.iter().for_each(|(at, byte)| expected[*at] = *byte);
        expected
    };
    assert!(bytes("one") == expected(&[(0, 11), (PAGE, 12)]));
    assert!(bytes("two")[..64 * PAGE] == expected(&[(PAGE, 22)]));
    assert!(bytes("three") == expected(&[]));
}
