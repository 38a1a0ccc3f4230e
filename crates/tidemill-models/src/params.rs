//! The parameters of a network: tensors under dotted names, in the order in which the network was
//! built. Layers hold handles to the same tensors, so loading or casting parameters here changes
//! the layers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use tidemill_torch::{guard, register_pre_backward_hook};

use crate::error::Error;
use crate::layers::unwrap_or_panic;
use crate::shard_units::ShardHooks;

/// How the parameters of a new network are initialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamInit {
    /// PyTorch's default initialisation, drawn from libtorch's generator (`tch::manual_seed`).
    Random,
    /// Parameters are not initialised: for networks whose weights are loaded next.
    Empty,
    /// Parameters have a shape and no memory of their own: for counting. Such a network cannot run.
    ShapeOnly,
}

/// The named parameters of one network.
pub struct Params {
    device: Cell<Device>,
    init: ParamInit,
    entries: RefCell<Vec<(String, Tensor)>>,
    /// Constants that weight files hold beside the parameters.
    buffers: RefCell<Vec<(String, Tensor)>>,
    norm_parameters: RefCell<BTreeSet<String>>,
    pre_forward_hook: RefCell<Option<PreForwardHook>>,
    shard_hooks: RefCell<Option<Arc<dyn ShardHooks>>>,
}

/// Called with the name of a module before the module runs.
type PreForwardHook = Box<dyn Fn(&str) + Send>;

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, init, entries, .. } = self;
        f.debug_struct("Params")
            .field("device", device)
            .field("init", init)
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
    pub(crate) fn new(device: Device, init: ParamInit) -> Self {
        Self {
            device: Cell::new(device),
            init,
            entries: RefCell::default(),
            buffers: RefCell::default(),
            norm_parameters: RefCell::default(),
            pre_forward_hook: RefCell::default(),
            shard_hooks: RefCell::default(),
        }
    }

    /// The parameters of a network that was not built by this crate: f32, on one device, in the
    /// order of their use.
    pub fn from_named(device: Device, named: Vec<(String, Tensor)>) -> Self {
        Self { entries: RefCell::new(named), ..Self::new(device, ParamInit::Empty) }
    }

    /// The scope of names without a prefix.
    pub(crate) fn root(&self) -> Scope<'_> {
        Scope { params: self, path: String::new() }
    }

    /// Handles to all parameters with their names, in the order of construction.
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.entries.borrow().iter().map(|(name, t)| (name.clone(), t.shallow_clone())).collect()
    }

    /// Handles to the constants that weight files hold beside the parameters, with their names. They are not
    /// trained.
    pub fn named_buffers(&self) -> Vec<(String, Tensor)> {
        self.buffers.borrow().iter().map(|(name, t)| (name.clone(), t.shallow_clone())).collect()
    }

    /// Changes the memory format of convolutions' weights [O, I, H, W] to channels-last, [O, H, W,
    /// I].
    pub fn make_channels_last(&self) {
        for (_, tensor) in self.entries.borrow_mut().iter_mut().filter(|(_, tensor)| tensor.dim() == 4) {
            let channels_last = tensor.detach().permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
            tensor.set_data(&channels_last);
        }
    }

    /// The names of the parameters of group and layer norms.
    pub fn norm_parameter_names(&self) -> BTreeSet<String> {
        self.norm_parameters.borrow().clone()
    }

    /// The number of elements of all parameters.
    pub fn parameter_count(&self) -> usize {
        self.entries.borrow().iter().map(|(_, t)| t.numel()).sum()
    }

    /// The device of the network's arithmetic. The parameters are on it, unless [`Self::set_device`] has been called
    /// and the trainer has not moved them yet.
    pub fn device(&self) -> Device {
        self.device.get()
    }

    /// Sets the device of the network's arithmetic, and moves the constants there. The parameters stay where
    /// they are: moved one by one, they need no memory for all of them.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn set_device(&self, device: Device) -> Result<(), Error> {
        self.device.set(device);
        Ok(guard(|| {
            self.buffers
                .borrow_mut()
                .iter_mut()
                .for_each(|(_, buffer)| buffer.set_data(&buffer.to_device(device)))
        })?)
    }

    /// Sets a hook that a forward pass calls with the name of each top-level module before it runs
    /// the module. So the parameters of a module may still be on their way while the modules before
    /// it run. A second hook replaces the first.
    pub fn set_pre_forward_hook(&self, hook: impl Fn(&str) + Send + 'static) {
        *self.pre_forward_hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Calls the hook: the module `name` runs next. A name that no module has stands for the whole
    /// network.
    pub fn run_pre_forward_hook(&self, name: impl fmt::Display) {
        if let Some(hook) = &*self.pre_forward_hook.borrow() {
            hook(&name.to_string());
        }
    }

    /// Sets what happens around the uses of shard units. Other hooks replace the first ones.
    pub fn set_shard_hooks(&self, hooks: Arc<dyn ShardHooks>) {
        *self.shard_hooks.borrow_mut() = Some(hooks);
    }

    /// Calls the hook: the forward pass of this shard unit comes next.
    pub(crate) fn begin_shard_unit(&self, unit: usize) {
        if let Some(hooks) = &*self.shard_hooks.borrow() {
            unwrap_or_panic(hooks.pre_forward(unit));
        }
    }

    /// Lets the hook be called before the backward pass of this shard unit, whose forward pass has made `outputs`.
    pub(crate) fn end_shard_unit<'a>(&self, unit: usize, outputs: impl IntoIterator<Item = &'a Tensor>) {
        let Some(hooks) = &*self.shard_hooks.borrow() else { return };
        for output in outputs {
            let hooks = hooks.clone();
            unwrap_or_panic(register_pre_backward_hook(output, move || hooks.pre_backward(unit)));
        }
    }

    /// Casts every parameter to `kind`, also in the layers.
    pub fn set_kind(&self, kind: Kind) {
        tch::no_grad(|| {
            for (_, tensor) in self.entries.borrow_mut().iter_mut() {
                let cast = tensor.to_kind(kind);
                tensor.set_data(&cast);
            }
        });
    }

    /// Sets whether gradients are computed for the parameters.
    pub fn set_requires_grad(&self, requires_grad: bool) {
        for (_, tensor) in self.entries.borrow().iter() {
            let _ = tensor.set_requires_grad(requires_grad);
        }
    }
}

