//! What stores with their flush show: rates and latencies, beside the paper "msync under huge pages".

use fastmap_workloads::{LatencyUs, Medium, SyncWork, Syncer};

use super::Summary;
use crate::bench::figures::bars;
use crate::bench::table::figure;
use crate::results::{Axis, Headline, Paper, Point, Report, Series, Spread};

/// 4 KiB stored and flushed on persistent memory, thousands a second, as the paper has it: msync(2) where the kernel maps huge pages,
/// where it may not, and cache lines written back in user space.
const MSYNC_HUGE: f64 = 1.1;
const MSYNC_SMALL: f64 = 174.0;
const PERSIST: f64 = 192.0;

/// What is stored and flushed, in words.
pub fn words(work: SyncWork) -> &'static str {
    match work {
        SyncWork::Page => "Store 4 KiB, flush these 4 KiB",
        SyncWork::One => "Store 4 KiB, flush the whole file",
        SyncWork::All => "Store to the whole file, flush it",
    }
}

/// Fills in how it was checked, the headlines and the figures.
pub fn show(report: &mut Report<Summary>, medium: Medium, repeat: u32) {
    report.verified =
        "Before a map went, the whole file was read back through another descriptor and every byte checked.".to_owned();
    match medium {
        Medium::Tmpfs => report.notes.push(
            "There is no persistent memory here. A tmpfs stands in for it: msync(2) and FastMap's own choice need to do nothing there, so \
             they are not compared, and FastMap that writes cache lines back is compared with a bare loop that does. What msync(2) loses \
             under huge pages (1.1 thousand a second, in the paper, where 192 thousand are possible) does not show."
                .to_owned(),
        ),
        Medium::Disk => {
            report.notes.push("The file is on a disk: what the paper says of persistent memory cannot be compared.".to_owned());
        }
        Medium::Dax => {}
    }
    report.headlines =
        report.results.chunk_by(|a, b| a.work == b.work).flat_map(|of_work| headlines(of_work, medium)).collect();
    let plot = |title: &str, y, of: &dyn Fn(&Summary) -> Option<Point>| {
        let mut engines: Vec<Syncer> = Vec::new();
        report.results.iter().for_each(|s| {
            if !engines.contains(&s.engine) {
                engines.push(s.engine);
            }
        });
        let points = |engine| report.results.iter().filter(|s| s.engine == engine).filter_map(of).collect();
        let series =
            engines.iter().map(|&engine| Series { name: engine.to_string(), points: points(engine) }).collect();
        let caption = format!("Medians of {repeat} repetitions, engines in turn; one thread.");
        bars(title.to_owned(), &caption, "work", y, series)
    };
    let latency = |title, percentile: fn(&LatencyUs) -> f64| {
        let bare = |s: &Summary| Some(Point::bare(words(s.work), percentile(&s.latency_us)));
        plot(title, Axis::log("microseconds"), &bare)
    };
    let mut rates = plot("Stores with their flush", Axis::log("operations a second"), &|s| {
        Some(Point::spread(words(s.work), Spread::of(&s.runs)))
    });
    rates.paper = Some(
        "Persistent memory and msync under huge pages (abstract): 1.1 thousand a second with msync(2), 174 thousand without huge pages, \
         192 thousand with pmem_persist."
            .to_owned(),
    );
    report.figures = vec![
        rates,
        latency("Median latency of the flush", |l| l.p50),
        latency("Latency of one flush in a hundred (99th percentile)", |l| l.p99),
        plot("Bytes that a flush goes over", Axis::log("bytes"), &|s| Some(Point::bare(words(s.work), s.flush_bytes?))),
    ];
}

/// Our map to what a program has without it, where both must do something.
fn headlines(of_work: &[Summary], medium: Medium) -> Vec<Headline> {
    let work = of_work[0].work;
    let (pair, paper) = match medium {
        Medium::Tmpfs => ((Syncer::FastmapPersist, Syncer::Persist), MSYNC_SMALL / PERSIST),
        Medium::Disk | Medium::Dax => ((Syncer::Fastmap, Syncer::Msync), MSYNC_SMALL / MSYNC_HUGE),
    };
    let of = |engine| of_work.iter().find(|s| s.engine == engine);
    let Some((ours, theirs)) = of(pair.0).zip(of(pair.1)) else { return Vec::new() };
    let ratio = Spread::of_ratios(&ours.runs, &theirs.runs);
    let paper = (medium != Medium::Disk && work == SyncWork::Page).then(|| Paper {
        ratio: paper,
        source: "Persistent memory and msync under huge pages, abstract".to_owned(),
        setting: match medium {
            Medium::Tmpfs => "msync with 4 KiB pages to pmem_persist, 100 MiB on ext4 with DAX, Optane DC Persistent Memory, Linux 5.4",
            _ => "msync with 4 KiB pages to msync with huge pages, 100 MiB on ext4 with DAX, Optane DC Persistent Memory, Linux 5.4",
        }
        .to_owned(),
    });
    let lower = ratio.median < paper.as_ref().map_or(1.0, |paper| paper.ratio.max(1.0));
    let why = lower.then(|| why(ours, theirs, medium));
    let what = format!("{}: {} to {}", words(work).to_lowercase().replace("kib", "KiB"), ours.engine, theirs.engine);
    vec![Headline { what, ratio, paper, why }]
}

/// What is known of the reason.
fn why(ours: &Summary, theirs: &Summary, medium: Medium) -> String {
    let flush = |s: &Summary| figure(s.latency_us.p50);
    let (of_ours, of_theirs) = (flush(ours), flush(theirs));
    let mut text = format!("A flush takes {of_ours} us at the median, with {} {of_theirs} us.", theirs.engine);
    text.push_str(match (medium, ours.work) {
        (Medium::Disk, _) => " Both wait for the disk.",
        (_, SyncWork::Page) => " FastMap's looks up the map and counts what it does.",
        (_, SyncWork::One) => " FastMap's first asks the kernel which pages were stored to.",
        (_, SyncWork::All) => {
            " Each store after it is the first to a page that is protected again: that is how FastMap knows what it need not write back."
        }
    });
    text
}
