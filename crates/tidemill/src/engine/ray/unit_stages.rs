//! Prepare and encode for workers of a cluster: with the same retries and the same encode batches
//! as in the local engine, so the bytes are the same.

use arrow::array::RecordBatch;
use tidemill_data::Prepare;

use crate::engine::local::batcher::{Batcher, EncodeBatch};
use crate::engine::ray::unit_column::{UNIT_COLUMN, append_column};
use crate::engine::retry_in_halves::RetryingStage;
use crate::engine::stage::Stage;
use crate::engine::stage_utilization::StageMeter;
use crate::error::Result;

/// Prepares rows. A panic costs only the rows that cause it, as in the local engine.
///
/// # Errors
/// As [`Prepare::run`].
pub fn prepare_rows(prepare: &Prepare, batch: &RecordBatch) -> Result<RecordBatch> {
    let done = RetryingStage::prepare(prepare, &StageMeter::new("prepare", 1)).run(batch)?;
    match batch.column_by_name(UNIT_COLUMN) {
        Some(unit) => append_column(&done, UNIT_COLUMN, unit.clone()),
        None => Ok(done),
    }
}

/// Encodes the prepared rows of a unit, all of them and in order, in batches of `batch_size` kept
/// rows.
///
/// # Errors
/// If the stage fails on every row of a batch, however small the batch.
pub fn encode_rows(
    stage: &dyn Stage,
    batch_size: usize,
    prepared: impl IntoIterator<Item = Result<RecordBatch>>,
) -> Result<Vec<RecordBatch>> {
    let meter = StageMeter::new("encode", 1);
    let stage = RetryingStage::encode(stage, &meter);
    let (mut batcher, mut encoded) = (Batcher::new(batch_size), Vec::new());
    for rows in prepared {
        for EncodeBatch { rows, .. } in batcher.push(rows?, ())? {
            encoded.push(stage.run(&rows)?);
        }
    }
    if let Some(EncodeBatch { rows, .. }) = batcher.flush()? {
        encoded.push(stage.run(&rows)?);
    }
    Ok(encoded)
}
