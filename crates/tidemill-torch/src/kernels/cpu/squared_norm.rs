//! The sum of squares of many tensors in one pass over memory.

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::simd::{run_vectorised, sum};
use super::tensor_slices::as_slice;
use crate::threads::{DisjointSlices, parallel_for};
use crate::{Error, guard};

/// Elements that are summed in f32. Sums of chunks are added up in f64.
const CHUNK: usize = 4096;

/// The sum of the squares of all elements of tensors on the CPU, f32 or bf16: a scalar, f32.
///
/// # Errors
/// If memory does not suffice.
pub fn squared_norm(tensors: &[Tensor]) -> Result<Tensor, Error> {
    let tensors = guard(|| tensors.iter().map(Tensor::contiguous).collect::<Vec<_>>())?;
    let chunks: Vec<Chunk> = tensors.iter().flat_map(split_into_chunks).collect();
    let mut sums = vec![0f32; chunks.len()];
    let outputs = DisjointSlices::new(&mut sums);
    parallel_for(c"tidemill::squared_norm", chunks.len(), |range| {
        for i in range {
            // SAFETY: each chunk is in one range.
            let output = unsafe { outputs.get_mut(i..i + 1) };
            output[0] = match chunks[i] {
                Chunk::F32(values) => run_vectorised(SumOfSquares(values)),
                Chunk::Bf16(values) => run_vectorised(SumOfSquares(values)),
            };
        }
    })?;
    let sum: f64 = sums.into_iter().map(f64::from).sum();
    guard(|| Tensor::from(sum as f32))
}

#[derive(Clone, Copy)]
enum Chunk<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16]),
}

fn split_into_chunks(tensor: &Tensor) -> Vec<Chunk<'_>> {
    match tensor.kind() {
        Kind::Float => as_slice(tensor).chunks(CHUNK).map(Chunk::F32).collect(),
        _ => as_slice(tensor).chunks(CHUNK).map(Chunk::Bf16).collect(),
    }
}

struct SumOfSquares<'a, T>(&'a [T]);

impl<T: Element> NullaryFnOnce for SumOfSquares<'_, T> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        sum(self.0, |x| x * x)
    }
}
