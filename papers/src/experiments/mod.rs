//! The experiments, each a file. A new one is a file, a word in the list below, and one in `fastmap-bench`'s list of the papers'.

use fastmap_bench::experiments::Known;

macro_rules! experiments {
    ($($module:ident::$name:ident),* $(,)?) => {
        $(pub mod $module;)*

        /// All of them, in the order in which help shows them.
        pub const ALL: &[Known] = &[$(Known::of::<$module::$name>()),*];
    };
}

experiments! {
    random_64k::Random64k,
    sync::Sync,
    updates::Async,
    breakdown::Breakdown,
    ablation::Ablation,
    kv::Kv,
    graph::Graph,
    oltp::Oltp,
    olap::Olap,
    study::Study,
}
