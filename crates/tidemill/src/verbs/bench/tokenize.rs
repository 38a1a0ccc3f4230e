//! `tidemill bench tokenize`: captions per second of the tokenizer, on one core.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidemill_data::ClipTokenizer;

use super::measure::{median, single_thread_pool, timed};
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Captions in one call of the tokenizer, as in a batch of the pipeline.
const BATCH_SIZE: usize = 1000;

/// Arguments of `tidemill bench tokenize`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Text file with one caption on each line.
    pub captions: PathBuf,
    /// Folder that contains `tokenizer/`, such as a model folder in the diffusers layout.
    #[arg(long, value_name = "DIR")]
    pub models: PathBuf,
    /// How often to encode all captions; the median is reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Write the token ids to this file: 77 little-endian i32 values for each caption.
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,
}

/// Encodes the captions and returns the rate.
///
/// # Errors
/// If the captions or the tokenizer cannot be read, or the ids cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let text =
        std::fs::read_to_string(&args.captions).map_err(|e| input_error(&args.captions, e.to_string()))?;
    let captions: Vec<&str> = text.lines().collect();
    if captions.is_empty() {
        return Err(input_error(&args.captions, "it has no lines".into()));
    }
    let tokenizer = ClipTokenizer::open(&args.models.join("tokenizer"))?;
    let pool = single_thread_pool()?;
    let mut seconds = Vec::new();
    let mut encoded = Vec::new();
    for _ in 0..args.repeat {
        let batches = captions.chunks(BATCH_SIZE).map(|batch| pool.install(|| tokenizer.encode_batch(batch)));
        let (ids, time) = timed(|| Ok(batches.collect::<Vec<_>>()))?;
        seconds.push(time.as_secs_f64());
        encoded = ids;
    }
    if let Some(path) = &args.ids {
        let bytes: Vec<u8> = encoded.iter().flatten().flatten().flat_map(|id| id.to_le_bytes()).collect();
        std::fs::write(path, bytes)
            .map_err(|source| Error::Write { path: path.display().to_string(), source })?;
    }
    let rate = captions.len() as f64 / median(seconds.clone()).max(1e-9);
    reporter.report(format!("{} captions: {rate:.0} captions/s on one core", captions.len()));
    Ok(json!({
        "verb": "bench tokenize", "captions": captions.len(), "captions_per_second": rate, "seconds": seconds,
    }))
}

fn input_error(path: &Path, problem: String) -> Error {
    Error::Missing {
        what: path.display().to_string(),
        problem,
        hint: "give a text file with one caption on each line".into(),
    }
}
