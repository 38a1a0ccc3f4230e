//! The arguments of `tidemill mds import`, the order of its work, and its report.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tidemill_store::mds::{Folder, Import};
use tidemill_store::{Dataset, DatasetWriter, UnitId};

use super::import_pass::{ImportCounts, ImportPass};
use super::shard_units::{ShardUnit, compute_digests, find_resolutions, has_time_ids, list_units};
use super::source_models::SourceModels;
use crate::engine::dataset_sink::{is_imported, read_newest_snapshot};
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// Arguments of `tidemill mds import`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  \
    tidemill mds import s3://bucket/latents --to runs/sd2/dataset --models models/sd2 --scaled-by 0.18215\n\n\
    Columns read: caption_latents and latents_<R> (f16, row-major); for SDXL text_2, pooled_2 (f16) and \
    time_ids_<R> (i32) as well; caption, key, width and height, if they exist. All \
    other text and number columns are carried along. A dataset records which models made it, but MDS does not, so you \
    are responsible for --models. As a check, the embeddings of the first captions are computed again. Latents cannot \
    be checked.")]
pub struct Args {
    /// The folder that an MDSWriter wrote, local or in a bucket, or a folder that contains several
    /// of them.
    pub from: String,
    /// The dataset to write. `tidemill train` reads the folder `dataset` in the run's output.
    #[arg(long)]
    pub to: String,
    /// The models that made the latents: a folder in the diffusers layout.
    #[arg(long, value_name = "FOLDER")]
    pub models: PathBuf,
    /// The factor by which the stored latents were multiplied; it is divided out. MosaicML
    /// diffusion's precompute_latents.py multiplies by 0.18215; 1 if they are the VAE's values.
    #[arg(long, value_name = "FACTOR")]
    pub scaled_by: f32,
    /// Share of the samples to hold out for validation.
    #[arg(long, default_value_t = 0.0)]
    pub validation_share: f64,
    /// Do not compare the embeddings with those that the models compute.
    #[arg(long)]
    pub trust_models: bool,
    /// Number of shards to convert at a time. That many shards are in memory.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
}

/// Imports the missing shards and returns what the dataset contains now.
///
/// # Errors
/// If the input is refused, a shard is damaged, or a signal stops the work.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let mds = Folder::open(&args.from)?;
    refuse_other_datasets(args, &mds)?;
    let resolutions = find_resolutions(&mds)?;
    let models = SourceModels::load(&args.models)?;
    let settings = json!({ "imported": "mds", "scaled_by": args.scaled_by });
    let spec = models.dataset_spec(
        &resolutions,
        args.validation_share,
        has_time_ids(&mds, &resolutions),
        settings,
    )?;
    let empty = models.embed("")?;
    let digests = compute_digests(&spec, args.scaled_by);
    let units = list_units(&mds, &digests)?;
    let import = Import::new(spec.clone(), args.scaled_by, &empty)?;
    let writer = DatasetWriter::open(&args.to, spec, &empty)?;
    let committed = writer.committed_units()?;
    let missing: Vec<&ShardUnit> = units.iter().filter(|unit| !committed.contains(&unit.key.id())).collect();
    let mut checked_captions = None;
    if let (Some(unit), false) = (missing.first(), args.trust_models) {
        let (shard, _) = mds.read(unit.shard)?;
        checked_captions = Some(models.check_captions(&shard, &unit.key.file, &empty)?);
    }
    let rows = missing.iter().map(|unit| unit.key.span.end).sum::<u64>();
    let progress = reporter.start_progress("import", "rows", rows);
    let counts = ImportCounts::default();
    let pass =
        ImportPass { mds: &mds, import: &import, writer: &writer, progress: &progress, counts: &counts };
    let result = pass.run(&missing, args.workers.max(1));
    progress.finish();
    result?;
    writer.snapshot(&units.iter().map(|unit| unit.key.id()).collect::<Vec<UnitId>>())?;
    report(args, units.len(), checked_captions, &counts, reporter)
}

/// Refuses to replace the snapshot of a dataset that was made from other files.
fn refuse_other_datasets(args: &Args, mds: &Folder) -> Result<()> {
    let Some(snapshot) = read_newest_snapshot(&args.to)? else { return Ok(()) };
    let refuse = |what: &str| {
        Err(Error::Arguments(format!("{} is a dataset {what}; import into another folder", args.to)))
    };
    if !is_imported(&snapshot) {
        return refuse("that `tidemill preprocess` made");
    }
    let files: HashSet<String> = mds.shards.iter().flat_map(|shard| mds.files(shard)).collect();
    match snapshot.commits.iter().find(|commit| !files.contains(&commit.unit.file)) {
        Some(commit) => refuse(&format!("with rows of {}, which is not in {}", commit.unit.file, args.from)),
        None => Ok(()),
    }
}

/// Reports the work of this command and what the dataset contains now.
fn report(
    args: &Args,
    units: usize,
    checked_captions: Option<u32>,
    counts: &ImportCounts,
    reporter: &Reporter,
) -> Result<Value> {
    let totals = Dataset::open(&args.to)?.totals()?;
    let (rows, rejected) = (&totals.rows, totals.rows.total_rejected());
    let quarantined = rows.total_quarantined();
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (shards, hashed, dropped) =
        (load(&counts.shards), load(&counts.hashed), load(&counts.dropped_captions));
    reporter
        .report(format!("{shards} of {units} shards imported; {hashed} of them compared with their hashes"));
    match checked_captions {
        Some(0) | None => reporter.report("not checked: whether these models made the embeddings"),
        Some(n) => reporter.report(format!("checked: the embeddings of {n} captions match the models")),
    }
    if dropped > 0 {
        reporter.report(format!(
            "{dropped} rows have the embedding of the empty caption, because captions were dropped before the import. \
             train.caption_dropout (default 0.1) drops more: set train.caption_dropout = 0"
        ));
    }
    reporter.report(format!(
        "{}: {} rows read = {} kept + {rejected} rejected + {quarantined} quarantined",
        args.to, rows.read, rows.kept
    ));
    Ok(json!({
        "verb": "mds import",
        "dataset": args.to,
        "shards": { "total": units, "done": shards, "hashed": hashed },
        "rows": { "read": rows.read, "kept": rows.kept, "rejected": rejected, "quarantined": quarantined },
        "rejected": rows.rejected,
        "quarantined": rows.quarantined,
        "captions": { "checked": checked_captions, "dropped": dropped },
        "bytes": totals.bytes,
    }))
}
