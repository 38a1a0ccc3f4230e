//! Shard units: parts of a network whose weights are whole on a rank only while they run, as in FSDP's `FULL_SHARD`.

/// The sizes of a network's weights, in elements or bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitSizes {
    /// Weights of no unit. They are always there.
    pub always: u64,
    /// The weights of each unit, in the order in which a forward pass uses them.
    pub units: Vec<u64>,
}

impl UnitSizes {
    /// The most that is there at a time: while a unit runs, the next one is gathered.
    pub fn resident(&self) -> u64 {
        let next = self.units.iter().skip(1).chain([&0]);
        self.always + self.units.iter().zip(next).map(|(unit, next)| unit + next).max().unwrap_or(0)
    }

    /// What is gathered in a step of so many micro-batches: each unit for the forward and for the backward pass. The
    /// last unit is still there when the backward pass starts, and the first one when the next forward pass does. With
    /// frozen units at the start it is less: no backward pass goes through them.
    pub fn gathered(&self, micro_batches: u64) -> u64 {
        let [first, last] = [self.units.first(), self.units.last()].map(|unit| unit.copied().unwrap_or(0));
        let all = 2 * micro_batches * self.units.iter().sum::<u64>();
        self.always + all - micro_batches * last - (micro_batches - 1) * first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_units_are_there_at_a_time() {
        let sizes = UnitSizes { always: 5, units: vec![10, 30, 20, 1] };
        assert_eq!(sizes.resident(), 55);
        assert_eq!(UnitSizes { always: 5, units: vec![] }.resident(), 5);
        assert_eq!(UnitSizes { always: 5, units: vec![7] }.resident(), 12);
    }

    #[test]
    fn units_are_gathered_in_both_directions() {
        let sizes = UnitSizes { always: 5, units: vec![10, 30, 20] };
        assert_eq!(sizes.gathered(1), 5 + 60 + 40);
        // The second forward pass has the first unit.
        assert_eq!(sizes.gathered(2), 5 + 60 + 40 + 50 + 40);
    }
}
