//! The optimizer's state, flat and in f32: master weights, AdamW's moments, EMA. It takes gradients
//! from the working buffer and leaves new working weights there.

use crate::Error;
use crate::config::EmaConfig;
use crate::flat::{FlatParams, Layout};
use tch::{Kind, Tensor};
use tidemill_models::Params;
use tidemill_torch::{AdamW, fused_adamw};

/// Master weights, moments and EMA of one network, and the buffers it computes with.
#[derive(Debug)]
pub struct Optimizer {
    working: FlatParams,
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    ema: Option<Tensor>,
    /// Gradients of the step in f32; the working buffer itself when that is f32.
    grads: Tensor,
}

impl Optimizer {
    /// Takes over the parameters of a network whose arithmetic is in `kind`.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn new(params: &Params, kind: Kind) -> Result<Self, Error> {
        let (working, master) = FlatParams::adopt(params, kind)?;
        let device = params.device();
        let zeros = || tidemill_torch::guard(|| working.layout().zeros(Kind::Float, device));
        let (exp_avg, exp_avg_sq) = (zeros()?, zeros()?);
        let grads = if kind == Kind::Float { working.grads().shallow_clone() } else { zeros()? };
        Ok(Self { working, master, exp_avg, exp_avg_sq, ema: None, grads })
    }

    /// Takes in the gradients of one micro-batch. In bf16 they are added up in f32, so that many
    /// micro-batches lose no precision.
    pub fn accumulate(&mut self) {
        if self.working.grads().kind() != Kind::Float {
            self.grads += self.working.grads();
            let _ = self.working.grads().shallow_clone().zero_();
        }
    }

    /// Clips the gradients to a global norm of `max_norm` (0: not at all) without waiting for the
    /// device, and gives the norm before (a scalar tensor), as `torch.nn.utils.clip_grad_norm_`.
    pub fn clip(&mut self, max_norm: f64) -> Tensor {
        let norm = self.grads.norm();
        if max_norm > 0.0 {
            let factor = (max_norm / (&norm + 1e-6)).clamp_max(1.0);
            self.grads *= factor;
        }
        norm
    }

    /// One AdamW step, the `step`-th counted from 1; then EMA, the cast to the working weights, and
    /// zero gradients. If `skip` (a scalar, f32) is 1, weights, moments and EMA stay as they are.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn step(
        &mut self,
        step: u64,
        adamw: AdamW,
        ema: Option<EmaConfig>,
        skip: Option<&Tensor>,
    ) -> Result<(), Error> {
        let count = Tensor::from(step as f32).to_device(self.master.device());
        fused_adamw(
            adamw,
            &[self.master.shallow_clone()],
            &[self.grads.shallow_clone()],
            &[self.exp_avg.shallow_clone()],
            &[self.exp_avg_sq.shallow_clone()],
            &[count],
            skip,
        )?;
        tidemill_torch::guard(|| {
            self.update_ema(step, ema, skip);
            if self.working.weights().kind() != Kind::Float {
                self.working.weights().shallow_clone().copy_(&self.master);
            }
            let _ = self.grads.zero_();
        })?;
        Ok(())
    }

    fn update_ema(&mut self, step: u64, config: Option<EmaConfig>, skip: Option<&Tensor>) {
        let Some(config) = config.filter(|c| step > c.start_step) else { return };
        match &mut self.ema {
            None => self.ema = Some(self.master.copy()),
            Some(ema) => {
                let weight = 1.0 - config.decay;
                let _ = match skip {
                    None => ema.lerp_(&self.master, weight),
                    Some(skip) => ema.lerp_tensor_(&self.master, &((1.0 - skip) * weight)),
                };
            }
        }
    }

    /// The layout of the flat buffers.
    pub fn layout(&self) -> &Layout {
        self.working.layout()
    }

    /// The averaged weights, or the master weights before averaging began; flat, f32.
    pub fn averaged(&self) -> &Tensor {
        self.ema.as_ref().unwrap_or(&self.master)
    }

    /// Runs `work` with the averaged weights in the network, then puts the working weights back.
    pub fn with_averaged<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let mut working = self.working.weights().shallow_clone();
        tidemill_torch::guard(|| {
            tch::no_grad(|| {
                let saved = working.copy();
                working.copy_(self.averaged());
                let result = work();
                working.copy_(&saved);
                result
            })
        })
        .map_err(Error::from)
    }

    /// The tensors of a checkpoint: master weights, moments and, once begun, EMA; per parameter, as
    /// `<buffer>.<parameter>`, so that a checkpoint does not depend on the flat layout.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let buffers = self.buffers();
        let tensors = buffers.iter().flat_map(|(buffer, flat)| {
            self.layout().views(flat).into_iter().map(move |(name, t)| (format!("{buffer}.{name}"), t))
        });
        tensors.collect()
    }

    /// Makes room for what a checkpoint holds: with `ema`, averaging has begun.
    pub fn prepare_to_load(&mut self, ema: bool) {
        self.ema = ema.then(|| self.master.copy());
    }

    /// After the tensors of [`Self::state`] have been overwritten: casts the master weights.
    pub fn loaded(&mut self) {
        if self.working.weights().kind() != Kind::Float {
            self.working.weights().shallow_clone().copy_(&self.master);
        }
    }

    fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        let mut buffers =
            vec![("master", &self.master), ("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)];
        buffers.extend(self.ema.as_ref().map(|ema| ("ema", ema)));
        buffers
    }
}
