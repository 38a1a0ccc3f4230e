//! Where the record batches and dictionaries of an IPC file are. Of a file with a footer, the footer
//! tells; of a stream, the heads of all messages are read.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::read_footer_length;
use arrow::ipc::{Block, Message, MessageHeader, MetadataVersion, root_as_footer, root_as_message};
use bytes::Bytes;
use tidemill_io::{Address, block_on, uri};

use crate::error::{Error, Result};
use crate::source::units::InputFile;

/// The first and last bytes of a file with a footer, as opposed to a stream.
const MAGIC: &[u8] = b"ARROW1";

/// The length of the footer, and [`MAGIC`].
const TRAILER_BYTES: usize = 10;

/// In front of a message since Arrow 0.15.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Bytes that are fetched for a head or the footer. Longer ones are fetched again, whole.
const HEAD_BYTES: u64 = 16 << 10;

/// Most bytes of a head or footer. A damaged file may claim any number.
const MAX_HEAD_BYTES: u64 = 64 << 20;

/// A record batch in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct IpcBatch {
    /// Its rows in the file.
    pub rows: Range<u64>,
    /// Where it is.
    pub block: Block,
    /// Whether its data is compressed.
    pub is_compressed: bool,
}

/// The messages of a file.
#[derive(Debug, Clone)]
pub struct IpcIndex {
    /// The columns.
    pub schema: SchemaRef,
    /// The version of all messages.
    pub version: MetadataVersion,
    /// The record batches.
    pub batches: Vec<IpcBatch>,
    /// The dictionaries, each of which changes what the record batches behind it mean.
    pub dictionaries: Vec<Block>,
}

impl IpcIndex {
    /// Reads the footer, or the heads of a stream's messages.
    ///
    /// # Errors
    /// If the file cannot be read, or is no Arrow IPC.
    pub fn read(file: &InputFile) -> Result<Self> {
        let input = IpcInput { address: uri::parse(&file.uri)?, file };
        // On some damaged files the parser panics.
        let index = catch_unwind(AssertUnwindSafe(|| {
            if input.fetch(0..MAGIC.len() as u64)? == MAGIC {
                input.read_footer()
            } else {
                input.read_stream()
            }
        }));
        index.unwrap_or_else(|_| Err(input.error("its schema cannot be understood")))
    }

    /// The record batches that overlap a range of rows.
    pub fn overlapping(&self, rows: &Range<u64>) -> impl Iterator<Item = &IpcBatch> {
        let rows = rows.clone();
        self.batches.iter().filter(move |batch| batch.rows.start < rows.end && batch.rows.end > rows.start)
    }
}

struct IpcInput<'a> {
    address: Address,
    file: &'a InputFile,
}

