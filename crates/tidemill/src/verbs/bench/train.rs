//! `tidemill bench train`: images that the trainer trains on in a second, in this process.

use std::path::PathBuf;

use serde_json::{Value, json};
use tch::Device;
use tidemill_plan::config::Rates;
use tidemill_torch::max_memory_allocated;
use tidemill_train::StepMetrics;

use super::fit::find_largest_micro_batches;
use super::measure::median;
use super::rates_file::{add_to_file, source_of};
use super::train_steps::{BenchSteps, train_phase};
use crate::engine::device::select_devices;
use crate::engine::machine_resources::resolve_threads;
use crate::error::Result;
use crate::progress::Reporter;
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};

/// Arguments of `tidemill bench train`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// Steps that count, at each resolution of the phases; their median is reported.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Steps before them, which are slower: kernels are compiled and chosen, memory is new.
    #[arg(long, default_value_t = 20)]
    pub warmup: u64,
    /// Find the largest micro-batch that fits into the GPU's memory, and measure nothing else.
    #[arg(long, conflicts_with_all = ["steps", "warmup", "output"])]
    pub fit: bool,
    /// The name of the GPU (or CPU) in the file of rates.
    #[arg(long, default_value = "here")]
    pub gpu: String,
    /// Add the rates to this file, for `tidemill plan --rates`.
    #[arg(long, value_name = "FILE", value_parser = parse_local_path)]
    pub output: Option<PathBuf>,
}

/// Trains some steps at each resolution, on random latents. Writes no checkpoint.
///
/// # Errors
/// If the run file is refused, a step fails, or a signal stops the work.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    run.validate_train()?;
    let device = select_devices(&run)?[0];
    tch::set_num_threads(resolve_threads(run.file.engine.encode.threads) as i32);
    if args.fit {
        return find_largest_micro_batches(&run, device, reporter);
    }
    let steps = BenchSteps { warmup: args.warmup, counted: args.steps };
    let mut rates = Rates { source: source_of("bench train", device), ..Rates::default() };
    let mut measured: Vec<StepMetrics> = Vec::new();
    for phase in 0..run.file.train.phase.len() {
        let resolution = run.file.train.phase[phase].resolution;
        if rates.train.contains_key(&resolution.to_string()) {
            continue;
        }
        let steps = train_phase(&run, phase, steps, None, device, reporter)?;
        let rate = median(
            steps.iter().map(|step| step.images_per_second / (1.0 - step.data_wait).max(0.01)).collect(),
        );
        rates.train.insert(resolution.to_string(), rate);
        measured.extend(steps);
    }
    for (resolution, rate) in &rates.train {
        reporter.report(format!("{resolution} px: {rate:.1} img/s"));
    }
    if let Some(path) = &args.output {
        add_to_file(path, &args.gpu, &rates)?;
    }
    let gpu_memory = match device {
        Device::Cuda(gpu) => Some(max_memory_allocated(gpu).map_err(tidemill_models::Error::from)? >> 20),
        _ => None,
    };
    Ok(json!({
        "verb": "bench train",
        "gpu": args.gpu,
        "output": args.output,
        "rates": rates,
        "gpu_memory_mib": gpu_memory,
        "memory_mib": measured.iter().flat_map(|step| step.memory_mib.clone()).max(),
    }))
}
