//! Stores to absent pages that do not wait for the read: AR-MMAP's protocol and kept stores.
//!
//! Owns all of both: what a region and a cache have for them, the thread that reads the pages, the decoder of store
//! instructions. May call: `region` and the rooms above it.
//!
//! # How it works
//!
//! Up to the free frame all is as in any miss; then `fault::load` asks `protocol::defer`. It declines, and the store
//! waits, where the page is in a hole or holds the file's end, where such pages fill half of the cache (the rest is for
//! loads, should reads take long or fail), where no thread has trapped (service threads, pins), and where io_uring(7)
//! is not to be had.
//!
//! *Over the initial value* (AR-MMAP): `begin_writable_install`; the page is announced (a count for its block);
//! `UFFDIO_COPY` of a page of the initial line, writable; `publish_unfilled`; its bit in `asked` is set and the fill
//! thread woken. The fill thread takes the bit, reads the page, up to 128 at a time, and for up to 32 neighbours
//! together: `begin_merge`, write-protection, takes over the lines of memory that are not the initial value, notes that
//! its buffer holds the page (`note_whole`), drops the memory, `hold`; then the dirty bit, `UFFDIO_COPY`, the buffer
//! holds nothing, the page is done, `finish_load`. A writer of neighbours protects all that lies between them, so a
//! store to an Unfilled page may trap: `let_store` lifts that under UPGRADING, for which the fill thread waits.
//!
//! *Buffered*: `take_for` takes a store buffer and puts the decoded store in, with a bit in a mask for each byte; the
//! thread's registers are set as if it had been executed. With a bit for all 4096 bytes there is nothing to read.
//! Another store is put there under the buffer's lock (`protocol::buffer_another`), eight at most: then threads wait, as loads do
//! from the beginning. The fill thread reads the page; `begin_fill` under the lock: none is kept after it; the stores
//! are laid over what was read, dirty bit, `UFFDIO_COPY`, `finish_load`.
//!
//! Invariants. A page is announced before it can hold a store, and done once its dirty bit is set: a flush, which first
//! waits for what is announced in its range (`settle`) and then looks at the bits, misses none. A buffer says what it
//! holds before a page leaves memory, and no more once it is back: the keeper writes buffers first and memory after
//! them, which is as new or newer. The fill thread waits for its ring and for threads that lift a page's protection:
//! not for frames, locks of the program's, or pages that others hold; so any thread may wait for an Unfilled or Buffered
//! page, whatever it holds.
//!
//! A read that fails is tried again, five times a second. Meanwhile the word says FAILED: waiting threads get the error
//! (SIGBUS, `Error::Load`, of a flush `Error::WriteBack` with the page), and further stores are kept. A region stays
//! until its pages could be read. A system call that needs the page out of the way fails with EIO.
//!
//! Decoding knows plain stores of 1 to 64 bytes, `stos` and `movs` up to the end of the page; not what crosses a page,
//! is repeated downwards, copies from the same page, or has a mask that leaves other elements than the first. Code is
//! read from the instruction's page with protection keys open (a handler starts with all but key 0 closed), the rest of
//! an instruction on the next page and the source of `movs` by process_vm_readv(2), which cannot fault. The tests let
//! every form of every store trap and compare with the processor.

pub mod decode;
#[cfg(all(test, not(loom)))]
mod decode_tests;
pub mod fill_thread;
pub mod protocol;
pub mod store_buffers;
