//! `fastmap bench storage`: the bytes that it holds, how it ends, and what `fastmap run` makes of a load from it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::FASTMAP;
use crate::prompt::{dir, fastmap, files_in, is_root, run_in, skipped};

/// It, mounted at a folder.
struct Storage {
    child: Option<Child>,
    at: PathBuf,
}

impl Storage {
    /// Mounts it at the folder `far` in `dir`. None, with the reason printed, where nobody may.
    fn start(dir: &Path, flags: &str) -> Option<Storage> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let at = dir.join("far");
        fs::create_dir(&at).unwrap();
        let mut command = Command::new(FASTMAP);
        command.current_dir(dir).arg("storage").args(flags.split_whitespace()).arg("far");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        if ready.is_empty() {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(1), "{why}");
            assert!(why.contains("cannot be mounted: "), "{why}");
            skipped(&why);
            return None;
        }
        assert!(ready.starts_with("far: ") && ready.contains("each read takes "), "{ready}");
        Some(Storage { child: Some(child), at })
    }

    /// Ends it by SIGTERM; the line that it says then.
    fn end(mut self) -> String {
        let mut child = self.child.take().unwrap();
        terminate(&child);
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(files_in(&self.at).is_empty(), "it is unmounted");
        said
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            terminate(&child);
            let _ = child.wait();
        }
    }
}

fn terminate(child: &Child) {
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
}

