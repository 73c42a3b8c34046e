//! The `fastmap-bench` command.

fn main() -> std::process::ExitCode {
    fastmap_bench::main()
}
