//! `tidemill mds export`: writes a dataset's rows as MDS.

use bytesize::ByteSize;
use serde_json::{Value, json};
use tidemill_store::mds::{Export, LatentsKind, WriteOptions};
use tidemill_store::{Dataset, Split};
use tidemill_train::{Draw, Purpose};

use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

/// Arguments of `tidemill mds export`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    tidemill mds export run.toml --to mds --latents sample --seed 1 --scaled-by 0.18215 --zstd 3\n  \
    tidemill mds export s3://bucket/dataset --to s3://bucket/mds --latents mean --scaled-by 1\n\n\
    MDS columns: key, caption, width, height, sample_id, caption_latents, and latents_<R> for each resolution, empty \
    where an image is too small for it. MDS has no nulls, so unknown values are an empty text or 0.")]
pub struct Args {
    /// A dataset's path or URI, or the run file (.toml) of a run.
    pub from: String,
    /// The folder to write, local or in a bucket.
    #[arg(long)]
    pub to: String,
    /// Which latent to write for the distribution that the VAE computes for each image.
    #[arg(long, value_enum)]
    pub latents: Latents,
    /// Multiply the latents by this. MosaicML diffusion expects 0.18215 (the VAE's factor); 1 keeps
    /// the VAE's values.
    #[arg(long, value_name = "FACTOR")]
    pub scaled_by: f32,
    /// Seed of the samples. They are the samples that a run with this seed draws in its first
    /// epoch.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Export the rows that are held out instead of the training rows.
    #[arg(long)]
    pub validation: bool,
    /// Compress the shards with zstd at this level (1 to 22).
    #[arg(long, value_name = "LEVEL")]
    pub zstd: Option<i32>,
    /// Size of a shard before compression, in bytes or as "64 MiB".
    #[arg(long, default_value = "64 MiB")]
    pub shard_size: ByteSize,
}

/// The latent of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Latents {
    /// The mean of the distribution.
    Mean,
    /// A sample of the distribution.
    Sample,
}

/// Writes the folder and returns what it contains.
///
/// # Errors
/// If there is no dataset, the dataset does not have these latents, or the folder exists already or
/// cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let from = match args.from.ends_with(".toml") {
        true => Run::open(args.from.as_ref(), &[])?.dataset(),
        false => args.from.clone(),
    };
    let size_limit = u32::try_from(args.shard_size.as_u64())
        .map_err(|_| Error::Arguments("--shard-size: a shard must be smaller than 4 GiB".into()))?;
    let dataset = Dataset::open(&from)?;
    let draw_noise = |sample_id: u64, numbers: &mut [f32]| {
        Draw::new(args.seed, 0, sample_id, Purpose::Moments).fill_normal(numbers);
    };
    let export = Export {
        split: if args.validation { Split::Validation } else { Split::Train },
        latents: match args.latents {
            Latents::Mean => LatentsKind::Mean,
            Latents::Sample => LatentsKind::Sample(&draw_noise),
        },
        scaled_by: args.scaled_by,
        options: WriteOptions { zstd: args.zstd, size_limit },
    };
    let progress = reporter.start_progress("export", "rows", dataset.totals()?.rows.kept);
    let exported = export.run(&dataset, &args.to, |rows| progress.add(rows));
    progress.finish();
    let exported = exported?;
    reporter.report(format!(
        "{}: {} samples in {} shards, {}",
        args.to,
        exported.samples,
        exported.shards,
        ByteSize(exported.bytes)
    ));
    let latents = if args.latents == Latents::Mean { "mean" } else { "sample" };
    Ok(json!({
        "verb": "mds export", "dataset": from, "path": args.to, "latents": latents, "scaled_by": args.scaled_by,
        "exported": exported,
    }))
}
