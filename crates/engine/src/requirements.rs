//! The engine's requirements of the machine and of a file, checked one by one: for `fastmap doctor`, and for the
//! message when a file cannot be cached.

use crate::direct::mapping;
use crate::region::userfaultfds;
use crate::sys::aio::Aio;
use crate::sys::file::Medium;
use crate::sys::lines::Instruction;
use crate::sys::uring::Ring;
use crate::sys::userfaultfd::Userfaultfd;
use crate::sys::{PAGE, cgroup, file, kernel_version, madvise, survival};
use std::fs::File;

/// Oldest Linux the engine is made for. Later ones lock a VMA, and not the address space, where a page is installed.
const OLDEST_LINUX: (u32, u32) = (6, 8);

pub use fastmap_steer::requirements::Requirement;

/// Checks the machine: page size, kernel version, userfaultfd(2) and its features, process_madvise(2), Linux AIO,
/// io_uring(7), unshare(2), store tracking, cache-line instructions, and whether stores survive the
/// program's end.
///
/// ```
/// for requirement in fastmap::requirements::of_machine() {
///     match &requirement.found {
///         Ok(what) => println!("{}: {what}", requirement.name),
///         Err(why) => println!("{}: {why}: {}", requirement.name, requirement.remedy),
///     }
/// }
/// let missing = fastmap::requirements::of_machine().into_iter().filter(|one| !one.optional && one.found.is_err());
/// println!("{} things missing", missing.count());
/// ```
pub fn of_machine() -> Vec<Requirement> {
    vec![
        page_size(),
        kernel(),
        user_faults(),
        kernel_faults(),
        batched_eviction(),
        reads_ahead(),
        deep_queues(),
        own_descriptors(),
        tracking(),
        line_flush(),
        lasting_stores(),
    ]
}

/// Checks a file: direct I/O (`O_DIRECT`) in units of a page.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let file = tempfile::tempfile()?;
/// let direct = &fastmap::requirements::of_file(&file)[0];
/// assert_eq!(direct.name, "O_DIRECT");
/// # Ok(())
/// # }
/// ```
pub fn of_file(file: &File) -> Vec<Requirement> {
    vec![direct_io(file)]
}

/// The first requirement of the machine that is missing and not optional: where there is one, the engine serves no file.
///
/// ```
/// assert!(fastmap::requirements::missing().is_none_or(|one| !one.optional));
/// ```
pub fn missing() -> Option<Requirement> {
    [page_size, kernel, user_faults].into_iter().map(|look| look()).find(|one| one.found.is_err())
}

/// Says what could end this process so that the keeper ([`CacheBuilder::keeper`](crate::CacheBuilder::keeper)) cannot
/// save stores to writable maps that were not flushed: the end of a PID namespace, or the OOM killer of a memory group.
/// `None`: neither can, as far as can be seen now.
///
/// ```
/// if let Some(why) = fastmap::requirements::risk_to_stores() {
///     println!("flush what must last: {why}");
/// }
/// ```
pub fn risk_to_stores() -> Option<String> {
    survival::peril().map(|peril| peril.to_string())
}

/// Whether a kill of all of this process's control group (`cgroup.kill`, systemd's final kill) ends the keeper, too. False where no group is killed
/// so, and where the keeper can live in a group beside it, since this user may make one.
///
/// ```
/// if fastmap::requirements::is_killed_as_a_whole() {
///     println!("such a kill loses what was not flushed");
/// }
/// ```
pub fn is_killed_as_a_whole() -> bool {
    cgroup::is_killed_as_a_whole()
}

fn lasting_stores() -> Requirement {
    let (found, remedy) = match risk_to_stores() {
        Some(risk) => {
            (Err(risk), "`fastmap run` leaves writable mappings to the kernel here, unless --risk-stores is given")
        }
        None if is_killed_as_a_whole() => (
            Err("a kill of all of this control group ends the process that writes stores back, too".into()),
            "such a kill loses stores of the last second (--own; --write-within) or half a minute (libraries; dirty_expire) that were not flushed; have the group delegated",
        ),
        None => (Ok("in the initial PID namespace, without a limit on memory".into()), ""),
    };
    Requirement {
        name: "stores that last",
        purpose: "stores to writable maps survive the sudden end of a program, as with mmap(2)",
        optional: true,
        found,
        remedy: remedy.into(),
    }
}

