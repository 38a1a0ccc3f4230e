//! The latent dataset as the engine's [`Sink`]: the key of each unit, and which units are
//! committed.

use std::collections::{BTreeMap, HashMap, HashSet};

use arrow::array::RecordBatch;
use serde_json::json;
use tidemill_data::prepared::sample_ids;
use tidemill_data::{InputUnit, Prepare};
use tidemill_store::UnitId;
use tidemill_store::dedup::{DatasetEmbeddings, DedupConfig, Embeddings, Mask, Row, read_rows};
use tidemill_store::{
    Dataset, DatasetWriter, Digests, Location, Manifest, ModelDigests, ReusableRows, RowCounts, UnitKey,
    UnitWriter,
};

use crate::encode::{Encode, open_tokenizers};
use crate::engine::dataset_spec::{compute_model_digests, dataset_spec, short_digest, unit_digests};
use crate::engine::ray::ticket::{DatasetTicket, Ticket};
use crate::engine::sink::{Attempt, Sink};
use crate::error::Result;
use crate::run_file::Run;

/// A dataset that is open for writing, with the digests of all settings that shape its units.
pub struct DatasetSink {
    writer: DatasetWriter,
    digests: Digests,
    /// Duplicates to leave out, by unit, in ascending order of sample ids.
    duplicates: HashMap<UnitId, Vec<Duplicate>>,
}

/// A sample id, and the filter name that its rejection is counted under.
type Duplicate = (u64, &'static str);

impl DatasetSink {
    /// Opens the run's dataset, or makes it. Units made with other settings stay in older
    /// snapshots. Columns of these units that the run's settings do not change need not be computed
    /// again ([`find_reusable_rows`](Self::find_reusable_rows)).
    ///
    /// # Errors
    /// If models cannot be read; settings are wrong; the location holds something other than a
    /// dataset that this version can read, or an imported dataset; or it cannot be written.
    pub fn open(run: &Run, prepare: &Prepare, encode: &Encode) -> Result<Self> {
        if read_newest_snapshot(&run.dataset())?.is_some_and(|snapshot| is_imported(&snapshot)) {
            let message = format!(
                "{} is a dataset that `tidemill mds import` made; give another output",
                run.dataset()
            );
            return Err(run.refuse("output", message));
        }
        let models = run.models()?;
        let spec = dataset_spec(run, encode, compute_model_digests(&models)?)?;
        let empty = encode.encode_caption("", &open_tokenizers(&models, &run.file.encode)?)?;
        let digests = unit_digests(run, prepare, &spec);
        let writer = DatasetWriter::open(&run.dataset(), spec, &empty)?;
        Ok(Self { writer, digests, duplicates: HashMap::new() })
    }

    /// What a worker on another machine needs to [open](Self::open_from_ticket) this dataset.
    ///
    /// # Errors
    /// As [`Run::to_portable`].
    pub fn to_ticket(&self, run: &Run) -> Result<Ticket> {
        let (header, digests) = (self.writer.header().clone(), self.digests.clone());
        Ok(Ticket { run: run.to_portable()?, dataset: Some(DatasetTicket { header, digests }) })
    }

    /// Opens a run's dataset that another process has opened, without loading any model.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open_from_ticket(run: &Run, ticket: &DatasetTicket) -> Result<Self> {
        let writer = DatasetWriter::join(&run.dataset(), ticket.header.clone())?;
        Ok(Self { writer, digests: ticket.digests.clone(), duplicates: HashMap::new() })
    }

    /// The models that make the dataset's tensors.
    pub(crate) fn models(&self) -> &ModelDigests {
        &self.writer.spec().models
    }

    /// The key of a unit whose rows come from no file: their sample ids identify it.
    pub(crate) fn key_of_sample_ids(&self, sample_ids: &[u64]) -> UnitKey {
        UnitKey {
            file: "rows".into(),
            identity: short_digest(&json!(sample_ids)),
            span: 0..sample_ids.len() as u64,
            digests: self.digests.clone(),
        }
    }

    /// The key of a unit of the source.
    pub(crate) fn unit_key(&self, unit: &InputUnit) -> UnitKey {
        let mut key = UnitKey {
            file: unit.file.uri.clone(),
            identity: unit.file.identity.clone(),
            span: unit.span.range().clone(),
            digests: self.digests.clone(),
        };
        if let Some(samples) = self.duplicates.get(&key.id()) {
            key.digests.rows = short_digest(&json!([key.digests.rows, samples]));
        }
        key
    }

    /// Starts an attempt at a unit.
    pub(crate) fn begin_with_key(&self, key: &UnitKey) -> UnitWriter {
        self.writer.begin_unit(key)
    }

    /// Finds the duplicates among the committed rows of these units. Returns a sink that leaves
    /// them out, and the duplicates themselves: sample ids and filter names. Units without
    /// duplicates stay as they are; the others take their remaining rows from what is committed.
    ///
    /// # Errors
    /// If the rows cannot be read, or the list of duplicates cannot be written.
    pub fn without_duplicates(
        &self,
        units: &[InputUnit],
        config: &DedupConfig,
    ) -> Result<(Self, HashMap<u64, &'static str>)> {
        let ids: Vec<UnitId> = units.iter().map(|unit| self.unit_key(unit).id()).collect();
        let dataset = self.writer.open_committed(&ids)?;
        let mask = find_duplicates(&dataset, config, read_rows(&dataset)?)?;
        let reasons: HashMap<u64, &'static str> = mask
            .duplicates
            .iter()
            .map(|duplicate| (duplicate.sample_id, duplicate.reason.filter_name()))
            .collect();
        let mut duplicates: HashMap<UnitId, Vec<Duplicate>> = HashMap::new();
        let mut batches = dataset.read_rows(&["sample_id"]);
        while let Some(batch) = batches.next().transpose()? {
            let (Some(unit), Some(ids)) = (batches.unit(), sample_ids(&batch)) else { continue };
            let found: Vec<Duplicate> = ids.iter().filter_map(|id| Some((*id, *reasons.get(id)?))).collect();
            if !found.is_empty() {
                duplicates.entry(unit.id).or_default().extend(found);
            }
        }
        duplicates.values_mut().for_each(|samples| samples.sort_unstable());
        let writer = self.writer.with_reusable_from(&dataset)?;
        Ok((Self { writer, digests: self.digests.clone(), duplicates }, reasons))
    }

    /// What the newest snapshot knows about a unit's rows, made with other settings.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn find_reusable_rows(&self, unit: &InputUnit) -> Result<Option<ReusableRows>> {
        Ok(self.writer.find_reusable(&self.unit_key(unit))?)
    }

    /// The units that are not committed yet, and the row counts of those that are.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub fn find_uncommitted(&self, units: &[InputUnit]) -> Result<(Vec<InputUnit>, RowCounts)> {
        let committed = self.writer.committed_units()?;
        let (done, missing): (Vec<_>, Vec<_>) = units
            .iter()
            .map(|unit| (self.unit_key(unit).id(), unit))
            .partition(|(id, _)| committed.contains(id));
        let mut counts = RowCounts::default();
        for commit in self.writer.commits(done.iter().map(|(id, _)| id))? {
            counts.add(&commit.counts);
        }
        Ok((missing.into_iter().map(|(_, unit)| unit.clone()).collect(), counts))
    }

    /// The number of these units that are not committed.
    ///
    /// # Errors
    /// If the dataset cannot be listed.
    pub fn count_uncommitted(&self, units: &[InputUnit]) -> Result<usize> {
        let committed = self.writer.committed_units()?;
        Ok(units.iter().filter(|unit| !committed.contains(&self.unit_key(unit).id())).count())
    }

    /// Writes a snapshot of these units, the dataset's newest.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_snapshot(&self, units: &[InputUnit]) -> Result<Manifest> {
        self.write_snapshot_of_ids(&units.iter().map(|unit| self.unit_key(unit).id()).collect::<Vec<_>>())
    }

    /// Writes a snapshot of the units with these ids, the dataset's newest.
    pub(crate) fn write_snapshot_of_ids(&self, units: &[UnitId]) -> Result<Manifest> {
        Ok(self.writer.snapshot(units)?)
    }
}