/// `A reads, B MiB, C at a time at most`: C.
fn at_a_time(said: &str) -> u64 {
    let number = said.trim_end().strip_suffix(" at a time at most").and_then(|rest| rest.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

/// Bytes that a wrong offset shows in.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| word()).collect();
    bytes.truncate(len);
    bytes
}

#[test]
fn files_of_a_folder_are_read_right_by_many_at_once() {
    let dir = dir();
    let expected = bytes((3 << 20) + 777);
    fs::create_dir(dir.path().join("near")).unwrap();
    fs::write(dir.path().join("near/file"), &expected).unwrap();
    fs::write(dir.path().join("near/empty"), "").unwrap();
    let Some(storage) = Storage::start(dir.path(), "--latency 1ms --source near") else { return };
    assert_eq!(files_in(&storage.at), ["empty", "file"]);
    assert_eq!(fs::read(storage.at.join("empty")).unwrap(), b"");
    let path = storage.at.join("file");
    assert_eq!(path.metadata().unwrap().len(), expected.len() as u64);
    thread::scope(|scope| {
        for thread in 0..16_usize {
            let (path, expected) = (&path, &expected);
            scope.spawn(move || {
                let file = File::open(path).unwrap();
                for turn in 0..20 {
                    let at = (thread * 20 + turn) * 10_007 % expected.len();
                    let mut read = vec![0; 1 + 997 * turn];
                    let count = file.read_at(&mut read, at as u64).unwrap();
                    let end = expected.len().min(at + read.len());
                    assert_eq!(&read[..count], &expected[at..end], "{count} bytes at {at}");
                }
            });
        }
    });
    let file = File::open(&path).unwrap();
    let mut beyond = [0; 10];
    assert_eq!(file.read_at(&mut beyond, expected.len() as u64 - 3).unwrap(), 3);
    assert_eq!(beyond[..3], expected[expected.len() - 3..]);
    assert_eq!(file.read_at(&mut beyond, expected.len() as u64).unwrap(), 0);
    assert_eq!(fs::read(&path).unwrap(), expected);
    let refused = File::options().write(true).open(&path).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    drop(file);
    let said = storage.end();
    assert!(said.contains(" reads, ") && at_a_time(&said) >= 2, "{said}");
}

#[test]
fn the_made_up_file_is_one_of_the_benchs() {
    let dir = dir();
    let Some(storage) = Storage::start(dir.path(), "--latency 100us --size 2MiB") else { return };
    let line = "micro --file far/data --engines mmap,pread --memory none --seconds 0.05 --repeat 1";
    fastmap(dir.path(), line).succeeded();
    // A program that has a file open does not keep it mounted.
    let open = File::open(storage.at.join("data")).unwrap();
    storage.end();
    assert!(open.read_at(&mut [0], 0).is_err() || open.read_at(&mut [0], 1 << 20).is_ok(), "in the page cache at most");
}

#[test]
fn where_it_cannot_be_mounted_it_says_why() {
    let dir = dir();
    fastmap(dir.path(), "storage nowhere").failed_with(1, &["nowhere: cannot be looked into", "an empty folder"]);
    fs::create_dir(dir.path().join("full")).unwrap();
    fs::write(dir.path().join("full/file"), "").unwrap();
    fastmap(dir.path(), "storage full").failed_with(1, &["full: is not empty", "name an empty folder"]);
    fastmap(dir.path(), "storage full/file").failed_with(1, &["full/file: cannot be looked into"]);
    fs::create_dir(dir.path().join("empty")).unwrap();
    fastmap(dir.path(), "storage --source empty empty").failed_with(1, &["empty: has no files"]);
    fastmap(dir.path(), "storage --source none empty").failed_with(1, &["none: cannot be read"]);
    if is_root() || !Path::new("/dev/fuse").exists() {
        return println!("skipped: only who is not root lacks the right");
    }
    let ran = run_in(dir.path(), Command::new(FASTMAP).args(["storage", "empty"]).env("PATH", "/nowhere"));
    if ran.status != Some(0) {
        ran.failed_with(1, &["empty: cannot be mounted: ", "fusermount3"]);
    }
}

/// Maps a file and loads its pieces of 256 KiB in a shuffled order; says the sum of its words.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
int main(int count, char **words) {
    struct stat stat;
    int fd = open(words[1], O_RDONLY);
    if (count != 2 || fd < 0 || fstat(fd, &stat)) return 1;
    const uint64_t *map = mmap(0, stat.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return 2;
    uint64_t sum = 0, pieces = stat.st_size >> 18, piece = 0;
    for (uint64_t n = 0; n < pieces; n++, piece = (piece + 101) % pieces)
        for (uint64_t i = piece << 15; i < (piece + 1) << 15; i++) sum = sum * 31 + map[i];
    printf("%016lx\n", (unsigned long)sum);
}
"#;

#[test]
fn a_load_under_fastmap_run_has_readers_beside_it_and_loads_the_same() {
    let command = Path::new(FASTMAP).with_file_name("fastmap");
    if !command.exists() {
        return skipped("fastmap is not beside fastmap-bench: `make build PROFILE=dev`");
    }
    let dir = dir();
    let (source, program) = (dir.path().join("program.c"), dir.path().join("program"));
    fs::write(&source, PROGRAM).unwrap();
    assert!(Command::new("gcc").arg("-O1").arg("-o").args([&program, &source]).status().unwrap().success());
    fs::create_dir(dir.path().join("near")).unwrap();
    // 384 pieces, of which 101 is no divisor.
    fs::write(dir.path().join("near/file"), bytes(96 << 20)).unwrap();
    // Alone it takes eight seconds and more.
    let Some(storage) = Storage::start(dir.path(), "--latency 10ms --source near") else { return };
    let mut command = Command::new(command);
    command.arg("run").arg("--").arg(&program).arg("far/file").env("FASTMAP_LOG", "steer");
    let steered = run_in(dir.path(), &mut command);
    assert_eq!(steered.status, Some(0), "{}", steered.stderr);
    let alone = run_in(dir.path(), Command::new(&program).arg("near/file"));
    assert_eq!((alone.status, &alone.stdout), (Some(0), &steered.stdout));
    let said = storage.end();
    // The kernel reads ahead by four at most.
    assert!(at_a_time(&said) >= 8, "{said}{}", steered.stderr);
    assert!(steered.stderr.contains("a load from slow storage: "), "{said}{}", steered.stderr);
}
