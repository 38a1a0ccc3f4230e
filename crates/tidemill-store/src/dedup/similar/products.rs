//! Products of embeddings.

use half::f16;
use ndarray::ArrayView2;

pub fn to_f32(values: &[f16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// The dot products of each row of `a` [n, width] with each row of `b` [m, width]: [n, m].
pub fn dot_products(a: &[f32], b: &[f32], width: usize) -> Vec<f32> {
    let shape = |values: &[f32]| (values.len() / width, width);
    match (ArrayView2::from_shape(shape(a), a), ArrayView2::from_shape(shape(b), b)) {
        (Ok(a), Ok(b)) => a.dot(&b.t()).into_raw_vec_and_offset().0,
        // Never: both are whole rows.
        _ => Vec::new(),
    }
}
