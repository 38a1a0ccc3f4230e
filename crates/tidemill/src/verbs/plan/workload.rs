//! A run file as a plan sees it.

use std::collections::BTreeMap;
use std::path::Path;

use tch::Device;
use tidemill_data::tokenizer::CONTEXT;
use tidemill_models::{
    Activations, DenoiserConfig, ParamInit, SampleShape, TextWidths, TrainableDenoiser, UNetConfig, VaeConfig,
};
use tidemill_plan::Workload;
use tidemill_plan::memory::{BackwardMoment, MemoryLayout, default_bucket_bytes};
use tidemill_plan::shard_units::UnitSizes;
use tidemill_plan::storage::{RowFormat, TextFormat, TextShape};
use tidemill_plan::workload::{ImageCost, Phase};
use tidemill_train::{Precision, Sharding};

use crate::encode::config::StoredText;
use crate::encode::token_counts;
use crate::error::Result;
use crate::run_file::Run;

/// The row format of Stable Diffusion 1 and 2, with the text encoder of version 2.
fn sd2_rows() -> RowFormat {
    let texts = vec![TextShape { tokens: CONTEXT as u64, width: 1024 }];
    RowFormat { latent_channels: 4, downscale_factor: 8, texts, pooled_width: 0 }
}

/// What a run trains. Without `models.path`, Stable Diffusion 2.
///
/// # Errors
/// If the models' configurations cannot be read, or `[train]` contradicts itself.
pub fn workload_of(run: &Run) -> Result<Workload> {
    let Models { mut network, row_format, text, has_time_ids } = read_models(run)?;
    let (train, encode) = (&run.file.train, &run.file.encode);
    network.set_gradient_checkpointing(train.gradient_checkpointing)?;
    let phases = (0..train.phase.len()).map(|index| {
        let (phase, global_batch) = (&train.phase[index], train.phase_global_batch(index) as u64);
        Phase {
            resolution: phase.resolution,
            samples: phase.steps * global_batch,
            global_batch,
            micro_batch: train.phase_micro_batch(index) as u64,
        }
    });
    let phases: Vec<Phase> = phases.collect();
    let parameters = network.params().parameter_count() as u64;
    let buffers = network.params().named_buffers();
    let buffer_bytes = buffers.iter().map(|(_, buffer)| buffer.numel() * buffer.kind().elt_size_in_bytes());
    let reduce_bytes = bytes_of(train.reduce_precision);
    // GPUs that train have bf16.
    let weight_bytes = bytes_of(train.precision.unwrap_or(Precision::Bf16));
    let default_buckets = || default_bucket_bytes(parameters * reduce_bytes);
    let layout = MemoryLayout {
        parameters,
        resident_parameters: parameters,
        buffer_bytes: buffer_bytes.sum::<usize>() as u64,
        ranks: 1,
        partitions: 1,
        weight_bytes,
        reduce_bytes,
        moment_bytes: bytes_of(train.moment_precision),
        has_ema: train.ema.is_some(),
        is_accumulated: false,
        bucket_bytes: train.bucket_bytes.map_or_else(default_buckets, |bytes| bytes.as_u64()),
    };
    let mut image_costs = BTreeMap::new();
    for phase in &phases {
        let side = i64::from(phase.resolution) / row_format.downscale_factor.max(1) as i64;
        let shape = SampleShape {
            latents: [row_format.latent_channels as i64, side, side],
            text: text.0,
            pooled: text.1,
            has_time_ids,
        };
        image_costs.insert(phase.resolution, image_cost(&*network, shape, weight_bytes)?);
    }
    let embeddings = match encode.embeddings {
        StoredText::F16 => TextFormat::F16,
        StoredText::F8 => TextFormat::F8,
        StoredText::TokenIds => TextFormat::TokenIds,
    };
    let sharding = train.sharding;
    let shard_units = (sharding == Sharding::FullShard).then(|| count_units(&*network));
    let has_evaluations = train.validation.is_some() || train.preview.is_some();
    Ok(Workload {
        phases,
        layout,
        sharding,
        shard_units,
        has_evaluations,
        row_format,
        embeddings,
        image_costs,
    })
}

/// The parameters of each shard unit.
fn count_units(network: &dyn TrainableDenoiser) -> UnitSizes {
    let shard_units = network.shard_units();
    let mut sizes = UnitSizes { always: 0, units: vec![0; shard_units.len()] };
    for (name, parameter) in network.params().named_parameters() {
        let unit = shard_units.unit_of(&name);
        let size = unit.map_or(&mut sizes.always, |unit| &mut sizes.units[unit]);
        *size += parameter.numel() as u64;
    }
    sizes
}

/// What a plan takes of the models.
struct Models {
    /// Without weights.
    network: Box<dyn TrainableDenoiser>,
    row_format: RowFormat,
    /// The shape [L, D] of text as the network takes it, and the width of pooled text.
    text: ([i64; 2], Option<i64>),
    has_time_ids: bool,
}

fn read_models(run: &Run) -> Result<Models> {
    let path: &Path = &run.file.models.path;
    let (config, row_format, text) = if path.as_os_str().is_empty() {
        let config = DenoiserConfig::UNet(UNetConfig::stable_diffusion_2());
        (config, sd2_rows(), ([CONTEXT as i64, 1024], None))
    } else {
        let models = run.models()?;
        let config = DenoiserConfig::read(&models)?;
        let vae = VaeConfig::read(&models.vae().join("config.json"))?;
        let widths = models.text_widths()?;
        let tokens = token_counts(&models, &run.file.encode)?;
        let join = run.text_join(&models)?;
        let TextWidths { hidden, pooled } = join.join_widths(&widths);
        let shape = |(widths, tokens): (&TextWidths, usize)| TextShape {
            tokens: tokens as u64,
            width: widths.hidden.unsigned_abs(),
        };
        let rows = RowFormat {
            latent_channels: vae.latent_channels.unsigned_abs(),
            downscale_factor: vae.downscale_factor().unsigned_abs(),
            texts: widths.iter().zip(tokens).map(shape).collect(),
            pooled_width: pooled.unwrap_or(0).unsigned_abs(),
        };
        (config, rows, ([join.join_tokens(CONTEXT as i64), hidden], pooled))
    };
    let network = config.build(Device::Cpu, ParamInit::ShapeOnly)?;
    Ok(Models { network, row_format, text, has_time_ids: config.takes_time_ids() })
}

fn image_cost(network: &dyn TrainableDenoiser, shape: SampleShape, element_bytes: u64) -> Result<ImageCost> {
    // A backward pass has twice as many as a forward pass.
    let flops = 3.0 * network.forward_flops(shape)? as f64;
    let parameters = network.params().parameter_count().max(1) as f64;
    let activations = network.activations(shape).map(|moments| {
        let moment = |moment: Activations| BackwardMoment {
            bytes: element_bytes * moment.elements,
            gradient_share: moment.gradients as f64 / parameters,
        };
        moments.into_iter().map(moment).collect()
    });
    Ok(ImageCost { flops, activations })
}

fn bytes_of(precision: Precision) -> u64 {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    }
}
