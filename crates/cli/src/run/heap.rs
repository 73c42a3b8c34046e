//! Checks `--heap FILE[:SIZE]`: the file must not exist yet, or be empty, and its directory must be writable and have room for it.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::size::Size;

/// Checks the argument. Returns it with an absolute path.
pub fn checked(source: &str, argument: &OsStr) -> Result<OsString, Failure> {
    let (file, size) = split(source, argument)?;
    let file = std::path::absolute(&file).unwrap_or(file);
    let refuse = |what: String, remedy: &str| Err(Failure::new(source, format!("{}: {what}", file.display()), remedy));
    match fs::symlink_metadata(&file) {
        Ok(there) if there.is_dir() => return refuse("is a directory".into(), "name a file in it"),
        Ok(there) if !there.is_file() => {
            return refuse("is not a regular file".into(), "name a file that is not there yet");
        }
        Ok(there) if there.len() > 0 => {
            let what = format!("exists and holds {} bytes, which a heap would overwrite", there.len());
            return refuse(what, "name a file that is not there yet, or remove it");
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return refuse(error.to_string(), "name a file in a directory that you may write to"),
    }
    let folder = file.parent().unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        return refuse(format!("there is no directory {}", folder.display()), "make it, or name another");
    }
    let place = CString::new(folder.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: `place` is a C string.
    if unsafe { libc::access(place.as_ptr(), libc::W_OK | libc::X_OK) } != 0 {
        let what = format!("no file can be made in {}: {}", folder.display(), io::Error::last_os_error());
        return refuse(what, "name a directory that you may write to");
    }
    let mut argument = file.clone().into_os_string();
    if let Some(size) = size {
        let free = free_space(&place).map(Size);
        if let Some(free) = free.filter(|free| size > *free) {
            let what = format!("a heap of {size} does not fit into the {free} that are free there");
            return refuse(what, "give less, or name a directory with more room");
        }
        argument.push(format!(":{size}"));
    }
    Ok(argument)
}

/// The file, and the size after the last colon.
fn split(source: &str, argument: &OsStr) -> Result<(PathBuf, Option<Size>), Failure> {
    let bytes = argument.as_bytes();
    let (file, size) = match bytes.iter().rposition(|byte| *byte == b':') {
        Some(colon) => {
            let text = String::from_utf8_lossy(&bytes[colon + 1..]);
            let name = "; where the colon is part of the file's name, give a size behind it";
            let size = text.parse().map_err(|reason: String| Failure::refused(source, format!("{reason}{name}")))?;
            if size == Size(0) {
                return Err(Failure::usage(source, "a heap of 0 bytes holds nothing", "give more, or no size"));
            }
            (&bytes[..colon], Some(size))
        }
        None => (bytes, None),
    };
    if file.is_empty() {
        return Err(Failure::usage(source, "names no file", "give FILE or FILE:SIZE"));
    }
    Ok((PathBuf::from(OsString::from_vec(file.to_vec())), size))
}

/// The bytes that this user can still write in the directory's file system. statvfs(3)
fn free_space(folder: &CString) -> Option<u64> {
    let mut facts = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `folder` is a C string. The call fills `facts` if it succeeds, and only then it is taken as initialized.
    let facts = unsafe {
        if libc::statvfs(folder.as_ptr(), facts.as_mut_ptr()) != 0 {
            return None;
        }
        facts.assume_init()
    };
    Some(facts.f_bavail * facts.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_stands_behind_the_last_colon() {
        let split = |text: &str| split("--heap", OsStr::new(text));
        assert_eq!(split("/fast/heap").unwrap(), ("/fast/heap".into(), None));
        assert_eq!(split("/fast/heap:1GiB").unwrap(), ("/fast/heap".into(), Some(Size(1 << 30))));
        assert_eq!(split("a:b:4096").unwrap(), ("a:b".into(), Some(Size(4096))));
        assert_eq!(split("heap:1.5G").unwrap(), ("heap".into(), Some(Size(3 << 29))));
        for text in ["heap:", "heap:abc", "heap:1GX", "heap:0", ":4096", ""] {
            assert!(split(text).is_err(), "{text}");
        }
    }
}
