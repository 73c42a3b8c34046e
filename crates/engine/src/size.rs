//! Sizes and times as people type them.

use crate::sys::cgroup;
use std::time::Duration;

/// Reads a number of bytes: `4096`, `64KiB`, `1.5GiB`. Units are powers of 1024, and may be short or in small letters: `1G`,
/// `1GB`, `1 GB` and `1gib` are the same. A fraction of a byte is dropped.
///
/// # Errors
/// A line that says what is wrong, and what to give instead.
///
/// ```
/// assert_eq!(fastmap::size::bytes("1.5GiB"), Ok(3 << 29));
/// assert_eq!(fastmap::size::bytes("1G"), fastmap::size::bytes("1GB"));
/// assert!(fastmap::size::bytes("much").unwrap_err().contains("is not a size: give"));
/// ```
pub fn bytes(text: &str) -> Result<u64, String> {
    let is_of_number = |one: char| one.is_ascii_digit() || one == '.';
    let (number, unit) = text.split_at(text.find(|one| !is_of_number(one)).unwrap_or(text.len()));
    let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|one| one.is_ascii_digit());
    let (Some(shift), true, true) = (shift, is_number(whole), is_number(fraction)) else {
        return Err(format!(
            "\"{text}\" is not a size: give bytes, or a number with K, M, G or T (powers of 1024), such as 4096, 64KiB, 1G"
        ));
    };
    // More digits do not change a byte.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = fraction.parse::<u128>().map_or(0, |part| (part << shift) / 10_u128.pow(fraction.len() as u32));
    let bytes = whole.parse::<u64>().ok().map(|whole| (u128::from(whole) << shift) + part);
    let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
    bytes.map(i64::cast_unsigned).ok_or_else(|| format!("\"{text}\" is too large: give at most 8388607TiB"))
}

/// Reads the capacity of a cache: a size as [`bytes`] takes it, or a share such as `50%` of
/// [`Cache::memory_limit`](crate::Cache::memory_limit), in whole MiB. Returns bytes.
///
/// # Errors
/// As [`bytes`].
///
/// ```
/// let half = fastmap::size::capacity("50%").unwrap();
/// assert!(half <= fastmap::Cache::memory_limit() as u64 / 2);
/// assert!(fastmap::size::capacity("150%").unwrap_err().contains("1% to 100%"));
/// ```
pub fn capacity(text: &str) -> Result<u64, String> {
    const MIB: u64 = 1 << 20;
    let or_a_share = |why: String| if why.ends_with("1G") { format!("{why}, or 50% of memory") } else { why };
    let Some(share) = text.strip_suffix('%') else {
        return bytes(text).map_err(or_a_share);
    };
    match share.parse::<u8>() {
        Ok(share @ 1..=100) => Ok((cgroup::memory_limit() as u128 * u128::from(share) / 100) as u64 / MIB * MIB),
        _ => Err(format!("\"{text}\" is not a share of memory: give 1% to 100%")),
    }
}

/// Reads a time of at least a second: `60s`, `60`, `10m` or `2h`.
///
/// # Errors
/// As [`bytes`].
///
/// ```
/// assert_eq!(fastmap::size::time("10m"), Ok(std::time::Duration::from_secs(600)));
/// assert!(fastmap::size::time("soon").unwrap_err().contains("is not a time: give"));
/// ```
pub fn time(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let seconds = match &text[digits..] {
        "s" | "" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let time = seconds.and_then(|unit| text[..digits].parse::<u64>().ok()?.checked_mul(unit)).filter(|time| *time > 0);
    time.map(Duration::from_secs).ok_or_else(|| format!("\"{text}\" is not a time: give 60s, 10m or 2h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_type_them() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("64KiB", 65536),
            ("64k", 65536),
            ("64KB", 65536),
            ("1G", 1 << 30),
            ("1gb", 1 << 30),
            ("1 GiB", 1 << 30),
            ("1.5GiB", 3 << 29),
            ("0.5m", 1 << 19),
            ("2TiB", 2 << 40),
            ("8388607TiB", 8_388_607 << 40),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "", "KiB", "-1", "+1", "1e9", "1_000", "1  G", "1.", ".5G", "5E", "0x10", "none", "1GiBs", "1..5G", "1,5G",
            "G1", "１", "50%", "auto",
        ] {
            assert!(bytes(text).unwrap_err().contains("is not a size: give"), "{text}");
        }
        for text in [
            "18446744073709551616",
            "184467440737095516159",
            "9223372036854775808",
            "8388608TiB",
            "99999999999999999999TiB",
        ] {
            assert!(bytes(text).unwrap_err().contains("is too large: give at most"), "{text}");
        }
    }

    #[test]
    fn a_capacity_may_be_a_share() {
        let all = cgroup::memory_limit() as u64;
        assert_eq!(capacity("100%"), Ok(all >> 20 << 20));
        assert!(capacity("50%").unwrap().abs_diff(all / 2) <= 1 << 20);
        assert_eq!(capacity("64M"), Ok(64 << 20));
        for text in ["0%", "101%", "%", "x%", "-5%", "1.5%"] {
            assert!(capacity(text).unwrap_err().contains("is not a share"), "{text}");
        }
        assert!(capacity("much").unwrap_err().ends_with("or 50% of memory"));
    }
}
