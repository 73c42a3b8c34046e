//! `fastmap cache`, over a folder of local copies that the tests make themselves.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::prompt::{dir, fastmap, files_in};
use fastmap_tier::{Local, Tier, UNIT, Version};
use serde_json::Value;

const URLS: [&str; 2] = ["s3://bucket/large", "s3://bucket/other"];

/// A folder with two units of each object; what is kept is in use.
fn filled(at: &Path) -> Vec<Arc<Local>> {
    let tier = Tier::open(Some(at), Some(64 << 20)).unwrap();
    let local = |(number, url): (usize, &str)| {
        let etag = Some(format!("\"tag-{number}\""));
        let len = (4 + number as u64) * UNIT;
        let version = Version { url: url.into(), etag, version: None, modified: None, len };
        let local = tier.local(&version).unwrap();
        for unit in [1, 3] {
            local.put(unit, &vec![7; UNIT as usize]).unwrap();
        }
        local
    };
    URLS.into_iter().enumerate().map(local).collect()
}

#[test]
fn what_is_there_is_listed() {
    let dir = dir();
    let copies = dir.path().join("copies");
    let in_use = filled(&copies).swap_remove(1);
    let ran = fastmap(dir.path(), "cache ls --tier copies");
    ran.succeeded();
    let lines: Vec<_> = ran.stdout.lines().collect();
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    assert_eq!(words(lines[0]), ["OBJECT", "VERSION", "LENGTH", "LOCAL", "LAST", "USED", "IN", "USE"]);
    assert_eq!(words(lines[1])[..4], [URLS[0], "\"tag-0\"", "1.0M", "512K"]);
    assert_eq!(words(lines[2])[..4], [URLS[1], "\"tag-1\"", "1.2M", "512K"]);
    assert!(lines[1].ends_with("s ago      no") && lines[2].ends_with("s ago     yes"), "{}", ran.stdout);
    assert!(lines[3].contains(" of at most 64.0M in ") && lines[3].ends_with("copies"), "{}", ran.stdout);
    assert_eq!(lines.len(), 4);

    let ran = fastmap(dir.path(), "cache ls --json --tier copies");
    ran.succeeded();
    let out: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(out["limit_bytes"], 64 << 20);
    assert!(out["used_bytes"].as_u64().unwrap() >= 4 * UNIT, "{out}");
    assert!(out["folder"].as_str().unwrap().ends_with("copies"));
    let copy = &out["copies"][1];
    assert_eq!((&copy["url"], &copy["etag"]), (&URLS[1].into(), &"\"tag-1\"".into()));
    assert_eq!((&copy["length_bytes"], &copy["local_bytes"]), (&(5 * UNIT).into(), &(2 * UNIT).into()));
    assert_eq!((&copy["in_use"], &copy["version"]), (&true.into(), &Value::Null));
    assert!(copy["last_used_unix_s"].as_u64().unwrap() > 1_600_000_000);
    drop(in_use);
}

#[test]
fn copies_are_removed_one_or_all_and_what_is_in_use_is_emptied() {
    let dir = dir();
    let copies = dir.path().join("copies");
    let listed = || {
        let ran = fastmap(dir.path(), "cache ls --json --tier copies");
        ran.succeeded();
        let out: Value = serde_json::from_str(&ran.stdout).unwrap();
        let copy = |one: &Value| (one["url"].as_str().unwrap().to_owned(), one["local_bytes"].as_u64().unwrap());
        out["copies"].as_array().unwrap().iter().map(copy).collect::<Vec<_>>()
    };
    let mut locals = filled(&copies);
    let other = locals.remove(1);
    drop(locals);
    let ran = fastmap(dir.path(), &format!("cache rm {} --tier copies", URLS[0]));
    ran.succeeded();
    assert!(ran.stdout.contains(" freed in ") && ran.stdout.trim_end().ends_with("copies"), "{}", ran.stdout);
    assert_eq!(listed(), [(URLS[1].to_owned(), 2 * UNIT)]);
    fastmap(dir.path(), &format!("cache rm {} --tier copies", URLS[0]))
        .failed_with(1, &[URLS[0], "no local copy in ", "copies", "fastmap cache ls"]);
    fastmap(dir.path(), "cache rm --all --tier copies").succeeded();
    assert_eq!(listed(), [(URLS[1].to_owned(), 0)]);
    assert!(!other.has(UNIT..2 * UNIT));
    drop(other);
    fastmap(dir.path(), "cache rm --all --tier copies").succeeded();
    assert_eq!(listed(), []);
}

#[test]
fn bytes_that_went_wrong_are_found() {
    let dir = dir();
    let copies = dir.path().join("copies");
    drop(filled(&copies));
    let ran = fastmap(dir.path(), "cache verify --tier copies");
    ran.succeeded();
    assert!(ran.stdout.contains("4 units of 256 KiB, of 2 local copies: all right"), "{}", ran.stdout);
    let data = files_in(&copies).into_iter().map(|name| copies.join(name));
    let data = data.into_iter().find(|path| fs::metadata(path).unwrap().len() == 5 * UNIT).unwrap();
    fs::File::options().write(true).open(data).unwrap().write_all_at(&[8], 3 * UNIT + 5000).unwrap();
    let verify = || fastmap(dir.path(), "cache verify --tier copies");
    verify().failed_with(1, &["copies: 1 wrong of 4 units", "fetched anew"]);
    let ran = verify();
    ran.succeeded();
    assert!(ran.stdout.contains("3 units of 256 KiB"), "what was wrong is gone: {}", ran.stdout);
}

#[test]
fn what_cannot_be_is_told() {
    let dir = dir();
    fs::write(dir.path().join("file"), "").unwrap();
    for line in ["cache ls --tier file/in", "cache rm --all --tier file/in", "cache verify --tier file/in"] {
        fastmap(dir.path(), line).failed_with(1, &["file/in", "name a"]);
    }
    fastmap(dir.path(), "cache rm").failed_with(2, &["--all"]);
    fastmap(dir.path(), "cache rm --all s3://bucket/key").failed_with(2, &["--all"]);
    fastmap(dir.path(), "cache mv").failed_with(2, &["mv"]);
    for line in ["cache --help", "cache ls --help", "cache rm --help", "cache verify --help"] {
        let ran = fastmap(dir.path(), line);
        ran.succeeded();
        assert!(ran.stderr.is_empty() && ran.stdout.contains("Exit status: "), "{line}: {}", ran.stdout);
    }
}
