//! Files that are memory already, mapped straight.
//!
//! Owns how stores to a direct mapping are made to last, and where such mappings lie. May call: `fault`, and of the
//! rooms above it `sys`, `counters`, `error`, `modes`.
//!
//! # How stores last
//!
//! *Synchronous* (DAX with `MAP_SYNC`): a flush of up to 64 KiB writes all lines of the range and a fence: no system
//! call. Larger ones are msync(2)'s: the kernel knows what is dirty, through whichever mapping or process. *Nothing*:
//! tmpfs, ramfs, hugetlbfs. *Tracked*: those with `Persist::CacheLines`: one userfaultfd for all mappings protects
//! pages asynchronously, `PAGEMAP_SCAN` finds those that are not protected and protects them in the same step, and
//! their lines are written after that, so a store is either before the protection and among them, or found next time.
//! *Lines* where the kernel cannot track: all of the range. *Kernel* where lines do not suffice (DAX without
//! `MAP_SYNC`).
//!
//! Tracking is each mapping's own, so a large flush looks at all mappings of the file, under a lock of the file: a
//! thread that finds a page clean that another has found dirty waits until it is written. Nothing is registered before
//! the first large flush: until then all that is present counts as stored to, and the kernel maps pages around a fault
//! (it does not in registered memory).
//!
//! *Inside huge pages*: `PAGEMAP_SCAN` protects a huge page whole; at the next store the kernel drops it and, for a
//! file, maps all of it anew, unprotected: 2 MiB are dirty. `UFFDIO_WRITEPROTECT` over what was found splits it for
//! good. So a huge page costs one flush of 2 MiB and is told apart afterwards. Scans cover whole huge pages: asked for
//! a part of one, the kernel splits it, forgets that it was written, and finds nothing. Pages of hugetlbfs cannot be
//! split, and are written whole.
//!
//! *Never on DAX* is memory registered (seen on Linux 6.12; the source of 6.18 reads the same). A store to a protected
//! huge page makes it writable and leaves the mark that says protected: the store is not found. And where a protected 4
//! KiB page is dropped (ftruncate(2), `MADV_DONTNEED`), a marker stays in the page table that DAX takes for a page: a
//! touch of it faults for ever. Nor is cachestat(2) called there, which brings Linux 6.12 down (`filemap_cachestat`
//! takes DAX's entries for evicted pages').
//!
//! *Past the end* of a file a line raises SIGBUS. No system call asks for the length before: the handler knows the loop
//! by its address (`lines::give_up`), goes on behind it, and the flush passes the page over; memory that went bad is
//! EIO.
//!
//! `fastmap run` gives DAX mappings no huge pages (`MADV_NOHUGEPAGE`): a program written for disks flushes its whole
//! mapping, and the kernel's dirty marks are as large as its pages. tmpfs without `cache-lines` it leaves to the kernel
//! altogether.

pub mod mapping;
pub mod table;
