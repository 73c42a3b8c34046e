//! Advice on the mapping that a block of the heap lies in, where that is a file's (`fastmap run --direct always --heap`).

use std::fs;
use std::io;

use crate::substrates::{Error, Result};

/// Tells the kernel that the mapping around `block` is read at random: `MADV_RANDOM`, which turns readahead off. madvise(2)
///
/// # Errors
///
/// A block that lies in no mapping of a file, and what the kernel answers.
pub fn advise_random(block: *const u8) -> Result<()> {
    advise(block, libc::MADV_RANDOM)
}

/// Takes that back.
///
/// # Errors
///
/// As [`advise_random`].
pub fn advise_normal(block: *const u8) -> Result<()> {
    advise(block, libc::MADV_NORMAL)
}

fn advise(block: *const u8, advice: libc::c_int) -> Result<()> {
    let maps = fs::read_to_string("/proc/self/maps").map_err(failed)?;
    let (start, end) = mapping_of(&maps, block as usize).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    // By the system call itself: madvise(3) on heap memory is the preload library's. SAFETY: advice changes no memory.
    match unsafe { libc::syscall(libc::SYS_madvise, start, end - start, advice) } {
        0 => Ok(()),
        _ => Err(failed(io::Error::last_os_error())),
    }
}

fn failed(source: io::Error) -> Error {
    Error::Io {
        thing: "heap".to_owned(),
        what: "cannot advise on its mapping",
        source,
        remedy: "run it under `fastmap run --direct always --heap FILE`",
    }
}

/// First and last address of the file's mapping that an address lies in. proc_pid_maps(5)
fn mapping_of(maps: &str, address: usize) -> Option<(usize, usize)> {
    maps.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let inode = fields.nth(3)?;
        let range = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        ((range.0..range.1).contains(&address) && inode != "0").then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mapping_of_a_file() {
        let maps = "7f00-7f10 rw-s 00001000 fe:00 77 /var/tmp/#12 (deleted)\n7f10-7f20 rw-p 00000000 00:00 0 \n";
        assert_eq!(mapping_of(maps, 0x7f0f), Some((0x7f00, 0x7f10)));
        assert_eq!((mapping_of(maps, 0x7f10), mapping_of(maps, 0x7f20)), (None, None));
    }

    #[test]
    fn advice_reaches_the_kernel() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(1 << 20).unwrap();
        // SAFETY: nobody else knows the file.
        let map = unsafe { memmap2::MmapMut::map_mut(&file).unwrap() };
        let block = map[70_000..].as_ptr();
        let flags = || {
            let all = fs::read_to_string("/proc/self/smaps").unwrap();
            let start = format!("{:x}-", map.as_ptr() as usize);
            let of_map = all.lines().skip_while(|line| !line.starts_with(&start));
            of_map.into_iter().find(|line| line.starts_with("VmFlags")).unwrap().to_owned()
        };
        assert!(!flags().contains(" rr"), "{}", flags());
        advise_random(block).unwrap();
        assert!(flags().contains(" rr"), "{}", flags());
        advise_normal(block).unwrap();
        assert!(!flags().contains(" rr"), "{}", flags());
        let on_stack = 0u8;
        assert!(advise_random(&on_stack).is_err());
    }
}
