//! The local copy of one object.

use crate::Version;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The local copy of one version of an object: a sparse file of the object's length, and what is known of its units.
#[derive(Debug)]
pub struct Local {}

/// What a process did with a local copy since it opened it, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalStats {
    /// Read from the local copy and found right.
    pub hit: u64,
    /// Put into it.
    pub put: u64,
    /// Evicted without having been read, by all processes together.
    pub wasted: u64,
    /// Units that held other bytes than were put into them.
    pub wrong: u64,
}

/// The right to fetch a unit, of all processes alone this one's ([`Local::claim`]). Given back when dropped, or when the process ends, however.
#[derive(Debug)]
pub struct UnitLock {
    local: Arc<Local>,
    unit: u64,
}

impl UnitLock {
    /// The unit.
    pub fn unit(&self) -> u64 {
        self.unit
    }

    /// The local copy it is of.
    pub fn local(&self) -> &Arc<Local> {
        &self.local
    }
}

impl Local {
    /// What it is a copy of.
    pub fn version(&self) -> &Version {
        todo!()
    }

    /// The data file, of the object's length, to be mapped or read, and never written. What is not [there](Self::has) is a hole.
    pub fn file(&self) -> &File {
        todo!()
    }

    /// How many units the object has.
    pub fn units(&self) -> u64 {
        todo!()
    }

    /// Whether all of a range, bytes of the object, is there. For fault handlers.
    pub fn has(&self, range: Range<u64>) -> bool {
        let _ = range;
        todo!()
    }

    /// Whether bytes that were read from the file, from a page's start on, are the object's. For fault handlers.
    pub fn is_right(&self, offset: u64, bytes: &[u8]) -> bool {
        let _ = (offset, bytes);
        todo!()
    }

    /// How many bytes of a range have been read since they were put there, in whole pages.
    pub fn touched(&self, range: Range<u64>) -> u64 {
        let _ = range;
        todo!()
    }

    /// Puts a whole unit there, the last as short as it is, after others have made room.
    pub fn put(&self, unit: u64, bytes: &[u8]) -> io::Result<()> {
        let _ = (unit, bytes);
        todo!()
    }

    /// The right to fetch a unit; `None` while somebody else has it.
    pub fn claim(self: &Arc<Self>, unit: u64) -> Option<UnitLock> {
        let _ = unit;
        todo!()
    }

    /// Sleeps until a unit is there, put by any process, or for this long. Whether it is there.
    pub fn wait(&self, unit: u64, timeout: Duration) -> bool {
        let _ = (unit, timeout);
        todo!()
    }

    /// What this process did with it.
    pub fn stats(&self) -> LocalStats {
        todo!()
    }
}
