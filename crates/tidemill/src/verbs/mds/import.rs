//! `tidemill mds import`: MDS shards as a dataset. A shard is a unit, committed as `preprocess` commits its own: any number
//! of imports may race, die or repeat, and a re-run does only what is missing.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use tidemill_data::source::{self, InputFile, sample_id};
use tidemill_store::mds::{Folder, Import, ShardLocation, latent_resolutions, latents_column};
use tidemill_store::{Dataset, DatasetSpec, DatasetWriter, Digests, ModelDigests, UnitId, UnitKey};

use super::import_models::Models;
use crate::engine::dataset_sink::{is_imported, read_newest_snapshot};
use crate::engine::dataset_spec::short_digest;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::{Progress, Reporter};

/// Arguments of `tidemill mds import`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example:\n  \
    tidemill mds import s3://bucket/latents --to runs/sd2/dataset --models models/sd2 --scaled-by 0.18215\n\n\
    Columns read: caption_latents and latents_<R> (f16, row-major); caption, key, width, height, if they are there; all \
    other texts and numbers are carried along. A dataset says which models made it, and MDS does not: whoever imports \
    vouches for --models. The embeddings of the first captions are computed again as a check; latents cannot be checked.")]
pub struct Args {
    /// The folder that an MDSWriter wrote, local or in a bucket, or one with several of them below it.
    pub from: String,
    /// The dataset to write; `tidemill train` looks for its own in `dataset` below the run's output.
    #[arg(long)]
    pub to: String,
    /// The models that made the latents: a folder in the diffusers layout.
    #[arg(long, value_name = "FOLDER")]
    pub models: PathBuf,
    /// What the latents were multiplied by before they were stored; it is divided out. MosaicML diffusion's
    /// precompute_latents.py multiplies by 0.18215; 1 if they are as the VAE gave them.
    #[arg(long, value_name = "FACTOR")]
    pub scaled_by: f32,
    /// Share of the samples to hold out for validation.
    #[arg(long, default_value_t = 0.0)]
    pub validation_share: f64,
    /// Do not compare embeddings with those that the models give.
    #[arg(long)]
    pub trust_models: bool,
    /// Shards converted at a time; memory holds as many.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
}

/// Imports what is missing and says what the dataset holds now.
///
/// # Errors
/// Refused input; a damaged shard, by name; a signal.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let mds = Folder::open(&args.from)?;
    refuse_other_datasets(args, &mds)?;
    let resolutions = resolutions(&mds)?;
    let models = Models::load(&args.models)?;
    let settings = json!({ "imported": "mds", "scaled_by": args.scaled_by });
    let spec = models.spec(&resolutions, args.validation_share, settings)?;
    let empty = models.embed("")?;
    let digests = digests(&spec, args.scaled_by);
    let units = units(&mds, &digests)?;
    let import = Import::new(spec.clone(), args.scaled_by, &empty)?;
    let writer = DatasetWriter::open(&args.to, spec, &empty)?;
    let committed = writer.committed_units()?;
    let missing: Vec<&Unit> = units.iter().filter(|unit| !committed.contains(&unit.key.id())).collect();
    let mut checked = None;
    if let (Some(unit), false) = (missing.first(), args.trust_models) {
        checked = Some(models.check_captions(&mds.read(unit.shard)?.0, &unit.key.file, &empty)?);
    }
    let rows = missing.iter().map(|unit| unit.key.span.end).sum::<u64>();
    let progress = reporter.start_progress("import", "rows", rows);
    let done = Done::default();
    let result = Pass { mds: &mds, import: &import, writer: &writer, progress: &progress, done: &done }
        .over(&missing, args.workers.max(1));
    progress.finish();
    result?;
    writer.snapshot(&units.iter().map(|unit| unit.key.id()).collect::<Vec<UnitId>>())?;
    report(args, units.len(), checked, &done, reporter)
}

/// A shard and its unit.
struct Unit<'a> {
    key: UnitKey,
    shard: &'a ShardLocation,
}

/// What was done.
#[derive(Debug, Default)]
struct Done {
    shards: AtomicU64,
    /// Shards of which a hash was compared.
    hashed: AtomicU64,
    /// Rows with the embedding of the empty caption.
    dropped: AtomicU64,
}

struct Pass<'a> {
    mds: &'a Folder,
    import: &'a Import,
    writer: &'a DatasetWriter,
    progress: &'a Progress,
    done: &'a Done,
}

