//! Tensors of values that lie in memory which is not libtorch's, and the values of tensors for those who know nothing of these.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use tch::{Cuda, Device, Kind, Tensor};

use crate::{Error, ffi, guard};

/// A new tensor on `device` and in `kind`, of row-major little-endian values of another kind. They are read once, from where
/// they lie; `bytes` may be used again when it returns.
///
/// # Panics
/// If `bytes` has not just the values of the shape, aligned as their kind is, and where tch would: run it in
/// [`guard`](crate::guard()).
pub fn tensor_from_bytes(bytes: &[u8], stored: Kind, shape: &[i64], kind: Kind, device: Device) -> Tensor {
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
    match pinned(&borrowed, device) {
        // What is copied has fewer bytes than what it becomes there, most of the time.
        Some(pinned) => upload_pinned(&pinned, device).to_kind(kind),
        None => borrowed.to_device_(device, kind, false, true),
    }
}

/// A tensor of the host on `device`, or itself where it is there. A GPU copies it by itself when its turn comes: nobody waits
/// for what the GPU still has to do.
///
/// # Panics
/// Where tch would: run it in [`guard`](crate::guard()).
pub fn upload(tensor: &Tensor, device: Device) -> Tensor {
    pinned(tensor, device).map_or_else(|| tensor.to_device(device), |pinned| upload_pinned(&pinned, device))
}

/// A copy in memory that the GPU can read by itself, which libtorch keeps until it has; none if it is for no GPU, or there is no such
/// memory left, where a copy from other memory is slower and right as well.
fn pinned(tensor: &Tensor, device: Device) -> Option<Tensor> {
    // SAFETY: the tensor lives until the call returns.
    let pin = || ffi::make("pin", |out| unsafe { ffi::tm_pin(tensor.as_ptr().cast_mut(), out) });
    device.is_cuda().then(pin)?.ok()
}

fn upload_pinned(pinned: &Tensor, device: Device) -> Tensor {
    pinned.to_device_(device, pinned.kind(), true, false)
}

/// A copy of a tensor's values in memory of the host, row-major and little-endian. What comes from a GPU lies in pinned memory, to
/// which the GPU copies by itself; libtorch keeps such memory for the next copy.
#[derive(Debug)]
pub struct HostCopy(Tensor);

impl HostCopy {
    /// Copies; waits for the device.
    ///
    /// # Errors
    /// If memory does not suffice, or the device fails.
    pub fn new(tensor: &Tensor) -> Result<Self, Error> {
        guard(|| {
            // Without blocking, libtorch chooses pinned memory by itself.
            let copy = tensor.detach().contiguous().to_device_(Device::Cpu, tensor.kind(), true, true);
            if let Device::Cuda(device) = tensor.device() {
                Cuda::synchronize(device as i64);
            }
            Self(copy)
        })
    }
}

impl AsRef<[u8]> for HostCopy {
    fn as_ref(&self) -> &[u8] {
        let bytes = self.0.numel() * self.0.kind().elt_size_in_bytes();
        if bytes == 0 {
            return &[];
        }
        // SAFETY: the values lie there one behind the other, all have come, and nobody else has the tensor.
        unsafe { std::slice::from_raw_parts(self.0.data_ptr().cast(), bytes) }
    }
}

/// A copy of a tensor's values on its way to the host: a GPU makes it when its turn comes, and nobody else's work waits for it.
#[derive(Debug)]
pub struct Download {
    copy: Tensor,
    /// What the GPU does next, if there is one.
    mark: Option<Mark>,
}

/// A place in what a GPU has to do.
#[derive(Debug)]
struct Mark(*mut c_void);

// SAFETY: it may be used on any thread, by one at a time.
unsafe impl Send for Mark {}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: it is the shim's, and nobody has it any more.
        unsafe { ffi::tm_gpu_drop_mark(self.0) };
    }
}

