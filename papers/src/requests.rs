//! The order in which a device is asked for a file's bytes: the kernel's own record of it (tracefs, the event
//! block:block_rq_issue), with sectors turned into offsets of the file. What the study calls a block trace. A request that finds
//! the device's queue full is issued again later, and was no request before (block:block_rq_requeue).

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where tracefs is, newest place first.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Beginning of the names of trace instances made here; the process's id follows.
const PREFIX: &str = "fastmap-bench-";

/// Room for events of each core, KiB: a hundred bytes each, so tens of thousands of requests.
const BUFFER_KIB: &str = "8192";

/// The unit of a block device's addresses, whatever its own.
const SECTOR: u64 = 512;

/// FS_IOC_FIEMAP, `_IOWR('f', 11, struct fiemap)`; libc does not name it.
const FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;

/// Extents asked for in one call.
const EXTENTS: usize = 128;

/// One read that the device was asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Since the first.
    pub ms: f64,
    /// Of its first byte in the file.
    pub offset: u64,
    pub bytes: u64,
}

/// A record of its own, which nothing else that is traced on this machine has part in; removed when dropped.
pub struct Tracer {
    instance: PathBuf,
    /// Where the file is on the device: device offsets and the file's.
    extents: Vec<(Range<u64>, u64)>,
}

impl Tracer {
    /// Begins to record reads of `file`.
    ///
    /// # Errors
    ///
    /// Why it cannot, a sentence's end: no privilege, no tracefs, no single device.
    pub fn of(file: &File) -> Result<Tracer, String> {
        let tracefs = TRACEFS.iter().map(Path::new).find(|dir| dir.join("instances").exists());
        let tracefs = tracefs.ok_or("tracefs is not there, or not for this user")?;
        let number = file.metadata().map_err(|e| e.to_string())?.dev();
        let (major, minor, start) =
            disk_of(libc::major(number), libc::minor(number)).ok_or("no single block device is under the file")?;
        let extents = extents(file).map_err(|e| format!("its file system does not tell where the file is: {e}"))?;
        let on_disk = |(at, offset): (Range<u64>, u64)| (at.start + start..at.end + start, offset);
        remove_orphans(&tracefs.join("instances"));
        let instance = tracefs.join("instances").join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&instance).map_err(|e| format!("{}: {e}", instance.display()))?;
        let tracer = Tracer { instance, extents: extents.into_iter().map(on_disk).collect() };
        // The kernel's own numbering of devices: 20 bits of minor.
        let device = u64::from(major) << 20 | u64::from(minor);
        for (name, value) in [
            ("buffer_size_kb", BUFFER_KIB),
            ("events/block/block_rq_issue/filter", &format!("dev == {device}")),
            ("events/block/block_rq_requeue/filter", &format!("dev == {device}")),
            ("events/block/block_rq_issue/enable", "1"),
            ("events/block/block_rq_requeue/enable", "1"),
        ] {
            let path = tracer.instance.join(name);
            fs::write(&path, value).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(tracer)
    }

    /// Forgets what was recorded so far.
    ///
    /// # Errors
    ///
    /// What tracefs answers.
    pub fn clear(&self) -> io::Result<()> {
        fs::write(self.instance.join("trace"), "")
    }

    /// Reads of the file since [`Tracer::clear`], in order.
    ///
    /// # Errors
    ///
    /// What tracefs answers.
    pub fn requests(&self) -> io::Result<Vec<Request>> {
        Ok(parse(&fs::read_to_string(self.instance.join("trace"))?, &self.extents))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // At worst it stays until the next time, see `remove_orphans`.
        let _ = fs::write(self.instance.join("events/enable"), "0");
        let _ = fs::remove_dir(&self.instance);
    }
}

/// Removes records of earlier processes that were killed before they could do it themselves.
fn remove_orphans(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The disk that a device is, or is a partition of, and the bytes before the partition on it. None for what is no device,
/// such as an overlay, or spreads over several.
fn disk_of(major: u32, minor: u32) -> Option<(u32, u32, u64)> {
    let device = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if !device.join("partition").exists() {
        return Some((major, minor, 0));
    }
    let start: u64 = fs::read_to_string(device.join("start")).ok()?.trim().parse().ok()?;
    let disk = fs::read_to_string(device.parent()?.join("dev")).ok()?;
    let (major, minor) = disk.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?, start * SECTOR))
}

/// struct fiemap of linux/fiemap.h, with room for extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

/// struct fiemap_extent of linux/fiemap.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// Where the file's bytes are on the device that its file system is on, and which of the file's they are.
fn extents(file: &File) -> io::Result<Vec<(Range<u64>, u64)>> {
    const LAST: u32 = 1;
    let (mut extents, mut start) = (Vec::new(), 0);
    loop {
        let empty = FiemapExtent { logical: 0, physical: 0, length: 0, reserved64: [0; 2], flags: 0, reserved: [0; 3] };
        let mut map = Fiemap {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [empty; EXTENTS],
        };
        // SAFETY: the kernel reads the head and writes at most `extent_count` extents, for which there is room.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, &mut map) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let found = &map.extents[..map.mapped_extents as usize];
        extents.extend(found.iter().map(|e| (e.physical..e.physical + e.length, e.logical)));
        match found.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.length,
            _ => return Ok(extents),
        }
    }
}

