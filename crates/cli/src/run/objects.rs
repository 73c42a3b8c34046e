//! `fastmap run --object`: starts the server, a process that fetches objects for the program.
//!
//! The program may be of any kind, so the fetching is not done inside it. The server is not the program's child, and it has a session (setsid(2))
//! of its own, so that the terminal's signals do not reach it. It opens the objects and makes a folder for this run; `objects/session.rs` of the
//! preload library describes the folder's files. Then it reports that it is ready, and serves until the program has ended and no process of it
//! has the folder's `users` file open. Then it removes the folder.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastmap_object::{Error, Object, ObjectOptions, serve};
use fastmap_tier::{Asking, Tier, Version};

use crate::args::ObjectArgs;
use crate::failure::Failure;

/// A program that was just executed opens the folder within this time.
const GAP: Duration = Duration::from_secs(1);

/// The time that a program waits for a part of an object. `None`: for ever.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deadline(Option<Duration>);

impl Default for Deadline {
    fn default() -> Self {
        Deadline(Some(Duration::from_secs(30)))
    }
}

impl FromStr for Deadline {
    type Err = String;

    fn from_str(text: &str) -> Result<Deadline, String> {
        match text.parse::<f64>() {
            _ if text == "never" => Ok(Deadline(None)),
            Ok(seconds) if (0.001..=1e6).contains(&seconds) => Ok(Deadline(Some(Duration::from_secs_f64(seconds)))),
            _ => Err(format!("\"{text}\" is not a deadline: give seconds, 0.001 to 1000000, or never")),
        }
    }
}

/// An object, and the absolute path at which it appears.
struct Wanted {
    url: String,
    path: PathBuf,
}

/// Starts the server. Returns the environment variables for the program. Without objects there is no server, and there are no variables.
pub fn start(args: &ObjectArgs) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let ObjectArgs { object, tier, tier_limit, deadline } = args;
    if object.is_empty() {
        let given = [
            ("--tier", tier.tier.is_some()),
            ("--tier-limit", tier_limit.is_some()),
            ("--deadline", deadline.is_some()),
        ];
        return match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Failure::usage(name, "there is no object", "give --object URL=PATH, too")),
            None => Ok(Vec::new()),
        };
    }
    let wanted = object.iter().map(|text| wanted(text)).collect::<Result<Vec<_>, _>>()?;
    for (at, one) in wanted.iter().enumerate() {
        if wanted[..at].iter().any(|other| other.path == one.path) {
            let what = format!("{}: two objects have this path", one.path.display());
            return Err(Failure::usage("--object", what, "give each a path of its own"));
        }
    }
    let dir = tier.tier.as_deref().map(std::path::absolute).transpose();
    let dir = dir.map_err(|error| Failure::new("--tier", error, "name a folder"))?;
    let limit = tier_limit.map(|size| size.0);
    let folder = fork(|| prepare(&wanted, dir.as_deref(), limit, deadline.unwrap_or_default()))?;
    let mut variables = vec![("FASTMAP_OBJECTS", folder)];
    variables.extend(limit.map(|limit| ("FASTMAP_TIER_LIMIT", limit.to_string().into())));
    Ok(variables)
}

/// Parses URL=PATH. The last equals sign separates the two, because a URL may contain others.
fn wanted(text: &OsStr) -> Result<Wanted, Failure> {
    let refused = |what: &str| {
        Failure::usage(
            "--object",
            format!("{}: {what}", fastmap_object::shown(&text.to_string_lossy())),
            "give URL=PATH, such as s3://bucket/key=data/key",
        )
    };
    let bytes = text.as_bytes();
    let equals = bytes.iter().rposition(|byte| *byte == b'=').ok_or_else(|| refused("names no path"))?;
    let url = std::str::from_utf8(&bytes[..equals]).map_err(|_| refused("the URL is not UTF-8"))?;
    let path = std::path::absolute(OsStr::from_bytes(&bytes[equals + 1..])).map_err(|_| refused("names no path"))?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(refused("the path names no file"));
    };
    if path.is_dir() {
        return Err(refused("the path is a directory's"));
    }
    Ok(Wanted { url: url.to_owned(), path: folder.join(name) })
}

