//! This process's own descriptors for the files that a program has mapped.

use crate::PAGE;
use crate::clock::now;
use crate::observe::{AGAIN, Answer, Asked, Key, Mapping, cached, close_there};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// The files of one program that were opened. A thread for each file system opens and closes them: one that does not answer holds up
/// nobody.
#[derive(Debug)]
pub struct Files {
    pid: u32,
    files: BTreeMap<Key, State>,
    /// Files stay open.
    stay: bool,
}

#[derive(Debug)]
enum State {
    Asked(Asked<Option<Arc<File>>>),
    Open(Arc<File>),
    /// It cannot be opened, and was tried at this time.
    Failed(Duration),
}

/// Files that are kept open at most.
const MOST: usize = 64;
/// The same where they stay open.
const MOST_THAT_STAY: usize = 4;

impl Files {
    /// Of process `pid`.
    pub fn of(pid: u32) -> Files {
        Files { pid, files: BTreeMap::new(), stay: false }
    }

    /// Of this process. All that are opened stay open until it ends: close(2) of any descriptor of a file ends the process's locks on it
    /// (fcntl(2)).
    pub fn own() -> Files {
        Files { pid: std::process::id(), files: BTreeMap::new(), stay: true }
    }

    /// The file of a mapping. `None` where it is not open yet, cannot be read, or its path leads to another file by now.
    pub fn get(&mut self, mapping: &Mapping) -> Option<&Arc<File>> {
        let key = mapping.key();
        let is_used = |state: &&State| !matches!(state, State::Failed(_));
        let most = if self.stay { MOST_THAT_STAY } else { MOST };
        if !self.files.contains_key(&key) && self.files.values().filter(is_used).count() >= most {
            if self.stay {
                return None;
            }
            self.keep(|_, _| false);
        }
        let ask = |pid| {
            let (device, mapping) = (mapping.device, mapping.clone());
            State::Asked(Asked::of(device, move || mapping.open(pid)))
        };
        let state = self.files.entry(key).or_insert_with(|| ask(self.pid));
        if matches!(state, State::Failed(at) if now() - *at >= AGAIN) {
            *state = ask(self.pid);
        }
        if let State::Asked(asked) = state {
            *state = match asked.answer() {
                Answer::NotYet => return None,
                Answer::Known(Some(file)) => State::Open(file),
                Answer::Known(None) | Answer::Lost => State::Failed(now()),
            };
        }
        if let State::Open(file) = state { Some(file) } else { None }
    }

    /// Whether the file of a mapping is being opened.
    pub fn may_come(&self, mapping: &Mapping) -> bool {
        matches!(self.files.get(&mapping.key()), Some(State::Asked(_)))
    }

    /// Closes files that the program has not mapped any more. `is_mapped` gets a device and an inode.
    pub fn keep(&mut self, is_mapped: impl Fn((u64, u64), u64) -> bool) {
        if self.stay {
            return;
        }
        self.files.retain(|(device, inode), state| {
            if is_mapped(*device, *inode) {
                return true;
            }
            if let State::Open(_) = state {
                if let State::Open(file) = std::mem::replace(state, State::Failed(now())) {
                    close_there(*device, file);
                }
                return false;
            }
            // A file that could not be opened is not tried again soon.
            matches!(state, State::Failed(at) if now() - *at < AGAIN)
        });
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.stay {
            std::mem::forget(std::mem::take(&mut self.files));
        }
        self.keep(|_, _| false);
    }
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
    use std::os::unix::fs::{OpenOptionsExt, symlink};
    use std::path::Path;

    /// A mapping of a file of 64 pages in `folder`.
    fn mapped(folder: &Path) -> (memmap2::Mmap, Mapping) {
        let path = folder.join("file");
        File::create_new(&path).unwrap().write_all(&vec![1; 64 * PAGE as usize]).unwrap();
        // SAFETY: a fresh mapping of a file that nobody cuts.
        let map = unsafe { memmap2::MmapOptions::new().map(&File::open(&path).unwrap()).unwrap() };
        let start = map.as_ptr().addr() as u64;
        let (device, inode) = at_address("self", start).unwrap();
        let (at, path) = (start..start + 64 * PAGE, path.to_str().unwrap().to_owned());
        (
            map,
            Mapping {
                at,
                offset: 0,
                device,
                inode,
                is_shared: true,
                is_writable: false,
                path,
                pages: 64,
                may_grow: false,
            },
        )
    }

    /// What comes of it in the end.
    fn got<'a>(files: &'a mut Files, mapping: &Mapping) -> Option<&'a Arc<File>> {
        while files.get(mapping).is_none() && matches!(files.files[&mapping.key()], State::Asked(_)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        files.get(mapping)
    }

    #[test]
    fn a_file_is_opened_by_its_name_and_another_one_of_that_name_is_not() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (_map, mapping) = mapped(folder.path());
        let mut files = Files::of(std::process::id());
        assert_eq!(got(&mut files, &mapping).unwrap().metadata().unwrap().len(), 64 * PAGE);
        let other = Mapping { inode: mapping.inode + 1, ..mapping.clone() };
        assert!(got(&mut files, &other).is_none());
        assert!(matches!(files.files[&other.key()], State::Failed(_)), "this is remembered");
        files.keep(|_, _| false);
        assert!(!files.files.contains_key(&mapping.key()) && files.files.contains_key(&other.key()));
    }

    #[test]
    fn what_takes_the_place_of_a_file_is_not_opened() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (_map, mapping) = mapped(folder.path());
        let (path, pipe) = (Path::new(&mapping.path), folder.path().join("pipe"));
        std::fs::remove_file(path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        // Somebody who opens the pipe to read it would let this end.
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || File::options().write(true).open(pipe).unwrap()
        });
        // Addresses at which nothing is mapped: the kernel's link, which root may use, leads nowhere.
        let mapping = Mapping { at: PAGE..2 * PAGE, ..mapping.clone() };
        for make in [
            |pipe: &Path, path: &Path| symlink(pipe, path).unwrap(),
            |pipe: &Path, path: &Path| {
                std::fs::hard_link(pipe, path).unwrap();
            },
        ] {
            make(&pipe, path);
            assert!(got(&mut Files::of(std::process::id()), &mapping).is_none());
            std::fs::remove_file(path).unwrap();
        }
        assert!(!writer.is_finished(), "nobody has opened the pipe");
        let _reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        writer.join().unwrap();
    }
}
