//! A sequence of a GPU's work that is recorded once and then started as a whole (CUDA graphs): the host no longer tells it each kernel,
//! of which a training step has thousands.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::ptr::null_mut;

use crate::cuda::OnDevice;
use crate::{Error, ffi};

/// Has what this thread does on a GPU go to a stream of its own, until it is dropped: the default stream cannot be recorded. What is
/// recorded is the stream of the device that is this thread's.
#[derive(Debug)]
pub struct SideStream {
    device: c_int,
    before: i64,
    _on_device: OnDevice,
}

impl SideStream {
    /// Once the GPU has done all that it has to.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn enter(device: usize) -> Result<Self, Error> {
        let device = device as c_int;
        let mut stream = Self { device, before: 0, _on_device: OnDevice::enter(device)? };
        // SAFETY: the shim writes a number.
        ffi::check("own stream", unsafe { ffi::tm_gpu_own_stream(stream.device, &mut stream.before) })?;
        Ok(stream)
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        // SAFETY: the stream was there before. Where the GPU has failed, there is nobody to tell.
        let _ = ffi::check("stream", unsafe { ffi::tm_gpu_back_to_stream(self.device, self.before) });
    }
}

/// Memory that recorded sequences have between them. They use it in turn, so that what one leaves there is gone with another's next
/// start.
#[derive(Clone, Copy, Debug)]
pub struct GraphMemoryPool([c_ulonglong; 2]);

impl GraphMemoryPool {
    /// None so far.
    ///
    /// # Errors
    /// If libtorch's CUDA half is not loaded.
    pub fn new() -> Result<Self, Error> {
        let mut id = [0; 2];
        // SAFETY: the shim writes two numbers.
        ffi::check("graph memory", unsafe { ffi::tm_graph_new_pool(id.as_mut_ptr()) })?;
        Ok(Self(id))
    }
}

/// A recorded sequence.
#[derive(Debug)]
pub struct CudaGraph(*mut c_void);

// SAFETY: it may be used on any thread, by one at a time.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Records what `work` has a GPU do, on this thread, which has its [own stream](SideStream), and in backward passes that it waits for.
    /// None of it is done yet. `work` may not wait for the GPU, and every tensor that it gives has its values only after
    /// [`replay`](Self::replay), until the next one of this memory.
    ///
    /// # Errors
    /// Of `work`, and if it had the GPU do what cannot be recorded. Then nothing was done.
    pub fn capture<T, E: From<Error>>(
        device: usize,
        memory: GraphMemoryPool,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let mut graph = Self(null_mut());
        // SAFETY: two numbers are read; the shim makes a graph.
        let begun = unsafe { ffi::tm_graph_begin(device as c_int, memory.0.as_ptr(), &mut graph.0) };
        ffi::check("graph", begun)?;
        let result = work();
        // SAFETY: the graph was begun just now.
        let ended = ffi::check("graph", unsafe { ffi::tm_graph_end(graph.0) });
        // What `work` says is the cause.
        let value = result?;
        ended?;
        Ok((graph, value))
    }

    /// Has the GPU do what was recorded, after what it has been told before.
    ///
    /// # Errors
    /// If the GPU fails.
    pub fn replay(&self) -> Result<(), Error> {
        // SAFETY: the graph is complete.
        ffi::check("graph", unsafe { ffi::tm_graph_replay(self.0) })
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it is the shim's, and nobody has it any more.
            unsafe { ffi::tm_graph_drop(self.0) };
        }
    }
}
