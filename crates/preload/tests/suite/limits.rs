//! Limits of a process do not hold for what the engine does in its place; and where there is no room for the engine, the kernel has the file.

use crate::common;
use crate::effort::skip;
use std::process::Command;

cases! {
    "limits.c", &[];
    file_size stack_size memory addresses mappings;
    kernel
}

/// A store to a block that is copied when it is written takes room on the disk, which a full one has not: such a file is the kernel's, and its stores
/// raise SIGBUS.
#[test]
fn copied_blocks() {
    if !common::ready() {
        return;
    }
    let folder = common::folder();
    let exe = common::compile(folder.path(), "limits.c", &[]);
    let cases = [
        ("mkfs.xfs -q -m reflink=1", "cp --reflink=never first file", false),
        ("mkfs.xfs -q -m reflink=1", "cp --reflink=always first file", true),
        ("mkfs.btrfs -q", "cp --reflink=never first file", true),
        ("mkfs.btrfs -q", "touch file && chattr +C file && cat first > file", false),
    ];
    for (make, copy, is_copied) in cases {
        let script = format!(
            r#"cd "$0" && mkdir -p disk && rm -f image && truncate -s 320M image && {make} image && mount -o loop image disk || exit 99
            cd disk && head -c 8M /dev/urandom > first && {copy} && sync -f . || exit 98
            "$@" stores "$PWD/file"; status=$?; cd .. && umount disk; exit $status"#
        );
        let library = format!("LD_PRELOAD={}", common::library().display());
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).arg(folder.path()).args(["env", &library]).arg(&exe);
        command.env("FASTMAP_OWN", "*").env("FASTMAP_CACHE", "4MiB").env("FASTMAP_RISK_STORES", "1");
        let output = command.output().expect("unshare");
        if output.status.code() == Some(99) {
            return skip(format!("no file system to be mounted (as root): {output:?}"));
        }
        common::expect_success(copy, &output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.contains("copied when they are written"), is_copied, "{make}, {copy}: {said}");
    }
}
