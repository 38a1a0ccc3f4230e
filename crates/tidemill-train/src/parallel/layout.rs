//! Where parameters lie: one behind the other in buckets, in the order in which the network uses them. A bucket is what one
//! collective moves; each rank has an equally long part of it, so that its shard is one part of every bucket. Nothing
//! here holds or moves numbers.

use std::ops::Range;

use crate::parallel::element_order::Order;

/// Elements that each parameter starts at a multiple of, for vectorised kernels: 64 bytes of bf16, 128 of f32. What is
/// between them is zero and stays zero.
const ALIGNMENT: usize = 32;

/// Where one parameter lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name in the network.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// How its elements follow each other.
    pub order: Order,
    /// Its bucket.
    pub bucket: usize,
    /// Its first element in the bucket.
    pub offset: usize,
}

/// What is done with a parameter. Those of a bucket are treated alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// It stays as it is.
    pub frozen: bool,
    /// Its working weights are f32, whatever the others' are.
    pub f32: bool,
}

/// Parameters that are communicated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The parameters in it, in order.
    pub slots: Vec<usize>,
    /// Its elements, a multiple of the number of parts.
    pub length: usize,
    /// Of each of them.
    pub treatment: Treatment,
}

/// The layout of all parameters of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: Vec<Slot>,
    buckets: Vec<Bucket>,
    parts: usize,
}

/// A stretch of one parameter that lies in a rank's part of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which parameter.
    pub slot: usize,
    /// Which of its elements, counted in its order.
    pub elements: Range<usize>,
    /// Where the first of them is in the part.
    pub at: usize,
}

impl Slot {
    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().map(|n| usize::try_from(*n).unwrap_or(0)).product()
    }

    /// Its elements in the bucket.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.numel()
    }
}

impl Bucket {
    /// The elements of it that have gradients: all or none.
    pub fn trained_length(&self) -> usize {
        if self.treatment.frozen { 0 } else { self.length }
    }
}

impl Layout {
    /// Lays parameters out in their order, in buckets that are cut into so many parts. A bucket has as many parameters
    /// of one treatment as fit into `bucket_elements`, and at least one. `treatment` says what is done with one of that name.
    pub fn new(
        parameters: impl IntoIterator<Item = (String, Vec<i64>)>,
        parts: usize,
        bucket_elements: usize,
        treatment: impl Fn(&str) -> Treatment,
    ) -> Self {
        let (mut slots, mut buckets): (Vec<Slot>, Vec<Bucket>) = (Vec::new(), Vec::new());
        for (name, shape) in parameters {
            let treatment = treatment(&name);
            let mut slot = Slot { name, shape, order: Order::RowMajor, bucket: 0, offset: 0 };
            let length = slot.numel().next_multiple_of(ALIGNMENT);
            // The one that is being filled with its like.
            let open = buckets.iter().rposition(|bucket| bucket.treatment == treatment);
            slot.bucket = match open.filter(|open| buckets[*open].length + length <= bucket_elements) {
                Some(open) => open,
                None => {
                    buckets.push(Bucket { slots: Vec::new(), length: 0, treatment });
                    buckets.len() - 1
                }
            };
            let bucket = &mut buckets[slot.bucket];
            slot.offset = bucket.length;
            bucket.length += length;
            bucket.slots.push(slots.len());
            slots.push(slot);
        }
        for bucket in &mut buckets {
            bucket.length = bucket.length.next_multiple_of(parts * ALIGNMENT);
        }
        Self { slots, buckets, parts }
    }

    /// With parameters, by their number, in these orders.
    pub fn ordered(mut self, order: impl Fn(usize) -> Order) -> Self {
        self.slots.iter_mut().enumerate().for_each(|(i, slot)| slot.order = order(i));
        self
    }

    /// The parameters, in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The buckets, in order.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Parts of each bucket.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// The elements of a bucket that are in a part.
    pub fn part(&self, bucket: usize, part: usize) -> Range<usize> {
        let length = self.buckets[bucket].length / self.parts;
        part * length..(part + 1) * length
    }

    /// The parameters' stretches in one part of a bucket.
    pub fn pieces(&self, bucket: usize, part: usize) -> impl Iterator<Item = Piece> {
        let range = self.part(bucket, part);
        self.buckets[bucket].slots.iter().filter_map(move |slot| {
            let slot = *slot;
            let own = self.slots[slot].range();
            let (start, end) = (own.start.max(range.start), own.end.min(range.end));
            let elements = start.checked_sub(own.start)?..end.checked_sub(own.start)?;
            (start < end).then(|| Piece { slot, elements, at: start - range.start })
        })
    }

