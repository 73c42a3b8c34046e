//! What a profiler's sample was taken in: the table that turns functions into parts of a page fault.
//!
//! A sample is the functions that were active, innermost first. The first one that the table has decides: a page allocated while
//! memory is reclaimed is reclaim's, the reclaim that a page's charge sets off is not the charge's, and what an interrupt does is
//! not done by whom it interrupts. What the table does not have is called other, and shown.

use serde::{Deserialize, Serialize};

use super::{Frame, Sample};

/// Where time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The program: the loop that faults, checks what it reads and takes the time.
    Program,
    /// Page faults, signals and system calls: their entry, dispatch and return.
    Trap,
    /// The page that Linux allocates and clears for a store to anonymous memory before it finds that userfaultfd is to be told, and
    /// frees again (do_anonymous_page); loads are spared that.
    Wasted,
    /// Which pages are there: the kernel's page cache, FastMap's own code in user space.
    Bookkeeping,
    /// A frame, its contents copied where they are copied, its page table entry; a page made writable.
    Install,
    /// Reads: submitting them, and taking what came.
    Read,
    /// Pages dropped: reclaim, unmapping, the TLB flush.
    Evict,
    /// Dirty pages written by the thread that faults: write-protection, submission.
    WriteBack,
    /// Locks that are contended.
    Locks,
    /// Switching between threads, waking them up.
    Scheduling,
    /// Interrupts of devices and timers, and what follows from them at once.
    Interrupts,
    /// Other threads that work for the faulting ones: FastMap's writers, readers and keeper, io_uring's workers, the kernel's own
    /// for write-back, block devices, reclaim and journal. The paper's kworker.
    Workers,
    /// In the program's faulting threads, and not in the table.
    Other,
    /// Processors with nothing to do while a read or write was awaited there.
    IoWait,
    /// Processors with nothing else to do.
    Idle,
    /// Other programs, the profiler among them.
    Elsewhere,
}

impl Part {
    /// Whether it is what page faults cost the faulting threads in processor time: the paper's pgfault, which has kworker apart.
    pub fn is_fault(self) -> bool {
        !matches!(self, Part::Program | Part::Workers | Part::IoWait | Part::Idle | Part::Elsewhere)
    }
}

