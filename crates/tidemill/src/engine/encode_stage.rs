//! [`Encode`] as a [`Stage`], with the threads that it may use and a count of what it encoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, RecordBatch};
use serde::Serialize;

use crate::encode::stage::Encode;
use crate::engine::machine_resources::resolve_threads;
use crate::engine::stage::Stage;
use crate::error::Result;
use crate::run_file::Run;

/// Images and captions that all encoders of a run have encoded together. Rows whose tensors were
/// taken from an earlier commit do not count.
#[derive(Debug, Default, Serialize)]
pub struct EncodedCounts {
    images: AtomicU64,
    captions: AtomicU64,
}

impl EncodedCounts {
    fn add_batch(&self, encoded: &RecordBatch) {
        for (field, column) in encoded.schema().fields().iter().zip(encoded.columns()) {
            let count = match field.name().as_str() {
                "text" => &self.captions,
                name if name.starts_with("latents_") => &self.images,
                _ => continue,
            };
            count.fetch_add((column.len() - column.null_count()) as u64, Ordering::Relaxed);
        }
    }
}

/// One encoder, with the threads that it may use.
pub struct EncodeStage {
    encode: Encode,
    threads: usize,
    row_bytes: u64,
    encoded: Arc<EncodedCounts>,
}

impl EncodeStage {
    /// The encode stage of a run, which adds what it encodes to `encoded`.
    ///
    /// # Errors
    /// If a resolution is not a multiple of the VAE's downscale factor.
    pub fn new(run: &Run, encode: Encode, encoded: &Arc<EncodedCounts>) -> Result<Self> {
        let prepare = &run.file.prepare;
        let sizes: Vec<_> = prepare.resolutions.iter().map(|&resolution| prepare.sizes(resolution)).collect();
        let row_bytes = encode.row_bytes(&sizes)?;
        Ok(Self {
            encode,
            threads: resolve_threads(run.file.engine.encode.threads),
            row_bytes,
            encoded: encoded.clone(),
        })
    }
}

impl Stage for EncodeStage {
    fn init_thread(&self) {
        // libtorch keeps the number of threads per calling thread.
        tch::set_num_threads(self.threads as i32);
    }

    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let result = self.encode.run(batch)?;
        self.encoded.add_batch(&result);
        Ok(result)
    }

    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        self.encode.quarantine(batch, reason)
    }

    fn row_bytes(&self) -> u64 {
        self.row_bytes
    }
}
