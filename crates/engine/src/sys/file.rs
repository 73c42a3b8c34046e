//! Files and block devices: openat(2) through /proc/thread-self/fd, statx(2), pread(2), pwrite(2).

use super::engine_fd::{self, EngineFd};
use super::signal::Blocked;
use super::{PAGE, errno, memory, record_locks};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a file: its device and inode. Every descriptor of one file has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// Facts about a file that may be mapped (fstat(2)).
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The same for every descriptor of one file.
    pub identity: Identity,
    /// Length in bytes.
    pub size: u64,
    /// A block device, not a regular file.
    pub is_device: bool,
}

/// Looks at a file. `Err(Ok(kind))` names the kind of a file that cannot be mapped. `Err(Err(error))`: a call failed.
pub fn facts(file: &File) -> Result<Facts, Result<&'static str, io::Error>> {
    let metadata = file.metadata().map_err(Err)?;
    let kind = metadata.file_type();
    if let Some(identity) = identity(&metadata) {
        let is_device = kind.is_block_device();
        let size = if is_device { device_size(file).map_err(Err)? } else { metadata.len() };
        return Ok(Facts { identity, size, is_device });
    }
    Err(Ok(match () {
        () if kind.is_dir() => "directory",
        () if kind.is_char_device() => "character device",
        () if kind.is_fifo() => "pipe",
        () if kind.is_socket() => "socket",
        () => "special file",
    }))
}

impl Identity {
    /// An identity that no file has, and no earlier call returned.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Identity { device: Self::NO_DEVICE, inode: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether this is an identity made by [`Identity::unique`].
    pub fn is_unique(&self) -> bool {
        self.device == Self::NO_DEVICE
    }

    const NO_DEVICE: u64 = u64::MAX - 1;

    /// The identity in the result of a stat(2). `None` if the file is of a kind that cannot be mapped. Callable from fault and signal handlers.
    pub fn of(stat: &libc::stat) -> Option<Self> {
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => Some(Identity { device: stat.st_dev, inode: stat.st_ino }),
            // Two nodes of one device are one file, which the device's number identifies. `u64::MAX` keeps it apart from inode numbers.
            libc::S_IFBLK => Some(Identity { device: u64::MAX, inode: stat.st_rdev }),
            _ => None,
        }
    }

    /// That of the file behind a descriptor, by a bare fstat(2): C libraries before 2.33 have no function of this name. `None`: the descriptor is
    /// not open, or its file is of no kind that is mapped. Async-signal-safe.
    pub fn of_descriptor(fd: RawFd) -> Option<Self> {
        // SAFETY: the kernel fills the zeroed structure.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            (libc::syscall(libc::SYS_fstat, fd, &mut stat) == 0).then_some(stat)?
        };
        Self::of(&stat)
    }

    /// Turns it into two numbers.
    pub fn numbers(self) -> [u64; 2] {
        [self.device, self.inode]
    }

    /// Turns the two numbers of `numbers` back into an identity.
    pub fn from_numbers([device, inode]: [u64; 2]) -> Self {
        Identity { device, inode }
    }
}

/// The time at which a file was made: seconds and nanoseconds (statx(2), Linux 4.11). Zero if the file system does not know. It tells a file
/// from a later one with the same inode number.
pub type Birth = (i64, u32);

/// The time at which the file behind a descriptor was made.
pub fn birth(file: &File) -> Birth {
    // SAFETY: with an empty path, the call asks about the descriptor. It fills the zeroed structure.
    unsafe {
        let mut facts: libc::statx = std::mem::zeroed();
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_BTIME, &mut facts);
        (facts.stx_btime.tv_sec, facts.stx_btime.tv_nsec)
    }
}

/// The identity of the file that a path leads to. Does not open the file. `None` if the call fails, or if the file cannot be mapped.
pub fn identity_of(path: &Path) -> Option<Identity> {
    identity(&std::fs::metadata(path).ok()?)
}

fn identity(metadata: &std::fs::Metadata) -> Option<Identity> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Some(Identity { device: metadata.dev(), inode: metadata.ino() });
    }
    // As in `Identity::of`.
    kind.is_block_device().then(|| Identity { device: u64::MAX, inode: metadata.rdev() })
}

