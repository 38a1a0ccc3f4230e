//! The shim's C functions (`shim/`), and how their error texts become [`Error`].

use crate::Error;
use crate::error::strip_backtrace;
use std::ffi::{CStr, c_char, c_double, c_int, c_ulonglong, c_void};
use tch::Tensor;
use torch_sys::C_tensor;

unsafe extern "C" {
    fn tm_free_error(text: *mut c_char);
    pub fn tm_load_cuda(loaded: *mut bool) -> *mut c_char;
    pub fn tm_cuda_symbol(name: *const c_char, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_cuda_exchange_device(index: c_int, previous: *mut c_int) -> *mut c_char;
    pub fn tm_exchange_cudnn_attention(enabled: bool, previous: *mut bool) -> *mut c_char;
    pub fn tm_enter_deterministic(previous: *mut c_int) -> *mut c_char;
    pub fn tm_leave_deterministic(previous: c_int) -> *mut c_char;
    pub fn tm_set_cudnn_benchmark(enabled: bool, limit: c_int) -> *mut c_char;
    pub fn tm_cuda_current_stream(index: c_int, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_cuda_enter_side_stream(index: c_int, previous: *mut i64) -> *mut c_char;
    pub fn tm_cuda_leave_side_stream(index: c_int, previous: i64) -> *mut c_char;
    pub fn tm_cuda_event_record(index: c_int, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_cuda_event_synchronize(event: *mut c_void) -> *mut c_char;
    pub fn tm_cuda_event_delete(event: *mut c_void);
    pub fn tm_cuda_empty_cache() -> *mut c_char;
    pub fn tm_cuda_max_memory_allocated(index: c_int, out: *mut i64) -> *mut c_char;
    pub fn tm_cuda_reset_peak_memory(index: c_int) -> *mut c_char;
    pub fn tm_cuda_memory(index: c_int, allocated: *mut i64, total: *mut i64) -> *mut c_char;
    pub fn tm_cuda_graph_new_pool(out: *mut c_ulonglong) -> *mut c_char;
    pub fn tm_cuda_graph_capture_begin(
        index: c_int,
        pool: *const c_ulonglong,
        out: *mut *mut c_void,
    ) -> *mut c_char;
    pub fn tm_cuda_graph_capture_end(graph: *mut c_void) -> *mut c_char;
    pub fn tm_cuda_graph_replay(graph: *mut c_void) -> *mut c_char;
    pub fn tm_cuda_graph_delete(graph: *mut c_void);
    pub fn tm_all_reduce(
        input: *mut C_tensor,
        op: *const c_char,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_reduce_scatter(
        input: *mut C_tensor,
        op: *const c_char,
        world_size: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_all_gather(
        input: *mut C_tensor,
        world_size: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_all_gather_into(
        input: *mut C_tensor,
        output: *mut C_tensor,
        world_size: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_broadcast(
        tensor: *mut C_tensor,
        source_rank: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_exchange(
        tensor: *mut C_tensor,
        peer: i64,
        sends_first: bool,
        group: *const c_char,
    ) -> *mut c_char;
    pub fn tm_wait_tensor(pending: *mut C_tensor, out: *mut *mut C_tensor) -> *mut c_char;
    pub fn tm_fused_adamw(
        param: *mut C_tensor,
        grad: *mut C_tensor,
        exp_avg: *mut C_tensor,
        exp_avg_sq: *mut C_tensor,
        step: *mut C_tensor,
        lr: *mut C_tensor,
        beta1: c_double,
        beta2: c_double,
        weight_decay: c_double,
        eps: c_double,
        grad_scale: *mut C_tensor,
        skip: *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_onednn_linear(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_register_grad_hook(
        param: *mut C_tensor,
        context: *mut c_void,
        call: extern "C" fn(*mut c_void, *mut C_tensor, *mut c_char, usize) -> bool,
        drop: extern "C" fn(*mut c_void),
    ) -> *mut c_char;
    pub fn tm_remove_grad_hook(param: *mut C_tensor) -> *mut c_char;
    pub fn tm_tensor_from_impl(address: *mut c_void, out: *mut *mut C_tensor) -> *mut c_char;
    pub fn tm_pin_memory(tensor: *mut C_tensor, out: *mut *mut C_tensor) -> *mut c_char;
    pub fn tm_to_dlpack(tensor: *mut C_tensor, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_set_cpu_allocator(
        allocate: extern "C" fn(usize) -> *mut c_void,
        free: unsafe extern "C" fn(*mut c_void),
        usable_size: unsafe extern "C" fn(*const c_void) -> usize,
    );
    pub fn tm_register_pre_backward_hook(
        output: *mut C_tensor,
        context: *mut c_void,
        call: extern "C" fn(*mut c_void, *mut C_tensor, *mut c_char, usize) -> bool,
        drop: extern "C" fn(*mut c_void),
    ) -> *mut c_char;
    pub fn tm_free_storage(tensor: *mut C_tensor) -> *mut c_char;
    pub fn tm_allocate_storage(tensor: *mut C_tensor) -> *mut c_char;
    pub fn tm_gradient_checkpoint(
        inputs: *const *mut C_tensor,
        input_count: usize,
        context: *mut c_void,
        call: extern "C" fn(
            *mut c_void,
            *const *mut C_tensor,
            usize,
            bool,
            *mut c_char,
            usize,
        ) -> *mut C_tensor,
        drop: extern "C" fn(*mut c_void),
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_attach_backward(
        outputs: *const *mut C_tensor,
        output_count: usize,
        inputs: *const *mut C_tensor,
        input_count: usize,
        saved: *const *mut C_tensor,
        saved_count: usize,
        context: *mut c_void,
        call: extern "C" fn(
            *mut c_void,
            *const *mut C_tensor,
            usize,
            *const *mut C_tensor,
            usize,
            *mut *mut C_tensor,
            *mut c_char,
            usize,
        ) -> bool,
        drop: extern "C" fn(*mut c_void),
    ) -> *mut c_char;
    pub fn tm_foreach_norm(tensors: *mut *mut C_tensor, count: usize, out: *mut *mut C_tensor)
    -> *mut c_char;
    pub fn tm_parallel_for(
        name: *const c_char,
        count: usize,
        context: *mut c_void,
        call: extern "C" fn(*mut c_void, usize, usize),
    ) -> *mut c_char;
    pub fn tm_profiler_start(with_cuda: bool) -> *mut c_char;
    pub fn tm_profiler_enter(name: *const c_char) -> *mut c_void;
    pub fn tm_profiler_leave(range: *mut c_void);
    pub fn tm_profiler_stop(path: *const c_char) -> *mut c_char;
}

/// Turns the result of a shim function (null, or an error text to free) into a `Result`.
///
/// # Errors
/// If there is an error text.
pub fn check(operation: &'static str, error: *mut c_char) -> Result<(), Error> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a result of the shim that is not null is a NUL-terminated string from strdup, ours
    // until freed.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: the same string; freed once, by the library that allocated it.
    unsafe { tm_free_error(error) };
    Err(Error::Operation { operation, message: strip_backtrace(&message) })
}

/// Writes an error text into a buffer of the shim's, NUL-terminated and cut to its size.
///
/// # Safety
/// `buffer` must have room for `size` bytes, and `size` must be at least 1.
pub unsafe fn write_error(text: &str, buffer: *mut c_char, size: usize) {
    let bytes = &text.as_bytes()[..text.len().min(size.saturating_sub(1))];
    // SAFETY: as the caller promises, there is room for these bytes and the zero behind them.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, bytes.len());
        *buffer.add(bytes.len()) = 0;
    }
}

/// Runs a shim function that makes a tensor.
///
/// # Errors
/// If the function fails.
pub fn make_tensor(
    operation: &'static str,
    call: impl FnOnce(*mut *mut C_tensor) -> *mut c_char,
) -> Result<Tensor, Error> {
    let mut out = std::ptr::null_mut();
    check(operation, call(&mut out))?;
    // SAFETY: on success the shim stored a heap-allocated at::Tensor, which `Tensor` now owns.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// The pointer by which the shim takes a tensor. It borrows the tensor, and changes it through
/// libtorch's shared storage only.
pub fn as_raw(tensor: &Tensor) -> *mut C_tensor {
    tensor.as_ptr().cast_mut()
}
