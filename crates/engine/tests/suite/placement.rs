//! Maps by who serves them: the kernel, the engine, or both in turn (`FASTMAP_TURNS`); what was stored is there, whoever has it.

use crate::common::{
    DirectReader, PAGE, Random, Stop, create, folder, open, quick_or_full, ready, seed, sparse, until,
};
use fastmap::{Advice, Cache, Engine, MapMut, MapOptions, Placement};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Like `alone`, with files that change hands every three milliseconds.
macro_rules! in_turns {
    () => {
        fn here() {}
        if !$crate::common::is_alone(std::any::type_name_of_val(&here), &[("FASTMAP_TURNS", "3")]) {
            return;
        }
    };
}

const PAGES: usize = 1500;
const LEN: usize = PAGES * PAGE;

/// Each page begins with its number.
fn numbered(path: &Path) -> File {
    let mut bytes = vec![0; LEN];
    bytes.chunks_mut(PAGE).zip(0u64..).for_each(|(page, number)| page[..8].copy_from_slice(&number.to_ne_bytes()));
    create(path, &bytes)
}

fn mapped(file: &File, placement: Placement) -> MapMut {
    // SAFETY: nobody else changes the file.
    unsafe { MapOptions::new().placement(placement).map_mut(file).unwrap() }
}

fn auto(file: &File) -> MapMut {
    mapped(file, Placement::Auto)
}

/// Waits until the engine has a map, or the kernel.
fn has(map: &MapMut, engine: Engine) {
    until("it changes hands", || map.engine() == engine);
}

#[test]
fn each_placement_is_served_as_it_says() {
    if !ready() {
        return;
    }
    let folder = folder();
    let expected =
        [(Placement::Kernel, Engine::Kernel), (Placement::Engine, Engine::Cached), (Placement::Auto, Engine::Kernel)];
    for (number, (placement, engine)) in expected.into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        let file = numbered(&path);
        let mut map = mapped(&file, placement);
        assert_eq!(map.engine(), engine, "{placement:?}");
        // The kernel's mapping says so itself.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(maps.contains(path.to_str().unwrap()), engine == Engine::Kernel, "{placement:?}");
        assert_eq!(map.get_at::<u64>(7 * PAGE).unwrap(), 7);
        map[7 * PAGE] = 8;
        map.flush().unwrap();
        assert_eq!(DirectReader::open(&path).page(7)[0], 8);
        drop(map);
        assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap()));
    }
    let file = numbered(&folder.path().join("named"));
    let cache = Cache::new(1 << 20).unwrap();
    // SAFETY: nobody else changes the file.
    let map = unsafe { MapOptions::new().placement(Placement::Auto).cache(&cache).map(&file).unwrap() };
    assert_eq!((map.engine(), map[5 * PAGE]), (Engine::Cached, 5), "a budget is named");
    assert!(cache.stats().misses > 0);
    drop(map);
    // SAFETY: nobody else changes the file.
    let map = unsafe { MapOptions::new().placement(Placement::Auto).scratch(true).map_mut(&file).unwrap() };
    assert_eq!(map.engine(), Engine::Cached, "only the engine has scratch maps");
}

#[test]
fn maps_of_a_file_are_placed_alike() {
    if !ready() {
        return;
    }
    let folder = folder();
    let all = [Placement::Kernel, Placement::Engine, Placement::Auto];
    for (number, first) in all.into_iter().enumerate() {
        let file = numbered(&folder.path().join(number.to_string()));
        for second in all {
            let (mut one, mut other) = (mapped(&file, first), mapped(&file, second));
            assert_eq!(one.engine(), other.engine(), "{first:?}, then {second:?}");
            one[PAGE + 100] = number as u8 + 1;
            assert_eq!(other[PAGE + 100], number as u8 + 1);
            // The second is the first of the next pair.
            drop(one);
            other[PAGE + 101] = 9;
            let third = mapped(&file, second);
            assert_eq!((third.engine(), third[PAGE + 101]), (other.engine(), 9));
        }
        let map = mapped(&file, Placement::Engine);
        assert_eq!(map.engine(), Engine::Cached, "nothing of it was left");
    }
}

