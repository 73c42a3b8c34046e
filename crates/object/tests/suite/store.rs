//! A store of the tests' own: HTTP/1.1 on loopback, a thread for each connection, objects with ETags and ranges, and what can go wrong.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What becomes of one request for more than a byte.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Half of the body, then the connection is closed.
    HalfSent,
    /// The connection is closed, and nothing said.
    Reset,
    /// Another Content-Length than was asked for, and as many bytes.
    WrongLength,
    /// Bytes from elsewhere, which the headers say.
    WrongRange,
    /// An error, and for how many seconds to stay away.
    Status(u16, Option<u64>),
    /// The answer comes late.
    Late(Duration),
    /// Half of the body, and no more while the store runs.
    Stuck,
    /// No answer while the store runs.
    Hang,
    /// It is at this URL.
    Moved(String),
}

#[derive(Clone, Debug)]
pub struct Object {
    pub bytes: Arc<Vec<u8>>,
    pub etag: Option<String>,
    pub modified: Option<String>,
    /// `x-amz-version-id`.
    pub version: Option<String>,
}

/// What can be set.
#[derive(Default)]
pub struct Settings {
    pub objects: HashMap<String, Object>,
    /// Of all requests.
    pub latency: Duration,
    /// Of the next requests for more than a byte, one each.
    pub next: VecDeque<Fault>,
    /// Of all requests for more than a byte.
    pub always: Option<Fault>,
    pub ignores_if_match: bool,
    pub has_no_ranges: bool,
    /// What must be in the header Authorization.
    pub wants: Option<String>,
    /// Requests for more than a byte: what, and when.
    pub asked: Vec<(Range<u64>, Instant)>,
    /// All of the headers that came.
    pub heard: String,
}

pub struct Store {
    address: SocketAddr,
    settings: Arc<Mutex<Settings>>,
    is_over: Arc<AtomicBool>,
}

impl Store {
    pub fn start() -> Store {
        Self::at("127.0.0.1:0".parse().unwrap())
    }

    /// At the address of another that has stopped.
    pub fn at(address: SocketAddr) -> Store {
        let listener = TcpListener::bind(address).unwrap();
        let store =
            Store { address: listener.local_addr().unwrap(), settings: Arc::default(), is_over: Arc::default() };
        let (settings, is_over) = (store.settings.clone(), store.is_over.clone());
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                let (settings, is_over) = (settings.clone(), is_over.clone());
                std::thread::spawn(move || serve(&connection.unwrap(), &settings, &is_over));
            }
        });
        store
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap()
    }

    /// A new version of an object.
    pub fn put(&self, path: &str, bytes: &Arc<Vec<u8>>) {
        static VERSIONS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let etag = format!("\"{}\"", VERSIONS.fetch_add(1, Ordering::Relaxed));
        let modified = Some("Wed, 21 Oct 2015 07:28:00 GMT".to_owned());
        let object = Object { bytes: bytes.clone(), etag: Some(etag), modified, version: None };
        self.settings().objects.insert(path.to_owned(), object);
    }

    pub fn change(&self, path: &str, change: impl FnOnce(&mut Object)) {
        change(self.settings().objects.get_mut(path).unwrap());
    }

    /// Bytes that were asked for.
    pub fn sent(&self) -> u64 {
        self.settings().asked.iter().map(|(range, _)| range.end - range.start).sum()
    }

    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.settings().next.extend(faults);
    }
}

impl Drop for Store {
    /// Nobody listens any longer, and connections are closed at their next request.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
    }
}

struct Wanted {
    path: String,
    is_head: bool,
    range: Option<(u64, u64)>,
    if_match: Option<String>,
    authorization: String,
}

fn read_request(from: &mut BufReader<&TcpStream>, heard: &mut String) -> Option<Wanted> {
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut words = line.split(' ');
    let is_head = words.next()? == "HEAD";
    let path = words.next()?.split('?').next()?.to_owned();
    heard.push_str(&line);
    let mut wanted = Wanted { path, is_head, range: None, if_match: None, authorization: String::new() };
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|length| *length > 0)?;
        if line.trim().is_empty() {
            return Some(wanted);
        }
        heard.push_str(&line);
        let (name, value) = line.trim().split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                wanted.range = Some((first.parse().ok()?, last.parse().ok()?));
            }
            "if-match" => wanted.if_match = Some(value.to_owned()),
            "authorization" => wanted.authorization = value.to_owned(),
            _ => {}
        }
    }
}

