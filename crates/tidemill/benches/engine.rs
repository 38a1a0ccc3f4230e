//! How close the local engine comes to the limit that its stages set. The limit is the least of two
//! rates: of each stage that sleeps, alone; and of all cores on the work of the stages that
//! compute. The stages are fakes, so only the engine is measured. Run it on an idle machine: `cargo
//! bench -p tidemill --bench engine`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../tests/engine/fake.rs"]
#[allow(dead_code)]
mod fake;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use serde_json::{Value, json};
use tidemill::Reporter;
use tidemill::engine::stop_signal::StopSignal;
use tidemill::engine::{LocalEngine, Stage};
use tidemill_data::InputUnit;
use tidemill_data::source::Source;
use tidemill_store::RowCounts;

use self::fake::{FakeEncode, FakePrepare, MemorySink, MemorySource, Work, units};

/// Runs of each case, unless `-- --runs n` is given. The results are medians.
const RUNS: usize = 5;
/// Rows of one run, of a unit, and of a batch as read.
const ROWS: u64 = 16_384;
const UNIT_ROWS: u64 = 128;
const READ_BATCH_ROWS: u64 = 64;
/// Rows of one encode batch.
const ENCODE_BATCH_ROWS: usize = 64;
/// Rows with which a stage's own rate is measured.
const STAGE_ROWS: u64 = 2048;
/// Seconds that `Prepare` takes for a row: about as long as it decodes and resizes a large JPEG.
const PREPARE_SECONDS: f64 = 1e-3;
const READERS: usize = 4;

/// The work of each stage.
struct Case {
    name: &'static str,
    source: Work,
    prepare: Work,
    encode: Work,
    encoders: usize,
}

fn main() {
    let cores = thread::available_parallelism().unwrap().get();
    let spins = spins_per_second();
    let prepare = Work::Spin((PREPARE_SECONDS * spins) as u64);
    // A stage that sleeps shall be the bottleneck, while the cores are busy too.
    let rate = 0.7 * cores as f64 / PREPARE_SECONDS;
    let cases = [
        Case {
            name: "CPU-heavy encoder",
            source: Work::Nothing,
            prepare,
            encode: Work::Spin((0.5 * PREPARE_SECONDS * spins) as u64),
            encoders: cores.div_ceil(2),
        },
        Case {
            name: "encoder that sleeps",
            source: Work::Nothing,
            prepare,
            encode: Work::Sleep(Duration::from_secs_f64(1.0 / rate)),
            encoders: 1,
        },
        Case {
            name: "slow source",
            source: Work::Sleep(Duration::from_secs_f64(READERS as f64 / rate)),
            prepare,
            encode: Work::Nothing,
            encoders: 1,
        },
    ];
    let runs = std::env::args().skip_while(|arg| arg != "--runs").nth(1).map_or(RUNS, |n| n.parse().unwrap());
    println!("{:24}{:>12}{:>12}{:>8}", "case", "rows/s", "limit", "ratio");
    let results: Vec<Value> = cases.iter().map(|case| measure(case, cores, runs)).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("engine.json"), serde_json::to_string_pretty(&results).unwrap()).unwrap();
}

/// Measures the limit and the engine in turn, several times.
fn measure(case: &Case, cores: usize, runs: usize) -> Value {
    let pairs = (0..runs).map(|_| (limit(case, cores), end_to_end(case, cores)));
    let (limits, ours): (Vec<f64>, Vec<f64>) = pairs.unzip();
    let ratios = ours.iter().zip(&limits).map(|(ours, limit)| ours / limit).collect();
    let (limit, ours, ratio) = (median(limits), median(ours), median(ratios));
    println!("{:24}{ours:>12.1}{limit:>12.1}{ratio:>8.3}", case.name);
    json!({
        "case": case.name,
        "ours": ours,
        "unit": "rows/s",
        "peers": { "limit": limit },
        "ratios": { "limit": ratio },
        "runs": runs,
        "versions": { "tidemill": env!("CARGO_PKG_VERSION"), "cores": cores },
    })
}

