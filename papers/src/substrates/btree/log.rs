//! The log: records one behind the other, in segments of which each thread has one of its own.
//!
//! A record: key length (2 bytes), nothing (2), value length (4), key, value, and zeros up to a multiple of 8. Lengths
//! and key never change, so they are read under no lock; the value is its leaf's. A record may lie across two pages:
//! with 1 KB values that costs a quarter of a page fault a get, and leaving room empty instead would cost a quarter of
//! memory.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::alloc::{SEGMENT, Saved, Space};
use super::region::Region;
use crate::substrates::Result;

/// Places where records are appended: threads share one only if there are more of them.
pub const TAILS: usize = 16;

const HEAD: u64 = 8;

/// Where a record begins in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub u64);

/// An end of the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tail {
    /// Where the next record goes.
    pub next: u64,
    /// Where the segment ends.
    pub end: u64,
}

/// The log's ends.
pub struct Log {
    tails: [Padded; TAILS],
}

/// A line of its own for each, and the one that is fetched with it.
#[repr(align(128))]
struct Padded(Mutex<Tail>);

impl Log {
    /// Without records.
    pub fn create() -> Log {
        Log { tails: std::array::from_fn(|_| Padded(Mutex::default())) }
    }

    /// As it was saved.
    pub fn restore(saved: &Saved) -> Log {
        Log { tails: saved.tails.map(|tail| Padded(Mutex::new(tail))) }
    }

    /// Its ends.
    pub fn tails(&self) -> [Tail; TAILS] {
        std::array::from_fn(|n| *self.tails[n].0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Writes a record of lengths that were checked; nobody knows of it yet.
    ///
    /// # Errors
    ///
    /// No room.
    pub fn append<R: Region>(&self, space: &Space<R>, key: &[u8], value: &[u8]) -> Result<Place> {
        let len = (HEAD + key.len() as u64 + value.len() as u64).next_multiple_of(8);
        let place = {
            let mut tail = self.tails[own_tail()].0.lock().unwrap_or_else(PoisonError::into_inner);
            if tail.end - tail.next < len {
                let segment = space.take_segment()?;
                if segment != tail.end {
                    tail.next = segment;
                }
                tail.end = segment + SEGMENT;
            }
            let place = Place(tail.next);
            tail.next += len;
            place
        };
        let at = space.bytes_at(place, len);
        // SAFETY: the range is inside the mapping and was given to this thread alone; 8-byte aligned, as all are.
        unsafe {
            at.cast::<[u16; 2]>().write([key.len() as u16, 0]);
            at.add(4).cast::<u32>().write(value.len() as u32);
            at.add(HEAD as usize).copy_from_nonoverlapping(key.as_ptr(), key.len());
            at.add(HEAD as usize + key.len()).copy_from_nonoverlapping(value.as_ptr(), value.len());
        }
        Ok(place)
    }
}

/// A thread's own.
fn own_tail() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.with(|own| {
        let number = own.get().unwrap_or_else(|| THREADS.fetch_add(1, Relaxed));
        own.set(Some(number));
        number % TAILS
    })
}

/// A record in the mapping.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    key: *const u8,
    key_len: usize,
    value_len: usize,
    space: PhantomData<&'a ()>,
}

impl<'a> Record<'a> {
    /// Reads a record's lengths.
    ///
    /// # Safety
    ///
    /// A record was written there, and what names it was read in a way that orders the reading after that.
    #[inline]
    pub unsafe fn at<R: Region>(space: &'a Space<R>, place: Place) -> Record<'a> {
        let head = space.bytes_at(place, HEAD);
        // SAFETY: the caller's promise; aligned, as all are.
        let (key_len, value_len) = unsafe { (head.cast::<u16>().read(), head.add(4).cast::<u32>().read()) };
        let len = HEAD + u64::from(key_len) + u64::from(value_len);
        let key = space.bytes_at(place, len).wrapping_add(HEAD as usize);
        Record { key, key_len: key_len.into(), value_len: value_len as usize, space: PhantomData }
    }

    /// Its key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        // SAFETY: inside the mapping, see `at`; never changed.
        unsafe { std::slice::from_raw_parts(self.key, self.key_len) }
    }

    /// Bytes of its value.
    #[inline]
    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Its value.
    ///
    /// # Safety
    ///
    /// The thread holds the lock of the leaf that names the record as long as it looks.
    #[inline]
    pub unsafe fn value(&self) -> &'a [u8] {
        // SAFETY: inside the mapping, see `at`; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.key.add(self.key_len), self.value_len) }
    }

    /// Its value, to be changed.
    ///
    /// # Safety
    ///
    /// The thread holds that lock for writing.
    #[inline]
    pub unsafe fn value_mut(&self) -> &'a mut [u8] {
        // SAFETY: inside the mapping, see `at`; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.key.add(self.key_len).cast_mut(), self.value_len) }
    }
}