fn page_size() -> Requirement {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Requirement {
        name: "4 KiB pages",
        purpose: "the unit of caching",
        optional: false,
        found: if size == PAGE as i64 { Ok("4 KiB".into()) } else { Err(format!("pages of {size} bytes")) },
        remedy: "use a kernel with 4 KiB pages".into(),
    }
}

fn kernel() -> Requirement {
    let release = kernel_version::release();
    let (major, minor) = OLDEST_LINUX;
    Requirement {
        name: "Linux 6.8",
        purpose: "page faults that do not take a process-wide lock",
        optional: false,
        found: if kernel_version::is_recent(&release, OLDEST_LINUX) {
            Ok(format!("Linux {release}"))
        } else {
            Err(format!("this is Linux {release}"))
        },
        remedy: format!("boot Linux {major}.{minor} or later"),
    }
}

fn user_faults() -> Requirement {
    let found = if userfaultfds::by_service() {
        Userfaultfd::open_for_service().map(|_| "page faults handled by service threads".to_owned())
    } else {
        Userfaultfd::open().map(|_| "page faults handled in user mode, without privileges".to_owned())
    };
    let error = found.as_ref().err().and_then(std::io::Error::raw_os_error);
    let remedy = match error {
        Some(libc::ENOSYS) => "boot a kernel with CONFIG_USERFAULTFD=y, or allow userfaultfd in the seccomp filter",
        Some(libc::EPERM) => "allow the userfaultfd system call in the container's seccomp filter",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files (ulimit -n)",
        _ => "boot a kernel with CONFIG_USERFAULTFD=y for x86-64 (write-protection needs Linux 5.7)",
    };
    Requirement {
        name: "userfaultfd",
        purpose: "page faults and first stores reach the engine (features SIGBUS and PAGEFAULT_FLAG_WP)",
        optional: false,
        found: found.map_err(|error| error.to_string()),
        remedy: remedy.into(),
    }
}

fn kernel_faults() -> Requirement {
    let found = Userfaultfd::open_for_service();
    let remedy = service_remedy(found.as_ref().err().and_then(std::io::Error::raw_os_error));
    Requirement {
        name: "kernel faults",
        purpose: "system calls may be given memory of a map that is not there (`--faults service`)",
        optional: true,
        found: found
            .map(|_| "service threads can serve faults of system calls (`--faults service`)".into())
            .map_err(|error| format!("service threads cannot serve faults of system calls: {error}")),
        remedy,
    }
}

/// Where the kernel lacks what they take (EINVAL), no right of the user's helps.
fn service_remedy(error: Option<i32>) -> String {
    match error {
        Some(libc::EINVAL) => kernel().remedy,
        _ => userfaultfds::REMEDY.into(),
    }
}

fn batched_eviction() -> Requirement {
    let found = madvise::batches();
    Requirement {
        name: "process_madvise",
        purpose: "a batch of pages leaves memory with one call and one TLB flush",
        optional: true,
        found: if found {
            Ok("batched eviction".into())
        } else {
            Err("this kernel refuses MADV_DONTNEED there: one madvise a page instead, about twice the cost".into())
        },
        remedy: "boot Linux 6.13 or later, or allow process_madvise in the seccomp filter".into(),
    }
}

fn reads_ahead() -> Requirement {
    Requirement {
        name: "Linux AIO",
        purpose: "reads ahead of the program, asked for by the thread that faults, without waking another",
        optional: true,
        found: Aio::open()
            .map(|_| "reads ahead without threads".into())
            .map_err(|error| format!("{error}: threads read ahead instead, with a read each at a time")),
        remedy: "raise the sysctl fs.aio-max-nr, or allow io_setup, io_submit and io_getevents in the seccomp filter"
            .into(),
    }
}

