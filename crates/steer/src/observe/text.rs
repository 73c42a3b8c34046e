//! Text files of /proc.

use super::descriptor::Descriptor;

/// Reads a whole file into a buffer, of which nothing old stays. `false` if the file cannot be read.
pub(crate) fn read(path: &str, into: &mut Vec<u8>) -> bool {
    into.clear();
    let Some(file) = Descriptor::open(path) else { return false };
    loop {
        let filled = into.len();
        // A file of /proc may be long: the caller does without it where there is no memory.
        if into.try_reserve(16384).is_err() {
            into.clear();
            return false;
        }
        into.resize(filled + 16384, 0);
        match rustix::io::read(&file, &mut into[filled..]) {
            Ok(0) => {
                into.truncate(filled);
                return true;
            }
            Ok(more) => into.truncate(filled + more),
            Err(rustix::io::Errno::INTR) => into.truncate(filled),
            Err(_) => {
                into.truncate(filled);
                return false;
            }
        }
    }
}

/// The number that follows `name` at the beginning of a line.
pub(crate) fn number_after(text: &[u8], name: &str) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(name.as_bytes()))?;
    number(line[name.len()..].trim_ascii_start())
}

/// The decimal digits at the beginning.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The hexadecimal digits at the beginning, and what follows them.
pub(crate) fn hex(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let number = u64::from_str_radix(std::str::from_utf8(&text[..digits]).ok()?, 16).ok()?;
    Some((number, &text[digits..]))
}
