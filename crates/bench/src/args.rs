//! What values on the command line may be.

use crate::substrates::Engine;

/// An engine that is one of `known`.
pub fn one_of(known: &'static [Engine]) -> impl Fn(&str) -> Result<Engine, String> + Clone {
    move |text| {
        let names = || known.iter().map(|engine| engine.name()).collect::<Vec<_>>().join(", ");
        let found = known.iter().find(|engine| engine.name() == text);
        found.copied().ok_or_else(|| format!("\"{text}\" is no engine here: choose from {}", names()))
    }
}

/// A list as it was given, with what was given twice left out the second time.
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
/// Anything else, with what to give.
pub fn threads(text: &str) -> Result<u32, String> {
    count(text, "threads", 1024)
}

/// Repetitions: 1 to 10000.
///
/// # Errors
///
/// Anything else, with what to give.
pub fn repetitions(text: &str) -> Result<u32, String> {
    count(text, "repetitions", 10_000)
}

/// Touches a page: 1 to 10000.
///
/// # Errors
///
/// Anything else, with what to give.
pub fn touches(text: &str) -> Result<u32, String> {
    count(text, "touches a page", 10_000)
}

/// Operations: up to a thousand million.
///
/// # Errors
///
/// Anything else, with what to give.
pub fn operations(text: &str) -> Result<u64, String> {
    count(text, "operations", 1_000_000_000).map(u64::from)
}

/// A number from 1 to `most`.
///
/// # Errors
///
/// Anything else, with what to give.
pub fn count(text: &str, of: &str, most: u32) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("\"{text}\" is no number of {of}: give 1 to {most}")),
    }
}

/// Seconds: a hundredth to a day.
///
/// # Errors
///
/// Anything else, with what to give.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("\"{text}\" is no number of seconds: give 0.01 to 86400")),
    }
}
