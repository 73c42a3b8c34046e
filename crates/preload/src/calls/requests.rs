//! Calls whose arguments depend on a command: fcntl(2), ioctl(2), prctl(2). Also lockf(3), and functions that return a
//! pointer that they were given (getcwd(3), mkdtemp(3)).

use crate::copy::{Call, held, mapped};
use crate::files::{cloning, coherence};
use crate::own::{errno, remembered, set_errno};
use crate::processes::sandbox;
use crate::{config, mappings, next, objects};
use fastmap::by_address::Why;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, off_t, size_t};

/// The number of bytes that fcntl(2)'s argument points to; zero: the argument is no pointer.
fn fcntl_size(command: c_int) -> usize {
    const F_GETOWN_EX: c_int = 16;
    const F_SETOWN_EX: c_int = 15;
    const F_GET_RW_HINT: c_int = 1035;
    const F_SET_FILE_RW_HINT: c_int = 1038;
    match command {
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => size_of::<libc::flock>(),
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => size_of::<libc::flock>(),
        F_GETOWN_EX | F_SETOWN_EX | F_GET_RW_HINT..=F_SET_FILE_RW_HINT => 8,
        _ => 0,
    }
}

/// The byte of a file that the engine locks while it maps the file writable, so that other processes keep off.
const ENGINES_BYTE: i64 = i64::MAX - 1;

/// Called before the program locks `len` bytes of a file from `start` on, or asks who holds such a lock. A length of 0
/// means every byte from `start` on. If the range includes the byte that the engine locks of a writable file, the file
/// goes back to the kernel for good. Unlocking needs no such step, and must not cause it: SQLite unlocks whole files.
fn before_lock(fd: c_int, start: i64, len: i64) {
    let reaches = len == 0 || len > 0 && start.saturating_add(len) > ENGINES_BYTE;
    if reaches && coherence::file(fd).is_some_and(|mapped| mapped.may_be_stored_to()) {
        // The kernel answers if the engine's lock is in the way.
        let _ = mappings::leave_descriptor_to_kernel(fd, Why::Descriptor);
    }
}

/// Called after fcntl(2). `unlocks`: that was to release a lock.
fn after_lock(fd: c_int, command: c_int, unlocks: bool, result: c_int) {
    let locks = matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW);
    if locks && !unlocks && result == 0 {
        coherence::await_keeper(fd);
    }
}

/// lockf(3), which locks from the descriptor's position on.
///
/// # Safety
/// There is no requirement, since the call takes no memory.
pub unsafe fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int {
    if command != libc::F_ULOCK && mapped() {
        // SAFETY: the call takes no memory.
        before_lock(fd, unsafe { next::lseek(fd, 0, libc::SEEK_CUR) }, len);
    }
    // SAFETY: the call takes no memory.
    let result = unsafe { next::lockf(fd, command, len) };
    if result == 0 && matches!(command, libc::F_LOCK | libc::F_TLOCK) {
        coherence::await_keeper(fd);
    }
    result
}
exported! { fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int; }

/// lockf64(3).
///
/// # Safety
/// There is no requirement, since the call takes no memory.
pub unsafe fn lockf64(fd: c_int, command: c_int, len: off_t) -> c_int {
    // SAFETY: the call takes no memory.
    unsafe { lockf(fd, command, len) }
}
exported! { fn lockf64(fd: c_int, command: c_int, len: off_t) -> c_int; }

