//! Measures how short of memory this process is: cgroups(7) version 1 (memory.limit_in_bytes and others) and version 2 (memory.max and
//! others), proc_meminfo(5), and PSI (pressure stall information).
//!
//! The engine looks many times a second. So the files stay open, and are read into a buffer on the stack.

use super::cgroup::{group_folders, physical_memory};
use super::engine_fd::{self, EngineFd};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// The memory of this process's group at one moment. Numbers are bytes unless the field says pages. Of nested groups, it is the one with the
/// least headroom. It is the whole machine if that has less headroom than any group, or if no group has a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryLook {
    pub limit: u64,
    pub used: u64,
    /// Page cache that can be reclaimed at once: all of it, except dirty pages and pages under write-back. Zero for the machine, whose `used`
    /// leaves out the page cache that is available.
    pub file: u64,
    /// Count of pages that were read again after they had been reclaimed from the page cache, since the group was made.
    pub refaults: u64,
    /// Time in which at least one thread waited for memory (PSI, "some"), since the group was made. `None` if the kernel does not tell.
    pub stalled: Option<Duration>,
}

impl MemoryLook {
    /// How many bytes can still be allocated.
    pub fn headroom(&self) -> u64 {
        (self.limit + self.file).saturating_sub(self.used)
    }
}

/// The names of one cgroup version's files, and of the numbers in its memory.stat.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// In this order: page cache on the active list and on the inactive list; dirty page cache; page cache under write-back; refaults.
    stat: [&'static [u8]; 5],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    stat: [
        b"total_active_file",
        b"total_inactive_file",
        b"total_dirty",
        b"total_writeback",
        b"total_workingset_refault_file",
    ],
};
const V2: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    stat: [b"active_file", b"inactive_file", b"file_dirty", b"file_writeback", b"workingset_refault_file"],
};

/// Room in bytes for any of the files. Only the beginning of /proc/vmstat has room; it holds the number that is read.
const TEXT: usize = 8192;

/// A file that stays open.
struct Source(EngineFd<File>);

impl Source {
    fn open(path: &Path) -> Option<Self> {
        let _low = engine_fd::low();
        File::open(path).ok().map(|file| Source(EngineFd::opened(file)))
    }

    /// The file's present text. Empty if it cannot be read.
    fn text<'a>(&self, buffer: &'a mut [u8; TEXT]) -> &'a [u8] {
        let read = self.0.read_at(buffer, 0).unwrap_or(0);
        &buffer[..read]
    }

    fn number(&self, buffer: &mut [u8; TEXT]) -> Option<u64> {
        leading_number(self.text(buffer))
    }
}

/// A cgroup that could have a limit.
struct Level {
    names: &'static Names,
    limit: Source,
    used: Source,
    stat: Source,
    pressure: Option<Source>,
}

impl Level {
    fn open(folder: &Path, limit_file: &str) -> Option<Self> {
        let names = if limit_file == V2.limit { &V2 } else { &V1 };
        Some(Level {
            names,
            limit: Source::open(&folder.join(names.limit))?,
            used: Source::open(&folder.join(names.used))?,
            stat: Source::open(&folder.join("memory.stat"))?,
            pressure: Source::open(&folder.join("memory.pressure")),
        })
    }

    /// Looks at this group. `None` if it has no limit below `physical` memory.
    fn look(&self, physical: u64, buffer: &mut [u8; TEXT]) -> Option<MemoryLook> {
        // The limit is read each time: it may be set or changed while the program runs.
        let limit = self.limit.number(buffer).filter(|limit| *limit < physical)?;
        let used = self.used.number(buffer)?;
        let [active, inactive, dirty, writeback, refaults] = numbers(self.stat.text(buffer), self.names.stat);
        let file = (active + inactive).saturating_sub(dirty + writeback);
        let stalled = self.pressure.as_ref().and_then(|pressure| stalled(pressure.text(buffer)));
        Some(MemoryLook { limit, used, file, refaults, stalled })
    }
}

