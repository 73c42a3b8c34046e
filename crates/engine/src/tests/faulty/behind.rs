//! Stores to absent pages that do not wait, on a disk that cannot be read, or is slow to.

use super::{Bench, PAGES, base, stamp};
use crate::coherence;
use crate::fault::serve;
use crate::region::install::Outcome;
use crate::region::registry;
use crate::store::faulty::Plan;
use crate::sys::PAGE;
use crate::sys::signal::Blocked;
use crate::writeback::sweep::{self, Stripe};
use crate::{Cache, Error, MapMut, MapOptions};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The page that cannot be read.
const BAD: usize = 12;
const WORDS: usize = PAGE / 8;
const LINE_WORDS: usize = 8;
/// What is stored; no word of the initial line.
const STORED: u64 = 0x5555_0000_5555_0001;
const INITIAL: [u8; 64] = [0xEE; 64];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Initial,
    Kept,
}

const BOTH: [Way; 2] = [Way::Initial, Way::Kept];

impl Way {
    fn map(self, bench: &Bench, cache: &Cache) -> MapMut {
        match self {
            Way::Initial => bench.map_by(cache, MapOptions::new().async_read(INITIAL)),
            Way::Kept => bench.map_by(cache, MapOptions::new().async_stores(true)),
        }
    }

    /// Words that a program stores at a time.
    fn words(self) -> usize {
        if self == Way::Initial { LINE_WORDS } else { 1 }
    }

    /// Stores to the beginning of a page, at a number of lines from there.
    fn store(self, map: &mut MapMut, page: usize, line: usize) {
        let base = base(map);
        let first = page * WORDS + line * LINE_WORDS;
        (first..first + self.words()).for_each(|word| base.word(word).store(STORED, Ordering::Relaxed));
    }

    /// The words of a page to which that was done for some lines.
    fn expected(self, page: usize, lines: &[usize]) -> Vec<u64> {
        let is_stored = |word: usize| lines.contains(&(word / LINE_WORDS)) && word % LINE_WORDS < self.words();
        let word = |word| if is_stored(word) { STORED } else { stamp(page * WORDS + word, 0) };
        (0..WORDS).map(word).collect()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn in_file(bench: &Bench, page: usize) -> Vec<u64> {
    bench.disk.contents()[page * WORDS..(page + 1) * WORDS].to_vec()
}

fn unreadable() -> Plan {
    Plan { unreadable: Some(BAD), ..Plan::default() }
}

/// A map with two stores to the page that cannot be read, which was found out.
fn map_with_stores(way: Way, bench: &Bench, cache: &Cache) -> MapMut {
    let mut map = way.map(bench, cache);
    bench.disk.set(unreadable());
    way.store(&mut map, BAD, 0);
    way.store(&mut map, BAD, 3);
    assert_eq!(cache.stats().async_loads, 1, "{way:?}: it has not waited");
    assert!(map.synchronise(BAD * PAGE, PAGE).is_err());
    map
}

#[test]
fn flushes_and_loads_of_a_page_that_cannot_be_read_fail_until_it_can() {
    for way in BOTH {
        let Some(bench) = Bench::new(1) else { return };
        let cache = Cache::new(64 * PAGE).unwrap();
        let mut map = map_with_stores(way, &bench, &cache);
        for round in 0..3 {
            let named = bench.check_error(&map.flush().unwrap_err(), &[libc::EIO], &(0..PAGES));
            assert_eq!(named, BAD..BAD + 1, "{way:?}");
            let named =
                bench.check_error(&map.synchronise(0, PAGES * PAGE / 2).unwrap_err(), &[libc::EIO], &(0..PAGES));
            assert_eq!(named, BAD..BAD + 1, "{way:?}");
            let Err(Error::Load { offset, source, .. }) = map.pin(BAD * PAGE, 8).map(drop) else { panic!("pinned") };
            assert_eq!((offset, source.raw_os_error()), ((BAD * PAGE) as u64, Some(libc::EIO)));
            let mut copy = [0; 8];
            assert!(matches!(map.read_at(&mut copy, BAD * PAGE), Err(Error::Load { .. })));
            // Another read has been tried by then, now and again.
            std::thread::sleep(Duration::from_millis(round * 60));
            // Stores go on where they can, and others are not held up.
            way.store(&mut map, BAD, 5 + round as usize);
            way.store(&mut map, BAD + 1, 0);
            map.flush_range((BAD + 1) * PAGE, PAGE).unwrap();
            // Nor by a flush that fails over another page.
            way.store(&mut map, BAD + 2, round as usize);
            map.flush().unwrap_err();
            let lines: Vec<_> = (0..=round as usize).collect();
            assert_eq!(in_file(&bench, BAD + 2), way.expected(BAD + 2, &lines), "{way:?}");
        }
        assert_eq!(in_file(&bench, BAD), way.expected(BAD, &[]), "{way:?}: nothing is written before it is read");
        bench.disk.set(Plan::default());
        until("the page is read", || map.synchronise(BAD * PAGE, PAGE).is_ok());
        let expected = way.expected(BAD, &[0, 3, 5, 6, 7]);
        let base = base(&mut map);
        let loaded = (0..WORDS).map(|word| base.word(BAD * WORDS + word).load(Ordering::Relaxed));
        assert_eq!(loaded.collect::<Vec<_>>(), expected, "{way:?}");
        map.flush().unwrap();
        assert_eq!(in_file(&bench, BAD), expected, "{way:?}");
        assert_eq!(in_file(&bench, BAD + 1), way.expected(BAD + 1, &[0]), "{way:?}");
        drop(map);
        let stats = cache.stats();
        assert_eq!((stats.resident_pages, stats.dirty_pages, stats.partial_lines), (0, 0, 0), "{way:?}");
    }
}

/// A trap finds what a load or store that waits has to: an error, and no sleep for ever.
#[test]
fn who_waits_for_a_read_that_fails_is_woken() {
    for way in BOTH {
        let Some(bench) = Bench::new(1) else { return };
        let cache = Cache::new(64 * PAGE).unwrap();
        let mut map = way.map(&bench, &cache);
        bench.disk.set(Plan { held_from: Some(BAD), ..Plan::default() });
        way.store(&mut map, BAD, 0);
        let at = map.as_ptr() as usize + BAD * PAGE;
        std::thread::scope(|scope| {
            let waiters: Vec<_> = [false, true]
                .map(|is_store| {
                    scope.spawn(move || {
                        let _blocked = Blocked::all();
                        // SAFETY: it is mapped.
                        let region = unsafe { registry::find(at) }.unwrap();
                        serve::serve(region.page(region.address().page_at(at)), is_store)
                    })
                })
                .into_iter()
                .collect();
            let flusher =
                scope.spawn(|| map.flush().map_err(|error| bench.check_error(&error, &[libc::EIO], &(0..PAGES))));
            std::thread::sleep(Duration::from_millis(20));
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()) && !flusher.is_finished(), "{way:?}: they wait");
            bench.disk.set(unreadable());
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), Outcome::Failed("reading it", libc::EIO), "{way:?}");
            }
            assert_eq!(flusher.join().unwrap(), Err(BAD..BAD + 1), "{way:?}");
        });
        bench.disk.set(Plan::default());
        drop(map);
        until("the last map's page is saved", || in_file(&bench, BAD) == way.expected(BAD, &[0]));
    }
}

