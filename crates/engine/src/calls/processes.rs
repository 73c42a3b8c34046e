//! Maps when a process makes another: fork(2), and whatever comes after this program.

use super::MAPS;
use super::table::Table;
use crate::fault;
use crate::registry;
use crate::sys::signal::Blocked;
use crate::sys::{PAGE, errno};
use crate::writers;
use std::sync::Mutex;

/// Writes every dirty page of every file to it, as far as that is possible: before somebody else reads them.
pub fn save_all() {
    let to_save = |region: &registry::InUse<'_>| region.is_ours() && region.is_writable() && region.scratch().is_none();
    for region in registry::all().filter(to_save) {
        // It stays dirty, and is told of by whoever flushes.
        let _ = writers::write_out(&region, 0..region.span() / PAGE);
    }
}

/// The signal mask of the thread that forks, while it does.
static MASK: Mutex<Option<Blocked>> = Mutex::new(None);

/// Before fork(2): dirty pages are written, and the table is kept as it is, with signals blocked, until [`in_parent`] or
/// [`in_child`].
pub fn before_fork() {
    save_all();
    let blocked = Blocked::all();
    MAPS.freeze();
    *MASK.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(blocked);
}

/// After fork(2), in the parent, or when it failed.
///
/// # Safety
/// [`before_fork`] came before, in this thread.
pub unsafe fn in_parent() {
    let blocked = MASK.lock().unwrap_or_else(|poison| poison.into_inner()).take();
    // SAFETY: the caller's contract.
    unsafe { MAPS.thaw() };
    drop(blocked);
}

/// After fork(2), in the child: kernel mappings of the same files at the same addresses, with the same protection. It sees what
/// was stored before, and shares with its parent what later reaches the files. All maps in the child are the kernel's.
///
/// # Safety
/// [`before_fork`] came before, in the thread that this child is made of.
pub unsafe fn in_child() {
    // SAFETY: as the caller says. No signal comes before `in_parent`'s part is done.
    unsafe { MAPS.thaw() };
    MAPS.with(map_in_child);
    registry::forget_all();
    drop(MASK.lock().unwrap_or_else(|poison| poison.into_inner()).take());
}

fn map_in_child(table: &mut Table) {
    let mut kept: Vec<_> =
        table.pieces().iter().filter(|piece| !piece.not_in_children).map(|piece| piece.at.clone()).collect();
    kept.sort_by_key(|at| at.start);
    kept.dedup();
    for (at, prot) in kept.iter().flat_map(|at| table.protections(at)) {
        let Some((piece, _)) = table.meeting(&at).next() else { continue };
        let region = &piece.share.region;
        let [reading, writing, ..] = region.store().descriptors();
        let fd = writing.or(reading).unwrap_or(-1);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let offset = (region.page_at(at.start) * PAGE) as i64;
        // SAFETY: nothing is there: regions are not inherited.
        if unsafe { libc::mmap(at.start as *mut _, at.len(), prot, flags, fd, offset) } == libc::MAP_FAILED {
            fault::say(
                region,
                region.page_at(at.start),
                format_args!("is not mapped in a child: mmap failed with error {}", errno()),
            );
        }
    }
    // Regions and locks are the parent's: never dropped here.
    std::mem::forget(std::mem::take(table));
}
