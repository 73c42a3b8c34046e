//! What the engine's tests share: files on a disk, random numbers, direct reads, what the kernel says is resident, processes of
//! their own. How much is done and what cannot run here is in `effort`.

pub use crate::effort::{quick_or_full, skip, under_load};
use crate::loops::Ext4;
pub use crate::random::{Random, seed};
use fastmap::{Cache, Fallback, Map, MapMut, MapOptions};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const PAGE: usize = 4096;

/// A folder on the disk of the build directory, which is no tmpfs: direct I/O works there.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in the build directory")
}

/// Whether cached maps work here; otherwise says why a test is skipped. With `FASTMAP_FAULTS=service` service threads serve
/// all faults of this process.
pub fn ready() -> bool {
    static WHY_NOT: LazyLock<Option<String>> = LazyLock::new(|| {
        let by_service = std::env::var("FASTMAP_FAULTS").is_ok_and(|by| by == "service");
        if by_service && let Err(error) = fastmap::faults::choose(fastmap::faults::Faults::Service) {
            return Some(error.to_string());
        }
        let folder = folder();
        let file = create(&folder.path().join("probe"), &[0; PAGE]);
        let requirements = fastmap::requirements::of_machine().into_iter().chain(fastmap::requirements::of_file(&file));
        let missing = requirements.filter(|one| !one.optional).find_map(|one| Some((one.name, one.found.err()?)));
        missing.map(|(name, why)| format!("{name} is missing: {why}"))
    });
    WHY_NOT.as_ref().inspect(|why| skip(why)).is_none()
}

/// The rest of the test runs in a process of its own, if cached maps work here: it changes, or looks at, what is the whole
/// process's.
macro_rules! alone {
    () => {
        fn here() {}
        if !$crate::common::is_alone(std::any::type_name_of_val(&here), &[]) {
            return;
        }
    };
}

/// Like `alone`, with faults served by service threads.
macro_rules! by_service {
    () => {
        fn here() {}
        if !$crate::common::is_alone(std::any::type_name_of_val(&here), &[("FASTMAP_FAULTS", "service")]) {
            return;
        }
    };
}

/// Whether this process is for one test, which is told by a function inside of it. Otherwise runs it in one of its own.
pub fn is_alone(here: &str, variables: &[(&str, &str)]) -> bool {
    // `suite::module::test::here`
    let (_, test) = here.split_once("::").expect("the crate");
    let (test, _) = test.rsplit_once("::").expect("the function inside");
    if std::env::var("FASTMAP_TEST_ALONE").is_ok_and(|alone| alone == test) {
        return ready();
    }
    let variables = [variables, &[("FASTMAP_TEST_ALONE", test)]].concat();
    run_tests(&[test, "--exact", "--test-threads=1"], &variables);
    false
}

/// Runs tests of this executable in a process of their own, and says what they say.
pub fn run_tests(which: &[&str], variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(which).arg("--nocapture").envs(variables.iter().copied()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}{err}");
    assert!(output.status.success() && !out.contains("running 0 tests"), "{which:?}: {}", output.status);
    pass_on_skips(&err);
}

/// What a child could not run is said to have been skipped by its parent.
pub fn pass_on_skips(said: &str) {
    let skipped: String =
        said.lines().filter(|line| line.starts_with("skipped: ")).map(|line| line.to_owned() + "\n").collect();
    let _ = io::stderr().write_all(skipped.as_bytes());
}

/// Makes a file with these bytes, open for reading and writing.
pub fn create(path: &Path, bytes: &[u8]) -> File {
    std::fs::write(path, bytes).expect("the disk takes a small file");
    open(path)
}

/// Makes a file that is one hole, open for reading and writing.
pub fn sparse(path: &Path, len: u64) -> File {
    let file = create(path, &[]);
    file.set_len(len).unwrap();
    file
}

