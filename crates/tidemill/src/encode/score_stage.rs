//! The first part of `Encode`, if the run file has `[score]`: scores of prepared rows. Rows whose
//! scores are outside of their filter's bounds are rejected, so the VAE does not see them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryBuilder, Float32Array, LargeBinaryArray,
    RecordBatch, StringArray,
};
use arrow::compute::nullif;
use arrow::datatypes::Float32Type;
use half::f16;
use tch::{Kind, Tensor};
use tidemill_data::prepare::{ComputedScores, EMBEDDING, SCORE_PIXELS};
use tidemill_data::status::{KEPT, REJECTED};
use tidemill_eval::pair_scores::PairScorer;
use tidemill_torch::guard;

use crate::encode::batch_sizes::split_batches;
use crate::encode::encoded_column::quarantine_failed;
use crate::encode::prepared_columns::{find_column, is_null_unless_kept, text_column, wrong_type};
use crate::error::{Error, Result};

/// The reason of a row whose scores cannot be compared with anything.
const NOT_FINITE: &str = "encode: a score is not finite";

/// Computes scores.
#[derive(Debug)]
pub(crate) struct ScoreStage {
    pub scorer: PairScorer,
    pub scores: ComputedScores,
    /// The most images in one forward pass.
    pub batch_size: usize,
}

/// What was computed of a row.
#[derive(Clone)]
struct RowScores {
    scores: Vec<f32>,
    features: Vec<f32>,
}

impl RowScores {
    fn is_finite(&self) -> bool {
        self.scores.iter().chain(&self.features).all(|value| value.is_finite())
    }
}