fn deep_queues() -> Requirement {
    Requirement {
        name: "io_uring",
        purpose: "many writes under way at a time from a few threads",
        optional: true,
        found: Ring::try_out(Ring::open)
            .map(|_| "deep write-back queues".into())
            .map_err(|error| format!("{error}: more threads write instead, one run of pages each at a time")),
        remedy: "set the sysctl kernel.io_uring_disabled to 0, or allow io_uring_setup in the seccomp filter".into(),
    }
}

fn own_descriptors() -> Requirement {
    // SAFETY: in a thread of its own, which uses no descriptor.
    let unshare = || match unsafe { libc::unshare(libc::CLONE_FILES) } {
        0 => Ok("helper processes and threads have descriptors of their own".to_owned()),
        _ => Err(format!(
            "{}: helper processes keep copies of the program's descriptors",
            std::io::Error::last_os_error()
        )),
    };
    Requirement {
        name: "unshare",
        purpose: "a socket or pipe of the program ends when the program closes it, or ends",
        optional: true,
        found: std::thread::spawn(unshare).join().unwrap_or_else(|_| Err("no thread can be started".into())),
        remedy: "allow unshare in the seccomp filter".into(),
    }
}

fn tracking() -> Requirement {
    Requirement {
        name: "store tracking",
        purpose: "a large flush of a direct mapping in memory writes only pages that were stored to",
        optional: true,
        found: mapping::try_tracking().map(|()| "asynchronous write-protect, PAGEMAP_SCAN".into()).map_err(|error| {
            format!("no asynchronous write-protect or PAGEMAP_SCAN ({error}): all that is asked for is written")
        }),
        remedy: "boot Linux 6.7 or later with CONFIG_USERFAULTFD=y, or allow userfaultfd in the seccomp filter".into(),
    }
}

fn line_flush() -> Requirement {
    Requirement {
        name: "cache-line flush",
        purpose: "small flushes of direct mappings on persistent memory without a system call",
        optional: true,
        found: match Instruction::best() {
            Instruction::Clflush => Err("only CLFLUSH: one line after another, and each leaves the cache".into()),
            better => Ok(better.name().into()),
        },
        remedy: "use a processor (or a virtual machine's model of one) with CLWB or CLFLUSHOPT".into(),
    }
}

fn direct_io(file: &File) -> Requirement {
    let direct = file::reopen(file, false, true).map_err(|error| error.to_string());
    let found = match &direct {
        Ok(direct) if file::direct_works(direct) => Ok("pages are read past the page cache".into()),
        Ok(_) => Err("direct I/O needs an alignment above 4096 bytes here".into()),
        Err(error) => Err(error.clone()),
    };
    // A block device's node lies on devtmpfs, which says nothing of the device.
    let is_device = file::facts(file).is_ok_and(|facts| facts.is_device);
    let (found, remedy) = match file::medium(file) {
        Medium::Memory { .. } => (
            Err("the file is in memory already".into()),
            "map it directly (the default): a cache above it would be a second copy",
        ),
        _ if is_device => (found, "use a device with logical blocks of at most 4096 bytes"),
        _ => (found, "put the file on ext4, xfs or a block device (on btrfs: chattr +C before it has data)"),
    };
    Requirement {
        name: "O_DIRECT",
        purpose: "one copy of each page: the cache's, not the page cache's as well",
        optional: false,
        found,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_not_healed_by_rights() {
        assert_eq!(service_remedy(Some(libc::EINVAL)), "boot Linux 6.8 or later");
        assert!(service_remedy(Some(libc::EPERM)).starts_with("run as root"));
    }

    #[test]
    fn kernel_releases_compare_by_number() {
        for recent in ["6.8.0", "6.18.44-fc-v669", "7.0-rc1", "10.1"] {
            assert!(kernel_version::is_recent(recent, OLDEST_LINUX), "{recent}");
        }
        for old in ["6.7.12", "5.15.0-generic", "2.6.78", "", "unknown"] {
            assert!(!kernel_version::is_recent(old, OLDEST_LINUX), "{old}");
        }
    }
}
