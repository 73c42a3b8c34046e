//! Finds a `syscall` instruction in a process: in the vdso, which the kernel maps into every one. Other code may lie in a file of a file
//! system that does not answer.

use super::maps::vdso;
use crate::observe::Descriptor;
use crate::observe::text::read;
use rustix::fs::OFlags;
use rustix::io::{Errno, pread};

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of the vdso that are searched at most: it has two pages or so.
const MOST: u64 = 64 << 10;

/// The address of a `syscall` instruction. `Ok(None)` if there is none, an error if the process may not be read.
pub(super) fn find(pid: u32) -> Result<Option<u64>, Errno> {
    let memory = Descriptor::open_with(&format!("/proc/{pid}/mem"), OFlags::empty())?;
    let mut text = Vec::new();
    if !read(&format!("/proc/{pid}/maps"), &mut text) {
        return Err(Errno::ACCESS);
    }
    let Some(at) = vdso(&text) else { return Ok(None) };
    let mut bytes = vec![0; (at.end - at.start).min(MOST) as usize];
    let length = pread(&memory, &mut *bytes, at.start).unwrap_or(0);
    let index = bytes[..length].windows(2).position(|two| two == SYSCALL);
    Ok(index.map(|index| at.start + index as u64))
}

/// Whether a process runs a 32-bit program, by the size of its file's program headers, of which the kernel keeps a note (getauxval(3)).
pub(super) fn is_32_bit(pid: u32) -> bool {
    let mut text = Vec::new();
    read(&format!("/proc/{pid}/auxv"), &mut text) && has_32_bit_headers(&text)
}

fn has_32_bit_headers(notes: &[u8]) -> bool {
    /// AT_PHENT and `sizeof(Elf32_Phdr)`, in the words of such a program.
    const NOTE: [[u8; 4]; 2] = [4u32.to_ne_bytes(), 32u32.to_ne_bytes()];
    notes.chunks_exact(8).any(|note| note == NOTE.as_flattened())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_tell_how_long_words_are() {
        let long: Vec<u8> = [33u64, 0x7ffe_0000_0000, 4, 56, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let short: Vec<u8> = [32u32, 0xf7f0_0000, 4, 32, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert!(has_32_bit_headers(&short) && !has_32_bit_headers(&long) && !has_32_bit_headers(b""));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn this_process_has_one() {
        assert!(find(std::process::id()).unwrap().is_some());
        assert!(find(u32::MAX).is_err());
        assert!(!is_32_bit(std::process::id()));
    }
}
