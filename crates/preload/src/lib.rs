//! `libfastmap_preload.so`: FastMap for programs nobody changes.
//!
//! `fastmap run` has the dynamic linker load this library before the C library (`LD_PRELOAD`, ld.so(8)), so that the
//! program's calls of mmap(2) and its kin come here first. `next.rs` has how the C library's own are reached; what is to be
//! done is in `config.rs`; each other file is a group of calls.

mod allocator;
mod alone;
#[macro_use]
mod bounce;
#[macro_use]
mod next;
mod buffers;
mod changes;
mod coherence;
mod config;
mod descriptors;
mod files;
mod guard;
#[cfg_attr(not(feature = "heap"), path = "no_heap.rs")]
mod heap;
mod kernel_maps;
mod memory;
mod process;
mod report;
mod requests;
mod signals;
mod sockets;
mod stacks;
mod stdio;
mod sync;
mod system_call;
mod threads;
mod vectors;

pub(crate) use config::config;
pub(crate) use guard::{set_errno, undisturbed};

use std::fmt::{self, Write};
use std::sync::OnceLock;

/// The process's cache, made at the first call; `None`, said once: it cannot be made.
pub(crate) fn cache() -> Option<&'static fastmap::Cache> {
    static CACHE: OnceLock<Option<fastmap::Cache>> = OnceLock::new();
    CACHE
        .get_or_init(|| {
            let chosen = fastmap::faults::choose(config().faults);
            let made = chosen.and_then(|()| fastmap::Cache::new(config().cache));
            made.inspect_err(|why| say(format_args!("{why}: everything is left to the kernel"))).ok()
        })
        .as_ref()
}

/// Whether any byte of a range lies in memory of the engine. A few nanoseconds, no lock.
#[inline]
pub(crate) fn holds<T>(addr: *const T, len: usize) -> bool {
    fastmap::calls::holds(addr as usize, len)
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
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_write, libc::STDERR_FILENO, line.0.as_ptr(), line.1 + 1);
        set_errno(errno);
    }
}

/// The dynamic linker calls these when the library is loaded and, after the program's own exit handlers, when it exits.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn start() {
        signals::start();
        process::start();
        // Here rather than in the first mapping: a message about the environment comes before the program's output.
        config();
        heap::begin();
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