#[test]
fn an_empty_map_grows_as_it_was_placed() {
    if !ready() {
        return;
    }
    let folder = folder();
    let file = sparse(&folder.path().join("data"), 0);
    // In the middle of a page.
    // SAFETY: nobody else changes the file.
    let mut map = unsafe { MapOptions::new().placement(Placement::Auto).map_mut(&file).unwrap() };
    map.grow(10).unwrap();
    map.grow(3 * PAGE + 10).unwrap();
    map[3 * PAGE + 9] = 3;
    assert_eq!((map.engine(), file.metadata().unwrap().len()), (Engine::Kernel, 3 * PAGE as u64 + 10));
    // SAFETY: nobody else changes the file.
    let part = unsafe { MapOptions::new().placement(Placement::Auto).offset(3 * PAGE as u64 + 5).map(&file).unwrap() };
    assert_eq!(part[..], [0, 0, 0, 0, 3]);
}

#[test]
fn loads_stores_and_flushes_while_it_changes_hands() {
    in_turns!();
    const THREADS: usize = 3;
    let folder = folder();
    let path = folder.path().join("data");
    let file = numbered(&path);
    let map = auto(&file);
    let at = map.as_ptr() as usize;
    let word = |page: usize, slot: usize| {
        // SAFETY: inside the map, used by atomic operations only.
        unsafe { AtomicU64::from_ptr((at + page * PAGE + slot * 8) as *mut u64) }
    };
    let seed = seed(17);
    let switches = quick_or_full(20, 120);
    let stop = AtomicBool::new(false);
    let stored = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let (stop, map, path, word) = (&stop, &map, &path, &word);
        let threads: Vec<_> = (1..=THREADS)
            .map(|slot| {
                scope.spawn(move || {
                    let mut random = Random::new(seed + slot as u64);
                    let (mut stored, mut reader) = (vec![0u64; PAGES], DirectReader::open(path));
                    let mut steps = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let page = random.below(PAGES);
                        assert_eq!(word(page, 0).load(Ordering::Relaxed), page as u64);
                        assert_eq!(word(page, slot).load(Ordering::Relaxed), stored[page], "page {page}, slot {slot}");
                        stored[page] += 1;
                        word(page, slot).store(stored[page], Ordering::Relaxed);
                        steps += 1;
                        if steps % 500 == 0 {
                            map.flush_range(page * PAGE, PAGE).unwrap();
                            assert_eq!(reader.page(page)[slot], stored[page], "flushed: page {page}, slot {slot}");
                        }
                    }
                    stored
                })
            })
            .collect();
        // The methods meanwhile.
        let mut random = Random::new(seed);
        for _ in 0..switches {
            for engine in [Engine::Cached, Engine::Kernel] {
                has(map, engine);
                let page = random.below(PAGES - 8);
                let all = page * PAGE..(page + 8) * PAGE;
                assert!(map.prefetch(std::slice::from_ref(&all)).unwrap() <= 1);
                map.prefetch_wait(std::slice::from_ref(&all)).unwrap();
                assert_eq!(map.get_at::<u64>(page * PAGE).unwrap(), page as u64);
                let mut bytes = [0; 8];
                map.read_at(&mut bytes, (page + 3) * PAGE).unwrap();
                assert_eq!(u64::from_ne_bytes(bytes), page as u64 + 3);
                let mut numbers = vec![0; 8 * 300];
                let pages: Vec<_> = (0..300).map(|_| random.below(PAGES)).collect();
                let rows: Vec<_> = pages.iter().map(|page| (page * PAGE, 8)).collect();
                map.gather(&rows, &mut numbers).unwrap();
                assert!(
                    numbers
                        .chunks(8)
                        .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
                        .eq(pages.iter().map(|page| *page as u64))
                );
                let advice = [Advice::Normal, Advice::Random, Advice::WillNeed, Advice::DontNeed, Advice::Backward];
                map.advise_range(advice[random.below(5)], all.start, all.len()).unwrap();
                map.set_readahead(random.below(1 << 20)).unwrap();
                assert!(
                    map.prefetch(std::slice::from_ref(&(LEN..LEN + 1))).is_err()
                        && map.flush_range(LEN, 1).is_err()
                        && map.gather(&[(LEN, 1)], &mut [0]).is_err()
                );
                if random.below(4) == 0 {
                    map.flush_async().wait().unwrap();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(stored.iter().flatten().sum::<u64>() > 100);
    map.flush().unwrap();
    let check = |page: usize, words: &dyn Fn(usize) -> u64| {
        assert_eq!(words(0), page as u64);
        stored.iter().zip(1..).for_each(|(stored, slot)| assert_eq!(words(slot), stored[page], "page {page}, {slot}"));
    };
    let mut reader = DirectReader::open(&path);
    for page in 0..PAGES {
        let on_disk = reader.page(page).to_vec();
        check(page, &|slot| on_disk[slot]);
        check(page, &|slot| word(page, slot).load(Ordering::Relaxed));
    }
}

#[test]
fn what_is_pinned_does_not_change_hands() {
    in_turns!();
    let folder = folder();
    let other = create(&folder.path().join("other"), &[7; 2 * PAGE]);
    let file = numbered(&folder.path().join("data"));
    let mut map = auto(&file);
    for round in 0..quick_or_full(6, 60) {
        let engine = [Engine::Cached, Engine::Kernel][round % 2];
        has(&map, engine);
        let page = 1 + round * 3;
        let mut pinned = map.pin_mut(page * PAGE + 100, PAGE).unwrap();
        let before = engine_of(&pinned);
        for _ in 0..20 {
            // Straight into the map: elsewhere it would fail with EFAULT.
            other.read_exact_at(&mut pinned, 50).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert_eq!(engine_of(&pinned), before, "round {round}");
        }
        drop(pinned);
        assert!(map[page * PAGE + 100..][..PAGE].iter().all(|byte| *byte == 7));
    }
    // It goes on afterwards.
    has(&map, Engine::Cached);
    has(&map, Engine::Kernel);
}

fn engine_of(bytes: &[u8]) -> Engine {
    let is_cached = fastmap::by_address::is_cached(bytes.as_ptr() as usize, bytes.len());
    if is_cached { Engine::Cached } else { Engine::Kernel }
}

#[test]
fn maps_come_grow_and_go_in_turns() {
    in_turns!();
    let folder = folder();
    let path = folder.path().join("data");
    drop(numbered(&path));
    let mut random = Random::new(seed(5));
    let (mut len, mut last) = (LEN, 0u64);
    for round in 1..=quick_or_full(60, 600) as u64 {
        let file = open(&path);
        let mut map = auto(&file);
        assert_eq!(map.len(), len);
        assert_eq!(map.get_at::<u64>(9 * PAGE + 8).unwrap(), last, "round {round}");
        map[9 * PAGE + 8..][..8].copy_from_slice(&round.to_ne_bytes());
        if random.below(2) == 0 {
            std::thread::sleep(std::time::Duration::from_millis(random.below(9) as u64));
        }
        if round % 8 == 0 {
            len += 5 * PAGE + 100;
            map.grow(len).unwrap();
            map[len - 1] = round as u8;
            map.write_at(&[round as u8], len - 2).unwrap();
        }
        // However busy the machine is, some are the engine's, and some go back.
        if round % 12 == 0 {
            has(&map, Engine::Cached);
        } else if round % 12 == 6 {
            has(&map, Engine::Kernel);
        }
        // A second one for a while, or another that is read.
        if random.below(3) == 0 {
            let second = auto(&file);
            assert_eq!(second.get_at::<u64>(9 * PAGE + 8).unwrap(), round);
            drop(if random.below(2) == 0 { std::mem::replace(&mut map, second) } else { second });
        }
        assert_eq!(map.get_at::<u64>(9 * PAGE + 8).unwrap(), round);
        match random.below(3) {
            0 => map.unmap().unwrap(),
            1 => map.unmap_blocking(),
            _ => drop(map),
        }
        last = round;
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 9 * PAGE as u64 + 8).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), round, "in the file");
    }
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), len);
    assert!(bytes.chunks(PAGE).take(PAGES).zip(0u64..).all(|(page, number)| page[..8] == number.to_ne_bytes()));
}

