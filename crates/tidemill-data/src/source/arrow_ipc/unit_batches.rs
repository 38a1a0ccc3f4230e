//! The batches of one unit of an IPC file as they are in the file. While one is decoded on the
//! caller's thread, the next one is fetched.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::IntoIter;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::ipc::reader::FileDecoder;
use arrow::ipc::{Block, root_as_message};
use bytes::Bytes;
use tidemill_io::{Address, block_on, runtime, uri};
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::source::arrow_ipc::index::{IpcBatch, IpcIndex, block_bytes, strip_prefix, to_read_error};
use crate::source::columnar::NeededColumns;
use crate::source::object_stream::fetch_range;
use crate::source::units::{InputFile, InputUnit};

/// The greatest ratio of decompressed to stored bytes: that of zstd for a repeated byte.
const MAX_COMPRESSION: i64 = 1 << 15;

/// The record batches that overlap a unit, in slices.
pub struct UnitBatches {
    decoder: FileDecoder,
    /// Dictionaries that have not been read yet, by their place in the file.
    dictionaries: IntoIter<Block>,
    /// Record batches that have not been decoded yet.
    batches: IntoIter<IpcBatch>,
    /// The next of `batches`, if it is being fetched.
    fetching: Option<JoinHandle<Result<Bytes>>>,
    /// Most bytes that are fetched ahead. A larger record batch is fetched when it is needed.
    max_prefetch_bytes: u64,
    file: InputFile,
    address: Address,
    /// The rest of the current record batch.
    rest: Option<RecordBatch>,
    /// Index of the next row of the unit.
    row: u64,
    end: u64,
    /// Most rows of a slice.
    slice_rows: u64,
}

impl UnitBatches {
    /// Opens a unit. Slices have at most `batch_rows` rows or about `max_bytes`.
    ///
    /// # Errors
    /// If the file's URI is malformed.
    pub fn open(
        unit: &InputUnit,
        index: &IpcIndex,
        columns: &NeededColumns,
        batch_rows: u64,
        max_bytes: u64,
    ) -> Result<Self> {
        let rows = unit.span.range().clone();
        let batches: Vec<IpcBatch> = index.overlapping(&rows).cloned().collect();
        let fitting = batches.iter().map(|batch| rows_within(batch, max_bytes));
        let decoder = FileDecoder::new(index.schema.clone(), index.version);
        let mut dictionaries = index.dictionaries.clone();
        dictionaries.sort_by_key(Block::offset);
        Ok(Self {
            decoder: decoder.with_projection(columns.roots(&index.schema)),
            slice_rows: fitting.min().unwrap_or(batch_rows).clamp(1, batch_rows.max(1)),
            dictionaries: dictionaries.into_iter(),
            batches: batches.into_iter(),
            fetching: None,
            max_prefetch_bytes: max_bytes,
            file: unit.file.clone(),
            address: uri::parse(&unit.file.uri)?,
            rest: None,
            row: rows.start,
            end: rows.end,
        })
    }

    fn next_slice(&mut self) -> Result<Option<RecordBatch>> {
        if self.row >= self.end {
            return Ok(None);
        }
        let batch = match self.rest.take() {
            Some(batch) => batch,
            None => self.next_batch()?,
        };
        let taken = self.slice_rows.min(batch.num_rows() as u64).min(self.end - self.row);
        self.row += taken;
        let taken = taken as usize;
        if taken < batch.num_rows() {
            self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
        }
        Ok(Some(batch.slice(0, taken)))
    }

