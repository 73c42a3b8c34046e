//! The messages between the kernel and a FUSE file system: `linux/fuse.h`, protocol 7.31. Only the part that reads and writes files is
//! here.

use bytemuck::{AnyBitPattern, NoUninit, Pod, Zeroable};

/// Operations. All other operations may be refused with ENOSYS. The kernel then does without them.
pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const INTERRUPT: u32 = 36;
pub const BATCH_FORGET: u32 = 42;

/// The version of the protocol.
pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 31;
/// Flags of INIT. Reads of one file may run at the same time, and so may lookups in one folder.
pub const ASYNC_READ: u32 = 1;
pub const PARALLEL_DIROPS: u32 = 1 << 18;
/// A flag of INIT. A request with O_DIRECT need not wait for requests before it.
pub const ASYNC_DIO: u32 = 1 << 15;
/// A flag of OPEN. The pages of the file that are in the page cache stay there.
pub const KEEP_CACHE: u32 = 1 << 1;

/// The head of every request.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Head {
    pub len: u32,
    pub operation: u32,
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub rest: u32,
}

/// The head of every answer.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct AnswerHead {
    pub len: u32,
    /// 0, or the negative number of an error of errno(3).
    pub error: i32,
    pub unique: u64,
}

/// A request INIT: the fields that all versions have.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Init {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
}

/// The answer to INIT.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct InitAnswer {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    /// Limits for requests that no program waits for, such as readahead: the most at one time, and the number from which on the kernel
    /// holds back.
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub time_granularity: u32,
    pub rest: [u32; 9],
}

/// A request READ or READDIR. A request WRITE begins in the same way, and its bytes follow.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Read {
    pub handle: u64,
    pub offset: u64,
    pub size: u32,
    pub rest: [u32; 5],
}

/// The answer to WRITE.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Written {
    pub size: u32,
    pub rest: u32,
}

/// The attributes of a file, or of the folder.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Attributes {
    pub node: u64,
    pub size: u64,
    pub blocks: u64,
    /// Seconds of the last access, modification and change.
    pub times: [u64; 3],
    pub nanoseconds: [u32; 3],
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub block_size: u32,
    pub flags: u32,
}

/// The answer to LOOKUP.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    pub node: u64,
    pub generation: u64,
    /// The seconds for which the kernel may keep the entry.
    pub entry_valid: u64,
    pub attributes_valid: u64,
    pub valid_nanoseconds: [u32; 2],
    pub attributes: Attributes,
}

/// The answer to GETATTR.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct AttributesAnswer {
    pub valid: u64,
    pub valid_nanoseconds: [u32; 2],
    pub attributes: Attributes,
}

/// The answer to OPEN and OPENDIR.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Open {
    pub handle: u64,
    pub flags: u32,
    pub rest: u32,
}

/// The answer to STATFS: statfs(2).
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Space {
    pub blocks: u64,
    pub free: [u64; 2],
    pub files: [u64; 2],
    pub block_size: u32,
    pub name_length: u32,
    pub fragment_size: u32,
    pub rest: [u32; 7],
}

/// An entry of a folder. Its name follows, padded with zeros to a multiple of eight bytes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct FolderEntry {
    pub node: u64,
    /// The offset at which the next entry is asked for.
    pub next: u64,
    pub name_length: u32,
    /// DT_REG or DT_DIR.
    pub kind: u32,
}

/// Reads a value from the start of some bytes. Returns the value and the bytes behind it.
pub fn split<T: AnyBitPattern>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (first, rest) = bytes.split_at_checked(size_of::<T>())?;
    Some((bytemuck::pod_read_unaligned(first), rest))
}

/// Appends the bytes of a value.
pub fn put(value: &impl NoUninit, into: &mut Vec<u8>) {
    into.extend_from_slice(bytemuck::bytes_of(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_the_kernels() {
        let requests = [size_of::<Head>(), size_of::<Init>(), size_of::<Read>()];
        assert_eq!(requests, [40, 16, 40]);
        let answers = [size_of::<AnswerHead>(), size_of::<InitAnswer>(), size_of::<Attributes>(), size_of::<Entry>()];
        assert_eq!(answers, [16, 64, 88, 128]);
        let others = [size_of::<AttributesAnswer>(), size_of::<Open>(), size_of::<Space>(), size_of::<FolderEntry>()];
        assert_eq!(others, [104, 16, 80, 24]);
    }
}
