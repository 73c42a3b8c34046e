//! The hand of a watcher that shares the program's memory: plain madvise(2).

use super::{Files, Hand, Readers, calls};
use crate::judge::{Advice, Run};
use crate::observe::Mapping;
use rustix::mm::Advice as Kernels;
use std::ops::Range;

/// Acts on the caller's own address space.
#[derive(Debug)]
pub struct Own;

impl Hand for Own {
    fn advise(&mut self, mapping: &Mapping, advice: Advice, was_blocks: bool) -> bool {
        calls(advice, was_blocks).all(|advice| madvise(mapping.at.clone(), advice))
    }

    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        madvise(mapping.addresses(pages), Kernels::WillNeed)
    }

    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        madvise(mapping.addresses(pages), Kernels::LinuxPageOut)
    }
}

/// The same, with readers beside the program's threads.
#[derive(Debug)]
pub struct OwnAndReaders {
    readers: Readers,
    files: Files,
}

impl OwnAndReaders {
    /// Of the calling process.
    pub fn new() -> OwnAndReaders {
        OwnAndReaders { readers: Readers::default(), files: Files::of(std::process::id()) }
    }
}

impl Default for OwnAndReaders {
    fn default() -> OwnAndReaders {
        OwnAndReaders::new()
    }
}

impl Hand for OwnAndReaders {
    fn advise(&mut self, mapping: &Mapping, advice: Advice, was_blocks: bool) -> bool {
        Own.advise(mapping, advice, was_blocks)
    }

    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        Own.read_ahead(mapping, pages)
    }

    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        Hand::drop(&mut Own, mapping, pages)
    }

    fn readers(&mut self) -> Option<(&mut Readers, &mut Files)> {
        Some((&mut self.readers, &mut self.files))
    }
}

fn madvise(at: Range<u64>, advice: Kernels) -> bool {
    let address = std::ptr::with_exposed_provenance_mut(at.start as usize);
    // SAFETY: each of these leaves what the memory holds as it is, whatever lies there.
    unsafe { rustix::mm::madvise(address, (at.end - at.start) as usize, advice).is_ok() }
}
