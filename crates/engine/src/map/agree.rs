//! All maps of a file in a process are served alike, by the kernel or by the engine, as its first map is: else they
//! would not agree.

use crate::sys::file::Identity;
use crate::sys::fork;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held while a file is mapped.
#[derive(Debug)]
pub enum Entry {
    /// In a child made by fork(2) all maps are the kernel's. The lock is not taken: a thread that only the parent has
    /// may hold it.
    Childs,
    Engines(#[expect(dead_code, reason = "kept for its drop")] RwLockReadGuard<'static, ()>),
    Kernels(#[expect(dead_code, reason = "kept for its drop")] RwLockWriteGuard<'static, ()>),
}

/// Waits until no other thread makes a kernel map; with `by_kernel`, until no other thread makes any map.
pub fn enter(by_kernel: bool) -> Entry {
    static ENTRY: RwLock<()> = RwLock::new(());
    match by_kernel {
        _ if fork::is_child() => Entry::Childs,
        true => Entry::Kernels(ENTRY.write().unwrap_or_else(PoisonError::into_inner)),
        false => Entry::Engines(ENTRY.read().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// The number of kernel maps of each file that has any.
fn kernels() -> MutexGuard<'static, BTreeMap<Identity, usize>> {
    static KERNELS: Mutex<BTreeMap<Identity, usize>> = Mutex::new(BTreeMap::new());
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts one kernel map of a file, until dropped.
#[derive(Debug)]
pub struct Registered(Identity);

impl Registered {
    pub fn new(identity: Identity) -> Self {
        *kernels().entry(identity).or_default() += 1;
        Registered(identity)
    }

    /// Counts one more, if there are any. In one step: the last one goes at any time, and then a thread that wants the engine maps the file.
    pub fn another(identity: Identity) -> Option<Self> {
        kernels().get_mut(&identity).map(|count| {
            *count += 1;
            Registered(identity)
        })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut kernels = kernels();
        if let Some(count) = kernels.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                kernels.remove(&self.0);
            }
        }
    }
}