/// The parts that the server needs.
struct Session {
    folder: tempfile::TempDir,
    users: File,
    asking: Arc<Asking>,
    objects: Vec<Object>,
    _tier: Arc<Tier>,
}

fn prepare(wanted: &[Wanted], dir: Option<&Path>, limit: Option<u64>, deadline: Deadline) -> Result<Session, Failure> {
    let told = |error: Error| match error {
        Error::Url { .. } => Failure::refused("--object", error),
        error => Failure::told(format!("--object: {error}")),
    };
    let tier = Tier::open(dir, limit).map_err(|error| match error {
        fastmap_tier::Error::LimitTooSmall { .. } if limit.is_some() => Failure::refused("--tier-limit", error),
        error => crate::cache::told(error),
    })?;
    let mut options = ObjectOptions::new();
    options.tier(&tier).deadline(deadline.0);
    let objects = wanted.iter().map(|one| options.open(&one.url)).collect::<Result<Vec<_>, _>>().map_err(told)?;
    let make = || {
        let folder = tempfile::Builder::new().prefix("fastmap-objects-").tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700))?;
        let users = File::create(folder.path().join("users"))?;
        let asking = Asking::create(&folder.path().join("asking"))?;
        fs::write(folder.path().join("manifest"), manifest(&tier, deadline, wanted, &objects))?;
        Ok((folder, users, asking))
    };
    let (folder, users, asking) = make().map_err(|error: io::Error| {
        let place = std::env::temp_dir();
        Failure::new(
            "--object",
            format!("{}: {error}", place.display()),
            "name a folder that you may write to in TMPDIR",
        )
    })?;
    Ok(Session { folder, users, asking, objects, _tier: tier })
}

/// The content of the file `manifest`, for the preload library. Each field ends with a zero byte.
fn manifest(tier: &Tier, deadline: Deadline, wanted: &[Wanted], objects: &[Object]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut field = |bytes: &[u8]| {
        text.extend_from_slice(bytes);
        text.push(0);
    };
    field(tier.dir().as_os_str().as_bytes());
    field(deadline.0.map_or(String::new(), |deadline| deadline.as_millis().max(1).to_string()).as_bytes());
    for (one, object) in wanted.iter().zip(objects) {
        let Version { url, etag, version, modified, len } = object.local().version();
        field(one.path.as_os_str().as_bytes());
        field(url.as_bytes());
        for known in [etag, version, modified] {
            field(known.as_deref().unwrap_or_default().as_bytes());
        }
        field(modified.as_deref().and_then(seconds).map_or(String::new(), |seconds| seconds.to_string()).as_bytes());
        field(len.to_string().as_bytes());
    }
    text
}

/// Makes the server's process, and waits until it is ready. Returns the folder.
fn fork(prepare: impl FnOnce() -> Result<Session, Failure>) -> Result<OsString, Failure> {
    let failed = |what: &str, error: io::Error| {
        Failure::new("--object", format!("{what}: {error}"), "see what limits processes here (ulimit -a)")
    };
    let body = |answer, program| {
        let _ = run(prepare, answer, program);
    };
    let mut reader = super::beside::start(c"fastmap-objects", false, body)
        .map_err(|error| failed("cannot start the process that fetches objects", error))?;
    let mut answer = Vec::new();
    let read = reader.read_to_end(&mut answer);
    match answer.split_first() {
        Some((0, folder)) => Ok(OsString::from_vec(folder.to_vec())),
        Some((status, message)) => {
            Err(Failure::told(String::from_utf8_lossy(message).into_owned()).with_status(*status))
        }
        None => Err(failed(
            "the process that fetches objects has ended",
            read.err().unwrap_or(io::ErrorKind::UnexpectedEof.into()),
        )),
    }
}

