//! A rank's part of a global batch, cut into the micro-batches that are computed at once.

use tidemill_store::stream::Batch;

use crate::objective::micro_batch::Rows;
use crate::objective::sample_keys::SampleKeys;

/// Sizes of a step's batches, in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchSizes {
    /// Rows of a global batch, over all ranks.
    pub global: usize,
    /// Rows of a micro-batch: one forward and backward pass.
    pub micro: usize,
}

/// Cuts a rank's rows of step `step` (counted from 0) into micro-batches. `latents_shape` is the
/// stored shape [C, h, w] of a row. The last micro-batch may be smaller.
pub(crate) fn micro_batches<'a>(
    batch: &'a Batch,
    latents_shape: [i64; 3],
    step: u64,
    sizes: BatchSizes,
) -> impl ExactSizeIterator<Item = Rows<'a>> + use<'a> {
    let count = batch.sample_ids.len();
    let bytes_per_row = move |column: &[u8]| column.len() / count.max(1);
    (0..count).step_by(sizes.micro).map(move |first| {
        let end = (first + sizes.micro).min(count);
        let keys = SampleKeys {
            step,
            global_batch: sizes.global,
            positions: &batch.positions[first..end],
            sample_ids: &batch.sample_ids[first..end],
            epochs: &batch.epochs[first..end],
        };
        let rows_of = |column: &'a [u8]| {
            let bytes = bytes_per_row(column);
            &column[first * bytes..end * bytes]
        };
        Rows {
            keys,
            latents: rows_of(&batch.latents),
            latents_shape,
            text: batch.text.iter().map(|column| rows_of(column)).collect(),
            time_ids: batch.time_ids.as_ref().map(|column| rows_of(column)),
        }
    })
}