impl ScoreStage {
    /// Fills the columns of the scores, rejects rows by them, and removes the pixels that they were
    /// computed from.
    ///
    /// # Errors
    /// A column of another type than `Prepare` makes, or a failure of libtorch.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let pixels = find_column(batch, SCORE_PIXELS)?;
        let pixels = pixels.as_binary_opt().ok_or_else(|| wrong_type(SCORE_PIXELS, pixels, "LargeBinary"))?;
        let mut computed = self.compute(batch, pixels)?;
        let is_failed = |row: &Option<RowScores>| row.as_ref().is_some_and(|row| !row.is_finite());
        let failed: Vec<bool> = computed.iter().map(is_failed).collect();
        computed.iter_mut().for_each(|row| *row = row.take().filter(RowScores::is_finite));
        let batch = self.fill_columns(batch, &computed)?;
        let batch = match failed.contains(&true) {
            true => quarantine_failed(&remove_tensors(&batch, &failed)?, &failed, NOT_FINITE)?,
            false => batch,
        };
        self.reject_rows(&batch)
    }

    /// What is computed of the rows that have pixels for it.
    fn compute(&self, batch: &RecordBatch, pixels: &LargeBinaryArray) -> Result<Vec<Option<RowScores>>> {
        let captions = text_column(batch, "caption")?;
        let rows: Vec<usize> = (0..batch.num_rows()).filter(|row| pixels.is_valid(*row)).collect();
        let side = i64::from(self.scorer.side());
        let mut computed = vec![None; batch.num_rows()];
        for rows in split_batches(&rows, self.batch_size) {
            let bytes = rows.iter().map(|row| pixels.value(*row)).collect::<Vec<_>>().concat();
            let texts: Vec<&str> = rows.iter().map(|row| captions.value(*row)).collect();
            let shape = [rows.len() as i64, 3, side, side];
            let images =
                guard(|| Tensor::from_data_size(&bytes, &shape, Kind::Uint8)).map_err(torch_error)?;
            let found = self.scorer.score(&images, &texts)?;
            let (scores, features) = (read_rows(&found.scores)?, read_rows(&found.features)?);
            for ((row, scores), features) in rows.iter().zip(scores).zip(features) {
                computed[*row] = Some(RowScores { scores, features });
            }
        }
        Ok(computed)
    }

    /// The batch with what was computed in place of nulls, and without the pixels.
    fn fill_columns(&self, batch: &RecordBatch, computed: &[Option<RowScores>]) -> Result<RecordBatch> {
        let schema = batch.schema();
        let mut columns = batch.columns().to_vec();
        for (index, score) in self.scores.scores().iter().enumerate() {
            let known = score_column(batch, &score.name)?;
            let value = |row: usize| {
                let new = computed[row].as_ref().map(|row| row.scores[index]);
                known.is_valid(row).then(|| known.value(row)).or(new)
            };
            let column = (0..batch.num_rows()).map(value).collect::<Float32Array>();
            columns[schema.index_of(&score.name)?] = Arc::new(column);
        }
        if self.scores.embedding().is_some() {
            columns[schema.index_of(EMBEDDING)?] = fill_embeddings(find_column(batch, EMBEDDING)?, computed)?;
        }
        let mut batch = RecordBatch::try_new(schema.clone(), columns)?;
        batch.remove_column(schema.index_of(SCORE_PIXELS)?);
        Ok(batch)
    }

    /// Rejects kept rows by their scores.
    fn reject_rows(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let (status, reason) = (text_column(batch, "status")?, text_column(batch, "reason")?);
        let names = self.scores.scores().iter().map(|score| score_column(batch, &score.name));
        let columns = names.collect::<Result<Vec<_>>>()?;
        let rejection = |row: usize| {
            let value = |column: &&Float32Array| column.is_valid(row).then(|| column.value(row));
            let values: Vec<Option<f32>> = columns.iter().map(value).collect();
            (status.value(row) == KEPT).then(|| self.scores.find_rejection(&values)).flatten()
        };
        let rejections: Vec<Option<String>> = (0..batch.num_rows()).map(rejection).collect();
        let is_rejected: Vec<bool> = rejections.iter().map(Option::is_some).collect();
        if !is_rejected.contains(&true) {
            return Ok(batch.clone());
        }
        let new_status =
            is_rejected.iter().zip(status).map(|(is, old)| if *is { Some(REJECTED) } else { old });
        let new_reason = rejections.iter().zip(reason).map(|(new, old)| new.as_deref().or(old));
        let batch = remove_tensors(batch, &is_rejected)?;
        let (schema, mut columns) = (batch.schema(), batch.columns().to_vec());
        columns[schema.index_of("status")?] = Arc::new(new_status.collect::<StringArray>());
        columns[schema.index_of("reason")?] = Arc::new(new_reason.collect::<StringArray>());
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

/// The rows of a tensor [N, width].
fn read_rows(tensor: &Tensor) -> Result<Vec<Vec<f32>>> {
    let (rows, width) = tensor.size2().map_err(|e| Error::Encode(e.to_string()))?;
    let values = guard(|| Vec::<f32>::try_from(tensor.contiguous().view([-1]))).map_err(torch_error)?;
    let values = values.map_err(|e| Error::Encode(e.to_string()))?;
    let (rows, width) = (rows as usize, width as usize);
    Ok((0..rows).map(|row| values[row * width..(row + 1) * width].to_vec()).collect())
}

/// The column of the embeddings, f16 little-endian: what is known, or else what was computed.
fn fill_embeddings(known: &ArrayRef, computed: &[Option<RowScores>]) -> Result<ArrayRef> {
    let column = known.as_fixed_size_binary_opt();
    let column = column.ok_or_else(|| wrong_type(EMBEDDING, known, "FixedSizeBinary"))?;
    let mut builder = FixedSizeBinaryBuilder::with_capacity(computed.len(), column.value_length());
    for (row, computed) in computed.iter().enumerate() {
        match computed {
            _ if column.is_valid(row) => builder.append_value(column.value(row))?,
            Some(RowScores { features, .. }) => {
                let halves = features.iter().map(|value| f16::from_f32(*value).to_le_bytes());
                builder.append_value(halves.collect::<Vec<_>>().concat())?;
            }
            None => builder.append_null(),
        }
    }
    Ok(Arc::new(builder.finish()))
}

/// Sets what only kept rows have to null in these rows.
fn remove_tensors(batch: &RecordBatch, rows: &[bool]) -> Result<RecordBatch> {
    let rows = BooleanArray::from(rows.to_vec());
    let schema = batch.schema();
    let columns =
        schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            match is_null_unless_kept(field.name()) {
                true => Ok(nullif(column, &rows)?),
                false => Ok(column.clone()),
            }
        });
    let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
    Ok(RecordBatch::try_new(schema, columns)?)
}

fn torch_error(error: tidemill_torch::Error) -> Error {
    tidemill_models::Error::from(error).into()
}

fn score_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a Float32Array> {
    let column = find_column(batch, name)?;
    column.as_primitive_opt::<Float32Type>().ok_or_else(|| wrong_type(name, column, "Float32"))
}