fn serve(connection: &TcpStream, settings: &Mutex<Settings>, is_over: &AtomicBool) {
    connection.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(connection);
    let mut heard = String::new();
    while let Some(wanted) = read_request(&mut reader, &mut heard) {
        if is_over.load(Ordering::Acquire) || answer(connection, &wanted, &mut heard, settings, is_over).is_none() {
            return;
        }
    }
}

/// `None`: the connection is closed.
fn answer(
    mut connection: &TcpStream,
    wanted: &Wanted,
    heard: &mut String,
    settings: &Mutex<Settings>,
    is_over: &AtomicBool,
) -> Option<()> {
    let mut now = settings.lock().unwrap();
    now.heard.push_str(&std::mem::take(heard));
    let latency = now.latency;
    let object = now.objects.get(&wanted.path).cloned();
    let (ignores_if_match, has_no_ranges) = (now.ignores_if_match, now.has_no_ranges);
    let is_welcome = now.wants.as_ref().is_none_or(|wants| wanted.authorization.contains(wants.as_str()));
    let is_part = wanted.range.is_some_and(|(first, last)| last > first);
    let fault = is_part.then(|| now.next.pop_front().or_else(|| now.always.clone())).flatten();
    if is_part && let Some((first, last)) = wanted.range {
        now.asked.push((first..last + 1, Instant::now()));
    }
    drop(now);
    std::thread::sleep(latency);
    let mut refuse = |status: u16, more: &str, code: &str| {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>hunter2</Message></Error>");
        let body = if wanted.is_head { "" } else { body.as_str() };
        write!(connection, "HTTP/1.1 {status} No\r\nContent-Length: {}\r\n{more}\r\n{body}", body.len()).ok()
    };
    let hang = || {
        while !is_over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    match fault {
        Some(Fault::Reset) => return None,
        Some(Fault::Status(status, wait)) => {
            let more = wait.map(|wait| format!("Retry-After: {wait}\r\n")).unwrap_or_default();
            return refuse(status, &more, "Sorry");
        }
        Some(Fault::Moved(url)) => return refuse(307, &format!("Location: {url}\r\n"), "TemporaryRedirect"),
        Some(Fault::Late(late)) => std::thread::sleep(late),
        Some(Fault::Hang) => {
            hang();
            return None;
        }
        _ => {}
    }
    if !is_welcome {
        return refuse(403, "", "AccessDenied");
    }
    let Some(object) = object else {
        return refuse(404, "", "NoSuchKey");
    };
    if !ignores_if_match && wanted.if_match.is_some() && wanted.if_match != object.etag {
        return refuse(412, "", "PreconditionFailed");
    }
    let len = object.bytes.len() as u64;
    let (mut first, mut end, mut head) = (0, len, "200 OK");
    if let Some((from, last)) = wanted.range.filter(|_| !has_no_ranges) {
        if from >= len {
            return refuse(416, &format!("Content-Range: bytes */{len}\r\n"), "InvalidRange");
        }
        (first, end, head) = (from, (last + 1).min(len), "206 Partial Content");
    }
    match fault {
        Some(Fault::WrongLength) => end -= (end - first) / 2,
        Some(Fault::WrongRange) => {
            let by = (end - first).min(len - end);
            (first, end) = (first + by, end + by);
        }
        _ => {}
    }
    let mut said = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n", end - first);
    if head.starts_with("206") {
        said += &format!("Content-Range: bytes {first}-{}/{len}\r\n", end - 1);
    }
    said += &object.etag.map(|etag| format!("ETag: {etag}\r\n")).unwrap_or_default();
    said += &object.modified.map(|modified| format!("Last-Modified: {modified}\r\n")).unwrap_or_default();
    said += &object.version.map(|version| format!("x-amz-version-id: {version}\r\n")).unwrap_or_default();
    said += "\r\n";
    connection.write_all(said.as_bytes()).ok()?;
    if wanted.is_head {
        return Some(());
    }
    let body = &object.bytes[first as usize..end as usize];
    match fault {
        Some(Fault::HalfSent | Fault::Stuck) => {
            connection.write_all(&body[..body.len() / 2]).ok()?;
            if matches!(fault, Some(Fault::Stuck)) {
                hang();
            }
            None
        }
        _ => connection.write_all(body).ok(),
    }
}