/// The open files for repeated looks at the memory of this process's group.
pub struct MemoryWatch {
    /// This process's group, and then the groups above it, in each hierarchy.
    levels: Vec<Level>,
    physical: u64,
    meminfo: Option<Source>,
    vmstat: Option<Source>,
    pressure: Option<Source>,
    /// The index in `levels` of the group that the last look returned. `None`: it returned the machine.
    scarce: Cell<Option<usize>>,
}

impl MemoryWatch {
    /// Opens the files that exist. If the process is moved to another group later, the looks still go to its present group.
    pub fn new() -> Self {
        let groups = group_folders();
        let levels = groups.iter().flat_map(|(root, folder, limit_file)| {
            let above = folder.ancestors().take_while(move |at| at.starts_with(root));
            above.filter_map(|at| Level::open(at, limit_file))
        });
        Self::of(levels.collect(), Path::new("/proc"), physical_memory() as u64)
    }

    fn of(levels: Vec<Level>, proc: &Path, physical: u64) -> Self {
        MemoryWatch {
            levels,
            physical,
            meminfo: Source::open(&proc.join("meminfo")),
            vmstat: Source::open(&proc.join("vmstat")),
            pressure: Source::open(&proc.join("pressure/memory")),
            scarce: Cell::new(None),
        }
    }

    /// Looks at the memory now.
    pub fn look(&self) -> MemoryLook {
        let mut buffer = [0; TEXT];
        let machine = self.machine(&mut buffer);
        let looks = self.levels.iter().enumerate();
        let limited = looks.filter_map(|(at, level)| Some((at, level.look(self.physical, &mut buffer)?)));
        let group = limited.min_by_key(|(_, look)| look.headroom());
        let group = group.filter(|(_, look)| look.headroom() <= machine.headroom());
        self.scarce.set(group.map(|(at, _)| at));
        group.map_or_else(|| self.with_history(machine, &mut buffer), |(_, look)| look)
    }

    /// Bytes used now by the group, or the machine, that the last look returned. Reads one file only, so it is cheaper than a look.
    pub fn used(&self) -> u64 {
        let mut buffer = [0; TEXT];
        match self.scarce.get() {
            Some(at) => self.levels[at].used.number(&mut buffer).unwrap_or(u64::MAX),
            None => self.machine(&mut buffer).used,
        }
    }

    /// The machine, without `refaults` and `stalled`. Memory counts as used unless the kernel says that it is available.
    fn machine(&self, buffer: &mut [u8; TEXT]) -> MemoryLook {
        let text = self.meminfo.as_ref().map_or(&[][..], |meminfo| meminfo.text(buffer));
        let [available] = numbers(text, [b"MemAvailable:"]);
        // Without /proc the use is unknown, and counts as zero.
        let used = if text.is_empty() { 0 } else { self.physical.saturating_sub(available << 10) };
        MemoryLook { limit: self.physical, used, ..MemoryLook::default() }
    }

    /// Adds `refaults` and `stalled` to a look at the machine. They are those of this process's own group, if it has one, with a limit or not:
    /// refaults of other groups say nothing about this process. Also, /proc/vmstat takes 35 us to read, eight times as long as memory.stat.
    fn with_history(&self, machine: MemoryLook, buffer: &mut [u8; TEXT]) -> MemoryLook {
        let mut look = machine;
        if let Some(own) = self.levels.first() {
            [.., look.refaults] = numbers(own.stat.text(buffer), own.names.stat);
        } else if let Some(vmstat) = &self.vmstat {
            [look.refaults] = numbers(vmstat.text(buffer), [b"workingset_refault_file"]);
        }
        let own = self.levels.first().and_then(|own| own.pressure.as_ref());
        look.stalled = own.or(self.pressure.as_ref()).and_then(|pressure| stalled(pressure.text(buffer)));
        look
    }
}

/// The number at the beginning of a text, after white space.
fn leading_number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The numbers in lines `NAME NUMBER`, for the given names. Zero for a name that has no line.
fn numbers<const COUNT: usize>(text: &[u8], names: [&[u8]; COUNT]) -> [u64; COUNT] {
    let mut found = [0; COUNT];
    for line in text.split(|byte| *byte == b'\n') {
        let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        if let Some(at) = names.iter().position(|name| *name == &line[..end]) {
            found[at] = leading_number(&line[end..]).unwrap_or(0);
        }
    }
    found
}

