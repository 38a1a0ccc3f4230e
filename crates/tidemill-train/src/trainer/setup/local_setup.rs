//! Set-up that each rank does by itself, before it communicates with the others: it checks that
//! everything in its spec fits together, and makes the parts that the trainer needs.

use std::collections::BTreeMap;

use serde_json::Value;
use tch::Kind;
use tidemill_models::sampler::Sampler;
use tidemill_models::{LatentScale, NoiseSchedule, PredictionType, SchedulerConfig};
use tidemill_plan::memory::default_bucket_bytes;
use tidemill_store::{Bucket, DatasetSpec};

use super::compatibility_checks::{check_data, frozen_parameters, norms_in_f32, row_costs};
use super::shard_units::shard_units;
use crate::Error;
use crate::checkpoint::run_identity::compute_run_identity;
use crate::config::{CaptionDropout, Precision, PreviewConfig, Sharding, TrainConfig};
use crate::data::latents_layout::has_moments;
use crate::objective::denoising::Objective;
use crate::objective::random_draws::RandomDrawer;
use crate::objective::text_conditions::TextConditions;
use crate::optimizer::ShardingPlan;
use crate::parallel::gradient_reduction::{GradientAccumulation, GradientReduction};
use crate::train_spec::TrainSpec;
use crate::trainer::noise_schedule::training_scheduler_config;
use crate::trainer::step::cuda_graph::{CudaGraphTarget, cuda_graph_target};
use crate::trainer::step::step_runner::RowCost;

/// Everything that a rank derives from its spec.
pub(super) struct LocalSetup {
    pub dataset: DatasetSpec,
    /// The noise schedule to train with.
    pub schedule: SchedulerConfig,
    /// The costs of a row of each bucket.
    pub row_costs: BTreeMap<Bucket, RowCost>,
    /// What a checkpoint must have been made with to be resumed.
    pub identity: Value,
    /// `[train]`, which may change between starts.
    pub settings: Value,
    pub objective: Objective,
    pub sharding_plan: ShardingPlan,
    /// The GPU to record steps on, if they may be recorded.
    pub cuda_graph_target: Option<CudaGraphTarget>,
    /// Messages to the user about the settings.
    pub messages: Vec<&'static str>,
}

impl LocalSetup {
    /// Checks a spec and derives everything from it. Takes the text encoders out of the spec.
    /// `has_bf16` says whether the devices of all ranks have bf16 arithmetic.
    ///
    /// # Errors
    /// If something in the spec does not fit the rest.
    pub fn new(spec: &mut TrainSpec, has_bf16: bool) -> Result<Self, Error> {
        spec.train.validate()?;
        let (precision, precision_message) = resolve_precision(spec.train.precision, has_bf16);
        spec.train.precision = Some(precision);
        set_gradient_checkpointing(spec)?;
        let schedule = training_scheduler_config(&spec.train, &spec.scheduler)?;
        let dataset = spec.data.spec()?;
        check_data(spec, &dataset)?;
        check_ranks(spec)?;
        check_preview(spec, &schedule)?;
        let (device, ranks) = (spec.denoiser.params().device(), spec.world.size());
        let may_wait = spec.denoiser.may_wait_for_device() || spec.data.encodes_in_process();
        let schedule_message = schedule_message(&schedule, &spec.train);
        Ok(Self {
            row_costs: row_costs(spec, &dataset)?,
            identity: compute_run_identity(spec, &dataset, &schedule),
            settings: serde_json::to_value(&spec.train).unwrap_or_default(),
            sharding_plan: new_sharding_plan(spec)?,
            cuda_graph_target: cuda_graph_target(&spec.train, device, ranks, may_wait)?,
            // Takes the text encoders, so this comes after everything that reads it.
            objective: new_objective(spec, &dataset, &schedule, to_kind(precision))?,
            messages: precision_message.into_iter().chain(schedule_message).collect(),
            schedule,
            dataset,
        })
    }
}

/// Refuses batches that have fewer rows than there are ranks.
fn check_ranks(spec: &TrainSpec) -> Result<(), Error> {
    let ranks = spec.world.size();
    let mut rows = (0..spec.train.phase.len()).map(|phase| (phase, spec.train.phase_global_batch(phase)));
    match rows.find(|(_, rows)| *rows < ranks) {
        None => Ok(()),
        Some((phase, rows)) => Err(Error::World(format!(
            "in train.phase[{phase}], global_batch = {rows} has no row for some of the {ranks} ranks"
        ))),
    }
}

/// Refuses previews that could not be drawn later, because the sampler does not fit the schedule.
fn check_preview(spec: &TrainSpec, schedule: &SchedulerConfig) -> Result<(), Error> {
    let Some(PreviewConfig { method, steps, .. }) = spec.preview.as_ref().map(|preview| &preview.config)
    else {
        return Ok(());
    };
    Sampler::check(*method, schedule, *steps)
        .map_err(|error| Error::config("train.preview", error.to_string()))
}

fn set_gradient_checkpointing(spec: &mut TrainSpec) -> Result<(), Error> {
    let refuse =
        |error: tidemill_models::Error| Error::config("train.gradient_checkpointing", error.to_string());
    spec.denoiser.set_gradient_checkpointing(spec.train.gradient_checkpointing).map_err(refuse)
}

