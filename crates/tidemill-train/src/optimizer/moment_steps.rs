//! The step after which each parameter's moments started. AdamW's bias correction divides a moment
//! by 1 - beta^n after n steps. A parameter that was frozen before and is trained now has had fewer
//! steps than the others. torch.optim.AdamW counts steps for each parameter; this file does so for
//! parameters that start late.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use tidemill_torch::guard;

use crate::Error;
use crate::parallel::bucket_layout::{BucketLayout, ParameterSlice};
use crate::parallel::gradient_reduction::GradientSlice;

/// The step after which each parameter's moments started, by the parameter's index.
#[derive(Debug)]
pub struct MomentSteps(Vec<u64>);

impl MomentSteps {
    /// All moments start with the run.
    pub fn new(layout: &BucketLayout) -> Self {
        Self(vec![0; layout.slots().len()])
    }

    /// The moments of each parameter start after the step that is given for its name, or with the
    /// run.
    pub fn from_names(layout: &BucketLayout, steps: &HashMap<&str, u64>) -> Self {
        let step = |name: &str| steps.get(name).copied().unwrap_or_default();
        Self(layout.slots().iter().map(|slot| step(&slot.name)).collect())
    }

    /// The step after which a parameter's moments started.
    pub fn get(&self, slot: usize) -> u64 {
        self.0[slot]
    }

    /// Groups the gradients of a rank's partition by the step after which their parameters' moments
    /// started.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn group_gradients(
        &self,
        layout: &BucketLayout,
        partition: usize,
        gradients: Vec<GradientSlice>,
    ) -> Result<BTreeMap<u64, Vec<GradientSlice>>, Error> {
        // The common case: no parameter was ever unfrozen.
        if let Some(first) = self.0.first().filter(|first| self.0.iter().all(|step| step == *first)) {
            return Ok(BTreeMap::from([(*first, gradients)]));
        }
        let mut groups = BTreeMap::<u64, Vec<GradientSlice>>::new();
        for GradientSlice { bucket, offset, values } in gradients {
            let slices = layout
                .slices(bucket, partition)
                .map(|ParameterSlice { slot, offset, .. }| (offset, self.get(slot)));
            for (range, step) in split_by_step(slices, offset..offset + values.numel()) {
                let narrow = |values: &tch::Tensor| {
                    values.narrow(0, (range.start - offset) as i64, range.len() as i64)
                };
                let values = guard(|| narrow(&values))?;
                groups.entry(step).or_default().push(GradientSlice { bucket, offset: range.start, values });
            }
        }
        Ok(groups)
    }
}

/// Splits a range into subranges of one step each. `slices` are the offsets at which parameters
/// start, with their steps. The padding after a parameter belongs to its subrange.
fn split_by_step(
    slices: impl Iterator<Item = (usize, u64)>,
    range: Range<usize>,
) -> Vec<(Range<usize>, u64)> {
    let mut found: Vec<(Range<usize>, u64)> = Vec::new();
    for (offset, step) in slices.filter(|(offset, _)| *offset < range.end) {
        match found.last_mut() {
            Some((_, last)) if *last == step => (),
            // The previous parameter ends before the range starts.
            Some(last) if offset <= range.start => *last = (range.clone(), step),
            Some((last, _)) => {
                last.end = offset;
                found.push((offset..range.end, step));
            }
            None => found.push((range.clone(), step)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::split_by_step;

    #[test]
    fn range_is_split_where_the_step_changes() {
        let slices = [(0, 0), (10, 0), (20, 7), (25, 7), (40, 0)];
        let split = |start, end| split_by_step(slices.into_iter(), start..end);
        assert_eq!(split(0, 50), [(0..20, 0), (20..40, 7), (40..50, 0)]);
        assert_eq!(split(3, 18), [(3..18, 0)]);
        assert_eq!(split(22, 30), [(22..30, 7)]);
        assert_eq!(split(40, 41), [(40..41, 0)]);
        // A range that starts in the padding after the second parameter.
        assert_eq!(split(15, 21), [(15..20, 0), (20..21, 7)]);
    }
}
