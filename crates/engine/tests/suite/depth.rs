//! How deep the SIGBUS handler goes in a user's own crate, built as users build: the dev profile, all of it at opt-level 0, where
//! frames are largest; and that every kind of thread has room for it (`sys/trap_stack.rs`).

use crate::common::ready;
use std::path::Path;
use std::process::Command;

/// What the handler is given (`trap_stack::ROOM`).
const ROOM: usize = 20 << 10;

#[test]
fn a_users_unoptimised_program_has_room_for_the_handler_on_every_kind_of_thread() {
    if !ready() {
        return;
    }
    let (here, folder) = (Path::new(env!("CARGO_MANIFEST_DIR")), Path::new(env!("CARGO_TARGET_TMPDIR")).join("user"));
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"user\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\
         [dependencies]\nfastmap-io = {{ path = {here:?} }}\nlibc = \"0.2\"\n[workspace]\n"
    );
    std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    // The same versions as here, which are there already: nothing is asked of the network. A packed crate has a list of its own.
    let lock = ["Cargo.lock", "../../Cargo.lock"].map(|lock| here.join(lock)).into_iter().find(|lock| lock.exists());
    std::fs::copy(lock.unwrap(), folder.join("Cargo.lock")).unwrap();
    std::fs::copy(here.join("tests/user/program.rs"), folder.join("src/main.rs")).unwrap();
    let target = folder.join("target");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--offline", "--quiet"]).current_dir(&folder).env("CARGO_TARGET_DIR", &target);
    // As a user has it, whatever this test was built with.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_PROFILE_DEV_OPT_LEVEL", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(name);
    }
    assert!(cargo.status().unwrap().success(), "the user's crate does not build");
    let output = Command::new(target.join("debug/user")).arg(folder.join("file")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.ends_with("done\n"), "{:?}\n{said}\n{output:?}", output.status);
    let depths: Vec<usize> = said.lines().filter_map(|line| line.strip_prefix("depth ")?.parse().ok()).collect();
    println!("bytes below the kernel's frame, without and with stores that are kept, and in walks: {depths:?}");
    assert_eq!(depths.len(), 3, "{said}");
    // On a stack of the engine's there is as much room below a frame of 11.5 KiB as below any. A third is left for other compilers.
    assert!(depths.iter().all(|depth| *depth <= ROOM * 2 / 3), "{depths:?} of {ROOM} bytes");
}