/// Leaves nothing of a file in the page cache: it is read from the device, at its pace.
pub fn uncache(file: &File) {
    file.sync_all().unwrap();
    // SAFETY: numbers only.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Opens a file for reading and writing.
pub fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("a file of our own")
}

/// Raised when the test's own thread is done, or fails: the others must not go on for ever.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads pages of a file past the page cache: what is in the file and not in some copy of it.
pub struct DirectReader {
    file: File,
    page: *mut u64,
}

// SAFETY: the buffer is the reader's own.
unsafe impl Send for DirectReader {}

impl DirectReader {
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("O_DIRECT");
        // SAFETY: a page-aligned allocation of a page.
        let page = unsafe { libc::aligned_alloc(PAGE, PAGE) }.cast();
        DirectReader { file, page }
    }

    pub fn page(&mut self, page: usize) -> &[u64] {
        // SAFETY: the buffer is a page.
        unsafe {
            let got = libc::pread(self.file.as_raw_fd(), self.page.cast(), PAGE, (page * PAGE) as i64);
            assert_eq!(got, PAGE as isize, "pread: {}", io::Error::last_os_error());
            std::slice::from_raw_parts(self.page, PAGE / 8)
        }
    }
}

impl Drop for DirectReader {
    fn drop(&mut self) {
        // SAFETY: allocated in `open`.
        unsafe { libc::free(self.page.cast()) };
    }
}

/// Bytes that /proc/self/smaps counts as resident in the kernel's mappings that overlap `addresses`.
///
/// The kernel counts one page table (2 MiB) at a time under its lock: for a map of at most that, which never crosses one
/// (regions are aligned), the number is exact while others fault and evict.
pub fn resident(addresses: Range<usize>) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let mut inside = false;
    let mut sum = 0;
    for line in text.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16).expect("an address");
            inside = address(start) < addresses.end && addresses.start < address(end);
        } else if inside && first == "Rss:" {
            let kibibytes = line.split_whitespace().nth(1).expect("a number");
            sum += kibibytes.parse::<usize>().expect("a number") << 10;
        }
    }
    sum
}

/// The addresses of a map.
pub fn addresses(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr() as usize;
    start..start + bytes.len()
}

/// A cache of the smallest size.
pub fn small() -> Cache {
    Cache::new(Cache::MIN_CAPACITY).unwrap()
}

pub fn options(cache: &Cache) -> MapOptions {
    MapOptions::new().cache(cache).fallback(Fallback::Refuse).clone()
}

pub fn map(cache: &Cache, file: &File) -> Map {
    // SAFETY: files of these tests are their own.
    unsafe { options(cache).map(file) }.unwrap()
}

pub fn map_mut(cache: &Cache, file: &File) -> MapMut {
    // SAFETY: likewise.
    unsafe { options(cache).map_mut(file) }.unwrap()
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / PAGE * 3 + 1) as u8).collect()
}

/// A small ext4 on a loop device.
pub struct SmallDisk(Ext4);

impl SmallDisk {
    /// `options`: of mkfs.ext4(8).
    pub fn new(options: &[&str]) -> Result<Self, String> {
        Ext4::new(folder(), folder(), 24 << 20, options).map(SmallDisk)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Leaves no block free. The files that came first may have blocks of their own.
    pub fn fill(&self) {
        fill_disk(&self.path("."));
    }

    /// Gives the blocks of a file to another, behind the engine's back: what has been stored to it cannot be written.
    pub fn rob(&self, file: &File) {
        rob_file(file, &self.path("."));
    }

    pub fn make_room(&self) {
        std::fs::remove_file(self.path("filler")).unwrap();
        // Journalled deletion frees the blocks at the next commit.
        let folder = File::open(self.path(".")).unwrap();
        // SAFETY: an open descriptor on the disk.
        assert_eq!(unsafe { libc::syncfs(folder.as_raw_fd()) }, 0);
    }
}

/// [`SmallDisk::rob`], of the disk that has a folder.
pub fn rob_file(file: &File, folder: &Path) {
    let (mode, len) = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, file.metadata().unwrap().len());
    // SAFETY: an open descriptor, and numbers.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, len as i64) }, 0);
    // They are free once that is in the journal.
    file.sync_all().unwrap();
    fill_disk(folder);
}

