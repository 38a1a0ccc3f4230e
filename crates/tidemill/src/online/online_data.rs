//! The pairs of a run as data of its trainer.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tch::Device;
use tidemill_data::source::Source;
use tidemill_data::{InputUnit, PrepareConfig};
use tidemill_store::{DatasetSpec, ModelDigests};
use tidemill_train::{BatchStream, Phase, TrainConfig, TrainingData};

use crate::encode::open_tokenizers;
use crate::engine::dataset_spec::{dataset_spec, short_digest};
use crate::engine::encode_stage::{EncodeStage, EncodedCounts};
use crate::engine::stage::{PassThrough, Stage};
use crate::error::Result;
use crate::online::batches::{BatchPart, OnlineBatches, StreamPosition};
use crate::online::local_encoders::LocalWindows;
use crate::online::rank_assignment::{RankAssignment, initial_assignments};
use crate::online::remote_encoders::{RemoteEncoders, RemoteWindows};
use crate::online::row_accounting::RowAccounting;
use crate::online::row_selection::RowSelection;
use crate::online::stream_state::StreamState;
use crate::online::window_plan::WindowPlan;
use crate::online::window_prefetch::WindowPrefetcher;
use crate::run_file::Run;

/// Which processes and devices encode.
#[derive(Debug, Clone)]
pub enum EncoderPlacement {
    /// The trainer itself, batch by batch, on its device.
    Trainer,
    /// Threads of this process, on these devices.
    LocalDevices(Vec<Device>),
    /// Processes on other machines.
    Remote(Arc<dyn RemoteEncoders>),
}

/// The pairs of a run as training data.
pub struct OnlineData {
    run: Run,
    source: Arc<dyn Source>,
    units: Arc<Vec<InputUnit>>,
    plan: WindowPlan,
    spec: DatasetSpec,
    /// Digests of the computed scores, by name.
    scores: BTreeMap<String, String>,
    empty_caption: Vec<u8>,
    /// The trainer's device.
    device: Device,
    encoders: EncoderPlacement,
    accounting: Arc<RowAccounting>,
}

impl OnlineData {
    /// Opens the source and lists its units. The trainer is on `device`.
    ///
    /// # Errors
    /// If the source, the models or the run file are not suitable.
    pub fn open(run: &Run, models: ModelDigests, device: Device, encoders: EncoderPlacement) -> Result<Self> {
        run.validate_online(matches!(encoders, EncoderPlacement::LocalDevices(_)))?;
        let scores = run.score_digests()?;
        if matches!(encoders, EncoderPlacement::Trainer) && !scores.is_empty() {
            let message = "the trainer computes no scores: run `tidemill preprocess` first, or use encoders beside the \
                           trainer";
            return Err(run.refuse("score.path", message));
        }
        run.validate_source()?;
        run.check_models()?;
        let source = run.source()?;
        let units = source.units().map_err(|e| run.locate(e))?;
        let folder = run.models()?;
        let encode = run.load_encode(device)?;
        let spec = dataset_spec(run, &encode, models)?;
        let empty_caption = encode.encode_caption("", &open_tokenizers(&folder, &run.file.encode)?)?;
        let max_bad_fraction = run.file.engine.max_bad_fraction;
        Ok(Self {
            run: run.clone(),
            source: source.into(),
            plan: WindowPlan::new(run.file.seed, units.len(), run.file.online.window),
            accounting: Arc::new(RowAccounting::open(&run.output(), max_bad_fraction, units.len())?),
            units: Arc::new(units),
            spec,
            scores,
            empty_caption,
            device,
            encoders,
        })
    }

    /// What became of rows in this process.
    pub fn accounting(&self) -> Arc<RowAccounting> {
        self.accounting.clone()
    }

    /// Starts to make the windows of a rank ahead of need.
    fn start_prefetch(
        &self,
        assignment: &RankAssignment,
        ranks: usize,
        selection: &RowSelection,
    ) -> Result<WindowPrefetcher> {
        let windows = assignment.remaining_windows(ranks);
        let (selection, accounting) = (selection.clone(), self.accounting.clone());
        let (plan, units) = (self.plan, self.units.clone());
        if let EncoderPlacement::Remote(encoders) = &self.encoders {
            let remote = RemoteWindows {
                encoders: encoders.clone(),
                units,
                plan,
                windows_ahead: self.run.file.online.ahead,
                models: self.spec.models.clone(),
                scores: self.scores.clone(),
                selection,
                accounting,
            };
            return WindowPrefetcher::start(move |to, stop| remote.make_windows(windows, to, stop));
        }
        let run = self.run.at_resolution(selection.resolution);
        let local = LocalWindows {
            stages: self.load_encode_stages(&run)?,
            is_encoding: matches!(self.encoders, EncoderPlacement::LocalDevices(_)),
            source: self.source.clone(),
            units,
            plan,
            selection,
            accounting,
            run,
        };
        WindowPrefetcher::start(move |to, stop| local.make_windows(windows, to, stop))
    }

