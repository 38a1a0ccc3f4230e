//! Runs stages on Arrow data from Python. The input is an object with `__arrow_c_array__` (a record
//! batch) or `__arrow_c_stream__` (a table); its buffers are not copied. The output is a pyarrow
//! object of the same kind.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Schema, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3_arrow::input::AnyRecordBatch;
use pyo3_arrow::{PyRecordBatch, PyTable};

use crate::error::raise;

/// Runs a stage on a record batch, or on each batch of a table.
pub fn map_batches<'py>(
    py: Python<'py>,
    input: AnyRecordBatch,
    stage: impl Fn(&RecordBatch) -> tidemill::Result<RecordBatch> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    match input {
        AnyRecordBatch::RecordBatch(batch) => {
            let batch = batch.into_inner();
            let output = py.detach(move || stage(&batch)).map_err(raise)?;
            PyRecordBatch::new(output).into_pyarrow(py)
        }
        AnyRecordBatch::Stream(stream) => {
            let reader = stream.into_reader()?;
            let input_schema = reader.schema();
            let run = move || -> tidemill::Result<(Vec<RecordBatch>, SchemaRef)> {
                let mut batches = Vec::new();
                for batch in reader {
                    batches.push(stage(&batch?)?);
                }
                let schema = match batches.first() {
                    Some(batch) => batch.schema(),
                    None => stage(&RecordBatch::new_empty(input_schema))?.schema(),
                };
                Ok((batches, schema))
            };
            let (batches, schema) = py.detach(run).map_err(raise)?;
            PyTable::try_new(batches, schema)?.into_pyarrow(py)
        }
    }
}

/// Runs a stage on all rows of a record batch or table together. The stage returns the same number
/// of rows, and chooses the sizes of its batches.
pub fn map_rows<'py>(
    py: Python<'py>,
    input: AnyRecordBatch,
    stage: impl Fn(Vec<RecordBatch>) -> tidemill::Result<Vec<RecordBatch>> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let is_single_batch = matches!(input, AnyRecordBatch::RecordBatch(_));
    let reader = input.into_reader()?;
    let schema = reader.schema();
    let run = move || -> tidemill::Result<(Vec<RecordBatch>, SchemaRef)> {
        let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>()?;
        let input = match batches.iter().any(|batch| batch.num_rows() > 0) {
            true => batches,
            // Without rows, an empty batch still has the columns.
            false => vec![RecordBatch::new_empty(schema)],
        };
        let output = stage(input)?;
        let schema = output.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
        // Usually there is one batch, which needs no copy.
        Ok((
            if is_single_batch && output.len() > 1 {
                vec![concat_batches(&schema, &output)?]
            } else {
                output
            },
            schema,
        ))
    };
    let (batches, schema) = py.detach(run).map_err(raise)?;
    match is_single_batch {
        true => {
            PyRecordBatch::new(batches.into_iter().next().unwrap_or_else(|| RecordBatch::new_empty(schema)))
                .into_pyarrow(py)
        }
        false => PyTable::try_new(batches, schema)?.into_pyarrow(py),
    }
}

/// The addresses of a batch's buffers, by column, as the stages see them. They equal the producer's
/// addresses if nothing was copied.
#[pyfunction]
pub fn buffer_addresses<'py>(py: Python<'py>, batch: PyRecordBatch) -> PyResult<Bound<'py, PyDict>> {
    let batch = batch.into_inner();
    let addresses = PyDict::new(py);
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let buffers: Vec<usize> = column.to_data().buffers().iter().map(|b| b.as_ptr() as usize).collect();
        addresses.set_item(field.name(), buffers)?;
    }
    Ok(addresses)
}
