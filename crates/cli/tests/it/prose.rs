//! Names in documents and comments: a path is one of this repository's, and an item is in its code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Of the kernel, of the C library, of programs and libraries that are spoken of.
const OTHERS: &[&str] = &[
    "linux/fuse.h",
    "monetdbe.h",
    "rocksdb/c.h",
    "siginfo.h",
    "typeslots.h",
    "Py_buffer",
    "ScrambledZipfianGenerator",
    "SkewedLatestGenerator",
    "aio_read",
    "check_unshare_flags",
    "clean_queue",
    "dirty_expire_centisecs",
    "exit_group",
    "fault_around_bytes",
    "filemap_cachestat",
    "gdk_vm_maxsize",
    "ibv_reg_mr",
    "io_uring_register_buffers",
    "monetdbe_column_int32_t",
    "monetdbe_data_date",
    "monetdbe_database",
    "monetdbe_options",
    "monetdbe_result",
    "monetdbe_types",
    "name_to_handle_at",
    "no_run",
    "pm_scan_arg",
    "post_commit_offset",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigsuspend",
    "start_ip",
];

/// Files that tell of the past: names in them may be gone.
const PAST: &[&str] = &["docs/log", "docs/evidence"];

const FOLDERS: &[&str] = &["crates/", "tests/", "docs/", "scripts/", "papers/", "contrib/", "fio/", "examples/"];
const ENDS: &[&str] = &[".rs", ".md", ".sh", ".c", ".h", ".py", ".toml", ".json", ".yml", ".svg"];

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The repository's files, by their paths in it; not what is built.
fn files(home: &Path) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![home.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            let is_built = name.starts_with("target") || name == "node_modules" || path.join("CACHEDIR.TAG").exists();
            if entry.file_type().unwrap().is_dir() {
                folders.extend((!is_built && (!name.starts_with('.') || name == ".ci")).then_some(path));
            } else {
                found.push(path.strip_prefix(home).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_path(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let has_end = ENDS.iter().any(|end| text.len() > end.len() && text.ends_with(end));
    text.bytes().all(is_plain) && !text.starts_with('/') && (has_end || FOLDERS.iter().any(|it| text.starts_with(it)))
}

/// The last word of a name with an underscore or a path of modules; a plain word may be anybody's.
fn item(text: &str) -> Option<&str> {
    let text = text.strip_suffix("()").unwrap_or(text);
    let words: Vec<&str> = text.split("::").collect();
    let last = *words.last()?;
    let is_compound =
        last.contains('_') && !last.ends_with('_') && last.starts_with(|first: char| first.is_ascii_lowercase())
            || words.len() > 1;
    (is_compound && words.iter().all(|word| is_word(word)) && !last.starts_with(|first: char| first.is_ascii_digit()))
        .then_some(last)
}

/// The texts between backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn names_in_prose_are_there() {
    let home = home();
    let files = files(&home);
    // Every end of every path, and of every folder's.
    let mut paths = BTreeSet::new();
    for file in &files {
        let parts: Vec<&str> = file.split('/').collect();
        for from in 0..parts.len() {
            paths.extend((from + 1..=parts.len()).map(|to| parts[from..to].join("/")));
        }
    }
    let (mut words, mut prose) = (BTreeSet::new(), Vec::new());
    for file in files.iter().filter(|file| !PAST.iter().any(|past| file.starts_with(past))) {
        let Ok(text) = std::fs::read_to_string(home.join(file)) else { continue };
        let mark = match file.rsplit('.').next() {
            Some("md") => "",
            Some("rs" | "c" | "h") => "//",
            _ => "#",
        };
        for (number, line) in text.lines().enumerate() {
            let comment = line.find(mark).unwrap_or(line.len());
            let code = &line[..comment];
            words.extend(code.split(|it: char| !it.is_ascii_alphanumeric() && it != '_').map(str::to_owned));
            prose.extend(quoted(&line[comment..]).map(|name| (file.as_str(), number + 1, name.to_owned())));
        }
    }
    assert!(prose.len() > 2000, "prose was read: {}", prose.len());
    let is_wrong = |name: &str| {
        let plain = name.trim_start_matches("./").trim_end_matches('/');
        let is_here = if is_path(name) {
            paths.contains(plain)
        } else {
            item(name).is_none_or(|item| words.contains(item) || OTHERS.contains(&item))
        };
        !is_here && !OTHERS.contains(&plain)
    };
    let wrong: Vec<String> = prose
        .iter()
        .filter(|(_, _, name)| is_wrong(name))
        .map(|(file, line, name)| format!("{file}:{line}: {name}"))
        .collect();
    assert!(wrong.is_empty(), "not in this repository:\n{}", wrong.join("\n"));
}

#[test]
fn a_wrong_name_would_be_found() {
    assert!(is_path("region/nowhere.rs") && is_path("docs/none") && !is_path("word") && !is_path("/proc/self/io"));
    assert_eq!(item("evict::batch::expel"), Some("expel"));
    assert_eq!(item("begin_evict()"), Some("begin_evict"));
    assert_eq!((item("plain"), item("MADV_RANDOM"), item("a b")), (None, None, None));
    assert_eq!(quoted("of `one` and `two`.").collect::<Vec<_>>(), ["one", "two"]);
}
