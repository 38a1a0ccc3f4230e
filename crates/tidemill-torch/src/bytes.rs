//! Tensors of values that lie in memory which is not libtorch's.

use tch::{Device, Kind, Tensor};

/// A new tensor on `device` and in `kind`, of row-major little-endian values of another kind. They are read once, from where
/// they lie; `bytes` may be used again when it returns.
///
/// # Panics
/// If `bytes` has not just the values of the shape, aligned as their kind is, and where tch would: run it in
/// [`guard`](crate::guard()).
pub fn tensor_of(bytes: &[u8], stored: Kind, shape: &[i64], kind: Kind, device: Device) -> Tensor {
    let (size, elements) = (stored.elt_size_in_bytes(), shape.iter().product::<i64>());
    assert_eq!(bytes.len() as i64, elements * size as i64, "bytes of {shape:?}");
    assert!((bytes.as_ptr() as usize).is_multiple_of(size), "values are aligned");
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    // SAFETY: as long as `borrowed` lives, which is to the end of this function, so does `bytes`, which has all of its
    // values; the result is a copy.
    let borrowed = unsafe { Tensor::from_blob(bytes.as_ptr(), shape, &strides, stored, Device::Cpu) };
    borrowed.to_device_(device, kind, false, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard;

    #[test]
    fn values_are_converted_and_the_memory_is_free_again() {
        let mut values: Vec<i32> = (0..12).collect();
        let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let mut memory = bytes(&values);
        for kind in [Kind::Int, Kind::Int64, Kind::Float] {
            let tensor = tensor_of(&memory, Kind::Int, &[2, 3, 2], kind, Device::Cpu);
            memory.fill(9);
            let expected = Tensor::arange(12, (kind, Device::Cpu)).reshape([2, 3, 2]);
            assert!(tensor.equal(&expected) && tensor.kind() == kind);
            memory.copy_from_slice(&bytes(&values));
        }
        values.truncate(11);
        let few = guard(|| tensor_of(&bytes(&values), Kind::Int, &[2, 3, 2], Kind::Int, Device::Cpu));
        assert!(few.unwrap_err().to_string().contains("bytes of"), "too few are refused");
    }
}
