//! The local engine with fake stages: what it commits, what it survives, and what it takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// The benchmark uses it as well.
#[allow(dead_code)]
mod fake;
mod stages;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use proptest::prelude::*;
use tidemill::engine::stop_signal::StopSignal;
use tidemill::engine::{Local, Stage, Summary, Utilisation};
use tidemill::{Error, Reporter, Result};
use tidemill_data::InputUnit;
use tidemill_store::RowCounts;

use self::fake::{Committed, FakeEncode, FakePrepare, Memory, ROW_BYTES, Row, Rows, Work, units};

/// A run to be: what is not said is small and plain.
struct Case {
    units: Vec<InputUnit>,
    source: Rows,
    prepare: FakePrepare,
    encode: Vec<FakeEncode>,
    sink: Arc<Committed>,
    batch_size: usize,
    readers: usize,
    workers: (usize, usize),
    memory: u64,
    max_bad_fraction: f64,
    stop: Arc<StopSignal>,
}

impl Case {
    fn new(lengths: &[u64]) -> Self {
        Self {
            units: units(lengths),
            source: Rows { rows_per_batch: 40, bytes_per_row: 100, ..Rows::default() },
            prepare: FakePrepare::default(),
            encode: vec![FakeEncode::default()],
            sink: Arc::default(),
            batch_size: 8,
            readers: 1,
            workers: (2, 2),
            memory: 64 << 20,
            max_bad_fraction: 1.0,
            stop: Arc::default(),
        }
    }

    /// Runs to the end, and panics if that takes too long.
    fn run(self) -> (Result<Summary>, Vec<Row>) {
        let (done, result) = mpsc::channel();
        std::thread::spawn(move || {
            let engine = Local {
                source: &self.source,
                prepare: &self.prepare,
                encode: self.encode.into_iter().map(|stage| Box::new(stage) as Box<dyn Stage>).collect(),
                sink: &Memory(self.sink.clone()),
                batch_size: self.batch_size,
                readers: self.readers,
                workers: self.workers,
                memory: self.memory,
                max_bad_fraction: self.max_bad_fraction,
                before: RowCounts::default(),
                stop: &self.stop,
            };
            let progress = Reporter { json: true, quiet: true }.start_progress("test", "rows", 0);
            let result = engine.run(&self.units, &progress);
            done.send((result, self.sink.rows())).unwrap();
        });
        result.recv_timeout(Duration::from_secs(60)).expect("the engine hangs")
    }
}

/// The least memory for a batch size and a number of encoders.
fn least_memory(batch_size: usize, encoders: usize) -> u64 {
    let mut case = Case::new(&[1]);
    (case.batch_size, case.memory) = (batch_size, 0);
    case.encode.resize_with(encoders, FakeEncode::default);
    match case.run().0 {
        Err(Error::Memory { least, .. }) => least.as_u64(),
        other => panic!("{other:?}"),
    }
}

fn numbers(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| row.0).collect()
}

fn quarantined(rows: &[Row]) -> Vec<(u64, &str)> {
    let bad = rows.iter().filter(|row| row.1 == "quarantined");
    bad.map(|row| (row.0, row.2.as_deref().unwrap())).collect()
}

