//! Scratch maps: memory that borrows a file's space, from outside. They begin with zeros, lose nothing that is needed, and
//! never save what is not.

use crate::common::{PAGE, create, folder, map_mut, quick_or_full, ready, until};
use fastmap::{Advice, Cache, Engine, Fallback, MapMut, MapOptions};
use std::fs::File;

const PAGES: usize = 2048;

/// A file full of what a scratch map must not show.
fn junk(path: &std::path::Path) -> File {
    create(path, &vec![0xEE; PAGES * PAGE])
}

fn map(file: &File, cache: &Cache) -> MapMut {
    // SAFETY: nobody else changes the file.
    let map = unsafe { MapOptions::new().cache(cache).scratch(true).fallback(Fallback::Refuse).map_mut(file) }.unwrap();
    assert_eq!(map.engine(), Engine::Cached);
    map
}

fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

#[test]
fn nothing_is_written_while_there_is_room() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = junk(&folder.path().join("file"));
    let cache = Cache::builder()
        .capacity(1000 * PAGE)
        .dirty_expire(Some(std::time::Duration::from_millis(50)))
        .build()
        .unwrap();
    let mut scratch = map(&file, &cache);
    assert!(scratch[..100].iter().all(|byte| *byte == 0), "what the file held is seen");
    // From front to back, as files are filled; below the high-water mark.
    scratch[..600 * PAGE].fill(1);
    scratch.flush().unwrap();
    scratch.flush_async().wait().unwrap();
    // That the writers look for what is old shows in a page that is another file's.
    let mut saved = map_mut(&cache, &create(&folder.path().join("saved"), &[0; PAGE]));
    saved[0] = 1;
    until("an old page is written", || cache.stats().writeback_pages > 0);
    drop(saved);
    assert!(scratch[..600 * PAGE].iter().all(|byte| *byte == 1));
    drop(scratch);
    let stats = cache.stats();
    assert_eq!((stats.writeback_pages, stats.resident_pages, stats.dirty_pages), (1, 0, 0), "{stats:?}");
    // Beyond it, pages go to the file; what is mapped next begins with zeros again.
    let mut scratch = map(&file, &cache);
    scratch.fill(2);
    assert!(cache.stats().writeback_pages >= 800);
    assert!(scratch.iter().all(|byte| *byte == 2));
    drop(scratch);
    let scratch = map(&file, &cache);
    assert!(scratch.iter().all(|byte| *byte == 0));
    assert!(cache.stats().resident_pages <= 1000);
    drop(scratch);
    assert_eq!(cache.stats().resident_pages, 0, "free frames are missing");
}

#[test]
fn what_is_discarded_is_not_written() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = junk(&folder.path().join("file"));
    let cache = Cache::new(256 * PAGE).unwrap();
    let mut scratch = map(&file, &cache);
    // Three quarters of the cache are dirty before anything is written: never here.
    for round in 0..40u8 {
        let part = usize::from(round % 16) * 128 * PAGE..(usize::from(round % 16) * 128 + 128) * PAGE;
        scratch[part.clone()].fill(round);
        assert!(scratch[part.clone()].iter().all(|byte| *byte == round));
        scratch.discard(part.start, part.len()).unwrap();
    }
    assert_eq!(cache.stats().writeback_pages, 0);
    // Parts of pages are not whole pages.
    scratch[..3 * PAGE].fill(9);
    scratch.discard(1, 2 * PAGE).unwrap();
    assert!(scratch[..PAGE].iter().chain(&scratch[2 * PAGE..3 * PAGE]).all(|byte| *byte == 9));
    // A page that is pinned for writing stays as it is.
    let pinned = &scratch.pin_mut(5 * PAGE, PAGE).unwrap()[..].as_ptr();
    let pinned = *pinned as *mut u8;
    // SAFETY: in the map.
    unsafe { pinned.write(7) };
    // SAFETY: nobody looks at them but through the pointer.
    unsafe {
        scratch.abandon(4 * PAGE, 3 * PAGE).unwrap();
        assert_eq!(pinned.read(), 7);
    }
    assert!(scratch.discard(0, PAGES * PAGE + 1).is_err());
}

#[test]
fn what_is_discarded_is_zeros_at_once_and_stays_so() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = junk(&folder.path().join("file"));
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut scratch = map(&file, &cache);
    let other = map(&file, &cache);
    let range = 3 * PAGE..9 * PAGE;
    for round in 1..=3u8 {
        // An older version of some pages is in the file, a newer one in memory.
        scratch[..16 * PAGE].fill(round);
        scratch[16 * PAGE..].iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        scratch[range.clone()].iter_mut().step_by(PAGE).for_each(|byte| *byte = 100 + round);
        // Another map's pin keeps a page in memory.
        let pinned = (round == 3).then(|| other.pin(5 * PAGE, 1).unwrap());
        scratch.discard(2 * PAGE + 1, 7 * PAGE).unwrap();
        let text = &scratch[..16 * PAGE];
        let is_right = |text: &[u8]| {
            let rest = [&text[..range.start], &text[range.end..]].map(|part| part.iter().all(|byte| *byte == round));
            text[range.clone()].iter().all(|byte| *byte == 0) && rest == [true; 2]
        };
        assert!(is_right(text), "{round}");
        drop(pinned);
        // What leaves memory and comes back is the same.
        scratch.advise(Advice::DontNeed).unwrap();
        scratch[16 * PAGE..].chunks(PAGE).for_each(|page| assert!(page[0] <= 1));
        assert!(is_right(text), "{round}, read anew");
    }
}

