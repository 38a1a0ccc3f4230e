//! A copy of one rank's share of a run's state, and how it lies in a shard file. Elements of all parameters are numbered
//! through, in the order of the commit's list of parameters and within each as it says; a shard has ranges of these numbers, and of each
//! buffer (master weights, moments, EMA) the values there, one range behind the other. So any number of ranks can read what any
//! other number wrote.

mod filling;

pub use filling::Filling;

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use tch::Tensor;
use tidemill_torch::{HostCopy, guard};

use crate::Error;
use crate::checkpoint::Progress;
use crate::config::Writers;
use crate::layout::Layout;
use crate::optimizer::Optimizer;
use crate::order::Order;
use crate::world::World;

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
    /// f32 values of each buffer, in pieces.
    buffers: Vec<(&'static str, Vec<Bytes>)>,
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
        let parameters = parameters(layout);
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
        let copied = buffers.iter().map(|(name, parts)| Ok((*name, values(parts, &own, whole)?)));
        Ok(Self {
            progress: progress.clone(),
            ema: buffers.iter().any(|(name, _)| *name == "ema"),
            buffers: copied.collect::<Result<_, Error>>()?,
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
        let info = |(i, (name, _)): (usize, &(&str, _))| {
            let data_offsets = (4 * i * elements, 4 * (i + 1) * elements);
            ((*name).to_owned(), TensorInfo { dtype: Dtype::F32, shape: vec![elements], data_offsets })
        };
        let infos = self.buffers.iter().enumerate().map(info).collect();
        let metadata = Metadata::new(None, infos).map_err(|e| e.to_string())?;
        let mut header = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
        // So that values are aligned in the file.
        header.resize(header.len().next_multiple_of(8), b' ');
        let length = Bytes::copy_from_slice(&(header.len() as u64).to_le_bytes());
        let values = self.buffers.iter().flat_map(|(_, pieces)| pieces.iter().cloned());
        Ok([length, header.into()].into_iter().chain(values))
    }
}

/// What a layout has parameters of.
fn parameters(layout: &Layout) -> Vec<Parameter> {
    let parameter = |slot: &crate::layout::Slot| Parameter {
        name: slot.name.clone(),
        shape: slot.shape.clone(),
        order: slot.order,
    };
    layout.slots().iter().map(parameter).collect()
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
        let copy = Bytes::from_owner(HostCopy::of(&lying)?);
        let bytes = |place: Range<usize>| 4 * (place.start - lie.start)..4 * (place.end - lie.start);
        values.extend(own.map(|stretch| copy.slice(bytes(stretch.place()))));
    }
    Ok(values)
}

/// The smallest range that has all of these in it.
fn hull(ranges: impl Iterator<Item = Range<usize>>) -> Option<Range<usize>> {
    ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
}

/// The values of a buffer in a shard, range by range: f32, little-endian.
///
/// # Errors
/// If the shard has not just these.
pub fn contents<'a>(
    ranges: &'a [Range<usize>],
    shard: &'a SafeTensors,
    buffer: &str,
) -> Result<impl Iterator<Item = (Range<usize>, &'a [u8])>, String> {
    let view = shard.tensor(buffer).map_err(|e| format!("{buffer}: {e}"))?;
    let (expected, mut rest) = (4 * ranges.iter().map(Range::len).sum::<usize>(), view.data());
    if rest.len() != expected || view.dtype() != Dtype::F32 {
        return Err(format!(
            "{buffer} has {} bytes of {:?}, expected {expected} of F32",
            rest.len(),
            view.dtype()
        ));
    }
    Ok(ranges.iter().map(move |range| {
        let (values, behind) = rest.split_at(4 * range.len());
        rest = behind;
        (range.clone(), values)
    }))
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}
