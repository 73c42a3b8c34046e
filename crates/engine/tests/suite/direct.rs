//! Direct maps: files in memory, mapped straight, and what their flushes write.

use crate::common;
use crate::common::*;
use fastmap::{Advice, Engine, Error, Fallback, Map, MapMut, MapOptions, Mode, Persist};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;

const HUGE: usize = 2 << 20;

/// A folder in memory; else says why a test is skipped.
fn in_memory() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm");
    folder.inspect_err(|why| skip(format!("no folder in /dev/shm: {why}"))).ok()
}

/// Whether stores are tracked here; else says why a test is skipped.
fn tracks() -> bool {
    let machine = fastmap::requirements::of_machine();
    let tracking = machine.iter().find(|one| one.name == "store tracking").unwrap();
    tracking.found.as_ref().inspect_err(|why| skip(why)).is_ok()
}

/// A mount of its own, gone when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(kind: &str, options: &str) -> Option<Mount> {
        let folder = folder();
        let command =
            |name: &str| Command::new(name).args(["-t", kind, "-o", options, "none"]).arg(folder.path()).output();
        match command("mount") {
            Ok(done) if done.status.success() => Some(Mount(folder)),
            Ok(done) => {
                skip(format!("mount -t {kind} -o {options}: {}", String::from_utf8_lossy(&done.stderr)));
                None
            }
            Err(why) => {
                skip(format!("mount: {why}"));
                None
            }
        }
    }

    fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.0.path().join(name.as_ref())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

fn length(file: &File) -> usize {
    file.metadata().unwrap().len() as usize
}

fn by_lines(file: &File) -> MapMut {
    // SAFETY: the file is the test's own.
    let map = unsafe { MapOptions::new().persist(Persist::CacheLines).map_mut(file) }.unwrap();
    assert_eq!(map.engine(), Engine::Direct);
    map
}

/// Bytes that a call has a map flush.
fn flushed(map: &MapMut, flush: impl FnOnce() -> fastmap::Result<()>) -> usize {
    let before = map.flushed_bytes();
    flush().unwrap();
    (map.flushed_bytes() - before) as usize
}

#[test]
fn files_in_memory_are_mapped_straight() {
    let Some(folder) = in_memory() else { return };
    let mut bytes = pattern(40 * PAGE + 100);
    let file = create(&folder.path().join("file"), &bytes);
    for persist in [Persist::Automatic, Persist::CacheLines] {
        let options = MapOptions::new().persist(persist).fallback(Fallback::Refuse).offset(100).clone();
        // SAFETY: the file is this test's own.
        let (mut map, reader) = unsafe { (options.map_mut(&file).unwrap(), options.map(&file).unwrap()) };
        assert_eq!((map.engine(), reader.engine(), map.len()), (Engine::Direct, Engine::Direct, bytes.len() - 100));
        map[7] = persist as u8;
        bytes[107] = persist as u8;
        map.write_at(&[9; 5000], 3 * PAGE).unwrap();
        bytes[100 + 3 * PAGE..][..5000].fill(9);
        map.pin_mut(4090, 10).unwrap().fill(8);
        bytes[4190..4200].fill(8);
        // No second copy: it is in the file at once, and in the other map.
        assert!(reader[..] == bytes[100..] && std::fs::read(folder.path().join("file")).unwrap() == bytes);
        let advice =
            [Advice::Normal, Advice::Random, Advice::Sequential, Advice::Backward, Advice::WillNeed, Advice::DontNeed];
        advice.into_iter().for_each(|advice| map.advise(advice).unwrap());
        map.set_readahead(0).unwrap();
        assert_eq!(map.prefetch(&[0..10, 5000..9000]).unwrap(), 2);
        map.prefetch_wait(std::slice::from_ref(&(0..map.len()))).unwrap();
        assert_eq!(map.get_at::<[u8; 3]>(3 * PAGE).unwrap(), [9; 3]);
        assert!(*map.pin(4090, 10).unwrap() == [8; 10]);
        map.flush().unwrap();
        map.flush_range(5, 7000).unwrap();
        map.flush_range(5, 0).unwrap();
        let flush = map.flush_async();
        assert!(flush.is_done());
        flush.wait().unwrap();
        assert!(map.flush_range(bytes.len() - 100, 1).is_err());
        assert_eq!(map.flushed_bytes() > 0, persist == Persist::CacheLines);
        map.grow(50 * PAGE).unwrap();
        assert_eq!((map.engine(), map.len(), length(&file)), (Engine::Direct, 50 * PAGE, 100 + 50 * PAGE));
        map[50 * PAGE - 1] = 1;
        map.flush_range(50 * PAGE - 1, 1).unwrap();
        map.unmap().unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        assert!(reader[..] == bytes[100..]);
    }
    // SAFETY: the file is this test's own.
    let empty = unsafe { MapOptions::new().len(0).map_mut(&file) }.unwrap();
    empty.flush().unwrap();
}