impl IpcInput<'_> {
    fn read_footer(&self) -> Result<IpcIndex> {
        let size = self.file.size;
        let end = self.fetch(size.saturating_sub(HEAD_BYTES)..size)?;
        let trailer: &[u8; TRAILER_BYTES] =
            end.last_chunk().ok_or_else(|| self.error("it ends in its first bytes"))?;
        let length = read_footer_length(*trailer).map_err(|e| self.error(&e.to_string()))?;
        let stored = length + TRAILER_BYTES;
        let footer = match end.len().checked_sub(stored) {
            Some(start) => end.slice(start..end.len() - TRAILER_BYTES),
            None if (length as u64) < size.min(MAX_HEAD_BYTES) => {
                let start = size.saturating_sub(stored as u64);
                self.fetch(start..start + length as u64)?
            }
            None => return Err(self.error(&format!("its footer claims {length} bytes"))),
        };
        // The parser needs aligned bytes.
        let footer = Buffer::from_slice_ref(&footer);
        let footer = root_as_footer(&footer).map_err(|e| self.error(&e.to_string()))?;
        let schema = footer.schema().ok_or_else(|| self.error("its footer has no schema"))?;
        let mut batches = Vec::new();
        let mut rows = 0;
        for block in footer.recordBatches().iter().flatten() {
            self.check_block(block)?;
            let head =
                self.fetch(number(block.offset())..number(block.offset()) + number(block.metaDataLength()))?;
            let (_, head) = strip_prefix(&head);
            let batch = self.parse_head(head, |message| to_batch(&message, *block, rows))?;
            batches.push(batch.ok_or_else(|| self.error("its footer names a record batch that is none"))?);
            rows = batches.last().map_or(0, |batch| batch.rows.end);
        }
        let dictionaries: Vec<Block> = footer.dictionaries().iter().flatten().copied().collect();
        dictionaries.iter().try_for_each(|block| self.check_block(block))?;
        Ok(IpcIndex {
            schema: Arc::new(fb_to_schema(schema)),
            version: footer.version(),
            batches,
            dictionaries,
        })
    }

    fn read_stream(&self) -> Result<IpcIndex> {
        let (mut schema, mut offset, mut rows) = (None, 0, 0);
        let (mut batches, mut dictionaries): (Vec<IpcBatch>, Vec<Block>) = (Vec::new(), Vec::new());
        while let Some((head_bytes, head)) = self.fetch_head(offset)? {
            let next = self.parse_head(&head, |message| {
                let body = number(message.bodyLength());
                let block = Block::new(offset as i64, head_bytes as i32, body as i64);
                match message.header_type() {
                    MessageHeader::Schema => {
                        let found = message.header_as_schema().map(fb_to_schema);
                        schema = found.map(|schema| (Arc::new(schema), message.version()));
                    }
                    MessageHeader::DictionaryBatch => dictionaries.push(block),
                    _ => batches.extend(to_batch(&message, block, rows)),
                }
                offset.saturating_add(head_bytes).saturating_add(body)
            })?;
            rows = batches.last().map_or(0, |batch| batch.rows.end);
            if next > self.file.size {
                return Err(
                    self.error(&format!("it ends in the middle of the record batch before row {rows}"))
                );
            }
            offset = next;
        }
        let (schema, version) = schema.ok_or_else(|| self.error("it does not start with a schema"))?;
        Ok(IpcIndex { schema, version, batches, dictionaries })
    }

    /// The message head at an offset of a stream, and its length with what is in front of it; `None`
    /// at the end of the stream.
    fn fetch_head(&self, offset: u64) -> Result<Option<(u64, Bytes)>> {
        let fetched = self.fetch(offset..offset.saturating_add(HEAD_BYTES))?;
        let (prefix, _) = strip_prefix(&fetched);
        let length = match fetched.get(prefix - 4..prefix).and_then(|length| length.first_chunk()) {
            Some(length) => u64::from(u32::from_le_bytes(*length)),
            // Some writers omit the end marker.
            None if fetched.is_empty() => return Ok(None),
            None => return Err(self.error("it ends in the middle of a message")),
        };
        if length == 0 {
            return Ok(None);
        }
        if length > MAX_HEAD_BYTES {
            return Err(self.error(&format!("a message at byte {offset} claims a head of {length} bytes")));
        }
        let head_bytes = prefix as u64 + length;
        let head = match fetched.len() as u64 >= head_bytes {
            true => fetched.slice(prefix..head_bytes as usize),
            false => self.fetch(offset + prefix as u64..offset + head_bytes)?,
        };
        Ok(Some((head_bytes, head)))
    }

    fn parse_head<T>(&self, head: &[u8], read: impl FnOnce(Message) -> T) -> Result<T> {
        let head = Buffer::from_slice_ref(head);
        root_as_message(&head).map(read).map_err(|e| self.error(&e.to_string()))
    }

    /// Checks that a block lies in the file: as many bytes will be in memory.
    fn check_block(&self, block: &Block) -> Result<()> {
        let end = number(block.offset()).saturating_add(block_bytes(block));
        if end > self.file.size || number(block.metaDataLength()) > MAX_HEAD_BYTES {
            return Err(self.error(&format!("its footer claims a record batch that ends at byte {end}")));
        }
        Ok(())
    }

    /// Bytes of the file, fewer at its end.
    fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let range = range.start..range.end.min(self.file.size);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        Ok(block_on(self.address.get_range(range, self.file.e_tag.as_deref()))?)
    }

    fn error(&self, problem: &str) -> Error {
        to_read_error(self.file, problem)
    }
}

/// The error of a file that is no Arrow IPC, or damaged.
pub fn to_read_error(file: &InputFile, problem: &str) -> Error {
    let problem =
        format!("{problem}; the file is no Arrow IPC, only half written, or damaged ({} bytes)", file.size);
    Error::Read { file: file.uri.clone(), problem }
}

/// The bytes of a block in its file.
pub fn block_bytes(block: &Block) -> u64 {
    number(block.bodyLength()).saturating_add(number(block.metaDataLength()))
}

/// The bytes in front of a message's head, its length among them, and the rest.
pub fn strip_prefix(message: &[u8]) -> (usize, &[u8]) {
    let prefix = if message.starts_with(&CONTINUATION) { 8 } else { 4 };
    (prefix, message.get(prefix..).unwrap_or_default())
}

/// A number of the file that cannot be negative. A damaged file may claim any.
fn number(claimed: impl TryInto<u64>) -> u64 {
    claimed.try_into().unwrap_or(0)
}

fn to_batch(message: &Message, block: Block, first_row: u64) -> Option<IpcBatch> {
    let batch = message.header_as_record_batch()?;
    let rows = first_row..first_row.saturating_add(number(batch.length()));
    Some(IpcBatch { rows, block, is_compressed: batch.compression().is_some() })
}
