//! The latent dataset as the engine's [`Sink`]: which units there are, under which keys, and what of them is done.

use std::collections::{BTreeMap, HashMap, HashSet};

use arrow::array::RecordBatch;
use serde_json::{Value, json};
use tidemill_data::prepared::sample_ids;
use tidemill_data::{ClipTokenizer, InputUnit, Prepare};
use tidemill_models::{ModelFolder, compute_digest};
use tidemill_store::UnitId;
use tidemill_store::dataset::spec::FORMAT_VERSION;
use tidemill_store::dedup::{DedupConfig, Mask, read_rows};
use tidemill_store::{
    Bucket, DatasetSpec, DatasetWriter, Digests, Location, Manifest, ModelDigests, ReusableRows, RowCounts,
    TensorSpec, UnitKey, UnitWriter,
};

use crate::encode::{Embeddings, Encode};
use crate::engine::ray::unit_worker::{DatasetTicket, Ticket};
use crate::engine::sink::{Attempt, Sink};
use crate::error::Result;
use crate::run_file::Run;

/// A dataset open for writing, with the digests of all settings that shape its units.
pub struct DatasetSink {
    writer: DatasetWriter,
    digests: Digests,
    /// The samples to leave out, in ascending order, and why, by the unit that has them.
    left_out: HashMap<UnitId, Vec<LeftOut>>,
}

