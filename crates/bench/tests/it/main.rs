//! `fastmap-bench` as a user meets it: one test program. What experiments make of their figures is tested on synthetic ones, in the
//! library; here bad input, one real experiment, the report, and, with `FASTMAP_EFFORT=full`, every experiment at its smallest.

mod bad_input;
mod micro;
mod programs;
#[path = "../../../cli/tests/it/prompt.rs"]
mod prompt;
mod report;
mod smoke;
mod storage;
mod storages;
mod told;
mod try_it;

pub use told::{check_told, memory_flag};

/// What is tested.
pub const FASTMAP: &str = env!("CARGO_BIN_EXE_fastmap-bench");

/// What is run, with the memory of each where memory can be limited; what needs `fastmap` and its libraries beside this command.
pub const ALL: &[(&str, &str, &str, bool)] = &[
    ("replacement", "--traces loop,scan-mixed --size 16MiB --touches 1 --repeat 1", "12MiB", false),
    ("scale", "--size 64MiB --threads 1,2 --seconds 0.05 --repeat 1", "32MiB", false),
    ("peers", "--size 96MiB --threads 2 --seconds 0.05 --repeat 1", "56MiB", false),
    ("calls", "--seconds 0.01 --repeat 1", "", true),
    ("loads", "--size 8MiB --repeat 1", "", true),
    (
        "programs",
        "--programs search,files --memory all,half --size 4MiB --seconds 0.02 --warm-up 0.05 --repeat 1",
        "",
        true,
    ),
];

/// What makes no sense, and what is said of it.
pub const REFUSED: &[(&str, &[&str])] = &[
    ("replacement --traces lop", &["--traces", "not a trace", "zipf-0.6"]),
    ("replacement --size 64MiB --memory 60MiB", &["--size", "four times"]),
    ("replacement --touches 0", &["--touches", "touches a page"]),
    ("scale --engines pread", &["--engines", "choose from mmap, mmap-random, fastmap"]),
    ("programs --programs lmdb,emacs", &["--programs", "not a program here", "search, files"]),
    ("programs --memory third", &["--memory"]),
    ("programs --size 5000", &["--size", "not a multiple of 1 MiB: give 1MiB"]),
    ("loads --size 5000", &["--size", "not a multiple of 4096: give 8KiB"]),
    ("storage --latency 2 .", &["--latency", "is not a time: give up to a minute"]),
    ("storage --bandwidth 1GB .", &["--bandwidth", "is not a bandwidth: give 1MB/s to"]),
    ("micro --file data --storage slow", &["--file", "cannot be used with", "--storage"]),
    ("storage --size 1MiB --source . .", &["--size", "cannot be used with", "--source"]),
];

/// What has help and is no experiment, or has no name as one.
pub const OTHERS: &[&str] = &["try", "micro", "storage", "report"];
