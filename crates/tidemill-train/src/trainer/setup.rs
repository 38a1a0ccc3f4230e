//! What a rank makes of its job by itself, before it says anything to the others: whether all of it fits together, and the parts that
//! the trainer is put together from.

use std::collections::BTreeMap;

use serde_json::Value;
use tch::{Device, Kind};
use tidemill_models::sampler::Sampler;
use tidemill_models::{NoiseSchedule, PredictionType, SchedulerConfig};
use tidemill_store::{Bucket, DatasetSpec, Dtype};
use tidemill_torch::{guard, has_native_bf16, tensor_from_bytes};

use super::cuda_graph::recorded_on;
use super::training_scheduler_config;
use crate::Error;
use crate::checkpoint::differences::{Difference, differences};
use crate::checkpoint::run_identity::identity;
use crate::checkpoint::{Checkpoints, Progress};
use crate::config::{Precision, PreviewConfig, Sharding, TrainConfig};
use crate::evaluation::validation_set::ValidationSet;
use crate::objective::Objective;
use crate::objective::draws::Drawer;
use crate::optimizer::{Distribution, Optimizer};
use crate::parallel::gradients::Reduction;
use crate::run_spec::{Observer, TrainSpec};
use crate::trainer::checks::{check_data, flops, frozen, has_moments, norms_in_f32};

/// The parts.
pub(super) struct Setup {
    pub spec: DatasetSpec,
    pub schedule: SchedulerConfig,
    /// Floating-point operations for a row of each bucket, forward and backward.
    pub flops: BTreeMap<Bucket, f64>,
    /// What a checkpoint must have been made with to be resumed.
    pub identity: Value,
    /// `[train]`, which may change from start to start.
    pub settings: Value,
    pub objective: Objective,
    pub distribution: Distribution,
    /// The GPU that steps are to be recorded on, if they are to be.
    pub recorded_on: Option<usize>,
    /// What to tell of the settings.
    pub remarks: Vec<&'static str>,
}

impl Setup {
    /// Takes the job's text encoder. `has_bf16`: whether the devices of all ranks have arithmetic in bf16.
    ///
    /// # Errors
    /// What does not fit.
    pub(super) fn of(job: &mut TrainSpec, has_bf16: bool) -> Result<Self, Error> {
        job.train.validate()?;
        let (precision, remark) = precision(job.train.precision, has_bf16);
        job.train.precision = Some(precision);
        set_gradient_checkpointing(job)?;
        let schedule = training_scheduler_config(&job.train, &job.scheduler);
        let spec = job.data.spec()?;
        check_data(job, &spec)?;
        check_ranks(job)?;
        check_preview(job, &schedule)?;
        Ok(Self {
            flops: flops(job, &spec)?,
            identity: identity(job, &spec, &schedule),
            settings: serde_json::to_value(&job.train).unwrap_or_default(),
            distribution: distribution(job)?,
            recorded_on: recorded_on(job.train.cuda_graph, job.denoiser.params().device(), job.world.size())?,
            // After what looks at the text encoder.
            objective: objective(job, &spec, &schedule, working_kind(precision))?,
            remarks: remark.into_iter().chain(remark_on(&schedule, &job.train)).collect(),
            schedule,
            spec,
        })
    }
}

/// Puts a job's data back to what they were when the run began that goes on. Gives what to tell of that.
pub(super) fn go_on(job: &mut TrainSpec, checkpoint: &Progress) -> Vec<String> {
    if let Some(held_out) = &mut job.validation_set {
        held_out.go_on(&checkpoint.held_out);
    }
    checkpoint.stream.as_ref().map(|state| job.data.restore_snapshots(state)).unwrap_or_default()
}

/// What a run begins with, or goes on with.
pub(super) struct Begun {
    pub identity: Value,
    pub settings: Value,
    /// What to tell of data that were put back.
    pub remarks: Vec<String>,
}

