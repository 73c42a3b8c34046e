//! A file's kernel mappings become the engine's, in place and under threads that load, store and make system calls; and go back.
//!
//! A region is made whose memory lies elsewhere, registered and protected as it is to be. All its pages are invalidated: whoever
//! touches one waits. Then mremap(2) puts that memory in the place of the kernel's mapping, a stripe in one step: until then a
//! thread loads and stores through the page cache, afterwards it traps, and there is no moment in between at which the range is
//! neither. What was stored through the kernel's mapping is in the page cache, dirty; direct I/O writes it back before it reads
//! (`store/file.rs`). Last, the pages are let go.
//!
//! A private mapping (`MAP_PRIVATE`) that may only be read shows the file as a shared one does, unless it has pages of its own: it
//! was stored to before it was protected, or a debugger wrote there. One without goes over and back in the same way, and to the
//! kernel before it may be stored to.
//!
//! Calls on mappings stay out meanwhile (`gate.rs`). A system call that is under way, with a buffer in the range, would fail with EFAULT:
//! if a thread is in one (proc(5)), the file is left for another time. One that begins in the moment between is repeated by who
//! wraps it, as it then finds the range to be the engine's.
//!
//! The way back is `convert.rs`, as for all that the engine cannot do; but then the file may be taken again.

use super::convert::convert;
use super::fork as fork_of;
use super::gate;
use super::own::{look, own};
use super::table::{Piece, Share};
use super::why::{self, Why};
use crate::deferred::protocol::DeferredMode;
use crate::error::{Error, Result};
use crate::evict::invalidate;
use crate::fault::late;
use crate::files::facts::facts_of;
use crate::files::foreign_writers;
use crate::files::lifecycle::{open_to_loads, start_threads};
use crate::files::table::{self as files, AttachOptions};
use crate::map::cache::Cache;
use crate::modes::Fallback;
use crate::region::address::Place;
use crate::region::region::Region;
use crate::region::userfaultfds::by_service;
use crate::region::{registry, report};
use crate::store;
use crate::sys::file::Identity;
use crate::sys::maps::{self, FileMapping};
use crate::sys::pagemap::Pagemap;
use crate::sys::{PAGE, engine_fd, file, memory, proc_files, threads};
use crate::writeback::flush;
use std::fmt;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Why a file stays the kernel's.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// For the moment: somebody uses it in a way that passes.
    Busy(&'static str),
    /// It cannot be the engine's.
    Unfit(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Busy(why) => to.write_str(why),
            Refusal::Unfit(why) => to.write_str(why),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Unfit(error.to_string())
    }
}

/// While this is held no file changes hands.
pub(crate) type Still = MutexGuard<'static, ()>;

