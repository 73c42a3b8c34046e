//! Files far larger than their cache, of which little is touched: what the engine keeps of them is little, too.

use crate::common::*;
use fastmap::Cache;
use std::path::Path;

/// Bytes between pages that are touched: no two have a page table in common.
const STRIDE: usize = 2 << 20;

/// A number of /proc/self/status, KiB.
fn status(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', '\t', ' ', 'k', 'B']).parse().unwrap()
}

fn sparse(folder: &Path, len: u64) -> std::fs::File {
    let file = create(&folder.join("sparse"), &[]);
    file.set_len(len).unwrap();
    file
}

#[test]
fn page_words_and_page_tables_of_a_sparse_file_go_back() {
    if ready() {
        let folder = folder();
        run_child("sparse", folder.path());
    }
}

/// In a process of its own, since others' memory counts.
#[test]
fn role() {
    let Some((_, folder)) = role_of_child() else { return };
    const LEN: usize = 64 << 30;
    let cache = Cache::new(1 << 20).unwrap();
    let map = map(&cache, &sparse(&folder, LEN as u64));
    let kept = || ["VmPTE", "RssAnon"].map(status);
    assert_eq!((0..64).map(|step| usize::from(map[step * STRIDE])).sum::<usize>(), 0);
    let before = kept();
    assert_eq!((0..LEN).step_by(STRIDE).map(|at| usize::from(map[at])).sum::<usize>(), 0);
    let [tables, words] =
        kept().into_iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect::<Vec<_>>()[..]
    else {
        unreachable!()
    };
    // Of 64 MiB of page words, and 128 MiB of page tables; bitmaps stay.
    assert!(words < 24 << 10, "{words} KiB of words");
    match fastmap_kernel() {
        recent if recent >= (6, 14) => assert!(tables < 16 << 10, "{tables} KiB of page tables"),
        old => println!("Linux {old:?} frees no page tables by advice"),
    }
    assert!((200..=256).contains(&cache.stats().resident_pages));
}

fn fastmap_kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap(), parts.next().unwrap_or(0))
}

/// While groups come and go, with stores: each thread finds what it stored.
#[test]
fn what_goes_back_loses_nothing() {
    if !ready() {
        return;
    }
    const PAGES: usize = 200;
    const THREADS: usize = 4;
    let folder = folder();
    let file = sparse(folder.path(), 16 << 30);
    let cache = Cache::new(64 * PAGE).unwrap();
    let mut map = map_mut(&cache, &file);
    let base = map.as_mut_ptr() as usize;
    let rounds = crate::effort::quick_or_full(2000, 20_000);
    // Threads' pages lie in the same groups.
    let place = |thread: usize, page: usize| page * 8 * STRIDE + thread * 5 * PAGE;
    let stored: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let work = |thread: usize| {
            move || {
                let mut stored = vec![0u64; PAGES];
                let mut random = thread as u64 + 1;
                for round in 1..=rounds {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let page = (random >> 33) as usize % PAGES;
                    // SAFETY: bytes of the map, which only this thread touches.
                    unsafe {
                        let at = (base + place(thread, page)) as *mut u64;
                        assert_eq!(at.read_volatile(), stored[page], "thread {thread}, page {page}");
                        if random >> 60 < 8 {
                            at.write_volatile(round);
                            stored[page] = round;
                        }
                    }
                }
                stored
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    map.flush().unwrap();
    for (thread, stored) in stored.iter().enumerate() {
        for (page, value) in stored.iter().enumerate() {
            let mut bytes = [0; 8];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, place(thread, page) as u64).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), *value);
        }
    }
    assert_eq!(cache.stats().writeback_errors, 0);
}
