//! The user's settings, from the environment. `fastmap run` sets these variables; a user who preloads the library
//! without it sets them by hand.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `FASTMAP_CACHE` | capacity of the cache, SIZE; or `auto`: as much memory as other programs leave | `auto` |
//! | `FASTMAP_MAP` | the files to be mapped: globs, separated by colons | all |
//! | `FASTMAP_OWN` | files that only this program uses: globs, separated by colons. Only these are stored to through the cache | none |
//! | `FASTMAP_WRITE_WITHIN` | the longest time for which what is stored to these is in memory alone: `1s`, `10m` | `1s` |
//! | `FASTMAP_FAULTS` | `signal` or `service` | `signal` |
//! | `FASTMAP_ASYNC_STORES` | `1`: stores to absent pages are buffered, and do not wait | `0` |
//! | `FASTMAP_RISK_STORES` | `1`: writable mappings are cached even where the OOM killer or the end of a PID namespace loses stores | `0` |
//! | `FASTMAP_DIRECT` | `auto`, `always` or `never`: whether files that are memory already (DAX, tmpfs) are mapped without the cache | `auto` |
//! | `FASTMAP_PERSIST` | `auto` or `cache-lines`: how stores to such files are made to last | `auto` |
//! | `FASTMAP_STATS` | the file to which statistics are written at exit, as JSON | none |
//! | `FASTMAP_HEAP` | `FILE` or `FILE:SIZE` for the heap | no heap |
//! | `FASTMAP_LOG` | subjects of messages, with commas. `mappings`: who serves each file, and why. Other words are other libraries' | none |
//! | `FASTMAP_OBJECTS` | the folder of a session with objects (`objects/session.rs`) | no objects |
//! | `FASTMAP_KEEPERS` | the file in which programs note their keepers, for `fastmap run` | none |
//! | `FASTMAP_RUN_PID` | the process that `fastmap run` became | none |
//!
//! An empty variable counts as unset. A variable that makes no sense is named on standard error, and then the kernel
//! maps everything: a program that does not know of FastMap must not fail because of it. (`fastmap run` refuses such
//! values itself.)
//!
//! A glob that begins with a slash must match the whole path of the file. Any other glob must match the end of the
//! path: `*.db` matches every file with such a name, `data/*.db` only those in a folder `data`. `*` and `?` do not match
//! a slash, `**` does. (`fastmap run` expands `{one,other}`; this library does not.)

use fastmap::faults::Faults;
use fastmap::{Mode, Persist, size};
use glob::{MatchOptions, Pattern};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// What a kill of the whole control group may lose by default.
const WRITE_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Config {
    /// The cache's capacity, bytes; `None`: as much memory as the process's control group leaves.
    pub cache: Option<usize>,
    /// The files to be mapped; `None`: all.
    globs: Option<Vec<Pattern>>,
    /// The files that only this program uses.
    own: Vec<Pattern>,
    /// How long a page of these may stay dirty.
    pub write_within: Duration,
    /// How page faults are served.
    pub faults: Faults,
    /// Stores to absent pages do not wait.
    pub async_stores: bool,
    /// Writable mappings are cached even where stores may be lost.
    pub risk_stores: bool,
    /// Whether files that are memory already are mapped without the cache.
    pub direct: Mode,
    /// How stores to such files are made to last.
    pub persist: Persist,
    /// Where statistics go at exit.
    pub stats: Option<PathBuf>,
    /// The heap's file and, if given, its size in bytes.
    pub heap: Option<(PathBuf, Option<u64>)>,
    /// Where programs note their keepers.
    pub keepers: Option<PathBuf>,
    /// The process that `fastmap run` became.
    pub run_pid: Option<i32>,
    /// Whether standard error is told who serves each file.
    pub logs_mappings: bool,
    /// The environment made no sense, so the kernel maps everything.
    pub off: bool,
}

/// The settings. The first call parses the environment, and allocates.
pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| {
        parse(|name| std::env::var_os(name)).unwrap_or_else(|why| {
            crate::say(format_args!("{why}: everything is left to the kernel"));
            Config { off: true, ..Config::new() }
        })
    })
}

impl Config {
    fn new() -> Self {
        Config {
            cache: None,
            globs: None,
            own: Vec::new(),
            write_within: WRITE_WITHIN,
            faults: Faults::Signal,
            async_stores: false,
            risk_stores: false,
            direct: Mode::Automatic,
            persist: Persist::Automatic,
            stats: None,
            heap: None,
            keepers: None,
            run_pid: None,
            logs_mappings: false,
            off: false,
        }
    }

    /// Whether the user named files (`FASTMAP_MAP`).
    pub fn names_files(&self) -> bool {
        self.globs.is_some()
    }

