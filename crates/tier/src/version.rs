//! One version of one object, of which there is a local copy; how it is written into the index, and the name of the copy's files.

/// One version of an object, by which its local copy is found.
///
/// Two versions are the same if URL, length, ETag and version id are equal. If the store gives neither ETag nor version id, the modification
/// time stands for them. Then an object that changes twice within the resolution of the store's clock, at the same length, looks unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    /// The object's URL, without credentials: it is written to disk and into messages.
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

impl Version {
    /// Whether anything but the length tells it from another version.
    pub(crate) fn is_known(&self) -> bool {
        self.etag.is_some() || self.version.is_some() || self.modified.is_some()
    }

    /// The values that differ between versions of the object.
    fn key(&self) -> (u64, Option<&str>, Option<&str>, Option<&str>) {
        let modified = self.modified.as_deref().filter(|_| self.etag.is_none() && self.version.is_none());
        (self.len, self.etag.as_deref(), self.version.as_deref(), modified)
    }

    /// Whether both are the same version of the same object.
    pub(crate) fn is(&self, other: &Version) -> bool {
        self.url == other.url && self.key() == other.key()
    }

    /// The beginning of the names of a URL's files. Those of another URL may begin with it too, but hardly ever do.
    pub(crate) fn prefix(url: &str) -> String {
        format!("{:016x}-", hash(url.as_bytes()))
    }

    /// The name of its files. Their contents say whether they really are.
    pub(crate) fn name(&self) -> String {
        let (len, etag, version, modified) = self.key();
        let mut bytes = len.to_le_bytes().to_vec();
        [etag, version, modified].into_iter().for_each(|text| write(&mut bytes, text));
        format!("{}{:016x}", Self::prefix(&self.url), hash(&bytes))
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.len.to_le_bytes().to_vec();
        write(&mut bytes, Some(&self.url));
        [&self.etag, &self.version, &self.modified].into_iter().for_each(|text| write(&mut bytes, text.as_deref()));
        bytes
    }

    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Version> {
        let len = u64::from_le_bytes(bytes.split_off(..8)?.try_into().ok()?);
        let [url, etag, version, modified] =
            [read(&mut bytes)?, read(&mut bytes)?, read(&mut bytes)?, read(&mut bytes)?];
        Some(Version { url: url?, etag, version, modified, len })
    }
}

/// Writes length and bytes of a text, or the length `u32::MAX` for no text.
fn write(to: &mut Vec<u8>, text: Option<&str>) {
    to.extend(text.map_or(u32::MAX, |text| text.len() as u32).to_le_bytes());
    to.extend(text.unwrap_or_default().bytes());
}

fn read(from: &mut &[u8]) -> Option<Option<String>> {
    match u32::from_le_bytes(from.split_off(..4)?.try_into().ok()?) {
        u32::MAX => Some(None),
        len => Some(Some(String::from_utf8(from.split_off(..len as usize)?.to_vec()).ok()?)),
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_and_read_back_and_told_apart() {
        let of = |etag: Option<&str>, version: Option<&str>, modified: Option<&str>, len| {
            let [etag, version, modified] = [etag, version, modified].map(|text| text.map(String::from));
            Version { url: "s3://bucket/ключ".into(), etag, version, modified, len }
        };
        let all = [
            of(Some("a"), None, None, 5),
            of(Some("a"), None, None, 6),
            of(Some(""), None, None, 5),
            of(None, Some("a"), None, 5),
            of(Some("a"), Some("a"), None, 5),
            of(None, None, Some("a"), 5),
            of(None, None, None, 5),
        ];
        for (at, one) in all.iter().enumerate() {
            let bytes = one.to_bytes();
            assert_eq!(Version::from_bytes(&bytes).as_ref(), Some(one));
            for short in 0..bytes.len() {
                assert_eq!(Version::from_bytes(&bytes[..short]), None);
            }
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!((one.is(other), one.name() == other.name()), (at == other_at, at == other_at));
            }
        }
        // An ETag says more than a clock.
        let [one, other] = [of(Some("a"), None, Some("b"), 5), of(Some("a"), None, Some("c"), 5)];
        assert!(one.is(&other) && one.name() == other.name());
    }
}
