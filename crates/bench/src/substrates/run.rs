//! One measurement, from opening the file to checking its last byte.

use crate::substrates::engine::{self, Access, Cached, Load};
use crate::substrates::measure::{self, Shadow};
use crate::substrates::readback;
use crate::substrates::{Meter, Reading, Result, Spec};

/// Runs `spec` in this process.
///
/// # Errors
///
/// The engine cannot run, or an operation or the read-back meets a wrong byte.
pub fn run(spec: &Spec, meter: &Meter) -> Result<Reading> {
    checked(spec, meter, |shadow| engine::with(spec, Measure { spec, shadow, meter }))
}

/// Calls `measure`. If the spec's operation writes, reads the file back and checks it.
///
/// # Errors
///
/// As [`run`].
pub fn checked(spec: &Spec, meter: &Meter, measure: impl FnOnce(&Shadow) -> Result<Reading>) -> Result<Reading> {
    let writes = spec.op.writes();
    let shadow = Shadow::new(spec.epoch, if writes { spec.pages } else { 0 });
    let reading = measure(&shadow)?;
    meter.let_go();
    if writes {
        readback::read_back(spec, &shadow)?;
    }
    Ok(reading)
}

struct Measure<'a> {
    spec: &'a Spec,
    shadow: &'a Shadow,
    meter: &'a Meter,
}

