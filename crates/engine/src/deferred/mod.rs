//! Stores to absent pages that do not wait for the read: AR-MMAP's protocol and buffered stores.
//!
//! Owns all of both: their state in a region and in a cache, the fill thread, which reads the pages, and the decoder of store instructions. May
//! call: `region` and the rooms above it.
//!
//! # How it works
//!
//! Up to the free frame all is as in any miss; then `fault::load` asks `protocol::defer`. A store waits for the read all the same
//!
//! * where the page is in a hole, holds the file's end or lies behind it;
//! * where pages of this kind fill half of the cache: the rest is for loads, should reads take long or fail;
//! * where no thread has trapped (service threads, pins);
//! * where io_uring(7) is not to be had.
//!
//! ## Over the initial value (AR-MMAP)
//!
//! The page is filled with a line of 64 bytes that the program never stores, and takes stores at once: it is Unfilled (`protocol.rs`).
//!
//! The thread that traps:
//!
//! 1. `begin_writable_install`; the page is announced (a count for its block).
//! 2. `UFFDIO_COPY` of a page of the initial line, writable; `publish_unfilled`.
//! 3. The page's bit in `asked` is set and the fill thread woken.
//!
//! The fill thread:
//!
//! 1. It takes the bit and reads the page, up to 128 pages at a time.
//! 2. For up to 32 neighbours together: `begin_merge`; write-protection.
//! 3. It takes over the lines of memory that are not the initial value, notes that its buffer holds the page (`note_whole`), drops the memory;
//!    `hold`.
//! 4. The dirty bit; `UFFDIO_COPY`; the buffer holds nothing any more; the page is done; `finish_load`.
//!
//! A writer that protects a range of pages protects the Unfilled ones among them, too. So a store to an Unfilled page may trap. `let_store`
//! lifts the protection under UPGRADING, for which the fill thread waits.
//!
//! ## Buffered
//!
//! The store is decoded and put into a store buffer. The page stays absent, so that loads wait: it is Buffered.
//!
//! 1. `take_for` takes a store buffer and puts the decoded store in, with a bit in a mask for each byte. The thread's registers are set as if
//!    the store had been executed. With a bit for all 4096 bytes there is nothing to read.
//! 2. Another store is put there under the buffer's lock (`protocol::buffer_another`), eight in all at most. Later stores wait; loads always
//!    wait.
//! 3. The fill thread reads the page; `begin_fill` under the lock: no store is buffered after it.
//! 4. The stores are laid over what was read; the dirty bit; `UFFDIO_COPY`; `finish_load`.
//!
//! # Invariants
//!
//! * A page is announced before it can hold a store, and done once its dirty bit is set. A flush first waits for the announced pages in its
//!   range (`settle`), then looks at the bits: it misses none.
//! * A buffer says what it holds before a page leaves memory, and no more once the page is back. The keeper writes buffers first and memory
//!   after them, which is as new or newer.
//! * The fill thread waits for its ring, and for threads that lift a page's protection: not for frames, locks of the program's, or pages that
//!   others hold. So any thread may wait for an Unfilled or Buffered page, whatever it holds.
//!
//! # Reads that fail
//!
//! A read that fails is tried again, five times a second. Meanwhile the word says FAILED: waiting threads get the error (SIGBUS, `Error::Load`,
//! of a flush `Error::WriteBack` with the page), and further stores are buffered. A region stays until its pages could be read. A system call
//! that needs the page out of the way fails with the error of the read.
//!
//! # Decoding
//!
//! The decoder knows plain stores of 1 to 64 bytes, and `stos` and `movs` up to the end of the page. It does not know stores that cross a page,
//! are repeated downwards, copy from the same page, or have a mask that leaves other elements than the first.
//!
//! Code is read from the instruction's page with protection keys open (a handler starts with all but key 0 closed). The rest of an instruction
//! on the next page, and the source of `movs`, are read by process_vm_readv(2), which cannot fault. The tests let every form of every store
//! trap, and compare with the processor.

pub mod decode;
#[cfg(all(test, not(loom)))]
mod decode_tests;
pub mod fill_thread;
pub mod protocol;
pub mod store_buffers;
