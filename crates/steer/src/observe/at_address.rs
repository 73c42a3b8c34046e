//! Which file is mapped at an address: one line of proc_pid_maps(5).

use super::text::{hex, number, read};

/// The device and inode at `address` in `process`, a number or `self`. `None` where nothing is mapped.
pub fn at_address(process: &str, address: u64) -> Option<((u64, u64), u64)> {
    let mut text = Vec::new();
    if !read(&format!("/proc/{process}/maps"), &mut text) {
        return None;
    }
    text.split(|byte| *byte == b'\n').find_map(|line| identity(line, address))
}

fn identity(line: &[u8], address: u64) -> Option<((u64, u64), u64)> {
    let (start, rest) = hex(line)?;
    let (end, rest) = hex(rest.strip_prefix(b"-")?)?;
    if !(start..end).contains(&address) {
        return None;
    }
    // Access and offset come between.
    let mut words = rest.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).skip(2);
    let (major, minor) = hex(words.next()?)?;
    let (minor, _) = hex(minor.strip_prefix(b":")?)?;
    Some(((major, minor), number(words.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_an_address_tells_the_file() {
        let line = b"7f0000000000-7f0010000000 r--s 00001000 fd:0a 12 /data/a file";
        assert_eq!(identity(line, 0x7f00_0000_0000), Some(((0xfd, 10), 12)));
        assert_eq!(identity(line, 0x7f00_1000_0000), None);
        assert!(at_address("self", line.as_ptr().addr() as u64).is_some());
    }
}
