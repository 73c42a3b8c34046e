//! `fastmap doctor` checks whether steering and the engine work on this machine, for files at a path. It shows what is missing, and what to do
//! about it.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fastmap::requirements::{self, Requirement};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::cgroup::{self, Controller};
use crate::failure::Failure;
use crate::machine::Machine;
use crate::table::{self, printable};

#[derive(Serialize)]
struct Diagnosis {
    machine: Machine,
    /// The median time of reads of 4 KiB from storage, seconds. Unknown where files are in memory.
    read_s: Option<f64>,
    /// Whether `fastmap run` and `attach` can steer programs here.
    can_steer: bool,
    steering: Vec<Finding>,
    /// Whether the engine can cache files here.
    can_cache: bool,
    /// Whether files here are in memory already, so that FastMap maps them directly.
    in_memory: bool,
    /// The engine's.
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Finding {
    name: String,
    purpose: String,
    /// Whether FastMap works without it, if more slowly or with fewer features.
    optional: bool,
    ok: bool,
    /// The state that was found, or the reason why it is missing.
    detail: String,
    /// The way to get it if it is missing.
    remedy: String,
}

/// Checks and prints. Returns 0 if steering works, else 1.
///
/// # Errors
///
/// The path cannot be opened, or no file can be made in the directory.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let (path, file) = match file_at(&args.path) {
        // The machine is what is asked for, not the folder that this user happens to be in.
        Err(_) if args.path == Path::new(".") => {
            let folder = std::env::temp_dir();
            let file = file_at(&folder)?;
            (folder, file)
        }
        found => (args.path.clone(), found?),
    };
    let steering: Vec<Finding> = fastmap_steer::requirements::of_machine().into_iter().map(Finding::from).collect();
    let mut findings: Vec<Finding> = requirements::of_machine().into_iter().map(Finding::from).collect();
    findings.extend(requirements::of_file(&file).into_iter().map(Finding::from));
    findings.push(memory_cgroup());
    let are_met = |findings: &[Finding]| findings.iter().all(|f| f.ok || f.optional);
    let (can_steer, can_cache) = (are_met(&steering), are_met(&findings));
    let in_memory = fastmap::by_address::is_in_memory(file.as_fd());
    let read_s = if in_memory { None } else { read_time(&file).map(|time| time.as_secs_f64()) };
    let machine = Machine::of(&path);
    let diagnosis = Diagnosis { machine, read_s, can_steer, steering, can_cache, in_memory, findings };
    if args.json {
        let value = serde_json::to_value(&diagnosis)
            .map_err(|e| Failure::new("doctor", e, "this is an error in fastmap: please report it"))?;
        crate::print(&table::json(&value));
    } else {
        crate::print(&text(&path, &diagnosis));
    }
    Ok(ExitCode::from(u8::from(!can_steer)))
}

