//! Caches without a budget of their own, in memory cgroups that are really limited.

use crate::common::*;
use fastmap::{Cache, Map};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const LIMIT: usize = 512 * MIB;

/// A memory cgroup of a test's own, without swap, of either version; removed with it.
struct Group {
    folder: PathBuf,
    limit: &'static str,
}

impl Group {
    /// `None`, with the reason said, where none can be made.
    fn new(limit: usize) -> Option<Self> {
        Self::make(limit).inspect_err(|why| skip(format_args!("no memory cgroup can be made: {why}"))).ok()
    }

    fn make(limit: usize) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let path_of = |controllers: &str| {
            let line = own.lines().find(|line| line.split(':').nth(1) == Some(controllers))?;
            Some(line.splitn(3, ':').nth(2)?.trim_start_matches('/').to_owned())
        };
        let (above, file) = match path_of("memory") {
            Some(path) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            None => {
                // A group that holds a process may not limit groups below it: beside this process's own.
                let own = Path::new("/sys/fs/cgroup").join(path_of("").unwrap_or_default());
                let is_root = !own.join("memory.max").exists();
                (if is_root { own } else { own.join("..") }, "memory.max")
            }
        };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = above.join(format!("fastmap-test-{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Group { folder, limit: file };
        group.try_limit(limit)?;
        // Missing where the kernel accounts no swap.
        for (name, value) in [("memory.memsw.limit_in_bytes", limit), ("memory.swappiness", 0), ("memory.swap.max", 0)]
        {
            let _ = fs::write(group.folder.join(name), value.to_string());
        }
        Ok(group)
    }

    fn try_limit(&self, limit: usize) -> io::Result<()> {
        fs::write(self.folder.join(self.limit), limit.to_string())
    }

    /// Another limit, as soon as the kernel takes it: version 1 does when so much is free.
    fn set_limit(&self, limit: usize) {
        until("the limit", || {
            // Of memory and swap, which may not be less: it goes up before, and down after.
            let both = self.folder.join("memory.memsw.limit_in_bytes");
            let _ = fs::write(&both, limit.to_string());
            let set = self.try_limit(limit).is_ok();
            let _ = fs::write(&both, limit.to_string());
            set
        });
    }

    fn run(&self, role: &str, file: &Path) -> String {
        self.end(role, self.start(role, file))
    }

    fn start(&self, role: &str, file: &Path) -> Child {
        let mut command = child(role, file);
        command.env("FASTMAP_TEST_GROUP", &self.folder).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn end(&self, role: &str, child: Child) -> String {
        let output = child.wait_with_output().unwrap();
        let said = said(&output);
        assert!(output.status.success(), "{role}: {}\n{said}", output.status);
        said
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever has just ended, a keeper too, may still be leaving.
        let end = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A file without holes, each page with its number.
fn numbered(path: &Path, len: usize) -> File {
    let mut file = io::BufWriter::with_capacity(MIB, File::create(path).unwrap());
    let mut page = [1u8; PAGE];
    for number in 0..len / PAGE {
        page[..8].copy_from_slice(&(number as u64).to_ne_bytes());
        file.write_all(&page).unwrap();
    }
    let file = file.into_inner().unwrap();
    file.sync_all().unwrap();
    file
}

fn check(map: &Map, page: usize) {
    let number: [u8; 8] = map[page * PAGE..page * PAGE + 8].try_into().unwrap();
    assert_eq!(u64::from_ne_bytes(number), page as u64);
}

/// Time on a processor of the thread that follows.
fn follower_time() -> Option<Duration> {
    fs::read_dir("/proc/self/task").unwrap().flatten().find_map(|task| {
        let is_it = fs::read_to_string(task.path().join("comm")).ok()?.trim() == "fastmap-memory";
        let times = fs::read_to_string(task.path().join("schedstat")).ok().filter(|_| is_it)?;
        Some(Duration::from_nanos(times.split(' ').next()?.parse().ok()?))
    })
}

/// How much of a core the thread that follows takes.
fn share_of_follower() -> f64 {
    until("the thread", || follower_time().is_some());
    let (before, start) = (follower_time().unwrap(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    (follower_time().unwrap() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

#[test]
fn role() {
    let Some((role, path)) = role_of_child() else { return };
    let folder = PathBuf::from(std::env::var_os("FASTMAP_TEST_GROUP").unwrap());
    fs::write(folder.join("cgroup.procs"), "0").unwrap();
    let limit = if folder.join("memory.max").exists() { "memory.max" } else { "memory.limit_in_bytes" };
    // The parent removes it.
    let group = std::mem::ManuallyDrop::new(Group { folder, limit });
    match role.as_str() {
        "allocate" => allocate(&path),
        "follow" => follow(&path, &group),
        "for-a-while" => work_until(&path, |_, start| start.elapsed() > WHILE),
        "until-alone" => work_until(&path, |cache, start| start.elapsed() > WHILE && cache.capacity() > LIMIT / 4 * 3),
        other => panic!("no role {other}"),
    }
}

/// Fills the group with a cache, then wants more than half of it at once.
fn allocate(path: &Path) {
    let cache = Cache::auto().unwrap();
    let file = open(path);
    let idle = {
        let _small = map(&cache, &create(&path.with_extension(std::process::id().to_string()), &[1; PAGE]));
        share_of_follower()
    };
    let map = map(&cache, &file);
    (0..map.len() / PAGE).for_each(|page| check(&map, page));
    let filled = cache.stats().resident_pages as usize * PAGE;
    assert!(filled > LIMIT / 2, "{} MiB of the file in memory", filled / MIB);
    let short = share_of_follower();
    let len = (256 + std::process::id() as usize % 45) * MIB;
    let start = Instant::now();
    let mut memory: Vec<u8> = Vec::with_capacity(len);
    memory.resize(len, 7);
    let took = start.elapsed();
    assert!(memory.iter().step_by(PAGE).all(|byte| *byte == 7));
    let left = cache.stats().resident_pages as usize * PAGE;
    (0..map.len() / PAGE).step_by(100).for_each(|page| check(&map, page));
    println!(
        "{} MiB touched in {took:?}: the cache went from {} to {} MiB; its thread takes {:.3} % of a core, {:.3} % when short",
        len / MIB,
        filled / MIB,
        left / MIB,
        idle * 100.0,
        short * 100.0
    );
    assert!(left + len < LIMIT);
}

#[test]
fn a_sudden_allocation_is_met() {
    if !ready() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("file");
    numbered(&path, quick_or_full(640, 1024) * MIB);
    for _ in 0..5 {
        let Some(group) = Group::new(LIMIT) else { return };
        let said = group.run("allocate", &path);
        println!("{}", said.lines().find(|line| line.contains("touched in")).unwrap());
    }
}

/// The limit goes down, but not at once: the kernel cannot reclaim what a cache has, only as much at a time as is always free.
fn halve(group: &Group) {
    for limit in (LIMIT / 2..LIMIT).rev().step_by(24 * MIB) {
        group.set_limit(limit + 1);
    }
    group.set_limit(LIMIT / 2);
}

/// The limit goes down while the cache is full, and up again.
fn follow(path: &Path, group: &Group) {
    let cache = Cache::auto().unwrap();
    let map = map(&cache, &open(path));
    let pages = map.len() / PAGE;
    (0..pages).for_each(|page| check(&map, page));
    assert!(cache.capacity() > LIMIT / 2);
    halve(group);
    until("a smaller cache", || cache.capacity() < LIMIT / 2 - 50 * MIB);
    let before = cache.capacity();
    group.set_limit(LIMIT);
    let mut random = Random::new(1);
    let (start, end) = (Instant::now(), Instant::now() + Duration::from_secs(120));
    while cache.capacity() < LIMIT / 4 * 3 {
        (0..100).for_each(|_| check(&map, random.below(pages)));
        assert!(Instant::now() < end, "{} MiB, from {}", cache.capacity() / MIB, before / MIB);
    }
    println!("from {} to {} MiB in {:?}", before / MIB, cache.capacity() / MIB, start.elapsed());
}

#[test]
fn a_limit_that_changes_is_followed() {
    if !ready() {
        return;
    }
    let Some(group) = Group::new(LIMIT) else { return };
    let folder = folder();
    let path = folder.path().join("file");
    numbered(&path, 640 * MIB);
    println!("{}", group.run("follow", &path));
}

/// How long two programs are in one group.
const WHILE: Duration = Duration::from_secs(4);

/// Random pages of a file much larger than the group, until it is `enough`.
fn work_until(path: &Path, enough: impl Fn(&Cache, Instant) -> bool) {
    let cache = Cache::auto().unwrap();
    let map = map(&cache, &open(path));
    let pages = map.len() / PAGE;
    let mut random = Random::new(u64::from(std::process::id()));
    let (start, mut least, mut most) = (Instant::now(), usize::MAX, 0);
    while !enough(&cache, start) {
        (0..100).for_each(|_| check(&map, random.below(pages)));
        let capacity = cache.capacity();
        (least, most) = (least.min(capacity), most.max(capacity));
        assert!(start.elapsed() < Duration::from_secs(120), "{} to {} MiB", least / MIB, most / MIB);
    }
    println!(
        "capacity from {} to {} MiB, {} misses in {:?}",
        least / MIB,
        most / MIB,
        cache.stats().misses,
        start.elapsed()
    );
}

/// Each follows what both leave; neither is killed, and who stays gets what the other had.
#[test]
fn two_programs_in_one_group() {
    if !ready() {
        return;
    }
    let Some(group) = Group::new(LIMIT) else { return };
    let folder = folder();
    let paths = ["one", "two"].map(|name| folder.path().join(name));
    paths.iter().for_each(|path| drop(numbered(path, 640 * MIB)));
    let children =
        [("for-a-while", &paths[0]), ("until-alone", &paths[1])].map(|(role, path)| (role, group.start(role, path)));
    for (role, child) in children {
        let said = group.end(role, child);
        println!("{role}: {}", said.lines().find(|line| line.contains("capacity from")).unwrap());
    }
}

/// Its thread is there while there is a map and a cache, and nobody has said how large it is to be.
#[test]
fn follows_anywhere_until_it_goes() {
    alone!();
    let folder = folder();
    let cache = Cache::auto().unwrap();
    assert!(cache.capacity() >= Cache::MIN_CAPACITY && cache.capacity() < Cache::memory_limit());
    assert!(follower_time().is_none(), "without a map nothing is looked after");
    let path = folder.path().join("file");
    let file = stamped(&path, 100);
    let map = map(&cache, &file);
    until("the thread", || follower_time().is_some());
    (0..100).for_each(|page| assert_eq!(&map[page * PAGE..][..stamp(page).len()], stamp(page)));
    // One with a budget is left alone.
    let fixed = Cache::builder().auto().capacity(1 << 20).build().unwrap();
    assert_eq!(fixed.capacity(), 1 << 20);
    drop(map);
    drop(cache);
    until("the thread's end", || follower_time().is_none());
    // And so is one that gets a budget, with maps in it or not: what could not be changes nothing.
    let cache = Cache::auto().unwrap();
    let first = crate::common::map(&cache, &file);
    until("the thread", || follower_time().is_some());
    let pinned = first.pin(0, 100 * PAGE).unwrap();
    assert!(cache.resize(Cache::MIN_CAPACITY).is_err() && cache.resize(0).is_err() && follower_time().is_some());
    drop(pinned);
    cache.resize(1 << 20).unwrap();
    until("the thread's end", || follower_time().is_none());
    drop(first);
    let again = crate::common::map(&cache, &stamped(&folder.path().join("again"), 600));
    (0..600).for_each(|page| assert_eq!(&again[page * PAGE..][..stamp(page).len()], stamp(page)));
    assert!(follower_time().is_none() && cache.capacity() == 1 << 20 && cache.stats().resident_pages <= 256);
}
