//! A copy of one rank's share of a run's state, and how it lies in a shard file. Elements of all parameters are numbered
//! through, in the order of the commit's list of parameters and within each as it says; a shard has ranges of these numbers, and of each
//! buffer (master weights, moments, EMA) the values there, one range behind the other. So any number of ranks can read what any
//! other number wrote.

pub use crate::checkpoint::state_copy::reshard::Filling;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};
use tidemill_torch::{HostCopy, guard};

use crate::Error;
use crate::checkpoint::Progress;
use crate::config::Writers;
use crate::optimizer::Optimizer;
use crate::parallel::element_order::Order;
use crate::parallel::layout::Layout;
use crate::parallel::world::World;

/// A parameter of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// In what order its elements are numbered.
    #[serde(default, skip_serializing_if = "Order::is_row_major")]
    pub order: Order,
    /// Whether it is not trained, and has no moments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// The step after which its moments began, if it was frozen before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub moments_since: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A copy of what one rank writes, in memory of the host; of what a GPU has, in pinned memory.
#[derive(Debug)]
pub struct Snapshot {
    /// Where the run stands.
    pub progress: Progress,
    /// Whether there are averaged weights.
    pub ema: bool,
    /// All parameters of the network.
    pub parameters: Vec<Parameter>,
    /// Which elements are in it.
    pub ranges: Vec<Range<usize>>,
    /// Those of more bytes an element first, so that all are aligned in a file.
    buffers: Vec<Buffer>,
}

/// Master weights, moments or EMA.
#[derive(Debug)]
struct Buffer {
    name: &'static str,
    kind: Kind,
    /// Its values, in pieces.
    values: Vec<Bytes>,
}

/// A stretch of a rank's parts that has consecutive numbers.
struct Stretch {
    bucket: usize,
    /// Where it begins in the part.
    at: usize,
    elements: Range<usize>,
}

impl Stretch {
    /// Where it is in the part.
    fn place(&self) -> Range<usize> {
        self.at..self.at + self.elements.len()
    }
}

impl Snapshot {
    /// Copies the state after `progress.step`; waits for the device. All ranks call it together; the snapshot of one that does
    /// not write is empty.
    ///
    /// # Errors
    /// If memory does not suffice, or a collective fails.
    pub fn take(
        optimizer: &Optimizer,
        progress: &Progress,
        world: &World,
        writers: Writers,
    ) -> Result<Self, Error> {
        let (layout, part) = optimizer.layout();
        let parameters = parameters(optimizer);
        let own = match layout.parts() {
            1 => {
                // Each rank has all of it: the writers share the buckets.
                let writing = world.writers(writers);
                let mut all = stretches(layout, 0, &parameters);
                all.retain(|stretch| writing[stretch.bucket % writing.len()] == world.rank());
                all
            }
            _ if writers == Writers::All => stretches(layout, part, &parameters),
            _ => whole_stretches(layout, world.written_by(writers), &parameters),
        };
        // What other ranks have comes bucket by bucket.
        let gathers = layout.parts() > 1 && writers != Writers::All;
        let whole =
            |part: &Tensor| if gathers { world.gather(&part.contiguous()) } else { Ok(part.shallow_clone()) };
        let buffers = optimizer.buffers();
        let mut copied = Vec::new();
        for (name, parts) in &buffers {
            // There is no network without parameters.
            let kind = parts.first().map_or(Kind::Float, Tensor::kind);
            copied.push(Buffer { name, kind, values: values(parts, &own, whole)? });
        }
        copied.sort_by_key(|buffer| Reverse(buffer.kind.elt_size_in_bytes()));
        Ok(Self {
            progress: progress.clone(),
            ema: buffers.iter().any(|(name, _)| *name == "ema"),
            buffers: copied,
            parameters,
            ranges: joined(own.into_iter().map(|stretch| stretch.elements)),
        })
    }

    /// The step it was taken after.
    pub fn step(&self) -> u64 {
        self.progress.step
    }

    /// A file of safetensors, piece by piece: its header, and the values from where they lie.
    ///
    /// # Errors
    /// What does not fit.
    pub fn file(&self) -> Result<impl Iterator<Item = Bytes>, String> {
        let elements: usize = self.ranges.iter().map(Range::len).sum();
        let mut end = 0;
        let info = |Buffer { name, kind, .. }: &Buffer| {
            let start = end;
            end += kind.elt_size_in_bytes() * elements;
            let dtype = if *kind == Kind::BFloat16 { Dtype::BF16 } else { Dtype::F32 };
            let (shape, data_offsets) = (vec![elements], (start, end));
            ((*name).to_owned(), TensorInfo { dtype, shape, data_offsets })
        };
        let infos = self.buffers.iter().map(info).collect();
        let metadata = Metadata::new(None, infos).map_err(|e| e.to_string())?;
        let mut header = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
        // So that values are aligned in the file.
        header.resize(header.len().next_multiple_of(8), b' ');
        let length = Bytes::copy_from_slice(&(header.len() as u64).to_le_bytes());
        let values = self.buffers.iter().flat_map(|buffer| buffer.values.iter().cloned());
        Ok([length, header.into()].into_iter().chain(values))
    }
}

