//! Pages into memory before the program asks for them.
//!
//! Owns the detection of streams, their windows, prefetch, and what is done with a reader's turn. May call: `evict` and the rooms
//! above it.
//!
//! # How it works
//!
//! *Streams.* Misses of one stride begin a stream. So does advice, which is a byte for each 2 MiB of the file: where it says sequential or
//! backward, the first miss begins a stream; where it says random, nothing is read ahead. If the stride is at most four pages, the pages
//! between are read too, in large reads, with one trap for 32 pages: a disk gives five times as many pages that way.
//!
//! *Readers.* A stream belongs to one reader (`pool/reader.rs`). A reader is no thread. It is a context of Linux AIO and a note of how far
//! its streams have come, and the thread that has its turn works with these. A thread that traps does three things:
//!
//! 1. It adds to the stream's counters.
//! 2. It sets the stream's bit in the reader's word.
//! 3. It takes the turn, takes notice of reads that have ended, and asks the device for more (`reads.rs`). If another thread has the turn,
//!    that one looks at the word once more instead.
//!
//! A thread that needs a page which is on its way finds in the page's word which reader reads it. It takes the turn, and waits in the kernel
//! for the next read to end (`region/arrivals.rs`). If another thread has the turn, it sleeps until something has arrived or the turn is
//! free. A thread that needs memory, or the end of a region, takes notice of ended reads in the same way. So in an ordinary walk nobody is
//! woken, and pages arrive without a thread of the reader's.
//!
//! *Windows.* A stream's window is 128 KiB at first. It doubles with each chunk used, up to 8 MiB, an eighth of the cache or the user's
//! `set_readahead`, and is halved when a chunk is dropped unused. The reader takes idle frames, or evicts, but never waits for
//! write-back: where memory is full of dirty pages nothing is read ahead. It reads mapped pages only, up to the end of the map that the
//! stream is in: others may write where no map is.
//!
//! *Chunks* lie in slots (`pool/staging.rs`) until a trap on one of their pages maps the whole chunk. There are two kinds of slots:
//!
//! * *Buffers* of 32 pages: for a stream's first chunks, strides, mutable maps, and the neighbourhood of pages that are in
//!   memory. The pages are copied (`UFFDIO_COPY`); the buffer stays.
//! * *Frames* of 2 MiB, for sequential streams with a window of 4 MiB or more. A frame is moved into place (`UFFDIO_MOVE`),
//!   write-protected, and moved back into an empty slot when it is evicted. It has one entry in a clean queue
//!   and leaves memory whole (flag HUGE in its pages' words). Moved pages are writable for a moment, so frames exist
//!   only in a region without mutable maps. The kernel moves pages into writable mappings only, so the mapping is writable to it. A store
//!   is refused all the same: its page is protected for good (`Region::forbid_stores`), and the kernel raises SIGSEGV when the store is
//!   repeated. When a region becomes mutable its frames go first.
//!
//! No wake-up for a Staged page is lost. A thread that found the slot taken announces itself in the word and
//! then checks the slot again. The thread that makes a slot ready looks for announced threads afterwards. It takes
//! their flag out of the word before it wakes them, since a futex(2) wake-up without a change of the word can be
//! missed.
//!
//! *Runs* (`pool/runs.rs`) are rows, blocks and nodes of several pages at random places. One in a few is read page by page, to learn
//! how long runs are. The thread that misses the first page of any other run reads it with one request, into a buffer of its own. A run of
//! more than 64 pages, up to 2 MiB, takes several requests. A program that goes on behind what was read walks, and gets a stream.
//! A miss that is near no other brings 8 to 32 pages while memory is free for all of its file (`detect::for_nothing`): nothing is displaced, and
//! a disk reads as many pages in little more than the time of one.
//!
//! *A file that fits* into the cache is read whole, once, in large requests. This begins when its misses at random have taken about as long as
//! the whole read will (misses of one in 32 of its pages), and goes on while an eighth of the cache is free, on storage far away a 64th. Each
//! miss continues the read, and maps the pages that have come.
//!
//! *Slots are shared* between the streams that are at work. A stream counts as such also if it found no slot a short while ago. If a
//! stream's share is fewer than four slots, its chunks are larger parts of its window.
//!
//! *Staging memory is given up* for a thread that finds no other room, or that needs room while nothing is being read ahead: idle slots
//! first, then chunks. A chunk untouched while 256 others were staged may be dropped for its slot. A file whose streams are mostly
//! wasted needs eight equal strides to get another.
//!
//! *Reads inside the call.* A device that reads in the system call (zram, persistent memory) has no queue to keep full, nor has a file that is
//! not to be read directly. There the reader's own thread takes the turn (`Reader::reads_inline`), and gives every second frame to
//! another reader's thread. A program that comes to a frame about to be read waits for it, 1 ms at most (`detect::is_coming`): 512 misses
//! would cost more, and leave nothing to move.
//!
//! *Storage far away* takes over 0.3 ms for a page by itself (`pool/read_times.rs`). There a file system may wait for the read in the call
//! that asks for it, and one request is often cut into small ones that go one after the other. So threads read such files with pread(2)
//! (`sys/preads.rs`), 128 KiB each, 64 at a time. They read all files where Linux AIO is refused. Of a run
//! the thread that misses reads 32 pages, and a reader is asked for those behind. While memory is free a miss that is near no other reads its
//! neighbours, too (`detect::for_nothing`). A file that fits is read whole when its misses have cost as
//! much as that will, in pieces of 128 KiB, and the reader's thread goes on with it. A file of which nothing has been read yet is tried: its
//! first four reads are asked for alone.
//!
//! *Prefetch* cuts ranges into absent runs and puts these into a reader's queue, as many as fit (2048 pages, or an
//! eighth of the cache); the caller learns how many ranges it took. The caller submits the reads itself, up to 4 pages each and 128 under
//! way. A thread that takes notice of them maps the pages: the next prefetch, after it has given the device its own reads, or the first trap on
//! one of them, which also maps a few others that have arrived. If all were mapped before the program went on, the device would be without
//! work meanwhile. `lookahead` hands ranges over in quarters of its depth.

pub mod detect;
pub mod map_chunk;
pub mod prefetch;
pub mod readers;
pub mod reads;
pub mod run;
pub mod window;
