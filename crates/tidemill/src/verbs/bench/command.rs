//! `tidemill bench`: how fast this machine does one part of the work, with the user's own data and settings. `benches/`
//! runs the same verbs beside other libraries.

use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};
use serde_json::Value;

use super::{prepare, tokenize};
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Arguments of `tidemill bench`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill bench prepare run.toml --repeat 5\n  \
    tidemill bench prepare run.toml --output /tmp/prepared --set engine.prepare.workers=1\n  \
    tidemill bench tokenize captions.txt --models models/sd2")]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Part {
    /// Source -> Prepare on all cores: rows/s, and where the time of a row goes.
    Prepare(prepare::Args),
    /// Captions -> token ids on one core: captions/s.
    Tokenize(tokenize::Args),
}

/// Measures the part that is asked for.
///
/// # Errors
/// Refused input, or a part that fails.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    match &args.part {
        Part::Prepare(args) => prepare::run(args, reporter),
        Part::Tokenize(args) => tokenize::run(args, reporter),
    }
}

/// A rayon pool of one thread: what is installed there keeps to one core.
pub fn one_thread() -> Result<ThreadPool> {
    ThreadPoolBuilder::new().num_threads(1).build().map_err(|_| Error::Thread("bench"))
}

/// Runs `work` and gives its result and wall time.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let start = Instant::now();
    Ok((work()?, start.elapsed()))
}

/// The middle value; the mean of the middle two if there is an even number of them.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    match (values.get(low), values.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle() {
        for (values, expected) in [(vec![3.0], 3.0), (vec![9.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0], 2.5)] {
            assert_eq!(median(values.clone()).to_bits(), f64::to_bits(expected), "{values:?}");
        }
    }
}
