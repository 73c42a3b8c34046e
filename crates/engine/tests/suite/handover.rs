//! Maps that become the kernel's while threads load and store: nothing is lost, and nobody notices.

use crate::common::{PAGE, Random, Stop, create, folder, open, quick_or_full, ready, seed, until};
use fastmap::by_address::{self, Request};
use fastmap::{Cache, Fallback, coherence};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PAGES: usize = 1024;
const LEN: usize = PAGES * PAGE;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn request(prot: i32) -> Request {
    Request {
        addr: 0,
        len: LEN,
        prot,
        flags: libc::MAP_SHARED,
        offset: 0,
        one_writer: true,
        own: true,
        fallback: Fallback::Refuse,
        async_stores: false,
        layers: true,
    }
}

fn cached(file: &File, cache: &Cache, prot: i32) -> usize {
    // SAFETY: nobody else changes the file.
    unsafe { by_address::map(file.as_fd(), cache, &request(prot)).unwrap().expect("through the cache") as usize }
}

/// Has the file mapped at a second place, which the cache cannot; as the program's mmap(2) would do.
fn second_place(file: &File, cache: &Cache) -> usize {
    // SAFETY: a place of our own, which is replaced.
    unsafe {
        let at = libc::mmap(ptr::null_mut(), LEN, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let wanted = Request { addr: at as usize, flags, ..request(BOTH) };
        assert!(by_address::map(file.as_fd(), cache, &wanted).unwrap().is_none(), "it is for the kernel to map");
        assert_eq!(libc::mmap(at, LEN, BOTH, flags, file.as_raw_fd(), 0), at);
        by_address::note_kernel(&by_address::own(), file.as_fd(), at as usize, LEN, None);
        at as usize
    }
}

/// What a thread counts in a page: a word of its own.
fn word(at: usize, page: usize, thread: usize) -> *mut u64 {
    (at + page * PAGE + thread * 8) as *mut u64
}

#[test]
fn stores_go_on_while_maps_become_the_kernels() {
    if !ready() {
        return;
    }
    const THREADS: usize = 4;
    let seed = seed(11);
    for round in 0..quick_or_full(2, 6) {
        let folder = folder();
        let path = folder.path().join("data");
        let file = create(&path, &vec![0; LEN]);
        let cache = Cache::builder().capacity(64 * PAGE).build().unwrap();
        let at = cached(&file, &cache, BOTH);
        let (stop, steps) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (counts, other) = std::thread::scope(|scope| {
            let (stop, steps, file) = (&stop, &steps, &file);
            let _stop = Stop(stop);
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn(move || {
                        let mut random = Random::new(seed + (round * THREADS + thread) as u64);
                        let mut counts = vec![0u64; PAGES];
                        // The last one writes past the mapping, the others store.
                        while !stop.load(Ordering::Relaxed) {
                            steps.fetch_add(1, Ordering::Relaxed);
                            let page = random.below(PAGES);
                            let word = word(at, page, thread);
                            // SAFETY: in the map, and this thread's.
                            assert_eq!(unsafe { word.read_volatile() }, counts[page], "page {page}");
                            counts[page] += 1;
                            if thread + 1 < THREADS {
                                // SAFETY: as above.
                                unsafe { word.write_volatile(counts[page]) };
                                continue;
                            }
                            let place = (word as usize - at) as u64;
                            let mapped = coherence::file(file.as_raw_fd());
                            let writing = mapped.as_ref().map(|mapped| mapped.writing(place..place + 8).unwrap());
                            file.write_all_at(&counts[page].to_ne_bytes(), place).unwrap();
                            // SAFETY: no references into the map.
                            writing.into_iter().for_each(|writing| unsafe { writing.done() });
                        }
                        counts
                    })
                })
                .collect();
            let more = |least: usize| {
                let before = steps.load(Ordering::Relaxed);
                until("the threads get on", || steps.load(Ordering::Relaxed) >= before + least);
            };
            more(2000 + 1000 * round);
            let other = second_place(file, &cache);
            assert!(!by_address::holds(at, LEN), "the kernel's");
            more(5000);
            stop.store(true, Ordering::Relaxed);
            (threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>(), other)
        });
        assert!(coherence::file(file.as_raw_fd()).is_none());
        assert_eq!(cache.stats().resident_pages, 0, "every free frame is back");
        let in_file = std::fs::read(&path).unwrap();
        for (thread, counts) in counts.iter().enumerate() {
            for (page, count) in counts.iter().enumerate() {
                // SAFETY: both are mapped.
                let found = unsafe { [*word(at, page, thread), *word(other, page, thread)] };
                assert_eq!(found, [*count; 2], "page {page}, thread {thread}");
                let place = page * PAGE + thread * 8;
                assert_eq!(in_file[place..place + 8], count.to_ne_bytes(), "page {page}, thread {thread}, in the file");
            }
        }
        assert!(counts.iter().flatten().sum::<u64>() > 1000, "the threads got on");
        // SAFETY: nobody uses them any more.
        unsafe {
            assert_eq!((by_address::unmap(at, LEN), by_address::unmap(other, LEN)), (Ok(()), Ok(())));
        }
        // With the last of them gone the cache may have it again.
        let again = cached(&file, &cache, BOTH);
        // SAFETY: mapped.
        unsafe {
            assert_eq!(*word(again, 5, 1), counts[1][5]);
            by_address::unmap(again, LEN).unwrap();
        }
    }
}

/// Mappings of this process, and MiB of its addresses.
fn mappings() -> [usize; 2] {
    let size = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = size.split(' ').next().unwrap().parse().unwrap();
    [std::fs::read_to_string("/proc/self/maps").unwrap().lines().count(), (pages * PAGE) >> 20]
}