/// How the state of the denoiser is distributed over the ranks.
fn new_sharding_plan(spec: &TrainSpec) -> Result<ShardingPlan, Error> {
    let (train, ranks) = (&spec.train, spec.world.size());
    let partition_count = spec.world.partition_count(train.sharding)?;
    let kind = to_kind(train.reduce_precision);
    let element_size = kind.elt_size_in_bytes();
    let gradient_bytes = (spec.denoiser.params().parameter_count() * element_size) as u64;
    let default_bytes = || default_bucket_bytes(gradient_bytes);
    let bucket_bytes = train.bucket_bytes.map_or_else(default_bytes, |bytes| bytes.as_u64()) as usize;
    let has_micro_batches = (0..train.phase.len()).any(|phase| train.phase_micro_batches(phase, ranks) > 1);
    let accumulation = match train.sharding {
        _ if !has_micro_batches => GradientAccumulation::Off,
        // Whole gradients would take more memory than sharded weights save.
        Sharding::FullShard if partition_count > 1 => GradientAccumulation::Partitions,
        _ => GradientAccumulation::Whole,
    };
    Ok(ShardingPlan {
        partition_count,
        bucket_elements: bucket_bytes / element_size,
        reduction: GradientReduction { kind, accumulation },
        moment_kind: to_kind(train.moment_precision),
        frozen: frozen_parameters(train, &*spec.denoiser)?,
        f32_params: norms_in_f32(train, spec.denoiser.params())?,
        units: shard_units(spec)?,
    })
}

/// How rows of this dataset become inputs and a loss. Takes the spec's text encoders.
fn new_objective(
    spec: &mut TrainSpec,
    dataset: &DatasetSpec,
    schedule: &SchedulerConfig,
    kind: Kind,
) -> Result<Objective, Error> {
    let device = spec.denoiser.params().device();
    check_caption_dropout(&spec.train.caption_dropout, dataset)?;
    let schedule = NoiseSchedule::new(schedule.clone(), device);
    let drawer = RandomDrawer {
        seed: spec.seed,
        timestep_count: schedule.config().num_train_timesteps,
        timestep_sampling: spec.train.timesteps,
        edm: schedule.config().edm,
        caption_dropout: spec.train.caption_dropout.shares().to_vec(),
        noise_offset: spec.train.noise_offset,
        has_moments: has_moments(dataset),
    };
    let encoders = spec.text_encoders.take().map(|encoders| encoders.models);
    let text = TextConditions::new(dataset, spec.data.empty_caption(), encoders, (kind, device))?
        .with_join(spec.text_join);
    Ok(Objective {
        schedule,
        scale: LatentScale { factor: dataset.scaling_factor, shift: dataset.shift_factor },
        drawer,
        min_snr_gamma: spec.train.min_snr_gamma,
        text,
        kind,
        device,
    })
}

/// Refuses shares for another number of text encoders than the rows have.
fn check_caption_dropout(dropout: &CaptionDropout, dataset: &DatasetSpec) -> Result<(), Error> {
    let encoders = dataset.text_columns().filter(|(column, _)| !column.is_pooled()).count();
    match dropout {
        CaptionDropout::PerEncoder(shares) if shares.len() != encoders => {
            let message = format!(
                "{} shares for {encoders} text encoders; give one for each, or one number",
                shares.len()
            );
            Err(Error::config("train.caption_dropout", message))
        }
        _ => Ok(()),
    }
}

/// The precision of the forward and backward passes, and a message to the user about it. `has_bf16`
/// says whether all devices have bf16 arithmetic, because all ranks compute alike.
fn resolve_precision(configured: Option<Precision>, has_bf16: bool) -> (Precision, Option<&'static str>) {
    match configured {
        Some(Precision::Bf16) if !has_bf16 => (
            Precision::Bf16,
            Some(
                "train.precision = \"bf16\" is many times slower than \"f32\" on a device without bf16 \
                 arithmetic, and this run has such a device",
            ),
        ),
        Some(configured) => (configured, None),
        None if has_bf16 => (Precision::Bf16, None),
        None => (Precision::F32, Some("computing in f32: a device of this run has no bf16 arithmetic")),
    }
}

/// A message to the user about a schedule that asks for something that cannot be learned.
fn schedule_message(schedule: &SchedulerConfig, train: &TrainConfig) -> Option<&'static str> {
    match schedule.prediction_type {
        _ if !schedule.rescale_betas_zero_snr => None,
        PredictionType::Epsilon => Some(
            "with zero terminal SNR the last timestep is pure noise, and predicted noise gives no \
             image back from it; train.prediction = \"v_prediction\" is usual with zero terminal SNR",
        ),
        _ => train.min_snr_gamma.map(|_| {
            "with zero terminal SNR images start at pure noise, and train.min_snr_gamma gives the loss \
             there no weight: the weight is min(SNR, gamma) / (SNR + 1)"
        }),
    }
}

/// The precision as a dtype of libtorch.
fn to_kind(precision: Precision) -> Kind {
    match precision {
        Precision::Bf16 => Kind::BFloat16,
        Precision::F32 => Kind::Float,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_precision_follows_the_devices() {
        use Precision::{Bf16, F32};
        for (configured, has_bf16, expected, has_message) in [
            (None, true, Bf16, false),
            (None, false, F32, true),
            (Some(Bf16), true, Bf16, false),
            (Some(Bf16), false, Bf16, true),
            (Some(F32), true, F32, false),
            (Some(F32), false, F32, false),
        ] {
            let (precision, message) = resolve_precision(configured, has_bf16);
            assert_eq!((precision, message.is_some()), (expected, has_message), "{configured:?}, {has_bf16}");
        }
    }
}
