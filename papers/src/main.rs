//! The `fastmap-papers` command.

fn main() -> std::process::ExitCode {
    fastmap_papers::main()
}