    /// Whether the file at a path is to be mapped: it matches a glob, or no files were named.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.globs.as_ref().is_none_or(|globs| any_matches(globs, path))
    }

    /// Whether only this program uses the file at a path, as the user says.
    pub fn owns(&self, path: &[u8]) -> bool {
        any_matches(&self.own, path)
    }

    /// Whether any file is said to be the program's own.
    pub fn owns_files(&self) -> bool {
        !self.own.is_empty()
    }
}

fn parse(variable: impl Fn(&str) -> Option<OsString>) -> Result<Config, String> {
    let given = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut config = Config::new();
    if let Some(text) = given("FASTMAP_CACHE").filter(|text| text != "auto") {
        let bytes = size::capacity(&text.to_string_lossy()).map_err(|why| format!("FASTMAP_CACHE: {why}"))?;
        config.cache = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    let log = given("FASTMAP_LOG").unwrap_or_default();
    config.logs_mappings = log.as_bytes().split(|byte| *byte == b',').any(|word| word == b"mappings");
    if let Some(text) = given("FASTMAP_MAP") {
        config.globs = Some(globs("FASTMAP_MAP", &text)?);
    }
    if let Some(text) = given("FASTMAP_OWN") {
        config.own = globs("FASTMAP_OWN", &text)?;
    }
    if let Some(text) = given("FASTMAP_WRITE_WITHIN") {
        let time = size::time(&text.to_string_lossy()).map_err(|why| format!("FASTMAP_WRITE_WITHIN: {why}"))?;
        config.write_within = time;
    }
    let choices = [("signal", Faults::Signal), ("service", Faults::Service)];
    config.faults = choice("FASTMAP_FAULTS", given("FASTMAP_FAULTS"), &choices)?;
    let choices = [("auto", Mode::Automatic), ("always", Mode::Direct), ("never", Mode::Cached)];
    config.direct = choice("FASTMAP_DIRECT", given("FASTMAP_DIRECT"), &choices)?;
    let choices = [("auto", Persist::Automatic), ("cache-lines", Persist::CacheLines)];
    config.persist = choice("FASTMAP_PERSIST", given("FASTMAP_PERSIST"), &choices)?;
    config.async_stores = choice("FASTMAP_ASYNC_STORES", given("FASTMAP_ASYNC_STORES"), &[("0", false), ("1", true)])?;
    config.risk_stores = choice("FASTMAP_RISK_STORES", given("FASTMAP_RISK_STORES"), &[("0", false), ("1", true)])?;
    config.stats = given("FASTMAP_STATS").map(PathBuf::from);
    config.keepers = given("FASTMAP_KEEPERS").map(PathBuf::from);
    config.heap = given("FASTMAP_HEAP").map(heap).transpose()?;
    if let Some(text) = given("FASTMAP_RUN_PID") {
        let pid = text.to_str().and_then(|text| text.parse().ok());
        config.run_pid = Some(pid.ok_or_else(|| format!("FASTMAP_RUN_PID={text:?} is not a process id"))?);
    }
    Ok(config)
}

/// The value that belongs to the given word; the first value, if no word is given.
fn choice<T: Copy>(name: &str, given: Option<OsString>, choices: &[(&str, T)]) -> Result<T, String> {
    let Some(text) = given else { return Ok(choices[0].1) };
    let known = choices.iter().find(|(word, _)| text.as_bytes() == word.as_bytes());
    let words = || choices.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    known.map(|(_, value)| *value).ok_or_else(|| format!("{name}={text:?} is none of {}", words()))
}

/// Parses `FILE` or `FILE:SIZE`. If the file's own name has a colon, SIZE must be given.
fn heap(text: OsString) -> Result<(PathBuf, Option<u64>), String> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':');
    let (name, bytes) = match colon {
        Some(at) => {
            let len = size::bytes(&String::from_utf8_lossy(&bytes[at + 1..]));
            let len = len.map_err(|why| format!("FASTMAP_HEAP: {why}"))?;
            (&bytes[..at], Some(len))
        }
        None => (bytes, None),
    };
    if name.is_empty() {
        return Err(format!("FASTMAP_HEAP={text:?} names no file: give FILE or FILE:SIZE"));
    }
    Ok((PathBuf::from(OsString::from_vec(name.to_vec())), bytes))
}

fn any_matches(globs: &[Pattern], path: &[u8]) -> bool {
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let path = String::from_utf8_lossy(path);
    globs.iter().any(|glob| glob.matches_with(&path, options))
}

