//! System call filters (seccomp(2)): a call that is put in must be one that the program's filters let pass.

use super::status::Status;

/// How a thread's system calls are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filters {
    /// Not at all.
    None,
    /// read(2), write(2) and exit(2) alone.
    Strict,
    /// By so many programs. `None` where the kernel does not tell (before 5.9).
    Programs(Option<u64>),
}

impl Filters {
    /// The filters that a status file tells of.
    pub(super) fn of(status: &Status) -> Filters {
        match status.number("Seccomp:") {
            Some(0) | None => Filters::None,
            Some(1) => Filters::Strict,
            Some(_) => Filters::Programs(status.number("Seccomp_filters:")),
        }
    }

    /// Whether madvise(2) passes. Filters are inherited and never taken off. So a process that has as many as the caller, or as the
    /// first process of its container, has the same ones. A container's own filters let madvise(2) pass.
    pub(super) fn let_pass(self, known: &[Filters]) -> bool {
        match self {
            Filters::None => true,
            Filters::Strict | Filters::Programs(None) => false,
            Filters::Programs(Some(_)) => known.contains(&self),
        }
    }

    /// Filters that let madvise(2) pass: those of the caller, if it is in the PID namespace of `pid`, and those of the first process of
    /// that namespace among the ancestors of `pid`.
    pub(super) fn known(pid: u32) -> Vec<Filters> {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let is_near = namespace("self").is_some_and(|own| namespace(&pid.to_string()) == Some(own));
        let own = Status::own().filter(|_| is_near);
        // A process that is the first itself has only its container's filters if it has exactly one.
        let above = Status::of(pid).and_then(|status| u32::try_from(status.number("PPid:")?).ok());
        let one = Filters::Programs(Some(1));
        let first = above.filter(|above| *above != 0 && !is_first(pid)).and_then(first);
        let found = [own, first];
        let found = found.iter().flatten().map(Filters::of);
        found.chain(is_first(pid).then_some(one)).collect()
    }
}

fn is_first(pid: u32) -> bool {
    Status::of(pid).is_some_and(|status| status.numbers("NSpid:").last() == Some(&1))
}

/// The process that is number 1 in its own PID namespace and an ancestor of `pid`.
fn first(mut pid: u32) -> Option<Status> {
    // Parents may change while they are walked.
    for _ in 0..1000 {
        let status = Status::of(pid)?;
        if status.numbers("NSpid:").last() == Some(&1) {
            return Some(status);
        }
        pid = u32::try_from(status.number("PPid:")?).ok().filter(|parent| *parent != 0)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_filters_as_a_known_process_pass_and_others_do_not() {
        let of = |text: &str| Filters::of(&Status::made_up(text));
        let two = of("Seccomp:\t2\nSeccomp_filters:\t2\n");
        assert!(of("Seccomp:\t0\nSeccomp_filters:\t0\n").let_pass(&[]));
        assert!(two.let_pass(&[Filters::None, two]));
        assert!(!two.let_pass(&[Filters::None, of("Seccomp:\t2\nSeccomp_filters:\t1\n")]));
        assert!(!of("Seccomp:\t1\n").let_pass(&[Filters::Strict]));
        assert!(!of("Seccomp:\t2\n").let_pass(&[Filters::Programs(None)]));
    }

    #[test]
    fn this_process_has_the_filters_of_a_known_one() {
        assert!(!Filters::known(std::process::id()).is_empty());
    }
}
