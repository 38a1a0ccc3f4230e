//! PyTorch's profiler (Kineto): every operation of libtorch with its shapes and times, on a GPU every
//! kernel, and all memory that tensors take and give back.

use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::mem::forget;
use std::path::Path;

use crate::{Error, ffi};

/// A running profiler. It belongs to one thread and the threads that work for it. Dropped without
/// [`save`](Self::save), it discards what it has recorded.
#[derive(Debug)]
pub struct Profiler(PhantomData<*const ()>);

impl Profiler {
    /// Starts profiling; `with_cuda` includes the GPU's kernels.
    ///
    /// # Errors
    /// If another profiler is running, or libtorch cannot profile.
    pub fn start(with_cuda: bool) -> Result<Self, Error> {
        // SAFETY: the shim takes a bool, and libtorch owns what it records.
        ffi::check("start_profile", unsafe { ffi::tm_profiler_start(with_cuda) })?;
        Ok(Self(PhantomData))
    }

    /// Stops profiling and writes a Chrome trace, as `torch.profiler` does.
    ///
    /// # Errors
    /// If libtorch cannot write the file.
    pub fn save(self, path: &Path) -> Result<(), Error> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| Error::Torch(format!("{} has a zero byte", path.display())))?;
        forget(self);
        // SAFETY: the path lives until the call returns.
        ffi::check("end_profile", unsafe { ffi::tm_profiler_stop(path.as_ptr()) })
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // SAFETY: a null pointer stands for no path.
        let _ = ffi::check("end_profile", unsafe { ffi::tm_profiler_stop(std::ptr::null()) });
    }
}

/// A range with a name in the trace, until it is dropped. Without a running profiler it does nothing.
#[derive(Debug)]
pub struct ProfilerRange(*mut c_void);

impl ProfilerRange {
    /// Begins a range. It belongs to this thread.
    pub fn enter(name: &'static CStr) -> Self {
        // SAFETY: the name lives as long as the process.
        Self(unsafe { ffi::tm_profiler_enter(name.as_ptr()) })
    }
}

impl Drop for ProfilerRange {
    fn drop(&mut self) {
        // SAFETY: the range is this object's, and may be null.
        unsafe { ffi::tm_profiler_leave(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::install_cpu_allocator;

    #[test]
    fn trace_has_operations_of_both_passes_ranges_and_memory() {
        install_cpu_allocator();
        let path = std::env::temp_dir().join(format!("tidemill-profile-{}.json", std::process::id()));
        drop(Profiler::start(false).unwrap());
        let profiler = Profiler::start(false).unwrap();
        let range = ProfilerRange::enter(c"the range");
        let x = Tensor::ones([4, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        x.matmul(&x).sum(Kind::Float).backward();
        drop(range);
        profiler.save(&path).unwrap();
        let trace = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for name in ["\"aten::mm\"", "MmBackward0", "\"the range\"", "\"Total Allocated\""] {
            assert!(trace.contains(name), "{name} is not in the trace");
        }
    }
}
