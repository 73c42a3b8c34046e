//! What a local copy is of: one version of one object, and how that is written into a file and made a file's name.

/// One version of an object: what its local copy is known by.
///
/// Two are the same version if URL, length, ETag and version id are. Where the store gives neither ETag nor version id, the modification time
/// is taken for them, which is worth what the store's clock is: an object that changes twice within its resolution, at the same length, looks unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    /// The object's URL. It is written to disk and into messages: no credentials.
    pub url: String,
    /// The ETag, as the store gives it.
    pub etag: Option<String>,
    /// The version id, of a store that keeps versions.
    pub version: Option<String>,
    /// When it was modified (Last-Modified), as the store gives it.
    pub modified: Option<String>,
    /// Length, bytes.
    pub len: u64,
}