fn device_size(file: &File) -> io::Result<u64> {
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut size = 0u64;
    // SAFETY: this request writes one u64.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &mut size) } {
        0 => Ok(size),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The current size in bytes, or an error number. EBADF: the descriptor does not lead to the file `opened_for`, which happens in a thread with
/// a descriptor table of its own. Callable from a fault handler.
pub fn size_now(file: &File, opened_for: Option<Identity>, is_device: bool) -> Result<u64, i32> {
    if is_device && opened_for.is_none() {
        return device_size(file).map_err(|_| errno());
    }
    // SAFETY: a zeroed stat is a valid one, and fstat fills it.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        // glibc's wrapper would call newfstatat(2), which the keeper may not (`confine.rs`).
        if libc::syscall(libc::SYS_fstat, file.as_raw_fd(), &mut stat) != 0 {
            return Err(errno());
        }
        stat
    };
    match opened_for {
        Some(wanted) if Identity::of(&stat) != Some(wanted) => Err(libc::EBADF),
        _ if is_device => device_size(file).map_err(|_| errno()),
        _ => Ok(stat.st_size as u64),
    }
}

/// The access mode of an open descriptor: `O_RDONLY`, `O_WRONLY` or `O_RDWR`. One that only names a file (`O_PATH`) may not read, either:
/// `O_WRONLY`.
pub fn access_mode(file: &File) -> i32 {
    // SAFETY: the call reads flags.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags & libc::O_PATH != 0 { libc::O_WRONLY } else { flags & libc::O_ACCMODE }
}

/// The name that /proc gives a descriptor, for messages. The look-up uses this thread's folder, since the process's first thread may have
/// another descriptor table, or may have ended.
pub fn path_of(file: &File) -> PathBuf {
    let link = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    std::fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(link))
}

/// Opens the file behind a descriptor again. The new descriptor has flags and a position of its own. A duplicate (dup(2)) would share
/// the program's. May return a descriptor that was put aside earlier (`record_locks.rs`).
pub fn reopen(file: &File, writable: bool, direct: bool) -> io::Result<EngineFd<File>> {
    if let Some(aside) = record_locks::take(file.as_raw_fd(), writable, direct) {
        return Ok(aside);
    }
    let _low = engine_fd::low();
    let flags = libc::O_CLOEXEC | if direct { libc::O_DIRECT } else { 0 };
    let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
    let mut options = OpenOptions::new();
    options.read(true).write(writable);
    // O_NOATIME saves an update of the inode on each read. Only the file's owner may ask for it, so the second try is without.
    let opened = options.custom_flags(flags | libc::O_NOATIME).open(&path);
    opened.or_else(|_| options.custom_flags(flags).open(&path)).map(EngineFd::opened)
}

/// Another descriptor of the same file, for uses that need neither a position nor flags. It is opened anew if possible, since a descriptor
/// opened anew can be used again if it has to be put aside (`record_locks.rs`). Otherwise it is a duplicate.
pub fn another(file: &File) -> io::Result<EngineFd<File>> {
    reopen(file, access_mode(file) == libc::O_RDWR, false).or_else(|_| file.try_clone().map(EngineFd::new))
}

/// Whether direct reads of 4 KiB at multiples of 4 KiB are possible. Asks statx(2) for `STATX_DIOALIGN` (Linux 6.1), or else tries one read.
pub fn direct_works(direct: &File) -> bool {
    const STATX_DIOALIGN: u32 = 0x2000;
    // SAFETY: with an empty path and AT_EMPTY_PATH, the call asks about the descriptor. It fills the zeroed structure.
    let answer = unsafe {
        let mut facts: libc::statx = std::mem::zeroed();
        let asked = libc::statx(direct.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, &mut facts);
        (asked == 0 && facts.stx_mask & STATX_DIOALIGN != 0).then_some(facts)
    };
    if let Some(facts) = answer {
        let fits = |align: u32| align != 0 && align as usize <= super::PAGE;
        return fits(facts.stx_dio_mem_align) && fits(facts.stx_dio_offset_align);
    }
    #[repr(align(4096))]
    struct Aligned([u8; super::PAGE]);
    let mut page = Box::new(Aligned([0; super::PAGE]));
    // SAFETY: the buffer is this function's, and one page long.
    unsafe { read_at(direct, page.0.as_mut_ptr(), super::PAGE, 0) }.is_ok()
}

