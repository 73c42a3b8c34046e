//! Pages into memory before the program asks for them.
//!
//! Owns the detection of streams, their windows, prefetch, and what is done with a reader's turn. May call: `evict` and the rooms
//! above it.
//!
//! # How it works
//!
//! A stream begins with misses of one stride, or with advice (a byte for each 2 MiB of the file: random turns
//! everything off there, sequential and backward begin a stream with the first miss). Of a stride of up to four pages what lies between
//! is read, too, in large reads and with a trap for 32 pages: a disk gives five times as many pages so. A stream belongs to one *reader*
//! (`pool/reader.rs`), which is no thread but what whoever has its turn works with: a context of Linux AIO, and how far its streams have
//! come. A thread that traps adds to the stream's counters, sets its bit in the reader's word, and takes the turn, unless
//! another thread has it, which then looks once more. With the turn it takes notice of what has been read and asks the device for
//! more (`reads.rs`). A thread that needs a page which is on its way finds in the page's word which reader has it, takes the turn, and
//! waits in the kernel for the next read to end (`region/arrivals.rs`); if another thread has the turn, it sleeps until something has
//! arrived or the turn is free. So nobody is woken in an ordinary walk, and no thread is needed for anything to arrive; whoever needs
//! memory, or a region's end, takes notice likewise.
//! The window is 128 KiB at first, twice as much with each chunk used, up to 8 MiB, an eighth of the cache or the
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
//! *Runs* (`pool/runs.rs`): rows, blocks and nodes of several pages at random places. One in a few is read page by page, to learn
//! how long they are; all others with one request, by the thread that missed the first page, into a buffer of its own; those of more than 64
//! pages, up to 2 MiB, with several. Whoever goes on behind what was read, walks, and gets a stream.
//!
//! *A file that fits* into the cache is read whole, once, in large requests, when as many misses at random have come as take about as
//! long (one in 32 of its pages), while an eighth of the cache is free. Each miss goes on with it, and what has come is mapped.
//!
//! Slots are shared out between the streams that are at work, those included that found none a short while ago. Where a stream's share is
//! fewer than four, its chunks are larger parts of its window.
//!
//! A thread that finds no other room, or needs room while nothing is being read ahead, takes idle slots' memory, then
//! chunks'. A chunk untouched while 256 others were staged may be dropped for its slot. A file whose streams are mostly
//! wasted needs eight equal strides to get another.
//!
//! A device that reads in the system call (zram, persistent memory), and a file that is not to be read directly, have no queue to keep
//! full, only processors: there a thread of the reader's takes the turn (`Reader::reads_inline`). It has every second frame read by
//! another reader's, and a program that comes to a frame about to be read waits for it, 1 ms at most (`detect::is_coming`): 512 misses
//! would cost more, and leave nothing to move.
//!
//! *Storage far away*, where a page by itself takes over 0.3 ms (`pool/read_times.rs`): whether the call that asks for a read waits for it there is the
//! file system's business, and one request is often cut into small ones that go one after the other. So such files are read by threads in
//! pread(2) (`sys/preads.rs`), 128 KiB each, 64 at a time; so are all files where Linux AIO is refused. Pages behind one that was missed are asked of a reader, while the thread
//! waits for that one alone. A file that fits is read whole when its misses have cost as much as that will, in pieces of 128 KiB, and a thread of
//! the reader's goes on with it. A file of which nothing has been read is tried: its first four reads are asked for alone.
//!
//! *Prefetch* cuts ranges into absent runs and puts them into a reader's queue, as many as fit (2048 pages, or an
//! eighth of the cache; the caller learns how many it took). The caller submits them itself, up to 4 pages each and 128 under way, and
//! they are mapped when somebody takes notice: by the next prefetch, once the device has what that asks for, or with a few that have arrived
//! by the first trap on one of them. To map all of them before the program goes on and asks for more would leave the device without work.
//! `lookahead` hands ranges over in quarters of its depth.

pub mod detect;
pub mod map_chunk;
pub mod prefetch;
pub mod readers;
pub mod reads;
pub mod run;
pub mod window;