impl Begun {
    /// The beginning, or where the newest checkpoint stands, which is loaded. All ranks call it together.
    ///
    /// # Errors
    /// As [`Checkpoints::restore`].
    pub(super) fn progress(
        self,
        job: &TrainSpec,
        checkpoints: &Checkpoints,
        optimizer: &mut Optimizer,
        observer: &mut dyn Observer,
    ) -> Result<Progress, Error> {
        let Self { identity, settings, remarks } = self;
        let (world, averaged) = (&job.world, |step| job.train.averaged_at(step).is_some());
        let tell = &mut |message: &str| observer.log(message);
        let restored = checkpoints.restore(optimizer, &identity, &averaged, world, tell)?;
        if let Some(Progress { step, settings: before, .. }) = &restored {
            observer.on_checkpoint(*step);
            if world.is_first() {
                observer.log(&format!("resuming after step {step}"));
                remarks.iter().for_each(|remark| observer.log(remark));
                for Difference { path, first, second } in differences(before, &settings) {
                    observer.log(&format!("train.{path} is {second} from here on, and was {first}"));
                }
            }
        }
        let held_out = job.validation_set.as_ref().map(ValidationSet::snapshots).unwrap_or_default();
        let start = || Progress::start(identity, Value::Null);
        Ok(Progress { settings, held_out, ..restored.unwrap_or_else(start) })
    }
}

/// Whether all ranks have devices with arithmetic in bf16; they call it together, for what they compute in must be the same.
///
/// # Errors
/// If a device does not answer.
pub(super) fn all_have_bf16(job: &TrainSpec) -> Result<bool, Error> {
    let here = has_native_bf16(job.denoiser.params().device()).map_err(Error::from);
    let here = job.world.together(here)?;
    Ok(job.world.largest([(!here).into()])? == [0])
}

/// Refuses more ranks than a phase's batches have rows.
fn check_ranks(job: &TrainSpec) -> Result<(), Error> {
    let ranks = job.world.size();
    let mut rows = (0..job.train.phase.len()).map(|phase| (phase, job.train.global_batch_of(phase)));
    match rows.find(|(_, rows)| *rows < ranks) {
        None => Ok(()),
        Some((phase, rows)) => Err(Error::World(format!(
            "in train.phase[{phase}], global_batch = {rows} has no row for some of the {ranks} ranks"
        ))),
    }
}

/// Refuses pictures that could not be drawn when their time comes.
fn check_preview(job: &TrainSpec, schedule: &SchedulerConfig) -> Result<(), Error> {
    let Some(PreviewConfig { method, steps, .. }) = job.preview.as_ref().map(|preview| &preview.config)
    else {
        return Ok(());
    };
    let schedule = NoiseSchedule::new(schedule.clone(), Device::Cpu);
    Sampler::new(*method, &schedule, *steps)
        .map(drop)
        .map_err(|error| Error::config("train.preview", error.to_string()))
}

fn set_gradient_checkpointing(job: &mut TrainSpec) -> Result<(), Error> {
    let refuse =
        |error: tidemill_models::Error| Error::config("train.gradient_checkpointing", error.to_string());
    job.denoiser.set_gradient_checkpointing(job.train.gradient_checkpointing).map_err(refuse)
}

/// How the state of a job's network is spread over its ranks.
fn distribution(job: &TrainSpec) -> Result<Distribution, Error> {
    let (train, ranks) = (&job.train, job.world.size());
    let kind = working_kind(train.reduce_precision);
    let element = kind.elt_size_in_bytes();
    // Of few buckets the first is ready late, of many each takes its time.
    let eighth = || (job.denoiser.params().parameter_count() * element / 8).clamp(1 << 20, 32 << 20);
    let bytes = train.bucket_bytes.map_or_else(eighth, |bytes| bytes.as_u64() as usize);
    // The largest share of a batch that any rank has.
    let share = |phase| train.global_batch_of(phase).div_ceil(ranks);
    let accumulates = (0..train.phase.len()).any(|phase| share(phase) > train.micro_batch_of(phase));
    Ok(Distribution {
        sharded: train.sharding == Sharding::ShardGradOp && ranks > 1,
        bucket_elements: bytes / element,
        reduction: Reduction { kind, accumulates },
        moments: working_kind(train.moment_precision),
        frozen: frozen(train, &*job.denoiser)?,
        f32: norms_in_f32(train, job.denoiser.params())?,
    })
}