/// Waits until calls that are changing a file have ended (write(2), ftruncate(2)). These calls hold the lock of the file's inode. To wait for
/// that lock, this function removes an extended attribute that does not exist, which takes the lock too and changes nothing.
pub fn await_changes(file: &File) {
    // SAFETY: the call reads a descriptor and a C string.
    unsafe { libc::fremovexattr(file.as_raw_fd(), c"user.fastmap.never.set".as_ptr()) };
}

/// lseek(2). Returns the new position, or an error number. Callable from a fault handler.
pub fn seek(file: &File, whence: i32, offset: u64) -> Result<u64, i32> {
    // SAFETY: the call only moves the position of a descriptor of the engine's. Nobody reads from that position.
    let found = unsafe { libc::syscall(libc::SYS_lseek, file.as_raw_fd(), offset, whence) };
    if found < 0 { Err(errno()) } else { Ok(found as u64) }
}

/// One pread(2) or pwrite(2). glibc's wrappers are not used, since they are cancellation points (pthreads(7)): a thread cancelled in a fault
/// would leave its page claimed for ever.
///
/// # Safety
/// `buffer` is valid for `len` bytes: for writes if the call is a pread(2), for reads if it is a pwrite(2).
#[inline]
unsafe fn transfer(call: libc::c_long, file: &File, buffer: *mut u8, len: usize, offset: u64) -> isize {
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(call, file.as_raw_fd(), buffer, len, offset as i64) as isize }
}

/// Reads until it has `len` bytes or reaches the end of the file (pread(2)). Returns the count of bytes, or an error number. Callable from a
/// fault handler.
///
/// # Safety
/// `to` is valid for `len` writes.
#[inline]
pub unsafe fn read_at(file: &File, to: *mut u8, len: usize, offset: u64) -> Result<usize, i32> {
    let mut done = 0;
    while done < len {
        // SAFETY: the part is inside the caller's buffer.
        let got = unsafe { transfer(libc::SYS_pread64, file, to.add(done), len - done, offset + done as u64) };
        match got {
            0 => break,
            1.. => done += got as usize,
            _ if errno() == libc::EINTR => {}
            // A direct read that ended inside a sector has reached the file's end, and cannot go on from an offset that is not aligned.
            _ if errno() == libc::EINVAL && done > 0 => break,
            _ => return Err(errno()),
        }
    }
    Ok(done)
}

/// Writes all `len` bytes (pwrite(2)), or returns an error number.
///
/// # Safety
/// `from` is valid for `len` reads by the kernel.
pub unsafe fn write_at(file: &File, from: *const u8, len: usize, offset: u64) -> Result<(), i32> {
    let mut done = 0;
    while done < len {
        // SAFETY: the part is inside the caller's buffer.
        let put =
            unsafe { transfer(libc::SYS_pwrite64, file, from.add(done).cast_mut(), len - done, offset + done as u64) };
        match put {
            1.. => done += put as usize,
            0 => return Err(libc::EIO),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
    Ok(())
}

/// This process's present limit on the offset of writes to files (`RLIMIT_FSIZE`), in bytes. The kernel refuses a write(2) beyond it, even
/// inside the file's length, and sends SIGXFSZ. The limit does not apply to a store by mmap(2) inside a file's length.
pub fn write_limit() -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    // SAFETY: the call fills this function's structure.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, std::ptr::null::<u8>(), &mut limit) };
    limit.rlim_cur
}

/// Raises this process's [`write_limit`] as far as the kernel allows. For the keeper, whose limits do not affect the program.
pub fn lift_write_limit() {
    const NONE: libc::rlimit64 = libc::rlimit64 { rlim_cur: libc::RLIM64_INFINITY, rlim_max: libc::RLIM64_INFINITY };
    let own = std::ptr::null_mut::<libc::rlimit64>();
    let mut limit = NONE;
    // SAFETY: the calls read and fill this function's structures.
    unsafe {
        if libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, &NONE, own) != 0
            && libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, own, &mut limit) == 0
        {
            limit.rlim_cur = limit.rlim_max;
            libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, &limit, own);
        }
    }
}

