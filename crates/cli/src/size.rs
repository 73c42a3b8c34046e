//! SIZE on the command line: 4096, 64KiB, 1GiB.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
        let (digits, shift) = unit.map_or((text, 0), |(unit, shift)| (&text[..text.len() - unit.len()], *shift));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!(
                "\"{text}\" is not a size: give whole bytes, KiB, MiB, GiB or TiB, such as 4096, 64KiB or 1GiB"
            ));
        }
        digits
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(1 << shift))
            .map(Size)
            .ok_or_else(|| format!("\"{text}\" is too large: give at most {}", Size(i64::MAX as u64)))
            .and_then(|size| match i64::try_from(size.0) {
                Ok(_) => Ok(size),
                Err(_) => Err(format!("\"{text}\" is too large: give at most {}", Size(i64::MAX as u64))),
            })
    }
}

impl fmt::Display for Size {
    /// Written in the largest unit that divides the size, so that it parses back to the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().rev().find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Bytes for people, in units of 1024: at most three digits and five characters, such as `12.5M`.
pub fn short(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, ["B", "K", "M", "G", "T"])
}

/// The value in the first unit that leaves it at most three digits. `names` are the units, each `unit` times the one before.
pub fn scaled(mut value: f64, unit: f64, names: [&str; 5]) -> String {
    let mut names = names.into_iter();
    let mut name = names.next().unwrap_or_default();
    // From 999.5 on, rounding gives four digits.
    while value >= 999.5 {
        let Some(next) = names.next() else { break };
        value /= unit;
        name = next;
    }
    let digits = if value == 0.0 || value >= 99.95 || name == "B" { 0 } else { 1 };
    format!("{value:.digits$}{name}")
}

/// The capacity of a cache: a size, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// `auto`: the memory that others leave, followed as it changes.
    Auto,
    /// This size.
    Given(Size),
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Capacity, String> {
        let given = || text.parse().map(Capacity::Given).map_err(|why: String| format!("{why}; or auto"));
        if text == "auto" { Ok(Capacity::Auto) } else { given() }
    }
}

/// A limit on memory: a size, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// No limit.
    Unlimited,
    /// At most this much.
    Limit(Size),
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Memory, String> {
        if text == "none" {
            return Ok(Memory::Unlimited);
        }
        text.parse().map(Memory::Limit).map_err(|e: String| format!("{e}, or none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64KiB", 65536), ("3MiB", 3 << 20), ("1GiB", 1 << 30), ("2TiB", 2 << 40)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(1 << 30).to_string(), "1GiB");
        assert_eq!(Size((1 << 30) + 1).to_string(), "1073741825");
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "KiB", "1.5GiB", "-1", "+1", " 1", "1 GiB", "1KB", "1kib", "1G", "0x10", "1e9", "none", "１"]
        {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("is not a size: give"), "{text}: {error}");
        }
        for text in ["18446744073709551616", "9223372036854775808", "8388608TiB", "99999999999999999999TiB"] {
            assert!(text.parse::<Size>().unwrap_err().contains("is too large: give at most"), "{text}");
        }
    }

    #[test]
    fn for_people_they_are_short() {
        let sizes = [0, 100, 4096, 1 << 20, 1000 << 10, 3 << 39].map(short);
        assert_eq!(sizes, ["0B", "100B", "4.0K", "1.0M", "1.0M", "1.5T"]);
    }

    #[test]
    fn memory_may_be_none() {
        assert_eq!("none".parse(), Ok(Memory::Unlimited));
        assert_eq!("1GiB".parse(), Ok(Memory::Limit(Size(1 << 30))));
        assert_eq!("auto".parse(), Ok(Capacity::Auto));
        assert_eq!("64KiB".parse(), Ok(Capacity::Given(Size(64 << 10))));
        assert!("Auto".parse::<Capacity>().unwrap_err().ends_with("; or auto"));
        assert!("nothing".parse::<Memory>().unwrap_err().ends_with("or none"));
    }
}
