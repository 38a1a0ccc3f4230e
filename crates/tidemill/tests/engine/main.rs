//! The local engine with fake stages: what it commits, which failures it survives, and how much
//! memory it takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The benchmark uses other parts of it.
#[allow(dead_code)]
mod fake;
mod stages;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use proptest::prelude::*;
use tidemill::engine::stop_signal::StopSignal;
use tidemill::engine::{LocalEngine, RunSummary, Stage, StageUtilization};
use tidemill::{Error, Reporter, Result};
use tidemill_data::InputUnit;
use tidemill_store::RowCounts;

use self::fake::{Committed, FakeEncode, FakePrepare, MemorySink, MemorySource, ROW_BYTES, Row, Work, units};

/// A run of the engine: small and without failures unless a test changes it.
struct Case {
    units: Vec<InputUnit>,
    source: MemorySource,
    prepare: FakePrepare,
    encoders: Vec<FakeEncode>,
    sink: Arc<Committed>,
    batch_size: usize,
    readers: usize,
    prepare_workers: RangeInclusive<usize>,
    memory: u64,
    max_bad_fraction: f64,
    stop: Arc<StopSignal>,
}

impl Case {
    /// A run over units of these lengths.
    fn new(lengths: &[u64]) -> Self {
        Self {
            units: units(lengths),
            source: MemorySource { rows_per_batch: 40, bytes_per_row: 100, ..MemorySource::default() },
            prepare: FakePrepare::default(),
            encoders: vec![FakeEncode::default()],
            sink: Arc::default(),
            batch_size: 8,
            readers: 1,
            prepare_workers: 2..=2,
            memory: 64 << 20,
            max_bad_fraction: 1.0,
            stop: Arc::default(),
        }
    }

    /// Runs to the end. Panics if that takes more than a minute.
    fn run(self) -> (Result<RunSummary>, Vec<Row>) {
        self.run_and_inspect(|_| ()).0
    }

    /// Like [`run`](Self::run), and inspects the prepare stage after the run.
    fn run_and_inspect<T: Send + 'static>(
        self,
        inspect: impl FnOnce(&FakePrepare) -> T + Send + 'static,
    ) -> ((Result<RunSummary>, Vec<Row>), T) {
        let (done, result) = mpsc::channel();
        std::thread::spawn(move || {
            let encoders = self.encoders.into_iter();
            let engine = LocalEngine {
                source: &self.source,
                prepare: &self.prepare,
                encoders: encoders.map(|stage| Box::new(stage) as Box<dyn Stage>).collect(),
                sink: &MemorySink(self.sink.clone()),
                batch_size: self.batch_size,
                readers: self.readers,
                prepare_workers: self.prepare_workers,
                memory: self.memory,
                max_bad_fraction: self.max_bad_fraction,
                earlier_counts: RowCounts::default(),
                stop: &self.stop,
                log: None,
            };
            let progress = Reporter { json: true, quiet: true }.start_progress("test", "rows", 0);
            let result = engine.run(&self.units, &progress);
            done.send(((result, self.sink.rows()), inspect(&self.prepare))).unwrap();
        });
        result.recv_timeout(Duration::from_secs(60)).expect("the engine hangs")
    }
}

/// The least memory for a batch size and a number of encoders.
fn min_memory(batch_size: usize, encoders: usize) -> u64 {
    let mut case = Case::new(&[1]);
    (case.batch_size, case.memory) = (batch_size, 0);
    case.encoders.resize_with(encoders, FakeEncode::default);
    match case.run().0 {
        Err(Error::Memory { least, .. }) => least.as_u64(),
        other => panic!("{other:?}"),
    }
}

fn numbers(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| row.0).collect()
}

fn quarantined_rows(rows: &[Row]) -> Vec<(u64, &str)> {
    let bad = rows.iter().filter(|row| row.1 == "quarantined");
    bad.map(|row| (row.0, row.2.as_deref().unwrap())).collect()
}

