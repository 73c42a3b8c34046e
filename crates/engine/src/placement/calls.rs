//! What maps of Rust's are made of that may change hands ([`Placement::Auto`]), and the option.

use super::own;
use crate::by_address::{self, Request};
use crate::error::{Error, Result};
use crate::map::cache::Cache;
use crate::map::kernel::FilePart;
use crate::map::options::MapOptions;
use crate::map::placed::{Calls, Placing};
use crate::modes::{Advice, Fallback, Placement};
use crate::sys::{PAGE, file, fork};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;

impl MapOptions {
    /// Who serves the map: the kernel, the engine, or the one that pays. Default: [`Placement::Engine`].
    ///
    /// What only the engine has means the engine, whatever is said here: a budget ([`MapOptions::cache`]),
    /// [`MapOptions::scratch`], stores that do not wait ([`MapOptions::async_stores`], [`MapOptions::async_read`]). A file that
    /// is mapped in this process already stays placed as its first map was, so that its maps agree; [`Map::engine`](crate::Map::engine)
    /// says by whom.
    ///
    /// With [`Placement::Auto`] the map begins as the kernel's, and a thread of this crate looks whether memory is short, four times a
    /// second while it is. Then files change hands, in place: to the process's own cache whose capacity follows the memory that is
    /// left ([`Cache::global_auto`]), and back. All methods work whoever has the map; errors of flushes and advice are [`Error::Io`] with the error number of msync(2) and madvise(2). What is
    /// pinned does not change hands. What [`MapOptions::map`] says of system calls and SIGBUS holds, and mmap(2), munmap(2) and their
    /// kin are not to be used on the map's addresses. In a child made by fork(2) it is the kernel's.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1 << 20)?;
    /// use fastmap::{Engine, MapOptions, Placement};
    ///
    /// // SAFETY: nobody else changes the file.
    /// let map = unsafe { MapOptions::new().placement(Placement::Kernel).map(&file)? };
    /// assert_eq!(map.engine(), Engine::Kernel);
    /// # Ok(())
    /// # }
    /// ```
    pub fn placement(&mut self, placement: Placement) -> &mut Self {
        self.placing = match placement {
            Placement::Kernel => Placing::Kernel,
            Placement::Engine => Placing::Engine,
            Placement::Auto => Placing::Auto(&ByAddress),
        };
        self
    }
}

/// The functions of `by_address`. Through the gate, each of them: a file changes hands before or after.
#[derive(Debug)]
struct ByAddress;

