//! The file format of a state shard: safetensors, with one tensor per buffer (`master`, `exp_avg`,
//! `exp_avg_sq`, `ema`). Each has the values of the shard's ranges of element numbers, one range
//! after the other. So any number of ranks can read what any other number wrote.

use std::ops::Range;

use bytes::Bytes;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor};

/// A buffer of a state shard, for writing: master weights, moments or EMA.
#[derive(Debug)]
pub struct Buffer {
    /// The name.
    pub name: &'static str,
    /// The dtype: f32, or bf16 for moments.
    pub kind: Kind,
    /// The values, in several chunks.
    pub values: Vec<Bytes>,
}

/// Encodes a state shard with `elements` values in each buffer, in chunks: its header, then the
/// values without copying them. Buffers with more bytes per element must come first, so that all of
/// them are aligned in the file.
///
/// # Errors
/// If the buffers do not fit each other.
pub fn encode_shard(buffers: &[Buffer], elements: usize) -> Result<impl Iterator<Item = Bytes>, String> {
    let mut end = 0;
    let info = |Buffer { name, kind, .. }: &Buffer| {
        let start = end;
        end += kind.elt_size_in_bytes() * elements;
        let dtype = if *kind == Kind::BFloat16 { Dtype::BF16 } else { Dtype::F32 };
        let (shape, data_offsets) = (vec![elements], (start, end));
        ((*name).to_owned(), TensorInfo { dtype, shape, data_offsets })
    };
    let infos = buffers.iter().map(info).collect();
    let metadata = Metadata::new(None, infos).map_err(|e| e.to_string())?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    // Aligns the values in the file.
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = Bytes::copy_from_slice(&(header.len() as u64).to_le_bytes());
    let values = buffers.iter().flat_map(|buffer| buffer.values.iter().cloned());
    Ok([length, header.into()].into_iter().chain(values))
}

/// Values of a buffer, as they are in a state shard: little-endian.
#[derive(Clone, Copy)]
pub struct BufferValues<'a> {
    /// The bytes of all values.
    pub bytes: &'a [u8],
    /// The dtype: f32, or bf16 for moments.
    pub kind: Kind,
}

impl BufferValues<'_> {
    /// A tensor of some of the values: [N].
    pub fn to_tensor(self, range: Range<usize>) -> Tensor {
        let size = self.kind.elt_size_in_bytes();
        let bytes = &self.bytes[size * range.start..size * range.end];
        Tensor::from_data_size(bytes, &[range.len() as i64], self.kind)
    }
}

/// The values of a buffer in a state shard, with the element numbers of each range.
///
/// # Errors
/// If the shard lacks the buffer, or has another number of values or another dtype.
pub fn read_buffer<'a>(
    ranges: &'a [Range<usize>],
    shard: &'a SafeTensors,
    buffer: &str,
) -> Result<impl Iterator<Item = (Range<usize>, BufferValues<'a>)>, String> {
    let view = shard.tensor(buffer).map_err(|e| format!("{buffer}: {e}"))?;
    let kind = match view.dtype() {
        Dtype::F32 => Kind::Float,
        Dtype::BF16 if is_moment(buffer) => Kind::BFloat16,
        other => return Err(format!("{buffer} is {other:?}, expected F32")),
    };
    let size = kind.elt_size_in_bytes();
    let (expected, mut rest) = (size * ranges.iter().map(Range::len).sum::<usize>(), view.data());
    if rest.len() != expected {
        return Err(format!("{buffer} has {} bytes, expected {expected}", rest.len()));
    }
    Ok(ranges.iter().map(move |range| {
        let (bytes, after) = rest.split_at(size * range.len());
        rest = after;
        (range.clone(), BufferValues { bytes, kind })
    }))
}

/// Whether a buffer is one of AdamW's moments.
pub fn is_moment(buffer: &str) -> bool {
    buffer.starts_with("exp_avg")
}