#[test]
fn a_map_dropped_while_reads_fail_is_saved_later() {
    for way in BOTH {
        let Some(bench) = Bench::new(1) else { return };
        let cache = Cache::new(64 * PAGE).unwrap();
        let map = map_with_stores(way, &bench, &cache);
        let unsaved = map.unmap().unwrap_err();
        assert!(matches!(unsaved.error, Error::WriteBack { .. }), "{}", unsaved.error);
        drop(unsaved);
        std::thread::sleep(Duration::from_millis(50));
        assert!(cache.stats().resident_pages > 0, "{way:?}: it is kept");
        // Whoever maps the file meanwhile has the stores, too.
        let again = way.map(&bench, &cache);
        assert!(again.flush().is_err(), "{way:?}");
        drop(again);
        bench.disk.set(Plan::default());
        until("the page is saved", || in_file(&bench, BAD) == way.expected(BAD, &[0, 3]));
        until("the region goes", || cache.stats().resident_pages == 0);
    }
}

/// System calls on the file fail, and lose nothing, or go on where the page is cut off.
#[test]
fn file_operations_on_a_page_that_cannot_be_read_lose_nothing() {
    for way in BOTH {
        let Some(bench) = Bench::new(1) else { return };
        let cache = Cache::new(64 * PAGE).unwrap();
        let mut map = map_with_stores(way, &bench, &cache);
        let mapped = coherence::file(bench.file.as_raw_fd()).expect("it is mapped");
        let at = |page: usize| (page * PAGE) as u64;
        assert_eq!(mapped.before_read(at(BAD)..at(BAD) + 8), Err(libc::EIO), "{way:?}");
        assert_eq!(mapped.writing(at(BAD - 2)..at(BAD + 2)).map(drop), Err(libc::EIO), "{way:?}");
        assert_eq!(mapped.resizing(at(BAD) + 5).map(drop), Err(libc::EIO), "{way:?}");
        assert_eq!(mapped.resizing(at(BAD - 1)).map(drop), Err(libc::EIO), "{way:?}");
        drop(mapped.writing(at(BAD + 1)..at(BAD + 2)).unwrap());
        // By somebody who asks nobody: the page is past the end then, and its read has an end, too.
        way.store(&mut map, BAD - 2, 0);
        bench.file.set_len(at(BAD)).unwrap();
        bench.disk.set(Plan::default());
        until("the cut is met", || map.flush().is_ok());
        bench.file.set_len(at(PAGES)).unwrap();
        map.flush().unwrap();
        assert!(map[BAD * PAGE..(BAD + 1) * PAGE].iter().all(|byte| *byte == 0), "{way:?}: what was cut off is zeros");
        assert_eq!(in_file(&bench, BAD - 2), way.expected(BAD - 2, &[0]), "{way:?}");
        drop(mapped);
        drop(map);
        assert_eq!(cache.stats().resident_pages, 0, "{way:?}");
    }
}