/// The kernel's functions, by how their names begin. The first line of the table that fits a function decides, so an exception
/// stands before its rule.
const KERNEL: &[(Part, &[&str])] = &[
    (
        Part::Locks,
        &[
            "native_queued_spin_lock_slowpath",
            "__pv_queued_spin_lock_slowpath",
            "queued_read_lock_slowpath",
            "queued_write_lock_slowpath",
            "pv_wait",
            "osq_lock",
            "rwsem_down_",
            "rwsem_spin_on_owner",
            "rwsem_optimistic_spin",
            "mutex_spin_on_owner",
            "__mutex_lock",
            "futex_",
            "do_futex",
            "__x64_sys_futex",
        ],
    ),
    (
        Part::Interrupts,
        &["asm_common_interrupt", "common_interrupt", "asm_sysvec_", "sysvec_", "handle_softirqs", "__do_softirq"],
    ),
    (
        Part::Scheduling,
        &["__schedule", "schedule", "io_schedule", "finish_task_switch", "try_to_wake_up", "wake_up_", "__wake_up"],
    ),
    (
        Part::WriteBack,
        &[
            "do_writepages",
            "ext4_writepages",
            "iomap_writepages",
            "wb_workfn",
            "wb_writeback",
            "pageout",
            "folio_mkclean",
            "folio_clear_dirty_for_io",
            "folio_end_writeback",
            "ext4_end_io",
            "ext4_finish_bio",
            "iomap_finish_ioend",
            "balance_dirty_pages",
            "do_fsync",
            "ext4_sync_file",
            "xfs_file_fsync",
            "__x64_sys_msync",
            "__x64_sys_pwrite",
            "ksys_pwrite",
            "vfs_write",
            "io_write",
            "mwriteprotect_range",
            "uffd_wp_range",
            "userfaultfd_writeprotect",
        ],
    ),
    (
        Part::Evict,
        &[
            "shrink_",
            "do_try_to_free_pages",
            "try_to_free_",
            "try_to_unmap",
            "balance_pgdat",
            "kswapd",
            "__do_sys_process_madvise",
            "__x64_sys_process_madvise",
            "__x64_sys_madvise",
            "vector_madvise",
            "do_madvise",
            "madvise_",
            "zap_page_range",
            "zap_vma",
        ],
    ),
    (
        Part::Read,
        &[
            "filemap_read_folio",
            "ext4_mpage_readpages",
            "ext4_readahead",
            "mpage_readahead",
            "iomap_readahead",
            "iomap_read_folio",
            "page_cache_ra_",
            "page_cache_async_ra",
            "page_cache_sync_ra",
            "read_pages",
            "__x64_sys_pread",
            "vfs_read",
            "ksys_pread",
            "io_read",
            "iomap_dio_",
            "folio_wait_bit",
            "__folio_lock",
            "folio_end_read",
        ],
    ),
    (
        Part::Install,
        &[
            "mfill_atomic",
            "move_pages",
            "userfaultfd_",
            "__x64_sys_ioctl",
            "set_pte_range",
            "finish_fault",
            "filemap_map_pages",
            "next_uptodate_folio",
            "do_page_mkwrite",
            "ext4_page_mkwrite",
            "fault_dirty_shared_page",
            "do_wp_page",
            "wp_page_",
            "do_shared_fault",
        ],
    ),
    (
        Part::Bookkeeping,
        &["__filemap_get_folio", "filemap_add_folio", "__filemap_add_folio", "filemap_get_entry", "filemap_fault"],
    ),
    (Part::Wasted, &["do_anonymous_page"]),
    (
        Part::Trap,
        &[
            "asm_exc_page_fault",
            "exc_page_fault",
            "do_user_addr_fault",
            "handle_mm_fault",
            "__handle_mm_fault",
            "lock_vma_under_rcu",
            "handle_userfault",
            "force_sig",
            "arch_do_signal",
            "get_signal",
            "x64_setup_rt_frame",
            "restore_sigcontext",
            "__do_sys_rt_sigreturn",
            "__x64_sys_rt_sigreturn",
            "irqentry_exit",
            "syscall_exit_to_user_mode",
            "do_syscall_64",
            "entry_SYSCALL",
            "syscall_return_via_sysret",
        ],
    ),
];

/// What only threads that serve block devices, write-back or the journal have on their stacks, by how the names begin.
const SERVING: &[&str] = &[
    "blk_mq_",
    "wb_workfn",
    "ext4_end_io",
    "xfs_end_io",
    "iomap_",
    "end_bio",
    "dio_",
    "loop_",
    "nvme_",
    "virtblk_",
    "kjournald2",
    "jbd2_",
    "io_wq_",
    "io_worker",
    "kswapd",
    "balance_pgdat",
];

/// Names that kernel threads begin with which may serve page faults.
const KERNEL_THREADS: &[&str] = &["kworker", "kswapd", "jbd2", "ksoftirqd", "dio", "loop"];

/// What a sample belongs to; `pid` is the process whose faults are looked at, `load` are its threads that fault. (Names are not to
/// be relied on there: a busy machine loses the events that tell them.)
pub fn part(sample: &Sample, pid: u32, load: &[u32]) -> Part {
    let name = sample.thread.as_str();
    if sample.tid == 0 {
        return match of_kernel(&sample.frames) {
            Some(Part::Interrupts) => Part::Interrupts,
            _ => Part::Idle,
        };
    }
    if load.contains(&sample.tid) {
        return of_load(&sample.frames);
    }
    if sample.pid == pid || name.starts_with("fastmap-") {
        return Part::Workers;
    }
    let begins = |all: &[&str], name: &str| all.iter().any(|begin| name.starts_with(begin));
    match begins(KERNEL_THREADS, name) && sample.frames.iter().any(|frame| begins(SERVING, &frame.symbol)) {
        true => Part::Workers,
        false => Part::Elsewhere,
    }
}

