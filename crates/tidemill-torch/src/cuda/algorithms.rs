//! Which algorithms libtorch takes for operations on GPUs: PyTorch's settings of the whole process.

use std::ffi::c_int;

use crate::{Error, ffi};

/// Lets libtorch use only operations that give the same bits each time
/// (`torch.use_deterministic_algorithms`), until it is dropped. An operation without such an algorithm
/// fails.
#[derive(Debug)]
pub struct DeterministicAlgorithms {
    /// The settings before, as the shim packs them.
    previous: c_int,
}

impl DeterministicAlgorithms {
    /// # Errors
    /// If libtorch raises an exception; none is known.
    pub fn enter() -> Result<Self, Error> {
        let mut previous = 0;
        // SAFETY: the shim writes a number.
        ffi::check("deterministic algorithms", unsafe { ffi::tm_enter_deterministic(&mut previous) })?;
        Ok(Self { previous })
    }
}

impl Drop for DeterministicAlgorithms {
    fn drop(&mut self) {
        // SAFETY: the call takes a number. No exception of it is known.
        let _ = ffi::check("deterministic algorithms", unsafe { ffi::tm_leave_deterministic(self.previous) });
    }
}

/// Sets how cuDNN chooses the algorithm of a convolution of a new shape: it tries up to `limit` of them
/// (`torch.backends.cudnn.benchmark` and `benchmark_limit`; 0 tries all), or without a limit takes the
/// one that its heuristics name.
///
/// # Errors
/// If libtorch raises an exception; none is known.
pub fn set_cudnn_benchmark(limit: Option<usize>) -> Result<(), Error> {
    let count = limit.map_or(0, |limit| limit.min(c_int::MAX as usize) as c_int);
    // SAFETY: the call takes two values.
    ffi::check("cudnn benchmark", unsafe { ffi::tm_set_cudnn_benchmark(limit.is_some(), count) })
}
