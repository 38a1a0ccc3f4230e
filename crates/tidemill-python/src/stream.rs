//! The training stream, which `tidemill.Stream` wraps as an iterator.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, FixedSizeBinaryArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatch;
use serde::Deserialize;
use tidemill_store::stream::{
    Datasets, Phase, Rank, ReadOptions, Split, Stream as RustStream, StreamConfig, UnreadableRows, WorldSize,
};
use tidemill_store::{Cache, Dataset, TensorSpec};

use crate::dlpack::Tensor;
use crate::error::raise;

/// The arguments of `tidemill.Stream`, as JSON.
#[derive(Deserialize)]
struct Settings {
    /// The path or URI of each dataset, by name.
    datasets: BTreeMap<String, String>,
    phase: Phase,
    seed: u64,
    shuffle_window: usize,
    split: Split,
    /// The world size.
    ranks: u64,
    rank: u64,
    prefetch: usize,
    readers: usize,
    unreadable: UnreadableRows,
    /// The cache's folder, and its maximum size in bytes.
    cache: Option<(PathBuf, u64)>,
}

/// Batches of latent datasets.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Stream {
    stream: Mutex<RustStream>,
    /// The datasets, which know the shapes and dtypes of latents and text.
    datasets: Datasets,
}

/// One rank's rows of a global batch.
#[pyclass(frozen, module = "tidemill._native")]
pub struct Batch {
    /// The number of batches of the phase before this one.
    #[pyo3(get)]
    number: u64,
    resolution: u32,
    /// The width and height of the images in pixels.
    #[pyo3(get)]
    size: (u32, u32),
    /// The positions of the rows in the global batch, ascending.
    #[pyo3(get)]
    places: Vec<u32>,
    #[pyo3(get)]
    sample_ids: Vec<u64>,
    /// The epoch of each row in its dataset, from 0.
    #[pyo3(get)]
    epochs: Vec<u32>,
    latents: (Bytes, TensorSpec),
    /// The text columns, the first being `text`, and then the time ids, if there are any: by name.
    conditions: Vec<(String, (Bytes, TensorSpec))>,
}

#[pymethods]
impl Stream {
    #[new]
    fn new(py: Python<'_>, settings: &str, state: Option<&str>) -> PyResult<Self> {
        py.detach(|| open(settings, state)).map_err(raise)
    }

    /// Reads the next batch.
    fn next(&self, py: Python<'_>) -> PyResult<Batch> {
        let batch = py.detach(|| self.lock().next_batch()).map_err(raise)?;
        let bucket = batch.bucket;
        let specs = self.datasets.values().find_map(|dataset| {
            let spec = dataset.spec();
            Some((spec.latents.get(&bucket)?.clone(), spec))
        });
        // The bucket exists in the dataset that the batch came from, so the specs are always found.
        let (latents, spec) = specs.ok_or_else(|| raise(tidemill::Error::Thread("stream")))?;
        let text = spec
            .text_columns()
            .zip(batch.text)
            .map(|((column, spec), bytes)| (column.to_string(), (Bytes::from_owner(bytes), spec.decoded())));
        let time_ids = batch.time_ids.map(|bytes| {
            let name = format!("time_ids_{}", bucket.resolution);
            (name, (Bytes::from_owner(bytes), TensorSpec::time_ids()))
        });
        let conditions = text.chain(time_ids).collect();
        Ok(Batch {
            number: batch.number,
            resolution: bucket.resolution,
            size: (bucket.width, bucket.height),
            places: batch.positions,
            sample_ids: batch.sample_ids,
            epochs: batch.epochs,
            latents: (Bytes::from_owner(batch.latents), latents),
            conditions,
        })
    }

    /// The stream's state, as JSON.
    fn state(&self) -> PyResult<String> {
        to_json(&self.lock().state())
    }

    /// The state at the start of another phase, as JSON.
    fn next_phase(&self, phase: &str) -> PyResult<String> {
        let phase = serde_json::from_str(phase).map_err(|e| raise(to_config_error(&e)))?;
        to_json(&self.lock().next_phase(phase))
    }

    /// The number of rows in the stream.
    #[getter]
    fn rows(&self) -> u64 {
        self.lock().num_rows()
    }

    /// The number of rows that were skipped because they could not be read, by reason.
    #[getter]
    fn skipped(&self) -> BTreeMap<String, u64> {
        self.lock().skipped_rows()
    }
}