/// [`SmallDisk::fill`], of the disk that has a folder.
pub fn fill_disk(folder: &Path) {
    let file = create(&folder.join("filler"), &[]);
    let block = vec![1; PAGE];
    let mut at = 0;
    while file.write_all_at(&block, at).and_then(|()| file.sync_data()).is_ok() {
        at += PAGE as u64;
        // Most of it in large steps.
        let large = vec![1; 1 << 20];
        while file.write_all_at(&large, at).and_then(|()| file.sync_data()).is_ok() {
            at += large.len() as u64;
        }
    }
}

pub fn small_disk() -> Option<SmallDisk> {
    small_disk_with(&[])
}

pub fn small_disk_with(options: &[&str]) -> Option<SmallDisk> {
    if !ready() {
        return None;
    }
    SmallDisk::new(options).inspect_err(|why| skip(why)).ok()
}

/// The error's text, which must name the file.
pub fn refusal<T>(path: &Path, result: fastmap::Result<T>) -> String {
    let Err(error) = result else { panic!("{} was mapped", path.display()) };
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()) && !text.contains('\n'), "{text}");
    text
}

/// This executable run again as a child with a role, which the test `role` in the caller's file reads ([`role_of_child`]).
#[track_caller]
pub fn child(role: &str, argument: &Path) -> Command {
    let file = Path::new(Location::caller().file()).file_stem().expect("a file's name").to_str().expect("a plain name");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&format!("{file}::role"), "--exact", "--nocapture", "--test-threads=1"])
        .env("FASTMAP_TEST_ROLE", role)
        .env("FASTMAP_TEST_ARGUMENT", argument);
    command
}

/// The role that this process was given by [`child`], and its argument. Such a process ends after three minutes, and leaves no
/// core file.
pub fn role_of_child() -> Option<(String, PathBuf)> {
    let role = std::env::var("FASTMAP_TEST_ROLE").ok()?;
    // SAFETY: no preconditions.
    unsafe {
        libc::alarm(180);
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
    }
    Some((role, PathBuf::from(std::env::var_os("FASTMAP_TEST_ARGUMENT").unwrap_or_default())))
}

/// Runs a child to its end and returns what it said; it must end well.
#[track_caller]
pub fn run_child(role: &str, argument: &Path) -> String {
    let output = child(role, argument).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{role}: {}\n{said}", output.status);
    said
}

/// All that a child said.
pub fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    pass_on_skips(&err);
    out + &err
}

/// A child that has mapped something and waits to be told to go on, or to be killed.
pub struct Waiting(pub std::process::Child);