/// Wrappers of fcntl(2).
macro_rules! fcntls {
    ($($name:ident)*) => { $(
        /// fcntl(2). If the caller gave no `argument`, it is a register with any content.
        ///
        /// # Safety
        /// The caller keeps the contract of fcntl(2).
        pub unsafe fn $name(fd: c_int, command: c_int, argument: c_long) -> c_int {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                let pointer = argument as *mut c_void;
                let size = fcntl_size(command);
                let mut unlocks = false;
                if size == size_of::<libc::flock>() && (mapped() || config().owns_files()) && !pointer.is_null() {
                    let lock = &*pointer.cast::<libc::flock>();
                    unlocks = lock.l_type == libc::F_UNLCK as i16;
                    let start = if lock.l_whence == libc::SEEK_SET as i16 { lock.l_start } else { 0 };
                    if !unlocks {
                        before_lock(fd, start, lock.l_len);
                    }
                }
                if size == 0 || !held(pointer, size) {
                    let result = next::$name(fd, command, argument);
                    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
                        remembered::copied(fd, result);
                    }
                    after_lock(fd, command, unlocks, result);
                    return result;
                }
                let arguments = Call::new();
                let result = next::$name(fd, command, arguments.changed(pointer, size) as c_long);
                arguments.finish(result as isize);
                after_lock(fd, command, unlocks, result);
                result
            }
        }
        exported! { fn $name(fd: c_int, command: c_int, argument: c_long) -> c_int; }
    )* };
}
fcntls!(fcntl fcntl64 __fcntl);

const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIDEDUPERANGE: c_ulong = 0xc018_9436;
/// FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION.
const SETS: [c_ulong; 3] = [0x4008_6602, 0x401c_5820, 0x4008_7602];
const FS_IOC_FIEMAP: c_ulong = 0xc020_660b;

/// The number of bytes that ioctl(2)'s argument points to. Newer requests carry it in their number. The older requests of
/// terminals, sockets and block devices are listed here.
unsafe fn ioctl_size(request: c_ulong, argument: *const u8) -> usize {
    const BLKGETSIZE: c_ulong = 0x1260;
    const BLKSSZGET: c_ulong = 0x1268;
    // SAFETY: the structures of the requests that use this have a count at that place.
    let count = |at: usize, bytes: usize| unsafe {
        argument.add(at).cast::<[u8; 4]>().read()[..bytes]
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | usize::from(byte))
    };
    match request {
        FIDEDUPERANGE => return 24 + 32 * count(16, 2),
        FS_IOC_FIEMAP => return 32 + 56 * count(24, 4),
        libc::TCGETS | libc::TCSETS | libc::TCSETSW | libc::TCSETSF => return 36,
        libc::TIOCGWINSZ | libc::TIOCSWINSZ | BLKGETSIZE => return 8,
        libc::FIONREAD
        | libc::FIONBIO
        | libc::FIOASYNC
        | libc::TIOCOUTQ
        | libc::TIOCGPGRP
        | libc::TIOCSPGRP
        | libc::TIOCGSID => return 4,
        libc::TIOCMGET | libc::TIOCMSET | libc::TIOCMBIS | libc::TIOCMBIC | BLKSSZGET => return 4,
        _ => {}
    }
    match (request >> 8 & 0xff, request >> 16 & 0x3fff) {
        (0x89, 0) => 40,
        (_, size) => size as usize,
    }
}

/// Copies a structure of the program, as the kernel would. `None`: it cannot be read.
fn peek<const BYTES: usize>(at: *const c_void) -> Option<[u8; BYTES]> {
    let mut found = [0u8; BYTES];
    let to = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: BYTES };
    let from = libc::iovec { iov_base: at.cast_mut(), iov_len: BYTES };
    // SAFETY: the kernel writes to an array of this length, and checks the address that it reads.
    let copied = unsafe { next::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    (copied == BYTES as isize).then_some(found)
}

/// The eight bytes at a place, as a number.
fn word(bytes: &[u8], at: usize) -> usize {
    bytes[at..].first_chunk().map_or(0, |eight| usize::from_ne_bytes(*eight))
}

/// Called before memory is handed to a device or a guest. They go on using the memory, without a page fault that the
/// engine could serve. So the files that are mapped there are converted to kernel mappings. If a file cannot be
/// converted, the call's own error shows it.
fn hand_over(addr: usize, len: usize) {
    let addr = addr as *const c_void;
    if len > 0 && held(addr, len) {
        let before = errno();
        let _ = mappings::leave_to_kernel(addr, len, Why::Handed);
        set_errno(before);
    }
}

