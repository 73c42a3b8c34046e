//! SIZE on the command line: 4096, 64KiB, 1.5G.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        fastmap::size::bytes(text).map(Size)
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

/// The capacity of a cache: a size, a share of memory such as `50%`, or `auto`.
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
        let given = || {
            let bytes = fastmap::size::capacity(text).map_err(|why| format!("{why}; or auto"))?;
            Ok(Capacity::Given(Size(bytes)))
        };
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
    fn sizes_read_as_they_print() {
        for bytes in [0, 4096, 65536, 3 << 20, 1 << 30, (1 << 30) + 1, 2 << 40] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(1 << 30).to_string(), "1GiB");
        assert_eq!(Size((1 << 30) + 1).to_string(), "1073741825");
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
        assert!(matches!("50%".parse(), Ok(Capacity::Given(_))));
        assert!("Auto".parse::<Capacity>().unwrap_err().ends_with("; or auto"));
        assert!("nothing".parse::<Memory>().unwrap_err().ends_with("or none"));
    }
}
