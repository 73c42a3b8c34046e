//! Bad input, as a session at a prompt: each is one line that names the thing and the remedy, with the exit status the
//! design gives it, and leaves nothing behind.

use std::fs;
use std::process::Command;

use crate::prompt::{as_nobody, dir, fastmap, files_in, is_root, run_in, skipped};
use crate::{FASTMAP, memory_flag};

/// Flags that make a run as short as it gets.
const SHORT: &str = "--seconds 0.05 --repeat 1 --engines mmap";

#[test]
fn a_size_that_is_no_size() {
    let dir = dir();
    for size in ["12XB", "1,5GiB", "-1", "50%", "big", ""] {
        let line = ["micro", &format!("--size={size}")];
        run_in(dir.path(), Command::new(FASTMAP).args(line))
            .failed_with(2, &["--size: ", "is not a size: give", "64KiB"]);
    }
    fastmap(dir.path(), "micro --size 99999999TiB").failed_with(2, &["--size", "too large: give at most"]);
    fastmap(dir.path(), "micro --memory lots").failed_with(2, &["--memory", "\"lots\" is not a size", "or none"]);
    fastmap(dir.path(), "micro --size 5000").failed_with(2, &["--size", "not a multiple of 4096: give 8KiB"]);
    fastmap(dir.path(), "micro --size 0").failed_with(2, &["--size", "give 4KiB"]);
    fastmap(dir.path(), "micro --size 64KiB --threads 2")
        .failed_with(2, &["too small for 2 threads: give at least 128KiB"]);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn unknown_names_list_the_known_ones() {
    let dir = dir();
    fastmap(dir.path(), "micro --engines mmap,fastmmap").failed_with(
        2,
        &[
            "--engines",
            "\"fastmmap\" is not an engine",
            "mmap, mmap-random, mmap-sequential, mmap-willneed, mmap-fadvise, mmap-populate, fastmap, fastmap-pin, fastmap-prefetch, steered, pread, direct",
        ],
    );
    fastmap(dir.path(), "micro --pattern sideways").failed_with(
        2,
        &["--pattern", "\"sideways\" is not a pattern", "random, zipf, forward, backward, stride, order, fill"],
    );
    fastmap(dir.path(), "micro --op erase").failed_with(2, &["--op", "\"erase\" is not an op", "read, write, rmw"]);
    fastmap(dir.path(), "micro --advice willneed")
        .failed_with(2, &["--advice", "\"willneed\" is not an advice", "normal, random, sequential, backward"]);
    fastmap(dir.path(), "micro --bogus").failed_with(2, &["--bogus", "see `fastmap bench micro --help`"]);
    fastmap(dir.path(), "frobnicate").failed_with(2, &["frobnicate", "see `fastmap bench --help`"]);
}

#[test]
fn a_fill_only_writes() {
    let dir = dir();
    for op in ["read", "rmw"] {
        fastmap(dir.path(), &format!("micro --pattern fill --op {op}"))
            .failed_with(2, &["--op: fill writes a fresh file", op, "give --op write, or --pattern forward"]);
    }
    fastmap(dir.path(), "micro --pattern fill").failed_with(2, &["--op", "give --op write"]);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn advice_that_no_engine_takes() {
    let dir = dir();
    for advice in ["normal", "backward"] {
        fastmap(dir.path(), &format!("micro --engines mmap,pread --advice {advice}")).failed_with(
            2,
            &["--advice: ", advice, "--engines has none of them", "add fastmap, or choose mmap-random"],
        );
    }
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn a_fill_on_a_device() {
    let dir = dir();
    let image = dir.path().join("image");
    fastmap(dir.path(), &format!("micro {SHORT} --memory none --size 1MiB --file image")).succeeded();
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let Some(attached) = attached.ok().filter(|o| o.status.success()) else {
        return skipped("only root can attach a loop device");
    };
    let device = String::from_utf8(attached.stdout).unwrap();
    let device = device.trim();
    let ran = fastmap(dir.path(), &format!("micro {SHORT} --memory none --pattern fill --op write --file {device}"));
    assert!(Command::new("losetup").args(["--detach", device]).status().unwrap().success());
    ran.failed_with(1, &[device, "is a device, and fill begins with an empty file", "name a regular file"]);
}

#[test]
fn numbers_out_of_range() {
    let dir = dir();
    fastmap(dir.path(), "micro --threads 0").failed_with(2, &["--threads", "give 1 to 1024"]);
    fastmap(dir.path(), "micro --repeat none").failed_with(2, &["--repeat", "give 1 to 10000"]);
    fastmap(dir.path(), "micro --seconds 0").failed_with(2, &["--seconds", "give 0.01 to 86400"]);
}

#[test]
fn memory_out_of_range_names_the_range() {
    let dir = dir();
    for engine in ["fastmap", "fastmap-pin", "fastmap-prefetch"] {
        fastmap(dir.path(), &format!("micro --size 64MiB --memory 1MiB --engines {engine}"))
            .failed_with(2, &["--memory", "too few for the engine fastmap: give at least 9MiB"]);
    }
    fastmap(dir.path(), "--memory 1MiB")
        .failed_with(2, &["--memory", "too few for the engine fastmap: give at least 11MiB"]);
    fastmap(dir.path(), "--memory 410MiB")
        .failed_with(2, &["--memory 410MiB", "the file of 512MiB", "give at most 409MiB"]);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn missing_things() {
    let dir = dir();
    fastmap(dir.path(), &format!("micro {SHORT} --memory none --size 1MiB --file no/such/dir"))
        .failed_with(1, &["no/such/dir: cannot open: No such file or directory", "make its directory first"]);
    fastmap(dir.path(), "--dir no/such").failed_with(1, &["no/such", "cannot", "--dir"]);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn a_directory_for_a_file() {
    let dir = dir();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fastmap(dir.path(), &format!("micro {SHORT} --memory none --file sub"))
        .failed_with(1, &["sub: cannot open: Is a directory", "name a file in it"]);
}

#[test]
fn what_is_neither_a_file_nor_a_block_device() {
    let dir = dir();
    fastmap(dir.path(), &format!("micro {SHORT} --memory none --size 1MiB --file /dev/null"))
        .failed_with(1, &["/dev/null: is not a file: name a regular file"]);
}

#[test]
fn somebody_elses_file_is_not_overwritten() {
    let dir = dir();
    for contents in [vec![b'x'; 100], vec![b'x'; 1 << 20]] {
        fs::write(dir.path().join("thesis"), &contents).unwrap();
        fastmap(dir.path(), &format!("micro {SHORT} --memory none --size 2MiB --file thesis"))
            .failed_with(1, &["thesis: holds something other than a benchmark's pages: name a new file"]);
        assert_eq!(fs::read(dir.path().join("thesis")).unwrap(), contents);
    }
}

#[test]
fn an_unreadable_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = dir();
    let secret = dir.path().join("secret");
    fs::write(&secret, [0; 8192]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    let line = format!("micro {SHORT} --memory none --file secret");
    let ran = if is_root() { as_nobody(dir.path(), &line) } else { Some(fastmap(dir.path(), &line)) };
    let Some(ran) = ran else { return };
    ran.failed_with(1, &["secret: cannot open: Permission denied", "make it readable"]);
}

#[test]
fn a_full_disk_while_the_file_is_prepared() {
    let dir = dir();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(&disk).output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        return skipped("only root can mount a small disk to fill");
    }
    let named = fastmap(&disk, &format!("micro {SHORT} --memory none --size 64MiB --file new"));
    let left = files_in(&disk);
    let ours = fastmap(&disk, &format!("micro {SHORT} --memory none --size 4MiB --file old"));
    let extended = fastmap(&disk, &format!("micro {SHORT} --memory none --size 64MiB --file old"));
    let length = disk.join("old").metadata().map(|m| m.len()).ok();
    let temporary = fastmap(&disk, "--dir .");
    let left_at_last = files_in(&disk);
    let unmounted = Command::new("umount").arg(&disk).status().unwrap();

    named.failed_with(1, &["new: no room: it needs 67108864 more bytes", "--size"]);
    assert!(left.is_empty(), "{left:?}");
    ours.succeeded();
    extended.failed_with(1, &["old: no room: it needs 62914560 more bytes"]);
    assert_eq!(length, Some(4 << 20), "as long as before");
    temporary.failed_with(1, &["MiB left, and 512 are needed", "--dir"]);
    assert_eq!(left_at_last, ["old"]);
    assert!(unmounted.success(), "something still holds a file there");
}

#[test]
fn a_cgroup_that_is_not_writable() {
    let dir = dir();
    let Some(ran) = as_nobody(dir.path(), &format!("micro {SHORT} --size 1MiB --memory 64MiB")) else {
        return;
    };
    ran.failed_with(1, &["/sys/fs/cgroup", "denied", "run as root", "systemd-run", "--memory none"]);
    let Some(ran) = as_nobody(dir.path(), &format!("micro {SHORT} --size 1MiB --memory none")) else {
        return;
    };
    ran.succeeded();
    assert!(ran.stdout.contains("NO LIMIT on memory"), "{}", ran.stdout);
    let Some(ran) = as_nobody(dir.path(), &format!("micro {SHORT} --size 1MiB")) else {
        return;
    };
    assert_eq!(ran.status, Some(0), "not asked for, so not insisted on");
    assert!(ran.stderr.contains("no run is limited"), "{}", ran.stderr);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn json_that_cannot_be_written_is_told_before_anything_runs() {
    let dir = dir();
    let line = "micro --engines mmap --memory none --size 1MiB --seconds 600 --file new --json no/such/out.json";
    fastmap(dir.path(), line)
        .failed_with(1, &["no/such/out.json: cannot write the JSON", "name a writable file with --json"]);
    fastmap(dir.path(), "--json /").failed_with(1, &["/: cannot write the JSON", "--json"]);
    assert!(files_in(dir.path()).is_empty());
}

#[test]
fn too_little_memory_to_live_is_told() {
    let dir = dir();
    if memory_flag("256KiB") == "none" {
        return skipped("no memory cgroup can be made");
    }
    fastmap(dir.path(), "micro --engines mmap --size 1MiB --memory 256KiB --seconds 0.1 --json out.json")
        .failed_with(1, &["mmap: killed", "more memory than 256KiB", "--memory"]);
    assert!(files_in(dir.path()).is_empty(), "the JSON file was made for nothing and must go");
}

#[test]
fn a_read_only_file_can_be_read_but_not_written() {
    use std::os::unix::fs::PermissionsExt;
    let dir = dir();
    fastmap(dir.path(), &format!("micro {SHORT} --memory none --size 1MiB --file ours")).succeeded();
    fs::set_permissions(dir.path().join("ours"), fs::Permissions::from_mode(0o444)).unwrap();
    let run = |op: &str| {
        let line = format!("micro {SHORT} --memory none --op {op} --file ours");
        if is_root() { as_nobody(dir.path(), &line) } else { Some(fastmap(dir.path(), &line)) }
    };
    let (Some(read), Some(write)) = (run("read"), run("write")) else {
        return;
    };
    read.succeeded();
    write.failed_with(1, &["ours: cannot open: Permission denied", "readable and writable"]);
}
