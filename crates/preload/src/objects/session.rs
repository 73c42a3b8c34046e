//! The session that `fastmap run` has left. It is read when the process starts, and kept open while the process lives.
//!
//! `FASTMAP_OBJECTS` names its folder. The folder holds three files:
//!
//! * `manifest` has fields that end with a zero byte. The first two are the tier's folder and the deadline in milliseconds (empty: none). Each
//!   object has seven: path, URL, ETag, version, modification time as the store has it, modification time in seconds since 1970, and length. The
//!   four before the length may be empty.
//! * `asking` is the memory through which parts are asked for.
//! * `users` is a file on which every process of the program holds a lock (flock(2)). When nobody holds it any more, the server ends and removes
//!   the folder.
//!
//! The session's descriptors have high numbers, and the program cannot reach them (`files/descriptors.rs`). This holds in children of fork(2)
//! too.

use super::{ANY, Object};
use crate::own::caught;
use crate::{next, say};
use fastmap_tier::{Asking, Tier, TierOrigin, Version};
use libc::c_int;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

struct Session {
    objects: Vec<Object>,
    _tier: Arc<Tier>,
    _users: File,
}

static SESSION: OnceLock<Session> = OnceLock::new();

pub(super) fn objects() -> &'static [Object] {
    SESSION.get().map_or(&[], |session| &session.objects)
}

/// Opens the session, if there is one, before the program runs.
pub(crate) fn begin() {
    let Some(folder) = std::env::var_os("FASTMAP_OBJECTS").filter(|folder| !folder.is_empty()) else { return };
    let folder = Path::new(&folder);
    caught((), || {
        let lifting = next::Lifting::begin(note_hidden);
        let opened = open(folder);
        drop(lifting);
        // Forgets descriptors that were open only meanwhile.
        for hidden in &HIDDEN {
            let fd = hidden.load(Ordering::Relaxed);
            // SAFETY: F_GETFD takes no memory.
            if fd >= 0 && unsafe { next::fcntl(fd, libc::F_GETFD, 0) } < 0 {
                hidden.store(-1, Ordering::Relaxed);
            }
        }
        match opened {
            Ok(session) => ANY.store(SESSION.set(session).is_ok(), Ordering::Release),
            Err(why) => {
                say(format_args!("{}: {why}: there are no objects in this process (--object)", folder.display()))
            }
        }
    });
}

fn open(folder: &Path) -> io::Result<Session> {
    let users = File::open(folder.join("users"))?;
    // SAFETY: flock takes no memory.
    if unsafe { next::flock(users.as_raw_fd(), libc::LOCK_SH) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let manifest = fs::read(folder.join("manifest"))?;
    let asking = Asking::open(&folder.join("asking"))?;
    let mut fields = manifest.split(|byte| *byte == 0);
    let tier = Tier::open(fields.next().map(|tier| Path::new(OsStr::from_bytes(tier))), None)?;
    let deadline = number(fields.next()).map(Duration::from_millis);
    let mut objects = Vec::new();
    while let Some(path) = fields.next().filter(|path| !path.is_empty()) {
        let mut text =
            || fields.next().map(|text| String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty());
        let (url, etag, version, modified) = (text().unwrap_or_default(), text(), text(), text());
        let seconds = text().and_then(|text| text.parse().ok()).unwrap_or(0);
        let len = number(fields.next()).ok_or(io::ErrorKind::InvalidData)?;
        let local = tier.local(&Version { url, etag, version, modified, len })?;
        let facts = local.file().metadata()?;
        let copy = fs::read_link(format!("/proc/self/fd/{}", local.file().as_raw_fd()))?;
        let slash = path.iter().rposition(|byte| *byte == b'/').ok_or(io::ErrorKind::InvalidData)?;
        objects.push(Object {
            folder: CString::new(&path[..=slash])?,
            name: path[slash + 1..].to_vec(),
            origin: TierOrigin::new(local, asking.clone(), objects.len() as u32, deadline),
            copy: CString::new(copy.as_os_str().as_bytes())?,
            identity: (facts.dev(), facts.ino()),
            len,
            modified: seconds,
            ends: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
            window: AtomicU64::new(0),
        });
    }
    Ok(Session { objects, _tier: tier, _users: users })
}

fn number(field: Option<&[u8]>) -> Option<u64> {
    std::str::from_utf8(field?).ok()?.parse().ok()
}

/// The session's descriptors; -1: a free entry. A descriptor that finds no entry still works, until the program closes all that it finds open.
static HIDDEN: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];

fn note_hidden(fd: c_int) {
    if let Some(free) = HIDDEN.iter().find(|hidden| hidden.load(Ordering::Relaxed) < 0) {
        free.store(fd, Ordering::Relaxed);
    }
}

/// Whether a descriptor is the session's. The program sees it as not open.
#[inline]
pub(crate) fn is_hidden(fd: c_int) -> bool {
    super::any() && fd >= 0 && HIDDEN.iter().any(|hidden| hidden.load(Ordering::Relaxed) == fd)
}

/// The first descriptor of the session at or after `from`.
pub(crate) fn next_hidden(from: c_int) -> Option<c_int> {
    if !super::any() {
        return None;
    }
    HIDDEN.iter().map(|hidden| hidden.load(Ordering::Relaxed)).filter(|fd| *fd >= from.max(0)).min()
}