/// Requests of ioctl(2) whose structure names memory to be handed over. Beside each request stand the offsets of the
/// memory's address and length in the structure, bytes.
const HANDING_OVER: [(c_ulong, usize, usize); 6] = [
    // KVM_SET_USER_MEMORY_REGION and its second form.
    (0x4020_ae46, 24, 16),
    (0x40a0_ae49, 24, 16),
    // KVM_MEMORY_ENCRYPT_REG_REGION.
    (0x8010_aebb, 0, 8),
    // VFIO_IOMMU_MAP_DMA, IOMMU_IOAS_MAP.
    (0x3b71, 8, 24),
    (0x3b85, 16, 24),
    // UFFDIO_REGISTER: another userfaultfd will serve the memory.
    (0xc020_aa00, 0, 8),
];

/// The structure of this request is a count, padding to 8 bytes, and as many regions.
const VHOST_SET_MEM_TABLE: c_ulong = 0x4008_af03;

/// Called before a request of ioctl(2). If it hands memory over, the files that are mapped there are converted.
fn before_request(request: c_ulong, argument: *const c_void) {
    if let Some((_, at, len)) = HANDING_OVER.iter().find(|one| one.0 == request)
        && let Some(bytes) = peek::<32>(argument)
    {
        hand_over(word(&bytes, *at), word(&bytes, *len));
    }
    if request == VHOST_SET_MEM_TABLE
        && let Some(count) = peek::<4>(argument).map(u32::from_ne_bytes)
    {
        const REGION: usize = 32;
        // The kernel takes 64 regions by default, and never more than 4096.
        for index in 0..(count as usize).min(4096) {
            let Some(region) = peek::<REGION>(argument.wrapping_byte_add(8 + index * REGION)) else { break };
            hand_over(word(&region, 16), word(&region, 8));
        }
    }
}

/// Called before io_uring_register(2). If it hands buffers over, the files that are mapped there are converted. `argument`
/// is the list of buffers, or a structure that says where the list is.
pub(super) fn before_buffers(opcode: c_uint, argument: *const c_void, count: c_uint) {
    if !mapped() {
        return;
    }
    let list = match opcode {
        // IORING_REGISTER_BUFFERS.
        0 => Some((argument as usize, count)),
        // IORING_REGISTER_BUFFERS2: the count is at 0, the list's address at 16.
        15 => peek::<32>(argument).map(|bytes| (word(&bytes, 16), word(&bytes, 0) as u32)),
        // IORING_REGISTER_BUFFERS_UPDATE: the list's address is at 8, the count at 24.
        16 => peek::<32>(argument).map(|bytes| (word(&bytes, 8), word(&bytes, 24) as u32)),
        _ => None,
    };
    let Some((list, count)) = list else { return };
    // The kernel takes no more buffers than that.
    for index in 0..(count as usize).min(1 << 14) {
        let Some(entry) = peek::<16>((list as *const c_void).wrapping_byte_add(index * 16)) else { break };
        hand_over(word(&entry, 0), word(&entry, 8));
    }
}

/// Whether a request concerns the blocks of an object's local copy. A hole in the copy is no hole of the object, but a part
/// that nobody has fetched yet.
unsafe fn is_of_blocks(fd: c_int, request: c_ulong, argument: c_long) -> bool {
    let from = match request {
        FICLONE => argument as c_int,
        // SAFETY: the caller's structure begins with the source's descriptor.
        FICLONERANGE if argument != 0 => unsafe { (argument as *const i64).read_unaligned() as c_int },
        FS_IOC_FIEMAP | FIDEDUPERANGE => fd,
        _ => return false,
    };
    objects::of(from).is_some()
}

