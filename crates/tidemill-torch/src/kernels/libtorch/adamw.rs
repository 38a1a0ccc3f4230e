//! AdamW by libtorch's fused kernel, with the averages, working weights and stochastic rounding
//! that it lacks as operations of their own.

use tch::{Kind, Tensor, no_grad};

use crate::ffi::{self, as_raw};
use crate::kernels::arguments::{AdamW, AdamWScalars, ParamSlice};
use crate::{Error, guard};

/// The most elements of a gradient that are converted at once. libtorch's kernel takes gradients in
/// f32 only.
const CONVERTED_AT_ONCE: usize = 1 << 24;

/// One step, in place.
///
/// # Errors
/// If memory does not suffice, or the device fails.
pub fn step(adamw: AdamW, scalars: AdamWScalars, slices: &[ParamSlice]) -> Result<(), Error> {
    for slice in slices {
        let length = slice.grad.numel();
        for offset in (0..length).step_by(CONVERTED_AT_ONCE) {
            step_on_range(adamw, scalars, slice, offset, CONVERTED_AT_ONCE.min(length - offset))?;
        }
    }
    Ok(())
}

/// The step on `length` elements of a slice, from `offset` on.
fn step_on_range(
    adamw: AdamW,
    scalars: AdamWScalars,
    slice: &ParamSlice,
    offset: usize,
    length: usize,
) -> Result<(), Error> {
    let range = |tensor: &Tensor| tensor.narrow(0, (slice.start + offset) as i64, length as i64);
    guard(|| {
        let grad = slice.grad.narrow(0, offset as i64, length as i64).to_kind(Kind::Float);
        let [master, mut exp_avg, mut exp_avg_sq] =
            [slice.master, slice.exp_avg, slice.exp_avg_sq].map(range);
        // Moments in f32 are changed in place: `to_kind` makes no copy of them.
        let [first, second] = [&exp_avg, &exp_avg_sq].map(|moment| moment.to_kind(Kind::Float));
        fused_adamw(adamw, scalars, &grad, [&master, &first, &second])?;
        no_grad(|| {
            if exp_avg.kind() == Kind::BFloat16 {
                let bits = random_bits(&first, &second, scalars.step);
                exp_avg.copy_(&round_stochastically(&first, &bits.bitwise_and(0xFFFF)));
                exp_avg_sq.copy_(&round_stochastically(&second, &shift_right(&bits, 16)));
            }
            if let Some(mut ema) = slice.ema.map(range) {
                let _ = ema.lerp_tensor_(&master, &scalars.effective_ema_rate());
            }
            // If the step is skipped, this copies the same values again.
            slice.weights.map(range).iter_mut().for_each(|weights| weights.copy_(&master));
        });
        Ok(())
    })?
}

/// 32 random bits for each element, as the kernels compute them (`random_bits` in `cpu/adamw.rs`).
fn random_bits(first: &Tensor, second: &Tensor, step: &Tensor) -> Tensor {
    let bits = |tensor: &Tensor| tensor.view_dtype(Kind::Int);
    let x =
        bits(first).bitwise_xor_tensor(&((bits(second) + bits(step)) * i64::from(0x9E37_79B1_u32 as i32)));
    let x = x.bitwise_xor_tensor(&shift_right(&x, 16)) * 0x7FEB_352D;
    let x = x.bitwise_xor_tensor(&shift_right(&x, 15)) * i64::from(0x846C_A68B_u32 as i32);
    x.bitwise_xor_tensor(&shift_right(&x, 16))
}

/// A logical right shift of 32-bit integers: libtorch's shift fills with the sign.
fn shift_right(x: &Tensor, by: u32) -> Tensor {
    x.bitwise_right_shift_tensor_scalar(i64::from(by)).bitwise_and(i64::from(u32::MAX >> by))
}

/// Rounds f32 to values that bf16 can hold, up or down by 16 random bits.
fn round_stochastically(values: &Tensor, random_bits: &Tensor) -> Tensor {
    let bits = (values.view_dtype(Kind::Int) + random_bits).bitwise_and(!0xFFFF);
    bits.view_dtype(Kind::Float).where_self(&values.isfinite(), values)
}

/// libtorch's kernel, which `torch.optim.AdamW(fused=True)` calls, on master weights, first and
/// second moments.
fn fused_adamw(adamw: AdamW, scalars: AdamWScalars, grad: &Tensor, state: [&Tensor; 3]) -> Result<(), Error> {
    let AdamW { betas, eps, weight_decay } = adamw;
    let AdamWScalars { step, learning_rate, grad_divisor, skip, .. } = scalars;
    let [master, exp_avg, exp_avg_sq] = state.map(as_raw);
    // SAFETY: live tensors, whose sizes and dtypes were checked; the shim keeps no pointer past the
    // call. They are changed through libtorch's own shared storage, as every in-place operator
    // does.
    let error = unsafe {
        ffi::tm_fused_adamw(
            master,
            as_raw(grad),
            exp_avg,
            exp_avg_sq,
            as_raw(step),
            as_raw(learning_rate),
            betas.0,
            betas.1,
            weight_decay,
            eps,
            as_raw(grad_divisor),
            skip.map_or(std::ptr::null_mut(), as_raw),
        )
    };
    ffi::check("adamw", error)
}
