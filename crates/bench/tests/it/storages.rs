//! `--storage`: what the files are on is as it is said, and gone however the bench ends.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::FASTMAP;
use crate::prompt::{dir, fastmap, files_in, finish, is_root, skipped, start_in};

/// Whether the kernel and this user can have a kind of storage.
fn can_have(storage: &str) -> bool {
    let needs = match storage {
        "slow" => "/dev/fuse",
        "fast" => "/sys/class/zram-control/hot_add",
        _ => "/dev/loop-control",
    };
    if !is_root() {
        skipped("only root can make a storage");
        return false;
    }
    if !Path::new(needs).exists() {
        println!("not here: there is no {needs}");
    }
    Path::new(needs).exists()
}

#[test]
fn what_is_measured_on_is_said() {
    for storage in ["disk", "slow", "fast", "here"] {
        if storage != "here" && !can_have(storage) {
            continue;
        }
        let dir = dir();
        let flags = "--engines mmap,fastmap --size 8MiB --memory none --op write --seconds 0.05 --repeat 1";
        let ran = fastmap(dir.path(), &format!("micro --storage {storage} {flags} --json out.json"));
        ran.succeeded();
        let told: Value = serde_json::from_slice(&fs::read(dir.path().join("out.json")).unwrap()).unwrap();
        assert_eq!(told["storage"], storage, "{told}");
        let machine = &told["machine"];
        if storage != "here" {
            assert_eq!((machine["file_system"].as_str(), machine["read_ahead_kb"].as_u64()), (Some("ext4"), Some(128)));
            assert!(ran.stdout.lines().next().unwrap().contains("readahead 128KiB"), "{}", ran.stdout);
        }
        let under = match storage {
            "slow" => "a loop device with direct I/O on FUSE, 2ms a request, 1GB/s",
            "disk" => "a loop device with direct I/O on ",
            _ => "/dev/zram",
        };
        assert!(storage == "here" || machine["device"].as_str().unwrap().contains(under), "{machine}");
        assert_eq!(files_in(dir.path()), ["out.json"], "{storage}");
    }
}

#[test]
fn stopped_or_killed_it_takes_its_storage_down() {
    for storage in ["disk", "slow", "fast"] {
        if !can_have(storage) {
            continue;
        }
        for signal in ["INT", "TERM", "KILL"] {
            let dir = dir();
            let child = start_in(dir.path(), Command::new(FASTMAP).args(["--storage", storage, "--dir", "."]));
            let pid = child.id();
            let begun = Instant::now();
            let device = loop {
                if let Some(device) = device_of(pid, dir.path()) {
                    break device;
                }
                assert!(begun.elapsed() < Duration::from_secs(300), "nothing is mounted");
                sleep(Duration::from_millis(1));
            };
            assert!(is_there(&device), "{device}");
            assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
            if signal == "KILL" {
                assert_eq!(finish(child).status, None);
                // Empty folders are left.
                for entry in fs::read_dir(dir.path()).unwrap() {
                    fs::remove_dir(entry.unwrap().path()).unwrap();
                }
            } else {
                finish(child).failed_with(1, &["interrupted", "nothing was left behind"]);
            }
            let ended = Instant::now();
            while is_there(&device) {
                assert!(ended.elapsed() < Duration::from_secs(300), "{device} stays");
                sleep(Duration::from_millis(10));
            }
            assert!(files_in(dir.path()).is_empty(), "{storage}, {signal}");
        }
    }
}

/// The block device, below /sys, of what a process has mounted below a folder.
fn device_of(pid: u32, dir: &Path) -> Option<String> {
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    let below = |line: &&str| line.contains(dir.to_str().unwrap()) && line.contains(" - ext4 ");
    let number = mounts.lines().find(below)?.split(' ').nth(2)?.to_owned();
    Some(format!("/sys/dev/block/{number}"))
}

/// Whether there is such a device. A loop device stays, but on no file.
fn is_there(device: &str) -> bool {
    let target = fs::canonicalize(device);
    target.is_ok_and(|at| !at.to_string_lossy().contains("/loop") || at.join("loop/backing_file").exists())
}

/// Readahead stays within the memory that the cache was sized by, also where many threads read at once, each a part of a huge page.
#[test]
fn the_engine_stays_within_its_memory_where_reads_take_long() {
    if !can_have("slow") {
        return;
    }
    let dir = dir();
    let load = "--engines fastmap --pattern forward --storage slow --size 192MiB --memory 96MiB";
    fastmap(dir.path(), &format!("micro {load} --seconds 0.5 --repeat 2")).succeeded();
}
