//! Since when parameters have moments. AdamW divides a moment by what of it can have come together by then: of a parameter that was
//! frozen and is trained again that is less than of the others, as torch.optim.AdamW, which counts for each by itself, has it.

use std::collections::{BTreeMap, HashMap};

use tidemill_torch::guard;

use super::Optimizer;
use crate::Error;
use crate::checkpoint::state_copy::Parameter;
use crate::parallel::gradients::Gradient;
use crate::parallel::layout::{Layout, Piece};

/// The step after which each parameter's moments began, by slot.
#[derive(Debug)]
pub struct Begun(Vec<u64>);

impl Begun {
    /// With the run.
    pub fn at_start(layout: &Layout) -> Self {
        Self(vec![0; layout.slots().len()])
    }

    /// Of a parameter.
    pub fn of(&self, slot: usize) -> u64 {
        self.0[slot]
    }

    /// The gradients of a rank's part, by the step after which moments began.
    fn sorted(
        &self,
        (layout, part): (&Layout, usize),
        gradients: Vec<Gradient>,
    ) -> Result<BTreeMap<u64, Vec<Gradient>>, Error> {
        // As in runs that have thawed nothing.
        if let Some(first) = self.0.first().filter(|first| self.0.iter().all(|begun| begun == *first)) {
            return Ok(BTreeMap::from([(*first, gradients)]));
        }
        let mut sorted = BTreeMap::<u64, Vec<Gradient>>::new();
        for Gradient { bucket, start, values } in gradients {
            let pieces = layout.pieces(bucket, part).map(|Piece { slot, at, .. }| (at, self.of(slot)));
            for (range, begun) in stretches(pieces, start..start + values.numel()) {
                let of =
                    |values: &tch::Tensor| values.narrow(0, (range.start - start) as i64, range.len() as i64);
                let values = guard(|| of(&values))?;
                sorted.entry(begun).or_default().push(Gradient { bucket, start: range.start, values });
            }
        }
        Ok(sorted)
    }
}

/// The stretches of a range that have one number, by where pieces with numbers begin. What lies between pieces is the former's.
fn stretches(
    pieces: impl Iterator<Item = (usize, u64)>,
    range: std::ops::Range<usize>,
) -> Vec<(std::ops::Range<usize>, u64)> {
    let mut found: Vec<(std::ops::Range<usize>, u64)> = Vec::new();
    for (at, number) in pieces.filter(|(at, _)| *at < range.end) {
        match found.last_mut() {
            Some((_, last)) if *last == number => (),
            // It ends before the range begins.
            Some(last) if at <= range.start => *last = (range.clone(), number),
            Some((last, _)) => {
                last.end = at;
                found.push((at..range.end, number));
            }
            None => found.push((range.clone(), number)),
        }
    }
    found
}

impl Optimizer {
    /// The gradients, by the step after which their parameters' moments began.
    pub(super) fn gradients_by_begin(&self) -> Result<BTreeMap<u64, Vec<Gradient>>, Error> {
        self.begun.sorted((&self.layout, self.part), self.gradients.all()?)
    }

    /// Goes on from a checkpoint of this step with these parameters: moments of what was frozen there begin after it.
    pub fn moments_begin(&mut self, parameters: &[Parameter], step: u64) {
        let begun = |one: &Parameter| if one.frozen { step } else { one.moments_since };
        let theirs: HashMap<&str, u64> =
            parameters.iter().map(|one| (one.name.as_str(), begun(one))).collect();
        let of = |slot: &crate::parallel::layout::Slot| {
            theirs.get(slot.name.as_str()).copied().unwrap_or_default()
        };
        self.begun = Begun(self.layout.slots().iter().map(of).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::stretches;

    #[test]
    fn a_range_is_cut_where_the_number_changes() {
        let pieces = [(0, 0), (10, 0), (20, 7), (25, 7), (40, 0)];
        let of = |start, end| stretches(pieces.into_iter(), start..end);
        assert_eq!(of(0, 50), [(0..20, 0), (20..40, 7), (40..50, 0)]);
        assert_eq!(of(3, 18), [(3..18, 0)]);
        assert_eq!(of(22, 30), [(22..30, 7)]);
        assert_eq!(of(40, 41), [(40..41, 0)]);
        // From within a gap behind the second.
        assert_eq!(of(15, 21), [(15..20, 0), (20..21, 7)]);
    }
}
