//! Numbers, sizes, times and dates for people.

use crate::results::{Spread, X};
use fastmap_cli::machine::Machine;
use fastmap_cli::size::Size;

/// A number with about three digits and a letter: `0.250`, `12.3`, `97.6k`, `1.24M`.
pub fn amount(value: f64) -> String {
    let size = value.abs();
    // The bounds lie half a digit below the powers of ten, since such numbers would be rounded up.
    let (value, letter) = match size {
        s if s >= 999.5e6 => (value / 1e9, "G"),
        s if s >= 999.5e3 => (value / 1e6, "M"),
        s if s >= 9_999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        0.0 => return "0".to_owned(),
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.01 => 3,
        v if v >= 0.001 => 4,
        _ => return format!("{value:.1e}"),
    };
    format!("{value:.digits$}{letter}")
}

/// The same number without zeros at the end: `1`, `25k`.
pub fn tick(value: f64) -> String {
    let text = amount(value);
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, letter) = text.split_at(digits);
    match number.contains('.') {
        true => format!("{}{letter}", number.trim_end_matches('0').trim_end_matches('.')),
        false => text,
    }
}

/// `1.24x`.
pub fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 99.95 => format!("{}x", amount(r)),
        r if r >= 9.995 => format!("{r:.1}x"),
        r if r < 0.0995 => format!("{r:.3}x"),
        r => format!("{r:.2}x"),
    }
}

/// `1.24x (1.10x to 1.31x)`.
pub fn times_of(ratio: Spread) -> String {
    format!("{} ({})", times(ratio.median), times_range(ratio))
}

/// `1.10x to 1.31x`, or `one run` if nothing was repeated.
pub fn times_range(Spread { low, high, .. }: Spread) -> String {
    if low == high { "one run".to_owned() } else { format!("{} to {}", times(low), times(high)) }
}

/// A ratio with as many digits as make sense beside its range: `84`, `4.5`, `1.02`.
pub fn ratio(ratio: f64) -> String {
    let text = match ratio {
        r if r >= 99.95 => return amount(r),
        r if r >= 9.95 => format!("{r:.0}"),
        r if r >= 1.995 => format!("{r:.1}"),
        r if r < 0.0995 => format!("{r:.3}"),
        r => format!("{r:.2}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `4.5 (4.1-4.8)`.
pub fn ratio_of(Spread { median, low, high }: Spread) -> String {
    let range = if low == high { "one run".to_owned() } else { format!("{}-{}", ratio(low), ratio(high)) };
    format!("{} ({range})", ratio(median))
}

/// The place of a point on its axis.
pub fn place(x: &X) -> String {
    match x {
        X::Number(number) => tick(*number),
        X::Name(name) => name.clone(),
    }
}

/// `22 November 2026, 01:34 UTC`.
pub fn date(unix_s: f64) -> String {
    let of = |stamp: jiff::Timestamp| stamp.strftime("%-d %B %Y, %H:%M UTC").to_string();
    jiff::Timestamp::from_second(unix_s as i64).map_or_else(|_| "at no known time".to_owned(), of)
}

/// `22 November 2026`.
pub fn day(unix_s: f64) -> String {
    let date = date(unix_s);
    date.split_once(',').map_or(date.clone(), |(day, _)| day.to_owned())
}

/// `8.2 s`, `45 s`, `2 min 5 s`, `1 h 10 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `1 GiB`, `23.4 GiB`.
pub fn bytes(bytes: u64) -> String {
    let unit = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter().find(|(_, shift)| bytes >> shift > 0);
    match unit {
        Some((unit, shift)) => {
            let number = format!("{:.1}", bytes as f64 / (1u64 << shift) as f64);
            format!("{} {unit}", number.trim_end_matches(".0"))
        }
        None => format!("{} bytes", Size(bytes)),
    }
}

/// Processors, memory and kernel of a machine, on one line.
pub fn machine(machine: &Machine) -> String {
    let Machine { cpus, model, kernel, memory_bytes, .. } = machine;
    let plural = if *cpus == 1 { "" } else { "s" };
    format!("{cpus} processor{plural} ({model}), {} of memory, Linux {kernel}", bytes(*memory_bytes))
}

/// The parts of a text. Each says whether it stood between backticks, which makes it code.
pub fn parts(text: &str) -> impl Iterator<Item = (bool, &str)> {
    // A backtick without a partner is text.
    let code = text.matches('`').count().is_multiple_of(2);
    let pieces: Vec<&str> = if code { text.split('`').collect() } else { vec![text] };
    pieces.into_iter().enumerate().map(|(n, piece)| (n % 2 == 1, piece)).filter(|(_, piece)| !piece.is_empty())
}

/// A count with its noun: `1 comparison`, `3 comparisons`.
pub fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let all = [0.0, 0.0021, 0.25, 1.0, 12.34, 999.9, 1234.0, 9999.9, 97_600.0, 999_900.0, 1.236e6, 4e9, -3.0];
        let said =
            ["0", "0.0021", "0.250", "1.00", "12.3", "1000", "1234", "10.0k", "97.6k", "1.00M", "1.24M", "4.00G"];
        assert_eq!(all.map(amount)[..12], said);
        assert_eq!(amount(-3.0), "-3.00");
        assert_eq!(
            [1.0, 2500.0, 25_000.0, 100.0, 0.5, 0.0, 1e-4].map(tick),
            ["1", "2500", "25k", "100", "0.5", "0", "1e-4"]
        );
        assert_eq!([0.0123, 1.236, 11.83, 174.5].map(times), ["0.012x", "1.24x", "11.8x", "174x"].map(String::from));
        assert_eq!(times_of(Spread { median: 1.2, low: 0.9, high: 1.31 }), "1.20x (0.90x to 1.31x)");
        assert_eq!(times_of(Spread { median: 1.2, low: 1.2, high: 1.2 }), "1.20x (one run)");
    }

    #[test]
    fn ratios() {
        let all = [0.0123, 0.976, 1.0, 1.1, 1.996, 4.52, 9.96, 83.6, 99.6, 1234.0];
        assert_eq!(
            all.map(ratio),
            ["0.012", "0.98", "1", "1.1", "2", "4.5", "10", "84", "100", "1234"].map(String::from)
        );
        assert_eq!(ratio_of(Spread { median: 4.52, low: 4.1, high: 4.84 }), "4.5 (4.1-4.8)");
        assert_eq!(ratio_of(Spread { median: 1.2, low: 1.2, high: 1.2 }), "1.2 (one run)");
    }

    #[test]
    fn code_stands_between_backticks() {
        assert_eq!(parts("run `a b`, then").collect::<Vec<_>>(), [(false, "run "), (true, "a b"), (false, ", then")]);
        assert_eq!(parts("5` long").collect::<Vec<_>>(), [(false, "5` long")]);
    }

    #[test]
    fn dates_durations_and_sizes() {
        assert_eq!(date(1_795_311_255.9), "22 November 2026, 01:34 UTC");
        assert_eq!([day(1_795_311_255.9), day(f64::INFINITY)], ["22 November 2026", "at no known time"]);
        assert_eq!([3.21, 45.3, 125.0, 4200.0].map(duration), ["3.2 s", "45 s", "2 min 5 s", "1 h 10 min"]);
        assert_eq!([1 << 30, 3 << 29, 100, 4096].map(bytes), ["1 GiB", "1.5 GiB", "100 bytes", "4 KiB"]);
    }
}
