//! AdamW on gradients of any dtype by libtorch: it takes f32 only, and a copy in f32 of all of them would take as much memory as the weights. So
//! they become f32 a stretch at a time.

use tch::{Device, Kind, Tensor};
use tidemill_torch::{AdamW, Scaler, fused_adamw, guard, norms};

use crate::Error;

/// Elements of gradients that become f32 at a time: on a CPU so few that they stay in a core's cache, on a GPU so many that
/// it has enough to do.
pub fn converted_at_once(device: Device) -> i64 {
    if device == Device::Cpu { 1 << 18 } else { 1 << 24 }
}

/// A gradient [N] in stretches that are taken at a time: all of it, unless it has to become f32 first.
pub fn stretches(grad: &Tensor) -> Vec<Tensor> {
    match grad.kind() {
        Kind::Float => vec![grad.shallow_clone()],
        _ => grad.split(converted_at_once(grad.device()), 0),
    }
}

/// The square of the norm of all gradients together: a scalar, f32.
///
/// # Errors
/// If libtorch fails.
pub fn squared_norm(gradients: &[&Tensor], device: Device) -> Result<Tensor, Error> {
    let each = if device.is_cuda() { together(gradients)? } else { one_by_one(gradients)? };
    Ok(guard(|| each.square().sum(Kind::Float))?)
}

/// The norms of what stays in a CPU's cache: [n].
fn one_by_one(gradients: &[&Tensor]) -> Result<Tensor, Error> {
    Ok(guard(|| {
        let stretches = gradients.iter().flat_map(|grad| stretches(grad));
        let norms: Vec<Tensor> = stretches.map(|grad| grad.to_kind(Kind::Float).norm()).collect();
        Tensor::stack(&norms, 0)
    })?)
}

/// The norms of tensors of one dtype at a time: [n].
fn together(gradients: &[&Tensor]) -> Result<Tensor, Error> {
    let of = |kind| -> Vec<Tensor> {
        let of_kind = gradients.iter().filter(|grad| (grad.kind() == Kind::Float) == (kind == Kind::Float));
        of_kind.map(|grad| grad.shallow_clone()).collect()
    };
    let groups = [of(Kind::Float), of(Kind::BFloat16)];
    let norms = groups.iter().filter(|group| !group.is_empty()).map(|group| norms(group));
    let norms = norms.collect::<Result<Vec<_>, _>>()?;
    Ok(guard(|| Tensor::cat(&norms, 0))?)
}

/// What AdamW is to be called with.
#[derive(Default)]
pub struct Due {
    master: Vec<Tensor>,
    grad: Vec<Tensor>,
    exp_avg: Vec<Tensor>,
    exp_avg_sq: Vec<Tensor>,
    /// Elements of gradients that have become f32 for it.
    pub converted: i64,
}

impl Due {
    /// Adds a gradient [N], with master weights and moments.
    pub fn add(&mut self, grad: &Tensor, [master, exp_avg, exp_avg_sq]: [Tensor; 3]) {
        if grad.kind() != Kind::Float {
            self.converted += grad.numel() as i64;
        }
        self.master.push(master);
        self.grad.push(grad.to_kind(Kind::Float));
        self.exp_avg.push(exp_avg);
        self.exp_avg_sq.push(exp_avg_sq);
    }

    /// Calls it, and is empty again.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn update(&mut self, adamw: AdamW, count: &Tensor, scaler: Scaler) -> Result<(), Error> {
        let Self { master, grad, exp_avg, exp_avg_sq, .. } = std::mem::take(self);
        if master.is_empty() {
            return Ok(());
        }
        let counts: Vec<Tensor> = master.iter().map(|_| count.shallow_clone()).collect();
        Ok(fused_adamw(adamw, &master, &grad, &exp_avg, &exp_avg_sq, &counts, scaler)?)
    }
}
