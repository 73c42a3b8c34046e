//! A store for tests: the files of a folder by HTTP on loopback, with ranges and ETags.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Serves a folder's files until the process ends; the URL of the folder. While there is a file `dead` in it, nothing is answered; a file's
/// ETag changes when it is written.
pub fn serve(folder: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let folder = folder.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let folder = folder.clone();
            // It ends with the connection, however that ends.
            std::thread::spawn(move || answer_all(&stream, &folder));
        }
    });
    url
}

fn answer_all(stream: &TcpStream, folder: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while let Some(first) = lines.next() {
        let (first, mut range, mut if_match) = (first?, None, None);
        for line in lines.by_ref() {
            let line = line?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            range = line.strip_prefix("range: bytes=").map(String::from).or(range);
            if_match = line.strip_prefix("if-match: ").map(String::from).or(if_match);
        }
        while folder.join("dead").exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let head = answer(stream, &folder.join(&path[1..]), method == "HEAD", range, if_match)?;
        if let Some(status) = head {
            write!(&*stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")?;
        }
    }
    Ok(())
}

/// Sends what was asked for; or a status without anything behind it is to be sent.
fn answer(
    mut stream: &TcpStream,
    path: &PathBuf,
    is_head: bool,
    range: Option<String>,
    if_match: Option<String>,
) -> std::io::Result<Option<&'static str>> {
    let Ok(file) = fs::File::open(path) else { return Ok(Some("404 Not Found")) };
    let facts = file.metadata()?;
    let (len, etag) = (facts.len(), format!("\"{}-{}\"", facts.mtime_nsec(), facts.mtime()));
    if if_match.is_some_and(|wanted| wanted != etag) {
        return Ok(Some("412 Precondition Failed"));
    }
    let part = range.as_deref().and_then(|range| range.split_once('-')).map(|(from, to)| {
        let from: u64 = from.parse().unwrap_or(0);
        from..to.parse().map_or(len, |to: u64| to + 1).min(len)
    });
    if part.as_ref().is_some_and(|part| part.start >= len) {
        write!(stream, "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-range: bytes */{len}\r\netag: {etag}\r\n")?;
        write!(stream, "content-length: 0\r\n\r\n")?;
        return Ok(None);
    }
    match &part {
        Some(part) => {
            write!(stream, "HTTP/1.1 206 Partial Content\r\n")?;
            write!(stream, "content-range: bytes {}-{}/{len}\r\n", part.start, part.end - 1)?;
        }
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    let part = part.unwrap_or(0..len);
    write!(stream, "etag: {etag}\r\naccept-ranges: bytes\r\ncontent-length: {}\r\n\r\n", part.end - part.start)?;
    let mut bytes = vec![0; if is_head { 0 } else { (part.end - part.start) as usize }];
    file.read_exact_at(&mut bytes, part.start)?;
    stream.write_all(&bytes)?;
    Ok(None)
}
