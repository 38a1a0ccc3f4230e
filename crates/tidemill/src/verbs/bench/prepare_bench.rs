//! Measures source -> `Prepare`: all rows on all cores, and the parts of the work on one core.
//! Nothing is encoded, so the weights of the models are not read.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, Prepare};
use tidemill_store::RowCounts;

use super::first_rows::read_first_rows;
use super::measure::{single_thread_pool, timed};
use super::prepared_file::PreparedFile;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// The work that is measured.
pub struct PrepareBench<'a> {
    pub source: &'a dyn Source,
    pub prepare: &'a Prepare,
    pub units: &'a [InputUnit],
    /// Folder for the prepared rows. They are discarded without it.
    pub output: Option<&'a Path>,
}

impl PrepareBench<'_> {
    /// Prepares all units once.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn prepare_all(&self, workers: usize, progress: &Progress) -> Result<RowCounts> {
        let next_unit = AtomicUsize::new(0);
        let work = || single_thread_pool()?.install(|| self.prepare_units(&next_unit, progress));
        let counts = thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let counts =
                workers.into_iter().map(|worker| worker.join().unwrap_or(Err(Error::Thread("bench"))));
            counts.collect::<Result<Vec<_>>>()
        })?;
        let mut total = RowCounts::default();
        counts.iter().for_each(|counts| total.add(counts));
        Ok(total)
    }

    /// One worker: prepares one unit after another until none is left.
    fn prepare_units(&self, next_unit: &AtomicUsize, progress: &Progress) -> Result<RowCounts> {
        let mut total = RowCounts::default();
        loop {
            let number = next_unit.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(number) else { return Ok(total) };
            total.add(&self.prepare_unit(number, unit, progress)?);
        }
    }

    fn prepare_unit(&self, number: usize, unit: &InputUnit, progress: &Progress) -> Result<RowCounts> {
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

    /// Measures each part of the work over the first `rows` rows, one part after another on one
    /// core. Returns milliseconds per row; the parts of `Prepare` count readable rows only.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn time_parts(&self, rows: usize) -> Result<Vec<(&'static str, f64)>> {
        let pool = single_thread_pool()?;
        let (batches, read_time) = timed(|| read_first_rows(self.source, self.units, rows))?;
        let Some(schema) = batches.first().map(RecordBatch::schema) else { return Ok(Vec::new()) };
        let sample = concat_batches(&schema, &batches)?;
        let parts = pool.install(|| self.prepare.time_steps(&sample))?;
        let (prepared, prepare_time) = timed(|| pool.install(|| Ok(self.prepare.run(&sample)?)))?;
        let ((), write_time) = timed(|| {
            let mut file = PreparedFile::new(std::io::sink(), "the sample".into(), prepared.schema())?;
            file.write(&prepared)?;
            file.finish()
        })?;
        let (rows, readable) = (sample.num_rows(), parts.rows as usize);
        let per_row = |time: Duration, rows: usize| 1e3 * time.as_secs_f64() / rows.max(1) as f64;
        Ok(vec![
            ("read", per_row(read_time, rows)),
            ("decode", per_row(parts.decode, readable)),
            ("resize", per_row(parts.resize, readable)),
            ("planes", per_row(parts.planes, readable)),
            ("tokens", per_row(parts.tokens, readable)),
            ("prepare", per_row(prepare_time, rows)),
            ("write", per_row(write_time, rows)),
        ])
    }
}
