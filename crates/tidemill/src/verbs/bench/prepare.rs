//! `tidemill bench prepare`: rows per second of source -> `Prepare` on all cores, written as Parquet if asked, and where
//! the time of a row goes on one core. Nothing is encoded, so the models' weights are not read.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use serde_json::{Value, json};
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare};
use tidemill_store::RowCounts;

use super::command::{median, one_thread, timed};
use super::prepared_file::PreparedFile;
use crate::error::{Error, Result};
use crate::progress::{Progress, Reporter};
use crate::verbs::shared_arguments::RunArgs;

/// Arguments of `tidemill bench prepare`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
    /// Folder for the prepared rows, one Parquet file per unit, over files of the same name; without it they are
    /// thrown away.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// How often to do all of it; the median counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Rows over which the parts of the time are measured on one core; 0 leaves them out.
    #[arg(long, default_value_t = 256)]
    pub sample: usize,
}

/// Prepares the source's rows and says how fast.
///
/// # Errors
/// Refused input; a file that cannot be read or written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    run.validate_source()?;
    let source = run.source()?;
    let units = source.units().map_err(|e| run.locate(e))?;
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::Write { path: folder.display().to_string(), source })?;
    }
    let bench =
        Bench { source: &*source, prepare: &run.prepare()?, units: &units, output: args.output.as_deref() };

    let workers = *run.file.engine.prepare.workers.resolve_range().end();
    let rows: Option<u64> = units.iter().map(|unit| unit.span.rows()).sum();
    let progress = reporter.start_progress("prepare", "rows", rows.map(|rows| rows * u64::from(args.repeat)));
    let mut rates = Vec::new();
    let mut counts = RowCounts::default();
    for _ in 0..args.repeat {
        let (pass, time) = timed(|| bench.pass(workers, &progress))?;
        rates.push(pass.read as f64 / time.as_secs_f64().max(1e-9));
        counts = pass;
    }
    progress.finish();

    let rate = median(rates.clone());
    reporter.report(format!("{rate:.1} rows/s: {} rows on {workers} threads", counts.read));
    let parts = if args.sample > 0 { bench.parts(args.sample)? } else { Vec::new() };
    for (part, ms) in &parts {
        reporter.report(format!("  {part:<10} {ms:>7.3} ms per row on one core"));
    }
    Ok(json!({
        "verb": "bench prepare",
        "rows": {
            "read": counts.read, "kept": counts.kept,
            "rejected": counts.total_rejected(), "quarantined": counts.total_quarantined(),
        },
        "units": units.len(),
        "workers": workers,
        "output": args.output,
        "rows_per_second": rate,
        "rates": rates,
        "parts_ms": parts.into_iter().map(|(part, ms)| (part.to_owned(), ms.into()))
            .collect::<serde_json::Map<String, Value>>(),
    }))
}

/// What is measured.
struct Bench<'a> {
    source: &'a dyn Source,
    prepare: &'a Prepare,
    units: &'a [InputUnit],
    output: Option<&'a Path>,
}

impl Bench<'_> {
    /// All units once.
    fn pass(&self, workers: usize, progress: &Progress) -> Result<RowCounts> {
        let next = AtomicUsize::new(0);
        let counts = thread::scope(|scope| {
            let workers: Vec<_> = (0..workers)
                .map(|_| scope.spawn(|| one_thread()?.install(|| self.work(&next, progress))))
                .collect();
            let counts =
                workers.into_iter().map(|worker| worker.join().unwrap_or(Err(Error::Thread("bench"))));
            counts.collect::<Result<Vec<_>>>()
        })?;
        let mut total = RowCounts::default();
        counts.iter().for_each(|counts| total.add(counts));
        Ok(total)
    }

    /// A worker: takes unit after unit until there are none left.
    fn work(&self, next: &AtomicUsize, progress: &Progress) -> Result<RowCounts> {
        let mut total = RowCounts::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(number) else { return Ok(total) };
            total.add(&self.unit(number, unit, progress)?);
        }
    }

    fn unit(&self, number: usize, unit: &InputUnit, progress: &Progress) -> Result<RowCounts> {
        let path = self.output.map(|folder| folder.join(format!("unit-{number:06}.parquet")));
        let mut file = None;
        let mut counts = RowCounts::default();
        for batch in self.source.read(unit)? {
            let prepared = self.prepare.run(&batch?)?;
            counts.add(&RowCounts::from_batch(&prepared)?);
            progress.add(prepared.num_rows() as u64);
            let Some(path) = &path else { continue };
            if file.is_none() {
                file = Some(PreparedFile::create(path, prepared.schema())?);
            }
            if let Some(file) = &mut file {
                file.write(&prepared)?;
            }
        }
        file.map_or(Ok(()), PreparedFile::finish)?;
        Ok(counts)
    }

    /// Milliseconds per row of each part, one after another on one core, over the first `rows` rows.
    fn parts(&self, rows: usize) -> Result<Vec<(&'static str, f64)>> {
        let pool = one_thread()?;
        let (batches, read) = timed(|| self.first(rows))?;
        let Some(schema) = batches.first().map(RecordBatch::schema) else { return Ok(Vec::new()) };
        let sample = concat_batches(&schema, &batches)?;
        let parts = pool.install(|| self.prepare.time_steps(&sample))?;
        let (prepared, all) = timed(|| pool.install(|| Ok(self.prepare.run(&sample)?)))?;
        let ((), write) = timed(|| {
            let mut file = PreparedFile::new(std::io::sink(), "the sample".into(), prepared.schema())?;
            file.write(&prepared)?;
            file.finish()
        })?;
        let (rows, readable) = (sample.num_rows(), parts.rows as usize);
        let ms = |time: Duration, rows: usize| 1e3 * time.as_secs_f64() / rows.max(1) as f64;
        Ok(vec![
            ("read", ms(read, rows)),
            ("decode", ms(parts.decode, readable)),
            ("resize", ms(parts.resize, readable)),
            ("planes", ms(parts.planes, readable)),
            ("tokens", ms(parts.tokens, readable)),
            ("prepare", ms(all, rows)),
            ("write", ms(write, rows)),
        ])
    }

    /// The source's first rows, as they are read.
    fn first(&self, rows: usize) -> Result<Vec<RecordBatch>> {
        let mut left = rows;
        let mut batches = Vec::new();
        for unit in self.units {
            for batch in self.source.read(unit)? {
                let batch = batch?;
                batches.push(batch.slice(0, batch.num_rows().min(left)));
                left -= batch.num_rows().min(left);
                if left == 0 {
                    return Ok(batches);
                }
            }
        }
        Ok(batches)
    }
}