#[test]
fn the_mode_is_the_callers_choice() {
    let Some(folder) = in_memory() else { return };
    let memory = create(&folder.path().join("file"), &pattern(3 * PAGE));
    let on_disk = common::folder();
    let disk = create(&on_disk.path().join("file"), &pattern(3 * PAGE));
    let options = |mode, fallback| MapOptions::new().mode(mode).fallback(fallback).clone();
    // SAFETY: the files are this test's own.
    unsafe {
        assert_eq!(options(Mode::Cached, Fallback::Kernel).map(&memory).unwrap().engine(), Engine::Kernel);
        assert!(matches!(options(Mode::Cached, Fallback::Refuse).map(&memory), Err(Error::Missing { .. })));
        assert_eq!(options(Mode::Direct, Fallback::Refuse).map(&memory).unwrap().engine(), Engine::Direct);
        assert_eq!(options(Mode::Direct, Fallback::Kernel).map(&disk).unwrap().engine(), Engine::Kernel);
        let refused = options(Mode::Direct, Fallback::Refuse).map(&disk);
        let Err(error @ Error::Missing { .. }) = refused else { panic!("{refused:?}") };
        assert!(error.to_string().contains("tmpfs, hugetlbfs and DAX"), "{error}");
        assert_ne!(Map::map(&disk).unwrap().engine(), Engine::Direct);
        if ready() {
            // What is in the cache stays there: two copies would not agree.
            let cached = options(Mode::Cached, Fallback::Buffered).map(&memory).unwrap();
            assert_eq!(cached.engine(), Engine::Cached);
            assert_eq!(Map::map(&memory).unwrap().engine(), Engine::Cached);
            drop(cached);
            assert_eq!(Map::map(&memory).unwrap().engine(), Engine::Direct);
        }
    }
}

#[test]
fn a_small_flush_writes_what_it_was_asked_for() {
    let Some(folder) = in_memory() else { return };
    let file = sparse(&folder.path().join("file"), 1 << 20);
    let mut map = by_lines(&file);
    map[5 * PAGE + 1] = 1;
    assert_eq!(flushed(&map, || map.flush_range(5 * PAGE, PAGE)), PAGE);
    assert_eq!(flushed(&map, || map.flush_range(5 * PAGE, 64 << 10)), 64 << 10);
    assert_eq!(flushed(&map, || map.flush_range(5 * PAGE + 1, 1)), 64);
    assert_eq!(flushed(&map, || map.flush_range(5 * PAGE + 63, 2)), 128);
}

#[test]
fn a_large_flush_writes_pages_that_were_stored_to() {
    let Some(folder) = in_memory() else { return };
    if !tracks() {
        return;
    }
    let file = create(&folder.path().join("file"), &vec![1; 8 << 20]);
    let mut map = by_lines(&file);
    assert_eq!(flushed(&map, || map.flush()), 0); // nobody has touched it
    map.fill(2);
    assert_eq!(flushed(&map, || map.flush()), 8 << 20);
    assert_eq!(flushed(&map, || map.flush()), 0);
    // Loads are no stores.
    assert!(map.iter().all(|byte| *byte == 2));
    assert_eq!(flushed(&map, || map.flush()), 0);
    for at in [0, 1, 4095, 4096, 3 << 20, (8 << 20) - 1] {
        map[at] = 3;
    }
    // Stores of the kernel count.
    file.read_exact_at(&mut map[700 * PAGE + 5..][..10], 0).unwrap();
    assert_eq!(flushed(&map, || map.flush()), 5 * PAGE);
    // Written by a small flush, a page is found once more: that costs less than to protect it each time.
    map[9] = 4;
    assert_eq!(flushed(&map, || map.flush_range(0, PAGE)), PAGE);
    assert_eq!(flushed(&map, || map.flush()), PAGE);
    assert_eq!(flushed(&map, || map.flush()), 0);
    // Grown, it is another mapping.
    map[PAGE] = 5;
    map.grow(10 << 20).unwrap();
    map[9 << 20] = 5;
    assert_eq!(flushed(&map, || map.flush()), PAGE);
    assert_eq!(flushed(&map, || map.flush()), 0);
}