/// ioctl(2).
///
/// # Safety
/// The caller keeps the contract of ioctl(2).
pub unsafe fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        if objects::any() {
            let request = c_ulong::from(request as u32);
            if SETS.contains(&request) && objects::is_fixed(fd) {
                return -1;
            }
            if is_of_blocks(fd, request, argument) {
                set_errno(libc::EOPNOTSUPP);
                return -1;
            }
        }
        if !mapped() {
            return next::ioctl(fd, request, argument);
        }
        // Programs pass an int or an unsigned long, and the kernel uses 32 bits of it.
        let request = request & 0xffff_ffff;
        let pointer = argument as *mut c_void;
        if request == FICLONE {
            return cloning(argument as c_int, fd, None, || next::ioctl(fd, request, argument));
        }
        let arguments = Call::new();
        let size = if held(pointer, 1) || matches!(request, FICLONERANGE | FIDEDUPERANGE) {
            ioctl_size(request, pointer.cast())
        } else {
            0
        };
        let copy = if size > 0 { arguments.changed(pointer, size) } else { pointer };
        before_request(request, copy);
        let call = || next::ioctl(fd, request, copy as c_long);
        let result = match request {
            FICLONERANGE => {
                let range = copy.cast::<[i64; 4]>().read_unaligned();
                cloning(range[0] as c_int, fd, Some([range[1], range[2], range[3]]), call)
            }
            FIDEDUPERANGE => {
                // Deduplication changes no byte, but compares the files. So stores are written to them first.
                coherence::reading(fd, coherence::Span::from(0));
                let count = usize::from(copy.cast::<u8>().add(16).cast::<u16>().read_unaligned());
                for index in 0..count {
                    let other = copy.cast::<u8>().add(24 + 32 * index).cast::<i64>().read_unaligned();
                    coherence::reading(other as c_int, coherence::Span::from(0));
                }
                call()
            }
            _ => call(),
        };
        arguments.finish(result as isize);
        result
    }
}

/// prctl(2). The options that set or get a name, or return a number through a pointer, get copies.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: c_long, b: c_long, c: c_long, d: c_long) -> c_int {
    sandbox::before_prctl([option.into(), a, b, c, d]);
    let size = match option {
        libc::PR_GET_NAME => 16,
        libc::PR_GET_PDEATHSIG | libc::PR_GET_CHILD_SUBREAPER | libc::PR_GET_TSC | libc::PR_GET_UNALIGN => 4,
        _ => 0,
    };
    let arguments = Call::new();
    // SAFETY: the caller's contract, which is the C library's.
    unsafe {
        let pointer = a as *mut c_void;
        let copy = match option {
            libc::PR_SET_NAME => arguments.text(pointer, 16),
            _ if size > 0 => arguments.changed(pointer, size),
            _ => pointer,
        };
        let result = next::prctl(option, copy as c_long, b, c, d);
        arguments.finish(result as isize);
        result
    }
}

exported! { fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int; }

/// Wrappers of functions that fill a buffer and return it. A line is `NAME(buffer, length of the buffer, more arguments…)`.
macro_rules! returns {
    ($($name:ident($buf:ident, $len:expr $(, $more:ident: $type:ty)*);)*) => { $(
        // SAFETY: the C library's name and signature.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($buf: *mut c_char $(, $more: $type)*) -> *mut c_char {
            // SAFETY: the caller's contract, which is the C library's.
            unsafe {
                if !mapped() || $buf.is_null() || !held($buf, $len) {
                    return next::$name($buf $(, $more)*);
                }
                let arguments = Call::new();
                let copy = arguments.changed($buf, $len);
                let result = next::$name(copy $(, $more)*);
                arguments.finish(if result.is_null() { -1 } else { 0 });
                if result == copy { $buf } else { result }
            }
        }
    )* };
}

returns! {
    getcwd(buf, len, len: size_t);
    __getcwd_chk(buf, len, len: size_t, size: size_t);
    mkdtemp(template, libc::strlen(template) + 1);
}
