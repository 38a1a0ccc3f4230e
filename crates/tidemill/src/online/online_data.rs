//! Training without a dataset in between: pairs are prepared and encoded while the trainer takes steps, anew in each epoch, so
//! that crops, flips and the choice among captions differ. *Online*, encoders work beside the trainer, on GPUs of their
//! own if there are more than training processes; *co-located*, the trainer itself encodes each batch before its step.
//!
//! ```text
//!  units ─► lanes.rs ─► feed.rs: here.rs or elsewhere.rs ─► windows ─► batches.rs ─► trainer
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};
use tch::Device;
use tidemill_data::source::Source;
use tidemill_data::{ClipTokenizer, InputUnit, PrepareConfig};
use tidemill_store::{DatasetSpec, ModelDigests};
use tidemill_train::{BatchStream, Phase, TrainConfig, TrainingData};

use crate::encode::stage::Encode;
use crate::engine::dataset_sink::{short_digest, specification};
use crate::engine::{Encoded, Encoder, Passing, Stage};
use crate::error::Result;
use crate::online::batches::{OnlineBatches, State};
use crate::online::local_encoders::Making;
use crate::online::prefetch::Feed;
use crate::online::rank_assignment::{Lane, Windows};
use crate::online::remote_encoders::Asking;
use crate::online::remote_encoders::Elsewhere;
use crate::online::row_accounting::Ledger;
use crate::online::row_selection::Selection;
use crate::online::{local_encoders, rank_assignment, remote_encoders};
use crate::run_file::Run;

/// Who encodes.
#[derive(Debug, Clone)]
pub enum Encoders {
    /// The trainer itself, batch by batch.
    Trainer,
    /// Threads of this process, on these devices.
    Devices(Vec<Device>),
    /// Others.
    Elsewhere(Arc<dyn Elsewhere>),
}

/// The pairs of a run as data of its trainer.
pub struct Online {
    run: Run,
    source: Arc<dyn Source>,
    units: Arc<Vec<InputUnit>>,
    windows: Windows,
    spec: DatasetSpec,
    empty_caption: Vec<u8>,
    /// Where the trainer is.
    device: Device,
    encoders: Encoders,
    ledger: Arc<Ledger>,
}

impl Online {
    /// Opens the source and looks at every file. The trainer is on `device`.
    ///
    /// # Errors
    /// If the source, the models or the run file are not fit for it.
    pub fn open(run: &Run, models: ModelDigests, device: Device, encoders: Encoders) -> Result<Self> {
        run.validate_online(matches!(encoders, Encoders::Devices(_)))?;
        run.validate_source()?;
        run.check_models()?;
        let source = run.source()?;
        let units = source.units().map_err(|e| run.locate(e))?;
        let folder = run.models()?;
        let encode = Encode::load(&folder, &run.file.encode, device)?;
        let spec = specification(run, &encode, models)?;
        let empty_caption = encode.caption(&ClipTokenizer::open(&folder.tokenizer())?.encode(""))?;
        Ok(Self {
            run: run.clone(),
            source: source.into(),
            windows: Windows::new(run.file.seed, units.len(), run.file.online.window),
            ledger: Arc::new(Ledger::open(&run.output(), run.file.engine.max_bad_fraction, units.len())?),
            units: Arc::new(units),
            spec,
            empty_caption,
            device,
            encoders,
        })
    }

    /// What became of rows in this process.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.ledger.clone()
    }

    fn encode(&self, device: Device) -> Result<Encode> {
        Encode::load(&self.run.models()?, &self.run.file.encode, device)
    }

    /// Starts making the windows of a lane.
    fn feed(&self, lane: &Lane, lanes: usize, selection: &Selection) -> Result<Feed> {
        let windows = lane.windows(lanes);
        if let Encoders::Elsewhere(elsewhere) = &self.encoders {
            let asking = Asking {
                elsewhere: elsewhere.clone(),
                units: self.units.clone(),
                windows: self.windows,
                ahead: self.run.file.online.ahead,
                models: self.spec.models.clone(),
                selection: selection.clone(),
                ledger: self.ledger.clone(),
            };
            return Feed::start(move |to, stop| remote_encoders::make(&asking, windows, to, stop));
        }
        let run = self.run.at_resolution(selection.resolution);
        let making = Making {
            stages: self.stages(&run)?,
            encodes: matches!(self.encoders, Encoders::Devices(_)),
            source: self.source.clone(),
            units: self.units.clone(),
            windows: self.windows,
            selection: selection.clone(),
            ledger: self.ledger.clone(),
            run,
        };
        Feed::start(move |to, stop| local_encoders::make(making, windows, to, stop))
    }

    /// The second stage of the engine, once for each encoder.
    fn stages(&self, run: &Run) -> Result<Vec<Box<dyn Stage>>> {
        let Encoders::Devices(devices) = &self.encoders else { return Ok(vec![Box::new(Passing)]) };
        let each = run.file.engine.encode.workers.most();
        let devices = devices.iter().flat_map(|device| std::iter::repeat_n(*device, each));
        let encoded = Arc::new(Encoded::default());
        let stage = |device| -> Result<Box<dyn Stage>> {
            Ok(Box::new(Encoder::new(run, self.encode(device)?, &encoded)?))
        };
        devices.map(stage).collect()
    }

    fn batches(&self, phase: &Phase<'_>, state: Option<&Value>) -> Result<OnlineBatches> {
        let (resolution, world) = (phase.resolution(), phase.world);
        let lanes = match state {
            Some(state) => State::read(state)?.at(resolution, world.size()),
            None => rank_assignment::start(world.size()),
        };
        let lane = lanes[world.rank()].clone();
        let selection = Selection { resolution, held_out: self.run.file.validation.share };
        let alone = matches!(self.encoders, Encoders::Trainer);
        Ok(OnlineBatches {
            feed: self.feed(&lane, world.size(), &selection)?,
            windows: self.windows,
            selection,
            world: world.clone(),
            share: world.share_of(phase.global_batch()),
            first: world.first_of(phase.global_batch()) as u32,
            encode: alone.then(|| self.encode(self.device)).transpose()?,
            ledger: self.ledger.clone(),
            ahead: lane.clone(),
            lane,
            at: None,
            taken: VecDeque::new(),
            number: 0,
            empty: 0,
            failed: Default::default(),
        })
    }
}

impl TrainingData for Online {
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
        // Lists may be moved, and grow: somebody opts out while a run is under way.
        let filter = file.filter.without_lists();
        let rows = short_digest(&json!([filter, file.caption, file.source.columns, file.validation]));
        // Each phase has one resolution, which its state names.
        let images = short_digest(&json!(PrepareConfig { resolutions: Vec::new(), ..file.prepare.clone() }));
        let models = (&self.spec.models, file.encode.dtype);
        (
            "online",
            json!({ "source": source, "window": window, "rows": rows, "images": images, "models": models }),
        )
    }

    fn encodes_in_process(&self) -> bool {
        !matches!(self.encoders, Encoders::Elsewhere(_))
    }

    /// Which rows there are shows only when they are prepared.
    fn check_phases(&self, _train: &TrainConfig) -> std::result::Result<(), tidemill_train::Error> {
        Ok(())
    }

    fn open_stream(
        &self,
        phase: &Phase<'_>,
        state: Option<&Value>,
    ) -> std::result::Result<Box<dyn BatchStream>, tidemill_train::Error> {
        let batches = self.batches(phase, state);
        Ok(Box::new(batches.map_err(|error| tidemill_train::Error::Data(Box::new(error)))?))
    }
}