#[test]
fn a_flush_is_of_the_file_and_not_of_one_map() {
    let Some(folder) = in_memory() else { return };
    if !tracks() {
        return;
    }
    let path = folder.path().join("file");
    create(&path, &vec![1; 4 << 20]);
    let (mut one, mut other) = (by_lines(&open(&path)), by_lines(&open(&path)));
    // SAFETY: the file is this test's own.
    let mut part =
        unsafe { MapOptions::new().persist(Persist::CacheLines).offset((1 << 20) + 5).map_mut(&open(&path)) };
    let part = part.as_mut().unwrap();
    [&one, &other, part].into_iter().for_each(|map| map.flush().unwrap());
    one[7] = 2;
    part[0] = 2;
    assert_eq!(flushed(&other, || other.flush()), 2 * PAGE);
    assert_eq!((flushed(&one, || one.flush()), flushed(part, || part.flush())), (0, 0));
    // In two of them.
    one[2 << 20] = 3;
    other[(2 << 20) + 1] = 3;
    assert_eq!(flushed(&other, || other.flush_range(2 << 20, 1 << 20)), 2 * PAGE);
    // What is stored through a map that goes is written when it goes.
    other[3 << 20] = 4;
    drop(other);
    assert_eq!(flushed(&one, || one.flush()), 0);
    // Another file's are its own.
    let mut stranger = by_lines(&create(&folder.path().join("other"), &vec![1; 4 << 20]));
    stranger[0] = 1;
    assert_eq!(flushed(&one, || one.flush()), 0);
    assert!(flushed(&stranger, || stranger.flush()) >= PAGE);
}

#[test]
fn flushes_past_the_files_end_write_nothing_there() {
    let Some(folder) = in_memory() else { return };
    let file = create(&folder.path().join("file"), &vec![1; 4 << 20]);
    let mut map = by_lines(&file);
    map.fill(2);
    file.set_len(5 * PAGE as u64 + 100).unwrap();
    assert_eq!(flushed(&map, || map.flush_range(8 * PAGE, PAGE)), 0);
    assert_eq!(flushed(&map, || map.flush_range(4 * PAGE, 4 * PAGE)), 2 * PAGE);
    map.flush().unwrap();
    assert!(matches!(map.pin(8 * PAGE, 1), Err(Error::Io { .. })));
    file.set_len(4 << 20).unwrap();
    assert_eq!((map[5 * PAGE + 99], map[5 * PAGE + 100], map[6 * PAGE]), (2, 0, 0));
    map[6 * PAGE] = 3;
    assert!(!tracks() || flushed(&map, || map.flush()) >= PAGE);
}

/// All pages of a huge page are dirty to the kernel when one is. Here the first flush splits it.
#[test]
fn inside_huge_pages_pages_are_told_apart() {
    let Some(mount) = Mount::new("tmpfs", "huge=always,size=64m") else { return };
    if !tracks() {
        return;
    }
    let file = create(&mount.path("file"), &vec![1; 16 << 20]);
    let mut map = by_lines(&file);
    map[5 << 20] = 2;
    assert_eq!(flushed(&map, || map.flush_range(5 << 20, PAGE)), PAGE);
    let huge = in_huge_pages(&map);
    println!("{huge} of {} bytes in huge pages before", map.len());
    let first = flushed(&map, || map.flush());
    assert!(first >= PAGE && (huge == 0 || first >= HUGE), "{first}");
    assert_eq!(flushed(&map, || map.flush()), 0);
    map[5 << 20] = 3;
    assert_eq!(flushed(&map, || map.flush()), PAGE);
    for at in (0..map.len()).step_by(HUGE) {
        map[at + 3 * PAGE] = 4;
    }
    // Those that were never stored to before are huge still.
    map.flush().unwrap();
    for at in (0..map.len()).step_by(HUGE) {
        map[at + 3 * PAGE] = 5;
    }
    assert_eq!(flushed(&map, || map.flush()), map.len() / HUGE * PAGE);
    // A part of a huge page.
    map[HUGE + 7] = 6;
    assert_eq!(flushed(&map, || map.flush_range(HUGE, 128 << 10)), PAGE);
    assert!(std::fs::read(mount.path("file")).unwrap() == map[..]);
}

