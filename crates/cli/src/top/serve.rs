//! `--metrics`: a small HTTP server with one path. It serves one client at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::metrics;
use super::watch::Watch;
use crate::failure::Failure;
use crate::interrupt;

/// The port in examples of addresses, and the default of `--metrics`.
pub const PORT: u16 = 9742;
/// The most bytes of a request.
const LONGEST: usize = 8192;
/// The time that a client may take to send its request, and again to receive the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// A signal is noticed after this time at most.
const BLINK: Duration = Duration::from_millis(100);

/// Parses IP:PORT, `localhost:PORT`, or PORT. The last two are a port of 127.0.0.1.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let own = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let port = |text: &str| text.parse().ok().map(own);
    let found = text.parse().ok().or_else(|| port(text)).or_else(|| port(text.strip_prefix("localhost:")?));
    found.ok_or_else(|| format!("\"{text}\" is not an address: give IP:PORT, such as 127.0.0.1:{PORT}, or a port"))
}

/// Answers requests until a signal comes. A request takes a look at the processes, at most one look per interval.
pub fn run(watch: &mut Watch, address: SocketAddr, interval: Duration) -> Result<(), Failure> {
    interrupt::end_in_time(0, || {});
    let failed =
        |error: io::Error| Failure::new(address, error, "give an address of this machine, and a port that is free");
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    crate::print(&format!("http://{}/metrics\n", listener.local_addr().map_err(failed)?));
    let mut next = Instant::now() + interval;
    while !interrupt::requested() {
        match listener.accept() {
            Ok((client, _)) => {
                // A client that goes away, or is too slow, gets no answer. That is no failure.
                let _ = serve(client, || {
                    if Instant::now() >= next {
                        watch.look();
                        next = Instant::now() + interval;
                    }
                    metrics::text(watch)
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&listener),
            // The client went away before it was accepted, or no descriptor is left for now.
            Err(_) => std::thread::sleep(BLINK),
        }
    }
    Ok(())
}

/// Waits until a client comes, for [`BLINK`] at most.
fn wait(listener: &TcpListener) {
    let mut one = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel gets one entry, a local variable, and its descriptor is open.
    unsafe { libc::poll(&mut one, 1, BLINK.as_millis() as libc::c_int) };
}

fn serve(mut client: TcpStream, text: impl FnOnce() -> String) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(BLINK))?;
    client.set_write_timeout(Some(BLINK))?;
    let until = Instant::now() + PATIENCE;
    let request = read(&mut client, until)?;
    let is_head = request.as_deref().is_some_and(|request| request.starts_with(b"HEAD "));
    let answer = answer(request.as_deref(), text);
    let end = if is_head { head_of(&answer) } else { answer.len() };
    write(&mut client, &answer.as_bytes()[..end], Instant::now() + PATIENCE)
}

/// Reads a request to the end of its head. `None` if the request is too long.
fn read(client: &mut impl Read, until: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") && !request.windows(2).any(|two| two == b"\n\n") {
        if request.len() >= LONGEST {
            return Ok(None);
        }
        in_time(until)?;
        match client.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => request.extend_from_slice(&part[..count]),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(request))
}

fn write(client: &mut impl Write, mut left: &[u8], until: Instant) -> io::Result<()> {
    while !left.is_empty() {
        in_time(until)?;
        match client.write(left) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => left = &left[count..],
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn in_time(until: Instant) -> io::Result<()> {
    if Instant::now() >= until || interrupt::requested() { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
}

fn head_of(answer: &str) -> usize {
    answer.find("\r\n\r\n").map_or(answer.len(), |at| at + 4)
}

/// The whole answer to a request. `request` is `None` if it was too long.
fn answer(request: Option<&[u8]>, text: impl FnOnce() -> String) -> String {
    let plain = "text/plain; charset=utf-8";
    let Some(request) = request else { return whole("431 Request Header Fields Too Large", plain, "too long\n") };
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [method, target, version] = words[..] else { return whole("400 Bad Request", plain, "no request\n") };
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        _ if !version.starts_with("HTTP/1.") => whole("505 HTTP Version Not Supported", plain, "HTTP/1.1, please\n"),
        ("GET" | "HEAD", "/metrics") => whole("200 OK", metrics::KIND, &text()),
        ("GET" | "HEAD", _) => whole("404 Not Found", plain, "see /metrics\n"),
        _ => whole("405 Method Not Allowed", plain, "GET /metrics\n"),
    }
}

fn whole(status: &str, kind: &str, body: &str) -> String {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_this_machines_unless_written_out() {
        let of = |text| address(text).unwrap().to_string();
        assert_eq!(of("127.0.0.1:9742"), "127.0.0.1:9742");
        assert_eq!(of("80"), "127.0.0.1:80");
        assert_eq!(of("localhost:0"), "127.0.0.1:0");
        assert_eq!(of("0.0.0.0:9742"), "0.0.0.0:9742");
        assert_eq!(of("[::]:1"), "[::]:1");
        for text in ["", ":9742", "127.0.0.1", "example.org:80", "70000"] {
            assert!(address(text).unwrap_err().contains("is not an address: give IP:PORT"), "{text}");
        }
    }

    #[test]
    fn one_path_is_answered() {
        let status = |request: &str| {
            let answer = answer(Some(request.as_bytes()), || "# EOF\n".into());
            answer.split_once(' ').unwrap().1[..3].to_owned()
        };
        assert_eq!(status("GET /metrics HTTP/1.1\r\n\r\n"), "200");
        assert_eq!(status("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "200");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status("GET /metrics HTTP/2\r\n\r\n"), "505");
        assert_eq!(status("\u{7f}\r\n\r\n"), "400");
        assert!(answer(None, String::new).starts_with("HTTP/1.1 431 "));
        let all = answer(Some(b"GET /metrics HTTP/1.1\r\n\r\n"), || "# EOF\n".into());
        assert!(all.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
        assert!(all.contains("Content-Length: 6\r\n") && all[head_of(&all)..] == *"# EOF\n");
    }

    #[test]
    fn a_request_has_an_end_and_a_length() {
        let soon = || Instant::now() + Duration::from_secs(60);
        let mut whole = &b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..];
        assert!(read(&mut whole, soon()).unwrap().is_some());
        assert!(read(&mut &b"GET /metrics"[..], soon()).is_err());
        assert_eq!(read(&mut io::repeat(b'x'), soon()).unwrap(), None);
        assert!(read(&mut &b"GET"[..], Instant::now()).is_err());
    }
}
