//! The tour's fast device: gone however the tour ends. All of it takes two minutes, so it ends early here.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::FASTMAP;
use crate::prompt::{dir, files_in, finish, is_root, skipped, start_in};

#[test]
fn stopped_or_killed_it_takes_its_fast_device_down() {
    if !is_root() {
        return skipped("only root can make a fast device");
    }
    if !Path::new("/sys/class/zram-control/hot_add").exists() {
        return println!("not here: the kernel has no zram");
    }
    for signal in ["INT", "TERM", "KILL"] {
        let dir = dir();
        let child = start_in(dir.path(), Command::new(FASTMAP).args(["--dir", "."]));
        let pid = child.id();
        let begun = Instant::now();
        let device = loop {
            if let Some(device) = zram_of(pid) {
                break device;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no device appears");
            sleep(Duration::from_millis(1));
        };
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap().success());
        if signal == "KILL" {
            assert_eq!(finish(child).status, None);
            let killed = Instant::now();
            while device.exists() {
                assert!(killed.elapsed() < Duration::from_secs(30), "{} stays", device.display());
                sleep(Duration::from_millis(10));
            }
        } else {
            finish(child).failed_with(1, &["interrupted", "nothing was left behind"]);
            assert!(!device.exists(), "{} stays", device.display());
        }
        assert!(files_in(dir.path()).is_empty());
    }
}

/// The zram device, below /sys, of which a process has a file system open.
fn zram_of(pid: u32) -> Option<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let mut devices = open.filter_map(|descriptor| {
        let device = descriptor.path().metadata().ok()?.dev();
        let number = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
        fs::canonicalize(number).ok()
    });
    devices.find(|device| device.file_name().is_some_and(|name| name.to_string_lossy().starts_with("zram")))
}