impl Stream {
    fn lock(&self) -> std::sync::MutexGuard<'_, RustStream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(settings: &str, state: Option<&str>) -> tidemill::Result<Stream> {
    let settings: Settings = serde_json::from_str(settings).map_err(|e| to_config_error(&e))?;
    let state = state.map(serde_json::from_str).transpose();
    let state = state.map_err(|e| tidemill_store::Error::State(format!("it is not valid: {e}")))?;
    let datasets = settings.datasets.iter().map(|(name, uri)| Ok((name.clone(), Dataset::open(uri)?)));
    let datasets: Datasets = datasets.collect::<tidemill::Result<_>>()?;
    let config = StreamConfig {
        seed: settings.seed,
        window: settings.shuffle_window,
        split: settings.split,
        bucket: None,
        phase: settings.phase,
    };
    let reading = ReadOptions {
        rank: Rank::new(WorldSize::new(settings.ranks)?, settings.rank)?,
        prefetch: settings.prefetch,
        readers: settings.readers,
        unreadable: settings.unreadable,
        cache: settings.cache.map(|(folder, bytes)| Cache::open(folder, bytes)).transpose()?,
    };
    let stream = Mutex::new(RustStream::open(&datasets, config, reading, state)?);
    Ok(Stream { stream, datasets })
}

fn to_config_error(error: &serde_json::Error) -> tidemill_store::Error {
    tidemill_store::Error::Config { key: "stream", problem: error.to_string() }
}

fn to_json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|e| raise(to_config_error(&e)))
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.sample_ids.len()
    }

    fn __repr__(&self) -> String {
        let rows = self.sample_ids.len();
        let shape = |(_, spec): &(Bytes, TensorSpec)| {
            let dims: Vec<String> = spec.shape.iter().map(ToString::to_string).collect();
            format!("[{rows}, {}] {:?}", dims.join(", "), spec.dtype).to_lowercase()
        };
        let conditions = self.conditions.iter().map(|(name, tensor)| format!(", {name}={}", shape(tensor)));
        format!(
            "Batch(number={}, latents={}{})",
            self.number,
            shape(&self.latents),
            conditions.collect::<String>()
        )
    }

    /// Unscaled latents, [n, C, h, w].
    #[getter]
    fn latents(&self) -> Tensor {
        self.tensor(&self.latents)
    }

    /// Text embeddings, [n, L, D], or token ids, [n, L].
    #[getter]
    fn text(&self) -> Tensor {
        self.tensor(&self.conditions[0].1)
    }

    /// All that conditions the images, by column: `text`; and of a dataset for SDXL `text_2`, `pooled_2` [n, P] and
    /// `time_ids_R` [n, 6].
    #[getter]
    fn conditions(&self) -> BTreeMap<String, Tensor> {
        self.conditions.iter().map(|(name, tensor)| (name.clone(), self.tensor(tensor))).collect()
    }

    /// The batch as a `pyarrow.RecordBatch` with the columns `place`, `sample_id`, `epoch`,
    /// `latents_R`, `text`, and those of [`conditions`](Self::conditions). The field metadata of the
    /// tensors holds dtype and shape.
    fn arrow<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let batch = self.record_batch().map_err(|e| raise(tidemill_store::Error::from(e)))?;
        PyRecordBatch::new(batch).into_pyarrow(py)
    }
}

impl Batch {
    fn tensor(&self, (bytes, spec): &(Bytes, TensorSpec)) -> Tensor {
        let shape =
            std::iter::once(self.sample_ids.len() as i64).chain(spec.shape.iter().map(|n| i64::from(*n)));
        Tensor::new(bytes.clone(), spec.dtype, shape.collect())
    }

    fn record_batch(&self) -> Result<RecordBatch, arrow::error::ArrowError> {
        let tensors = |(bytes, spec): &(Bytes, TensorSpec)| {
            FixedSizeBinaryArray::try_new(spec.bytes() as i32, bytes.clone().into(), None)
        };
        let mut columns: Vec<(String, ArrayRef, Option<&TensorSpec>)> = vec![
            ("place".into(), Arc::new(UInt32Array::from(self.places.clone())), None),
            ("sample_id".into(), Arc::new(UInt64Array::from(self.sample_ids.clone())), None),
            ("epoch".into(), Arc::new(UInt32Array::from(self.epochs.clone())), None),
            (
                format!("latents_{}", self.resolution),
                Arc::new(tensors(&self.latents)?),
                Some(&self.latents.1),
            ),
        ];
        for (name, tensor) in &self.conditions {
            columns.push((name.clone(), Arc::new(tensors(tensor)?), Some(&tensor.1)));
        }
        let field = |(name, column, spec): &(String, ArrayRef, Option<&TensorSpec>)| {
            let data_type: DataType = column.data_type().clone();
            let field = Field::new(name, data_type, false);
            match spec {
                Some(spec) => field.with_metadata(spec.metadata()),
                None => field,
            }
        };
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
        RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, column, _)| column).collect())
    }
}
