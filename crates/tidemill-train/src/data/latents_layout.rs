//! What the latents of a dataset look like.

use tidemill_store::{Bucket, DatasetSpec};

use crate::Error;

/// Whether latents are moments (means and log-variances). Otherwise they are means or samples, to
/// be used as they are.
pub(crate) fn has_moments(spec: &DatasetSpec) -> bool {
    spec.latents_kind == "moments"
}

/// The shape [C, h, w] of one row's stored latents in `bucket`; moments have twice the channels of
/// a latent.
///
/// # Errors
/// If the dataset's latents do not have three dimensions.
pub(crate) fn latents_shape(spec: &DatasetSpec, bucket: Bucket) -> Result<[i64; 3], Error> {
    let shape = spec.latents.get(&bucket).map_or(&[][..], |column| &column.shape);
    let shape: Vec<i64> = shape.iter().map(|n| i64::from(*n)).collect();
    <[i64; 3]>::try_from(shape)
        .map_err(|shape| Error::Dataset(format!("latents have the shape {shape:?}, which is not [C, h, w]")))
}
