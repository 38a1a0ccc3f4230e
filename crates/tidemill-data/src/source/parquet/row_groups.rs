//! The row groups of a unit. While one is decoded on the caller's thread, the needed column chunks
//! of the next one are prefetched.

use std::vec::IntoIter;

use futures::future::{FutureExt, RemoteHandle};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::arrow::async_reader::ParquetRecordBatchStream;
use parquet::errors::Result;
use tokio::runtime::Runtime;

use crate::parquet_file::object_reader::ObjectReader;

type Stream = ParquetRecordBatchStream<ObjectReader>;

/// The result of a fetch. The stream continues with the next row group.
type FetchResult = (Stream, Result<Option<ParquetRecordBatchReader>>);

/// The row groups of a unit, in order.
pub struct RowGroups {
    runtime: &'static Runtime,
    next: Next,
    /// Compressed bytes of the needed columns of each row group after `next`.
    sizes: IntoIter<u64>,
    /// Most bytes that are prefetched: the compressed column chunks of the next row group. A larger
    /// row group is fetched when it is needed, because holding two of that size costs more than the
    /// wait. So a unit holds one row group of any size and at most this many bytes more.
    max_prefetch_bytes: u64,
}

enum Next {
    /// Fetched when it is needed.
    Deferred(Box<Stream>),
    /// Being fetched; dropping this ends the fetch.
    Fetching(RemoteHandle<FetchResult>),
    /// There are no more, or the last one failed.
    Done,
}

impl RowGroups {
    /// Reads the row groups of a stream whose needed columns have these sizes. The next one is
    /// prefetched if it has at most `max_prefetch_bytes`.
    ///
    /// # Errors
    /// If the I/O runtime cannot start.
    pub fn new(stream: Stream, sizes: Vec<u64>, max_prefetch_bytes: u64) -> crate::Result<Self> {
        let runtime = tidemill_io::runtime()?;
        let mut groups = Self { runtime, next: Next::Done, sizes: sizes.into_iter(), max_prefetch_bytes };
        groups.start_fetch(stream);
        Ok(groups)
    }

    /// The next row group, for the caller to decode; `None` after the last one and after an error.
    pub fn next_group(&mut self) -> Result<Option<ParquetRecordBatchReader>> {
        let (stream, group) = match std::mem::replace(&mut self.next, Next::Done) {
            Next::Deferred(stream) => self.runtime.block_on(fetch(*stream)),
            Next::Fetching(fetched) => self.runtime.block_on(fetched),
            Next::Done => return Ok(None),
        };
        if let Ok(Some(_)) = group {
            self.start_fetch(stream);
        }
        group
    }

    /// Starts to fetch the stream's next row group if it is small enough.
    fn start_fetch(&mut self, stream: Stream) {
        self.next = match self.sizes.next() {
            Some(size) if size <= self.max_prefetch_bytes => {
                let (fetch, fetched) = fetch(stream).remote_handle();
                self.runtime.spawn(fetch);
                Next::Fetching(fetched)
            }
            _ => Next::Deferred(Box::new(stream)),
        };
    }
}

async fn fetch(mut stream: Stream) -> FetchResult {
    let group = stream.next_row_group().await;
    (stream, group)
}
