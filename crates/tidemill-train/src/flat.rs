//! A network's parameters and gradients as views of flat buffers. One operation then serves all of
//! them: clipping, the optimizer, EMA, the cast from master to working weights; and a rank's shard is
//! a slice. Each parameter starts at a multiple of [`ALIGNMENT`] elements, for vectorised kernels;
//! the gaps are zero and stay zero.

use crate::Error;
use tch::{Device, Kind, Tensor};
use tidemill_models::Params;

/// Elements: 64 bytes of bf16, 128 of f32.
const ALIGNMENT: i64 = 32;

/// Where one parameter lies in the flat buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name in the network.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
    offset: i64,
}

/// The layout of all parameters in a flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: Vec<Slot>,
    length: i64,
}

impl Layout {
    /// Lays the parameters out one behind the other, in their order.
    pub fn of(params: &Params) -> Self {
        let mut length = 0;
        let slots = params.named().into_iter().map(|(name, tensor)| {
            let slot = Slot { name, shape: tensor.size(), offset: length };
            let end = length + slot.numel();
            length = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            slot
        });
        let slots = slots.collect();
        Self { slots, length }
    }

    /// Elements of a flat buffer, gaps included.
    pub fn length(&self) -> i64 {
        self.length
    }

    /// The parameters' views of `flat`, by name.
    pub fn views(&self, flat: &Tensor) -> Vec<(String, Tensor)> {
        self.slots.iter().map(|slot| (slot.name.clone(), slot.view(flat))).collect()
    }

    /// A zero buffer of this layout.
    pub fn zeros(&self, kind: Kind, device: Device) -> Tensor {
        Tensor::zeros([self.length], (kind, device))
    }
}

impl Slot {
    fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    fn view(&self, flat: &Tensor) -> Tensor {
        flat.narrow(0, self.offset, self.numel()).view(self.shape.as_slice())
    }
}

/// The working parameters and gradients of a network, flat, in the precision of its arithmetic.
#[derive(Debug)]
pub struct FlatParams {
    layout: Layout,
    weights: Tensor,
    grads: Tensor,
}

impl FlatParams {
    /// Moves the parameters of a network, and gradients to come, into flat buffers of `kind`. Returns
    /// the f32 master copy of the weights as well: in f32 it *is* the working buffer.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn adopt(params: &Params, kind: Kind) -> Result<(Self, Tensor), Error> {
        let layout = Layout::of(params);
        let device = params.device();
        let (weights, grads, master) = tidemill_torch::guard(|| {
            let master = layout.zeros(Kind::Float, device);
            for ((_, param), slot) in params.named().iter().zip(&layout.slots) {
                tch::no_grad(|| slot.view(&master).copy_(param));
            }
            (master.to_kind(kind), layout.zeros(kind, device), master)
        })?;
        for ((_, mut param), slot) in params.named().into_iter().zip(&layout.slots) {
            tidemill_torch::guard(|| {
                param.set_data(&slot.view(&weights));
                let _ = param.set_requires_grad(true);
            })?;
            tidemill_torch::set_grad(&param, &slot.view(&grads))?;
        }
        Ok((Self { layout, weights, grads }, master))
    }

    /// The layout of the buffers.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The working weights.
    pub fn weights(&self) -> &Tensor {
        &self.weights
    }

    /// The gradients that backward passes add into.
    pub fn grads(&self) -> &Tensor {
        &self.grads
    }
}
