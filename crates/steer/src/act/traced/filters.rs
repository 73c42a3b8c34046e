//! System call filters (seccomp(2)): a call that is put in must be one that the thread's filters let pass. Else the kernel kills the
//! program.

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
}

/// What proves that filters let madvise(2) pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proof {
    /// The caller's filters, if the process descends from the caller.
    inherited: Option<Filters>,
    /// Whether the caller may read the filters of other threads.
    may_read: bool,
}

impl Proof {
    /// For a process that `descends` from the caller, or does not. Filters are inherited, and never taken off. So a descendant that has
    /// as many as the caller has the same ones. That lets madvise(2) pass: a container's filters do, and others would have ended the
    /// caller, whose C library calls it.
    pub(super) fn of(descends: bool, own: &Status) -> Proof {
        const ADMINISTERS: u64 = 1 << 21;
        let filters = Filters::of(own);
        // PTRACE_SECCOMP_GET_FILTER asks for both.
        let may_read = filters == Filters::None && own.bits("CapEff:") & ADMINISTERS != 0;
        Proof { inherited: descends.then_some(filters), may_read: may_read && !descends }
    }

    /// Whether it is for a process that descends from the caller.
    pub(super) fn descends(&self) -> bool {
        self.inherited.is_some()
    }

    /// Whether such filters may let the call pass. It is certain unless they [must be read](Proof::must_read).
    pub(super) fn may_pass(&self, filters: Filters) -> bool {
        match filters {
            Filters::None => true,
            Filters::Strict | Filters::Programs(None) => false,
            Filters::Programs(Some(_)) => self.inherited == Some(filters) || self.may_read,
        }
    }

    /// Whether filters that may pass must be read to be sure.
    pub(super) fn must_read(&self, filters: Filters) -> bool {
        filters != Filters::None && self.inherited != Some(filters)
    }
}

/// One instruction of a filter (`struct sock_filter`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Instruction {
    pub(super) code: u16,
    /// How many instructions to skip if a comparison holds, and if it does not.
    pub(super) then: u8,
    pub(super) or: u8,
    pub(super) k: u32,
}

/// What a filter judges: the call (`struct seccomp_data`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    pub(super) number: u32,
    /// The address after the `syscall` instruction.
    pub(super) at: u64,
    pub(super) arguments: [u64; 6],
}

impl Data {
    fn words(&self) -> [u32; 16] {
        /// AUDIT_ARCH_X86_64.
        const MACHINE: u32 = 0xc000_003e;
        let mut words = [0; 16];
        (words[0], words[1]) = (self.number, MACHINE);
        for (index, long) in [self.at].iter().chain(&self.arguments).enumerate() {
            (words[2 + 2 * index], words[3 + 2 * index]) = (*long as u32, (*long >> 32) as u32);
        }
        words
    }
}

/// Whether a filter lets a call pass (SECCOMP_RET_ALLOW, or SECCOMP_RET_LOG, which writes a line as well).
pub(super) fn passes(program: &[Instruction], data: &Data) -> bool {
    const ACTION: u32 = 0xffff_0000;
    const ALLOW: u32 = 0x7fff_0000;
    const LOG: u32 = 0x7ffc_0000;
    run(program, &data.words()).is_some_and(|result| matches!(result & ACTION, ALLOW | LOG))
}

