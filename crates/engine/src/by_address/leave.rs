//! A process that can have neither the engine's threads nor its system calls any more: it goes on without the engine.

use super::convert::convert;
use super::kernel_mappings::KernelMappings;
use super::own::{look, own};
use super::why::Why;
use crate::files::{children, keeper, leases, lifecycle};
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

/// Called after capset(2) of the calling thread: the engine's threads give up each capability that no thread of the program has any more.
pub fn follow_rights() {
    threads::await_names();
    rights::follow();
}

/// Returns the work of a thread that is the engine's by its name (`fastmap-`), and acts in place of the program's threads, with their rights.
pub fn own_thread<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    threads::named_with_rights(body)
}

/// Converts every map to an ordinary kernel mapping, and ends the engine's threads. `cache` is the only cache, if there is one, and nobody maps
/// anything through it meanwhile or afterwards.
///
/// # Errors
/// The error number for which a map could not be converted; EBUSY where there are maps of another kind (a heap), or threads that do not end
/// (those that serve faults, `Faults::Service`). Maps that were converted stay so.
pub fn leave(cache: Option<&Cache>) -> Result<(), i32> {
    // In a thread of its own: the workers that io_uring(7) keeps for a thread that waited for a write go with that thread only.
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
    leases::dismiss();
    keeper::dismiss();
    if threads::await_own_threads() { Ok(()) } else { Err(libc::EBUSY) }
}

/// Converts every map made by address to a kernel mapping. The caller sees to it that no others are made.
///
/// # Errors
/// The error number for which a map could not be converted.
///
/// ```
/// assert_eq!(fastmap::by_address::leave_all_to_kernel(fastmap::by_address::Why::Ring), Ok(())); // nothing is mapped
/// ```
pub fn leave_all_to_kernel(why: Why) -> Result<(), i32> {
    if fork::is_child() {
        return Ok(());
    }
    let owner = own();
    let mut identities: Vec<_> = look(|table| table.pieces().iter().map(|piece| piece.share.identity).collect());
    identities.dedup();
    // All that can be, also where one cannot.
    let failed: Vec<_> = identities.into_iter().filter_map(|identity| convert(&owner, identity, why).err()).collect();
    failed.first().map_or(Ok(()), |error| Err(error.errno()))
}

fn convert_all() -> Result<(), i32> {
    let owner = own();
    leave_all_to_kernel(Why::Left)?;
    if registry::all().any(|region| region.is_ours() && !region.is_converted()) {
        return Err(libc::EBUSY);
    }
    // Nothing will be mapped through the engine any more: nobody need agree with it.
    owner.change(|table| table.kernel_mappings = KernelMappings::new());
    Ok(())
}
