//! Readers, and the files that they read.

use super::{Files, Readers};
use crate::PAGE;
use crate::observe::Mapping;
use crate::run::Run;

/// Brings pages of a program's files into the page cache, beside the program.
pub trait Reading {
    /// Whether the file of a mapping is there to be read.
    fn open(&mut self, mapping: &Mapping) -> Opened;

    /// Queues pages of a mapping whose file is open: `is_block` if they lie in one block of 2 MiB, to be read together.
    fn bring(&mut self, mapping: &Mapping, pages: &Run, is_block: bool);

    /// Allows so many requests at a time.
    fn allow(&mut self, most: usize);

    /// Requests that are not done yet, and bytes that were read.
    fn state(&self) -> (usize, u64);

    /// Forgets the requests that no reader has begun.
    fn clear(&mut self);

    /// Ends the threads if there is nothing to read.
    fn rest(&mut self);

    /// Closes files that are not mapped any more. `is_mapped` gets a device and an inode.
    fn keep(&mut self, is_mapped: &dyn Fn((u64, u64), u64) -> bool);
}

/// The state of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// It is open.
    Yes,
    /// It is being opened.
    NotYet,
    /// It cannot be opened.
    No,
}

/// Threads that read a process's files.
#[derive(Debug)]
pub struct Beside {
    readers: Readers,
    files: Files,
}

impl Beside {
    /// Reads these files.
    pub fn new(files: Files) -> Beside {
        Beside { readers: Readers::default(), files }
    }

    /// The files.
    pub fn files(&mut self) -> &mut Files {
        &mut self.files
    }
}

impl Reading for Beside {
    fn open(&mut self, mapping: &Mapping) -> Opened {
        if self.files.get(mapping).is_some() {
            return Opened::Yes;
        }
        if self.files.may_come(mapping) { Opened::NotYet } else { Opened::No }
    }

    fn bring(&mut self, mapping: &Mapping, pages: &Run, is_block: bool) {
        if let Some(file) = self.files.get(mapping) {
            self.readers.bring(file, mapping.offset + pages.at * PAGE, (pages.len * PAGE) as usize, is_block);
        }
    }

    fn allow(&mut self, most: usize) {
        self.readers.allow(most);
    }

    fn state(&self) -> (usize, u64) {
        self.readers.state()
    }

    fn clear(&mut self) {
        self.readers.clear();
    }

    fn rest(&mut self) {
        self.readers.rest();
    }

    fn keep(&mut self, is_mapped: &dyn Fn((u64, u64), u64) -> bool) {
        self.files.keep(is_mapped);
    }
}
