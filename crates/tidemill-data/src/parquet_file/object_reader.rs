//! Reads a Parquet file from a store: ranges are fetched as requested, and the footer usually comes
//! with the first request. Sizes that the file claims are checked.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{FooterTail, ParquetMetaData, ParquetMetaDataReader};
use tidemill_io::Address;

use crate::parquet_file::size_claims::{check_footer, check_pages};

/// Bytes fetched from the end of a file at once; most footers fit.
const FOOTER_HINT: u64 = 64 * 1024;

/// Bytes behind a footer: its length and the magic number.
const TAIL_BYTES: usize = 8;

/// An object with its size and entity tag as listed. Failures of its store are reported as
/// [`ParquetError::External`] around a [`tidemill_io::Error`].
pub struct ObjectReader {
    pub address: Address,
    pub size: u64,
    pub e_tag: Option<String>,
}

impl ObjectReader {
    async fn fetch(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let bytes = self.address.get_ranges(ranges, self.e_tag.as_deref()).await;
        bytes.map_err(|e| ParquetError::External(e.into()))
    }

    async fn fetch_one(&self, range: Range<u64>) -> Result<Bytes> {
        Ok(self.fetch(&[range]).await?.pop().unwrap_or_default())
    }

    /// The footer, without its last [`TAIL_BYTES`].
    async fn footer(&self) -> Result<Bytes> {
        let short = || ParquetError::EOF("it is shorter than its footer".into());
        let from = self.size.saturating_sub(FOOTER_HINT);
        let end = self.size.checked_sub(TAIL_BYTES as u64).ok_or_else(short)?;
        let mut tail = self.fetch_one(from..self.size).await?;
        let tail_bytes = tail.split_off(tail.len().checked_sub(TAIL_BYTES).ok_or_else(short)?);
        let tail_bytes = FooterTail::try_from(&*tail_bytes)?;
        if tail_bytes.is_encrypted_footer() {
            return Err(ParquetError::NYI("its footer is encrypted".into()));
        }
        let start = end.checked_sub(tail_bytes.metadata_length() as u64).ok_or_else(short)?;
        match start.checked_sub(from) {
            Some(before) => Ok(tail.split_off(before as usize)),
            None => self.fetch_one(start..end).await,
        }
    }
}

/// No page index is read, so ranges are whole column chunks.
impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            let chunk = self.fetch_one(range).await?;
            check_pages(&chunk).map(|()| chunk)
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            let chunks = self.fetch(&ranges).await?;
            chunks.iter().try_for_each(|chunk| check_pages(chunk))?;
            Ok(chunks)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let footer = self.footer().await?;
            check_footer(&footer)?;
            Ok(Arc::new(ParquetMetaDataReader::decode_metadata(&footer)?))
        }
        .boxed()
    }
}