/// The total in the line `some` of a PSI file. The file gives it in microseconds.
fn stalled(text: &[u8]) -> Option<Duration> {
    const TOTAL: &[u8] = b"total=";
    let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(b"some "))?;
    let at = line.windows(TOTAL.len()).position(|part| part == TOTAL)?;
    leading_number(&line[at + TOTAL.len()..]).map(Duration::from_micros)
}

/// Memory of this process, from proc_pid_statm(5).
pub struct OwnMemory(Option<Source>);

impl OwnMemory {
    pub fn new() -> Self {
        OwnMemory(Source::open(Path::new("/proc/self/statm")))
    }

    /// Two counts of bytes: the size of private writable mappings, and the resident memory that is neither shared nor a page of a file.
    pub fn look(&self) -> (u64, u64) {
        let mut buffer = [0; TEXT];
        let text = self.0.as_ref().map_or(&[][..], |statm| statm.text(&mut buffer));
        parse_statm(text)
    }
}

/// The fields are counts of pages: all, resident, resident pages that are shared or of files, text, zero, data and stack.
fn parse_statm(text: &[u8]) -> (u64, u64) {
    let mut fields = text.split(|byte| *byte == b' ').map(|field| leading_number(field).unwrap_or(0));
    let mut field = |skipped: usize| fields.nth(skipped).unwrap_or(0) * super::PAGE as u64;
    let (resident, shared, data) = (field(1), field(0), field(2));
    (data, resident.saturating_sub(shared))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Instant;

    const GIB: u64 = 1 << 30;

    /// Makes a folder with the files of a machine's /proc.
    fn proc(at: &Path, available: u64) {
        fs::create_dir_all(at.join("pressure")).unwrap();
        fs::write(
            at.join("meminfo"),
            format!("MemTotal:  99 kB\nMemFree: 1 kB\nMemAvailable:  {} kB\n", available >> 10),
        )
        .unwrap();
        fs::write(at.join("vmstat"), "nr_free_pages 5\nworkingset_refault_anon 1\nworkingset_refault_file 4321\n")
            .unwrap();
        fs::write(at.join("pressure/memory"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull total=1\n")
            .unwrap();
    }

    /// Makes a folder with the files of a cgroup.
    fn group(at: &Path, names: &Names, limit: &str, used: u64, stat: &str) {
        fs::create_dir_all(at).unwrap();
        fs::write(at.join(names.limit), format!("{limit}\n")).unwrap();
        fs::write(at.join(names.used), format!("{used}\n")).unwrap();
        fs::write(at.join("memory.stat"), stat).unwrap();
    }

    fn watch(folder: &Path, groups: &[(&str, &Names)]) -> MemoryWatch {
        let levels = groups.iter().map(|(name, names)| Level::open(&folder.join(name), names.limit).unwrap());
        MemoryWatch::of(levels.collect(), &folder.join("proc"), 16 * GIB)
    }

    #[test]
    fn version_1() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        proc(&at.join("proc"), 8 * GIB);
        let stat = "cache 9\nactive_file 1\ndirty 5\ntotal_dirty 100\ntotal_writeback 20\ntotal_inactive_file 1000\n\
                    total_active_file 500\ntotal_workingset_refault_anon 1\ntotal_workingset_refault_file 77\n";
        group(&at.join("one"), &V1, "1073741824", 5000, stat);
        let look = watch(at, &[("one", &V1)]).look();
        assert_eq!(look, MemoryLook { limit: GIB, used: 5000, file: 1380, refaults: 77, stalled: None });
        assert_eq!(look.headroom(), GIB - 5000 + 1380);
    }

    #[test]
    fn version_2_and_the_level_with_the_least_headroom() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        proc(&at.join("proc"), 8 * GIB);
        let stat = |file| {
            format!(
                "anon 5\nfile_dirty 10\nfile_writeback 1\ninactive_file {file}\nactive_file 11\nworkingset_refault_file 55\n"
            )
        };
        group(&at.join("a/b"), &V2, &(2 * GIB).to_string(), GIB, &stat(0));
        fs::write(
            at.join("a/b/memory.pressure"),
            "some avg10=1.00 avg60=0.00 avg300=0.00 total=9000042\nfull total=3\n",
        )
        .unwrap();
        group(&at.join("a"), &V2, &(4 * GIB).to_string(), 4 * GIB - 5000, &stat(4000));
        group(&at.join("top"), &V2, "max", 0, "");
        let watch = watch(at, &[("a/b", &V2), ("a", &V2), ("top", &V2)]);
        let look = watch.look();
        assert_eq!((look.limit, look.file, look.headroom()), (4 * GIB, 4000, 9000));
        fs::write(at.join("a/memory.current"), "12\n").unwrap();
        assert_eq!(watch.used(), 12);
        // The watch sees all changes below without opening a file again: other limits, and the machine's memory.
        fs::write(at.join("a/memory.max"), "max\n").unwrap();
        let look = watch.look();
        assert_eq!((look.limit, look.used, look.stalled), (2 * GIB, GIB, Some(Duration::from_micros(9_000_042))));
        fs::write(at.join("top/memory.max"), "4096\n").unwrap();
        assert_eq!((watch.look().limit, watch.look().headroom()), (4096, 4096));
        fs::write(at.join("top/memory.max"), (16 * GIB).to_string()).unwrap();
        assert_eq!(watch.look().limit, 2 * GIB, "as much as the machine has is no limit");
        fs::write(at.join("proc/meminfo"), "MemAvailable: 1024 kB\n").unwrap();
        let look = watch.look();
        assert_eq!((look.limit, look.headroom(), look.refaults), (16 * GIB, 1 << 20, 55), "the machine has less");
        assert_eq!(look.stalled, Some(Duration::from_micros(9_000_042)));
    }

    #[test]
    fn without_groups_and_without_anything() {
        let folder = tempfile::tempdir().unwrap();
        proc(&folder.path().join("proc"), 3 * GIB);
        let watch = watch(folder.path(), &[]);
        let look = watch.look();
        assert_eq!((look.limit, look.used, look.file, look.refaults), (16 * GIB, 13 * GIB, 0, 4321));
        assert_eq!(watch.used(), 13 * GIB);
        assert_eq!(look.stalled, Some(Duration::from_micros(7)));
        let blind = MemoryWatch::of(Vec::new(), &folder.path().join("none"), GIB).look();
        assert_eq!(blind, MemoryLook { limit: GIB, ..MemoryLook::default() });
    }

    #[test]
    fn texts_that_are_cut_or_strange() {
        assert_eq!(leading_number(b" 12\n"), Some(12));
        assert_eq!((leading_number(b"max\n"), leading_number(b"")), (None, None));
        assert_eq!(numbers(b"one 1\ntwo\nthree x\ntwo_and 5", [b"one", b"two", b"three", b"two_and"]), [1, 0, 0, 5]);
        assert_eq!(
            (stalled(b""), stalled(b"full total=4\nsome avg10=0"), stalled(b"some total=5")),
            (None, None, Some(Duration::from_micros(5)))
        );
        assert_eq!(parse_statm(b"1000 300 100 20 0 400 0\n"), (400 * 4096, 200 * 4096));
        assert_eq!(parse_statm(b""), (0, 0));
    }

    #[test]
    fn this_machine() {
        let watch = MemoryWatch::new();
        let look = watch.look();
        assert!(look.limit > 0 && look.limit <= physical_memory() as u64 && look.used > 0, "{look:?}");
        let own = OwnMemory::new();
        let (data, private) = own.look();
        assert!(data > 0 && private > 0 && private < look.limit, "{data} {private}");
        let measured = |what: &str, look: &dyn Fn()| {
            let start = Instant::now();
            (0..1000).for_each(|_| look());
            println!("{what}: {:.1} us", start.elapsed().as_secs_f64() * 1e3);
        };
        println!("{} levels, {look:?}", watch.levels.len());
        measured("a look", &|| _ = watch.look());
        measured("the machine alone", &|| _ = watch.machine(&mut [0; TEXT]));
        measured("what is used", &|| _ = watch.used());
        measured("own memory", &|| _ = own.look());
        for level in &watch.levels {
            measured("a level with a limit", &|| _ = level.look(u64::MAX, &mut [0; TEXT]));
        }
    }
}
