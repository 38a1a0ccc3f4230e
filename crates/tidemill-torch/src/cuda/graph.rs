//! CUDA graphs: a GPU's work that is captured once and then started as a whole. The host no longer
//! launches each kernel, and a training step has thousands.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::ptr::null_mut;

use super::device::DeviceGuard;
use crate::{Error, ffi};

/// Sends this thread's work on a GPU to a stream other than the default stream, until it is
/// dropped: the default stream cannot be captured. A capture records the stream of the current
/// device, so the device becomes the current one as well.
#[derive(Debug)]
pub struct SideStream {
    device: c_int,
    previous: i64,
    _device_guard: DeviceGuard,
}

impl SideStream {
    /// Waits until the GPU is idle and changes to a side stream.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn enter(device: usize) -> Result<Self, Error> {
        let device = device as c_int;
        let mut stream = Self { device, previous: 0, _device_guard: DeviceGuard::enter(device)? };
        // SAFETY: the shim writes a number.
        let error = unsafe { ffi::tm_cuda_enter_side_stream(stream.device, &mut stream.previous) };
        ffi::check("side stream", error)?;
        Ok(stream)
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        // SAFETY: the stream was this thread's before. If the GPU has failed, the next call on it
        // reports that.
        let _ =
            ffi::check("side stream", unsafe { ffi::tm_cuda_leave_side_stream(self.device, self.previous) });
    }
}

/// The memory pool that several graphs share. They use it in turn: what one graph leaves there is
/// overwritten when another starts.
#[derive(Clone, Copy, Debug)]
pub struct GraphMemoryPool([c_ulonglong; 2]);

impl GraphMemoryPool {
    /// A pool without memory so far.
    ///
    /// # Errors
    /// If libtorch's CUDA half is not loaded.
    pub fn new() -> Result<Self, Error> {
        let mut id = [0; 2];
        // SAFETY: the shim writes two numbers.
        ffi::check("graph pool", unsafe { ffi::tm_cuda_graph_new_pool(id.as_mut_ptr()) })?;
        Ok(Self(id))
    }
}

/// A captured graph (`torch.cuda.CUDAGraph`).
#[derive(Debug)]
pub struct CudaGraph(*mut c_void);

// SAFETY: a graph may be used on any thread, by one at a time.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Captures the work that `work` gives to a GPU on this thread, which must be on a [side
    /// stream](SideStream), and in backward passes that it waits for. Nothing is computed yet.
    /// `work` must not wait for the GPU. Every tensor that it returns gets its values by
    /// [`replay`](Self::replay), and keeps them until the next replay of a graph of this pool.
    ///
    /// # Errors
    /// The error of `work`, or an error if `work` did what cannot be captured. Nothing was computed
    /// then.
    pub fn capture<T, E: From<Error>>(
        device: usize,
        pool: GraphMemoryPool,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let mut graph = Self(null_mut());
        // SAFETY: two numbers are read; the shim makes a graph.
        let error =
            unsafe { ffi::tm_cuda_graph_capture_begin(device as c_int, pool.0.as_ptr(), &mut graph.0) };
        ffi::check("graph", error)?;
        let result = work();
        // SAFETY: the capture was begun just now.
        let ended = ffi::check("graph", unsafe { ffi::tm_cuda_graph_capture_end(graph.0) });
        // An error of `work` is the cause of an error at the end of the capture.
        let value = result?;
        ended?;
        Ok((graph, value))
    }

    /// Starts the captured work, behind the work that the GPU has been given before.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn replay(&self) -> Result<(), Error> {
        // SAFETY: the graph is complete.
        ffi::check("graph", unsafe { ffi::tm_cuda_graph_replay(self.0) })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the shim made the graph, and this was its only owner.
            unsafe { ffi::tm_cuda_graph_delete(self.0) };
        }
    }
}
