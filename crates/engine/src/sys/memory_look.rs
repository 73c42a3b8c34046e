//! How short of memory this process is, at a moment: memory.limit_in_bytes and its kin of cgroups(7) version 1,
//! memory.max and its kin of version 2, proc_meminfo(5), PSI.
//!
//! Asked many times a second, so the files stay open and are read into a buffer on the stack.

use super::cgroup::{group_folders, physical_memory};
use super::engine_fd::{self, EngineFd};
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// What is known of the memory of this process's group at a moment; bytes, except for pages where said. Of nested
/// groups it is the one with the least headroom; the whole machine where that has less, or where there is no group with
/// a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryLook {
    pub limit: u64,
    pub used: u64,
    /// Page cache that can be reclaimed at once: less what is dirty, or being written.
    pub file: u64,
    /// Pages that were read again after they were reclaimed from the page cache, since the group was made.
    pub refaults: u64,
    /// Time in which a thread waited for memory (PSI, "some"), since the group was made. `None` where it is not told.
    pub stalled: Option<Duration>,
}

impl MemoryLook {
    /// What can still be allocated.
    pub fn headroom(&self) -> u64 {
        (self.limit + self.file).saturating_sub(self.used)
    }
}

/// What the two versions call their files, and the numbers in memory.stat.
struct Names {
    limit: &'static str,
    used: &'static str,
    /// Page cache by the two lists that it is reclaimed from; of that, dirty and being written; refaults.
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

/// Room for any of the files, or the beginning of /proc/vmstat, which has what is wanted.
const TEXT: usize = 8192;

/// A file that stays open.
struct Source(EngineFd<File>);

impl Source {
    fn open(path: &Path) -> Option<Self> {
        let _low = engine_fd::low();
        File::open(path).ok().map(|file| Source(EngineFd::opened(file)))
    }

    /// What it says now; nothing if it cannot be read.
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

    /// `None`: it has no limit below `physical` memory.
    fn look(&self, physical: u64, buffer: &mut [u8; TEXT]) -> Option<MemoryLook> {
        // Each time: a limit may be set, or changed, while the program runs.
        let limit = self.limit.number(buffer).filter(|limit| *limit < physical)?;
        let used = self.used.number(buffer)?;
        let [active, inactive, dirty, writeback, refaults] = numbers(self.stat.text(buffer), self.names.stat);
        let file = (active + inactive).saturating_sub(dirty + writeback);
        let stalled = self.pressure.as_ref().and_then(|pressure| stalled(pressure.text(buffer)));
        Some(MemoryLook { limit, used, file, refaults, stalled })
    }
}

/// Looks at the memory of this process's group, again and again.
pub struct MemoryWatch {
    /// This process's group and those above it.
    levels: Vec<Level>,
    physical: u64,
    meminfo: Option<Source>,
    vmstat: Option<Source>,
    pressure: Option<Source>,
    /// The level that the last look was at; `None`: the machine.
    scarce: Cell<Option<usize>>,
}

impl MemoryWatch {
    /// Opens what is there. Where the process is moved to another group later, it is this one that is looked at.
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

    /// What is known now.
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

    /// What is used now, where the last look was at: one file, and not all that a look takes.
    pub fn used(&self) -> u64 {
        let mut buffer = [0; TEXT];
        match self.scarce.get() {
            Some(at) => self.levels[at].used.number(&mut buffer).unwrap_or(u64::MAX),
            None => self.machine(&mut buffer).used,
        }
    }

    /// The machine, without its history. What the kernel says is available is what is not used.
    fn machine(&self, buffer: &mut [u8; TEXT]) -> MemoryLook {
        let text = self.meminfo.as_ref().map_or(&[][..], |meminfo| meminfo.text(buffer));
        let [available] = numbers(text, [b"MemAvailable:"]);
        // Without /proc nothing is known to be used.
        let used = if text.is_empty() { 0 } else { self.physical.saturating_sub(available << 10) };
        MemoryLook { limit: self.physical, used, ..MemoryLook::default() }
    }

    /// With the history of this process's own group, if it has one, limited or not: what others read again says nothing
    /// about it, and /proc/vmstat takes 35 us to read, eight times as long as memory.stat.
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

/// The number that a text begins with, after blanks.
fn leading_number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The numbers of lines `NAME NUMBER`; zero for those that are not there.
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

/// The total of the line `some` of a PSI file, which is in microseconds.
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

    /// Bytes of private writable mappings, and how much of all of its memory is no page of a file.
    pub fn look(&self) -> (u64, u64) {
        let mut buffer = [0; TEXT];
        let text = self.0.as_ref().map_or(&[][..], |statm| statm.text(&mut buffer));
        parse_statm(text)
    }
}

/// Pages: all, resident, of these shared or of files, text, zero, data and stack.
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

    /// A folder like /proc of a machine.
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

    /// A folder like one of a cgroup's.
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
        // All of what follows is seen without opening anything again: other limits, more page cache, the machine.
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
