//! The row groups of one unit, fetched ahead: while one is decoded on the caller's thread, the needed column chunks
//! of the next one arrive.

use std::vec::IntoIter;

use futures::future::{FutureExt, RemoteHandle};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::arrow::async_reader::ParquetRecordBatchStream;
use parquet::errors::Result;
use tokio::runtime::Runtime;

use crate::parquet_file::object_reader::ObjectReader;

type Stream = ParquetRecordBatchStream<ObjectReader>;

/// What a fetch comes back with; the stream goes on to the row group after.
type Fetched = (Stream, Result<Option<ParquetRecordBatchReader>>);

/// The row groups of a unit, in order.
pub struct RowGroups {
    runtime: &'static Runtime,
    next: Next,
    /// Compressed bytes of the needed columns of each row group that is not `next` yet.
    sizes: IntoIter<u64>,
    /// Most bytes fetched ahead: the needed column chunks of the next row group, compressed. A larger row group is
    /// fetched when it is its turn, for holding two of that size costs more than waiting gains. So a unit being read
    /// holds one row group, whatever its size, and at most so many bytes more.
    ahead: u64,
}

enum Next {
    /// To be fetched when asked for.
    Waiting(Box<Stream>),
    /// On its way; dropping this ends the fetch.
    Coming(RemoteHandle<Fetched>),
    /// There is none, or the one before failed.
    Over,
}

impl RowGroups {
    /// The row groups of a stream, whose needed columns have these sizes; the next one is fetched ahead if it has no
    /// more than `ahead` bytes.
    pub fn new(stream: Stream, sizes: Vec<u64>, ahead: u64) -> crate::Result<Self> {
        let runtime = tidemill_io::runtime()?;
        let mut groups = Self { runtime, next: Next::Over, sizes: sizes.into_iter(), ahead };
        groups.prepare(stream);
        Ok(groups)
    }

    /// The next row group, for the caller to decode; `None` after the last and after an error.
    pub fn next_group(&mut self) -> Result<Option<ParquetRecordBatchReader>> {
        let (stream, group) = match std::mem::replace(&mut self.next, Next::Over) {
            Next::Waiting(stream) => self.runtime.block_on(fetch(*stream)),
            Next::Coming(fetched) => self.runtime.block_on(fetched),
            Next::Over => return Ok(None),
        };
        if let Ok(Some(_)) = group {
            self.prepare(stream);
        }
        group
    }

    /// Starts to fetch the stream's next row group, if it is small enough.
    fn prepare(&mut self, stream: Stream) {
        self.next = match self.sizes.next() {
            Some(size) if size <= self.ahead => {
                let (fetch, fetched) = fetch(stream).remote_handle();
                self.runtime.spawn(fetch);
                Next::Coming(fetched)
            }
            _ => Next::Waiting(Box::new(stream)),
        };
    }
}

async fn fetch(mut stream: Stream) -> Fetched {
    let group = stream.next_row_group().await;
    (stream, group)
}
