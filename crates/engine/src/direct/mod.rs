//! Files that are memory already, mapped straight.
//!
//! Owns how stores to a direct mapping are made to last, and where such mappings lie. May call: `fault`, and of the
//! rooms above it `sys`, `counters`, `error`, `modes`.
//!
//! # How stores last
//!
//! There are five ways ([`mapping::Durability`]):
//!
//! * *Synchronous* (DAX with `MAP_SYNC`): a flush of up to 64 KiB writes all lines of the range to memory, and a fence,
//!   without a system call. A larger one is left to msync(2): the kernel knows which pages are dirty, through whichever
//!   mapping or process.
//! * *Nothing* (tmpfs, ramfs, hugetlbfs): nothing lasts, so a flush does nothing.
//! * *Tracked* (the same with `Persist::CacheLines`): one userfaultfd for all mappings protects pages asynchronously.
//!   `PAGEMAP_SCAN` finds pages that are not protected, and protects them in the same step. Their lines are written after
//!   that. So a store comes before the protection, and is written, or after it, and is found next time. A flush of up to
//!   64 KiB writes all lines here, too.
//! * *Lines* (the same where the kernel cannot track): a flush writes all lines of the range.
//! * *Kernel* (DAX without `MAP_SYNC`): lines do not suffice, so a flush is msync(2).
//!
//! *Tracking is each mapping's own.* So a large flush looks at all mappings of the file, under a lock of the file. A
//! thread that finds a page clean which another thread has found dirty waits until it is written. Nothing is registered
//! before the first large flush. Until then all pages that are present count as stored to, and the kernel maps pages
//! around a fault (which it does not do in registered memory).
//!
//! *Huge pages*: `PAGEMAP_SCAN` protects a huge page as a whole. At the next store the kernel drops it and, for a file,
//! maps all of it anew, unprotected: 2 MiB are dirty. `UFFDIO_WRITEPROTECT` over the pages found splits it for good. So a
//! huge page costs one flush of 2 MiB, and its small pages are told apart afterwards. Scans cover whole huge pages: asked
//! for a part of one, the kernel splits it, forgets that it was written, and finds nothing. Pages of hugetlbfs cannot be
//! split, and are written whole.
//!
//! *On DAX memory is never registered*, for two reasons (seen on Linux 6.12; the source of 6.18 reads the same):
//!
//! * A store to a protected huge page makes it writable and leaves the mark that says protected. So the store is not found.
//! * When a protected 4 KiB page is dropped (ftruncate(2), `MADV_DONTNEED`), a marker stays in the page table that DAX
//!   takes for a page. A touch of it faults for ever.
//!
//! cachestat(2) is not called on DAX either: it brings Linux 6.12 down (`filemap_cachestat` takes DAX's entries for those
//! of evicted pages).
//!
//! *Past the end* of a file a line raises SIGBUS. The length is not asked for before, which would be a system call. The
//! handler knows the loop by its address and goes on behind it (`lines::give_up`), and the flush passes the page over.
//! Memory that went bad is EIO.
//!
//! `fastmap run` gives DAX mappings no huge pages (`MADV_NOHUGEPAGE`): a program written for disks flushes its whole
//! mapping, and the kernel's dirty marks are as large as its pages. tmpfs without `cache-lines` is left to the kernel
//! altogether.

pub mod mapping;
pub mod table;
