//! Which files are in the engine, and the life of their regions.
//!
//! Owns the table of files, opening and closing, length, the keeper, what a child made by fork(2) finds, and the start
//! of the engine's threads. May call: all rooms above it.
//!
//! # Changes of length
//!
//! A fault sees growth by itself: `read_page` asks for the file's length before it says that a page is past the end.
//! Every other change is seen by the next flush, new map, growth or advice: `length::follow` compares the file's length with the length that was
//! followed last. It takes out of memory, once, every page past a new end, and the page that holds the lower of the two ends.
//!
//! * A page whose read was under way when the file was cut is waited for, and leaves, too.
//! * A page that is stored to all the time would never be clean: `evict::invalidate::drop_page` claims it as it is.
//! * A pinned page stays. The region remembers where the file ended (`left_behind`) and keeps the length that it had followed, so each later
//!   look tries again.
//! * If a map grows while the page of the old end is pinned, the bytes of that page behind the end are cleared, as the kernel does.
//!
//! A map that outgrows its region's addresses gets a larger region (`table::replace`). All that can fail comes first: the dirty pages are
//! written, the file is extended, the new region is made. Then the old region is dissolved. Both share the store, which remembers a failed sync.
//!
//! `MapOptions::reserve` allocates in a mode of fallocate(2) that leaves the length alone, then extends the file: a failure leaves map and
//! length as they were.
//!
//! # Going away
//!
//! When the last map of a file is dropped, its dirty pages are written. Then the region leaves the registry, waits until no evictor or writer is
//! inside, and is unmapped; its entries are purged and its frames given back. If the pages cannot be written the region stays: the writers try
//! again, and the next map of the file finds it. At exit, the regions of maps that were never dropped are written.
//!
//! # The keeper
//!
//! The keeper is a process that writes what a program left dirty when it ended. It shares the program's memory. From the moment it is made it is
//! confined (`sys/confine.rs`): it has no capabilities, gains no privileges, and may make only the system calls of a list (seccomp(2)). It opens
//! no file, and io_uring(7) is not on the list. A program may drop its rights later; an attacker who then takes it over gains nothing by the
//! keeper. The keeper's user stays the program's: as another user's process it would let that user trace the program's memory.
//!
//! When the program has ended, the keeper
//!
//! 1. takes a table of descriptors of its own and closes what it does not need (the userfaultfds stay: without them the kernel would let
//!    absent pages read as zeros);
//! 2. waits until it alone has the memory and nothing is in flight in the rings, however long that takes;
//! 3. writes what store buffers hold, and the lines of Unfilled pages;
//! 4. takes a write lease of each file, so that whoever opens it waits; not if somebody else has it open, nor for more dirty pages than may go
//!    to the page cache, as those that are written under a lease do: it is given to a file's only open file description;
//! 5. writes every page that may hold stores (a page that was claimed and not installed gives EFAULT, and has nothing to save);
//! 6. unlocks the files and tells children;
//! 7. ends.
//!
//! `fastmap run` waits for it ([`keeper::register_in`]).
//!
//! It is nobody's child: exec(2) would leave it to the next program as a zombie. It cannot help
//!
//! * when the power fails;
//! * when all that shares the memory is killed with the program (OOM killer, a cgroup, a PID namespace);
//! * when the program is PID 1 (no keeper is started);
//! * when it is killed first.
//!
//! # Children
//!
//! Before fork(2) dirty pages are written. The table of maps by address stays locked until fork(2) has returned. Where no keeper could tell the
//! child that all is saved, and a map is writable, all files are converted to kernel mappings before the fork.

pub mod children;
pub mod closing;
pub mod facts;
pub mod keeper;
pub mod leases;
pub mod length;
pub mod lifecycle;
pub mod table;
