//! How rows become batches for a model: few sizes, because oneDNN, cuDNN and libtorch keep a kernel, and
//! often its workspace, for each layer and batch size that they have seen. With every remainder of
//! a unit as a size of its own, memory grew for hours.

/// Splits rows into batches of `batch_size`, and the remaining rows into batches of powers of two, the largest
/// first. Every row is computed once; padded rows would be computed for nothing.
pub(super) fn split_batches<T>(rows: &[T], batch_size: usize) -> impl Iterator<Item = &[T]> {
    let mut remaining = rows;
    std::iter::from_fn(move || {
        let size = match remaining.len() {
            0 => return None,
            rows if rows >= batch_size => batch_size,
            rows => 1 << rows.ilog2(),
        };
        let (batch, rest) = remaining.split_at(size);
        remaining = rest;
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rows_are_split_in_order_into_few_sizes() {
        let sizes = |rows: usize, batch_size: usize| -> Vec<usize> {
            let rows: Vec<usize> = (0..rows).collect();
            let batches: Vec<&[usize]> = split_batches(&rows, batch_size).collect();
            assert_eq!(batches.concat(), rows);
            batches.iter().map(|batch| batch.len()).collect()
        };
        assert!(sizes(0, 24).is_empty());
        assert_eq!(sizes(24, 24), [24]);
        assert_eq!(sizes(71, 24), [24, 24, 16, 4, 2, 1]);
        assert_eq!(sizes(3, 1), [1, 1, 1]);
        let seen: BTreeSet<usize> = (0..200).flat_map(|rows| sizes(rows, 24)).collect();
        assert_eq!(seen, BTreeSet::from([1, 2, 4, 8, 16, 24]));
    }
}