    /// What lies between the parameters of a bucket, and behind them.
    pub fn gaps(&self, bucket: usize) -> impl Iterator<Item = Range<usize>> {
        let Bucket { slots, length, .. } = &self.buckets[bucket];
        let ends = slots.iter().map(|slot| self.slots[*slot].range().end);
        let starts = slots.iter().skip(1).map(|slot| self.slots[*slot].offset).chain([*length]);
        ends.zip(starts).map(|(end, start)| end..start).filter(|gap| !gap.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn named(sizes: &[i64]) -> impl Iterator<Item = (String, Vec<i64>)> {
        sizes.iter().zip(0..).map(|(size, i)| (format!("p{i}"), vec![*size]))
    }

    fn layout(sizes: &[i64], parts: usize, bucket_elements: usize) -> Layout {
        Layout::new(named(sizes), parts, bucket_elements, |_| Treatment::default())
    }

    #[test]
    fn buckets_have_parameters_of_one_treatment() {
        let treatment = |name: &str| Treatment { frozen: name == "p1" || name == "p2", f32: name == "p3" };
        let layout = Layout::new(named(&[8; 7]), 1, 64, treatment);
        let buckets: Vec<_> = layout.buckets().iter().map(|b| (&b.slots[..], b.treatment)).collect();
        let (frozen, f32) = (treatment("p1"), treatment("p3"));
        let plain = Treatment::default();
        let expected: [(&[usize], _); 4] =
            [(&[0, 4], plain), (&[1, 2], frozen), (&[3], f32), (&[5, 6], plain)];
        assert_eq!(buckets, expected);
        let places: Vec<_> = layout.slots().iter().map(|slot| (slot.bucket, slot.offset)).collect();
        assert_eq!(places, [(0, 0), (1, 0), (1, 32), (2, 0), (0, 32), (3, 0), (3, 32)]);
    }

    #[test]
    fn parameters_fill_buckets_in_order() {
        let layout = layout(&[40, 32, 1, 500, 64], 3, 128);
        let slots: Vec<_> = layout.slots().iter().map(|slot| (slot.bucket, slot.offset)).collect();
        assert_eq!(slots, [(0, 0), (0, 64), (0, 96), (1, 0), (2, 0)]);
        let lengths: Vec<_> = layout.buckets().iter().map(|bucket| bucket.length).collect();
        assert_eq!(lengths, [192, 576, 96], "multiples of three parts of 32");
        assert_eq!(layout.gaps(0).collect::<Vec<_>>(), [40..64, 97..192]);
        let pieces: Vec<_> = layout.pieces(0, 1).collect();
        assert_eq!(
            pieces,
            [Piece { slot: 1, elements: 0..32, at: 0 }, Piece { slot: 2, elements: 0..1, at: 32 }]
        );
        assert_eq!(layout.pieces(0, 2).count(), 0, "a part of nothing but padding");
    }

    proptest! {
        #[test]
        fn the_parts_of_all_ranks_have_each_element_once(
            sizes in vec(1i64..300, 1..12), parts in 1usize..8, bucket_elements in 0usize..600,
        ) {
            let layout = layout(&sizes, parts, bucket_elements);
            let mut seen: Vec<Vec<u32>> = sizes.iter().map(|size| vec![0; *size as usize]).collect();
            let buckets = 0..layout.buckets().len();
            for (bucket, part) in buckets.clone().flat_map(|b| (0..parts).map(move |p| (b, p))) {
                for Piece { slot, elements, at } in layout.pieces(bucket, part) {
                    let offset = layout.slots()[slot].offset + elements.start;
                    prop_assert_eq!(layout.part(bucket, part).start + at, offset);
                    seen[slot][elements].iter_mut().for_each(|count| *count += 1);
                }
            }
            prop_assert!(seen.iter().flatten().all(|count| *count == 1));
            let used: usize = sizes.iter().map(|size| *size as usize).sum();
            let gaps: usize = buckets.clone().flat_map(|b| layout.gaps(b)).map(|gap| gap.len()).sum();
            let length: usize = layout.buckets().iter().map(|bucket| bucket.length).sum();
            prop_assert_eq!(used + gaps, length);
            // Which parameters are together does not depend on the number of ranks.
            let alone: Vec<_> = Layout::new(named(&sizes), 1, bucket_elements, |_| Treatment::default()).buckets.into_iter().map(|b| b.slots).collect();
            prop_assert_eq!(alone, layout.buckets.into_iter().map(|b| b.slots).collect::<Vec<_>>());
        }
    }
}
