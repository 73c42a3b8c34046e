//! `fastmap report` on the command line.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Show what benchmarks measured: one page with plots, to look at, print or send
#[derive(Debug, ClapArgs)]
#[command(long_about = "\
Show what benchmarks measured.

Reads what `fastmap bench NAME --json FILE` wrote, of any experiments, in the order given, and writes one page that needs nothing \
else, no network either: what is faster and what is not, the papers' figures beside ours, and for each experiment its plots, \
their numbers, how its answers were checked, the machine, and the command that reproduces it. A file name that ends in .md \
gives the same as Markdown, without the plots.")]
#[command(after_help = "\
Examples:
  fastmap bench micro --json micro.json && fastmap report micro.json -o report.html
  fastmap report results/*.json -o results.md")]
pub struct ReportArgs {
    /// Files that `fastmap bench` wrote with --json; one experiment may be there several times
    #[arg(value_name = "RESULTS", required = true)]
    pub results: Vec<PathBuf>,
    /// What to write, overwritten if it is there: .html for a page, .md for Markdown
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}
