//! `fastmap-papers` as a user meets it: bad input, and, with `FASTMAP_EFFORT=full`, every experiment at its smallest.

#[path = "../../../crates/cli/tests/it/prompt.rs"]
mod prompt;
#[path = "../../../crates/bench/tests/it/smoke.rs"]
mod smoke;
#[path = "../../../crates/bench/tests/it/told.rs"]
mod told;

pub use told::{check_told, memory_flag};

/// What is tested.
pub const FASTMAP: &str = env!("CARGO_BIN_EXE_fastmap-papers");

/// What is run, with the memory of each where memory can be limited; what needs `fastmap` and its libraries beside this command.
pub const ALL: &[(&str, &str, &str, bool)] = &[
    ("sync", "--size 1MiB --seconds 0.02 --repeat 1", "", false),
    ("async", "--size 32MiB --ops 400 --threads 1,2 --repeat 1", "28MiB", false),
    ("breakdown", "--size 64MiB --threads 2 --seconds 0.05 --repeat 1 --no-perf", "32MiB", false),
    ("ablation", "--size 64MiB --threads 2 --seconds 0.05 --repeat 1", "32MiB", false),
    ("random-64k", "--size 64MiB --seconds 0.05 --repeat 1", "32MiB", false),
    ("study", "--size 32MiB --small 512KiB --touches 16 --repeat 2", "24MiB", false),
    ("kv", "--stores own,lmdb --records 2000 --ops 500 --memory all --repeat 1", "", true),
    ("graph", "--scale 12 --sources 2 --iterations 2 --threads 2 --repeat 1", "24MiB", true),
    ("oltp", "--file-systems here --warehouses 1 --seconds 0.3 --repeat 1", "24MiB", true),
    ("olap", "--scale 0.03 --cache 24MiB --threads 2 --repeat 1", "96MiB", true),
];

/// What makes no sense, and what is said of it.
pub const REFUSED: &[(&str, &[&str])] = &[
    ("sync --dir . --engines persist --size 64KiB", &["--engines", "makes nothing durable"]),
    ("async --threads 1,16 --size 64KiB", &["--size", "too small for 16 threads"]),
    ("async --engines fastmap-ar --size 16MiB", &["--engines", "store8, whose stores are not whole lines"]),
    ("async --ops 5000 --size 16MiB", &["--ops", "give fewer, more --size, or --work record"]),
    ("async --pattern forward", &["--pattern", "give zipf or random"]),
    ("ablation --loads fill --off readahead --size 1MiB", &["--loads", "nothing in --off matters"]),
    ("study --small 5000 --size 1MiB", &["--small", "not a multiple of 4096: give 8KiB"]),
    ("kv --stores own --records 1000 --memory sixth", &["--records", "too little memory", "--memory all"]),
    ("kv --memory lots", &["--memory", "or all, or sixth"]),
    ("graph --edges 0", &["--edges", "give 1 to 1000"]),
    ("oltp --file-systems fat", &["--file-systems", "choose from ext4, xfs, btrfs, here"]),
    ("olap --queries 23", &["--queries"]),
    ("olap --scale 0", &["--scale", "give 0.01 to 1000"]),
];

/// No other has help.
pub const OTHERS: &[&str] = &[];
