//! Who serves the mappings of each file: the list that `FASTMAP_LOG=mappings` shows, and the line about a file that is outside the budget
//! though the user gave one.
//!
//! Each decision that a mapping of a file is the kernel's comes here with its reason, here made (`map.rs`) or in the engine (`hear`).
//! Nothing is locked and nothing allocated: the program may be anywhere, and after fork(2).

use super::choice::{SMALL, identity, path_of};
use crate::own::{kernel, owner, undisturbed};
use crate::{config, report, say};
use fastmap::by_address::{Served, Why, say_kernels, say_no_engine};
use libc::{c_int, size_t};
use std::ffi::OsStr;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who serves a file.
#[derive(Clone, Copy)]
pub(crate) enum By<'a> {
    Engine,
    Direct,
    Heap,
    /// Why.
    Kernel(&'a dyn Display),
}

/// Notes that the kernel has a new mapping of the file behind a descriptor, of so many bytes.
pub(super) fn note_kernels(fd: c_int, len: size_t, why: Why) {
    if !is_of_interest(len) {
        return;
    }
    undisturbed((), || note_kernels_of(fd, why));
}

/// Whether anybody asks who has a mapping of so many bytes. A filter may forbid every call once the engine has left.
fn is_of_interest(len: size_t) -> bool {
    let config = config();
    let is_asked = config.names_files() || len > SMALL;
    (config.logs_mappings || is_asked) && !config.off && !owner::has_left()
}

fn note_kernels_of(fd: c_int, why: Why) {
    let Some(file) = identity(fd) else { return };
    let why = if matches!(why, Why::Private | Why::PrivateStores) && is_code(fd) { Why::Code } else { why };
    let mut path = [0; libc::PATH_MAX as usize];
    let path = path_of(fd, &mut path);
    if !config().matches(path) {
        return report::note_unnamed(Path::new(OsStr::from_bytes(path)));
    }
    report::note_named();
    let is_asked = !matches!(why, Why::Small | Why::InMemory | Why::NoCache | Why::Code);
    list(path, file, By::Kernel(&why));
    if is_asked {
        say_kernels(path, file, &why);
    }
}

/// Whether a file is a program or a library (elf(5)): those who load them, look for symbols in them or print a trace map them privately,
/// and none is what a budget is for.
pub(super) fn is_code(fd: c_int) -> bool {
    const KINDS: [u8; 2] = [2, 3]; // ET_EXEC, ET_DYN
    let mut head = [0u8; 17];
    // SAFETY: room for what is read; at an offset, so that the position stays.
    let read =
        unsafe { kernel::call(libc::SYS_pread64, [fd as usize, head.as_mut_ptr().expose_provenance(), head.len(), 0]) };
    read == Ok(head.len()) && head.starts_with(b"\x7fELF") && KINDS.contains(&head[16])
}

/// Notes that the engine has refused the file behind a descriptor, and the kernel has it.
pub(super) fn note_refused(fd: c_int, why: &fastmap::Error) {
    let Some(file) = identity(fd) else { return };
    let mut path = [0; libc::PATH_MAX as usize];
    let path = path_of(fd, &mut path);
    match why {
        fastmap::Error::Missing { missing, remedy, .. } => {
            let why = format_args!("{missing} is missing: {remedy}");
            if !has_engine() {
                list(path, file, By::Kernel(&why));
                return say_no_engine(&why);
            }
            refused(path, file, &why)
        }
        why => refused(path, file, why),
    }
}

/// Whether the machine has what the engine needs, whatever the file.
fn has_engine() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| fastmap::requirements::missing().is_none())
}

fn refused(path: &[u8], file: (u64, u64), why: &dyn Display) {
    list(path, file, By::Kernel(why));
    say_kernels(path, file, why);
}

/// Hears of what the engine has decided.
pub(crate) fn hear(served: &Served<'_>) {
    let path = served.path.as_os_str().as_bytes();
    let Some(why) = served.by_kernel else { return list(path, served.file, By::Engine) };
    list(path, served.file, By::Kernel(&why));
    say_kernels(path, served.file, &why);
}

/// Notes who serves the file behind a descriptor from now on.
pub(super) fn note(fd: c_int, by: By<'_>) {
    if let Some(file) = identity(fd).filter(|_| config().logs_mappings) {
        list(path_of(fd, &mut [0; libc::PATH_MAX as usize]), file, by);
    }
}

/// A line, if the user wants a list and it is another than before.
pub(crate) fn list(path: &[u8], file: (u64, u64), by: By<'_>) {
    let (code, name) = match by {
        By::Engine => (1, "engine"),
        By::Direct => (2, "direct"),
        By::Heap => (3, "heap"),
        By::Kernel(_) => (4, "kernel"),
    };
    if !config().logs_mappings || !is_news(file, code) {
        return;
    }
    let path = Path::new(OsStr::from_bytes(path)).display();
    match by {
        By::Kernel(why) => say(format_args!("mappings: {path}: {name}: {why}")),
        _ => say(format_args!("mappings: {path}: {name}")),
    }
}

/// Whether a file was served otherwise before, as far as is known: of files in great number it is not.
fn is_news((device, inode): (u64, u64), code: u64) -> bool {
    const PLACES: usize = 4096;
    const TRIES: usize = 16;
    static LAST: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
    // Its lowest byte is who serves the file; the rest is never zero.
    let mark = ((inode ^ device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63) & !0xff;
    let first = (mark >> 32) as usize;
    for place in (first..first + TRIES).map(|at| &LAST[at % PLACES]) {
        let there = match place.compare_exchange(0, mark | code, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(there) => there,
        };
        if there & !0xff == mark {
            return place.swap(mark | code, Ordering::AcqRel) & 0xff != code;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_is_news() {
        assert!(is_news((1, 1), 1) && !is_news((1, 1), 1));
        assert!(is_news((1, 1), 4) && is_news((1, 2), 4) && !is_news((1, 1), 4));
        // As many as there are: none is forgotten wrongly.
        for inode in 0..10_000 {
            is_news((2, inode), 1);
        }
        assert!(!is_news((1, 2), 4));
    }
}