impl Pass<'_> {
    /// Imports units, `workers` at a time, until all are done, one fails or a signal comes.
    fn over(&self, units: &[&Unit], workers: usize) -> Result<()> {
        let (next, stop) = (AtomicUsize::new(0), StopSignal::watch());
        let work = || -> Result<()> {
            while !stop.is_raised()
                && let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed))
            {
                // After a failure the others end what they are at.
                self.one(unit).inspect_err(|_| next.store(units.len(), Ordering::Relaxed))?;
            }
            Ok(())
        };
        let results: Vec<Result<()>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..workers.min(units.len())).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|t| t.join().unwrap_or(Err(Error::Thread("import")))).collect()
        });
        results.into_iter().collect::<Result<()>>()?;
        let (done, total) = (self.done.shards.load(Ordering::Relaxed), units.len() as u64);
        if done < total { Err(Error::Interrupted { done, total, unit: "shards" }) } else { Ok(()) }
    }

    fn one(&self, Unit { key, shard }: &Unit) -> Result<()> {
        let (samples, hashed) = self.mds.read(shard)?;
        let mut writer = self.writer.begin_unit(key);
        let ids = |row| sample_id(&key.identity, row);
        let dropped = self.import.write(&samples, &key.file, ids, &mut writer)?;
        // Whether this attempt or another one made it, the unit is in the dataset.
        writer.commit()?;
        self.done.shards.fetch_add(1, Ordering::Relaxed);
        self.done.hashed.fetch_add(hashed.into(), Ordering::Relaxed);
        self.done.dropped.fetch_add(dropped, Ordering::Relaxed);
        self.progress.add(key.span.end);
        Ok(())
    }
}

/// An import takes the place of what a dataset has, which nobody wants of one that was made of something else.
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

/// The resolutions that all shards have latents of.
fn resolutions(mds: &Folder) -> Result<Vec<u32>> {
    let of = |shard: &ShardLocation| latent_resolutions(&shard.info.columns());
    let first = of(&mds.shards[0]);
    let refuse = |shard: &ShardLocation, problem| Error::Missing {
        what: mds.files(shard).swap_remove(0),
        problem,
        hint: "give a folder of precomputed latents that all have the same columns".into(),
    };
    if first.is_empty() {
        let columns = mds.shards[0].info.columns();
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let problem = format!("it has no column latents_<resolution>, only {}", names.join(", "));
        return Err(refuse(&mds.shards[0], problem));
    }
    match mds.shards.iter().find(|shard| of(shard) != first) {
        Some(other) => Err(refuse(other, format!("its latents are at {:?}, others at {first:?}", of(other)))),
        None => Ok(first),
    }
}

/// What shapes the rows (of which some say whether their caption was dropped), and each tensor column.
fn digests(spec: &DatasetSpec, scaled_by: f32) -> Digests {
    let ModelDigests { vae, text_encoder, tokenizer } = &spec.models;
    let latents = short_digest(&json!(["mds", scaled_by, vae]));
    let latents = spec.resolutions().into_iter().map(|r| (latents_column(r), latents.clone()));
    let text = short_digest(&json!(["mds", text_encoder, tokenizer]));
    let rows = json!(["mds", text_encoder, tokenizer, spec.validation_share, spec.row_group_rows]);
    Digests { rows: short_digest(&rows), tensors: latents.chain([("text".into(), text)]).collect() }
}

/// The shards as units, each under the identity of its file.
fn units<'a>(mds: &'a Folder, digests: &Digests) -> Result<Vec<Unit<'a>>> {
    let wanted: HashSet<String> = mds.shards.iter().flat_map(|shard| mds.files(shard)).collect();
    let files = source::list_files(&[mds.uri().to_owned()], |uri| wanted.contains(uri))?;
    let files: HashMap<&str, &InputFile> = files.iter().map(|file| (file.uri.as_str(), file)).collect();
    let unit = |shard| {
        let file = mds.files(shard).iter().find_map(|uri| files.get(uri.as_str()).copied());
        let InputFile { uri, identity, .. } = file.ok_or_else(|| mds.missing_error(shard))?;
        let span = 0..u64::from(shard.info.samples);
        let key = UnitKey { file: uri.clone(), identity: identity.clone(), span, digests: digests.clone() };
        Ok(Unit { key, shard })
    };
    mds.shards.iter().map(unit).collect()
}

fn report(
    args: &Args,
    units: usize,
    checked: Option<u32>,
    done: &Done,
    reporter: &Reporter,
) -> Result<Value> {
    let totals = Dataset::open(&args.to)?.totals()?;
    let (counts, rejected) = (&totals.rows, totals.rows.total_rejected());
    let quarantined = counts.total_quarantined();
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (shards, hashed, dropped) = (of(&done.shards), of(&done.hashed), of(&done.dropped));
    reporter.report(format!(
        "{shards} of {units} shards imported now, {hashed} of them compared with their hashes"
    ));
    match checked {
        Some(0) | None => reporter.report("that these models made the embeddings was not checked"),
        Some(n) => reporter.report(format!("the embeddings of {n} captions are those that the models give")),
    }
    if dropped > 0 {
        reporter.report(format!(
            "{dropped} rows have the embedding of the empty caption: they were dropped before, and \
             train.caption_dropout comes on top, and is 0.1 unless you set it: set \
             train.caption_dropout = 0"
        ));
    }
    reporter.report(format!(
        "{}: {} rows read = {} kept + {rejected} rejected + {quarantined} quarantined",
        args.to, counts.read, counts.kept
    ));
    Ok(json!({
        "verb": "mds import",
        "dataset": args.to,
        "shards": { "total": units, "done": shards, "hashed": hashed },
        "rows": { "read": counts.read, "kept": counts.kept, "rejected": rejected, "quarantined": quarantined },
        "rejected": counts.rejected,
        "quarantined": counts.quarantined,
        "captions": { "checked": checked, "dropped": dropped },
        "bytes": totals.bytes,
    }))
}
