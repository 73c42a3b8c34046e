//! `libfastmap_preload.so`: FastMap for programs that are not changed.
//!
//! `fastmap run` has the dynamic linker load this library before the C library (`LD_PRELOAD`, ld.so(8)), so that the
//! program's calls of mmap(2) and its kin come here first.
//!
//! Rooms, each of which calls only those above it, and this file's `cache`, `config` and `say`:
//!
//! | room | what it owns |
//! | --- | --- |
//! | `own` | memory, critical sections, errno, the account of which process has maps of the engine |
//! | `next` | the C library's functions behind those that are intercepted |
//! | `signals` | what the program believes of SIGBUS |
//! | `copy` | copies of what calls read and write through pointers into mappings |
//! | `config`, `report` | what the user asks for; what is said when the process ends |
//! | `objects` | objects of a store that are as files at paths |
//! | `heap` | malloc(3) and private mappings over a file |
//! | `mappings` | mmap(2) and its kin |
//! | `threads` | stacks, and what threads wait at |
//! | `processes` | fork(2), exec(3), exit, sandboxes |
//! | `files` | read(2), write(2), and coherence with a file's maps |
//! | `streams` | stdio(3) |
//! | `calls` | syscall(2), ioctl(2), messages |
//!
//! The tables of `next` are written in macros of `copy`, and of these some point up: one asks `processes::sandbox`
//! whether a path that was looked at names threads, and some `objects` whether one names an object.

#[macro_use]
mod copy;
#[macro_use]
mod next;
mod calls;
mod config;
mod files;
#[cfg_attr(not(feature = "heap"), path = "heap/absent.rs")]
mod heap;
mod mappings;
mod objects;
mod own;
mod processes;
mod report;
mod signals;
mod streams;
mod threads;

pub(crate) use config::config;

use own::{errno, set_errno};
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// The process's cache, made at the first call; `None`, said once: it cannot be made.
pub(crate) fn cache() -> Option<&'static fastmap::Cache> {
    static CACHE: OnceLock<Option<fastmap::Cache>> = OnceLock::new();
    CACHE
        .get_or_init(|| {
            let chosen = fastmap::faults::choose(config().faults);
            let make = || match config().cache {
                Some(bytes) => fastmap::Cache::new(bytes),
                None => fastmap::Cache::auto(),
            };
            let made = chosen.and_then(|()| make());
            made.inspect_err(|why| say(format_args!("{why}: everything is left to the kernel"))).ok()
        })
        .as_ref()
}

/// One line on standard error: no allocation, no lock, and cut if it is very long.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    struct Line([u8; 1024], usize);
    impl Write for Line {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // Room for the line's end.
            let count = text.len().min(self.0.len() - 1 - self.1);
            self.0[self.1..self.1 + count].copy_from_slice(&text.as_bytes()[..count]);
            self.1 += count;
            Ok(())
        }
    }
    let mut line = Line([0; 1024], 0);
    let _ = write!(line, "fastmap: {what}");
    line.0[line.1] = b'\n';
    // SAFETY: the line's bytes. Standard error may be closed, and errno is not to change.
    unsafe {
        let before = errno();
        libc::syscall(libc::SYS_write, libc::STDERR_FILENO, line.0.as_ptr(), line.1 + 1);
        set_errno(before);
    }
}

/// The dynamic linker calls these when the library is loaded and, after the program's own exit handlers, when it exits.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn start() {
        own::stack::note_first();
        signals::start();
        processes::fork::start();
        own::remembered::begin();
        // Here rather than in the first mapping: a message about the environment comes before the program's output.
        config();
        fastmap::by_address::listen(mappings::served::hear);
        objects::begin();
        streams::objects::begin();
        heap::begin();
        if heap::is_up() {
            if let Some((path, _)) = &config().heap {
                mappings::served::list(path.as_os_str().as_bytes(), (u64::MAX, u64::MAX), mappings::served::By::Heap);
            }
            threads::stacks::begin();
        }
    }
    start
};

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn end() {
        report::write();
    }
    end
};
