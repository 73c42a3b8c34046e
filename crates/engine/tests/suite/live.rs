//! What a program's counters look like from inside and from another process, and who has none.

use crate::common::*;
use fastmap::live::{MapSnapshot, Program, Snapshot, programs, snapshot_of_self};
use fastmap::{Advice, Cache};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn of<'a>(snapshot: &'a Snapshot, path: &Path) -> &'a MapSnapshot {
    let path = path.canonicalize().unwrap();
    snapshot.maps.iter().find(|map| map.path == path).unwrap_or_else(|| panic!("no {path:?} in {snapshot:?}"))
}

#[test]
fn files_are_told_apart_and_add_up_to_their_cache() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = Cache::new(64 * PAGE).unwrap();
    let paths = [("read", 200), ("written", 100)].map(|(name, pages)| {
        let path = folder.path().join(name);
        create(&path, &pattern(pages * PAGE));
        path
    });
    let reading = map(&cache, &open(&paths[0]));
    reading.advise(Advice::Random).unwrap();
    let mut writing = map_mut(&cache, &open(&paths[1]));
    assert!(reading[..] == pattern(200 * PAGE));
    writing.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    writing.flush().unwrap();
    settle(&cache);
    let (now, stats) = (snapshot_of_self(), cache.stats());
    let (read, written) = (of(&now, &paths[0]), of(&now, &paths[1]));
    assert_eq!((read.mapped_bytes, read.writable), (200 * PAGE as u64, false));
    assert_eq!((written.mapped_bytes, written.writable), (100 * PAGE as u64, true));
    assert_eq!((read.stats.misses, read.stats.writeback_pages), (200, 0));
    let both = |of: fn(&fastmap::live::MapStats) -> u64| of(&read.stats) + of(&written.stats);
    assert_eq!(now.caches[read.cache].stats, stats);
    assert_eq!(now.caches[read.cache].capacity_bytes, 64 * PAGE as u64);
    assert_eq!(both(|of| of.misses), stats.misses);
    assert_eq!(both(|of| of.ghost_hits), stats.ghost_hits);
    assert_eq!(both(|of| of.evicted_pages), stats.evicted_pages);
    assert_eq!(both(|of| of.writeback_pages), stats.writeback_pages);
    assert_eq!(both(|of| of.ahead_used), stats.ahead_used);
    assert!(stats.writeback_pages >= 100 && stats.evicted_pages > 100);
    // What is staged is in memory and no file's yet.
    let resident = both(|of| of.resident_pages);
    assert!((1..=stats.resident_pages).contains(&resident), "{resident} of {}", stats.resident_pages);

    // What they did stays when they go, and goes on when they are back.
    drop((reading, writing));
    let after = snapshot_of_self();
    assert_eq!(of(&after, &paths[0]).mapped_bytes, 0);
    assert_eq!(of(&after, &paths[0]).stats.resident_pages, 0);
    assert_eq!(of(&after, &paths[0]).stats.misses, 200);
    let again = map(&cache, &open(&paths[0]));
    assert_eq!(again[0], pattern(1)[0]);
    let back = snapshot_of_self();
    assert_eq!((of(&back, &paths[0]).stats.misses, of(&back, &paths[0]).stats.resident_pages), (201, 1));
    drop((again, cache));
    assert!(snapshot_of_self().maps.iter().all(|map| !paths.contains(&map.path)), "a cache that is gone");
}

#[test]
fn rows_are_counted_with_their_file() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = Cache::new(4 << 20).unwrap();
    let paths = ["rows", "single"].map(|name| {
        drop(stamped(&folder.path().join(name), 8192));
        folder.path().join(name)
    });
    let maps = [0, 1].map(|at| map(&cache, &open(&paths[at])));
    let mut random = Random::new(seed(1));
    for _ in 0..2000 {
        let first = random.below(1024) * 8;
        assert!((first..first + 4).all(|page| maps[0][page * PAGE..][..PAGE] == *stamp(page)));
    }
    assert!(maps[1][..PAGE] == *stamp(0));
    let (stats, now) = (settle(&cache), snapshot_of_self());
    let [rows, single] = paths.each_ref().map(|path| of(&now, path).stats);
    assert_eq!((rows.read_size, single.read_size, stats.read_size), (4 * PAGE as u64, PAGE as u64, 4 * PAGE as u64));
    assert_eq!((rows.run_pages, rows.run_used), (stats.run_pages, stats.run_used));
    assert!(rows.run_used > 1000 && rows.run_used <= rows.run_pages && single.run_pages == 0, "{rows:?}");
    drop(maps);
    let ended = of(&snapshot_of_self(), &paths[0]).stats;
    assert_eq!((ended.read_size, ended.run_pages), (0, rows.run_pages));
}

