//! An object that is written piece by piece: a small one is put by one request, a large one in parts. Until they are put
//! together a store keeps the parts, bills them and lists them nowhere, so they are given up when the upload is.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, PutPayloadMut, Result as Stored,
};
use tokio::task::JoinSet;
use twox_hash::XxHash3_64;

use crate::checksum::Checksum;
use crate::durable::{self, Durable};
use crate::error::{Error, Result};
use crate::runtime::{block_on, runtime};

/// Bytes of one part of an upload; S3 wants at least 5 MiB. Smaller objects are put by one request.
pub(crate) const PART_BYTES: usize = 8 << 20;

/// Parts of an upload that are on their way at a time.
const PARTS_IN_FLIGHT: usize = 8;

/// How long whoever gives an upload up waits for the store to remove its parts: it may be why.
const ABORT_WITHIN: Duration = Duration::from_secs(10);

/// An object in the making.
pub struct Upload {
    store: Arc<dyn ObjectStore>,
    path: Path,
    uri: String,
    /// The file that it becomes; none in a bucket.
    file: Option<Durable>,
    /// What is in no part yet.
    rest: PutPayloadMut,
    /// None as long as the object is small.
    parts: Option<Parts>,
    hasher: XxHash3_64,
    bytes: u64,
}

/// What has become of an object's parts.
struct Parts {
    upload: Box<dyn MultipartUpload>,
    on_their_way: JoinSet<Stored<()>>,
}

impl Upload {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, path: Path, uri: String, file: Option<Durable>) -> Self {
        let (rest, hasher) = (PutPayloadMut::new(), XxHash3_64::new());
        Self { store, path, uri, file, rest, parts: None, hasher, bytes: 0 }
    }

    /// Appends bytes; waits while too many parts are on their way.
    ///
    /// # Errors
    /// [`Error::Storage`]; the object cannot be finished then.
    pub fn write(&mut self, mut bytes: Bytes) -> Result<()> {
        self.hasher.write(&bytes);
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = PART_BYTES - self.rest.content_length();
            self.rest.push(bytes.split_to(room.min(bytes.len())));
            if self.rest.content_length() == PART_BYTES {
                runtime()?.block_on(self.put_part()).map_err(|source| self.failure(source))?;
            }
        }
        Ok(())
    }

    /// Makes the object appear, and outlast a loss of power; gives its size in bytes and its checksum.
    ///
    /// # Errors
    /// [`Error::Storage`]; the object may be there, and is not to be relied on.
    pub fn finish(mut self) -> Result<(u64, Checksum)> {
        let file = self.file.take();
        let finished = async {
            self.complete().await?;
            durable::sync(file).await
        };
        runtime()?.block_on(finished).map_err(|source| self.failure(source))?;
        Ok((self.bytes, Checksum::from(&self.hasher)))
    }

    /// Sends what there is as a part.
    async fn put_part(&mut self) -> Stored<()> {
        let parts = match &mut self.parts {
            Some(parts) => parts,
            None => {
                let upload = self.store.put_multipart(&self.path).await?;
                self.parts.insert(Parts { upload, on_their_way: JoinSet::new() })
            }
        };
        parts.wait(PARTS_IN_FLIGHT - 1).await?;
        let part: PutPayload = std::mem::take(&mut self.rest).freeze();
        parts.on_their_way.spawn(parts.upload.put_part(part));
        Ok(())
    }

    async fn complete(&mut self) -> Stored<()> {
        if self.parts.is_none() {
            let whole = std::mem::take(&mut self.rest).freeze();
            return self.store.put(&self.path, whole).await.map(|_| ());
        }
        if !self.rest.is_empty() {
            self.put_part().await?;
        }
        if let Some(parts) = &mut self.parts {
            parts.wait(0).await?;
            parts.upload.complete().await?;
        }
        // There is nothing to give up any more.
        self.parts = None;
        Ok(())
    }

    fn failure(&self, source: object_store::Error) -> Error {
        Error::Storage { action: "write", uri: self.uri.clone(), source }
    }
}

impl Parts {
    /// Waits until no more than so many are on their way.
    async fn wait(&mut self, most: usize) -> Stored<()> {
        while self.on_their_way.len() > most {
            self.on_their_way.join_next().await.transpose()?.transpose()?;
        }
        Ok(())
    }

    /// Has the store remove what came of them.
    async fn abort(mut self) -> Stored<()> {
        // A part that arrives later would stay.
        self.on_their_way.shutdown().await;
        self.upload.abort().await
    }
}

/// An upload that failed, or that nobody has finished, leaves nothing.
impl Drop for Upload {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        let aborted =
            block_on(async { Ok::<_, Error>(tokio::time::timeout(ABORT_WITHIN, parts.abort()).await) });
        if !matches!(aborted, Ok(Ok(Ok(())))) {
            tracing::warn!("parts of {} are left, which was not written to its end", self.uri);
        }
    }
}