/// One file changes hands at a time: whoever asks waits for its turn. Before the gate, if that too.
pub(crate) fn turn() -> Still {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Makes the mappings of a file of this process the engine's: neighbours, of like kind and protection, and all that it has of this
/// file. `is_wanted` is asked once more at the last moment. `from` may write if they may be stored to, or may be made so
/// (`may_write`); private ones may neither.
pub(crate) fn take_over(
    from: &File,
    parts: &[FileMapping],
    may_write: bool,
    cache: &Cache,
    is_wanted: impl Fn() -> bool,
) -> std::result::Result<Identity, Refusal> {
    let _turn = turn();
    let facts = facts_of(from)?;
    let identity = facts.identity;
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Err(Refusal::Busy("it is not mapped"));
    };
    let writable = first.prot & libc::PROT_WRITE != 0;
    let may_write = may_write && first.is_shared;
    let base = first.at.start.wrapping_sub(first.offset as usize);
    let range_of_all = last.at.end - first.at.start;
    let is_one = parts.windows(2).all(|two| two[0].at.end == two[1].at.start)
        && parts.iter().all(|one| {
            one.at.start.wrapping_sub(one.offset as usize) == base
                && (one.prot, one.is_shared) == (first.prot, first.is_shared)
        });
    let served = if first.is_shared { &super::map::SERVED[..] } else { &[libc::PROT_READ] };
    if !is_one || !served.contains(&first.prot) || base > first.at.start {
        return Err(Refusal::Busy("it is mapped in more than one place or way"));
    }
    if has_async_io() {
        return Err(Refusal::Busy("there may be requests to io_uring or Linux AIO"));
    }
    if range_of_all > (16 << 30) && range_of_all as u64 / 4 > file::size_now(from, None, false).unwrap_or(0) {
        return Err(Refusal::Unfit("far more is mapped than the file has".into()));
    }
    if by_service() {
        return Err(Refusal::Unfit("threads serve its faults".into()));
    }
    if locked_memory() >= range_of_all {
        return Err(Refusal::Unfit("memory is locked (mlock)".into()));
    }
    let is_kernels = |table: &mut super::table::Table| {
        table.meet(from, identity);
        table.is_kernels(identity, &(0..0))
    };
    if own().change(is_kernels) {
        return Err(Refusal::Unfit("it went back to the kernel".into()));
    }
    if bytes_of(identity) > 0 {
        return Err(Refusal::Busy("it is the engine's already"));
    }
    if writable && foreign_writers::user_elsewhere(identity, first.file).is_some() {
        // A child before execve(2), perhaps.
        return Err(Refusal::Busy("another process uses it, too"));
    }
    let range = first.at.start..last.at.end;
    let end = first.offset as usize + range.len();
    let options = AttachOptions {
        pool: Some(&cache.pool),
        writable,
        one_writer: true,
        fallback: Fallback::Refuse,
        place: Place::Over { address: range.start, offset: first.offset as usize },
        scratch: false,
        by_address: true,
        deferred: DeferredMode { initial: None, keep: false },
    };
    start_threads(&cache.pool, writable)?;
    fork_of::expect_children();
    foreign_writers::prepare(fork_of::give_back);
    let Some(region) = files::attach(from, &facts, end, options, &store::open)? else {
        return Err(Refusal::Unfit("it cannot be cached".into()));
    };
    let writer = (!writable && may_write).then(|| file::another(from).ok()).flatten();
    let (kind, moved) = (kind_of(first), AtomicBool::new(false));
    let share = Arc::new(Share { region: region.clone(), identity, writer, may_write, kind, moved });
    if !region.address().is_elsewhere() {
        return Err(Refusal::Busy("it is being mapped"));
    }
    own().change(|table| table.taking = Some((identity, false)));
    foreign_writers::watch(from, identity, fork_of::give_back).map_err(Refusal::Unfit)?;
    // Calls on the file that begin from now on are accompanied.
    file::await_changes(from);
    protect(&region, first.prot)?;
    exchange(&region, parts, &range, share, is_wanted)?;
    why::tell(&region, None);
    Ok(identity)
}

/// As mmap(2) has it.
fn kind_of(one: &FileMapping) -> i32 {
    if one.is_shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE }
}

/// Gives a region's memory the protection that it will have, while nobody sees it.
fn protect(region: &Region, prot: i32) -> Result<()> {
    for (at, len) in region.address().memory() {
        // SAFETY: the region's own, and not at its addresses yet.
        let done = unsafe {
            if region.is_writable() {
                memory::protect(at, len, prot & libc::PROT_WRITE != 0)
            } else {
                open_to_loads(region, at, len)
            }
        };
        done.map_err(|source| region.io_error("protect its map (mprotect)", source))?;
    }
    Ok(())
}