/// Bytes of a map that are mapped by huge pages.
fn in_huge_pages(map: &MapMut) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", map.as_ptr() as usize);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let line = lines.find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
fn hugetlbfs() {
    const PAGES: &str = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(PAGES).unwrap();
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = std::fs::write(PAGES, &self.0);
        }
    }
    let wanted = before.trim().parse::<usize>().unwrap() + 8;
    if let Err(why) = std::fs::write(PAGES, wanted.to_string()) {
        return skip(format!("{PAGES}: {why}"));
    }
    let _restore = Restore(before);
    if std::fs::read_to_string(PAGES).unwrap().trim().parse::<usize>().unwrap() < wanted {
        return skip("no memory for huge pages");
    }
    let Some(mount) = Mount::new("hugetlbfs", "pagesize=2M") else { return };
    let file = File::options().read(true).write(true).create(true).truncate(true).open(mount.path("file")).unwrap();
    for (round, persist) in [Persist::Automatic, Persist::CacheLines].into_iter().enumerate() {
        // SAFETY: the file is this test's own.
        let mut map = unsafe { MapOptions::new().persist(persist).map_mut(&file) }.unwrap();
        // The file is made of whole huge pages, the map is as long as it was asked to be.
        map.grow(HUGE + 5000 + round).unwrap();
        map.grow(2 * HUGE + 5000 + round).unwrap();
        assert_eq!((map.engine(), map.len(), length(&file)), (Engine::Direct, 2 * HUGE + 5000 + round, 3 * HUGE));
        map[HUGE + 3] = 1;
        map[2 * HUGE + 4999] = 1;
        map.flush_range(HUGE, PAGE).unwrap();
        map.advise(Advice::DontNeed).unwrap();
        assert_eq!(map.flushed_bytes(), [0, PAGE as u64][round]);
        if persist == Persist::CacheLines && tracks() {
            map.flush().unwrap();
            map[HUGE + 70_000] = 1;
            // It cannot be split.
            assert_eq!(flushed(&map, || map.flush()), HUGE);
            assert_eq!(flushed(&map, || map.flush()), 0);
        }
        drop(map);
        // SAFETY: as above. At an offset that is not a multiple of anything.
        let map = unsafe { MapOptions::new().persist(persist).offset(HUGE as u64 + 1).map(&file) }.unwrap();
        assert_eq!((map[2], map[HUGE + 4998], map.len()), (1, 1, 2 * HUGE - 1));
        drop(map);
        file.set_len(0).unwrap();
        // Otherwise the file could not be made anew: nothing of it is mapped.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains(&*mount.path("file").to_string_lossy()), "{maps}");
    }
}

/// Each page that was stored to is written, by whichever flush finds it, before its own flush returns.
#[test]
fn threads_that_store_and_flush_share_the_work() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    let Some(folder) = in_memory() else { return };
    if !tracks() {
        return;
    }
    let path = folder.path().join("file");
    create(&path, &vec![1; 4 << 20]);
    let maps: Vec<MapMut> = (0..THREADS).map(|_| by_lines(&open(&path))).collect();
    maps.iter().for_each(|map| map.flush().unwrap());
    let total = || maps.iter().map(MapMut::flushed_bytes).sum::<u64>();
    let (before, barrier) = (total(), Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for (thread, map) in maps.iter().enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                let base = map.as_ptr() as usize;
                for round in 0..ROUNDS {
                    let page = (round * THREADS + thread) * 37 % 1024;
                    // SAFETY: inside the map; no other thread has this page in this round.
                    unsafe { (base as *mut u8).add(page * PAGE + round).write_volatile(round as u8) };
                    map.flush().unwrap();
                    barrier.wait();
                }
            });
        }
    });
    // Seldom a page twice: found when its protection was lifted, and the store not yet done.
    let (least, written) = ((THREADS * ROUNDS * PAGE) as u64, total() - before);
    assert!((least..2 * least).contains(&written), "{written} bytes written, {least} stored to");
    assert!(Path::new(&path).exists() && maps.iter().all(|map| flushed(map, || map.flush()) == 0));
}
