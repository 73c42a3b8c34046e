//! `fastmap doctor` checks whether FastMap can cache files at a path on this machine. It shows what is missing, and what to do about it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use fastmap::requirements::{self, Requirement};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::cgroup::{self, Controller};
use crate::failure::Failure;
use crate::machine::Machine;

#[derive(Serialize)]
struct Diagnosis {
    machine: Machine,
    /// Whether the engine can cache files here.
    can_cache: bool,
    /// Whether files here are in memory already, so that FastMap maps them directly.
    in_memory: bool,
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

/// Checks and prints. Returns 0 if the engine can cache files, or if files are in memory already, else 1.
///
/// # Errors
///
/// The path cannot be opened, or no file can be made in the directory.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let file = file_at(&args.path)?;
    let mut findings: Vec<Finding> = requirements::of_machine().into_iter().map(Finding::from).collect();
    findings.extend(requirements::of_file(&file).into_iter().map(Finding::from));
    findings.push(memory_cgroup());
    let can_cache = findings.iter().all(|f| f.ok || f.optional);
    let in_memory = fastmap::by_address::is_in_memory(file.as_fd());
    let diagnosis = Diagnosis { machine: Machine::of(&args.path), can_cache, in_memory, findings };
    if args.json {
        let text = serde_json::to_string_pretty(&diagnosis)
            .map_err(|e| Failure::new("doctor", e, "this is an error in fastmap: please report it"))?;
        crate::print(&(text + "\n"));
    } else {
        crate::print(&text(&args.path, &diagnosis));
    }
    Ok(ExitCode::from(u8::from(!can_cache && !in_memory)))
}

/// Opens the file. For a directory, makes a file without a name in it.
fn file_at(path: &Path) -> Result<File, Failure> {
    let refused = |e: std::io::Error| {
        Failure::new(
            path.display(),
            format!("cannot be looked at: {e}"),
            "name a readable file or a writable directory",
        )
    };
    if !path.metadata().map_err(refused)?.is_dir() {
        return File::open(path).map_err(refused);
    }
    let mut file = tempfile::tempfile_in(path).map_err(refused)?;
    file.write_all(&[0; 64 << 10]).and_then(|()| file.sync_all()).map_err(refused)?;
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
        "{}, {} processors, {} MiB of memory, Linux {}; {} is on {} ({})\n\n",
        m.model,
        m.cpus,
        m.memory_bytes >> 20,
        m.kernel,
        path.display(),
        m.file_system,
        m.device
    );
    let width = diagnosis.findings.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    for f in &diagnosis.findings {
        let mark = match (f.ok, f.optional || diagnosis.in_memory) {
            (true, _) => "ok",
            (false, true) => "without",
            (false, false) => "MISSING",
        };
        text.push_str(&format!("{mark:<8} {:<width$}  {}\n", f.name, f.detail));
        if !f.ok {
            text.push_str(&format!("{:8} {:width$}  it is for: {}\n", "", "", f.purpose));
            text.push_str(&format!("{:8} {:width$}  to have it: {}\n", "", "", f.remedy));
        }
    }
    text.push_str(if diagnosis.in_memory {
        "\nFiles here are in memory already: FastMap maps them straight, without a cache.\n"
    } else if diagnosis.can_cache {
        "\nFastMap can cache files here.\n"
    } else {
        "\nFastMap cannot cache files here and would map them through the kernel: see MISSING above.\n"
    });
    text
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
            can_cache: ok || optional,
            in_memory: false,
            findings: vec![finding(optional, ok)],
        };
        let missing = text(Path::new("/"), &diagnosis(false, false));
        assert!(missing.contains("MISSING  userfaultfd  6.18") && missing.contains("to have it: sysctl"), "{missing}");
        assert!(missing.contains("it is for: catching misses") && missing.contains("cannot cache"));
        let fine = text(Path::new("/"), &diagnosis(true, true));
        assert!(fine.contains("ok       userfaultfd") && !fine.contains("sysctl") && fine.contains("can cache"));
    }
}
