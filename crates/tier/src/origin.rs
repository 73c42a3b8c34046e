//! An object's local copy as an [`Origin`]: where the engine gets a mapped file's bytes from.

use crate::{Asking, Local};
use fastmap::Origin;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An object's local copy as the engine maps it. The server of `asking` fills it.
#[derive(Debug)]
pub struct TierOrigin {
    local: Arc<Local>,
    asking: Arc<Asking>,
    object: u32,
    deadline: Option<Duration>,
    name: PathBuf,
}

impl TierOrigin {
    /// An origin of a local copy. Its missing parts are asked for in `asking`, under the number `object`, for as long as `deadline` (`None`: for
    /// ever).
    pub fn new(local: Arc<Local>, asking: Arc<Asking>, object: u32, deadline: Option<Duration>) -> Arc<Self> {
        let name = PathBuf::from(&local.version().url);
        Arc::new(TierOrigin { local, asking, object, deadline, name })
    }

    /// The local copy.
    pub fn local(&self) -> &Arc<Local> {
        &self.local
    }
}

impl Origin for TierOrigin {
    fn has(&self, range: Range<u64>) -> bool {
        self.local.has(range)
    }

    fn bring(&self, range: Range<u64>, patience: Option<Duration>) -> Result<(), i32> {
        if self.local.has(range.clone()) {
            return Ok(());
        }
        let deadline = [self.deadline, patience].into_iter().flatten().min();
        self.asking.bring(self.object, range, deadline)
    }

    fn ask(&self, range: Range<u64>) {
        if !self.local.has(range.clone()) {
            self.asking.ask(self.object, range);
        }
    }

    fn is_right(&self, offset: u64, bytes: &[u8]) -> bool {
        self.local.is_right(offset, bytes)
    }

    fn name(&self) -> &Path {
        &self.name
    }

    fn explain(&self, error: i32) -> Option<&str> {
        Some(match error {
            libc::ETIMEDOUT => {
                "the store did not answer within the deadline: look whether it can be reached, or allow more time"
            }
            libc::ESTALE => "the object has changed since it was opened: open it again to read its new version",
            libc::EACCES => {
                "the store denies access, or the credentials have expired: renew them and open the object again"
            }
            libc::ENOENT => "the object is no longer in the store",
            libc::ENOSPC => {
                "there is no room for the local copy: make room on its disk, raise its limit, or name a folder on another disk with FASTMAP_TIER"
            }
            libc::ESHUTDOWN => "the process that fetches objects has ended: start the program anew",
            libc::EIO => "the object could not be fetched: look at the messages of the process that fetches it",
            _ => return None,
        })
    }
}
