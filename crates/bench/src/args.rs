//! Parsers of values on the command line.

use std::time::Duration;

use crate::substrates::Engine;

/// A parser of an engine's name that accepts only the engines of `known`.
pub fn one_of(known: &'static [Engine]) -> impl Fn(&str) -> Result<Engine, String> + Clone {
    move |text| {
        let names = || known.iter().map(|engine| engine.name()).collect::<Vec<_>>().join(", ");
        let found = known.iter().find(|engine| engine.name() == text);
        found.copied().ok_or_else(|| format!("\"{text}\" is not an engine here: choose from {}", names()))
    }
}

/// The list without its repeated entries. The first of each stays.
pub fn once_each<T: Copy + PartialEq>(given: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    given.iter().for_each(|one| {
        if !once.contains(one) {
            once.push(*one);
        }
    });
    once
}

/// Threads: 1 to 1024.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn threads(text: &str) -> Result<u32, String> {
    count(text, "threads", 1024)
}

/// Repetitions: 1 to 10000.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn repetitions(text: &str) -> Result<u32, String> {
    count(text, "repetitions", 10_000)
}

/// Touches per page: 1 to 10000.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn touches(text: &str) -> Result<u32, String> {
    count(text, "touches a page", 10_000)
}

/// Operations: 1 to 1000000000.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn operations(text: &str) -> Result<u64, String> {
    count(text, "operations", 1_000_000_000).map(u64::from)
}

/// A number from 1 to `most`.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn count(text: &str, of: &str, most: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("\"{text}\" is not a number of {of}: give 1 to {most}")),
    }
}

/// Seconds: 0.01 to 86400, which is a day.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("\"{text}\" is not a number of seconds: give 0.01 to 86400")),
    }
}

/// A time with its unit (us, ms, s): up to a minute.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn time(text: &str) -> Result<Duration, String> {
    let seconds = measured(text, &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)]);
    let known = seconds.filter(|seconds| *seconds <= 60.0).map(Duration::from_secs_f64);
    known.ok_or_else(|| format!("\"{text}\" is not a time: give up to a minute, such as 500us, 2ms or 1s"))
}

/// Bytes a second with their unit (MB/s, GB/s, MiB/s, GiB/s): from 1 MB/s to 1000 GB/s.
///
/// # Errors
///
/// Any other text. The message says what to give.
pub fn rate(text: &str) -> Result<f64, String> {
    let units = [("GiB/s", f64::from(1 << 30)), ("MiB/s", f64::from(1 << 20)), ("GB/s", 1e9), ("MB/s", 1e6)];
    let known = measured(text, &units).filter(|rate| (1e6..=1e12).contains(rate));
    known.ok_or_else(|| format!("\"{text}\" is not a bandwidth: give 1MB/s to 1000GB/s"))
}

/// A number with one of these units, multiplied by the value of the unit.
fn measured(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    number.parse::<f64>().ok().filter(|_| is_plain).map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_have_units() {
        assert_eq!(
            [time("2ms"), time("500us"), time("1.5s")],
            [2000, 500, 1_500_000].map(|us| Ok(Duration::from_micros(us)))
        );
        assert_eq!([rate("1GB/s"), rate("0.5GiB/s"), rate("20MB/s")], [Ok(1e9), Ok(536_870_912.0), Ok(2e7)]);
        for text in ["2", "ms", "-2ms", "2 ms", "61s", "1e-3s", "nans"] {
            assert!(time(text).unwrap_err().contains("give up to a minute"), "{text}");
        }
        for text in ["1GB", "0MB/s", "9999GB/s", "infGB/s", ""] {
            assert!(rate(text).unwrap_err().contains("give 1MB/s to"), "{text}");
        }
    }
}