/// A prefix of names, under which a layer creates its parameters.
#[derive(Clone)]
pub(crate) struct Scope<'a> {
    params: &'a Params,
    path: String,
}

impl<'a> Scope<'a> {
    /// The scope `name` below this one.
    pub fn child(&self, name: impl fmt::Display) -> Scope<'a> {
        let path = if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Scope { params: self.params, path }
    }

    /// Creates weight (ones) and bias (zeros) of a norm over `channels` channels, f32.
    pub fn norm(&self, channels: i64) -> (Tensor, Tensor) {
        (self.norm_weight(channels), self.norm_param("bias", channels, 0.0))
    }

    /// Creates the weight (ones) of a norm without bias, f32.
    pub fn norm_weight(&self, channels: i64) -> Tensor {
        self.norm_param("weight", channels, 1.0)
    }

    fn norm_param(&self, name: &str, channels: i64, value: f64) -> Tensor {
        self.params.norm_parameters.borrow_mut().insert(self.child(name).path);
        self.param(name, &[channels], Init::Const(value))
    }

    /// Creates the constant `name`, which weight files may hold in this shape. A network without weights has none.
    pub fn buffer(&self, name: &str, shape: &[i64], value: impl FnOnce() -> Tensor) -> Tensor {
        let tensor = match self.params.init {
            ParamInit::ShapeOnly => {
                Tensor::empty([1], (Kind::Float, self.params.device())).expand(shape, false)
            }
            ParamInit::Random | ParamInit::Empty => value().reshape(shape).contiguous(),
        };
        self.params.buffers.borrow_mut().push((self.child(name).path, tensor.shallow_clone()));
        tensor
    }

    /// Creates the parameter `name` (f32).
    pub fn param(&self, name: &str, shape: &[i64], init: Init) -> Tensor {
        let options = (Kind::Float, self.params.device());
        let tensor = match (self.params.init, init) {
            (ParamInit::Empty, _) => Tensor::empty(shape, options),
            (ParamInit::ShapeOnly, _) => Tensor::empty([1], options).expand(shape, false),
            (ParamInit::Random, Init::Const(value)) => Tensor::full(shape, value, options),
            (ParamInit::Random, Init::Normal(std)) => Tensor::randn(shape, options) * std,
            (ParamInit::Random, Init::FanIn(fan_in)) => {
                let bound = 1.0 / (fan_in as f64).sqrt();
                Tensor::empty(shape, options).uniform_(-bound, bound)
            }
        };
        let full_name = self.child(name).path;
        self.params.entries.borrow_mut().push((full_name, tensor.shallow_clone()));
        tensor
    }
}