    /// The next record batch, from the unit's next row on.
    fn next_batch(&mut self) -> Result<RecordBatch> {
        let ended = || format!("it ends at row {} where {} were promised", self.row, self.end);
        let batch = self.batches.next().ok_or_else(|| to_read_error(&self.file, &ended()))?;
        let bytes = match self.fetching.take() {
            Some(fetched) => self.join(fetched)?,
            None => block_on(self.fetch(&batch.block))?,
        };
        if let Some(next) = self.batches.as_slice().first()
            && block_bytes(&next.block) <= self.max_prefetch_bytes
        {
            self.fetching = Some(runtime()?.spawn(self.fetch(&next.block)));
        }
        self.read_dictionaries(batch.block.offset())?;
        check_decompressed_sizes(&self.file, &batch.block, &bytes)?;
        let decoded =
            decode(&self.file, || self.decoder.read_record_batch(&batch.block, &Buffer::from(bytes)))?;
        let decoded = decoded.ok_or_else(|| to_read_error(&self.file, "a record batch is none"))?;
        let skipped =
            usize::try_from(self.row - batch.rows.start).unwrap_or(usize::MAX).min(decoded.num_rows());
        if decoded.num_rows() as u64 != batch.rows.end - batch.rows.start {
            return Err(to_read_error(&self.file, "a record batch has other columns than rows"));
        }
        Ok(decoded.slice(skipped, decoded.num_rows() - skipped))
    }

    /// Reads the dictionaries in front of an offset.
    fn read_dictionaries(&mut self, offset: i64) -> Result<()> {
        while let Some(block) = self.dictionaries.as_slice().first().copied() {
            if block.offset() > offset {
                break;
            }
            self.dictionaries.next();
            let bytes = block_on(self.fetch(&block))?;
            check_decompressed_sizes(&self.file, &block, &bytes)?;
            decode(&self.file, || self.decoder.read_dictionary(&block, &Buffer::from(bytes)))?;
        }
        Ok(())
    }

    fn fetch(&self, block: &Block) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        fetch_range(self.address.clone(), self.file.e_tag.clone(), block_range(block))
    }

    fn join(&self, fetched: JoinHandle<Result<Bytes>>) -> Result<Bytes> {
        runtime()?.block_on(fetched).map_err(|e| to_read_error(&self.file, &e.to_string()))?
    }
}

/// Number of rows that have about `max_bytes`.
fn rows_within(batch: &IpcBatch, max_bytes: u64) -> u64 {
    let rows = batch.rows.end - batch.rows.start;
    max_bytes.saturating_mul(rows).checked_div(block_bytes(&batch.block)).unwrap_or(rows)
}

/// The range of a block in its file.
fn block_range(block: &Block) -> Range<u64> {
    let start = u64::try_from(block.offset()).unwrap_or(0);
    start..start.saturating_add(block_bytes(block))
}

/// Checks what a compressed record batch or dictionary claims to be: the decoder allocates it.
fn check_decompressed_sizes(file: &InputFile, block: &Block, bytes: &Bytes) -> Result<()> {
    let head = Buffer::from_slice_ref(strip_prefix(bytes).1);
    let message = root_as_message(&head).map_err(|e| to_read_error(file, &e.to_string()))?;
    let dictionary = || message.header_as_dictionary_batch()?.data();
    let batch = message.header_as_record_batch().or_else(dictionary);
    let buffers = batch.filter(|batch| batch.compression().is_some()).and_then(|batch| batch.buffers());
    for buffer in buffers.iter().flatten() {
        let start = i64::from(block.metaDataLength()).saturating_add(buffer.offset());
        let claimed = usize::try_from(start).ok().and_then(|start| bytes.get(start..)?.first_chunk());
        // A negative length says that the buffer is not compressed.
        let claimed = claimed.map_or(0, |claimed| i64::from_le_bytes(*claimed));
        if claimed / MAX_COMPRESSION > buffer.length() {
            return Err(to_read_error(file, &format!("a buffer claims {claimed} bytes when decompressed")));
        }
    }
    Ok(())
}

/// Runs the decoder, which panics on some damaged files.
fn decode<T>(file: &InputFile, run: impl FnOnce() -> Result<T, arrow::error::ArrowError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(decoded) => decoded.map_err(|e| to_read_error(file, &e.to_string())),
        Err(_) => Err(to_read_error(file, "the Arrow reader gave up")),
    }
}

impl Iterator for UnitBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let slice = self.next_slice();
        if slice.is_err() {
            self.row = self.end;
        }
        slice.transpose()
    }
}
