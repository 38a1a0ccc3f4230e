//! PyTorch's profiler (Kineto): every operation of libtorch with its shapes and times, on the GPU every kernel.

use std::ffi::CString;
use std::marker::PhantomData;
use std::mem::forget;
use std::path::Path;

use crate::{Error, ffi};

/// A profile that is being taken; dropped without being saved, it is given up. It is of one thread, and of those that work
/// for it.
#[derive(Debug)]
pub struct Profiler(PhantomData<*const ()>);

impl Profiler {
    /// Begins one. `cuda`: with the GPU's kernels.
    ///
    /// # Errors
    /// If another one is being taken, or libtorch cannot take any.
    pub fn start(cuda: bool) -> Result<Self, Error> {
        // SAFETY: the shim takes a bool, and libtorch keeps what it notes.
        ffi::check("start_profile", unsafe { ffi::tm_start_profile(cuda) })?;
        Ok(Self(PhantomData))
    }

    /// Ends it and writes a Chrome trace, as `torch.profiler` does.
    ///
    /// # Errors
    /// If libtorch cannot write the file.
    pub fn save(self, path: &Path) -> Result<(), Error> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| Error::Torch(format!("{} has a zero byte", path.display())))?;
        forget(self);
        // SAFETY: the path lives until the call returns.
        ffi::check("end_profile", unsafe { ffi::tm_end_profile(path.as_ptr()) })
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // SAFETY: a null pointer is no path.
        let _ = ffi::check("end_profile", unsafe { ffi::tm_end_profile(std::ptr::null()) });
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn a_trace_names_the_operations() {
        let path = std::env::temp_dir().join(format!("tidemill-profile-{}.json", std::process::id()));
        drop(Profiler::start(false).unwrap());
        let profile = Profiler::start(false).unwrap();
        let x = Tensor::ones([4, 4], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        x.matmul(&x).sum(Kind::Float).backward();
        profile.save(&path).unwrap();
        let trace = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for name in ["\"aten::mm\"", "MmBackward0"] {
            assert!(trace.contains(name), "{name} is not in the trace");
        }
    }
}
