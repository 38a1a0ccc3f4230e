//! An input file as the Parquet reader wants it: ranges are fetched as asked for, and the footer usually comes with
//! the first request.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use tidemill_io::Address;

/// Bytes fetched from the end of a file at once; most footers fit.
const FOOTER_HINT: usize = 64 * 1024;

/// An object and its size. Failures of its store come as [`ParquetError::External`] around a [`tidemill_io::Error`].
pub struct ObjectReader {
    pub address: Address,
    pub size: u64,
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        self.get_byte_ranges(vec![range]).map_ok(|bytes| bytes.into_iter().next().unwrap_or_default()).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move { self.address.get_ranges(&ranges).await.map_err(|e| ParquetError::External(e.into())) }
            .boxed()
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