impl Waiting {
    /// Runs a child up to its first [`wait_for_parent`].
    #[track_caller]
    pub fn start(role: &str, argument: &Path) -> Self {
        use std::io::Read;
        use std::process::Stdio;
        let mut command = child(role, argument);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.as_mut().unwrap();
        let (mut said, mut byte) = (String::new(), [0]);
        while !said.contains(READY) {
            assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{role} ended: {said}");
            said.push(char::from(byte[0]));
        }
        Waiting(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills the child and waits for its end, not for its keeper's.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Lets the child go on to its end, which must be a good one.
    pub fn finish(mut self) {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
}

const READY: &str = "ready for the parent";

/// For a child started with [`Waiting::start`].
pub fn wait_for_parent() {
    println!("{READY}");
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

/// The living keeper of the program that has this file mapped for writing.
pub fn keeper_of(path: &Path) -> Option<u32> {
    let path = path.canonicalize().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let keepers = processes.filter(|process| {
        std::fs::read_to_string(process.path().join("comm")).is_ok_and(|name| name == "fastmap-keeper\n")
    });
    let with_file = keepers.into_iter().find(|process| {
        let descriptors = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|one| std::fs::read_link(one.path()).is_ok_and(|file| file == path))
    });
    with_file.and_then(|process| process.file_name().to_str()?.parse().ok())
}

/// The keeper that has a file open, which gives itself its name some time after the first map.
pub fn awaited_keeper_of(path: &Path) -> u32 {
    until("a keeper", || keeper_of(path).is_some());
    keeper_of(path).expect("a keeper that stays")
}

/// Waits for what has to happen, a minute at most: machines that run tests are busy.
#[track_caller]
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// seccomp(2): a system call fails with EPERM in this thread, and those that it starts, from now on.
pub fn refuse_call(call: libc::c_long) {
    const LOAD_NUMBER: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(IF_EQUAL, 0, 1, call as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program is valid for the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Whether a thread of this process sleeps.
pub fn sleeps(thread: i32) -> bool {
    let line = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    line.rsplit(')').next().unwrap().trim_start().starts_with('S')
}

/// What page number so and so of a [`stamped`] file holds: a page of its own for each of 2^17 pages.
pub fn stamp(page: usize) -> &'static [u8] {
    static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Random::new(77);
        (0..(1 << 17) + PAGE / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    });
    let at = page.wrapping_mul(40_503) % (1 << 17) * 8;
    &TABLE[at..at + PAGE]
}

/// Makes a file whose pages hold their stamps; on the disk, so that direct reads wait for no write-back.
pub fn stamped(path: &Path, pages: usize) -> File {
    let mut out = io::BufWriter::with_capacity(1 << 20, create(path, &[]));
    (0..pages).for_each(|page| out.write_all(stamp(page)).expect("the disk takes the file"));
    let file = out.into_inner().expect("the disk takes the file");
    file.sync_all().unwrap();
    file
}

/// Waits until nothing is being read ahead any more, and what was is counted.
pub fn settle(cache: &Cache) -> fastmap::Stats {
    let deadline = Instant::now() + Duration::from_secs(60);
    while cache.is_reading_ahead() {
        assert!(Instant::now() < deadline, "reads ahead do not end: {:?}", cache.stats());
        std::thread::sleep(Duration::from_micros(100));
    }
    cache.stats()
}

/// Visits pages as a program does that has something to do with each: whenever it trapped, readers have the time to read on. So the
/// counters say what they do, however slow the machine and fast the disk.
pub fn at_leisure(cache: &Cache, pages: impl IntoIterator<Item = usize>, mut visit: impl FnMut(usize)) {
    stay();
    let traps = || {
        let stats = cache.stats();
        stats.misses + stats.ahead_chunks
    };
    for page in pages {
        let before = traps();
        visit(page);
        if traps() != before {
            settle(cache);
        }
    }
}

/// Waits until something was prefetched.
pub fn await_prefetch(cache: &Cache) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while cache.is_reading_ahead() || cache.stats().prefetched_pages == 0 {
        assert!(Instant::now() < deadline, "nothing is prefetched: {:?}", cache.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Keeps this thread on the processor that it runs on: each has a history of misses, in which walks are recognised.
fn stay() {
    // SAFETY: has no preconditions.
    keep_on(unsafe { libc::sched_getcpu() } as usize);
}

/// Moves this thread to one processor of those that it may run on, and keeps it there.
pub fn run_on(index: usize) -> bool {
    // SAFETY: a set of processors is plain bits, for which zero is a value; the call fills the one it is given.
    let allowed = unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
        allowed
    };
    // SAFETY: below the set's size.
    let is_allowed = |one: &usize| unsafe { libc::CPU_ISSET(*one, &allowed) };
    (0..libc::CPU_SETSIZE as usize).filter(is_allowed).nth(index).is_some_and(keep_on)
}

fn keep_on(processor: usize) -> bool {
    // SAFETY: a set of processors is plain bits, for which zero is a value; the call reads the one it is given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set) == 0
    }
}