/// Rows per second through the engine.
fn end_to_end(case: &Case, cores: usize) -> f64 {
    let encoder = || Box::new(FakeEncode { work: case.encode, ..FakeEncode::default() }) as Box<dyn Stage>;
    let engine = LocalEngine {
        source: &source(case),
        prepare: &FakePrepare { work: case.prepare, ..FakePrepare::default() },
        encoders: (0..case.encoders).map(|_| encoder()).collect(),
        sink: &MemorySink(Arc::default()),
        batch_size: ENCODE_BATCH_ROWS,
        readers: READERS,
        prepare_workers: cores..=cores,
        memory: 1 << 30,
        max_bad_fraction: 1.0,
        earlier_counts: RowCounts::default(),
        stop: &StopSignal::default(),
        log: None,
    };
    let progress = Reporter { json: true, quiet: true }.start_progress("bench", "rows", ROWS);
    let summary = engine.run(&input(ROWS), &progress).unwrap();
    assert_eq!(summary.counts.read, ROWS);
    ROWS as f64 / summary.seconds
}

/// The limit in rows per second, as the head of this file defines it.
fn limit(case: &Case, cores: usize) -> f64 {
    let read = batches(case);
    let prepare = FakePrepare { work: case.prepare, ..FakePrepare::default() };
    let plain = FakePrepare::default();
    let prepared: Vec<RecordBatch> = read.iter().map(|batch| plain.run(batch).unwrap()).collect();
    let encoders: Vec<FakeEncode> =
        (0..cores).map(|_| FakeEncode { work: case.encode, ..FakeEncode::default() }).collect();

    // Seconds of all cores for the rows; seconds of the slowest stage that sleeps.
    let (mut computing, mut waiting) = (0.0, 0.0_f64);
    let reading = || seconds(READERS, |reader| read_all(case, reader));
    let preparing = || seconds(cores, |_| run_all(&prepare, &read)) / cores as f64;
    let encoding =
        |threads: usize| seconds(threads, |thread| run_all(&encoders[thread], &prepared)) / threads as f64;
    match case.source {
        Work::Sleep(_) => waiting = waiting.max(reading()),
        _ => computing += reading(),
    }
    computing += preparing();
    match case.encode {
        Work::Sleep(_) => waiting = waiting.max(encoding(case.encoders)),
        _ => computing += encoding(cores),
    }
    STAGE_ROWS as f64 / waiting.max(computing)
}

/// Wall time of this many threads that each do `work`.
fn seconds(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    start.elapsed().as_secs_f64()
}

/// Reads the units of one of the readers.
fn read_all(case: &Case, reader: usize) {
    let source = source(case);
    for unit in input(STAGE_ROWS).iter().skip(reader).step_by(READERS) {
        source.read(unit).unwrap().for_each(|batch| drop(black_box(batch)));
    }
}

fn run_all(stage: &dyn Stage, batches: &[RecordBatch]) {
    for batch in batches {
        black_box(stage.run(batch).unwrap());
    }
}

/// [`STAGE_ROWS`] rows, already read.
fn batches(case: &Case) -> Vec<RecordBatch> {
    let source = MemorySource { work: Work::Nothing, ..source(case) };
    input(STAGE_ROWS).iter().flat_map(|unit| source.read(unit).unwrap()).map(Result::unwrap).collect()
}

fn source(case: &Case) -> MemorySource {
    MemorySource {
        rows_per_batch: READ_BATCH_ROWS,
        bytes_per_row: 50_000,
        work: case.source,
        ..MemorySource::default()
    }
}

fn input(rows: u64) -> Vec<InputUnit> {
    units(&vec![UNIT_ROWS; (rows / UNIT_ROWS) as usize])
}

/// Multiplications that a core does in a second, each dependent on the one before.
fn spins_per_second() -> f64 {
    const SPINS: u64 = 200_000_000;
    let start = Instant::now();
    Work::Spin(SPINS).spend(1);
    SPINS as f64 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