prop_compose! {
    /// No delay mostly, or some microseconds per row.
    fn delay()(micros in prop_oneof![3 => Just(0), 1 => 1..300u64]) -> Work {
        if micros == 0 { Work::Nothing } else { Work::Sleep(Duration::from_micros(micros)) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_and_encode_batches_depend_on_the_units_alone(
        lengths in prop::collection::vec(0..150u64, 1..6),
        (keeps_one_in, batch_size) in (prop_oneof![Just(0), Just(3), Just(1000)], 1..10usize),
        (rows_per_batch, bytes_per_row) in (1..80u64, prop_oneof![Just(10), Just(10_000)]),
        (readers, encoders, min_workers, more_workers) in (1..4usize, 1..4usize, 1..4usize, 0..3usize),
        memory in prop_oneof![Just(1.0), Just(1.3), Just(100.0)],
        delays in [delay(), delay(), delay(), delay()],
    ) {
        let case = || {
            let mut case = Case::new(&lengths);
            (case.batch_size, case.prepare.keeps_one_in) = (batch_size, keeps_one_in);
            case.source = MemorySource { rows_per_batch, bytes_per_row, ..MemorySource::default() };
            case
        };
        let (plain, expected) = case().run();
        let total: u64 = lengths.iter().sum();
        prop_assert_eq!(numbers(&expected), (0..total).collect::<Vec<_>>());

        let mut case = case();
        case.readers = readers;
        case.prepare_workers = min_workers..=min_workers + more_workers;
        case.memory = (min_memory(batch_size, encoders) as f64 * memory) as u64;
        [case.source.work, case.prepare.work, _, _] = delays;
        case.encoders = (0..encoders).map(|_| FakeEncode { work: delays[2], ..FakeEncode::default() }).collect();
        case.sink = Arc::new(Committed { work: delays[3], ..Committed::default() });
        let (summary, rows) = case.run();
        let (plain, summary) = (plain.unwrap(), summary.unwrap());
        prop_assert_eq!(rows, expected);
        prop_assert_eq!(&summary.counts, &plain.counts);
        prop_assert_eq!((summary.counts.read, summary.units), (total, lengths.len()));
        let memory = summary.memory.unwrap();
        prop_assert!(memory.peak <= memory.limit, "{memory:?}");
    }
}

#[test]
fn panic_quarantines_only_the_row_that_causes_it() {
    let mut case = Case::new(&[100, 50]);
    case.prepare.panics_at = vec![3, 4, 117];
    case.encoders[0].panics_at = vec![60, 149];
    let (summary, rows) = case.run();
    let summary = summary.unwrap();
    assert_eq!(numbers(&rows), (0..150).collect::<Vec<_>>());
    let expected = [
        (3, "panic: prepare: cannot prepare 3"),
        (4, "panic: prepare: cannot prepare 4"),
        (60, "panic: encode: cannot encode 60"),
        (117, "panic: prepare: cannot prepare 117"),
        (149, "panic: encode: cannot encode 149"),
    ];
    assert_eq!(quarantined_rows(&rows), expected);
    let counts = summary.counts;
    assert_eq!((counts.read, counts.kept, counts.quarantined["panic"]), (150, 145, 5));
    let per_stage =
        |number: fn(&StageUtilization) -> u64| summary.utilization.iter().map(number).collect::<Vec<_>>();
    assert_eq!(per_stage(|stage| stage.rows), [150; 4]);
    assert_eq!(per_stage(|stage| stage.retried), [0, 2, 2, 0]);
}

#[test]
fn stage_is_reset_after_each_panic() {
    let mut case = Case::new(&[4]);
    case.prepare.panics_at = vec![1];
    (case.source.rows_per_batch, case.batch_size, case.prepare_workers) = (4, 4, 1..=1);
    let ((summary, _), resets) = case.run_and_inspect(|prepare| prepare.resets.load(Ordering::Relaxed));
    summary.unwrap();
    // It panics on the batch of four rows, on its first half, and on the row alone.
    assert_eq!(resets, 3);
}

#[test]
fn batch_that_does_not_fit_the_device_is_encoded_in_parts() {
    let mut case = Case::new(&[100]);
    case.encoders[0].max_kept_rows = Some(3);
    let (summary, rows) = case.run();
    assert_eq!(numbers(&rows), (0..100).collect::<Vec<_>>());
    assert_eq!(summary.unwrap().counts.kept, 100);
}

#[test]
fn row_that_fails_alone_is_quarantined() {
    let mut case = Case::new(&[99]);
    // Row 98 is alone in its batch.
    case.encoders[0].fails_at = vec![20, 98];
    case.batch_size = 7;
    let (summary, rows) = case.run();
    let reason = "encode: out of memory";
    assert_eq!(quarantined_rows(&rows), [(20, reason), (98, reason)]);
    assert_eq!(summary.unwrap().counts.kept, 97);
}

#[test]
fn device_that_fails_on_every_row_stops_the_run() {
    for fails_at in [(0..100).collect::<Vec<u64>>(), (48..100).collect()] {
        let mut case = Case::new(&[40, 60]);
        case.encoders[0].fails_at = fails_at;
        let (result, rows) = case.run();
        assert!(result.unwrap_err().to_string().contains("out of memory"));
        assert!(rows.len() <= 40, "an incomplete unit was committed");
    }
}

#[test]
fn errors_stop_the_run_and_commit_no_partial_unit() {
    type Change = fn(&mut Case);
    let cases: [(&str, Change); 5] = [
        ("no such column", |case| case.prepare.fails_at = Some(130)),
        ("it vanished", |case| case.source.fails_at = Some(130)),
        ("cannot begin", |case| case.sink = failing_sink("begin")),
        ("cannot write", |case| case.sink = failing_sink("write")),
        ("cannot commit", |case| case.sink = failing_sink("commit")),
    ];
    for (message, change) in cases {
        for encoders in [1, 2] {
            let mut case = Case::new(&[50, 100, 100, 100, 100, 100]);
            case.encoders.resize_with(encoders, FakeEncode::default);
            case.memory = min_memory(8, encoders);
            change(&mut case);
            let sink = case.sink.clone();
            let (result, _) = case.run();
            let error = result.unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            for (name, rows) in sink.units.lock().unwrap().iter() {
                assert_eq!(rows.len(), if name == "000" { 50 } else { 100 }, "{message}");
            }
        }
    }
}

fn failing_sink(operation: &'static str) -> Arc<Committed> {
    Arc::new(Committed { failing_operation: operation, ..Committed::default() })
}

#[test]
fn stop_signal_lets_units_in_work_finish() {
    let mut case = Case::new(&[100; 50]);
    let stop = case.stop.clone();
    let on_commit: Box<dyn Fn() + Send + Sync> = Box::new(move || stop.raise());
    case.sink = Arc::new(Committed { on_commit: Some(on_commit), ..Committed::default() });
    case.encoders =
        vec![FakeEncode { work: Work::Sleep(Duration::from_micros(50)), ..FakeEncode::default() }];
    let (result, rows) = case.run();
    let Err(Error::Interrupted { done, total: 50, .. }) = result else { panic!("{result:?}") };
    assert!((1..10).contains(&done), "{done} units");
    assert_eq!(rows.len() as u64, 100 * done);
}

#[test]
fn pipeline_waits_for_room_in_the_sink_until_the_run_stops() {
    // Success; the unit that the others wait for fails; the run is stopped.
    for (fails_at, stops) in [(None, false), (Some(390), false), (None, true)] {
        let mut case = Case::new(&[400, 10, 10, 10, 10, 10, 10, 10]);
        let work = Work::Sleep(Duration::from_micros(50));
        case.encoders.resize_with(3, || FakeEncode { work, ..FakeEncode::default() });
        case.memory = min_memory(8, 3);
        case.prepare.fails_at = fails_at;
        let stop = case.stop.clone();
        let on_write: Box<dyn Fn(usize) + Send + Sync> = Box::new(move |_| {
            if stops {
                stop.raise();
            }
        });
        case.sink =
            Arc::new(Committed { units_ahead: Some(1), on_write: Some(on_write), ..Committed::default() });
        let (result, rows) = case.run();
        match (fails_at, stops) {
            (None, false) => assert_eq!((result.unwrap().units, rows.len()), (8, 470)),
            (Some(_), _) => assert!(result.unwrap_err().to_string().contains("no such column")),
            (_, true) => assert!(matches!(result, Err(Error::Interrupted { .. })), "{result:?}"),
        }
    }
}

#[test]
fn too_many_unreadable_rows_stop_the_run() {
    for (lengths, committed) in [(&[50, 50][..], 50), (&[50, 1000, 1000], 50)] {
        let mut case = Case::new(lengths);
        case.prepare.panics_at = (0..2050).step_by(2).collect();
        case.max_bad_fraction = 0.4;
        let (result, rows) = case.run();
        assert!(matches!(result, Err(Error::TooManyBad { .. })), "{result:?}");
        assert_eq!(rows.len(), committed, "small units pass, the last unit does not");
    }
}

/// A slow sink, and the greatest number of counted rows that were not written yet.
fn slow_sink(counted: Arc<AtomicU64>) -> (Arc<Committed>, Arc<AtomicU64>) {
    let (written, most) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let on_write: Box<dyn Fn(usize) + Send + Sync> = {
        let most = most.clone();
        Box::new(move |rows| {
            let written = written.fetch_add(rows as u64, Ordering::Relaxed);
            most.fetch_max(counted.load(Ordering::Relaxed) - written, Ordering::Relaxed);
        })
    };
    let work = Work::Sleep(Duration::from_micros(100));
    (Arc::new(Committed { work, on_write: Some(on_write), ..Committed::default() }), most)
}

/// The greatest number of rows that were read and not yet written.
fn max_rows_in_flight(memory: u64) -> u64 {
    let mut case = Case::new(&[500; 4]);
    (case.memory, case.readers) = (memory, 3);
    let (sink, most) = slow_sink(case.source.read.clone());
    case.sink = sink;
    case.run().0.unwrap();
    most.load(Ordering::Relaxed)
}

#[test]
fn backpressure_of_a_slow_writer_stops_the_readers() {
    let memory = 400_000;
    let least = min_memory(8, 1);
    assert!(memory > least, "{least}");
    // A quarter of the memory is for rows of at least 100 bytes as read, the rest for prepared and
    // encoded rows. Each reader may also have read a batch that does not fit yet.
    let bound = memory / 4 / 100 + memory * 3 / 4 / (2 * ROW_BYTES) + 3 * 40;
    assert!(bound < 1500);
    let most = max_rows_in_flight(memory);
    assert!(most <= bound, "{most} rows in flight, at most {bound} fit");
    assert!(max_rows_in_flight(1 << 30) > most, "the memory did not limit the rows in flight");
}

#[test]
fn carried_bytes_count_as_work_and_never_block_the_run() {
    let memory = 16_000_000;
    // If memory suffices, queues limit the rows in flight. Of heavy rows, there is room for an
    // unfinished batch and a prepare task of each pipeline.
    for (carried_bytes, bound) in [(0, u64::MAX), (50_000, 230), (1 << 40, 2 * (32 + 32))] {
        let mut case = Case::new(&[500; 4]);
        (case.memory, case.readers, case.prepare.carried_bytes) = (memory, 3, carried_bytes);
        case.encoders.resize_with(2, FakeEncode::default);
        let (sink, most) = slow_sink(case.prepare.prepared.clone());
        case.sink = sink;
        let (summary, rows) = case.run();
        let (peak, most) = (summary.unwrap().memory.unwrap().peak, most.load(Ordering::Relaxed));
        assert!(rows.len() == 2000 && peak <= memory, "{peak} bytes");
        assert!(
            most <= bound && (carried_bytes > 0 || most > 230),
            "{most} rows in flight, of {carried_bytes} bytes"
        );
    }
}

#[test]
fn batch_larger_than_its_memory_share_passes_alone() {
    let mut case = Case::new(&[100, 100]);
    case.memory = min_memory(8, 1);
    case.source.bytes_per_row = case.memory as usize;
    case.source.rows_per_batch = 1;
    case.readers = 2;
    let (summary, rows) = case.run();
    let memory = summary.unwrap().memory;
    assert_eq!(rows.len(), 200);
    let memory = memory.unwrap();
    assert!(memory.peak <= memory.limit);
}

#[test]
fn too_little_memory_is_refused() {
    let mut case = Case::new(&[10]);
    case.memory = min_memory(8, 1) - 1;
    let error = case.run().0.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(message.contains("engine.memory") && message.contains("encode.batch_size"), "{message}");
}
