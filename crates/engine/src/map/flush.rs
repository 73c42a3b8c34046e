//! The results of `flush_async` and `unmap`.

use crate::error::{Error, Result};
use crate::map::kernel::KernelMapping;
use crate::map::map_mut::MapMut;
use crate::pool::mailbox::FlushRequest;
use crate::writeback::flush;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A flush under way, from [`MapMut::flush_async`]. It goes on without being waited for, and outlives its map.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1 << 20)?;
/// # // SAFETY: nobody else changes the file.
/// # let mut map = unsafe { fastmap::MapMut::map_mut(&file)? };
/// map[0] = 1;
/// let flush = map.flush_async();
/// map[1] = 2; // may or may not be part of it
/// flush.wait()?; // the first store is on stable storage
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Flush(pub(crate) FlushKind);

/// The way a flush is carried out.
#[derive(Debug)]
pub(crate) enum FlushKind {
    /// By the cache's writers.
    Writers(Arc<FlushRequest>),
    /// By the kernel: offset and length in its mapping.
    Kernel(Arc<KernelMapping>, usize, usize),
    /// Carried out at once, with this result.
    Done(Result<()>),
}

impl Flush {
    /// Waits until every byte that was dirty at the call of `flush_async` is on stable storage.
    ///
    /// # Errors
    /// As for [`MapMut::flush`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// map.flush_async().wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(self) -> Result<()> {
        match self.0 {
            FlushKind::Writers(job) => flush::finish(&job),
            FlushKind::Kernel(kernel, offset, len) => kernel.flush(offset, len, true),
            FlushKind::Done(outcome) => outcome,
        }
    }

    /// Whether `wait` would return at once. Never for a map that the kernel serves: only `wait` finds out.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = tempfile::tempfile()?;
    /// # file.set_len(1)?;
    /// # // SAFETY: nobody else changes the file.
    /// # let map = unsafe { fastmap::MapMut::map_mut(&file)? };
    /// let flush = map.flush_async();
    /// if flush.is_done() {
    ///     flush.wait()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_done(&self) -> bool {
        match &self.0 {
            FlushKind::Writers(job) => job.is_done(),
            FlushKind::Kernel(..) => false,
            FlushKind::Done(_) => true,
        }
    }
}

/// The failure of [`MapMut::unmap`] to save everything: the error, and the map, with all that was stored to it.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let file = tempfile::tempfile()?;
/// # file.set_len(1)?;
/// # // SAFETY: nobody else changes the file.
/// # let map = unsafe { fastmap::MapMut::map_mut(&file)? };
/// if let Err(unsaved) = map.unmap() {
///     eprintln!("{unsaved}: make room");
///     unsaved.map.unmap_blocking();
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Unsaved {
    /// Why it could not be saved.
    pub error: Error,
    /// The map, intact.
    pub map: MapMut,
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unsaved {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<Unsaved> for io::Error {
    /// Keeps the error; the map is dropped, and its pages stay until the background writers can save them.
    fn from(unsaved: Unsaved) -> io::Error {
        unsaved.error.into()
    }
}
