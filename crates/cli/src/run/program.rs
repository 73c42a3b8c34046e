//! Finds the program to run, and checks whether it can load a preload library. execve(2), ld.so(8), elf(5)

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Exit statuses, as the shell and env(1) have them.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Finds a program as execvp(3) does. The path that is returned contains a slash.
pub fn find(program: &OsStr) -> Result<PathBuf, Failure> {
    if program.is_empty() {
        return Err(not_found(program, "its name is empty"));
    }
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(not_run(&path, &error)),
            Err(error) => Err(not_found(program, error)),
            Ok(_) => executable(&path).map(|()| path).map_err(|error| not_run(Path::new(program), &error)),
        };
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut refused = None;
    for folder in env::split_paths(&folders) {
        // An empty entry of PATH is the current directory.
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        let path = folder.join(program);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if path.is_file() => drop(refused.get_or_insert(not_run(&path, &error))),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| not_found(program, "in no directory of PATH")))
}

fn not_found(program: &OsStr, why: impl std::fmt::Display) -> Failure {
    let remedy = "give the path of a program, or a name that is found in PATH";
    Failure::new(program.display(), format!("not found: {why}"), remedy).with_status(NOT_FOUND)
}

/// The failure for a program that exists and cannot be executed.
pub fn not_run(path: &Path, error: &io::Error) -> Failure {
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    Failure::new(path.display(), format!("cannot be executed: {error}"), "give a program that you may run")
        .with_status(status)
}

