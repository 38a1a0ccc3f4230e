//! Tensors from byte slices, uploads to a GPU, and downloads to the host.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use tch::{Cuda, Device, Kind, Tensor};

use crate::ffi::{self, as_raw};
use crate::{Error, guard};

/// The values of a tensor on any device and with any strides: row-major, little-endian, as libtorch
/// runs only on such machines.
///
/// # Panics
/// Where tch would: run it in [`guard`](crate::guard()).
pub fn tensor_to_bytes(tensor: &Tensor) -> Vec<u8> {
    let flat = tensor.detach().to_device(Device::Cpu).contiguous();
    let mut bytes = vec![0; flat.numel() * flat.kind().elt_size_in_bytes()];
    flat.copy_data_u8(&mut bytes, flat.numel());
    bytes
}

/// A new tensor of `shape` on `device` in the dtype `kind`, from row-major little-endian values of
/// the dtype `stored`. `bytes` is read once, and may be used again when this returns. It may begin at
/// any address, as the body of a bucket's answer does.
///
/// # Panics
/// If `bytes` does not hold exactly the values of the shape, and where tch would: run it in
/// [`guard`](crate::guard()).
pub fn tensor_from_bytes(bytes: &[u8], stored: Kind, shape: &[i64], kind: Kind, device: Device) -> Tensor {
    let (size, elements) = (stored.elt_size_in_bytes(), shape.iter().product::<i64>());
    assert_eq!(bytes.len() as i64, elements * size as i64, "bytes of {shape:?}");
    if !(bytes.as_ptr() as usize).is_multiple_of(size) {
        return Tensor::from_data_size(bytes, shape, stored).to_device_(device, kind, false, false);
    }
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    // SAFETY: `bytes` holds all values and outlives `borrowed`, which ends with this function; the
    // result is a copy.
    let borrowed = unsafe { Tensor::from_blob(bytes.as_ptr(), shape, &strides, stored, Device::Cpu) };
    match pin_memory(&borrowed, device) {
        // Converted on the GPU: most of the time the stored values have fewer bytes.
        Some(pinned) => upload_pinned(&pinned, device).to_kind(kind),
        None => borrowed.to_device_(device, kind, false, true),
    }
}

/// Copies a tensor of the host to `device`; returns the tensor itself if it is there. A GPU copies
/// asynchronously: the host does not wait for the work that the GPU still has.
///
/// # Panics
/// Where tch would: run it in [`guard`](crate::guard()).
pub fn upload(tensor: &Tensor, device: Device) -> Tensor {
    pin_memory(tensor, device)
        .map_or_else(|| tensor.to_device(device), |pinned| upload_pinned(&pinned, device))
}

/// A copy in page-locked memory, which libtorch keeps until the GPU has read it. `None` if `device`
/// is no GPU, or no such memory is left; a copy from other memory is slower, and right as well.
fn pin_memory(tensor: &Tensor, device: Device) -> Option<Tensor> {
    // SAFETY: the tensor lives until the call returns.
    let pin = || ffi::make_tensor("pin_memory", |out| unsafe { ffi::tm_pin_memory(as_raw(tensor), out) });
    device.is_cuda().then(pin)?.ok()
}

fn upload_pinned(pinned: &Tensor, device: Device) -> Tensor {
    pinned.to_device_(device, pinned.kind(), true, false)
}

/// A copy of a tensor's values in memory of the host, as row-major little-endian bytes. A copy from
/// a GPU lies in page-locked memory, which libtorch keeps for the next copy.
#[derive(Debug)]
pub struct HostCopy(Tensor);

impl HostCopy {
    /// Copies `tensor`, and waits for its device.
    ///
    /// # Errors
    /// If memory does not suffice, or the device fails.
    pub fn new(tensor: &Tensor) -> Result<Self, Error> {
        guard(|| {
            // A copy that does not block is to page-locked memory.
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
        contiguous_bytes(&self.0)
    }
}

/// The memory of a contiguous tensor on the host, which nobody changes while it is borrowed.
fn contiguous_bytes(tensor: &Tensor) -> &[u8] {
    let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the tensor is contiguous and complete, and its owner, who is borrowed, is the only one.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), bytes) }
}