fn globs(name: &str, text: &OsString) -> Result<Vec<Pattern>, String> {
    let Some(text) = text.to_str() else { return Err(format!("{name}={text:?} is not UTF-8")) };
    let pattern = |glob: &str| {
        let anywhere = format!("**/{}", glob.strip_prefix("./").unwrap_or(glob));
        let glob = if glob.starts_with('/') { glob } else { &anywhere };
        Pattern::new(glob).map_err(|why| format!("{name}={text:?}: {}", why.msg))
    };
    text.split(':').filter(|glob| !glob.is_empty()).map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Config, String> {
        parse(|name| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn nothing_set_means_all_files_through_the_default_cache() {
        for variables in [&[][..], &[("FASTMAP_MAP", ""), ("FASTMAP_CACHE", ""), ("FASTMAP_HEAP", "")]] {
            let config = with(variables).unwrap();
            assert!(config.matches(b"/any/file") && !config.names_files() && !config.off);
            assert!(config.cache.is_none());
            assert_eq!((config.direct, config.persist), (Mode::Automatic, Persist::Automatic));
            assert_eq!((config.faults, config.heap, config.stats, config.run_pid), (Faults::Signal, None, None, None));
        }
    }

    #[test]
    fn sizes_and_names() {
        let config = with(&[
            ("FASTMAP_CACHE", "64KiB"),
            ("FASTMAP_FAULTS", "service"),
            ("FASTMAP_ASYNC_STORES", "1"),
            ("FASTMAP_RISK_STORES", "1"),
            ("FASTMAP_STATS", "/tmp/s"),
            ("FASTMAP_RUN_PID", "77"),
            ("FASTMAP_DIRECT", "never"),
            ("FASTMAP_PERSIST", "cache-lines"),
        ]);
        let config = config.unwrap();
        assert_eq!((config.direct, config.persist), (Mode::Cached, Persist::CacheLines));
        assert_eq!((config.cache, config.faults, config.run_pid), (Some(65536), Faults::Service, Some(77)));
        assert!(with(&[("FASTMAP_CACHE", "auto")]).unwrap().cache.is_none());
        assert!(config.risk_stores && !with(&[]).unwrap().risk_stores);
        assert!(config.async_stores && !with(&[("FASTMAP_ASYNC_STORES", "0")]).unwrap().async_stores);
        assert_eq!(config.stats, Some(PathBuf::from("/tmp/s")));
        for (text, mappings) in [("steer", false), ("mappings", true), ("steer,mappings", true), ("all", false)] {
            assert_eq!(with(&[("FASTMAP_LOG", text)]).unwrap().logs_mappings, mappings, "{text}");
        }
        for (text, file, size) in [("/h", "/h", None), ("/h:1GiB", "/h", Some(1 << 30)), ("/a:b:5", "/a:b", Some(5))] {
            assert_eq!(with(&[("FASTMAP_HEAP", text)]).unwrap().heap, Some((PathBuf::from(file), size)), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (name, value) in [
            ("FASTMAP_CACHE", "much"),
            ("FASTMAP_CACHE", "200%"),
            ("FASTMAP_CACHE", "99999999TiB"),
            ("FASTMAP_CACHE", "-1"),
            ("FASTMAP_MAP", "/a/[b"),
            ("FASTMAP_OWN", "/a/[b"),
            ("FASTMAP_FAULTS", "Signal"),
            ("FASTMAP_ASYNC_STORES", "yes"),
            ("FASTMAP_RISK_STORES", "yes"),
            ("FASTMAP_DIRECT", "yes"),
            ("FASTMAP_PERSIST", "lines"),
            ("FASTMAP_HEAP", ":1GiB"),
            ("FASTMAP_HEAP", "/a:1XiB"),
            ("FASTMAP_RUN_PID", "me"),
        ] {
            let why = with(&[(name, value)]).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn globs_match_whole_paths_or_their_ends() {
        let config = with(&[("FASTMAP_MAP", "*.db:/data/*/x?:./sub/*.bin:/all/**")]).unwrap();
        assert!(config.names_files());
        for path in ["/a.db", "/a/b/c.db", "/data/q/x1", "/home/sub/1.bin", "/all/of/it"] {
            assert!(config.matches(path.as_bytes()), "{path}");
        }
        for path in ["/a.dbx", "/data/q/r/x1", "/data/q/x12", "/sub/more/1.bin", "/al/of/it", "/x/data/q/x1"] {
            assert!(!config.matches(path.as_bytes()), "{path}");
        }
        // A name that is not UTF-8 has some other character there.
        assert!(config.matches(b"/all/\xff\xfe"));
        assert!(!config.owns_files() && !config.owns(b"/a.db"));
        let config = with(&[("FASTMAP_OWN", "*.db:/data/**")]).unwrap();
        assert!(config.owns(b"/a.db") && config.owns(b"/data/a/b") && !config.owns(b"/a.dbx"));
        assert!(!config.names_files() && config.matches(b"/a.dbx"));
    }
}