impl Sink for DatasetSink {
    fn begin_unit(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>> {
        Ok(Box::new(self.begin_with_key(&self.unit_key(unit))))
    }
}

impl Attempt for UnitWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(UnitWriter::write(self, batch)?)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        // The store reports whether this attempt or another one made the unit; both are fine here.
        UnitWriter::commit(*self)?;
        Ok(())
    }
}

/// Finds the duplicates among rows of a dataset, and writes them beside its data.
///
/// # Errors
/// If the rows have no embeddings where these are compared, or the mask cannot be written.
pub fn find_duplicates(dataset: &Dataset, config: &DedupConfig, rows: Vec<Row>) -> Result<Mask> {
    let embeddings = config.similar.map(|_| DatasetEmbeddings::open(dataset)).transpose()?;
    let embeddings = embeddings.as_ref().map(|embeddings| embeddings as &dyn Embeddings);
    Ok(Mask::write(dataset, config, config.find_duplicates(rows, embeddings)?)?)
}

/// Describes the files of a snapshot that the source no longer has, and the rows that go with them.
/// `None` if the source has all files, wherever they lie now: a file is known by its identity.
pub fn describe_removed_files(snapshot: &Manifest, units: &[InputUnit]) -> Option<String> {
    let present: HashSet<&str> = units.iter().map(|unit| unit.file.identity.as_str()).collect();
    let removed = snapshot.commits.iter().filter(|commit| !present.contains(commit.unit.identity.as_str()));
    let mut files: BTreeMap<&str, u64> = BTreeMap::new();
    removed.for_each(|commit| *files.entry(&commit.unit.file).or_default() += commit.counts.kept);
    let (first, rows) = (files.keys().next()?, files.values().sum::<u64>());
    let (files, are) =
        if files.len() == 1 { ("1 file".into(), "is") } else { (format!("{} files", files.len()), "are") };
    Some(format!(
        "{files} of the dataset's last snapshot {are} not in the source any more ({first}): \
         the new snapshot is without their {rows} rows"
    ))
}

/// The newest snapshot of a dataset, if there is one. Does not open the dataset, because its files
/// may be missing and about to be written again.
///
/// # Errors
/// If it cannot be read.
pub fn read_newest_snapshot(uri: &str) -> Result<Option<Manifest>> {
    let location = Location::open(uri).map_err(tidemill_store::Error::from)?;
    Ok(Manifest::read_newest(&location)?)
}

/// Whether `tidemill mds import` made the snapshot, and not `tidemill preprocess`. Neither command
/// replaces what the other one made.
pub fn is_imported(snapshot: &Manifest) -> bool {
    snapshot.spec().prepare["imported"] == "mds"
}