/// Writes `len` bytes inside a file's length into the page cache, through a mapping. So it can write past [`write_limit`]. Returns an error
/// number.
///
/// # Safety
/// `from` is valid for `len` reads by the kernel.
pub unsafe fn write_by_mapping(file: &File, from: *const u8, len: usize, offset: u64) -> Result<(), i32> {
    let skipped = offset as usize % PAGE;
    let (fd, start) = (file.as_raw_fd(), offset as usize - skipped);
    // SAFETY: the mapping is this function's. The kernel copies to it, so that a file that is truncated meanwhile causes an error and no
    // signal. The calls are raw, since the preload library may wrap the C library's for the program.
    unsafe {
        let (prot, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = libc::syscall(libc::SYS_mmap, 0usize, skipped + len, prot, shared, fd, start);
        if at < 0 {
            return Err(errno());
        }
        let put = memory::put((at as *mut u8).add(skipped), std::slice::from_raw_parts(from, len));
        libc::syscall(libc::SYS_munmap, at, skipped + len);
        put
    }
}

/// Discards the SIGXFSZ that a refused write has left pending. This thread blocks all signals.
pub fn forget_limit_signal() {
    const SET: u64 = 1 << (libc::SIGXFSZ - 1);
    const AT_ONCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let nobody = std::ptr::null_mut::<u8>();
    // SAFETY: the kernel reads a set and a time.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &SET, nobody, &AT_ONCE, size_of_val(&SET)) };
}

/// Makes a file at least `end` bytes long (ftruncate(2)), and never shorter. The caller makes sure that no other thread does so at the same
/// time.
pub fn extend(file: &File, end: u64) -> io::Result<()> {
    if file.metadata()?.len() < end { file.set_len(end) } else { Ok(()) }
}

/// Allocates disk space for a range of a file, which may lie past the file's end, and does not change the length (fallocate(2)). glibc's
/// posix_fallocate(3) is not used: where the file system cannot allocate, it would write zeros.
///
/// fallocate(2) takes all free space before it fails. So this function looks at the free space first (statvfs(3)): if it is plainly too
/// small, the error comes at once, and nothing is taken.
pub fn allocate(file: &File, range: Range<u64>) -> io::Result<()> {
    let len = range.end - range.start;
    // SAFETY: fstatvfs fills the zeroed structure. geteuid has no preconditions.
    let free = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        let known = libc::fstatvfs(file.as_raw_fd(), &mut stat) == 0 && stat.f_blocks > 0;
        // Some blocks are reserved for root.
        let blocks = if libc::geteuid() == 0 { stat.f_bfree } else { stat.f_bavail };
        if known { blocks.saturating_mul(stat.f_frsize) } else { u64::MAX }
    };
    // Every block that the file already has may lie in the range.
    if len.saturating_sub(file.metadata()?.blocks() * 512) > free {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    let mut blocked = None;
    loop {
        let (mode, start) = (libc::FALLOC_FL_KEEP_SIZE, range.start as i64);
        // SAFETY: the call takes numbers only.
        if unsafe { libc::syscall(libc::SYS_fallocate, file.as_raw_fd(), mode, start, len as i64) } == 0 {
            return Ok(());
        }
        match errno() {
            // An interrupted call on tmpfs frees what it had allocated. Under a timer's signals it would never end, so they are blocked.
            libc::EINTR => {
                blocked.get_or_insert_with(Blocked::all);
            }
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The same as [`allocate`] for fault handlers, which block all signals: it does not look at the free space first. Returns an error number.
pub fn allocate_blocks(file: &File, range: Range<u64>) -> Result<(), i32> {
    let (fd, len) = (file.as_raw_fd(), range.end - range.start);
    loop {
        // SAFETY: the call takes numbers only.
        match unsafe { libc::syscall(libc::SYS_fallocate, fd, libc::FALLOC_FL_KEEP_SIZE, range.start, len) } {
            0 => return Ok(()),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
}

/// Copies a part of a file to the same place in another file (copy_file_range(2), Linux 5.3 between file systems). Where the kernel cannot,
/// copies through a buffer.
pub fn copy_range(from: &File, to: &File, at: u64, len: usize) -> io::Result<()> {
    let (mut source, end) = (at as i64, at as i64 + len as i64);
    let mut target = source;
    while source < end {
        let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
        // SAFETY: the call takes two descriptors, and changes this function's two offsets.
        match unsafe { libc::copy_file_range(from, &mut source, to, &mut target, (end - source) as usize, 0) } {
            1.. => {}
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if matches!(error.raw_os_error(), Some(libc::EXDEV | libc::EOPNOTSUPP | libc::EINVAL)) => break,
                error => return Err(error),
            },
        }
    }
    let mut buffer = [0; 16 << 10];
    while source < end {
        let part = (end - source).min(buffer.len() as i64) as usize;
        from.read_exact_at(&mut buffer[..part], source as u64)?;
        to.write_all_at(&buffer[..part], source as u64)?;
        source += part as i64;
    }
    Ok(())
}

/// The kind of storage that holds a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A block device, or unknown storage.
    Storage,
    /// Memory that is lost with power (tmpfs, ramfs, hugetlbfs). Mappings of it are made in multiples of `unit` bytes.
    Memory { unit: usize },
    /// Persistent memory, which the processor loads and stores directly (statx(2) `STATX_ATTR_DAX`, Linux 5.8).
    Dax,
}

/// Looks up the kind of storage that holds a file's bytes.
pub fn medium(file: &File) -> Medium {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    const HUGETLBFS: i64 = 0x9584_58f6;
    const ATTR_DAX: u64 = 0x0020_0000;
    // SAFETY: both structures are zeroed, and the calls fill them if they succeed. With an empty path, statx asks about the descriptor.
    unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        let mut facts: libc::statx = std::mem::zeroed();
        if libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_TYPE, &mut facts) != 0
            || u32::from(facts.stx_mode) & libc::S_IFMT != libc::S_IFREG
        {
            // The node of a block device is in a tmpfs. That file system says nothing about the device.
            return Medium::Storage;
        }
        // File systems in memory have no device.
        if facts.stx_dev_major == 0 {
            libc::fstatfs(file.as_raw_fd(), &mut system);
        }
        match system.f_type as i64 {
            TMPFS | RAMFS => Medium::Memory { unit: super::PAGE },
            HUGETLBFS => Medium::Memory { unit: system.f_bsize as usize },
            _ if facts.stx_attributes & facts.stx_attributes_mask & ATTR_DAX != 0 => Medium::Dax,
            _ => Medium::Storage,
        }
    }
}

/// Whether a store to a block of the file takes another block: the file system copies what is written (btrfs without `chattr +C`, ZFS, bcachefs), or
/// the file shares blocks with another one (a reflink, on XFS say). Files that come to share blocks later are not seen.
pub fn is_copied_on_write(file: &File) -> bool {
    const BTRFS: i64 = 0x9123_683E;
    const ZFS: i64 = 0x2FC1_2FC1;
    const BCACHEFS: i64 = 0xCA45_1A4E;
    const XFS: i64 = 0x5846_5342;
    const OCFS2: i64 = 0x7461_636F;
    const FS_IOC_GETFLAGS: libc::c_ulong = 0x8008_6601;
    const NOT_COPIED: libc::c_long = 0x0080_0000;
    // SAFETY: the structure is zeroed, and the calls fill it and one number.
    let (system, flags) = unsafe {
        let mut system: libc::statfs = std::mem::zeroed();
        let mut flags: libc::c_long = 0;
        if libc::fstatfs(file.as_raw_fd(), &mut system) != 0 {
            return false;
        }
        libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS, &mut flags);
        (system.f_type as i64, flags)
    };
    match system {
        ZFS | BCACHEFS => true,
        BTRFS => flags & NOT_COPIED == 0 || shares_blocks(file),
        XFS | OCFS2 => shares_blocks(file),
        _ => false,
    }
}

/// Whether blocks of a file are other files', too (ioctl_fiemap(2)). Where the file system does not say, none are.
fn shares_blocks(file: &File) -> bool {
    const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
    const LAST: u32 = 1;
    const SHARED: u32 = 0x2000;
    const EXTENTS: usize = 64;
    #[repr(C)]
    #[derive(Default, Clone, Copy)]
    struct Extent {
        logical: u64,
        physical: u64,
        len: u64,
        reserved: [u64; 2],
        flags: u32,
        reserved_too: [u32; 3],
    }
    #[repr(C)]
    struct Request {
        start: u64,
        len: u64,
        flags: u32,
        mapped: u32,
        count: u32,
        reserved: u32,
        extents: [Extent; EXTENTS],
    }
    let mut start = 0;
    loop {
        let (len, count) = (u64::MAX - start, EXTENTS as u32);
        let mut request =
            Request { start, len, flags: 0, mapped: 0, count, reserved: 0, extents: [Extent::default(); EXTENTS] };
        // SAFETY: the kernel fills the structure, which says how many extents it has room for.
        let asked = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &mut request) } == 0;
        let extents = &request.extents[..request.mapped.min(count) as usize];
        let Some(last) = extents.last().filter(|_| asked) else { return false };
        if extents.iter().any(|extent| extent.flags & SHARED != 0) {
            return true;
        }
        if last.flags & LAST != 0 || last.logical + last.len <= start {
            return false;
        }
        start = last.logical + last.len;
    }
}

