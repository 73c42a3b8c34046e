//! How the kernel and a file system of its users talk: `linux/fuse.h`, protocol 7.31, as far as files are read, and written where they are.

use bytemuck::{AnyBitPattern, NoUninit, Pod, Zeroable};

/// Operations. All others may be refused with ENOSYS: the kernel does without then.
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

/// The protocol that is spoken.
pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 31;
/// Of the flags of INIT: reads of one file may go on at the same time, and looks into one folder.
pub const ASYNC_READ: u32 = 1;
pub const PARALLEL_DIROPS: u32 = 1 << 18;
/// What O_DIRECT asks for need not wait for what was asked before.
pub const ASYNC_DIO: u32 = 1 << 15;
/// Of the flags of OPEN: what the page cache has of the file stays.
pub const KEEP_CACHE: u32 = 1 << 1;

/// Before every request.
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

/// Before every answer.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct AnswerHead {
    pub len: u32,
    /// 0, or an errno(3), negative.
    pub error: i32,
    pub unique: u64,
}

/// A request INIT, as far as all versions have it.
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
    /// Requests that nobody waits for, such as readahead: at a time, and from how many on there are to be no more.
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub time_granularity: u32,
    pub rest: [u32; 9],
}

/// A request READ or READDIR; WRITE, behind which the bytes follow.
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

/// Of a file, or the folder.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Attributes {
    pub node: u64,
    pub size: u64,
    pub blocks: u64,
    /// Seconds: of access, modification, change.
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
    /// Seconds for which the kernel need not ask again.
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

/// Of an entry of a folder; the name follows, and zeros up to eight bytes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct FolderEntry {
    pub node: u64,
    /// Where the next one is asked for.
    pub next: u64,
    pub name_length: u32,
    /// DT_REG, DT_DIR
    pub kind: u32,
}

/// The first of some bytes as a value, and what follows.
pub fn split<T: AnyBitPattern>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (first, rest) = bytes.split_at_checked(size_of::<T>())?;
    Some((bytemuck::pod_read_unaligned(first), rest))
}

/// Puts a value's bytes at the end.
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
