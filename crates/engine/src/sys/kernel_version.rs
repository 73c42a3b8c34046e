//! The version of the running kernel (uname(2)).

/// The kernel's release (uname(2)), such as "6.18.44-generic".
pub fn release() -> String {
    // SAFETY: uname fills the zeroed structure. The release is a C string.
    unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        libc::uname(&mut names);
        std::ffi::CStr::from_ptr(names.release.as_ptr()).to_string_lossy().into_owned()
    }
}

/// Whether a release such as "6.18.44-generic" is no older than a version.
pub fn is_recent(release: &str, than: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= than
}
