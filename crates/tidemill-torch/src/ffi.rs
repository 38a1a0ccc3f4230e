//! The shim's C functions, and how their error texts become [`Error`].

use crate::{Error, headline};
use std::ffi::{CStr, c_char, c_double, c_int, c_ulonglong, c_void};
use tch::Tensor;
use torch_sys::C_tensor;

unsafe extern "C" {
    fn tm_free(text: *mut c_char);
    pub fn tm_load_cuda(loaded: *mut bool) -> *mut c_char;
    pub fn tm_gpu_function(name: *const c_char, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_gpu_enter(index: c_int, before: *mut c_int) -> *mut c_char;
    pub fn tm_attention_by_cudnn(may: bool, before: *mut bool) -> *mut c_char;
    pub fn tm_gpu_stream(index: c_int, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_gpu_own_stream(index: c_int, before: *mut i64) -> *mut c_char;
    pub fn tm_gpu_back_to_stream(index: c_int, before: i64) -> *mut c_char;
    pub fn tm_gpu_mark(index: c_int, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_gpu_reach(mark: *mut c_void) -> *mut c_char;
    pub fn tm_gpu_drop_mark(mark: *mut c_void);
    pub fn tm_gpu_empty_cache() -> *mut c_char;
    pub fn tm_gpu_peak_memory(index: c_int, out: *mut i64) -> *mut c_char;
    pub fn tm_graph_new_pool(out: *mut c_ulonglong) -> *mut c_char;
    pub fn tm_graph_begin(index: c_int, pool: *const c_ulonglong, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_graph_end(graph: *mut c_void) -> *mut c_char;
    pub fn tm_graph_replay(graph: *mut c_void) -> *mut c_char;
    pub fn tm_graph_drop(graph: *mut c_void);
    pub fn tm_all_reduce(
        input: *mut C_tensor,
        op: *const c_char,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_reduce_scatter(
        input: *mut C_tensor,
        op: *const c_char,
        world: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_all_gather(
        input: *mut C_tensor,
        world: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_all_gather_into(
        input: *mut C_tensor,
        output: *mut C_tensor,
        world: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_broadcast(
        tensor: *mut C_tensor,
        from: i64,
        group: *const c_char,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_exchange(tensor: *mut C_tensor, peer: i64, first: bool, group: *const c_char) -> *mut c_char;
    pub fn tm_wait(pending: *mut C_tensor, out: *mut *mut C_tensor) -> *mut c_char;
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
        divisor: *mut C_tensor,
        skip: *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_onednn_linear(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_on_grad(
        param: *mut C_tensor,
        context: *mut c_void,
        call: extern "C" fn(*mut c_void, *mut C_tensor, *mut c_char, usize) -> bool,
        drop: extern "C" fn(*mut c_void),
    ) -> *mut c_char;
    pub fn tm_off_grad(param: *mut C_tensor) -> *mut c_char;
    pub fn tm_from_impl(address: *mut c_void, out: *mut *mut C_tensor) -> *mut c_char;
    pub fn tm_pin(tensor: *mut C_tensor, out: *mut *mut C_tensor) -> *mut c_char;
    pub fn tm_to_dlpack(tensor: *mut C_tensor, out: *mut *mut c_void) -> *mut c_char;
    pub fn tm_set_cpu_allocator(
        allocate: extern "C" fn(usize) -> *mut c_void,
        free: unsafe extern "C" fn(*mut c_void),
    );
    pub fn tm_recompute(
        inputs: *const *mut C_tensor,
        n: usize,
        context: *mut c_void,
        call: extern "C" fn(*mut c_void, *const *mut C_tensor, usize, *mut c_char, usize) -> *mut C_tensor,
        drop: extern "C" fn(*mut c_void),
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn tm_operation(
        outputs: *const *mut C_tensor,
        k: usize,
        inputs: *const *mut C_tensor,
        n: usize,
        kept: *const *mut C_tensor,
        m: usize,
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
    pub fn tm_norms(tensors: *mut *mut C_tensor, n: usize, out: *mut *mut C_tensor) -> *mut c_char;
    pub fn tm_parallel(
        name: *const c_char,
        n: usize,
        context: *mut c_void,
        call: extern "C" fn(*mut c_void, usize, usize),
    ) -> *mut c_char;
    pub fn tm_start_profile(cuda: bool) -> *mut c_char;
    pub fn tm_end_profile(path: *const c_char) -> *mut c_char;
}

/// Turns the shim's answer (null, or an error text that is ours to free) into a `Result`.
pub fn check(operation: &'static str, text: *mut c_char) -> Result<(), Error> {
    if text.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null answer of the shim is a NUL-terminated string from strdup, ours until freed.
    let message = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: as above; freed once, by the library that allocated it.
    unsafe { tm_free(text) };
    Err(Error::Operation { operation, message: headline(&message) })
}

/// Writes a text for the shim to read.
///
/// # Safety
/// `message` must have room for `room` bytes, and that for at least one.
pub unsafe fn tell(text: &str, message: *mut c_char, room: usize) {
    let bytes = &text.as_bytes()[..text.len().min(room.saturating_sub(1))];
    // SAFETY: as the caller promises, there is room for these bytes and the zero behind them.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), message, bytes.len());
        *message.add(bytes.len()) = 0;
    }
}

/// Runs one shim call that makes a tensor.
pub fn make(
    operation: &'static str,
    call: impl FnOnce(*mut *mut C_tensor) -> *mut c_char,
) -> Result<Tensor, Error> {
    let mut out = std::ptr::null_mut();
    check(operation, call(&mut out))?;
    // SAFETY: on success the shim stored a heap-allocated at::Tensor, which `Tensor` now owns.
    Ok(unsafe { Tensor::from_ptr(out) })
}
