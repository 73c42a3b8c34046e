//! This process's own descriptors for the files that a program has mapped.

use crate::PAGE;
use crate::observe::{Mapping, cached, identity};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// The files of one program that were opened.
#[derive(Debug)]
pub struct Files {
    pid: u32,
    open: BTreeMap<(u64, u64, u64), Arc<File>>,
}

/// Files that are kept open at most.
const MOST: usize = 64;

impl Files {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Files {
        Files { pid, open: BTreeMap::new() }
    }

    /// The file of a mapping. `None` where it cannot be read, or its path leads to another file by now.
    pub fn get(&mut self, mapping: &Mapping) -> Option<&Arc<File>> {
        let key = (mapping.device.0, mapping.device.1, mapping.inode);
        if self.open.len() >= MOST && !self.open.contains_key(&key) {
            self.open.clear();
        }
        match self.open.entry(key) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => Some(entry.insert(open(self.pid, mapping)?)),
        }
    }

    /// Closes files that the program has not mapped any more. `is_mapped` gets a device and an inode.
    pub fn keep(&mut self, is_mapped: impl Fn((u64, u64), u64) -> bool) {
        self.open.retain(|(major, minor, inode), _| is_mapped((*major, *minor), *inode));
    }
}

/// Opens the file that is mapped: by its path from the process's root folder, by its path from this process's, or by the kernel's link,
/// which takes a capability.
fn open(pid: u32, mapping: &Mapping) -> Option<Arc<File>> {
    let name = format!("/proc/{pid}/root{}", mapping.path);
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.at.start, mapping.at.end);
    let plain = libc::O_NONBLOCK | libc::O_NOCTTY;
    // O_NOATIME leaves the access time as it is. The kernel refuses it for another user's file.
    let ways = [(&name, plain | libc::O_NOATIME), (&name, plain), (&mapping.path, plain), (&link, plain)];
    let with = |(path, flags): &(&String, i32)| OpenOptions::new().read(true).custom_flags(*flags).open(path).ok();
    let file = ways.iter().filter_map(with).find(|file| identity(file) == Some((mapping.device, mapping.inode)))?;
    // The kernel then reads the pieces that are asked for, and nothing around them.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).ok()?;
    Some(Arc::new(file))
}

/// Whether the page cache has all of these bytes. `false` where that cannot be told.
pub(super) fn is_cached(file: &File, at: u64, len: usize) -> bool {
    let pages = at / PAGE..(at + len as u64).div_ceil(PAGE);
    let all = pages.end - pages.start;
    cached(file, pages).is_ok_and(|cached| cached.pages >= all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::at_address;
    use std::io::Write;

    #[test]
    fn a_file_is_opened_by_its_name_and_another_one_of_that_name_is_not() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        File::create_new(&path).unwrap().write_all(&vec![1; 64 * PAGE as usize]).unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: a fresh mapping of a file that nobody cuts.
        let map = unsafe { memmap2::MmapOptions::new().map(&file).unwrap() };
        let start = map.as_ptr().addr() as u64;
        let (device, inode) = at_address("self", start).unwrap();
        let (at, path) = (start..start + 64 * PAGE, path.to_str().unwrap().to_owned());
        let mapping = Mapping { at, offset: 0, device, inode, is_shared: true, is_writable: false, path, pages: 64 };
        let mut files = Files::of(std::process::id());
        assert_eq!(files.get(&mapping).unwrap().metadata().unwrap().len(), 64 * PAGE);
        assert!(files.get(&Mapping { inode: inode + 1, ..mapping }).is_none());
    }
}
