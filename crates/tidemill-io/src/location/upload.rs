//! Writes an object in pieces: a small one with one request, a large one as a multipart upload. A
//! store keeps and bills the parts of an unfinished upload but never lists them, so dropping an
//! upload aborts it.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, PutPayloadMut, Result as StoreResult,
};
use tokio::task::JoinSet;
use twox_hash::XxHash3_64;

use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::local::{DurableFile, sync_if_local};
use crate::runtime::{block_on, runtime};

/// Bytes per part of a multipart upload; S3 requires at least 5 MiB. Smaller objects take one
/// request.
pub(crate) const PART_BYTES: usize = 8 << 20;

/// Concurrent part uploads.
const CONCURRENT_PARTS: usize = 8;

/// How long an abort may take. The store may be the reason for the abort, so it must not block for
/// long.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// An object that is being written.
pub struct Upload {
    store: Arc<dyn ObjectStore>,
    path: Path,
    uri: String,
    /// The final file of a local object; `None` in a bucket.
    file: Option<DurableFile>,
    /// Bytes that are not yet in a part.
    buffer: PutPayloadMut,
    /// `None` as long as the object fits into one part.
    parts: Option<Parts>,
    hasher: XxHash3_64,
    bytes: u64,
}

/// A multipart upload and its requests.
struct Parts {
    upload: Box<dyn MultipartUpload>,
    requests: JoinSet<StoreResult<()>>,
}

impl Upload {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        path: Path,
        uri: String,
        file: Option<DurableFile>,
    ) -> Self {
        let (buffer, hasher) = (PutPayloadMut::new(), XxHash3_64::new());
        Self { store, path, uri, file, buffer, parts: None, hasher, bytes: 0 }
    }

    /// Appends bytes. Blocks while too many parts are being sent.
    ///
    /// # Errors
    /// [`Error::Storage`]; the upload cannot be finished then.
    pub fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.hasher.write(&bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = PART_BYTES - self.buffer.content_length();
            self.buffer.push(bytes.split_to(room.min(bytes.len())));
            if self.buffer.content_length() == PART_BYTES {
                runtime()?.block_on(self.put_part()).map_err(|source| self.storage_error(source))?;
            }
        }
        Ok(())
    }

    /// Makes the object visible and durable. Returns its size in bytes and its checksum.
    ///
    /// # Errors
    /// [`Error::Storage`]; the object may exist then, but must not be used.
    pub fn finish(mut self) -> Result<(u64, Checksum)> {
        let file = self.file.take();
        let finish = async {
            self.complete().await?;
            sync_if_local(file).await
        };
        runtime()?.block_on(finish).map_err(|source| self.storage_error(source))?;
        Ok((self.bytes, Checksum::from(&self.hasher)))
    }

    /// Sends the buffer as a part.
    async fn put_part(&mut self) -> StoreResult<()> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let upload = self.store.put_multipart(&self.path).await?;
                self.parts.insert(Parts { upload, requests: JoinSet::new() })
            }
        };
        parts.wait_for_requests(CONCURRENT_PARTS - 1).await?;
        let part: PutPayload = std::mem::take(&mut self.buffer).freeze();
        parts.requests.spawn(parts.upload.put_part(part));
        Ok(())
    }

    async fn complete(&mut self) -> StoreResult<()> {
        if self.parts.is_none() {
            let whole = std::mem::take(&mut self.buffer).freeze();
            return self.store.put(&self.path, whole).await.map(|_| ());
        }
        if !self.buffer.is_empty() {
            self.put_part().await?;
        }
        if let Some(parts) = &mut self.parts {
            parts.wait_for_requests(0).await?;
            parts.upload.complete().await?;
        }
        // From here on `drop` must not abort.
        self.parts = None;
        Ok(())
    }

    fn storage_error(&self, source: object_store::Error) -> Error {
        Error::Storage { action: "write", uri: self.uri.clone(), source }
    }
}

impl Parts {
    /// Waits until at most `max` requests are in flight.
    async fn wait_for_requests(&mut self, max: usize) -> StoreResult<()> {
        while self.requests.len() > max {
            self.requests.join_next().await.transpose()?.transpose()?;
        }
        Ok(())
    }

    /// Asks the store to remove all parts.
    async fn abort(mut self) -> StoreResult<()> {
        // The store would keep a part that arrives after the abort.
        self.requests.shutdown().await;
        self.upload.abort().await
    }
}

/// Aborts an upload that failed or was not finished, so that no parts are left in the store.
impl Drop for Upload {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let aborted =
            block_on(async { Ok::<_, Error>(tokio::time::timeout(ABORT_TIMEOUT, parts.abort()).await) });
        if !matches!(aborted, Ok(Ok(Ok(())))) {
            tracing::warn!(
                "the upload of {} was not finished, and its parts could not be removed from the store",
                self.uri
            );
        }
    }
}
