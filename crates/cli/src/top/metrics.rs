//! Writes the figures of processes as OpenMetrics text, version 1.0.0 (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).

use std::fmt::Write;

use super::observed::{Observed, PAGE};
use super::watch::Watch;
use crate::table::printable;

/// The content type that the specification gives.
pub const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A number of a process.
enum Number {
    Count(u64),
    Seconds(f64),
}

/// A family of metrics: its name, kind, unit and help, and a function for the number of a process. The function returns `None` if the number is not
/// known.
struct Family {
    name: &'static str,
    is_counter: bool,
    unit: &'static str,
    help: &'static str,
    of: fn(&Observed) -> Option<Number>,
}

const FAMILIES: [Family; 9] = [
    gauge("fastmap_process_mapped_bytes", "bytes", "Data files mapped.", |one| count(one.mapped_bytes())),
    gauge("fastmap_process_resident_bytes", "bytes", "Of these, mapped into the process now.", |one| {
        one.resident_bytes().and_then(count)
    }),
    counter("fastmap_process_waited_faults", "", "Faults that waited for a device, since the process began.", |one| {
        count(one.totals().spent.major_faults)
    }),
    counter("fastmap_process_read_bytes", "bytes", "Read from devices for the process, since it began.", |one| {
        count(one.totals().spent.read_bytes)
    }),
    counter("fastmap_process_touched_bytes", "bytes", "Pages that came to be mapped, since the watch began.", |one| {
        count(one.totals().touched_pages * PAGE)
    }),
    counter(
        "fastmap_process_blocked_seconds",
        "seconds",
        "Time of threads with faults neither on a processor nor waiting for one, since the watch began.",
        |one| Some(Number::Seconds(one.totals().blocked.as_secs_f64())),
    ),
    counter(
        "fastmap_process_group_refaults",
        "",
        "Pages read again soon after they were dropped, in its memory group.",
        |one| one.totals().refaults.and_then(count),
    ),
    gauge("fastmap_process_steered", "", "Whether FastMap steers the process.", |one| {
        count(u64::from(one.steered.is_some()))
    }),
    gauge("fastmap_process_needs_advice", "", "Whether fastmap top has advice for the process.", |one| {
        count(u64::from(one.advice().is_some()))
    }),
];

const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    of: fn(&Observed) -> Option<Number>,
) -> Family {
    Family { name, is_counter: false, unit, help, of }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    of: fn(&Observed) -> Option<Number>,
) -> Family {
    Family { name, is_counter: true, unit, help, of }
}

fn count(number: u64) -> Option<Number> {
    Some(Number::Count(number))
}

/// The whole exposition.
pub fn text(watch: &Watch) -> String {
    exposition(&watch.processes(), watch.hidden())
}

fn exposition(processes: &[&Observed], hidden: usize) -> String {
    let mut out = String::new();
    for family in &FAMILIES {
        begin(&mut out, family);
        for process in processes {
            sample(&mut out, family, process);
        }
    }
    out.push_str("# TYPE fastmap_processes_left_out gauge\n");
    out.push_str("# HELP fastmap_processes_left_out Processes that may not be looked at.\n");
    let _ = writeln!(out, "fastmap_processes_left_out {hidden}");
    out.push_str("# EOF\n");
    out
}

fn begin(out: &mut String, family: &Family) {
    let Family { name, unit, help, .. } = family;
    let _ = writeln!(out, "# TYPE {name} {}", if family.is_counter { "counter" } else { "gauge" });
    if !unit.is_empty() {
        let _ = writeln!(out, "# UNIT {name} {unit}");
    }
    let _ = writeln!(out, "# HELP {name} {}", escaped(help));
}

fn sample(out: &mut String, family: &Family, process: &Observed) {
    let Some(number) = (family.of)(process) else { return };
    let total = if family.is_counter { "_total" } else { "" };
    let _ = write!(out, "{}{total}{{pid=\"{}\",name=\"{}\"}} ", family.name, process.pid(), escaped(process.name()));
    let _ = match number {
        Number::Count(number) => writeln!(out, "{number}"),
        // Seconds always have a decimal point.
        Number::Seconds(seconds) => writeln!(out, "{seconds:.6}"),
    };
}

/// Escapes line feeds, quotation marks and backslashes. Other control characters become `?`: a carriage return is not allowed at all.
fn escaped(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n").replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::observed::tests::made_up;
    use std::collections::BTreeSet;

    #[test]
    fn the_text_is_as_the_specification_has_it() {
        let processes = [made_up(7, "db"), made_up(8, "a \"quoted\" \\ name\n")];
        let text = exposition(&processes.iter().collect::<Vec<_>>(), 3);
        assert!(text.ends_with("\n# EOF\n") && !text.contains('\r'));
        assert_eq!(text.matches("# EOF").count(), 1);
        let (mut family, mut families) = ("", BTreeSet::new());
        for line in text.lines().filter(|line| *line != "# EOF") {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match (words[0], words[1]) {
                ("#", "TYPE") => {
                    family = words[2];
                    assert!(families.insert(family), "{family} comes twice");
                    assert!(["gauge", "counter"].contains(&words[3]), "{line}");
                }
                ("#", "UNIT") => assert!(words[2] == family && family.ends_with(&format!("_{}", words[3])), "{line}"),
                ("#", "HELP") => assert!(words[2] == family && !words[3].is_empty(), "{line}"),
                _ => {
                    let is_counter = text.contains(&format!("# TYPE {family} counter\n"));
                    let name = line.split(['{', ' ']).next().unwrap();
                    assert_eq!(name.strip_suffix("_total"), is_counter.then_some(family), "{line}");
                    assert!(is_counter || name == family, "{line}");
                    line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
                }
            }
        }
        assert_eq!(families.len(), FAMILIES.len() + 1);
        for line in [
            "fastmap_process_mapped_bytes{pid=\"7\",name=\"db\"} 67108864\n",
            "fastmap_process_waited_faults_total{pid=\"7\",name=\"db\"} 1512\n",
            "fastmap_process_blocked_seconds_total{pid=\"8\",name=\"a \\\"quoted\\\" \\\\ name\\n\"} 0.512000\n",
            "fastmap_process_needs_advice{pid=\"7\",name=\"db\"} 1\n",
            "fastmap_processes_left_out 3\n",
        ] {
            assert!(text.contains(line), "no {line}in\n{text}");
        }
    }

    /// The names in `contrib/grafana.json`, and those that are served.
    #[test]
    fn the_dashboard_shows_all_metrics_and_no_others() {
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../../../contrib/grafana.json")).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let is_of_a_name = |one: char| one.is_ascii_lowercase() || one == '_';
        let shown: BTreeSet<_> = targets
            .flat_map(|target| target["expr"].as_str().unwrap().split(|one| !is_of_a_name(one)))
            .filter(|word| word.starts_with("fastmap_"))
            .collect();
        let text = exposition(&[&made_up(7, "db")], 3);
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let served: BTreeSet<_> = samples.map(|line| line.split(['{', ' ']).next().unwrap()).collect();
        assert_eq!(shown, served);
    }

    #[test]
    fn nobody_is_a_text_too() {
        let text = exposition(&[], 0);
        assert!(text.starts_with("# TYPE fastmap_process_mapped_bytes gauge\n") && text.ends_with("# EOF\n"));
    }
}