/// The reads among events as tracefs prints them, whose sectors are in the file:
/// `dd-1234 [001] d..1. 1234.567890: block_rq_issue: 254,0 R 131072 () 2048 + 256 none,0,0 [dd]`.
fn parse(trace: &str, extents: &[(Range<u64>, u64)]) -> Vec<Request> {
    // Seconds, offset in the file, bytes.
    let mut events: Vec<(f64, u64, u64)> = Vec::new();
    for event in trace.lines().filter_map(Event::parse).filter(|event| event.reads) {
        let Some((place, offset)) = extents.iter().find(|(place, _)| place.contains(&event.at)) else { continue };
        let offset = event.at - place.start + offset;
        match event.again {
            false => events.push((event.seconds, offset, event.bytes)),
            true => {
                if let Some(before) = events.iter().rposition(|before| before.1 == offset) {
                    events.remove(before);
                }
            }
        }
    }
    let first = events.iter().map(|event| event.0).fold(f64::INFINITY, f64::min);
    events.into_iter().map(|(s, offset, bytes)| Request { ms: (s - first) * 1e3, offset, bytes }).collect()
}

/// One line of a trace.
struct Event {
    seconds: f64,
    reads: bool,
    /// Put back, to be issued again.
    again: bool,
    /// On the disk, bytes.
    at: u64,
    bytes: u64,
}

impl Event {
    /// None for lines that are no such event.
    fn parse(line: &str) -> Option<Event> {
        let (before, event) = line.split_once(": block_rq_")?;
        let (name, event) = event.split_once(": ")?;
        let seconds = before.split_whitespace().last()?.parse().ok()?;
        let (head, rest) = event.split_once(") ")?;
        let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        let mut next = || numbers.next()?.parse::<u64>().ok();
        Some(Event {
            seconds,
            reads: head.split_whitespace().nth(1)?.starts_with('R'),
            again: name == "requeue",
            at: next()? * SECTOR,
            bytes: next()? * SECTOR,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_file_s_reads_in_order_of_time() {
        // As the kernel orders them: by time, over all cores.
        let trace = "\
# tracer: nop
 kworker/0:1H-99      [000] .....    70.000100: block_rq_issue: 254,0 RA 131072 () 2048 + 256 be,0,4 [kworker/0:1H]
              dd-12      [001] d..1.    70.000200: block_rq_issue: 254,0 R 4096 () 4000 + 8 none,0,0 [dd]
              dd-12      [001] d..1.    70.000300: block_rq_requeue: 254,0 R () 4000 + 8 none,0,0 [0]
              dd-12      [001] d..1.    70.000500: block_rq_issue: 254,0 R 4096 () 4008 + 8 none,0,0 [dd]
              dd-12      [001] d..1.    70.000600: block_rq_issue: 254,0 WS 4096 () 4008 + 8 none,0,0 [dd]
              dd-12      [001] d..1.    70.000700: block_rq_issue: 254,0 R 4096 () 9000000 + 8 none,0,0 [dd]
              dd-12      [001] d..1.    70.000900: block_rq_issue: 254,0 R 4096 () 4000 + 8 none,0,0 [dd]
";
        let extents = [(2048 * 512..2304 * 512, 1 << 20), (4000 * 512..4016 * 512, 0)];
        let requests = parse(trace, &extents);
        let said: Vec<_> = requests.iter().map(|r| (r.ms.round(), r.offset, r.bytes)).collect();
        assert_eq!(said, [(0.0, 1 << 20, 131_072), (0.0, 8 * 512, 4096), (1.0, 0, 4096)]);
        assert!((requests[1].ms - 0.4).abs() < 1e-3);
    }

    #[test]
    fn a_file_s_reads_are_recorded_where_that_is_allowed() {
        use std::io::{Read, Write};
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[1; 3 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let tracer = match Tracer::of(file.as_file()) {
            Ok(tracer) => tracer,
            Err(why) => return eprintln!("not here: {why}"),
        };
        tracer.clear().unwrap();
        crate::substrates::cold::make_cold(file.as_file(), 3 << 20).unwrap();
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(file.path());
        let Ok(mut direct) = direct else { return crate::substrates::skipped("no O_DIRECT here") };
        let mut memory = memmap2::MmapMut::map_anon(3 << 20).unwrap();
        direct.read_exact(&mut memory).unwrap();
        let requests = tracer.requests().unwrap();
        if requests.is_empty() {
            return eprintln!("not here: requests go to a device below this one");
        }
        assert_eq!(requests.iter().map(|r| r.bytes).sum::<u64>(), 3 << 20, "{requests:?}");
        let instance = tracer.instance.clone();
        drop(tracer);
        assert!(!instance.exists());
    }
}