/// The result of [`lock_byte`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteLock {
    /// The open file behind this descriptor has the lock.
    Taken,
    /// Another open file has the same kind of lock on the byte.
    Held,
    /// A lock of another kind, of this process or another, is on the byte: over a longer range, for reading, or owned by a process
    /// (`F_SETLK`).
    Covered,
    /// The file system has no such locks, or the call failed otherwise (an error number).
    Failed(i32),
}

/// Locks one byte for the open file behind a descriptor (`F_OFD_SETLK`, Linux 3.15). The descriptor may write. Does not wait.
pub fn lock_byte(file: &File, at: i64) -> ByteLock {
    match byte_lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, at) {
        Ok(_) => ByteLock::Taken,
        Err(libc::EAGAIN | libc::EACCES) => match byte_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, at) {
            Ok(other) if other.l_type != libc::F_UNLCK as i16 && !is_byte_lock(&other) => ByteLock::Covered,
            _ => ByteLock::Held,
        },
        Err(error) => ByteLock::Failed(error),
    }
}

/// Whether another open file has locked this one byte by `lock_byte`.
pub fn byte_is_locked(file: &File, at: i64) -> bool {
    byte_lock(file, libc::F_OFD_GETLK, libc::F_RDLCK, at).is_ok_and(|other| is_byte_lock(&other))
}

