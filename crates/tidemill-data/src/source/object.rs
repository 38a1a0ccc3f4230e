//! An object of a store as the file that the Parquet reader wants: ranges are fetched as asked for, and the footer
//! usually comes with the first request.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

/// Bytes fetched from the end of a file at once; most footers fit.
const FOOTER_HINT: usize = 64 * 1024;

/// An object and its size.
pub struct ObjectReader {
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
    pub size: u64,
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        self.store.get_range(&self.path, range).map_err(external).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move { self.store.get_ranges(&self.path, &ranges).await.map_err(external) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        let size = self.size;
        let reader = ParquetMetaDataReader::new()
            .with_arrow_reader_options(options)
            .with_prefetch_hint(Some(FOOTER_HINT));
        async move { Ok(Arc::new(reader.load_and_finish(self, size).await?)) }.boxed()
    }
}

fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}