#[test]
fn pages_read_ahead_are_counted_with_their_file() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("walk");
    let cache = Cache::new(64 << 20).unwrap();
    let map = map(&cache, &stamped(&path, 4096));
    at_leisure(&cache, 0..4096, |page| assert!(map[page * PAGE..][..PAGE] == *stamp(page)));
    let stats = settle(&cache);
    let now = snapshot_of_self();
    let walk = of(&now, &path).stats;
    assert!(walk.ahead_used > 2000, "{walk:?}");
    assert_eq!((walk.ahead_used, walk.ahead_wasted, walk.misses), (stats.ahead_used, stats.ahead_wasted, stats.misses));
    assert_eq!(walk.resident_pages, 4096);
}

#[test]
fn another_process_sees_the_same() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &pattern(40 * PAGE));
    let mut child = Waiting::start("map", &path);
    let program = Program::open(child.pid()).unwrap().expect("a page of counters");
    assert!(programs().unwrap().iter().any(|one| one.pid() == child.pid()), "it is among all of them");
    let first = program.look(PATIENCE).expect("an answer");
    assert_eq!(first.pid, child.pid());
    assert_eq!(of(&first, &path).stats.misses, 40);
    assert_eq!(of(&first, &path).mapped_bytes, 40 * PAGE as u64);
    let second = program.look(PATIENCE).expect("an answer");
    assert!(second.taken > first.taken && second.maps == first.maps);
    // The keeper has the same descriptor, and is not the program.
    let keeper = awaited_keeper_of(&path);
    assert!(Program::open(keeper).unwrap().is_none());
    assert!(program.is_alive());
    child.kill();
    assert!(!program.is_alive() && program.look(Duration::from_millis(10)).is_none());
    assert!(Program::open(child.pid()).is_err());
}

#[test]
fn a_program_that_is_stopped_gives_no_answer_until_it_goes_on() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    create(&path, &pattern(40 * PAGE));
    let child = Waiting::start("map", &path);
    let program = Program::open(child.pid()).unwrap().unwrap();
    let signal = |number| {
        // SAFETY: the child is this test's, and not waited for yet.
        assert_eq!(unsafe { libc::kill(child.pid() as i32, number) }, 0);
    };
    signal(libc::SIGSTOP);
    until("its stop", || program.look(Duration::from_millis(20)).is_none());
    assert!(program.is_alive());
    signal(libc::SIGCONT);
    assert!(program.look(PATIENCE).is_some());
    child.finish();
}

#[test]
fn who_maps_nothing_and_who_is_forked_has_none() {
    if ready() {
        let folder = folder();
        let path = folder.path().join("file");
        create(&path, &pattern(40 * PAGE));
        run_child("no-map", &path);
        run_child("fork", &path);
    }
}

/// Not a test: what a child does.
#[test]
fn role() {
    let Some((role, path)) = role_of_child() else { return };
    let own = || Program::open(std::process::id()).unwrap();
    let cache = Cache::new(256 * PAGE).unwrap();
    match role.as_str() {
        "map" => {
            let map = Box::leak(Box::new(map_mut(&cache, &open(&path))));
            map.advise(Advice::Random).unwrap();
            (0..40).for_each(|page| map[page * PAGE] = 9);
            wait_for_parent();
        }
        "no-map" => {
            assert!(own().is_none() && snapshot_of_self().caches.is_empty());
            drop(map(&cache, &open(&path)));
            assert!(own().is_some() && snapshot_of_self().caches.len() == 1);
        }
        "fork" => {
            let map = Box::leak(Box::new(map_mut(&cache, &open(&path))));
            map[0] = 9;
            let before = own().unwrap().look(PATIENCE).unwrap();
            let mut tell = [0; 2];
            // SAFETY: the child looks at what is its own, waits for the pipe's end, and ends.
            unsafe {
                assert_eq!(libc::pipe(tell.as_mut_ptr()), 0);
                let child = libc::fork();
                if child == 0 {
                    libc::close(tell[1]);
                    let nothing = snapshot_of_self().caches.is_empty() && cache.stats().misses == 1;
                    libc::read(tell[0], (&raw mut tell).cast(), 1);
                    libc::_exit(i32::from(!nothing));
                }
                assert!(Program::open(child as u32).unwrap().is_none(), "it has its parent's descriptor");
                libc::close(tell[1]);
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
            }
            let after = own().unwrap().look(PATIENCE).unwrap();
            assert_eq!((after.caches, after.maps), (before.caches, before.maps));
        }
        other => panic!("no role {other}"),
    }
}