/// Threads are on the map all the while: some have trapped, or wait for a page, when it becomes the kernel's.
#[test]
fn a_map_that_becomes_the_kernels_leaves_nothing_behind() {
    alone!();
    const THREADS: usize = 4;
    let folder = folder();
    let file = create(&folder.path().join("data"), &vec![0; LEN]);
    let cache = Cache::builder().capacity(64 * PAGE).build().unwrap();
    // Where the threads are to be; zero: nowhere.
    let (at, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let on = [const { AtomicUsize::new(0) }; THREADS];
    let converted = |rounds: usize| {
        for _ in 0..rounds {
            let map = cached(&file, &cache, BOTH);
            at.store(map, Ordering::SeqCst);
            until("the threads are there", || on.iter().all(|on| on.load(Ordering::SeqCst) == map));
            let other = second_place(&file, &cache);
            at.store(0, Ordering::SeqCst);
            until("the threads have left", || on.iter().all(|on| on.load(Ordering::SeqCst) == 0));
            // SAFETY: nobody uses them any more.
            unsafe {
                assert_eq!((by_address::unmap(map, LEN), by_address::unmap(other, LEN)), (Ok(()), Ok(())));
            }
        }
        mappings()
    };
    // A thread of ours that is started meanwhile has stacks and an arena, once. What a conversion leaves is more in every series.
    let series = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for (thread, on) in on.iter().enumerate() {
            let (at, stop) = (&at, &stop);
            scope.spawn(move || {
                let mut random = Random::new(seed(12) + thread as u64);
                while !stop.load(Ordering::SeqCst) {
                    let map = at.load(Ordering::SeqCst);
                    on.store(map, Ordering::SeqCst);
                    if map == 0 {
                        std::thread::yield_now();
                        continue;
                    }
                    let word = word(map, random.below(PAGES), thread);
                    // SAFETY: mapped until this thread has left, and its own.
                    unsafe { word.write_volatile(word.read_volatile() + 1) };
                }
                on.store(0, Ordering::SeqCst);
            });
        }
        let mut series = vec![converted(quick_or_full(10, 20))];
        let is_more = |series: &[[usize; 2]]| match series {
            [.., before, after] => after[0] > before[0] + 4 || after[1] > before[1] + 8,
            _ => true,
        };
        while is_more(&series) && series.len() < 5 {
            series.push(converted(quick_or_full(30, 300)));
        }
        is_more(&series).then_some(series)
    });
    assert_eq!(series, None, "mappings and MiB after each series of conversions");
}

#[test]
fn each_part_keeps_its_protection_and_gaps_stay_gaps() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = create(&folder.path().join("data"), &vec![1; LEN]);
    let cache = Cache::new(64 * PAGE).unwrap();
    let at = cached(&file, &cache, BOTH);
    // SAFETY: our own map.
    unsafe {
        by_address::protect(at + 100 * PAGE, 100 * PAGE, libc::PROT_READ).unwrap();
        by_address::unmap(at + 300 * PAGE, 100 * PAGE).unwrap();
        (at as *mut u8).write(7);
        by_address::lock(at, 4 * PAGE, false).unwrap();
    }
    let other = second_place(&file, &cache);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found: Vec<_> = maps
        .lines()
        .filter_map(|line| {
            let (start, rest) = line.split_once('-')?;
            let (end, rest) = rest.split_once(' ')?;
            let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
            let inside = at <= start && end <= at + LEN;
            inside.then(|| ((start - at) / PAGE, (end - at) / PAGE, rest[..4].to_owned()))
        })
        .collect();
    let part = |start, end, prot: &str| (start, end, prot.to_owned());
    // What is locked the kernel has apart.
    let expected = [
        part(0, 4, "rw-s"),
        part(4, 100, "rw-s"),
        part(100, 200, "r--s"),
        part(200, 300, "rw-s"),
        part(400, PAGES, "rw-s"),
    ];
    assert_eq!(found, expected);
    // SAFETY: both are mapped.
    unsafe {
        assert_eq!(*(other as *const u8), 7);
        assert_eq!((by_address::unmap(at, LEN), by_address::unmap(other, LEN)), (Ok(()), Ok(())));
    }
}

/// Behind the end of the file the kernel's SIGBUS is the program's to deal with, not the engine's to repeat.
#[test]
fn past_the_end_the_kernel_has_its_say() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("data");
    let file = create(&path, &vec![1; LEN]);
    let cache = Cache::builder().capacity(64 * PAGE).keeper(false).build().unwrap();
    let at = cached(&file, &cache, BOTH);
    let other = second_place(&file, &cache);
    open(&path).set_len(PAGE as u64).unwrap();
    // SAFETY: the child touches memory and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(20);
            let past = ((at + 10 * PAGE) as *const u8).read_volatile();
            libc::_exit(past.into());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "status {status:x}");
        assert_eq!((by_address::unmap(at, LEN), by_address::unmap(other, LEN)), (Ok(()), Ok(())));
    }
}

/// A map that is only read: what was written to its file otherwise is on stable storage after msync(2) all the same.
#[test]
fn a_map_that_is_only_read_is_synced() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    let (file, cache) = (create(&path, &vec![1; LEN]), Cache::new(LEN / 4).unwrap());
    let at = cached(&file, &cache, libc::PROT_READ);
    file.write_all_at(&[7], 5 * PAGE as u64).unwrap();
    assert_eq!(by_address::sync(at, LEN, libc::MS_SYNC), Ok(()));
    assert_eq!(cache.stats().syncs, 1);
    // SAFETY: mapped above.
    unsafe { by_address::unmap(at, LEN).unwrap() };
}