fn executable(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` is a C string.
    match unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kind of a program. For a script, it is the kind of its interpreter.
///
/// # Errors
///
/// The program `needs_library`, and cannot load one. A program that cannot be read is not checked.
pub fn check(program: &Path, needs_library: bool) -> Result<Kind, Failure> {
    /// Linux follows at most this many scripts whose interpreter is a script, too.
    const MOST_SCRIPTS: usize = 5;
    let mut path = program.to_owned();
    for _ in 0..MOST_SCRIPTS {
        let Ok(file) = File::open(&path) else { return Ok(Kind::Plain) };
        let mut start = Vec::new();
        if (&file).take(256).read_to_end(&mut start).is_err() {
            return Ok(Kind::Plain);
        }
        let Some(line) = start.strip_prefix(b"#!") else {
            return check_binary(program, &path, &file, &start, needs_library);
        };
        match interpreter(line) {
            Some(next) => path = next,
            None => return Ok(Kind::Plain),
        }
    }
    Ok(Kind::Plain)
}

/// The interpreter on a script's first line. If that is env(1), it is the program that env is told to run.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let path = Path::new(words.next()?);
    if path.file_name() != Some(OsStr::new("env")) {
        return Some(path.to_owned());
    }
    let is_program = |word: &&OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
    words.find(is_program).and_then(|name| find(name).ok()).or_else(|| Some(path.to_owned()))
}

fn check_binary(program: &Path, path: &Path, file: &File, start: &[u8], needs_library: bool) -> Result<Kind, Failure> {
    let name = if program == path {
        program.display().to_string()
    } else {
        format!("{}: its interpreter {}", program.display(), path.display())
    };
    let refuse = |what: &str, remedy: &str| Err(Failure::new(&name, what, remedy));
    if let Some(bits) = privileged(path, file).filter(|_| needs_library) {
        let what = format!("runs with other rights than yours ({bits}), and the loader ignores LD_PRELOAD there");
        return refuse(&what, "run it as the user it belongs to, or a copy of it without them");
    }
    match Elf::of(file, start) {
        Elf::None => Ok(Kind::Plain),
        Elf::Dynamic(kind) => Ok(kind),
        _ if !needs_library => Ok(Kind::Plain),
        Elf::Bits32 => {
            refuse("is a 32-bit program, and FastMap's libraries are for 64-bit ones", "use the program's 64-bit build")
        }
        Elf::OtherMachine(number) => refuse(
            &format!("is built for another processor (ELF machine {number})"),
            "use the program's build for x86-64",
        ),
        Elf::Static => refuse(
            "is statically linked, so no library can be put into it",
            "leave out --cache and --heap, for it can be steered; or use a build that is linked dynamically",
        ),
        Elf::OtherLoader(loader) => refuse(
            &format!("uses the C library of {loader}, and FastMap's libraries are built for glibc"),
            "use a build of the program for glibc",
        ),
    }
}

/// The property that gives a program rights of its own, so that ld.so(8) runs it in secure-execution mode.
fn privileged(path: &Path, file: &File) -> Option<&'static str> {
    let facts = file.metadata().ok()?;
    // SAFETY: the calls have no preconditions.
    let (user, group, no_new) = unsafe {
        let no_new = libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
        (libc::getuid(), libc::getgid(), no_new)
    };
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut system = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `name` is a C string. The call fills `system` if it succeeds, and only then `system` is taken as initialized.
    let ignored = unsafe {
        libc::statvfs(name.as_ptr(), system.as_mut_ptr()) == 0 && system.assume_init().f_flag & libc::ST_NOSUID != 0
    };
    if ignored || no_new {
        return None;
    }
    let group_bits = libc::S_ISGID | libc::S_IXGRP;
    if facts.mode() & libc::S_ISUID != 0 && facts.uid() != user {
        return Some("setuid");
    }
    if facts.mode() & group_bits == group_bits && facts.gid() != group {
        return Some("setgid");
    }
    // SAFETY: both names are C strings. The buffer's size is 0, so nothing is written.
    let size = unsafe { libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    (size > 0 && user != 0).then_some("file capabilities")
}

/// The kind of a program, as far as it matters to the preload libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// A Go program: its runtime makes system calls without the C library.
    Go,
}

/// The warning for a Go program with a cache.
pub const OF_GO: &str = "fastmap: PROGRAM: is a Go program, which makes its system calls itself: what it maps is the kernel's, outside any cache, \
                         but for what its C parts (cgo) map; have those map the files, by libfastmap";

/// The kind of a file, by its ELF header.
#[derive(Debug, PartialEq, Eq)]
enum Elf {
    /// The file is no ELF file, or is damaged. The kernel will judge it.
    None,
    Dynamic(Kind),
    Static,
    Bits32,
    OtherMachine(u16),
    OtherLoader(String),
}

impl Elf {
    fn of(file: &File, start: &[u8]) -> Elf {
        const CLASS_32: u8 = 1;
        const MACHINE: u16 = 62; // EM_X86_64
        const INTERPRETER: u32 = 3; // PT_INTERP
        const NOTE: u32 = 4; // PT_NOTE
        let Some(head) = start.get(..64).filter(|head| head.starts_with(b"\x7fELF")) else { return Elf::None };
        if head[4] == CLASS_32 {
            return Elf::Bits32;
        }
        let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        // The sixth byte is 2 if numbers are big-endian.
        let machine = if head[5] == 2 { short(18).swap_bytes() } else { short(18) };
        if machine != MACHINE {
            return Elf::OtherMachine(machine);
        }
        let long = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let (table, size, count) = (long(&head[32..40]), u64::from(short(54)), u64::from(short(56)));
        let (mut kind, mut interpreter) = (Kind::Plain, None);
        for entry in 0..count {
            let mut header = [0; 56];
            if file.read_exact_at(&mut header, table.wrapping_add(entry * size)).is_err() {
                return Elf::None;
            }
            let part = || {
                let mut part = vec![0; long(&header[32..40]).min(4096) as usize];
                file.read_exact_at(&mut part, long(&header[8..16])).map(|()| part)
            };
            match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
                INTERPRETER => interpreter = Some(part().unwrap_or_default()),
                NOTE if part().is_ok_and(|notes| has_note_of_go(&notes)) => kind = Kind::Go,
                _ => {}
            }
        }
        let Some(path) = interpreter else { return Elf::Static };
        let path = String::from_utf8_lossy(&path).trim_end_matches('\0').to_owned();
        if path.contains("musl") { Elf::OtherLoader(path) } else { Elf::Dynamic(kind) }
    }
}

/// Whether one of these ELF notes is a Go build id. Go's linker puts one into every program, also if another linker finishes the program.
fn has_note_of_go(mut notes: &[u8]) -> bool {
    const BUILD_ID: u32 = 4;
    while let Some((sizes, rest)) = notes.split_first_chunk::<12>() {
        let number = |at: usize| u32::from_le_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]);
        let (name, text, kind) = (number(0) as usize, number(4) as usize, number(8));
        if rest.get(..name) == Some(b"Go\0\0") && kind == BUILD_ID {
            return true;
        }
        notes = rest.get(name.next_multiple_of(4).saturating_add(text.next_multiple_of(4))..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_go() {
        let note = |name: &[u8; 4], kind: u32, text: &[u8]| {
            [&4u32.to_le_bytes(), &(text.len() as u32).to_le_bytes(), &kind.to_le_bytes(), &name[..], text].concat()
        };
        let (gnu, go) = (note(b"GNU\0", 3, &[7; 20]), note(b"Go\0\0", 4, b"abcdefgh"));
        assert!(has_note_of_go(&go) && has_note_of_go(&[&gnu[..], &go[..]].concat()));
        assert!(!has_note_of_go(&gnu) && !has_note_of_go(b"") && !has_note_of_go(&[0xff; 40]));
    }

    #[test]
    fn first_lines_of_scripts() {
        let of = |line: &str| interpreter(line.as_bytes()).map(|path| path.display().to_string());
        assert_eq!(of("/bin/sh\nexit"), Some("/bin/sh".into()));
        assert_eq!(of(" /usr/bin/awk -f\n"), Some("/usr/bin/awk".into()));
        assert!(of("/usr/bin/env -S A=1 sh -e\n").unwrap().ends_with("/sh"));
        assert_eq!(of("/usr/bin/env no-such-program\n"), Some("/usr/bin/env".into()));
        assert_eq!(of("\n"), None);
    }

    #[test]
    fn kinds_of_files() {
        let file = tempfile::tempfile().unwrap();
        let mut head = vec![0u8; 64];
        assert_eq!(Elf::of(&file, b"echo hello"), Elf::None);
        head[..6].copy_from_slice(b"\x7fELF\x01\x01");
        assert_eq!(Elf::of(&file, &head), Elf::Bits32);
        head[4] = 2;
        head[18] = 183;
        assert_eq!(Elf::of(&file, &head), Elf::OtherMachine(183));
        head[18] = 62;
        assert_eq!(Elf::of(&file, &head), Elf::Static, "no segments");
        let own = File::open("/proc/self/exe").unwrap();
        own.read_exact_at(&mut head, 0).unwrap();
        assert_eq!(Elf::of(&own, &head), Elf::Dynamic(Kind::Plain));
    }
}