impl Calls for ByAddress {
    fn map(&self, part: &FilePart<'_>) -> Result<usize> {
        prepare_forks();
        let prot = libc::PROT_READ | if part.writable { libc::PROT_WRITE } else { 0 };
        let fd = part.file.as_fd();
        let _passing = by_address::pass();
        let has_engine = !fork::is_child() && own::has_engine(fd);
        if has_engine {
            let (flags, one_writer, fallback, async_stores, layers) =
                (libc::MAP_SHARED, true, Fallback::Kernel, false, true);
            let (len, offset) = (part.len, part.offset);
            let request = Request { addr: 0, len, prot, flags, offset, one_writer, fallback, async_stores, layers };
            // SAFETY: the contract of `MapOptions::map`.
            if let Some(at) = unsafe { by_address::map(fd, &Cache::global_auto()?, &request)? } {
                return Ok(at as usize);
            }
        }
        // SAFETY: where the kernel likes, so it replaces nothing.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), part.len, prot, libc::MAP_SHARED, fd.as_raw_fd(), part.offset as i64)
        };
        if at == libc::MAP_FAILED {
            let source = io::Error::last_os_error();
            return Err(Error::Io { path: file::path_of(part.file), operation: "map it (mmap)", source });
        }
        match has_engine {
            true => by_address::note_kernel(fd, at as usize, part.len),
            false if !fork::is_child() => own::look_after(fd, at as usize, part.len),
            false => {}
        }
        Ok(at as usize)
    }

    fn is_engines(&self, at: &Range<usize>) -> bool {
        by_address::is_cached(at.start, at.len())
    }

    fn sync(&self, at: &Range<usize>) -> std::result::Result<(), i32> {
        let _passing = by_address::pass();
        by_address::sync(at.start, at.len(), libc::MS_SYNC)
    }

    fn advise(&self, at: &Range<usize>, advice: Advice) -> std::result::Result<(), i32> {
        let number = match advice {
            Advice::Normal => libc::MADV_NORMAL,
            Advice::Random => libc::MADV_RANDOM,
            Advice::Sequential => libc::MADV_SEQUENTIAL,
            Advice::Backward => return backward(at),
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::DontNeed => libc::MADV_DONTNEED,
        };
        let _passing = by_address::pass();
        own::note_advice(at.start..at.end.next_multiple_of(PAGE), number);
        // SAFETY: advice that loses nothing of a shared mapping of a file.
        unsafe { by_address::advise(at.start, at.len(), number) }
    }

    fn prefetch(&self, ranges: &[Range<usize>]) -> Result<usize> {
        let _passing = by_address::pass();
        by_address::prefetch(ranges)
    }

    fn prefetch_wait(&self, ranges: &[Range<usize>]) -> Result<()> {
        let _passing = by_address::pass();
        by_address::prefetch_wait(ranges)
    }

    fn gather(&self, ranges: &[Range<usize>], output: &mut [u8]) -> Result<()> {
        let _passing = by_address::pass();
        by_address::gather(ranges, output)
    }

    fn keep(&self, at: &Range<usize>, writing: bool) -> Result<()> {
        let _passing = by_address::pass();
        by_address::keep(at.start, at.len(), writing)
    }

    fn let_go(&self, at: &Range<usize>, writing: bool) {
        // There is one as long as its guard is there.
        let _ = by_address::let_go(at.start, at.len(), writing);
    }

    fn read(&self, at: usize, buffer: &mut [u8]) -> Result<()> {
        let _passing = by_address::pass();
        // SAFETY: a buffer of as many bytes.
        unsafe { by_address::read(at, buffer.as_mut_ptr(), buffer.len()) }
    }

    fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        let _passing = by_address::pass();
        // SAFETY: as many bytes; the map is borrowed mutable.
        unsafe { by_address::write(at, data.as_ptr(), data.len()) }
    }

    fn set_readahead(&self, at: usize, bytes: usize) -> std::result::Result<(), i32> {
        let _passing = by_address::pass();
        by_address::set_readahead(at, bytes)
    }

    fn remap(&self, at: &Range<usize>, new_len: usize) -> std::result::Result<usize, i32> {
        let _passing = by_address::pass();
        let moving = own::Moving::begin();
        // SAFETY: the map is borrowed mutable, and what is there goes with it.
        let to = unsafe { by_address::remap(at.start, at.len(), new_len, libc::MREMAP_MAYMOVE, 0) }? as usize;
        moving.done(&(at.start..at.end.next_multiple_of(PAGE)), &(to..(to + new_len).next_multiple_of(PAGE)));
        Ok(to)
    }

    fn unmap(&self, at: &Range<usize>) {
        let _passing = by_address::pass();
        // SAFETY: the map is gone. Of whole pages that are mapped it does not fail.
        let _ = unsafe { by_address::unmap(at.start, at.len()) };
    }
}

fn backward(at: &Range<usize>) -> std::result::Result<(), i32> {
    let _passing = by_address::pass();
    own::note_backward(at.start..at.end.next_multiple_of(PAGE));
    by_address::expect_backward(at.start, at.len())
}

/// Children made by fork(2) see what their parent has.
fn prepare_forks() {
    static PREPARED: Once = Once::new();
    extern "C" fn in_parent() {
        // SAFETY: `before_fork` ran in this thread.
        unsafe { by_address::in_parent() };
    }
    extern "C" fn in_child() {
        // SAFETY: `before_fork` ran in the thread that forked.
        unsafe { by_address::in_child() };
    }
    extern "C" fn before() {
        by_address::before_fork();
    }
    PREPARED.call_once(|| {
        // SAFETY: functions of this program's.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}