impl Load for Measure<'_> {
    type Output = Reading;

    fn over<A: Access>(self, access: &A, cached: Option<&Cached<'_>>) -> Result<Reading> {
        measure::measure(self.spec, access, self.shadow, cached, self.meter)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::substrates::{Advice, Engine, Error, Op, PAGE, Pattern, prepare};

    const PAGES: u64 = 512;

    fn spec(file: &tempfile::NamedTempFile, engine: Engine, pattern: Pattern, op: Op) -> Spec {
        Spec {
            engine,
            pattern,
            op,
            threads: 2,
            advice: Advice::Normal,
            path: file.path().to_owned(),
            label: "file".to_owned(),
            pages: PAGES,
            memory: None,
            seconds: 0.05,
            epoch: 0,
            cold: false,
        }
    }

    fn stamped() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        prepare::fill(file.as_file(), "file", 0, PAGES, prepare::stamp_page, |_| true).unwrap();
        file
    }

    #[test]
    fn every_engine_fills_a_file_to_the_last_byte() {
        for &engine in Engine::PAGED {
            // Plain calls write 1 MiB at a time (256 pages). With 515 pages neither the file nor a thread's part ends with a whole call.
            for pages in [PAGES, 515] {
                let file = stamped();
                let mut spec = spec(&file, engine, Pattern::Fill, Op::Write);
                (spec.pages, spec.threads) = (pages, 3);
                spec.epoch = prepare::next_epoch(file.as_file(), "file").unwrap();
                prepare::make_sparse(file.as_file(), "file", pages).unwrap();
                let outcome = run(&spec, &Meter::default()).unwrap_or_else(|e| panic!("{engine}: {e}"));
                assert_eq!(outcome.ops, pages, "{engine}");
                assert_eq!(prepare::next_epoch(file.as_file(), "file").unwrap(), spec.epoch + 1, "{engine}");
                prepare::survey(file.as_file(), "file", pages).unwrap();
                if let Some(writeback) = outcome.writeback {
                    assert!(writeback.pages >= pages && writeback.bytes == writeback.pages * PAGE as u64);
                    assert!(writeback.runs > 0 && writeback.merge_ratio >= 1.0);
                }
                if let Some(device) = outcome.device {
                    assert!(device.write_bytes >= pages * PAGE as u64, "{engine}: {device:?}");
                    assert!(device.writes > 0 && device.average_write_bytes >= 512.0);
                }
            }
        }
    }

    #[test]
    fn a_page_that_a_fill_did_not_reach_is_found() {
        let file = stamped();
        prepare::make_sparse(file.as_file(), "file", PAGES).unwrap();
        let spec = spec(&file, Engine::Pread, Pattern::Fill, Op::Write);
        assert!(matches!(readback::read_back(&spec, &Shadow::new(1, PAGES)), Err(Error::Stamp { found: 0, .. })));
    }

    /// Runs every engine given with every pattern and op, one after the other on one file. Each run that writes has a higher epoch.
    fn run_all(engines: &[Engine]) {
        let file = stamped();
        for &engine in engines {
            for pattern in
                [Pattern::Random, Pattern::Zipf, Pattern::Forward, Pattern::Backward, Pattern::Stride, Pattern::Order]
            {
                for op in [Op::Read, Op::Write, Op::Rmw] {
                    let mut spec = spec(&file, engine, pattern, op);
                    if op.writes() {
                        spec.epoch = prepare::next_epoch(file.as_file(), "file").unwrap();
                    }
                    let outcome =
                        run(&spec, &Meter::default()).unwrap_or_else(|e| panic!("{engine} {pattern} {op}: {e}"));
                    assert!(
                        outcome.ops > 0
                            && outcome.seconds >= 0.05
                            && outcome.latency_us.is_some_and(|l| l.p50 <= l.max)
                    );
                }
            }
        }
    }

    #[test]
    fn kernel_maps_run_every_load() {
        run_all(&[Engine::Mmap, Engine::MmapRandom, Engine::MmapSequential]);
    }

    #[test]
    fn kernel_maps_told_ahead_run_every_load() {
        run_all(&[Engine::MmapWillneed, Engine::MmapFadvise, Engine::MmapPopulate]);
    }

    #[test]
    fn calls_run_every_load() {
        run_all(&[Engine::Pread, Engine::Direct]);
    }

    #[test]
    fn fastmap_runs_every_load() {
        run_all(&[Engine::Fastmap]);
    }

    #[test]
    fn fastmap_pinned_and_prefetched_runs_every_load() {
        run_all(&[Engine::FastmapPin, Engine::FastmapPrefetch]);
    }

    #[test]
    fn advice_is_given_and_counters_come_back() {
        let file = stamped();
        for &name in Advice::NAMES {
            for engine in [Engine::Fastmap, Engine::FastmapPin, Engine::FastmapPrefetch] {
                let mut spec = spec(&file, engine, Pattern::Backward, Op::Read);
                spec.advice = name.parse().unwrap();
                let outcome = run(&spec, &Meter::default()).unwrap_or_else(|e| panic!("{engine}, advice {name}: {e}"));
                let (hits, ahead) = (outcome.hits.unwrap(), outcome.readahead.unwrap());
                assert!((0.0..=1.0).contains(&hits.hit_ratio), "{engine} {name}: {hits:?}");
                // An operation loads three words of a page, and other threads may evict the page between two loads. The
                // bound leaves room for one more operation of each thread.
                let looks = 3 * (outcome.ops + spec.threads as u64);
                assert!(hits.misses + ahead.chunks <= looks, "{engine} {name}: {looks} {hits:?} {ahead:?}");
                assert!(outcome.writeback.is_none());
            }
        }
        let kernel = run(&spec(&file, Engine::Mmap, Pattern::Backward, Op::Read), &Meter::default()).unwrap();
        assert!(kernel.hits.is_none() && kernel.readahead.is_none());
    }

    #[test]
    fn a_direct_scan_takes_the_file_s_odd_end_and_each_thread_s_part() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        prepare::fill(file.as_file(), "file", 0, 1300, prepare::stamp_page, |_| true).unwrap();
        for pattern in [Pattern::Forward, Pattern::Backward] {
            let mut spec = spec(&file, Engine::Direct, pattern, Op::Read);
            (spec.pages, spec.threads) = (1300, 3);
            // Until all of the file is read at least once: a disk may have other work.
            while run(&spec, &Meter::default()).unwrap_or_else(|e| panic!("{pattern}: {e}")).ops < 1300 {
                spec.seconds *= 2.0;
                assert!(spec.seconds < 100.0, "{pattern}");
            }
        }
    }

    #[test]
    fn a_flipped_byte_fails_the_run_and_is_located() {
        for &engine in Engine::PAGED {
            let file = stamped();
            file.as_file().write_all_at(&[0xff], 300 * 4096 + 4095).unwrap();
            match run(&spec(&file, engine, Pattern::Forward, Op::Read), &Meter::default()) {
                Err(Error::Stamp { page: 300, offset, .. }) => assert_eq!(offset, 300 * 4096 + 4088),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_read_back_finds_a_byte_that_no_operation_looks_at() {
        let file = stamped();
        file.as_file().write_all_at(&[0xff], 300 * 4096 + 1000).unwrap();
        run(&spec(&file, Engine::Mmap, Pattern::Forward, Op::Read), &Meter::default())
            .expect("operations look at three words");
        let mut spec = spec(&file, Engine::Mmap, Pattern::Forward, Op::Write);
        spec.epoch = prepare::next_epoch(file.as_file(), "file").unwrap();
        assert!(matches!(run(&spec, &Meter::default()), Err(Error::Stamp { page: 300, .. })));
    }

    #[test]
    fn the_read_back_finds_a_lost_store() {
        let file = stamped();
        let spec = spec(&file, Engine::Mmap, Pattern::Random, Op::Write);
        let shadow = Shadow::new(0, PAGES);
        shadow.next(77);
        assert!(matches!(readback::read_back(&spec, &shadow), Err(Error::Generation { page: 77, found: 0, .. })));
        let bytes = shadow.next(77).to_le_bytes();
        File::options().write(true).open(&spec.path).unwrap().write_all_at(&bytes, 77 * 4096 + 8).unwrap();
        readback::read_back(&spec, &shadow).unwrap();
    }
}