/// Whether a lock is of the kind that `lock_byte` takes. A lock for reading is not: every process that may read the file can take one.
fn is_byte_lock(lock: &libc::flock) -> bool {
    lock.l_type == libc::F_WRLCK as i16 && lock.l_len == 1 && lock.l_pid == -1
}

/// Releases the lock of `lock_byte`. The keeper calls this too.
pub fn unlock_byte(file: &File, at: i64) {
    let _ = byte_lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, at);
}

/// Takes a write lease of a file (fcntl(2), `F_SETLEASE`) until the descriptor is closed, or its error number: EAGAIN if anybody has the file open
/// otherwise.
pub fn lease_to_write(file: &File) -> Result<(), i32> {
    // SAFETY: numbers only.
    match unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

fn byte_lock(file: &File, command: i32, kind: i32, at: i64) -> Result<libc::flock, i32> {
    // SAFETY: a zeroed flock is a valid one. The kernel reads and writes it.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence, lock.l_start, lock.l_len) = (kind as i16, libc::SEEK_SET as i16, at, 1);
        match libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), command, &mut lock) {
            0 => Ok(lock),
            _ => Err(errno()),
        }
    }
}

/// fdatasync(2). The C library's function is not used, since it is a cancellation point (pthreads(7)), and other threads wait for this call
/// to end.
pub fn sync_data(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: the call touches no memory.
        if unsafe { libc::syscall(libc::SYS_fdatasync, file.as_raw_fd()) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}