/// Runs in the server's process. Sends a status byte to `answer`: 0 and the folder's path, or the exit status and the message of a failure.
/// `program` is a pidfd.
fn run(
    prepare: impl FnOnce() -> Result<Session, Failure>,
    mut answer: PipeWriter,
    program: OwnedFd,
) -> Option<Infallible> {
    let session = match prepare() {
        Ok(session) => session,
        Err(failure) => {
            answer.write_all(&[&[failure.number()][..], failure.to_string().as_bytes()].concat()).ok()?;
            return None;
        }
    };
    // The write fails if `fastmap run` was interrupted meanwhile. Then this returns, and the folder is removed.
    answer.write_all(&[&[0], session.folder.path().as_os_str().as_bytes()].concat()).ok()?;
    drop(answer);
    let Session { folder, users, asking, objects, _tier } = session;
    let stop = Arc::new(AtomicBool::new(false));
    let (ends, rings) = (stop.clone(), asking.clone());
    let watch = std::thread::Builder::new().spawn(move || {
        wait_for(&program, &users);
        drop(folder);
        ends.store(true, Ordering::Relaxed);
        rings.ring();
    });
    watch.ok()?;
    // This offers the counters of fetched bytes to `fastmap top`.
    fastmap::live::offer();
    let _ = serve(asking, &objects, &stop);
    std::process::exit(0)
}

/// Waits until the program has ended and no other process holds a lock on `users`. A process has no lock for a moment while it executes another
/// program, so the lock must be free twice, [`GAP`] apart.
fn wait_for(program: &OwnedFd, users: &File) {
    let lock = |how| {
        // SAFETY: the call takes numbers only.
        unsafe { libc::flock(users.as_raw_fd(), how) == 0 }
    };
    let mut end = libc::pollfd { fd: program.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel gets one structure, a local variable of this function.
    while unsafe { libc::poll(&mut end, 1, -1) } < 1 {}
    loop {
        while !lock(libc::LOCK_EX) {}
        lock(libc::LOCK_UN);
        std::thread::sleep(GAP);
        if lock(libc::LOCK_EX | libc::LOCK_NB) {
            return;
        }
    }
}

/// Parses a time as stores write it, `2023-11-14T22:13:20Z` or `Tue, 14 Nov 2023 22:13:20 GMT`, to seconds since 1970.
fn seconds(text: &str) -> Option<i64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let parts: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()).collect();
    let split: Vec<&str> = parts.iter().flat_map(|part| part.split('T')).collect();
    // A server may send anything. Small numbers cannot overflow the sums below.
    let number = |text: &str| text.parse::<u16>().ok().map(i64::from);
    let (year, month, day, time) = match number(parts.first()?) {
        Some(year) => (year, number(split.get(1)?)?, number(split.get(2)?)?, split.get(3..6)?),
        None => {
            let month = MONTHS.find(*parts.get(2)?)? as i64 / 3 + 1;
            (number(parts.get(3)?)?, month, number(parts.get(1)?)?, parts.get(4..7)?)
        }
    };
    let time = time.iter().try_fold(0, |sum, part| Some(sum * 60 + number(part.trim_end_matches('Z'))?))?;
    // Days since 1970-01-01. Years begin in March, so that a leap day is the last day of its year.
    let (year, month): (i64, i64) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (month * 153 + 2) / 5 + day
            - 719_469;
    Some(days * 86400 + time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_stores() {
        for (text, expected) in [
            ("Tue, 14 Nov 2023 22:13:20 GMT", Some(1_700_000_000)),
            ("2023-11-14T22:13:20Z", Some(1_700_000_000)),
            ("2023-11-14T22:13:20.123Z", Some(1_700_000_000)),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("Thu, 29 Feb 2024 00:00:00 GMT", Some(1_709_164_800)),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn deadlines() {
        assert_eq!("never".parse(), Ok(Deadline(None)));
        assert_eq!("2.5".parse(), Ok(Deadline(Some(Duration::from_millis(2500)))));
        for text in ["", "0", "-1", "nan", "inf", "soon"] {
            assert!(text.parse::<Deadline>().unwrap_err().contains("or never"), "{text}");
        }
    }

    #[test]
    fn what_is_wanted_where() {
        let one = wanted(OsStr::new("http://h/k?a=b=/no/such/./x.npy")).ok().unwrap();
        assert_eq!((one.url.as_str(), one.path.as_path()), ("http://h/k?a=b", Path::new("/no/such/x.npy")));
        for text in ["s3://b/k", "s3://b/k=", "s3://b/k=/", "s3://b/k=/tmp", "s3://b/k=.."] {
            assert!(wanted(OsStr::new(text)).is_err(), "{text}");
        }
    }
}
