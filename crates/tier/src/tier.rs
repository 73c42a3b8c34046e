//! A folder of local copies.

use crate::{Local, Result, Version};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A folder of local copies, which never take more room than its limit.
#[derive(Debug)]
pub struct Tier {
    dir: PathBuf,
}

/// A local copy in a folder ([`Tier::list`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Of what.
    pub version: Version,
    /// What it takes of the disk, bytes.
    pub local: u64,
    /// When a program last opened or closed it.
    pub last_used: SystemTime,
    /// Whether a program has it open.
    pub in_use: bool,
}

/// What [`Tier::verify`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Local copies looked at.
    pub objects: u64,
    /// Units looked at.
    pub units: u64,
    /// Units of these that had bytes in them that are not the object's; they will be fetched anew.
    pub wrong: u64,
}

impl Tier {
    /// The smallest limit, bytes.
    pub const MIN_LIMIT: u64 = 16 << 20;

    /// Opens a folder, which is made if need be, mode 0700: the one given, else `$FASTMAP_TIER`, else `$XDG_CACHE_HOME/fastmap`, else
    /// `~/.cache/fastmap`. Its limit in bytes: the one given, else `$FASTMAP_TIER_LIMIT`, else what the folder was given last, else a tenth of
    /// the disk's free space. When several processes have given limits, the smallest holds while its process has the folder open.
    pub fn open(dir: Option<&Path>, limit: Option<u64>) -> Result<Arc<Tier>> {
        let _ = (dir, limit);
        todo!()
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The local copy of an object: the one that is there, or a new one with nothing in it. Copies of the URL's other versions go, as soon as
    /// nobody has them open.
    pub fn local(self: &Arc<Self>, version: &Version) -> Result<Arc<Local>> {
        let _ = version;
        todo!()
    }

    /// All local copies.
    pub fn list(&self) -> Result<Vec<Listed>> {
        todo!()
    }

    /// Removes all local copies, or those of one URL. One that a program has open stays, with nothing in it. Gives the bytes that are free now.
    pub fn remove(&self, url: Option<&str>) -> Result<u64> {
        let _ = url;
        todo!()
    }

    /// Reads all that is there, and compares it with its checksums.
    pub fn verify(self: &Arc<Self>) -> Result<Verified> {
        todo!()
    }

    /// The limit that holds now, bytes.
    pub fn limit(&self) -> u64 {
        todo!()
    }

    /// What local copies take of the limit now, bytes; a little more than of the disk.
    pub fn used(&self) -> u64 {
        todo!()
    }
}