/// The median time of reads of 4 KiB, spread over the file, past the page cache. `None` where a file is empty, or a read fails.
fn read_time(file: &File) -> Option<Duration> {
    const READS: u64 = 33;
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let place = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&place);
    // Some file systems take no direct I/O.
    let file = direct.or_else(|_| File::open(&place)).ok()?;
    let pages = file.metadata().ok()?.len() / 4096;
    let mut page = Page([0; 4096]);
    let mut times = Vec::new();
    for read in 0..if pages == 0 { 0 } else { READS } {
        let at = read * (pages / READS).max(1) % pages * 4096;
        // SAFETY: it changes no byte.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), at as i64, 4096, libc::POSIX_FADV_DONTNEED) };
        let begun = Instant::now();
        file.read_exact_at(&mut page.0, at).ok()?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Opens the file. For a directory, makes a file without a name in it.
fn file_at(path: &Path) -> Result<File, Failure> {
    let failed = |what: &str, e: std::io::Error| {
        Failure::new(path.display(), format!("{what}: {e}"), "name a readable file or a writable directory")
    };
    let (refused, unwritable) = (|e| failed("cannot be looked at", e), |e| failed("cannot be written", e));
    if !path.metadata().map_err(refused)?.is_dir() {
        return File::open(path).map_err(refused);
    }
    let mut file = tempfile::tempfile_in(path).map_err(unwritable)?;
    file.write_all(&[0; 64 << 10]).and_then(|()| file.sync_all()).map_err(unwritable)?;
    Ok(file)
}

fn memory_cgroup() -> Finding {
    let found = Controller::find();
    Finding {
        name: "memory cgroup".to_owned(),
        purpose: "`fastmap bench` gives every engine the same memory".to_owned(),
        optional: true,
        ok: found.is_ok(),
        detail: match found {
            Ok(controller) => format!("{}, writable", controller.version()),
            Err(why) => why.to_string(),
        },
        remedy: cgroup::REMEDY.to_owned(),
    }
}

impl From<Requirement> for Finding {
    fn from(r: Requirement) -> Finding {
        let ok = r.found.is_ok();
        let (Ok(detail) | Err(detail)) = r.found;
        Finding {
            name: r.name.to_owned(),
            purpose: r.purpose.to_owned(),
            optional: r.optional,
            ok,
            detail,
            remedy: r.remedy,
        }
    }
}

fn text(path: &Path, diagnosis: &Diagnosis) -> String {
    let m = &diagnosis.machine;
    let mut text = format!(
        "{}, {} processors, {} MiB of memory, Linux {}; {} is on {} ({})\n",
        m.model,
        m.cpus,
        m.memory_bytes >> 20,
        m.kernel,
        printable(path.display()),
        m.file_system,
        printable(&m.device)
    );
    if let Some(seconds) = diagnosis.read_s {
        text.push_str(&format!("A read of 4 KiB there takes {:.3} ms (median); {}\n", seconds * 1e3, m.readahead()));
    }
    text.push_str(match diagnosis.can_steer {
        true => "\nSteering works here (fastmap run, fastmap attach; it needs none of what the engine needs):\n",
        false => "\nSteering (fastmap run, fastmap attach) does not work here:\n",
    });
    list(&mut text, &diagnosis.steering, false);
    text.push_str(match (diagnosis.can_cache, diagnosis.in_memory) {
        (_, true) => "\nFiles here are in memory already: the engine maps them straight, without a cache:\n",
        (true, _) => "\nThe engine works here (--cache, --heap, the libraries): FastMap can cache files here:\n",
        (false, _) => {
            "\nThe engine (--cache, --heap, the libraries) does not work here; `fastmap run` steers all the same:\n"
        }
    });
    list(&mut text, &diagnosis.findings, diagnosis.in_memory);
    text
}

/// A line for each finding, and two more if it is missing. `is_enough`: even without them all is well.
fn list(text: &mut String, findings: &[Finding], is_enough: bool) {
    let width = findings.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    for f in findings {
        let mark = match (f.ok, f.optional || is_enough) {
            (true, _) => "ok",
            (false, true) => "without",
            (false, false) => "MISSING",
        };
        text.push_str(&format!("{mark:<8} {:<width$}  {}\n", f.name, printable(&f.detail)));
        if !f.ok {
            text.push_str(&format!("{:8} {:width$}  it is for: {}\n", "", "", f.purpose));
            text.push_str(&format!("{:8} {:width$}  to have it: {}\n", "", "", f.remedy));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_purpose_and_remedy() {
        let finding = |optional, ok| Finding {
            name: "userfaultfd".into(),
            purpose: "catching misses".into(),
            optional,
            ok,
            detail: "6.18".into(),
            remedy: "sysctl".into(),
        };
        let diagnosis = |optional, ok| Diagnosis {
            machine: Machine::of(Path::new("/")),
            read_s: Some(0.0001),
            can_steer: true,
            steering: vec![],
            can_cache: ok || optional,
            in_memory: false,
            findings: vec![finding(optional, ok)],
        };
        let missing = text(Path::new("/"), &diagnosis(false, false));
        assert!(missing.contains("MISSING  userfaultfd  6.18") && missing.contains("to have it: sysctl"), "{missing}");
        assert!(missing.contains("it is for: catching misses") && missing.contains("does not work here"), "{missing}");
        assert!(missing.contains("takes 0.100 ms (median); readahead"), "{missing}");
        let fine = text(Path::new("/"), &diagnosis(true, true));
        assert!(fine.contains("ok       userfaultfd") && !fine.contains("sysctl") && fine.contains("can cache"));
    }
}