prop_compose! {
    /// Microseconds, mostly none.
    fn delay()(micros in prop_oneof![3 => Just(0), 1 => 1..300u64]) -> Work {
        if micros == 0 { Work::Nothing } else { Work::Sleep(Duration::from_micros(micros)) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rows come in order, and what is encoded together does not depend on who does it when.
    #[test]
    fn rows_and_cuts_depend_on_the_units_alone(
        lengths in prop::collection::vec(0..150u64, 1..6),
        (keeps_one_in, batch_size) in (prop_oneof![Just(0), Just(3), Just(1000)], 1..10usize),
        (rows_per_batch, bytes_per_row) in (1..80u64, prop_oneof![Just(10), Just(10_000)]),
        (readers, encoders, least, more) in (1..4usize, 1..4usize, 1..4usize, 0..3usize),
        memory in prop_oneof![Just(1.0), Just(1.3), Just(100.0)],
        delays in [delay(), delay(), delay(), delay()],
    ) {
        let case = || {
            let mut case = Case::new(&lengths);
            (case.batch_size, case.prepare.keeps_one_in) = (batch_size, keeps_one_in);
            case.source = Rows { rows_per_batch, bytes_per_row, ..Rows::default() };
            case
        };
        let (plain, expected) = case().run();
        let total: u64 = lengths.iter().sum();
        prop_assert_eq!(numbers(&expected), (0..total).collect::<Vec<_>>());

        let mut case = case();
        (case.readers, case.workers) = (readers, (least, least + more));
        case.memory = (least_memory(batch_size, encoders) as f64 * memory) as u64;
        [case.source.work, case.prepare.work, _, _] = delays;
        case.encode = (0..encoders).map(|_| FakeEncode { work: delays[2], ..FakeEncode::default() }).collect();
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
fn a_panic_costs_the_guilty_row_alone() {
    let mut case = Case::new(&[100, 50]);
    case.prepare.panics_at = vec![3, 4, 117];
    case.encode[0].panics_at = vec![60, 149];
    let (summary, rows) = case.run();
    let summary = summary.unwrap();
    assert_eq!(numbers(&rows), (0..150).collect::<Vec<_>>());
    let expected = [
        (3, "panic: prepare: cannot stand 3"),
        (4, "panic: prepare: cannot stand 4"),
        (60, "panic: encode: cannot encode 60"),
        (117, "panic: prepare: cannot stand 117"),
        (149, "panic: encode: cannot encode 149"),
    ];
    assert_eq!(quarantined(&rows), expected);
    let counts = summary.counts;
    assert_eq!((counts.read, counts.kept, counts.quarantined["panic"]), (150, 145, 5));
    let of_stages =
        |number: fn(&Utilisation) -> u64| summary.utilisation.iter().map(number).collect::<Vec<_>>();
    assert_eq!(of_stages(|stage| stage.rows), [150; 4]);
    assert_eq!(of_stages(|stage| stage.retried), [0, 2, 2, 0]);
}

#[test]
fn a_stage_is_restarted_after_each_panic() {
    let prepare = FakePrepare { panics_at: vec![1], ..FakePrepare::default() };
    let source = Rows { rows_per_batch: 4, ..Rows::default() };
    let engine = Local {
        source: &source,
        prepare: &prepare,
        encode: vec![Box::new(FakeEncode::default())],
        sink: &Memory(Arc::default()),
        batch_size: 4,
        readers: 1,
        workers: (1, 1),
        memory: 64 << 20,
        max_bad_fraction: 1.0,
        before: RowCounts::default(),
        stop: &StopSignal::default(),
    };
    let progress = Reporter { json: true, quiet: true }.start_progress("test", "rows", 0);
    engine.run(&units(&[4]), &progress).unwrap();
    // Four rows, two rows, one row.
    assert_eq!(prepare.restarts.load(Ordering::Relaxed), 3);
}

#[test]
fn a_batch_that_does_not_fit_the_device_is_encoded_in_parts() {
    let mut case = Case::new(&[100]);
    case.encode[0].fits = Some(3);
    let (summary, rows) = case.run();
    assert_eq!(numbers(&rows), (0..100).collect::<Vec<_>>());
    assert_eq!(summary.unwrap().counts.kept, 100);
}

#[test]
fn a_row_that_fails_alone_is_quarantined() {
    let mut case = Case::new(&[99]);
    // The last one is alone in its batch.
    case.encode[0].fails_at = vec![20, 98];
    case.batch_size = 7;
    let (summary, rows) = case.run();
    let reason = "encode: out of memory";
    assert_eq!(quarantined(&rows), [(20, reason), (98, reason)]);
    assert_eq!(summary.unwrap().counts.kept, 97);
}

#[test]
fn a_device_that_fails_on_every_row_stops_the_run() {
    for fails_at in [(0..100).collect::<Vec<u64>>(), (48..100).collect()] {
        let mut case = Case::new(&[40, 60]);
        case.encode[0].fails_at = fails_at;
        let (result, rows) = case.run();
        assert!(result.unwrap_err().to_string().contains("out of memory"));
        assert!(rows.len() <= 40, "an incomplete unit was committed");
    }
}

#[test]
fn errors_stop_the_run_and_commit_no_part_of_a_unit() {
    type Change = fn(&mut Case);
    let cases: [(&str, Change); 5] = [
        ("no such column", |case| case.prepare.fails_at = Some(130)),
        ("it vanished", |case| case.source.fails_at = Some(130)),
        ("cannot begin", |case| case.sink = fails_to("begin")),
        ("cannot write", |case| case.sink = fails_to("write")),
        ("cannot commit", |case| case.sink = fails_to("commit")),
    ];
    for (message, change) in cases {
        for encoders in [1, 2] {
            let mut case = Case::new(&[50, 100, 100, 100, 100, 100]);
            case.encode.resize_with(encoders, FakeEncode::default);
            case.memory = least_memory(8, encoders);
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

fn fails_to(step: &'static str) -> Arc<Committed> {
    Arc::new(Committed { fails_to: step, ..Committed::default() })
}

#[test]
fn a_stop_signal_lets_the_units_in_work_end() {
    let mut case = Case::new(&[100; 50]);
    let stop = case.stop.clone();
    let on_commit: Box<dyn Fn() + Send + Sync> = Box::new(move || stop.raise());
    case.sink = Arc::new(Committed { on_commit: Some(on_commit), ..Committed::default() });
    case.encode = vec![FakeEncode { work: Work::Sleep(Duration::from_micros(50)), ..FakeEncode::default() }];
    let (result, rows) = case.run();
    let Err(Error::Interrupted { done, total: 50, .. }) = result else { panic!("{result:?}") };
    assert!((1..10).contains(&done), "{done} units");
    assert_eq!(rows.len() as u64, 100 * done);
}

#[test]
fn a_lane_waits_for_room_in_the_sink_as_long_as_the_run_goes_on() {
    // All is well; the unit that the others wait for fails; somebody stops the run.
    for (fails_at, stops) in [(None, false), (Some(390), false), (None, true)] {
        let mut case = Case::new(&[400, 10, 10, 10, 10, 10, 10, 10]);
        let work = Work::Sleep(Duration::from_micros(50));
        case.encode.resize_with(3, || FakeEncode { work, ..FakeEncode::default() });
        case.memory = least_memory(8, 3);
        case.prepare.fails_at = fails_at;
        let stop = case.stop.clone();
        let on_write: Box<dyn Fn(usize) + Send + Sync> = Box::new(move |_| {
            if stops {
                stop.raise();
            }
        });
        case.sink = Arc::new(Committed { room: Some(1), on_write: Some(on_write), ..Committed::default() });
        let (result, rows) = case.run();
        match (fails_at, stops) {
            (None, false) => assert_eq!((result.unwrap().units, rows.len()), (8, 470)),
            (Some(_), _) => assert!(result.unwrap_err().to_string().contains("no such column")),
            (_, true) => assert!(matches!(result, Err(Error::Interrupted { .. })), "{result:?}"),
        }
    }
}

#[test]
fn a_source_that_is_too_bad_stops_the_run() {
    for (lengths, committed) in [(&[50, 50][..], 50), (&[50, 1000, 1000], 50)] {
        let mut case = Case::new(lengths);
        case.prepare.panics_at = (0..2050).step_by(2).collect();
        case.max_bad_fraction = 0.4;
        let (result, rows) = case.run();
        assert!(matches!(result, Err(Error::TooManyBad { .. })), "{result:?}");
        assert_eq!(rows.len(), committed, "small units pass, the last one does not");
    }
}

/// A slow sink; and the most rows of those counted that were not written yet.
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

/// Rows that were read and not yet written, at the most.
fn most_rows_in_flight(memory: u64) -> u64 {
    let mut case = Case::new(&[500; 4]);
    (case.memory, case.readers) = (memory, 3);
    let (sink, most) = slow_sink(case.source.read.clone());
    case.sink = sink;
    case.run().0.unwrap();
    most.load(Ordering::Relaxed)
}

#[test]
fn a_slow_writer_slows_the_readers() {
    let memory = 400_000;
    let least = least_memory(8, 1);
    assert!(memory > least, "{least}");
    // A quarter is for rows of at least 100 bytes as read, the rest for prepared and encoded ones; and each reader may
    // have read a batch that does not fit yet.
    let bound = memory / 4 / 100 + memory * 3 / 4 / (2 * ROW_BYTES) + 3 * 40;
    assert!(bound < 1500);
    let most = most_rows_in_flight(memory);
    assert!(most <= bound, "{most} rows in flight, at most {bound} fit");
    assert!(most_rows_in_flight(1 << 30) > most, "the memory was no bound");
}

#[test]
fn what_rows_carry_along_is_work_but_stops_nobody() {
    let memory = 16_000_000;
    // Where everything has room, queues are the bound; of heavy rows, an unfinished batch and a job for each lane have it.
    for (carries, bound) in [(0, u64::MAX), (50_000, 230), (1 << 40, 2 * (32 + 32))] {
        let mut case = Case::new(&[500; 4]);
        (case.memory, case.readers, case.prepare.carries) = (memory, 3, carries);
        case.encode.resize_with(2, FakeEncode::default);
        let (sink, most) = slow_sink(case.prepare.prepared.clone());
        case.sink = sink;
        let (summary, rows) = case.run();
        let (peak, most) = (summary.unwrap().memory.unwrap().peak, most.load(Ordering::Relaxed));
        assert!(rows.len() == 2000 && peak <= memory, "{peak} bytes");
        assert!(most <= bound && (carries > 0 || most > 230), "{most} rows in flight, of {carries} bytes");
    }
}

#[test]
fn a_batch_larger_than_its_share_passes_alone() {
    let mut case = Case::new(&[100, 100]);
    case.memory = least_memory(8, 1);
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
    case.memory = least_memory(8, 1) - 1;
    let error = case.run().0.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(message.contains("engine.memory") && message.contains("encode.batch_size"), "{message}");
}