/// What a thread that faults was doing.
fn of_load(frames: &[Frame]) -> Part {
    match frames.first() {
        Some(frame) if frame.kernel => of_kernel(frames).unwrap_or(Part::Other),
        Some(frame) => of_program(frame),
        None => Part::Other,
    }
}

/// The first function from inside that the table has; user space, where a system call came from, has no say.
fn of_kernel(frames: &[Frame]) -> Option<Part> {
    let kernel = frames.iter().take_while(|frame| frame.kernel);
    kernel.filter_map(|frame| of_function(&frame.symbol)).next()
}

fn of_function(symbol: &str) -> Option<Part> {
    let line = KERNEL.iter().find(|(_, begins)| begins.iter().any(|begin| symbol.starts_with(begin)));
    line.map(|(part, _)| *part)
}

/// A function in user space: of the load, or of FastMap, which is all else that runs in these threads.
fn of_program(frame: &Frame) -> Part {
    let symbol = frame.symbol.as_str();
    let has = |parts: &[&str]| parts.iter().any(|part| symbol.contains(part));
    if has(&["fastmap_bench", "hdrhistogram", "clock_gettime", "std::time", "rand_pcg"]) || frame.module == "[vdso]" {
        Part::Program
    } else if has(&[
        "fastmap::",
        "7fastmap",
        "ioctl",
        "syscall",
        "pread",
        "process_madvise",
        "restore_rt",
        "io_uring",
        "sched_getcpu",
        "slice::sort",
    ]) {
        Part::Bookkeeping
    } else {
        Part::Other
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    /// What `perf script` says of one sample, its kernel functions given from inside out.
    fn script(thread: &str, pid: u32, kernel: &str) -> String {
        let frames: String = kernel
            .split_whitespace()
            .map(|symbol| format!("\tffffffff815fc7e2 {symbol} ([kernel.kallsyms])\n"))
            .collect();
        format!("{thread}  {pid}/{}  12.000000001: \n{frames}\t  1e025a a::b (/usr/bin/fastmap)\n\n", pid + 1)
    }

    fn part_of(thread: &str, kernel: &str) -> Part {
        let samples: Vec<Sample> = samples(&script(thread, 100, kernel)).collect();
        part(&samples[0], 100, &[101])
    }

    #[test]
    fn the_innermost_function_of_the_table_decides() {
        let fault =
            "filemap_fault __do_fault do_fault __handle_mm_fault handle_mm_fault exc_page_fault asm_exc_page_fault";
        let cases = [
            (Part::Bookkeeping, format!("xas_load __filemap_get_folio {fault}")),
            (
                Part::Evict,
                format!(
                    "page_vma_mapped_walk try_to_unmap_one shrink_folio_list try_charge_memcg filemap_add_folio {fault}"
                ),
            ),
            (
                Part::WriteBack,
                format!("ext4_bio_write_folio do_writepages pageout shrink_folio_list filemap_add_folio {fault}"),
            ),
            (
                Part::Read,
                format!("iowrite16 vp_notify submit_bio_noacct ext4_mpage_readpages filemap_read_folio {fault}"),
            ),
            (
                Part::Scheduling,
                format!("finish_task_switch.isra.0 __schedule io_schedule folio_wait_bit_common {fault}"),
            ),
            (Part::Locks, format!("native_queued_spin_lock_slowpath _raw_spin_lock __filemap_add_folio {fault}")),
            (
                Part::Interrupts,
                format!("virtblk_done vring_interrupt common_interrupt asm_common_interrupt xas_load {fault}"),
            ),
            (Part::Trap, "up_read exc_page_fault asm_exc_page_fault".to_owned()),
            (
                Part::Trap,
                "copy_fpstate_to_sigframe x64_setup_rt_frame arch_do_signal_or_restart irqentry_exit_to_user_mode"
                    .to_owned(),
            ),
            (
                Part::Install,
                "_copy_from_user mfill_atomic_copy userfaultfd_ioctl __x64_sys_ioctl do_syscall_64".to_owned(),
            ),
            (
                Part::Read,
                "gup_fast iomap_dio_bio_iter iomap_dio_rw vfs_read __x64_sys_pread64 do_syscall_64".to_owned(),
            ),
            (
                Part::Evict,
                "unmap_page_range zap_page_range_single vector_madvise __do_sys_process_madvise do_syscall_64"
                    .to_owned(),
            ),
            (
                Part::Wasted,
                "clear_page_erms alloc_pages_mpol do_anonymous_page __handle_mm_fault exc_page_fault asm_exc_page_fault".to_owned(),
            ),
            (Part::Other, "a_function_nobody_knows".to_owned()),
        ];
        for (expected, stack) in cases {
            assert_eq!(part_of("load", &stack), expected, "{stack}");
        }
    }

    #[test]
    fn user_space_is_the_program_s_or_the_engine_s() {
        let user = |symbol: &str, module: &str| {
            let text = format!("load  100/101  12.000000001: \n\t  1e025a {symbol} ({module})\n\n");
            part(&samples(&text).next().unwrap(), 100, &[101])
        };
        let exe = "/usr/bin/fastmap";
        assert_eq!(user("fastmap_bench::substrates::faults::measure::Measure::drive", exe), Part::Program);
        assert_eq!(user("<fastmap_bench::substrates::engine::Mapped as a::Access>::write", exe), Part::Program);
        assert_eq!(user("__vdso_clock_gettime", "[vdso]"), Part::Program);
        assert_eq!(user("fastmap::fault::serve_access", exe), Part::Bookkeeping);
        assert_eq!(user("_RNvNtCs1_7fastmap5fault5serve", exe), Part::Bookkeeping);
        assert_eq!(user("__GI___ioctl", "/lib/libc.so.6"), Part::Bookkeeping);
        assert_eq!(user("[unknown]", "[unknown]"), Part::Other);
        let nothing = Sample { thread: "load".into(), pid: 100, tid: 101, at_ns: 0, frames: Vec::new() };
        assert_eq!(part(&nothing, 100, &[101]), Part::Other);
    }

    #[test]
    fn whose_thread_it_is_comes_first() {
        let of =
            |thread: &str, pid, kernel: &str| part(&samples(&script(thread, pid, kernel)).next().unwrap(), 100, &[101]);
        let mut writer = samples(&script("fastmap-write0", 100, "ext4_writepages do_writepages")).next().unwrap();
        writer.tid = 102;
        assert_eq!(part(&writer, 100, &[101]), Part::Workers);
        assert_eq!(of("load", 200, "do_writepages"), Part::Elsewhere, "another bench");
        assert_eq!(of("fastmap-keeper", 200, "do_writepages"), Part::Workers);
        assert_eq!(of("kworker/u8:9-ev", 9, "ext4_writepages do_writepages wb_workfn worker_thread"), Part::Workers);
        assert_eq!(
            of("kworker/1:1-cgr", 9, "virtio_transport_tx_work process_one_work worker_thread"),
            Part::Elsewhere
        );
        assert_eq!(of("kswapd0", 9, "shrink_lruvec balance_pgdat kswapd"), Part::Workers);
        assert_eq!(of("rustc", 300, "asm_exc_page_fault"), Part::Elsewhere);
        let idle = |kernel: &str| {
            let mut sample = samples(&script("swapper", 0, kernel)).next().unwrap();
            sample.tid = 0;
            part(&sample, 100, &[101])
        };
        assert_eq!(idle("pv_native_safe_halt default_idle do_idle"), Part::Idle);
        assert_eq!(
            idle("virtblk_done handle_irq_event common_interrupt asm_common_interrupt default_idle"),
            Part::Interrupts
        );
    }

    #[test]
    fn no_line_of_the_table_hides_another() {
        for (at, (part, begins)) in KERNEL.iter().enumerate() {
            for begin in *begins {
                let found = of_function(begin);
                assert_eq!(found, Some(*part), "{begin}, line {at}");
            }
        }
        assert!(!Part::Workers.is_fault() && Part::Trap.is_fault());
    }
}
