//! Which files are in the engine, and the life of their regions.
//!
//! Owns the table of files, opening and closing, length, the keeper, what a child made by fork(2) finds, and the start
//! of the engine's threads. May call: all rooms above it.
//!
//! # Another length
//!
//! Faults follow growth by themselves: `read_page` asks for the length before it says that a page is past the end.
//! Everything else waits for the next flush, new map, growth or advice, which compares the file's length with the one
//! it met last (`length::follow`). Every page past a new end, or that holds an end, is seen out of memory once, so one
//! whose read was under way when the file was cut is met too. One that is stored to all the time would never be clean:
//! `evict::batch::expel` claims it as it is. Pages that are pinned stay: the region remembers where the file ended
//! (`left_behind`) and keeps the length it had followed, so each later look tries again. A map that grows while the
//! page of the old end is pinned has what that page holds behind the end cleared, as the kernel does. A map that
//! outgrows its region's addresses gets a larger one (`table::replace`): dirty pages written, the file extended, the
//! new region made, all that can fail; then the old one dissolved. Both share the store, which remembers a failed sync.
//! `MapOptions::reserve` allocates in a mode of fallocate(2) that leaves the length alone, then extends: a failure
//! leaves both as they were.
//!
//! # Going away
//!
//! When the last map of a file is dropped its dirty pages are written; then the region leaves the registry, waits until
//! no evictor or writer is inside, is unmapped, its entries are purged and its frames given back. If the pages cannot
//! be written the region stays: the writers try again, and the next map of the file finds it. At exit, regions of maps
//! never dropped are written.
//!
//! # The keeper
//!
//! It is confined from the moment it is made (`process::confine`): no capabilities, no new privileges, an allow-list of
//! seccomp(2); it opens nothing, and io_uring(7) is not on the list. So a program that drops its rights later and is
//! taken over gains nothing by it. Its user stays: a process of another user with the program's memory would be that
//! user's to trace. When the program has ended it takes a table of descriptors of its own and closes what it does not
//! need (but keeps the userfaultfds, without which the kernel would let absent pages read as zeros); waits until it
//! alone has the memory and nothing is in flight in the rings, however long; writes what store buffers hold, the lines
//! of Unread pages, then every page that may hold stores (one that was claimed but not installed gives EFAULT, and has
//! nothing to save); unlocks the files, tells children, and ends. It is nobody's child, since exec(2) would leave it to
//! the next program as a zombie. It cannot help when the power fails, when all that shares the memory is killed with
//! the program (OOM killer, a cgroup, a PID namespace), when the program is PID 1 (none is started), or when it is
//! killed first.
//!
//! # Children
//!
//! fork(2): dirty pages are written before, the table stays locked across it. Where there is no keeper to say that all
//! is saved, files are converted to kernel mappings before the fork.

pub mod children;
pub mod closing;
pub mod facts;
pub mod foreign_writers;
pub mod keeper;
pub mod length;
pub mod lifecycle;
pub mod table;