impl Download {
    /// Begins it. The tensor may be changed afterwards.
    ///
    /// # Errors
    /// If memory does not suffice, or the device fails.
    pub fn start(tensor: &Tensor) -> Result<Self, Error> {
        // Without blocking, libtorch chooses pinned memory by itself.
        let copy = guard(|| tensor.detach().to_device_(Device::Cpu, tensor.kind(), true, true))?;
        let mark = match tensor.device() {
            Device::Cuda(device) => {
                let mut mark = Mark(null_mut());
                // SAFETY: the shim makes a mark.
                ffi::check("mark", unsafe { ffi::tm_gpu_mark(device as c_int, &mut mark.0) })?;
                Some(mark)
            }
            _ => None,
        };
        Ok(Self { copy, mark })
    }

    /// The tensor on the host, once it is there.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait(&self) -> Result<&Tensor, Error> {
        if let Some(mark) = &self.mark {
            // SAFETY: the mark is there.
            ffi::check("download", unsafe { ffi::tm_gpu_reach(mark.0) })?;
        }
        Ok(&self.copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_converted_and_the_memory_is_free_again() {
        let mut values: Vec<i32> = (0..12).collect();
        let bytes = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let mut memory = bytes(&values);
        for kind in [Kind::Int, Kind::Int64, Kind::Float] {
            let tensor = tensor_from_bytes(&memory, Kind::Int, &[2, 3, 2], kind, Device::Cpu);
            memory.fill(9);
            let expected = Tensor::arange(12, (kind, Device::Cpu)).reshape([2, 3, 2]);
            assert!(tensor.equal(&expected) && tensor.kind() == kind);
            memory.copy_from_slice(&bytes(&values));
        }
        values.truncate(11);
        let few = guard(|| tensor_from_bytes(&bytes(&values), Kind::Int, &[2, 3, 2], Kind::Int, Device::Cpu));
        assert!(few.unwrap_err().to_string().contains("bytes of"), "too few are refused");
    }

    /// The CPU and, if there is one, a GPU.
    fn devices() -> Vec<Device> {
        if crate::load_cuda().unwrap() && Cuda::is_available() {
            return vec![Device::Cpu, Device::Cuda(0)];
        }
        eprintln!("skipped for GPUs: there is none");
        vec![Device::Cpu]
    }

    #[test]
    fn what_is_uploaded_has_the_values_that_were_there() {
        for device in devices() {
            let mut uploaded = Vec::new();
            // More than once, for memory is used again.
            for first in 0..8 {
                let mut values: Vec<i32> = (first..first + 1000).collect();
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                uploaded.push((first, tensor_from_bytes(&bytes, Kind::Int, &[1000], Kind::Float, device)));
                let tensor = Tensor::from_slice(&values);
                uploaded.push((first, upload(&tensor, device)));
                values.fill(0);
            }
            for (first, tensor) in uploaded {
                assert_eq!(tensor.device(), device);
                let expected = Tensor::from_slice(&(first..first + 1000).collect::<Vec<i32>>());
                assert!(tensor.to_device(Device::Cpu).to_kind(Kind::Int).equal(&expected));
            }
        }
    }

    #[test]
    fn what_is_downloaded_has_the_values_that_were_there() {
        for device in devices() {
            let mut tensor = Tensor::arange(1000, (Kind::Float, device));
            let downloads = [0, 1, 2].map(|_| {
                let download = Download::start(&tensor).unwrap();
                tensor += 1;
                download
            });
            for (first, download) in downloads.iter().enumerate() {
                let expected = Tensor::arange(1000, (Kind::Float, Device::Cpu)) + first as i64;
                assert!(download.wait().unwrap().equal(&expected), "{device:?}, {first}");
            }
        }
    }

    #[test]
    fn a_copy_on_the_host_has_the_values_that_were_there() {
        for device in devices() {
            let mut tensor = Tensor::arange(12, (Kind::Float, device)).reshape([3, 4]).transpose(0, 1);
            let copy = HostCopy::new(&tensor).unwrap();
            let _ = tensor.fill_(0.0);
            let expected = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11].map(|value| (value as f32).to_le_bytes());
            assert_eq!(copy.as_ref(), expected.concat());
            assert!(!device.is_cuda() || copy.0.is_pinned(device));
        }
        assert!(HostCopy::new(&Tensor::zeros([0], (Kind::Float, Device::Cpu))).unwrap().as_ref().is_empty());
    }
}
