//! The parameters of a network: tensors under dotted names, in the order in which the network was
//! built. Layers hold handles to the same tensors, so what is loaded or cast here is what they use.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use tch::{Device, Kind, Tensor};

/// What a new network's parameters start as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamInit {
    /// PyTorch's default initialisation, drawn from libtorch's generator (`tch::manual_seed`).
    Random,
    /// Not initialised: for networks whose weights are loaded next.
    Empty,
}

/// The named parameters of one network.
pub struct Params {
    device: Device,
    start: ParamInit,
    entries: RefCell<Vec<(String, Tensor)>>,
    norms: RefCell<BTreeSet<String>>,
    gate: RefCell<Option<Gate>>,
}

/// Called with the name of a part of a network before it is used.
type Gate = Box<dyn Fn(&str) + Send>;

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, start, entries, .. } = self;
        f.debug_struct("Params")
            .field("device", device)
            .field("start", start)
            .field("entries", entries)
            .finish_non_exhaustive()
    }
}

/// How one parameter is initialised.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Init {
    /// Uniform in ±1/sqrt(fan-in): what PyTorch's Linear and Conv2d use for weight and bias
    /// (`kaiming_uniform_(a=sqrt(5))`, torch/nn/modules/linear.py).
    FanIn(i64),
    /// A constant.
    Const(f64),
    /// Normal with this standard deviation.
    Normal(f64),
}

impl Params {
    pub(crate) fn new(device: Device, start: ParamInit) -> Self {
        Self {
            device,
            start,
            entries: RefCell::default(),
            norms: RefCell::default(),
            gate: RefCell::default(),
        }
    }

    /// Those of a network that was made elsewhere: f32, on one device, in the order of their use.
    pub fn from_named(device: Device, named: Vec<(String, Tensor)>) -> Self {
        Self { entries: RefCell::new(named), ..Self::new(device, ParamInit::Empty) }
    }

    /// The root of the names.
    pub(crate) fn root(&self) -> Scope<'_> {
        Scope { params: self, path: String::new() }
    }

    /// Handles to all parameters with their names, in the order of construction.
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.entries.borrow().iter().map(|(name, t)| (name.clone(), t.shallow_clone())).collect()
    }

    /// Has convolutions' weights [O, I, H, W] lie as [O, H, W, I] from now on.
    pub fn make_channels_last(&self) {
        for (_, tensor) in self.entries.borrow_mut().iter_mut().filter(|(_, tensor)| tensor.dim() == 4) {
            let moved = tensor.detach().permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
            tensor.set_data(&moved);
        }
    }

    /// The names of those of group and layer normalisation.
    pub fn norm_parameter_names(&self) -> BTreeSet<String> {
        self.norms.borrow().clone()
    }

    /// The number of scalars in all parameters.
    pub fn parameter_count(&self) -> usize {
        self.entries.borrow().iter().map(|(_, t)| t.numel()).sum()
    }

    /// The device the parameters are on.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Has `gate` called in a forward pass before each part of the network, with the part's name: so parameters may come
    /// while those before them are in use already. There is one gate; a second takes the first one's place.
    pub fn set_pre_forward_hook(&self, gate: impl Fn(&str) + Send + 'static) {
        *self.gate.borrow_mut() = Some(Box::new(gate));
    }

    /// The part `name` of the network comes next. What is no part's name means all of it.
    pub fn run_pre_forward_hook(&self, name: impl fmt::Display) {
        if let Some(gate) = &*self.gate.borrow() {
            gate(&name.to_string());
        }
    }

    /// Casts every parameter to `kind`; the layers see it.
    pub fn set_kind(&self, kind: Kind) {
        tch::no_grad(|| {
            for (_, tensor) in self.entries.borrow_mut().iter_mut() {
                let cast = tensor.to_kind(kind);
                tensor.set_data(&cast);
            }
        });
    }

    /// Says whether gradients are computed for the parameters.
    pub fn set_trainable(&self, trainable: bool) {
        for (_, tensor) in self.entries.borrow().iter() {
            let _ = tensor.set_requires_grad(trainable);
        }
    }
}

/// A place in the tree of names, where a layer creates its parameters.
#[derive(Clone)]
pub(crate) struct Scope<'a> {
    params: &'a Params,
    path: String,
}

impl<'a> Scope<'a> {
    /// The scope `name` below this one.
    pub fn sub(&self, name: impl fmt::Display) -> Scope<'a> {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Scope { params: self.params, path }
    }

    /// Creates weight and bias of a norm of so many channels (f32): ones and zeros.
    pub fn norm(&self, channels: i64) -> (Tensor, Tensor) {
        let param = |name: &str, value| {
            self.params.norms.borrow_mut().insert(self.sub(name).path);
            self.param(name, &[channels], Init::Const(value))
        };
        (param("weight", 1.0), param("bias", 0.0))
    }

    /// Creates the parameter `name` (f32).
    pub fn param(&self, name: &str, shape: &[i64], init: Init) -> Tensor {
        let options = (Kind::Float, self.params.device);
        let tensor = match (self.params.start, init) {
            (ParamInit::Empty, _) => Tensor::empty(shape, options),
            (ParamInit::Random, Init::Const(value)) => Tensor::full(shape, value, options),
            (ParamInit::Random, Init::Normal(std)) => Tensor::randn(shape, options) * std,
            (ParamInit::Random, Init::FanIn(fan_in)) => {
                let bound = 1.0 / (fan_in as f64).sqrt();
                Tensor::empty(shape, options).uniform_(-bound, bound)
            }
        };
        let full_name = self.sub(name).path;
        self.params.entries.borrow_mut().push((full_name, tensor.shallow_clone()));
        tensor
    }
}
