//! The hyper-parameters and tensors that optimizer steps and norms take.

use tch::Tensor;

/// AdamW's hyper-parameters (Loshchilov & Hutter, 2019, algorithm 2: decay is decoupled).
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Decay rates of the first and second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Multiplied with the learning rate and the parameter.
    pub weight_decay: f64,
}

/// The numbers of one AdamW step, as f32 scalars on the device, so that the host does not wait for
/// them.
#[derive(Clone, Copy, Debug)]
pub struct AdamWScalars<'a> {
    /// The number of the step, counted from 1.
    pub step: &'a Tensor,
    /// The learning rate of this step.
    pub learning_rate: &'a Tensor,
    /// Gradients are divided by this.
    pub grad_divisor: &'a Tensor,
    /// The share of the new weights in the averaged weights: 1 - decay of the EMA.
    pub ema_rate: &'a Tensor,
    /// If it is 1, the step changes nothing.
    pub skip: Option<&'a Tensor>,
}

impl AdamWScalars<'_> {
    /// `ema_rate`, or 0 if the step is skipped: a scalar, f32.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](crate::guard()).
    pub fn effective_ema_rate(&self) -> Tensor {
        self.skip.map_or_else(|| self.ema_rate.shallow_clone(), |skip| (1.0 - skip) * self.ema_rate)
    }
}

/// A range of N parameters and their optimizer state. Tensors are contiguous, one-dimensional, and
/// f32 unless said otherwise.
#[derive(Debug)]
pub struct ParamSlice<'a> {
    /// The gradient `[N]`, bf16 or f32.
    pub grad: Tensor,
    /// The index at which the range begins in the tensors below.
    pub start: usize,
    /// Master weights.
    pub master: &'a Tensor,
    /// First moment, f32 or bf16, the same in all slices of a step. In bf16 it is rounded
    /// stochastically, by random bits that the step and the values determine: rounded to nearest,
    /// an average that changes by a thousandth would never move.
    pub exp_avg: &'a Tensor,
    /// Second moment, of the same dtype.
    pub exp_avg_sq: &'a Tensor,
    /// Averaged weights, if weights are averaged.
    pub ema: Option<&'a Tensor>,
    /// Working weights, bf16 or f32, which become a copy of the master weights. `None` if the
    /// master weights are used themselves.
    pub weights: Option<&'a Tensor>,
}

/// Group normalisation of x [N, C, ...] in groups of C / `groups` channels, and with `silu` the
/// SiLU of that.
///
/// The output has the dtype of x, with arithmetic in f32. Where there is no kernel, libtorch
/// computes in the dtype of `weight`. On a CPU there are kernels with SiLU only.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a> {
    /// `[C]`.
    pub weight: &'a Tensor,
    /// `[C]`, in the dtype of `weight`.
    pub bias: &'a Tensor,
    /// The number of groups.
    pub groups: i64,
    /// Added to variances.
    pub eps: f64,
    /// Whether SiLU follows.
    pub silu: bool,
}
