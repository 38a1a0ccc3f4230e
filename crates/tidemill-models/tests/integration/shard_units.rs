//! The weights of a shard unit are needed only between its hooks.

use std::sync::{Arc, Mutex};

use tch::{Device, Kind, Tensor, no_grad};
use tidemill_models::{
    Conditions, GradientCheckpointing, ParamInit, SD3Transformer2DModel, SD3TransformerConfig, ShardHooks,
    TrainableDenoiser,
};
use tidemill_torch::{allocate_storage, free_storage};

use crate::invalid_models::tiny_unet;

/// Has the weights of one unit at a time. Whoever uses those of others crashes.
struct OneUnit {
    /// The memory of each unit's parameters, and its values.
    units: Mutex<Vec<Vec<(Tensor, Tensor)>>>,
    /// Whose weights there were, in order.
    order: Mutex<Vec<usize>>,
}

impl OneUnit {
    fn new(denoiser: &dyn TrainableDenoiser) -> Self {
        let shard_units = denoiser.shard_units();
        let mut units: Vec<Vec<(Tensor, Tensor)>> = (0..shard_units.len()).map(|_| Vec::new()).collect();
        for (name, mut param) in denoiser.params().named_parameters() {
            if let Some(unit) = shard_units.unit_of(&name) {
                let memory = param.detach().copy();
                param.set_data(&memory);
                units[unit].push((memory.shallow_clone(), memory.copy()));
            }
        }
        assert!(units.iter().all(|unit| !unit.is_empty()), "a unit without parameters");
        Self { units: Mutex::new(units), order: Mutex::default() }
    }

    fn switch_to(&self, unit: usize) {
        let mut order = self.order.lock().unwrap();
        if order.last() == Some(&unit) {
            return;
        }
        order.push(unit);
        for (i, weights) in self.units.lock().unwrap().iter().enumerate() {
            for (memory, values) in weights {
                if i == unit {
                    allocate_storage(memory).unwrap();
                    no_grad(|| memory.shallow_clone().copy_(values));
                } else {
                    free_storage(memory).unwrap();
                }
            }
        }
    }
}

impl ShardHooks for OneUnit {
    fn pre_forward(&self, unit: usize) -> Result<(), tidemill_torch::Error> {
        self.switch_to(unit);
        Ok(())
    }

    fn pre_backward(&self, unit: usize) -> Result<(), tidemill_torch::Error> {
        self.switch_to(unit);
        Ok(())
    }
}

/// The loss and the gradients of all parameters.
fn loss_and_gradients(denoiser: &dyn TrainableDenoiser, text_width: i64, pooled: Option<i64>) -> Vec<Tensor> {
    tch::manual_seed(3);
    let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
    let conditions = Conditions {
        text: random(&[2, 7, text_width]),
        pooled: pooled.map(|width| random(&[2, width])),
        time_ids: None,
    };
    let timesteps = Tensor::from_slice(&[3i64, 700]);
    let loss = denoiser.denoise(&random(&[2, 4, 8, 8]), &timesteps, &conditions).square().sum(Kind::Float);
    loss.backward();
    let params = denoiser.params().named_parameters();
    let gradients = params.into_iter().map(|(_, mut param)| {
        let gradient = param.grad().copy();
        param.zero_grad();
        gradient
    });
    [loss.detach()].into_iter().chain(gradients).collect()
}

fn assert_units_are_independent(denoiser: &mut dyn TrainableDenoiser, text_width: i64, pooled: Option<i64>) {
    denoiser.params().set_requires_grad(true);
    let modes = [GradientCheckpointing::Off, GradientCheckpointing::Selective, GradientCheckpointing::Full];
    let expected = modes.map(|mode| {
        denoiser.set_gradient_checkpointing(mode).unwrap();
        loss_and_gradients(denoiser, text_width, pooled)
    });
    let hooks = Arc::new(OneUnit::new(denoiser));
    denoiser.params().set_shard_hooks(hooks.clone());
    let forward = 0..denoiser.shard_units().len();
    for (mode, expected) in modes.into_iter().zip(expected) {
        denoiser.set_gradient_checkpointing(mode).unwrap();
        assert_eq!(loss_and_gradients(denoiser, text_width, pooled), expected, "{mode:?}");
        let mut order: Vec<usize> = forward.clone().chain(forward.clone().rev()).collect();
        order.dedup();
        let found = std::mem::take(&mut *hooks.order.lock().unwrap());
        assert_eq!(found, order, "{mode:?}");
    }
}

/// Has no weights.
struct Lost;

impl ShardHooks for Lost {
    fn pre_forward(&self, _unit: usize) -> Result<(), tidemill_torch::Error> {
        Err(tidemill_torch::Error::Torch("the other ranks are gone".into()))
    }

    fn pre_backward(&self, _unit: usize) -> Result<(), tidemill_torch::Error> {
        Ok(())
    }
}

#[test]
fn forward_pass_fails_without_weights() {
    let unet = tiny_unet();
    unet.params().set_shard_hooks(Arc::new(Lost));
    let error = tidemill_torch::guard(|| loss_and_gradients(&unet, 5, None)).unwrap_err().to_string();
    assert!(error.contains("the other ranks are gone"), "{error}");
}

#[test]
fn unet_needs_the_weights_of_one_unit_at_a_time() {
    tch::manual_seed(3);
    assert_units_are_independent(&mut tiny_unet(), 5, None);
}

#[test]
fn transformer_needs_the_weights_of_one_block_at_a_time() {
    tch::manual_seed(3);
    let config = SD3TransformerConfig {
        in_channels: 4,
        out_channels: 4,
        sample_size: 8,
        num_layers: 3,
        attention_head_dim: 4,
        num_attention_heads: 2,
        caption_projection_dim: 8,
        joint_attention_dim: 6,
        pooled_projection_dim: 10,
        pos_embed_max_size: 4,
        ..SD3TransformerConfig::default()
    };
    let mut transformer = SD3Transformer2DModel::new(config, Device::Cpu, ParamInit::Random).unwrap();
    assert_units_are_independent(&mut transformer, 6, Some(10));
}