/// An asynchronous copy of a tensor's values to the host. A GPU copies behind the work that it has
/// been given before; later work does not wait for the host.
#[derive(Debug)]
pub struct Download {
    copy: Tensor,
    /// Reached when a GPU has copied; `None` for a tensor on the CPU.
    copied: Option<CudaEvent>,
}

/// A CUDA event: a point in the work of a stream.
#[derive(Debug)]
struct CudaEvent(*mut c_void);

// SAFETY: an event may be used on any thread, by one at a time.
unsafe impl Send for CudaEvent {}

impl CudaEvent {
    /// Records an event on the device's current stream.
    fn record(device: usize) -> Result<Self, Error> {
        let mut event = Self(null_mut());
        // SAFETY: the shim makes an event.
        ffi::check("event", unsafe { ffi::tm_cuda_event_record(device as c_int, &mut event.0) })?;
        Ok(event)
    }

    fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: `record` made the event.
        ffi::check("download", unsafe { ffi::tm_cuda_event_synchronize(self.0) })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: the shim made the event, and this was its only owner; the shim takes null as
        // well.
        unsafe { ffi::tm_cuda_event_delete(self.0) };
    }
}

impl Download {
    /// Starts the copy. The tensor may be changed afterwards.
    ///
    /// # Errors
    /// If memory does not suffice, or the device fails.
    pub fn start(tensor: &Tensor) -> Result<Self, Error> {
        // A copy that does not block is to page-locked memory.
        let copy = guard(|| tensor.detach().to_device_(Device::Cpu, tensor.kind(), true, true))?;
        let copied = match tensor.device() {
            Device::Cuda(device) => Some(CudaEvent::record(device)?),
            _ => None,
        };
        Ok(Self { copy, copied })
    }

    /// Waits for the copy and returns it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait(&self) -> Result<&Tensor, Error> {
        self.copied.as_ref().map_or(Ok(()), CudaEvent::synchronize)?;
        Ok(&self.copy)
    }

    /// Whether the copy has been made, because the tensor was on the CPU.
    pub fn is_complete(&self) -> bool {
        self.copied.is_none()
    }

    /// Waits for the copy of a contiguous tensor and returns its values, row-major and little-endian.
    ///
    /// # Errors
    /// If the device fails, or the tensor is not contiguous.
    pub fn wait_for_bytes(&self) -> Result<&[u8], Error> {
        let copy = self.wait()?;
        if !copy.is_contiguous() {
            return Err(Error::Torch(format!("a tensor {:?} is not contiguous", copy.size())));
        }
        Ok(contiguous_bytes(copy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_converted_and_their_memory_can_be_reused() {
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
        let shifted = [&[0], memory.as_slice()].concat();
        let tensor = tensor_from_bytes(&shifted[1..], Kind::Int, &[2, 3, 2], Kind::Int64, Device::Cpu);
        assert!(tensor.equal(&Tensor::arange(12, (Kind::Int64, Device::Cpu)).reshape([2, 3, 2])));
        values.truncate(11);
        let few = guard(|| tensor_from_bytes(&bytes(&values), Kind::Int, &[2, 3, 2], Kind::Int, Device::Cpu));
        assert!(few.unwrap_err().to_string().contains("bytes of"), "too few bytes are refused");
    }

    /// The CPU and, if there is one, a GPU.
    fn devices() -> Vec<Device> {
        if crate::load_cuda().unwrap() && Cuda::is_available() {
            return vec![Device::Cpu, Device::Cuda(0)];
        }
        eprintln!("skipped for GPUs: there is no GPU");
        vec![Device::Cpu]
    }

    #[test]
    fn uploads_have_the_values_from_before_the_source_changed() {
        for device in devices() {
            let mut uploaded = Vec::new();
            // More than once, because libtorch reuses page-locked memory.
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
    fn downloads_have_the_values_from_before_the_tensor_changed() {
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
                assert_eq!(download.wait_for_bytes().unwrap(), tensor_to_bytes(&expected));
            }
            let strided = Download::start(&tensor.reshape([10, 100]).transpose(0, 1)).unwrap();
            assert!(strided.wait_for_bytes().is_err());
        }
    }

    #[test]
    fn host_copy_is_row_major_and_keeps_its_values() {
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
