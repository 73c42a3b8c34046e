//! The hand of a watcher that shares the program's memory: plain madvise(2).

use super::{Advice, Beside, Files, Hand, Made, Reading};
use crate::observe::Mapping;
use crate::run::Run;
use rustix::mm::Advice as Kernels;
use std::ops::Range;

/// Acts on the caller's own address space, with readers beside the program's threads.
#[derive(Debug)]
pub struct Own {
    beside: Beside,
}

impl Own {
    /// Of the calling process.
    pub fn new() -> Own {
        Own { beside: Beside::new(Files::own()) }
    }
}

impl Default for Own {
    fn default() -> Own {
        Own::new()
    }
}

impl Hand for Own {
    fn advise(&mut self, mapping: &Mapping, advice: Advice) -> Made {
        let advice = if advice == Advice::Normal { Kernels::Normal } else { Kernels::Random };
        // ENOMEM: all but a hole has it.
        madvise(mapping.at.clone(), advice);
        Made::Given(vec![mapping.at.clone()])
    }

    fn read_ahead(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        madvise(mapping.addresses(pages), Kernels::WillNeed)
    }

    fn drop(&mut self, mapping: &Mapping, pages: &Run) -> bool {
        madvise(mapping.addresses(pages), Kernels::LinuxPageOut)
    }

    fn readers(&mut self) -> Option<&mut dyn Reading> {
        Some(&mut self.beside)
    }
}

fn madvise(at: Range<u64>, advice: Kernels) -> bool {
    let address = std::ptr::with_exposed_provenance_mut(at.start as usize);
    // SAFETY: each of these leaves what the memory holds as it is, whatever lies there.
    unsafe { rustix::mm::madvise(address, (at.end - at.start) as usize, advice).is_ok() }
}
