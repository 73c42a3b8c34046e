//! Steering's requirements of the machine, checked one by one: for `fastmap doctor`.

use crate::PAGE;
use crate::act::{may_trace_all, yama_scope};
use crate::observe::{Pages, Seen};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::null_mut;

/// One thing that FastMap needs or can use.
///
/// ```
/// for requirement in fastmap_steer::requirements::of_machine() {
///     match &requirement.found {
///         Ok(what) => println!("{}: {what}", requirement.name),
///         Err(why) => println!("{}: {why}: {}", requirement.name, requirement.remedy),
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Requirement {
    /// Name, in a word or two.
    pub name: &'static str,
    /// FastMap's use of it.
    pub purpose: &'static str,
    /// Whether FastMap works without it, slower or with less.
    pub optional: bool,
    /// The finding, or the reason why it counts as missing.
    pub found: Result<String, String>,
    /// Remedy when it is missing.
    pub remedy: String,
}

/// Checks what steering looks at and how it tells the kernel: /proc/PID/pagemap, madvise(2), ptrace(2).
///
/// ```
/// let missing = fastmap_steer::requirements::of_machine().into_iter().filter(|one| !one.optional && one.found.is_err());
/// println!("{} things missing", missing.count());
/// ```
pub fn of_machine() -> Vec<Requirement> {
    vec![touched_pages(), advice(), tracing()]
}

/// Runs `body` with the address of a page of memory that was touched.
fn with_page<T>(body: impl FnOnce(*mut u8) -> T) -> io::Result<T> {
    // SAFETY: memory of this function's own, which ends with it.
    unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let page = mmap_anonymous(null_mut(), PAGE as usize, prot, MapFlags::PRIVATE)?;
        page.cast::<u8>().write_volatile(1);
        let answer = body(page.cast());
        munmap(page, PAGE as usize)?;
        Ok(answer)
    }
}

fn touched_pages() -> Requirement {
    let look = |page: *mut u8| {
        let mut seen = Seen::nothing(page as u64, 1);
        Pages::of("self").map(|mut pages| (pages.look(&mut seen, 0..1).len(), pages.interface()))
    };
    let found = match with_page(look) {
        Ok(Some((1, interface))) => Ok(format!("what a program touches can be seen ({interface})")),
        Ok(None) => Err("/proc/self/pagemap cannot be opened".into()),
        Ok(Some(_)) => Err("/proc/self/pagemap does not show the pages of this process".into()),
        Err(error) => Err(error.to_string()),
    };
    Requirement {
        name: "touched pages",
        purpose: "the pattern of a program's accesses is told from the pages that it touches (/proc/PID/pagemap)",
        optional: false,
        found,
        remedy: "mount /proc, with pagemap (CONFIG_PROC_PAGE_MONITOR)".into(),
    }
}

fn advice() -> Requirement {
    let advise = |page: *mut u8| {
        // SAFETY: memory of the caller's own; the advice changes no byte.
        unsafe { madvise(page.cast(), PAGE as usize, Advice::Random).is_ok() }
    };
    let found = match with_page(advise) {
        Ok(true) => Ok("the kernel takes advice (madvise)".into()),
        Ok(false) => Err("the kernel refuses advice (madvise)".into()),
        Err(error) => Err(error.to_string()),
    };
    Requirement {
        name: "advice",
        purpose: "the kernel is told what to read ahead and what to keep",
        optional: false,
        found,
        remedy: "allow madvise in the seccomp filter".into(),
    }
}

fn tracing() -> Requirement {
    let found = match (can_trace(), yama_scope()) {
        (false, _) => Err("ptrace(2) is refused".to_owned()),
        (true, scope @ 1..) if !may_trace_all() => Err(format!(
            "kernel.yama.ptrace_scope is {scope}: `fastmap run` steers what it starts, and programs that run already can be steered with CAP_SYS_PTRACE only"
        )),
        _ => Ok("programs can be steered from outside".to_owned()),
    };
    Requirement {
        name: "ptrace",
        purpose: "programs are advised from outside, under `fastmap run` and by `fastmap attach`; without it only loads from slow storage are helped",
        optional: true,
        found,
        remedy: "allow ptrace in the seccomp filter, and set kernel.yama.ptrace_scope to 0 (sysctl), or attach as root"
            .into(),
    }
}

/// Whether a child can be held, as the threads of a program are. A child tries it: a filter (seccomp(2)) may answer by a kill.
fn can_trace() -> bool {
    // SAFETY: the children make system call after system call; this process waits for the first, which ends and waits for the other.
    unsafe {
        let tries = libc::fork();
        if tries == 0 {
            let held = libc::fork();
            if held == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::pause();
                libc::_exit(0);
            }
            let is_held = held > 0 && libc::ptrace(libc::PTRACE_SEIZE, held, null_mut::<u8>(), null_mut::<u8>()) == 0;
            if held > 0 {
                libc::kill(held, libc::SIGKILL);
            }
            libc::waitpid(held, null_mut(), libc::__WALL);
            libc::_exit(i32::from(!is_held));
        }
        let mut status = 0;
        tries > 0
            && libc::waitpid(tries, &mut status, libc::__WALL) == tries
            && libc::WIFEXITED(status)
            && libc::WEXITSTATUS(status) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steering_works_where_it_is_tested() {
        for one in of_machine().iter().filter(|one| !one.optional) {
            assert!(one.found.is_ok(), "{one:?}");
        }
    }
}