/// How rows of these data become inputs; takes the job's text encoder.
fn objective(
    job: &mut TrainSpec,
    spec: &DatasetSpec,
    schedule: &SchedulerConfig,
    working: Kind,
) -> Result<Objective, Error> {
    let device = job.denoiser.params().device();
    let text = spec.text.decoded();
    let shape: Vec<i64> = text.shape.iter().map(|n| i64::from(*n)).collect();
    let (stored, kind) = match text.dtype {
        Dtype::I32 => (Kind::Int, Kind::Int64),
        _ => (Kind::Half, working),
    };
    let schedule = NoiseSchedule::new(schedule.clone(), device);
    let weights = job.train.min_snr_gamma.map(|gamma| guard(|| schedule.min_snr_weights(gamma)));
    let weights = weights.transpose()?;
    let drawer = Drawer {
        seed: job.seed,
        timesteps: schedule.config().num_train_timesteps,
        how: job.train.timesteps,
        caption_dropout: job.train.caption_dropout,
        noise_offset: job.train.noise_offset,
        moments: has_moments(spec),
    };
    Ok(Objective {
        schedule,
        scaling_factor: spec.scaling_factor,
        drawer,
        weights,
        empty_text: guard(|| tensor_from_bytes(job.data.empty_caption(), stored, &shape, kind, device))?,
        text_encoder: job.text_encoder.take().map(|encoder| encoder.model),
        kind: working,
        device,
    })
}

/// In what the passes compute, and what to tell of it. `has_bf16`: as all ranks compute alike, whether all devices have it.
fn precision(asked: Option<Precision>, has_bf16: bool) -> (Precision, Option<&'static str>) {
    match asked {
        Some(Precision::Bf16) if !has_bf16 => (
            Precision::Bf16,
            Some(
                "train.precision = \"bf16\" is many times slower than \"f32\" on a device that has no arithmetic in bf16, as one of this run",
            ),
        ),
        Some(asked) => (asked, None),
        None if has_bf16 => (Precision::Bf16, None),
        None => (Precision::F32, Some("computing in f32: a device of this run has no arithmetic in bf16")),
    }
}

/// What to tell of a schedule that asks for what cannot be learnt.
fn remark_on(schedule: &SchedulerConfig, train: &TrainConfig) -> Option<&'static str> {
    match schedule.prediction_type {
        _ if !schedule.rescale_betas_zero_snr => None,
        PredictionType::Epsilon => Some(
            "with zero terminal SNR the last timestep is pure noise, from which predicted noise gives no image back: \
             train.prediction = \"v_prediction\" is usual with it",
        ),
        _ => train.min_snr_gamma.map(|_| {
            "with zero terminal SNR pictures begin at pure noise, for which train.min_snr_gamma leaves a loss no weight: \
             the weight is min(SNR, gamma) / (SNR + 1)"
        }),
    }
}

/// As libtorch calls it.
fn working_kind(precision: Precision) -> Kind {
    match precision {
        Precision::Bf16 => Kind::BFloat16,
        Precision::F32 => Kind::Float,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_is_as_asked_and_else_the_devices() {
        use Precision::{Bf16, F32};
        for (asked, has_bf16, expected, told) in [
            (None, true, Bf16, false),
            (None, false, F32, true),
            (Some(Bf16), true, Bf16, false),
            (Some(Bf16), false, Bf16, true),
            (Some(F32), true, F32, false),
            (Some(F32), false, F32, false),
        ] {
            let (got, remark) = precision(asked, has_bf16);
            assert_eq!((got, remark.is_some()), (expected, told), "{asked:?}, {has_bf16}");
        }
    }
}