/// The exchange itself.
fn exchange(
    region: &Arc<Region>,
    parts: &[FileMapping],
    range: &Range<usize>,
    share: Arc<Share>,
    is_wanted: impl Fn() -> bool,
) -> std::result::Result<(), Refusal> {
    let failed = |error| Refusal::Unfit(format!("a thread or its work fails with error {error}"));
    let done = Arc::new(AtomicBool::new(false));
    let reader =
        read_events(region, done.clone()).map_err(|error| failed(error.raw_os_error().unwrap_or(libc::EAGAIN)));
    let reader = reader?;
    let threads = list_threads();
    // From here on no memory of the C library's allocator, whose lock may be held by who waits at the gate.
    let exchanged = (|| {
        let Some(_closed) = gate::close() else { return Err(Refusal::Busy("calls on mappings are under way")) };
        let owner = own();
        if !is_wanted() {
            return Err(Refusal::Busy("it is not wanted any more"));
        }
        // Now that none can change them.
        let file = parts[0].file;
        let now = maps::own().map_err(|error| failed(error.raw_os_error().unwrap_or(libc::EIO)))?;
        if !now.iter().filter(|one| one.file == file).eq(parts) {
            return Err(Refusal::Busy("its mappings have changed"));
        }
        if !parts[0].is_shared && has_private_pages(range) {
            return Err(Refusal::Unfit("it has private pages".into()));
        }
        if is_in_a_call(&threads, range) {
            return Err(Refusal::Busy("a system call uses it"));
        }
        owner.change(|table| {
            if table.taking.take() != Some((share.identity, false)) {
                return Err(Refusal::Unfit("another process writes it".into()));
            }
            if table.is_pinned_in_kernel(range) {
                return Err(Refusal::Busy("it is pinned"));
            }
            let address = region.address();
            // Behind the end of the file nothing can come into memory.
            let end = (region.store().size() as usize).div_ceil(PAGE).min(address.page_at(range.end - 1) + 1);
            let pages = address.page_at(range.start)..end.max(address.page_at(range.start));
            let held = invalidate::invalidate(region, pages, usize::MAX).map_err(failed)?;
            // That may have taken long.
            if is_in_a_call(&threads, range) {
                return Err(Refusal::Busy("a system call uses it"));
            }
            registry::show(region);
            // SAFETY: the thread of `read_events` reads them; the file has what was stored through the kernel's mapping.
            if let Err((taken, error)) = unsafe { address.take_over() } {
                put_back(&share, parts, &taken);
                // For threads that trapped meanwhile: the kernel serves them.
                region.keep_for_good();
                region.note_converted(std::iter::empty());
                late::expect_late();
                drop(held);
                return Err(failed(error.raw_os_error().unwrap_or(libc::ENOMEM)));
            }
            for part in parts {
                let (at, prot) = (part.at.clone(), part.prot);
                table.forget_looked_after(&at);
                table.kernel_mappings.forget(&at);
                table.add(Piece { at, prot, not_in_children: false, share: share.clone() });
            }
            drop(held);
            Ok(())
        })
    })();
    done.store(true, Ordering::Release);
    // The program may wait for the end of its maps by now, with a lock that the other thread's end takes.
    drop(share);
    let _ = reader.join();
    exchanged
}

/// Puts the kernel's mapping back where the region's memory is already.
fn put_back(share: &Share, parts: &[FileMapping], taken: &Range<usize>) {
    for part in parts {
        let Some(at) = super::table::intersection(&part.at, taken) else { continue };
        let offset = part.offset + (at.start - part.at.start) as u64;
        let flags = kind_of(part) | libc::MAP_FIXED;
        let fd = share.descriptor().unwrap_or(-1);
        // SAFETY: the region's, all its pages held and absent.
        let got = unsafe { libc::mmap(at.start as *mut _, at.len(), part.prot, flags, fd, offset as i64) };
        if got == libc::MAP_FAILED {
            report::die(&share.region, "the kernel refuses both its own mapping and the former one (mmap)");
        }
    }
}

/// Whether a private mapping has pages that are not the file's; yes, where that cannot be asked.
fn has_private_pages(range: &Range<usize>) -> bool {
    let _low = engine_fd::low();
    Pagemap::open().and_then(|pagemap| pagemap.has_private(range)).unwrap_or(true)
}

/// A thread that reads the userfaultfds' events until it is done: mremap(2) waits for that.
fn read_events(region: &Region, done: Arc<AtomicBool>) -> std::io::Result<std::thread::JoinHandle<()>> {
    let userfaultfds = region.address().userfaultfds();
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let body = threads::named(move || {
        let _ = tell.send(());
        while !done.load(Ordering::Acquire) {
            userfaultfds.iter().for_each(|one| one.skip_event());
            std::thread::sleep(Duration::from_micros(20));
        }
    });
    let _blocked = crate::sys::signal::Blocked::all();
    let thread = std::thread::Builder::new().name("fastmap-take".into()).stack_size(128 << 10).spawn(body)?;
    // Its start takes memory of the program's allocator.
    let _ = told.recv();
    Ok(thread)
}

