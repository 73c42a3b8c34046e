//! Finds a `syscall` instruction in a process.

use crate::observe::Descriptor;
use crate::observe::text::{hex, read};
use rustix::fs::OFlags;
use rustix::io::{Errno, pread};
use std::ops::Range;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of one mapping that are searched at most, and at a time.
const MOST: u64 = 8 << 20;
const PART: usize = 64 << 10;

/// The address of a `syscall` instruction, in the vdso or else in another mapping of code. `Ok(None)` if there is none, an error if the
/// process may not be read.
pub(super) fn find(pid: u32) -> Result<Option<u64>, Errno> {
    let memory = Descriptor::open_with(&format!("/proc/{pid}/mem"), OFlags::empty())?;
    let mut text = Vec::new();
    if !read(&format!("/proc/{pid}/maps"), &mut text) {
        return Err(Errno::ACCESS);
    }
    Ok(code(&text).into_iter().find_map(|at| search(&memory, at)))
}

/// Whether a process runs a 32-bit program.
pub(super) fn is_32_bit(pid: u32) -> bool {
    /// `EI_CLASS` of elf(5): ELFCLASS32.
    const CLASS: [u8; 5] = *b"\x7fELF\x01";
    let mut bytes = [0; CLASS.len()];
    let program = Descriptor::open(&format!("/proc/{pid}/exe"));
    program.is_some_and(|program| pread(&program, &mut bytes, 0) == Ok(CLASS.len()) && bytes == CLASS)
}

/// Mappings of code, the vdso first. The legacy page (vsyscall) is left out: it cannot be stepped through.
fn code(maps: &[u8]) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for line in maps.split(|byte| *byte == b'\n').filter(|line| !line.ends_with(b"[vsyscall]")) {
        let Some((start, rest)) = hex(line) else { continue };
        let Some((end, rest)) = rest.strip_prefix(b"-").and_then(hex) else { continue };
        if !rest.starts_with(b" r") || rest.get(3) != Some(&b'x') {
            continue;
        }
        let place = if line.ends_with(b"[vdso]") { 0 } else { found.len() };
        found.insert(place, start..end);
    }
    found
}

fn search(memory: &Descriptor, at: Range<u64>) -> Option<u64> {
    let mut bytes = vec![0; PART];
    let mut from = at.start;
    while from < at.end.min(at.start + MOST) {
        let length = PART.min((at.end - from) as usize);
        let read = pread(memory, &mut bytes[..length], from).ok().filter(|read| *read > 1)?;
        if let Some(index) = bytes[..read].windows(2).position(|two| two == SYSCALL) {
            return Some(from + index as u64);
        }
        // The instruction may lie on both sides of a part's end.
        from += read as u64 - 1;
        if from + 1 >= at.end {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_comes_first_and_what_cannot_be_read_not_at_all() {
        let maps = b"\
55d0c0000000-55d0c0001000 r-xp 00000000 fd:00 11 /data/program
55d0c0001000-55d0c0002000 rw-p 00000000 fd:00 11 /data/program
55d0c0002000-55d0c0003000 --xp 00000000 fd:00 11 /data/program
7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 r-xp 00000000 00:00 0                  [vsyscall]
";
        assert_eq!(code(maps), [0x7ffe_0000_0000..0x7ffe_0000_1000, 0x55d0_c000_0000..0x55d0_c000_1000]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn this_process_has_one() {
        assert!(find(std::process::id()).unwrap().is_some());
        assert!(find(u32::MAX).is_err());
    }
}