/// What a filter returns. `None` where it has an instruction that seccomp(2) does not take.
fn run(program: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut next = 0;
    // Jumps go forward only.
    loop {
        let Instruction { code, then, or, k } = *program.get(next)?;
        next += 1;
        // BPF_X or BPF_K.
        let other = if code & 0x08 != 0 { x } else { k };
        match code {
            // BPF_LD, BPF_LDX: a word of the data, its length, a constant, a word of memory.
            0x20 => a = *data.get((k / 4) as usize).filter(|_| k % 4 == 0)?,
            0x80 => a = 64,
            0x81 => x = 64,
            0x00 => a = k,
            0x01 => x = k,
            0x60 => a = *memory.get(k as usize)?,
            0x61 => x = *memory.get(k as usize)?,
            // BPF_ST, BPF_STX.
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            // BPF_MISC: TAX, TXA.
            0x07 => x = a,
            0x87 => a = x,
            // BPF_ALU: ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, NEG, XOR.
            0x04 | 0x0c => a = a.wrapping_add(other),
            0x14 | 0x1c => a = a.wrapping_sub(other),
            0x24 | 0x2c => a = a.wrapping_mul(other),
            // A division by nothing ends the program.
            0x34 | 0x3c => match a.checked_div(other) {
                Some(quotient) => a = quotient,
                None => return Some(0),
            },
            0x44 | 0x4c => a |= other,
            0x54 | 0x5c => a &= other,
            0x64 | 0x6c => a = a.wrapping_shl(other),
            0x74 | 0x7c => a = a.wrapping_shr(other),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= other,
            // BPF_JMP: JA, JEQ, JGT, JGE, JSET.
            0x05 => next = next.checked_add(k as usize)?,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match code & 0xf0 {
                    0x10 => a == other,
                    0x20 => a > other,
                    0x30 => a >= other,
                    _ => a & other != 0,
                };
                next += usize::from(if holds { then } else { or });
            }
            // BPF_RET.
            0x06 => return Some(k),
            0x16 => return Some(a),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(filters: &str, capabilities: &str) -> Status {
        Status::made_up(&format!("Seccomp:\t{filters}\nCapEff:\t{capabilities}\n"))
    }

    #[test]
    fn a_descendant_must_have_the_callers_filters_and_a_stranger_none_or_readable_ones() {
        let of = |filters: &str| Filters::of(&status(filters, "0"));
        let (none, one, two) =
            (of("0\nSeccomp_filters:\t0"), of("2\nSeccomp_filters:\t1"), of("2\nSeccomp_filters:\t2"));
        let (ordinary, root) = (status("2\nSeccomp_filters:\t1", "0"), status("0", "1ffffffffff"));
        let child = Proof::of(true, &ordinary);
        assert!(child.may_pass(one) && !child.must_read(one));
        assert!(child.may_pass(none) && !child.may_pass(two));
        let stranger = Proof::of(false, &ordinary);
        assert!(stranger.may_pass(none) && !stranger.may_pass(one) && !stranger.must_read(none));
        let by_root = Proof::of(false, &root);
        assert!(by_root.may_pass(two) && by_root.must_read(two));
        assert!(!Proof::of(true, &root).may_pass(one));
        // One that is filtered itself may not read, whatever its capabilities.
        assert!(!Proof::of(false, &status("2\nSeccomp_filters:\t1", "1ffffffffff")).may_pass(one));
        for proof in [child, stranger, by_root] {
            assert!(!proof.may_pass(of("1")) && !proof.may_pass(of("2")));
        }
    }

    fn all(program: &[(u16, u8, u8, u32)]) -> Vec<Instruction> {
        program.iter().map(|&(code, then, or, k)| Instruction { code, then, or, k }).collect()
    }

    const DATA: Data = Data { number: 28, at: 0x7ffe_0000_1234, arguments: [0x7f00_dead_b000, 4096, 1, 5, 6, 7] };

    #[test]
    fn filters_are_run_as_the_kernel_does() {
        let words = DATA.words();
        let run = |program: &[(u16, u8, u8, u32)]| run(&all(program), &words);
        let give_a = (0x16, 0, 0, 0);
        for (at, value) in
            [(0, 28), (4, 0xc000_003e), (8, 0x1234), (12, 0x7ffe), (16, 0xdead_b000), (20, 0x7f00), (56, 7)]
        {
            assert_eq!(run(&[(0x20, 0, 0, at), give_a]), Some(value));
        }
        // By a constant, and by X.
        let calculations: [(u16, u32, u32, u32); 9] = [
            (0x04, 7, 5, 12),
            (0x14, 7, 9, u32::MAX - 1),
            (0x24, 7, 5, 35),
            (0x34, 7, 2, 3),
            (0x44, 6, 1, 7),
            (0x54, 6, 3, 2),
            (0x64, 1, 4, 16),
            (0x74, 16, 4, 1),
            (0xa4, 6, 3, 5),
        ];
        for (code, a, other, result) in calculations {
            assert_eq!(run(&[(0x00, 0, 0, a), (code, 0, 0, other), give_a]), Some(result), "{code:x}");
            assert_eq!(
                run(&[(0x00, 0, 0, a), (0x01, 0, 0, other), (code | 8, 0, 0, 0), give_a]),
                Some(result),
                "{code:x}"
            );
        }
        assert_eq!(run(&[(0x00, 0, 0, 1), (0x84, 0, 0, 0), give_a]), Some(u32::MAX));
        assert_eq!(run(&[(0x00, 0, 0, 9), (0x3c, 0, 0, 0), give_a]), Some(0));
        assert_eq!(run(&[(0x80, 0, 0, 0), (0x07, 0, 0, 0), (0x00, 0, 0, 0), (0x87, 0, 0, 0), give_a]), Some(64));
        let by_memory = [
            (0x81, 0, 0, 0),
            (0x03, 0, 0, 15),
            (0x60, 0, 0, 15),
            (0x02, 0, 0, 0),
            (0x61, 0, 0, 0),
            (0x87, 0, 0, 0),
            give_a,
        ];
        assert_eq!(run(&by_memory), Some(64));
        for (code, k, holds) in [
            (0x15, 5, true),
            (0x15, 6, false),
            (0x25, 4, true),
            (0x25, 5, false),
            (0x35, 5, true),
            (0x35, 6, false),
            (0x45, 4, true),
            (0x45, 2, false),
        ] {
            let ends = [(0x06, 0, 0, 1), (0x06, 0, 0, 2)];
            let program = [&[(0x00, 0, 0, 5), (code, 0, 1, k)], &ends[..]].concat();
            assert_eq!(run(&program), Some(if holds { 1 } else { 2 }), "{code:x} {k}");
            let program = [&[(0x00, 0, 0, 5), (0x01, 0, 0, k), (code | 8, 0, 1, 0)], &ends[..]].concat();
            assert_eq!(run(&program), Some(if holds { 1 } else { 2 }), "{code:x} {k}");
        }
        assert_eq!(run(&[(0x05, 0, 0, 1), (0x06, 0, 0, 1), (0x06, 0, 0, 2)]), Some(2));
        // Not taken by seccomp(2): a byte, a word beyond the data, memory that is not there, no end, a jump beyond it.
        for bad in [(0x30, 0), (0x20, 64), (0x20, 2), (0x60, 16), (0x04, 1), (0x05, 9)] {
            assert_eq!(run(&[(bad.0, 0, 0, bad.1)]), None, "{bad:?}");
        }
    }

    #[test]
    fn only_a_filter_that_allows_lets_pass() {
        let returns = |value| passes(&all(&[(0x06, 0, 0, value)]), &DATA);
        // SECCOMP_RET_ALLOW, LOG.
        assert!(returns(0x7fff_0000) && returns(0x7ffc_0000) && returns(0x7fff_0001));
        // KILL_PROCESS, KILL_THREAD, TRAP, ERRNO, USER_NOTIF, TRACE.
        for value in [0x8000_0000, 0, 0x0003_0000, 0x0005_0001, 0x7fc0_0000, 0x7ff0_0000] {
            assert!(!returns(value));
        }
        // Kills at madvise(2), at any address, or only with MADV_RANDOM.
        let kills =
            |at, k| all(&[(0x20, 0, 0, at), (0x15, 0, 1, k), (0x06, 0, 0, 0x8000_0000), (0x06, 0, 0, 0x7fff_0000)]);
        assert!(!passes(&kills(0, 28), &DATA) && passes(&kills(0, 169), &DATA) && !passes(&kills(32, 1), &DATA));
    }
}