/// Bytes of this process that are locked (proc_pid_status(5)).
fn locked_memory() -> usize {
    let text = proc_files::text("/proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0) << 10
}

/// System calls whose buffers are in a list.
const LISTS: [i64; 11] = [
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_vmsplice,
];

/// Whether requests of the program's may be under way that no thread is in: io_uring(7), Linux AIO (io_submit(2)). Their buffers are
/// the page cache's pages until they end.
fn has_async_io() -> bool {
    let is_ring = |number: u32| {
        !engine_fd::is_engine_fd(number as i32)
            && fs::read_link(format!("/proc/self/fd/{number}"))
                .is_ok_and(|link| link.as_os_str() == "anon_inode:[io_uring]")
    };
    maps::has_async_io() || proc_files::numbers("/proc/self/fd").into_iter().any(is_ring)
}

/// Whether a thread of this process is in a system call with an argument in a range (proc_pid_syscall(5)), or in one whose buffers are in
/// a list somewhere; no, where that cannot be asked.
fn is_in_a_call(threads: &[PathBuf], range: &Range<usize>) -> bool {
    let has_one = |text: String| {
        let mut words = text.split_ascii_whitespace();
        // Of a thread that runs it is one word.
        let Some(call) = words.next().and_then(|number| number.parse::<i64>().ok()) else { return false };
        let number = |word: &str| usize::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        LISTS.contains(&call) || words.take(6).filter_map(number).any(|argument| range.contains(&argument))
    };
    threads.iter().map(|thread| proc_files::text(thread.join("syscall"))).any(has_one)
}

/// The threads of this process.
fn list_threads() -> Vec<PathBuf> {
    let path = |thread: u32| Path::new("/proc/self/task").join(thread.to_string());
    proc_files::numbers("/proc/self/task").into_iter().map(path).collect()
}

/// Gives a file that was taken over back to the kernel, for as long as nobody takes it over again; its mappings are `noted` then. False:
/// not now, it is pinned, calls on mappings are under way, or it is not wanted any more when there are none.
pub(crate) fn return_to_kernel(identity: Identity, noted: bool, is_wanted: impl Fn() -> bool) -> Result<bool> {
    let _turn = turn();
    let region = look(|table| {
        let piece = table.pieces().iter().find(|piece| piece.share.identity == identity);
        piece.map(|piece| piece.share.region.clone())
    });
    let Some(region) = region else { return Ok(true) };
    let is_pinned = || look(|table| table.is_pinned(identity));
    if is_pinned() {
        return Ok(false);
    }
    // Most of it while nobody waits.
    flush::write_out(&region, 0..region.span() / PAGE)?;
    drop(region);
    // A call on mappings would find them to be the engine's, and gone.
    let Some(_closed) = gate::close() else { return Ok(false) };
    // Who unpins would wait at the gate.
    if is_pinned() || !is_wanted() {
        return Ok(false);
    }
    let owner = own();
    let ranges = look(|table| {
        let of_file = table.pieces().iter().filter(|piece| piece.share.identity == identity);
        of_file.map(|piece| piece.at.clone()).collect::<Vec<_>>()
    });
    convert(&owner, identity, Why::Placement)?;
    owner.change(|table| {
        for at in &ranges {
            if !table.kernel_mappings.is_layered(at) {
                table.kernel_mappings.forget(at);
                if noted {
                    table.looked_after.add(at.clone(), identity);
                }
            }
        }
    });
    Ok(true)
}

/// Bytes of a file that the engine has mapped here; zero: none of it is the engine's.
pub(crate) fn bytes_of(identity: Identity) -> u64 {
    look(|table| {
        let of_file = table.pieces().iter().filter(|piece| piece.share.identity == identity);
        let there = |piece: &Piece| {
            let size = (piece.share.region.store().size() as usize).next_multiple_of(PAGE);
            let pages = piece.pages();
            (pages.end * PAGE).min(size).saturating_sub(pages.start * PAGE) as u64
        };
        of_file.map(there).sum()
    })
}