/// Pages whose reads take their time fill half of memory at most: loads of others find room.
#[test]
fn loads_find_room_beside_reads_that_take_long() {
    for way in BOTH {
        let Some(bench) = Bench::new(1) else { return };
        const FIRST: usize = 100;
        const CAPACITY: usize = 16;
        let cache = Cache::new(CAPACITY * PAGE).unwrap();
        let mut map = way.map(&bench, &cache);
        let at = base(&mut map);
        bench.disk.set(Plan { held_from: Some(FIRST), ..Plan::default() });
        std::thread::scope(|scope| {
            let stores = scope.spawn(|| {
                // No neighbours: a walk would be read ahead of.
                for page in (FIRST..FIRST + 3 * CAPACITY).step_by(3) {
                    way.store(&mut map, page, 1);
                }
            });
            until("half of memory waits", || cache.stats().async_loads == CAPACITY as u64 / 2);
            for page in (0..FIRST - 20).rev().step_by(7) {
                assert_eq!(at.word(page * WORDS).load(Ordering::Relaxed), stamp(page * WORDS, 0));
            }
            assert_eq!(cache.stats().async_loads, CAPACITY as u64 / 2, "{way:?}: the next store waits");
            assert!(!stores.is_finished());
            bench.disk.set(Plan::default());
            stores.join().unwrap();
        });
        map.flush().unwrap();
        for page in (FIRST..FIRST + 3 * CAPACITY).step_by(3) {
            assert_eq!(in_file(&bench, page), way.expected(page, &[1]), "{way:?}, page {page}");
        }
    }
}

/// The writer of two pages protects what lies between them, an Unread page, too: stores to that go on all the same.
#[test]
fn stores_go_on_when_neighbours_are_written() {
    let Some(bench) = Bench::new(1) else { return };
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = map_with_stores(Way::Initial, &bench, &cache);
    // SAFETY: it is mapped.
    let region = unsafe { registry::find(map.as_ptr() as usize) }.unwrap();
    for line in 5..15 {
        for page in [BAD - 1, BAD + 1] {
            let at = page * WORDS + line * LINE_WORDS;
            // Loaded first.
            let word = base(&mut map).word(at);
            assert_eq!(word.load(Ordering::Relaxed), stamp(at, 0));
            word.store(STORED, Ordering::Relaxed);
        }
        {
            let _blocked = Blocked::all();
            sweep::sweep(region, Stripe::ALL, usize::MAX, || false);
        }
        assert_eq!(cache.stats().dirty_pages, 0);
        Way::Initial.store(&mut map, BAD, line);
    }
    bench.disk.set(Plan::default());
    until("the page is read", || map.flush().is_ok());
    let lines: Vec<_> = [0, 3].into_iter().chain(5..15).collect();
    assert_eq!(in_file(&bench, BAD), Way::Initial.expected(BAD, &lines));
}

/// A program that loads a page that is Kept gets SIGBUS.
#[test]
fn loads_of_a_page_that_cannot_be_read_raise_sigbus() {
    if Bench::new(1).is_none() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["tests::faulty::behind::load_what_cannot_be_read", "--exact", "--ignored", "--nocapture"]);
    let output = child.env("FASTMAP_TEST_ROLE", "load").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{said}");
    assert!(said.contains("reading it failed with error 5"), "{said}");
}

/// Not a test: what a child does.
#[test]
#[ignore = "a child's role"]
fn load_what_cannot_be_read() {
    if std::env::var("FASTMAP_TEST_ROLE").is_err() {
        return;
    }
    let bench = Bench::new(1).unwrap();
    let cache = Cache::builder().capacity(64 * PAGE).keeper(false).build().unwrap();
    let mut map = map_with_stores(Way::Kept, &bench, &cache);
    base(&mut map).word(BAD * WORDS + 9).load(Ordering::Relaxed);
}
