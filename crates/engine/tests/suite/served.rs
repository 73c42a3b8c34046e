//! Who serves a map: the kernel, unless a cache is given or something is asked for that only the engine has; and all maps of a file alike.

use crate::common::{DirectReader, PAGE, create, folder, open, ready, sparse};
use fastmap::{Cache, Engine, MapMut, MapOptions, Mode};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGES: usize = 1500;

/// Each page begins with its number.
fn numbered(path: &Path) -> File {
    let mut bytes = vec![0; PAGES * PAGE];
    bytes.chunks_mut(PAGE).zip(0u64..).for_each(|(page, number)| page[..8].copy_from_slice(&number.to_ne_bytes()));
    create(path, &bytes)
}

fn mapped(file: &File, options: &MapOptions) -> MapMut {
    // SAFETY: nobody else changes the file.
    unsafe { options.map_mut(file).unwrap() }
}

/// Options, and who is to serve a map made by them.
fn ways(cache: &Cache) -> [(MapOptions, Engine); 4] {
    [
        (MapOptions::new(), Engine::Kernel),
        (MapOptions::new().clone(), Engine::Kernel),
        (MapOptions::new().cache(cache).clone(), Engine::Cached),
        (MapOptions::new().mode(Mode::Cached).clone(), Engine::Cached),
    ]
}

#[test]
fn the_kernel_serves_what_is_not_to_be_cached() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = Cache::new(1 << 20).unwrap();
    for (number, (options, engine)) in ways(&cache).into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        let file = numbered(&path);
        let mut map = mapped(&file, &options);
        assert_eq!(map.engine(), engine, "{options:?}");
        // The kernel's mapping says so itself.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(maps.contains(path.to_str().unwrap()), engine == Engine::Kernel, "{options:?}");
        assert_eq!(map.get_at::<u64>(7 * PAGE).unwrap(), 7);
        map[7 * PAGE] = 8;
        map.flush().unwrap();
        assert_eq!(DirectReader::open(&path).page(7)[0], 8);
        drop(map);
        assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap()));
    }
    assert!(cache.stats().misses > 0);
    let file = numbered(&folder.path().join("scratch"));
    let map = mapped(&file, MapOptions::new().scratch(true));
    assert_eq!(map.engine(), Engine::Cached, "only the engine has scratch maps");
}

#[test]
fn maps_of_a_file_are_served_alike() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = Cache::new(1 << 20).unwrap();
    for (number, (first, _)) in ways(&cache).into_iter().enumerate() {
        let file = numbered(&folder.path().join(number.to_string()));
        for (second, _) in ways(&cache) {
            let (mut one, mut other) = (mapped(&file, &first), mapped(&file, &second));
            assert_eq!(one.engine(), other.engine(), "{first:?}, then {second:?}");
            one[PAGE + 100] = number as u8 + 1;
            assert_eq!(other[PAGE + 100], number as u8 + 1);
            // The second is the first of the next pair.
            drop(one);
            other[PAGE + 101] = 9;
            let third = mapped(&file, &second);
            assert_eq!((third.engine(), third[PAGE + 101]), (other.engine(), 9));
        }
        let map = mapped(&file, MapOptions::new().cache(&cache));
        assert_eq!(map.engine(), Engine::Cached, "nothing of it was left");
        drop(map);
        assert_eq!(mapped(&file, &MapOptions::new()).engine(), Engine::Kernel, "nothing of it was left");
    }
}

#[test]
fn maps_come_and_go_in_both_ways_at_once() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("data");
    drop(numbered(&path));
    let cache = Cache::new(1 << 20).unwrap();
    // Maps there are now, or less, by the kernel and by the engine.
    let live = [const { AtomicUsize::new(0) }; 2];
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (path, cache, live) = (&path, &cache, &live);
            scope.spawn(move || {
                let file = open(path);
                for round in 0..200u64 {
                    let (options, _) = ways(cache).into_iter().nth((thread + round as usize) % 4).unwrap();
                    let mut map = mapped(&file, &options);
                    // Each thread has bytes of its own on pages that all store to.
                    let at = (round as usize * 7 % PAGES) * PAGE + 8 * (thread + 1);
                    map[at..at + 8].copy_from_slice(&round.to_ne_bytes());
                    drop(map);
                    let again = mapped(&file, &options);
                    let engine = again.engine();
                    let is_cached = usize::from(engine == Engine::Cached);
                    live[is_cached].fetch_add(1, Ordering::SeqCst);
                    assert_eq!(live[1 - is_cached].load(Ordering::SeqCst), 0, "served both ways, this one {engine:?}");
                    assert_eq!(again[at..at + 8], round.to_ne_bytes(), "{engine:?}");
                    live[is_cached].fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
}

#[test]
fn an_empty_map_grows_as_it_was_to_be_served() {
    if !ready() {
        return;
    }
    let folder = folder();
    let cache = Cache::new(1 << 20).unwrap();
    for (number, (options, engine)) in ways(&cache).into_iter().enumerate() {
        let file = sparse(&folder.path().join(number.to_string()), 0);
        // In the middle of a page.
        let mut map = mapped(&file, &options);
        map.grow(10).unwrap();
        map.grow(3 * PAGE + 10).unwrap();
        map[3 * PAGE + 9] = 3;
        assert_eq!((map.engine(), file.metadata().unwrap().len()), (engine, 3 * PAGE as u64 + 10));
        // SAFETY: nobody else changes the file.
        let part = unsafe { options.clone().offset(3 * PAGE as u64 + 5).map(&file).unwrap() };
        assert_eq!(part[..], [0, 0, 0, 0, 3]);
    }
}
