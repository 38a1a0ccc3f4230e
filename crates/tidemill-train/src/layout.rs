//! Where parameters lie: one behind the other in buckets, in the order in which the network uses them. A bucket is what one
//! collective moves; each rank has an equally long part of it, so that its shard is one part of every bucket. Nothing
//! here holds or moves numbers.

use std::ops::Range;

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
    /// Its bucket.
    pub bucket: usize,
    /// Its first element in the bucket.
    pub offset: usize,
}

/// Parameters that are communicated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The parameters in it, which are consecutive ones.
    pub slots: Range<usize>,
    /// Its elements, a multiple of the number of parts.
    pub length: usize,
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
    /// Which of its elements, counted row-major.
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

impl Layout {
    /// Lays parameters out in their order, in buckets that are cut into so many parts. A bucket has as many parameters
    /// as fit into `bucket_elements`, and at least one.
    pub fn new(
        parameters: impl IntoIterator<Item = (String, Vec<i64>)>,
        parts: usize,
        bucket_elements: usize,
    ) -> Self {
        let (mut slots, mut buckets): (Vec<Slot>, Vec<Bucket>) = (Vec::new(), Vec::new());
        for (name, shape) in parameters {
            let mut slot = Slot { name, shape, bucket: 0, offset: 0 };
            let (at, end) = (slots.len(), slot.numel().next_multiple_of(ALIGNMENT));
            match buckets.last_mut().filter(|bucket| bucket.length + end <= bucket_elements) {
                Some(bucket) => {
                    slot.offset = bucket.length;
                    bucket.length += end;
                    bucket.slots.end = at + 1;
                }
                None => buckets.push(Bucket { slots: at..at + 1, length: end }),
            }
            slot.bucket = buckets.len() - 1;
            slots.push(slot);
        }
        for bucket in &mut buckets {
            bucket.length = bucket.length.next_multiple_of(parts * ALIGNMENT);
        }
        Self { slots, buckets, parts }
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
        self.buckets[bucket].slots.clone().filter_map(move |slot| {
            let own = self.slots[slot].range();
            let (start, end) = (own.start.max(range.start), own.end.min(range.end));
            let elements = start.checked_sub(own.start)?..end.checked_sub(own.start)?;
            (start < end).then(|| Piece { slot, elements, at: start - range.start })
        })
    }

    /// What lies between the parameters of a bucket, and behind them.
    pub fn gaps(&self, bucket: usize) -> impl Iterator<Item = Range<usize>> {
        let Bucket { slots, length } = &self.buckets[bucket];
        let ends = self.slots[slots.clone()].iter().map(|slot| slot.range().end);
        let starts = self.slots[slots.clone()].iter().skip(1).map(|slot| slot.offset).chain([*length]);
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
        Layout::new(named(sizes), parts, bucket_elements)
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
            let alone: Vec<_> = Layout::new(named(&sizes), 1, bucket_elements).buckets.into_iter().map(|b| b.slots).collect();
            prop_assert_eq!(alone, layout.buckets.into_iter().map(|b| b.slots).collect::<Vec<_>>());
        }
    }
}
