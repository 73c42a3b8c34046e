//! The thread of `start` in programs that have limits, give up rights, confine themselves, and fork.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 4096;
const ROLE: &str = "FASTMAP_TEST_ROLE";

/// Runs a role in a process of its own, and expects that it ends well.
fn run(role: &str) -> Output {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--exact", "role", "--nocapture"]).env(ROLE, role).output().unwrap();
    assert!(output.status.success(), "{role}: {output:?}");
    output
}

#[test]
fn a_program_runs_on_where_the_thread_gets_no_memory() {
    for limit in ["RLIMIT_AS", "RLIMIT_DATA", "maps"] {
        let said = run(limit);
        let said = String::from_utf8_lossy(&said.stdout);
        assert!(said.contains("steering has ended: there is no memory for it"), "{limit}: {said}");
    }
}

#[test]
fn the_thread_gets_no_signal_and_its_descriptor_is_out_of_the_way() {
    run("working");
}

#[test]
fn the_thread_ends_when_the_program_changes_its_rights_or_filters() {
    run("filter");
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        run("user");
    }
}

#[test]
fn a_child_has_a_thread_of_its_own_on_request() {
    run("child");
}

/// The folder of the thread that steers, in /proc.
fn thread() -> Option<std::path::PathBuf> {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    tasks.find(|task| std::fs::read(task.join("comm")).is_ok_and(|name| name == b"fastmap-steer\n"))
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A mapped file, touched at random, and out of memory again and again.
struct Touched {
    file: std::fs::File,
    map: memmap2::Mmap,
    state: u64,
}

impl Touched {
    fn new() -> Touched {
        let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; PAGES * PAGE], 0).unwrap();
        file.sync_all().unwrap();
        // SAFETY: nobody cuts the file.
        let map = unsafe { memmap2::Mmap::map(&file).unwrap() };
        Touched { file, map, state: 1 }
    }

    fn touch(&mut self) {
        // SAFETY: pages of a file that nobody stores to.
        unsafe {
            self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed).unwrap();
            libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
        for _ in 0..50 {
            self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            assert_eq!(self.map[(self.state >> 33) as usize % PAGES * PAGE], 1);
        }
    }
}

#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Err(_) => {}
        Ok("working") => working(),
        Ok("filter") => confined(|| {
            // One that lets all pass.
            let mut pass = libc::sock_filter { code: 6, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
            let program = libc::sock_fprog { len: 1, filter: &mut pass };
            // SAFETY: a filter of one instruction.
            unsafe {
                libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    libc::SECCOMP_FILTER_FLAG_TSYNC,
                    &program,
                )
            }
        }),
        // SAFETY: has no preconditions.
        Ok("user") => confined(|| unsafe { libc::setuid(65534).into() }),
        Ok("child") => child(),
        Ok(limit) => limited(limit),
    }
}

/// Bytes of a line of /proc/self/status.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

fn limited(limit: &str) {
    let mut touched = Touched::new();
    fastmap_steer::start();
    let set = |kind, bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: reads the limit.
        assert_eq!(unsafe { libc::setrlimit(kind, &limit) }, 0);
    };
    match limit {
        "RLIMIT_AS" => set(libc::RLIMIT_AS, status("VmSize:")),
        "RLIMIT_DATA" => set(libc::RLIMIT_DATA, status("VmData:")),
        _ => {
            let access = [libc::PROT_READ, libc::PROT_NONE].into_iter().cycle();
            // SAFETY: new mappings, of which no two are joined.
            let is_full = |access| unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) == libc::MAP_FAILED
            };
            assert!(access.take(1 << 22).any(is_full), "as many mappings as there may be");
        }
    }
    let mut line = [0; 1024];
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        touched.touch();
    }
    // Without the allocator.
    let len = fastmap_steer::report().map_or(0, |said| {
        line[..said.len()].copy_from_slice(said.as_bytes());
        said.len()
    });
    // SAFETY: bytes of this function's own. Then nothing is left to do.
    unsafe {
        libc::write(1, line.as_ptr().cast(), len);
        libc::_exit(0);
    }
}

fn working() {
    let mut touched = Touched::new();
    fastmap_steer::start();
    fastmap_steer::start();
    until("the thread", || thread().is_some());
    let status = std::fs::read_to_string(thread().unwrap().join("status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    // All but SIGKILL, SIGSTOP and two of the C library's.
    assert_eq!(u64::from_str_radix(blocked, 16).unwrap() | 0x1_8004_0100, !0, "{blocked}");
    let is_aside = |entry: std::fs::DirEntry| {
        let is_its = std::fs::read_link(entry.path()).is_ok_and(|file| file.ends_with(Path::new("pagemap")));
        is_its && entry.file_name().to_str().unwrap().parse::<u32>().unwrap() >= 200
    };
    until("its descriptor", || {
        touched.touch();
        std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(is_aside)
    });
}

fn confined(change: impl FnOnce() -> i64) {
    fastmap_steer::start();
    until("the thread", || thread().is_some());
    // SAFETY: takes rights away from this process, which needs none.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    assert_eq!(change(), 0, "{}", std::io::Error::last_os_error());
    until("the thread's end", || thread().is_none());
    assert_eq!(fastmap_steer::report().unwrap(), "steering has ended: the program has changed its rights or filters");
}

fn child() {
    let mut touched = Touched::new();
    fastmap_steer::start();
    for _ in 0..20 {
        touched.touch();
        // SAFETY: the child makes ordinary calls, which the C library allows after fork(2).
        let child = unsafe { libc::fork() };
        if child == 0 {
            fastmap_steer::start();
            let mut is_well = thread().is_none() && fastmap_steer::report().is_none();
            fastmap_steer::start_here();
            until("the child's thread", || thread().is_some());
            touched.touch();
            is_well &= thread().is_some();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_well)) };
        }
        let mut status = 0;
        // SAFETY: the child of just now.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
