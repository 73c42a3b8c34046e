//! Pages into memory before the program asks for them.
//!
//! Owns the detection of streams, their windows, prefetch, and the threads that read. May call: `evict` and the rooms
//! above it.
//!
//! # How it works
//!
//! A stream begins with misses of one stride, or with advice (a byte for each 2 MiB of the file: random turns
//! everything off there, sequential and backward begin a stream with the first miss). It belongs to one reader, which
//! alone knows how far it has come; threads that trap only add to the stream's counters and set its bit in the reader's
//! word. The window is 128 KiB at first, twice as much with each chunk used, up to 8 MiB, an eighth of the cache or the
//! user's `set_readahead`; half as much when a chunk was dropped unused. The reader takes idle frames, or evicts, but
//! never waits for write-back: where memory is full of dirty pages nothing is read ahead. It reads only what maps
//! cover, up to the end of the map that the stream is in: what no map covers may be written by others.
//!
//! *Chunks* lie in slots (`pool/staging.rs`) until a trap on one of their pages maps all of it:
//!
//! * *Buffers* of 32 pages: a stream's first chunks, strides, mutable maps, the neighbourhood of pages that are in
//!   memory. They are copied (`UFFDIO_COPY`), and stay.
//! * *Frames* of 2 MiB, for sequential streams with a window from 4 MiB on: moved into place (`UFFDIO_MOVE`),
//!   write-protected, and moved back into an empty slot when they are evicted. A frame has one entry in a clean queue
//!   and leaves memory whole (flag HUGE in its pages' words). Moved pages are writable for a moment, so frames exist
//!   only in a region without mutable maps. Its mapping is writable to the kernel, which otherwise would not move
//!   anything; a store is refused by protecting its page for good (`Region::forbid_stores`), so that the kernel raises
//!   SIGSEGV when it is repeated. When a region becomes mutable its frames go first.
//!
//! The claim of a Staged page loses no wake-up: a thread that found the slot taken announces itself in the word and
//! then checks the slot again; the thread that makes a slot ready looks for announced threads afterwards, and takes
//! their flag out of the word before it wakes them, since a futex(2) wake-up without a change of the word can be
//! missed.
//!
//! Slots are shared out between the streams that are at work, those included that found none a short while ago. Where a stream's share is
//! fewer than four, its chunks are larger parts of its window.
//!
//! A thread that finds no other room, or needs room while nothing is being read ahead, takes idle slots' memory, then
//! chunks'. A chunk untouched while 256 others were staged may be dropped for its slot. A file whose streams are mostly
//! wasted needs eight equal strides to get another.
//!
//! A device that reads in the system call (zram, persistent memory) has no queue to keep full, only processors: a
//! reader that notices has every second frame read by another reader, and a program that comes to a frame about to be
//! read waits for it, 1 ms at most (`detect::is_coming`): 512 misses would cost more, and leave nothing to move.
//!
//! *Prefetch* cuts ranges into absent runs and puts them into a reader's queue, as many as fit (2048 pages, or an
//! eighth of the cache; the caller learns how many it took). The reader submits them 128 at a time, up to 4 pages each,
//! and maps each when it is there: no trap at all. `lookahead` hands ranges over in quarters of its depth.
//!
//! The bell that wakes a reader is a futex word that its ring waits for as well (Linux 6.7): a descriptor could be
//! closed by the program, and its number be another file's.

pub mod detect;
pub mod map_chunk;
pub mod prefetch;
pub mod readers;
pub mod reads;
pub mod window;