/// A sample and the name that it is counted under.
type LeftOut = (u64, &'static str);

impl DatasetSink {
    /// Opens the run's dataset, or makes it. Units made with other settings stay in older snapshots; of what they hold,
    /// the columns that the run's settings leave as they are need not be computed again ([`known`](Self::known)).
    ///
    /// # Errors
    /// If models cannot be read, settings make no sense, what is there is no dataset that this version can read or one
    /// that was imported, or it cannot be written.
    pub fn open(run: &Run, prepare: &Prepare, encode: &Encode) -> Result<Self> {
        if newest(&run.dataset())?.is_some_and(|snapshot| is_imported(&snapshot)) {
            let message = format!(
                "{} is a dataset that `tidemill mds import` made; give another output",
                run.dataset()
            );
            return Err(run.refuse("output", message));
        }
        let models = run.models()?;
        let spec = specification(run, encode, model_digests(&models)?)?;
        let empty = encode.caption(&ClipTokenizer::open(&models.tokenizer())?.encode(""))?;
        let digests = unit_digests(run, prepare, &spec);
        Ok(Self {
            writer: DatasetWriter::open(&run.dataset(), spec, &empty)?,
            digests,
            left_out: HashMap::new(),
        })
    }

    /// What a worker elsewhere needs to [`join`](Self::join).
    ///
    /// # Errors
    /// As [`Run::portable`].
    pub fn ticket(&self, run: &Run) -> Result<Ticket> {
        let (header, digests) = (self.writer.header().clone(), self.digests.clone());
        Ok(Ticket { run: run.to_portable()?, dataset: Some(DatasetTicket { header, digests }) })
    }

    /// Opens a run's dataset that another process has opened, without any model.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn join(run: &Run, ticket: &DatasetTicket) -> Result<Self> {
        let writer = DatasetWriter::join(&run.dataset(), ticket.header.clone())?;
        Ok(Self { writer, digests: ticket.digests.clone(), left_out: HashMap::new() })
    }

    /// The models that its tensors are made with.
    pub(crate) fn models(&self) -> &ModelDigests {
        &self.writer.spec().models
    }

    /// The key of a unit of rows that come from no file: their sample ids name it.
    pub(crate) fn key_of_rows(&self, sample_ids: &[u64]) -> UnitKey {
        UnitKey {
            file: "rows".into(),
            identity: short_digest(&json!(sample_ids)),
            span: 0..sample_ids.len() as u64,
            digests: self.digests.clone(),
        }
    }

    /// Starts a unit.
    pub(crate) fn begin_key(&self, key: &UnitKey) -> UnitWriter {
        self.writer.begin_unit(key)
    }

    /// A unit's key in the dataset.
    pub(crate) fn key(&self, unit: &InputUnit) -> UnitKey {
        let mut key = UnitKey {
            file: unit.file.uri.clone(),
            identity: unit.file.identity.clone(),
            span: unit.span.range().clone(),
            digests: self.digests.clone(),
        };
        if let Some(samples) = self.left_out.get(&key.id()) {
            key.digests.rows = short_digest(&json!([key.digests.rows, samples]));
        }
        key
    }

    /// The duplicates among what is committed of these units, and the sink that leaves them out: units that have none
    /// stay as they are, the others take the rest of their rows from what is committed.
    ///
    /// # Errors
    /// If the rows cannot be read, or the mask cannot be written.
    pub fn without_duplicates(
        &self,
        units: &[InputUnit],
        config: &DedupConfig,
    ) -> Result<(Self, HashMap<u64, &'static str>)> {
        let plan: Vec<UnitId> = units.iter().map(|unit| self.key(unit).id()).collect();
        let dataset = self.writer.open_committed(&plan)?;
        let mask = Mask::write(&dataset, config, config.plan(read_rows(&dataset)?))?;
        let reasons: HashMap<u64, &'static str> = mask
            .duplicates
            .iter()
            .map(|duplicate| (duplicate.sample_id, duplicate.reason.filter()))
            .collect();
        let mut left_out: HashMap<UnitId, Vec<LeftOut>> = HashMap::new();
        let mut batches = dataset.read_rows(&["sample_id"]);
        while let Some(batch) = batches.next().transpose()? {
            let (Some(unit), Some(ids)) = (batches.unit(), sample_ids(&batch)) else { continue };
            let samples: Vec<LeftOut> = ids.iter().filter_map(|id| Some((*id, *reasons.get(id)?))).collect();
            if !samples.is_empty() {
                left_out.entry(unit.id).or_default().extend(samples);
            }
        }
        left_out.values_mut().for_each(|samples| samples.sort_unstable());
        let writer = self.writer.with_reusable_from(&dataset)?;
        Ok((Self { writer, digests: self.digests.clone(), left_out }, reasons))
    }

    /// What the newest snapshot knows of a unit's rows under other settings.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn known(&self, unit: &InputUnit) -> Result<Option<ReusableRows>> {
        Ok(self.writer.find_reusable(&self.key(unit))?)
    }

    /// The units that are not committed yet, and what became of the rows of those that are.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn missing(&self, units: &[InputUnit]) -> Result<(Vec<InputUnit>, RowCounts)> {
        let committed = self.writer.committed_units()?;
        let (done, missing): (Vec<_>, Vec<_>) =
            units.iter().map(|unit| (self.key(unit).id(), unit)).partition(|(id, _)| committed.contains(id));
        let mut before = RowCounts::default();
        for commit in self.writer.commits(done.iter().map(|(id, _)| id))? {
            before.add(&commit.counts);
        }
        Ok((missing.into_iter().map(|(_, unit)| unit.clone()).collect(), before))
    }

    /// How many of these units nobody has committed.
    ///
    /// # Errors
    /// If the dataset cannot be listed.
    pub fn uncommitted(&self, units: &[InputUnit]) -> Result<usize> {
        let committed = self.writer.committed_units()?;
        Ok(units.iter().filter(|unit| !committed.contains(&self.key(unit).id())).count())
    }

    /// Makes these units the dataset's newest snapshot.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn snapshot(&self, units: &[InputUnit]) -> Result<Manifest> {
        self.snapshot_of(&units.iter().map(|unit| self.key(unit).id()).collect::<Vec<_>>())
    }

    /// As [`snapshot`](Self::snapshot), by the units' names.
    pub(crate) fn snapshot_of(&self, units: &[UnitId]) -> Result<Manifest> {
        Ok(self.writer.snapshot(units)?)
    }
}

impl Sink for DatasetSink {
    fn begin(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>> {
        Ok(Box::new(self.begin_key(&self.key(unit))))
    }
}

impl Attempt for UnitWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(UnitWriter::write(self, batch)?)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        // Whether this attempt or another one made it, the unit is in the dataset.
        UnitWriter::commit(*self)?;
        Ok(())
    }
}

/// Names the files of a snapshot that the source no longer has, and what goes with them; nothing if it has all of them.
pub fn left_the_source(snapshot: &Manifest, units: &[InputUnit]) -> Option<String> {
    let there: HashSet<&str> = units.iter().map(|unit| unit.file.uri.as_str()).collect();
    let gone = snapshot.commits.iter().filter(|commit| !there.contains(commit.unit.file.as_str()));
    let mut files: BTreeMap<&str, u64> = BTreeMap::new();
    gone.for_each(|commit| *files.entry(&commit.unit.file).or_default() += commit.counts.kept);
    let (first, rows) = (files.keys().next()?, files.values().sum::<u64>());
    let (files, are) =
        if files.len() == 1 { ("1 file".into(), "is") } else { (format!("{} files", files.len()), "are") };
    Some(format!(
        "{files} of the dataset's last snapshot {are} not in the source any more ({first}): the new snapshot is without their {rows} rows"
    ))
}

