//! What a rank takes from the shards that any number of others wrote.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::SafeTensors;
use tch::{Tensor, no_grad};
use tidemill_torch::guard;

use super::{Parameter, Stretch, Values, contents, is_moment, overlap, starts, stretches};
use crate::optimizer::Optimizer;
use crate::parallel::element_order::Order;
use crate::parallel::layout::Layout;

/// Fills an optimizer's parts from shards, one after the other.
pub struct Filling<'a> {
    layout: &'a Layout,
    buffers: Vec<(&'static str, &'a [Tensor])>,
    stretches: Vec<Stretch>,
    /// Parameters whose elements the checkpoint has in another order.
    reordered: Vec<Reordered>,
    /// Elements that have not come yet, of each buffer.
    missing: usize,
}

/// A parameter that a checkpoint has in another order.
struct Reordered {
    /// As the checkpoint has it, and the numbers of its elements there.
    theirs: Parameter,
    numbers: Range<usize>,
    /// Own stretches, with elements counted in the own order from 0.
    own: Vec<Stretch>,
}

impl Reordered {
    /// Where elements of a range of numbers belong: bucket, place in its part, and which of the range it is.
    fn places(&self, range: &Range<usize>) -> impl Iterator<Item = (usize, usize, usize)> {
        let numbers = overlap(range, &self.numbers).unwrap_or_default();
        let start = range.start;
        numbers.filter_map(move |number| {
            let element = self.theirs.order.in_other(&self.theirs.shape, number - self.numbers.start);
            let stretch = self.own.iter().find(|stretch| stretch.elements.contains(&element))?;
            Some((stretch.bucket, stretch.at + element - stretch.elements.start, number - start))
        })
    }
}

impl<'a> Filling<'a> {
    /// Wants all that `optimizer` has room for, from a checkpoint with these parameters.
    ///
    /// # Errors
    /// The first parameter that the checkpoint lacks or has in another shape.
    pub fn new(optimizer: &'a Optimizer, parameters: &[Parameter]) -> Result<Self, String> {
        let (layout, part) = optimizer.layout();
        let theirs: HashMap<&str, &Parameter> = parameters.iter().map(|p| (p.name.as_str(), p)).collect();
        for slot in layout.slots() {
            match theirs.get(slot.name.as_str()) {
                None => return Err(format!("it lacks {}", slot.name)),
                Some(parameter) if parameter.shape != slot.shape => {
                    return Err(format!("{} is {:?}, expected {:?}", slot.name, parameter.shape, slot.shape));
                }
                Some(_) => (),
            }
        }
        if let Some(other) = parameters.iter().find(|p| layout.slots().iter().all(|slot| slot.name != p.name))
        {
            return Err(format!("{} is not a parameter of this model", other.name));
        }
        let stretches = stretches(layout, part, parameters);
        let missing = stretches.iter().map(|stretch| stretch.elements.len()).sum();
        let (numbers, _) = starts(parameters);
        let ours: HashMap<&str, Order> =
            layout.slots().iter().map(|slot| (slot.name.as_str(), slot.order)).collect();
        let mut filling =
            Self { layout, buffers: optimizer.buffers(), stretches, reordered: Vec::new(), missing };
        for theirs in parameters.iter().filter(|theirs| ours.get(theirs.name.as_str()) != Some(&theirs.order))
        {
            filling.reorder(theirs, numbers[theirs.name.as_str()].clone());
        }
        Ok(filling)
    }

    /// Takes a parameter's elements from another order.
    fn reorder(&mut self, theirs: &Parameter, numbers: Range<usize>) {
        let of_it = |stretch: &mut Stretch| overlap(&stretch.elements, &numbers).is_some();
        let counted = |stretch: Stretch| {
            let elements = stretch.elements.start - numbers.start..stretch.elements.end - numbers.start;
            Stretch { elements, ..stretch }
        };
        let own = self.stretches.extract_if(.., of_it).map(counted).collect();
        self.reordered.push(Reordered { theirs: theirs.clone(), numbers: numbers.clone(), own });
    }

    /// Whether a shard has anything that is wanted.
    pub fn wants(&self, ranges: &[Range<usize>]) -> bool {
        let has = |elements: &Range<usize>| ranges.iter().any(|range| overlap(range, elements).is_some());
        self.stretches.iter().any(|stretch| has(&stretch.elements))
            || self.reordered.iter().any(|parameter| !parameter.own.is_empty() && has(&parameter.numbers))
    }

    /// Takes what is wanted from a shard.
    ///
    /// # Errors
    /// What the shard lacks.
    pub fn take(&mut self, ranges: &[Range<usize>], shard: &SafeTensors) -> Result<(), String> {
        for (name, parts) in &self.buffers {
            for (elements, values) in contents(ranges, shard, name)? {
                // What is frozen has no moments to fill.
                let fills =
                    |bucket: usize| !(is_moment(name) && self.layout.buckets()[bucket].treatment.frozen);
                for parameter in &self.reordered {
                    let places = parameter.places(&elements).filter(|(bucket, _, _)| fills(*bucket));
                    put(parts, places, values).map_err(|e| e.to_string())?;
                }
                for stretch in self.stretches.iter().filter(|stretch| fills(stretch.bucket)) {
                    let Some(both) = overlap(&elements, &stretch.elements) else { continue };
                    let wanted = both.start - elements.start..both.end - elements.start;
                    let at = (stretch.at + both.start - stretch.elements.start) as i64;
                    let copy = || {
                        let part = parts[stretch.bucket].narrow(0, at, both.len() as i64);
                        no_grad(|| part.shallow_clone().copy_(&values.tensor(wanted)));
                    };
                    guard(copy).map_err(|e| e.to_string())?;
                }
            }
        }
        let came =
            |range| self.stretches.iter().filter_map(move |s| Some(overlap(range, &s.elements)?.len()));
        let reordered = |range| self.reordered.iter().map(move |parameter| parameter.places(range).count());
        let came = ranges.iter().flat_map(|range| came(range).chain(reordered(range)));
        self.missing = self.missing.saturating_sub(came.sum());
        Ok(())
    }

    /// All shards have been offered.
    ///
    /// # Errors
    /// If something has not come.
    pub fn finish(self) -> Result<(), String> {
        match self.missing {
            0 => Ok(()),
            missing => Err(format!("{missing} values of its parameters are in none of its shards")),
        }
    }
}

/// Puts values where they belong: bucket, place in its part, and which of the values.
fn put(
    parts: &[Tensor],
    places: impl Iterator<Item = (usize, usize, usize)>,
    values: Values,
) -> Result<(), tidemill_torch::Error> {
    let mut of_buckets: HashMap<usize, (Vec<i64>, Vec<u8>)> = HashMap::new();
    let size = values.kind.elt_size_in_bytes();
    for (bucket, at, value) in places {
        let (places, taken) = of_buckets.entry(bucket).or_default();
        places.push(at as i64);
        taken.extend_from_slice(&values.bytes[size * value..size * (value + 1)]);
    }
    guard(|| {
        for (bucket, (places, bytes)) in &of_buckets {
            let mut part = parts[*bucket].shallow_clone();
            let taken = Values { bytes, kind: values.kind }.tensor(0..places.len());
            let places = Tensor::from_slice(places).to_device(part.device());
            let taken = taken.to_device(part.device()).to_kind(part.kind());
            no_grad(|| drop(part.index_copy_(0, &places, &taken)));
        }
    })
}
