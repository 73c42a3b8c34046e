//! `libfastmap_preload.so`: FastMap for programs that are not changed.
//!
//! `fastmap run` has the dynamic linker load this library before the C library (`LD_PRELOAD`, ld.so(8)). So the
//! program's calls of mmap(2) and similar functions come here first.
//!
//! The source has rooms. A room calls only the rooms above it in this table, and `cache`, `config` and `say` of this
//! file:
//!
//! | room | what it owns |
//! | --- | --- |
//! | `own` | this library's memory, critical sections, stacks, errno; which process has maps of the engine; what is known of descriptors |
//! | `next` | the C library's functions behind those that are intercepted |
//! | `signals` | what the program is told of SIGBUS |
//! | `copy` | copies of the memory that calls read and write through pointers into mappings |
//! | `config`, `report` | the user's settings; the report when the process ends |
//! | `objects` | objects of a store that appear as files at paths |
//! | `heap` | malloc(3) and private mappings over a file |
//! | `mappings` | mmap(2), munmap(2), mremap(2), mprotect(2) and similar calls |
//! | `threads` | stacks; mutexes and other things that threads wait at |
//! | `processes` | fork(2), exec(3), exit, sandboxes |
//! | `files` | read(2), write(2), and coherence with a file's maps |
//! | `streams` | stdio(3) |
//! | `calls` | syscall(2), ioctl(2), messages |
//!
//! A new call takes a wrapper in its room, a line in a table of `next`, an arm in `calls/by_number.rs`, a row in docs/intercepted.md, and a case in
//! `tests/programs`. The wrapper is exported by `exported!` if this crate calls it, too (by number, for example), else by `no_mangle`.
//!
//! There is an exception to the order of rooms. The tables of `next` are written in macros of `copy`, and some of these macros call upward:
//! one asks `processes::sandbox` whether a path names the process's threads, others ask `objects` whether a path names
//! an object.

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

use own::kernel;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// The process's cache, made at the first call. `None`: it cannot be made. The reason is then said once.
pub(crate) fn cache() -> Option<&'static fastmap::Cache> {
    static CACHE: OnceLock<Option<fastmap::Cache>> = OnceLock::new();
    CACHE
        .get_or_init(|| {
            let chosen = fastmap::faults::choose(config().faults);
            let make = || {
                let builder = match (fastmap::Cache::builder(), config().cache) {
                    (builder, Some(bytes)) => builder.capacity(bytes),
                    (builder, None) => builder.auto(),
                };
                let builder =
                    if config().owns_files() { builder.dirty_expire(Some(config().write_within)) } else { builder };
                builder.build()
            };
            let made = chosen.and_then(|()| make());
            made.inspect_err(|why| say(format_args!("{why}: everything is left to the kernel"))).ok()
        })
        .as_ref()
}

/// Writes one line to standard error, without allocation or lock. A line beyond 1024 bytes is cut.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    struct Line([u8; 1024], usize);
    impl Write for Line {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // One byte is left for the newline.
            let count = text.len().min(self.0.len() - 1 - self.1);
            self.0[self.1..self.1 + count].copy_from_slice(&text.as_bytes()[..count]);
            self.1 += count;
            Ok(())
        }
    }
    let mut line = Line([0; 1024], 0);
    let _ = write!(line, "fastmap: {what}");
    line.0[line.1] = b'\n';
    // SAFETY: the call reads the line's bytes only. It may fail, since standard error may be closed.
    let _ = unsafe {
        kernel::call(libc::SYS_write, [libc::STDERR_FILENO as usize, line.0.as_ptr().expose_provenance(), line.1 + 1])
    };
}

/// The dynamic linker calls this function when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn start() {
        own::stack::note_first();
        signals::start();
        processes::fork::start();
        own::remembered::begin();
        // Parsed here and not at the first mapping, so that a message about the environment comes before the program's output.
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

/// The dynamic linker calls this function when the program exits, after the program's own exit handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn end() {
        report::write();
    }
    end
};