    /// The second stage of the engine, once for each encoder.
    fn load_encode_stages(&self, run: &Run) -> Result<Vec<Box<dyn Stage>>> {
        let EncoderPlacement::LocalDevices(devices) = &self.encoders else {
            return Ok(vec![Box::new(PassThrough)]);
        };
        let per_device = run.file.engine.encode.workers.max();
        let devices = devices.iter().flat_map(|device| std::iter::repeat_n(*device, per_device));
        let encoded = Arc::new(EncodedCounts::default());
        let load_stage = |device| -> Result<Box<dyn Stage>> {
            Ok(Box::new(EncodeStage::new(run, self.run.load_encode(device)?, &encoded)?))
        };
        devices.map(load_stage).collect()
    }

    fn open_batches(&self, phase: &Phase<'_>, state: Option<&Value>) -> Result<OnlineBatches> {
        let (resolution, world) = (phase.resolution(), phase.world);
        let assignments = match state {
            Some(state) => StreamState::from_json(state)?.into_assignments(resolution, world.size()),
            None => initial_assignments(world.size()),
        };
        let assignment = assignments[world.rank()].clone();
        let selection = RowSelection { resolution, validation_share: self.run.file.validation.share };
        let trainer_encodes = matches!(self.encoders, EncoderPlacement::Trainer);
        Ok(OnlineBatches {
            prefetcher: self.start_prefetch(&assignment, world.size(), &selection)?,
            plan: self.plan,
            selection,
            world: world.clone(),
            batch_part: BatchPart {
                rows: world.local_batch_size(phase.global_batch()),
                first_place: world.first_local_row(phase.global_batch()) as u32,
            },
            encode: trainer_encodes.then(|| self.run.load_encode(self.device)).transpose()?,
            accounting: self.accounting.clone(),
            position: StreamPosition::new(assignment),
            batch_number: 0,
            empty_windows: 0,
            encode_failures: Default::default(),
        })
    }
}

impl TrainingData for OnlineData {
    fn spec(&self) -> std::result::Result<DatasetSpec, tidemill_train::Error> {
        Ok(self.spec.clone())
    }

    fn empty_caption(&self) -> &[u8] {
        &self.empty_caption
    }

    fn identity(&self) -> (&'static str, Value) {
        let (file, units) = (&self.run.file, &self.units);
        let units: Vec<_> = units.iter().map(|unit| (&unit.file.identity, unit.span.range())).collect();
        let (source, window) = (short_digest(&json!(units)), file.online.window);
        // Block lists may move, and grow while a run is under way, because people opt out.
        let filter = file.filter.without_lists();
        let rows = json!([filter, file.caption, file.source.columns, file.validation]);
        let rows = match self.scores.is_empty() {
            true => short_digest(&rows),
            false => short_digest(&json!([rows, self.scores])),
        };
        // Resolutions are left out: each phase has one, and the state of the stream names it.
        let images = PrepareConfig { resolutions: Vec::new(), ..file.prepare.clone() };
        let images = short_digest(&images.digest_input());
        let models = (&self.spec.models, file.encode.dtype);
        (
            "online",
            json!({ "source": source, "window": window, "rows": rows, "images": images, "models": models }),
        )
    }

    fn encodes_in_process(&self) -> bool {
        !matches!(self.encoders, EncoderPlacement::Remote(_))
    }

    /// Checks nothing: which rows there are is known only once they are prepared.
    fn check_phases(&self, _train: &TrainConfig) -> std::result::Result<(), tidemill_train::Error> {
        Ok(())
    }

    fn open_stream(
        &self,
        phase: &Phase<'_>,
        state: Option<&Value>,
    ) -> std::result::Result<Box<dyn BatchStream>, tidemill_train::Error> {
        let batches = self.open_batches(phase, state);
        Ok(Box::new(batches.map_err(|error| tidemill_train::Error::Data(Box::new(error)))?))
    }
}
