//! `tidemill bench encode`: pairs that one core prepares and one device encodes in a second.

use std::path::PathBuf;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use serde_json::{Value, json};
use tidemill_plan::config::Rates;
use tidemill_store::RowCounts;

use super::first_rows::read_first_rows;
use super::measure::{median, single_thread_pool, timed};
use super::rates_file::{add_to_file, source_of};
use crate::encode::Encode;
use crate::engine::device::select_devices;
use crate::engine::machine_resources::resolve_threads;
use crate::error::Result;
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};

/// Arguments of `tidemill bench encode`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// The number of pairs, the first of the source.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: u64,
    /// How often each resolution is measured, after once for warming up; medians count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// The name of the GPU (or CPU) in the file of rates.
    #[arg(long, default_value = "here")]
    pub gpu: String,
    /// Add the rates to this file, for `tidemill plan --rates`.
    #[arg(long, value_name = "FILE", value_parser = parse_local_path)]
    pub output: Option<PathBuf>,
}

/// The rates at one resolution.
struct Measured {
    /// Kept rows a second that one core prepares.
    prepare: f64,
    /// Kept rows a second that the device encodes.
    encode: f64,
}

/// Measures both stages at each resolution of `[prepare]`.
///
/// # Errors
/// If the input is refused, or no pair of the source is kept.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    run.validate_source()?;
    run.check_models()?;
    let source = run.source()?;
    let units = source.units().map_err(|e| run.locate(e))?;
    let pairs = read_first_rows(&*source, &units, args.rows as usize)?;
    let device = select_devices(&run)?[0];
    tch::set_num_threads(resolve_threads(run.file.engine.encode.threads) as i32);
    let encode = run.load_encode(device)?;
    let resolutions = run.file.prepare.resolutions.clone();
    let progress =
        reporter.start_progress("encode", "passes", resolutions.len() as u64 * u64::from(args.repeat));
    let (mut rates, mut prepare) = (Rates::default(), f64::INFINITY);
    for resolution in resolutions {
        let measured =
            measure(&run.at_resolution(resolution), &encode, &pairs, args.repeat, || progress.add(1))?;
        rates.encode.insert(resolution.to_string(), measured.encode);
        // Larger images are not prepared faster.
        prepare = prepare.min(measured.prepare);
    }
    progress.finish();
    rates.prepare = Some(prepare);
    rates.source = source_of("bench encode", device);
    for (resolution, rate) in &rates.encode {
        reporter.report(format!("{resolution} px: {rate:.1} pairs/s encoded"));
    }
    reporter.report(format!("{prepare:.1} pairs/s prepared by one core"));
    if let Some(path) = &args.output {
        add_to_file(path, &args.gpu, &rates)?;
    }
    Ok(json!({
        "verb": "bench encode",
        "rows": pairs.iter().map(RecordBatch::num_rows).sum::<usize>(),
        "gpu": args.gpu,
        "output": args.output,
        "rates": rates,
    }))
}

fn measure(
    run: &Run,
    encode: &Encode,
    pairs: &[RecordBatch],
    repeat: u32,
    mut on_pass: impl FnMut(),
) -> Result<Measured> {
    let (prepare, pool) = (run.prepare()?, single_thread_pool()?);
    let rows: usize = pairs.iter().map(RecordBatch::num_rows).sum();
    let prepare_all = || -> Result<Vec<RecordBatch>> {
        pool.install(|| pairs.iter().map(|pairs| Ok(prepare.run(pairs)?)).collect())
    };
    let prepared = prepare_all()?;
    let Some(schema) = prepared.first().map(RecordBatch::schema) else {
        return Err(run.refuse("source.uri", "the source has no rows"));
    };
    let all = concat_batches(&schema, &prepared)?;
    let kept = RowCounts::from_batch(&all)?.kept;
    if kept == 0 {
        return Err(run.refuse("filter", format!("none of the first {rows} pairs is kept")));
    }
    let size = run.file.encode.batch_size;
    let encode_all = || -> Result<()> {
        let starts = (0..all.num_rows()).step_by(size);
        starts
            .map(|start| all.slice(start, size.min(all.num_rows() - start)))
            .try_for_each(|batch| encode.run(&batch).map(drop))
    };
    encode_all()?;
    let (mut prepare_times, mut encode_times) = (Vec::new(), Vec::new());
    for _ in 0..repeat {
        prepare_times.push(timed(|| prepare_all().map(drop))?.1.as_secs_f64());
        encode_times.push(timed(encode_all)?.1.as_secs_f64());
        on_pass();
    }
    let rate = |rows: u64, times: Vec<f64>| rows as f64 / median(times).max(1e-9);
    // Plans count kept pairs, and those that are not kept take time, too.
    Ok(Measured { prepare: rate(kept, prepare_times), encode: rate(kept, encode_times) })
}
