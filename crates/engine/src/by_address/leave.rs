//! A process that can have neither the engine's threads nor its system calls any more: it goes on without the engine.

use super::convert::convert;
use super::own::{look, own};
use super::why::Why;
use crate::files::{children, foreign_writers, keeper, lifecycle};
use crate::live;
use crate::map::cache::Cache;
use crate::region::registry;
use crate::sys::signal::Blocked;
use crate::sys::{fork, rights, threads};

/// Whether the calling thread is the only one of its process, the engine's apart. Asks /proc.
pub fn is_alone() -> bool {
    threads::is_alone()
}

/// Whether this is a child made by fork(2), or by clone(2) without `CLONE_VM`, of a process that the engine runs in.
pub fn is_in_child() -> bool {
    fork::is_child()
}

/// After capset(2) of the calling thread: the engine's threads have no capability any more that none of the program's has.
pub fn follow_rights() {
    threads::await_names();
    rights::follow();
}

/// The work of a thread that is the engine's by its name (`fastmap-`) and acts in place of the program's, with their rights.
pub fn own_thread<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    threads::named_with_rights(body)
}

/// Makes every map an ordinary kernel mapping, and ends the engine's threads: `cache` is the only one, if there is one,
/// and nobody maps anything through it meanwhile or afterwards.
///
/// # Errors
/// What kept one map from being converted, an error number; EBUSY where there are maps of another kind (a heap), or
/// threads that do not end (those that serve faults, `Faults::Service`). What was converted stays so.
pub fn leave(cache: Option<&Cache>) -> Result<(), i32> {
    // What io_uring(7) keeps for a thread that had to wait for a write goes with that thread only.
    let body = || {
        let _blocked = Blocked::all();
        convert_all()
    };
    let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EAGAIN);
    let thread = std::thread::Builder::new().name("fastmap-leave".into()).spawn(body).map_err(failed)?;
    thread.join().unwrap_or(Err(libc::EIO))?;
    cache.iter().for_each(|cache| lifecycle::end_threads(&cache.pool));
    live::withdraw();
    children::note_saved();
    foreign_writers::dismiss();
    keeper::dismiss();
    if threads::await_own_threads() { Ok(()) } else { Err(libc::EBUSY) }
}

fn convert_all() -> Result<(), i32> {
    let owner = own();
    let mut identities: Vec<_> = look(|table| table.pieces().iter().map(|piece| piece.share.identity).collect());
    identities.dedup();
    identities
        .into_iter()
        .try_for_each(|identity| convert(&owner, identity, Why::Left).map_err(|error| error.errno()))?;
    if registry::all().any(|region| region.is_ours() && !region.is_converted()) {
        return Err(libc::EBUSY);
    }
    Ok(())
}