/// The newest snapshot of a dataset, if there is one. The dataset is not opened: what it lacks may be what is to be written again.
///
/// # Errors
/// If it cannot be read.
pub fn newest(uri: &str) -> Result<Option<Manifest>> {
    let location = Location::open(uri).map_err(tidemill_store::Error::from)?;
    Ok(Manifest::read_newest(&location)?)
}

/// Whether `tidemill mds import` made it, and not `tidemill preprocess`: neither takes the place of what the other made.
pub fn is_imported(snapshot: &Manifest) -> bool {
    snapshot.spec().prepare["imported"] == "mds"
}

/// What shapes the rows, and each tensor column.
fn unit_digests(run: &Run, prepare: &Prepare, spec: &DatasetSpec) -> Digests {
    let (encode, models, prepared) = (&run.file.encode, &spec.models, prepare.digests());
    let latents = prepared.images.iter().map(|(resolution, image)| {
        (
            format!("latents_{resolution}"),
            short_digest(&json!([image, models.vae, encode.dtype, encode.latents])),
        )
    });
    let text = match encode.embeddings {
        Embeddings::None => json!([prepared.text, "token ids"]),
        stored => json!([prepared.text, models.text_encoder, encode.dtype, stored]),
    };
    let text = short_digest(&text);
    Digests {
        // The last two do not change rows, but where their tensors lie.
        rows: short_digest(&json!([prepared.rows, spec.validation_share, spec.row_group_rows])),
        tensors: latents.chain([("text".into(), text)]).collect(),
    }
}

/// Names settings and everything else that shapes a part of the output.
pub(crate) fn short_digest(shaping: &Value) -> String {
    blake3::hash(shaping.to_string().as_bytes()).to_hex()[..32].to_string()
}

pub(crate) fn specification(run: &Run, encode: &Encode, mut digests: ModelDigests) -> Result<DatasetSpec> {
    if run.file.encode.embeddings == Embeddings::None {
        digests.text_encoder = None;
    }
    let mut latents = BTreeMap::new();
    let prepare = &run.file.prepare;
    for &resolution in &prepare.resolutions {
        for (width, height) in prepare.sizes(resolution) {
            let bucket = Bucket { resolution, width, height };
            latents.insert(bucket, tensor(&encode.latents_shape((width, height))?));
        }
    }
    Ok(DatasetSpec {
        format: FORMAT_VERSION,
        latents,
        latents_kind: "moments".into(),
        text: encode.text_form(tidemill_data::tokenizer::CONTEXT),
        models: digests,
        scaling_factor: encode.scaling_factor(),
        validation_share: run.file.validation.share,
        row_group_rows: DatasetSpec::ROW_GROUP_ROWS,
        prepare: of_pixels(run),
        rows: of_rows(run),
    })
}

/// What of a run's settings shapes pixels, besides sizes, as a dataset keeps it.
pub(crate) fn of_pixels(run: &Run) -> Value {
    let prepare = &run.file.prepare;
    json!({
        "crop": prepare.crop,
        "flip": prepare.flip,
        "resample": prepare.resample,
        "scaled_decode": prepare.scaled_decode,
    })
}

/// What chooses rows and makes their captions, as a dataset keeps it, but for what lists hold.
pub(crate) fn of_rows(run: &Run) -> Value {
    json!({ "filter": run.file.filter.without_lists(), "caption": run.file.caption })
}

/// f16 of a shape, as a dataset states it.
pub(crate) fn tensor(shape: &[i64]) -> TensorSpec {
    TensorSpec::f16(shape.iter().map(|n| *n as u32).collect::<Vec<_>>())
}

/// The digests of the frozen models of a folder.
///
/// # Errors
/// If one of them cannot be read.
pub fn model_digests(models: &ModelFolder) -> Result<ModelDigests> {
    Ok(ModelDigests {
        vae: compute_digest(&models.vae())?,
        text_encoder: Some(compute_digest(&models.text_encoder())?),
        tokenizer: compute_digest(&models.tokenizer())?,
    })
}
