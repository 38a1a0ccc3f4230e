//! Whether data, models and run fit each other, asked before the first step.

use tidemill_models::SchedulerConfig;
use tidemill_store::{Bucket, DatasetSpec, Dtype};

use crate::Error;
use crate::job::Job;

/// Whether latents are moments; else they are means or samples, to be used as they are.
pub(crate) fn has_moments(spec: &DatasetSpec) -> bool {
    spec.latents_kind == "moments"
}

pub(crate) fn latents_shape(spec: &DatasetSpec, bucket: Bucket) -> Result<[i64; 3], Error> {
    let shape = spec.latents.get(&bucket).map_or(&[][..], |column| &column.shape);
    let shape: Vec<i64> = shape.iter().map(|n| i64::from(*n)).collect();
    <[i64; 3]>::try_from(shape).map_err(|s| Error::Dataset(format!("latents have the shape {s:?}")))
}

/// Refuses what could only fail at the first step.
pub(crate) fn check_data(job: &Job, spec: &DatasetSpec) -> Result<(), Error> {
    let unet = job.unet.config();
    check_text(job, spec)?;
    for bucket in spec.latents.keys() {
        let [channels, ..] = latents_shape(spec, *bucket)?;
        let halves = if has_moments(spec) { 2 } else { 1 };
        if channels != halves * unet.in_channels {
            return Err(Error::Dataset(format!(
                "{} have {channels} channels, but the U-Net takes {} latent channels",
                spec.latents_kind, unet.in_channels
            )));
        }
    }
    job.data.check(&job.train)
}

/// Refuses text of another width than the U-Net takes, and token ids that nothing encodes.
fn check_text(job: &Job, spec: &DatasetSpec) -> Result<(), Error> {
    let takes = job.unet.config().cross_attention_dim;
    let (what, width) = match (spec.text.dtype, &job.text_encoder) {
        (Dtype::I32, None) => {
            let problem = "it holds token ids, and there is no text encoder to encode them with";
            return Err(Error::Dataset(problem.into()));
        }
        (Dtype::I32, Some(encoder)) => ("the text encoder's embeddings", encoder.model.config().hidden_size),
        _ => ("text embeddings", i64::from(spec.text.shape.last().copied().unwrap_or(0))),
    };
    if width == takes {
        return Ok(());
    }
    Err(Error::Dataset(format!(
        "{what} are {width} wide, but the U-Net's cross_attention_dim is {takes}: the dataset was made for \
         another text encoder; run `tidemill preprocess` with this model"
    )))
}

/// What a checkpoint must have been made with to be resumed.
pub(crate) fn identity(job: &Job, schedule: &SchedulerConfig) -> serde_json::Value {
    let (name, data) = job.data.identity();
    let mut identity = serde_json::json!({
        "seed": job.seed,
        "global_batch": job.train.global_batch,
        "unet": job.unet.config(),
        "scheduler": schedule,
        name: data,
    });
    if let Some(encoder) = &job.text_encoder {
        identity["text_encoder"] = encoder.digest.clone().into();
    }
    identity
}
