//! [`Encode`] as a [`Stage`]: with the threads that it may use, and a count of what it did.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, RecordBatch};
use serde::Serialize;

use crate::encode::Encode;
use crate::engine::machine_resources::cores;
use crate::engine::stage::Stage;
use crate::error::Result;
use crate::run_file::Run;

/// What all encoders together have encoded; rows whose tensors were there already are not among it.
#[derive(Debug, Default, Serialize)]
pub struct Encoded {
    images: AtomicU64,
    captions: AtomicU64,
}

impl Encoded {
    fn add(&self, prepared: &RecordBatch) {
        for (field, column) in prepared.schema().fields().iter().zip(prepared.columns()) {
            let count = match field.name().as_str() {
                "token_ids" => &self.captions,
                name if name.starts_with("pixels_") => &self.images,
                _ => continue,
            };
            count.fetch_add((column.len() - column.null_count()) as u64, Ordering::Relaxed);
        }
    }
}

/// An encoder with the threads it may use.
pub struct Encoder {
    encode: Encode,
    threads: usize,
    row_bytes: u64,
    encoded: Arc<Encoded>,
}

impl Encoder {
    /// The stage of a run.
    ///
    /// # Errors
    /// If a resolution does not suit the VAE.
    pub fn new(run: &Run, encode: Encode, encoded: &Arc<Encoded>) -> Result<Self> {
        let prepare = &run.file.prepare;
        let sizes: Vec<_> = prepare.resolutions.iter().map(|&resolution| prepare.sizes(resolution)).collect();
        let row_bytes = encode.row_bytes(&sizes)?;
        Ok(Self {
            encode,
            threads: cores(run.file.engine.encode.threads),
            row_bytes,
            encoded: encoded.clone(),
        })
    }
}

impl Stage for Encoder {
    fn enter(&self) {
        // libtorch counts threads for each calling thread.
        tch::set_num_threads(self.threads as i32);
    }

    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let result = self.encode.run(batch)?;
        self.encoded.add(batch);
        Ok(result)
    }

    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        self.encode.quarantine(batch, reason)
    }

    fn row_bytes(&self) -> u64 {
        self.row_bytes
    }
}