/// What a page holds.
#[derive(Clone, Copy, PartialEq)]
enum Page {
    /// Its first word and its last are this.
    Known(u64),
    /// It was discarded.
    Unknown,
}

#[test]
fn random_work_by_many_threads_against_a_shadow() {
    if !ready() {
        return;
    }
    const THREADS: usize = 4;
    let folder = folder();
    let file = junk(&folder.path().join("file"));
    let seed = std::env::var("FASTMAP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    for (round, capacity) in [64, 300, 1500].into_iter().enumerate() {
        let cache = Cache::new(capacity * PAGE).unwrap();
        let mut scratch = map(&file, &cache);
        let start = scratch.as_mut_ptr() as usize;
        let shared = &scratch;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let cache = &cache;
                scope.spawn(move || {
                    // Every fourth run of 8 pages is this thread's.
                    let mut pages = [Page::Known(0); PAGES];
                    let mut state = seed + (round * THREADS + thread) as u64 * 7919;
                    let own = |pick: usize| (pick % (PAGES / 8 / THREADS) * THREADS + thread) * 8;
                    let words =
                        |page: usize| [start + page * PAGE, start + page * PAGE + PAGE - 8].map(|at| at as *mut u64);
                    for step in 0..quick_or_full(5000, 15_000u64) {
                        let run = own(random(&mut state));
                        let page = run + random(&mut state) % 8;
                        let len = 1 + random(&mut state) % (run + 8 - page);
                        match random(&mut state) % 100 {
                            0..45 => {
                                let value = step << 8 | thread as u64;
                                // SAFETY: words of this thread's pages.
                                words(page).into_iter().for_each(|word| unsafe { word.write_volatile(value) });
                                pages[page] = Page::Known(value);
                            }
                            45..90 => {
                                // SAFETY: as above.
                                let found = words(page).map(|word| unsafe { word.read_volatile() });
                                if let Page::Known(value) = pages[page] {
                                    assert_eq!(found, [value; 2], "seed {seed}, page {page}, step {step}");
                                }
                            }
                            90..95 => {
                                // SAFETY: this thread's pages, reached by pointers only.
                                unsafe { shared.abandon(page * PAGE, len * PAGE) }.unwrap();
                                pages[page..page + len].fill(Page::Unknown);
                            }
                            95..98 => {
                                // SAFETY: this thread's pages; only they change.
                                unsafe { (*(shared as *const MapMut).cast_mut()).clear(page * PAGE, len * PAGE) }
                                    .unwrap();
                                pages[page..page + len].fill(Page::Known(0));
                            }
                            98 => shared.advise_range(Advice::WillNeed, page * PAGE, len * PAGE).unwrap(),
                            _ => shared.advise_range(Advice::DontNeed, page * PAGE, len * PAGE).unwrap(),
                        }
                        if step % 1000 == 0 {
                            assert!(cache.stats().resident_pages as usize <= capacity);
                        }
                    }
                    for run in (0..PAGES / 8 / THREADS).map(own) {
                        for (page, known) in pages.iter().enumerate().skip(run).take(8) {
                            // SAFETY: as above.
                            let found = words(page).map(|word| unsafe { word.read_volatile() });
                            if let Page::Known(value) = *known {
                                assert_eq!(found, [value; 2], "seed {seed}, page {page}, at the end");
                            }
                        }
                    }
                });
            }
        });
        drop(scratch);
        let stats = cache.stats();
        assert_eq!((stats.resident_pages, stats.dirty_pages, stats.pinned_pages), (0, 0, 0), "{stats:?}");
    }
}

#[test]
fn a_snapshot_has_what_the_map_has() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = junk(&folder.path().join("file"));
    let cache = Cache::new(200 * PAGE).unwrap();
    let mut scratch = map(&file, &cache);
    let mut state = 5;
    let mut shadow = vec![0u8; PAGES * PAGE];
    for value in 0..3000 {
        let page = random(&mut state) % PAGES;
        scratch[page * PAGE..(page + 1) * PAGE].fill(value as u8);
        shadow[page * PAGE..(page + 1) * PAGE].fill(value as u8);
        if value % 5 == 0 {
            let page = random(&mut state) % PAGES;
            // What was written to the file before must not come back.
            scratch.clear(page * PAGE, PAGE).unwrap();
            shadow[page * PAGE..(page + 1) * PAGE].fill(0);
        }
    }
    let copy = create(&folder.path().join("copy"), &[]);
    copy.set_len((PAGES * PAGE) as u64).unwrap();
    scratch.snapshot(&copy).unwrap();
    assert!(std::fs::read(folder.path().join("copy")).unwrap() == shadow);
    assert!(scratch[..] == shadow[..]);
}
