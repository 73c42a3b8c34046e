//! The `fastmap` command.

fn main() -> std::process::ExitCode {
    fastmap_cli::main()
}