/// The program maps the file itself, by mmap(2): nobody knows what it does with that.
#[test]
fn a_mapping_of_the_programs_own_stays_the_kernels() {
    in_turns!();
    let folder = folder();
    let file = numbered(&folder.path().join("data"));
    let map = auto(&file);
    has(&map, Engine::Cached);
    has(&map, Engine::Kernel);
    // SAFETY: a fresh mapping.
    let own = unsafe {
        libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0).cast::<u8>()
    };
    // Beside ours, and alone.
    for map in [Some(map), None] {
        let begun = std::time::Instant::now();
        // Whoever came before it may have the file for a moment more.
        let mut was_engines = map.as_ref().is_some_and(|map| map.engine() == Engine::Cached);
        while begun.elapsed() < std::time::Duration::from_millis(100) {
            assert!(!fastmap::by_address::holds(own as usize, LEN));
            let is_engines = map.as_ref().is_some_and(|map| map.engine() == Engine::Cached);
            assert!(was_engines || !is_engines, "taken beside a mapping that nobody knows");
            was_engines = is_engines;
            // SAFETY: mapped.
            assert_eq!(unsafe { own.add(3 * PAGE).read_volatile() }, 3);
        }
    }
    // SAFETY: mapped above.
    unsafe { libc::munmap(own.cast(), LEN) };
}