/// What an optimizer has parameters of.
fn parameters(optimizer: &Optimizer) -> Vec<Parameter> {
    let (layout, _) = optimizer.layout();
    let parameter = |(number, slot): (usize, &crate::parallel::layout::Slot)| Parameter {
        name: slot.name.clone(),
        shape: slot.shape.clone(),
        order: slot.order,
        frozen: layout.buckets()[slot.bucket].treatment.frozen,
        moments_since: optimizer.begun(number),
    };
    layout.slots().iter().enumerate().map(parameter).collect()
}

/// The number of each parameter's first element, and of all elements.
pub fn starts(parameters: &[Parameter]) -> (HashMap<&str, Range<usize>>, usize) {
    let mut end = 0;
    let numbered = parameters.iter().map(|parameter| {
        let numel: i64 = parameter.shape.iter().product();
        let start = end;
        end += usize::try_from(numel).unwrap_or(0);
        (parameter.name.as_str(), start..end)
    });
    (numbered.collect(), end)
}

/// A rank's stretches, as they lie in its parts; numbered by `parameters`. Parameters that these lack are left out.
fn stretches(layout: &Layout, part: usize, parameters: &[Parameter]) -> Vec<Stretch> {
    let (numbers, _) = starts(parameters);
    let of_bucket = |bucket| layout.pieces(bucket, part).map(move |piece| (bucket, piece));
    let pieces = (0..layout.buckets().len()).flat_map(of_bucket);
    let numbered = pieces.filter_map(|(bucket, piece)| {
        let own = numbers.get(layout.slots()[piece.slot].name.as_str())?;
        let elements = own.start + piece.elements.start..own.start + piece.elements.end;
        Some(Stretch { bucket, at: piece.at, elements })
    });
    numbered.collect()
}

/// Ranges, with neighbours put together.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => joined.push(range),
        }
    }
    joined
}

/// The stretches of several ranks' parts, as they lie in whole buckets.
fn whole_stretches(layout: &Layout, parts: Range<usize>, parameters: &[Parameter]) -> Vec<Stretch> {
    let of_part = |part| {
        let place = move |stretch: Stretch| {
            let at = stretch.at + layout.part(stretch.bucket, part).start;
            Stretch { at, ..stretch }
        };
        stretches(layout, part, parameters).into_iter().map(place)
    };
    let mut all: Vec<Stretch> = parts.flat_map(of_part).collect();
    all.sort_by_key(|stretch| (stretch.bucket, stretch.at));
    all
}

/// Copies some stretches of a buffer to the host; `whole` gives the tensor that a bucket's stretches lie in.
fn values(
    parts: &[Tensor],
    stretches: &[Stretch],
    whole: impl Fn(&Tensor) -> Result<Tensor, Error>,
) -> Result<Vec<Bytes>, Error> {
    let mut values = Vec::new();
    for (bucket, part) in parts.iter().enumerate() {
        let tensor = whole(part)?;
        let own = stretches.iter().filter(|stretch| stretch.bucket == bucket);
        let Some(lie) = hull(own.clone().map(Stretch::place)) else { continue };
        let lying = guard(|| tensor.narrow(0, lie.start as i64, lie.len() as i64))?;
        let copy = Bytes::from_owner(HostCopy::new(&lying)?);
        let size = tensor.kind().elt_size_in_bytes();
        let bytes = |place: Range<usize>| size * (place.start - lie.start)..size * (place.end - lie.start);
        values.extend(own.map(|stretch| copy.slice(bytes(stretch.place()))));
    }
    Ok(values)
}

/// The smallest range that has all of these in it.
fn hull(ranges: impl Iterator<Item = Range<usize>>) -> Option<Range<usize>> {
    ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
}

/// The values of a buffer in a shard, range by range.
///
/// # Errors
/// If the shard has not just these, or in another dtype.
pub fn contents<'a>(
    ranges: &'a [Range<usize>],
    shard: &'a SafeTensors,
    buffer: &str,
) -> Result<impl Iterator<Item = (Range<usize>, Values<'a>)>, String> {
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
        let (bytes, behind) = rest.split_at(size * range.len());
        rest = behind;
        (range.clone(), Values { bytes, kind })
    }))
}

/// Values as they lie in a shard, little-endian.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// All of them.
    pub bytes: &'a [u8],
    /// f32; moments may be bf16.
    pub kind: Kind,
}

impl Values<'_> {
    /// Some of them, as a tensor.
    fn tensor(self, range: Range<usize>) -> Tensor {
        let size = self.kind.elt_size_in_bytes();
        let bytes = &self.bytes[size * range.start..size * range.end];
        Tensor::from_data_size(bytes, &[range.len() as i64], self.kind)
    }
}

/// Whether a buffer is one of AdamW's moments.
fn is_moment(buffer: &str) -> bool {
    buffer.starts_with("exp_avg")
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}
mod reshard;
