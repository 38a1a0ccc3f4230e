//! Collectives on a process group that torch.distributed made and registered under a name. They are
//! the functional ones (`_c10d_functional`): a call starts the communication and returns at once;
//! [`PendingCollective::wait`] returns the result.

use std::ffi::{CStr, CString};

use tch::Tensor;

use crate::Error;
use crate::ffi::{self, as_raw};

/// How the ranks' values are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum over ranks. There is no mean, because Gloo has none.
    Sum,
    /// The largest value of all ranks.
    Max,
}

impl ReduceOp {
    fn name(self) -> &'static CStr {
        match self {
            ReduceOp::Sum => c"sum",
            ReduceOp::Max => c"max",
        }
    }
}

/// A process group, by the name it has in torch.distributed (`group.group_name` in Python).
#[derive(Clone, Debug)]
pub struct ProcessGroup {
    name: CString,
    world_size: i64,
}

/// A collective that has been started.
#[derive(Debug)]
#[must_use = "the result is not there until `wait` returns"]
pub struct PendingCollective(Tensor);

impl ProcessGroup {
    /// The group registered as `name`, with `world_size` ranks. The name is looked up at the first
    /// collective.
    ///
    /// # Errors
    /// If the name holds a NUL byte.
    pub fn new(name: &str, world_size: i64) -> Result<Self, Error> {
        let name = CString::new(name).map_err(|_| Error::Operation {
            operation: "process group",
            message: format!("the name {name:?} holds a NUL byte"),
        })?;
        Ok(Self { name, world_size })
    }

    /// The number of ranks.
    pub fn world_size(&self) -> i64 {
        self.world_size
    }

    /// Combines `input` (any shape) over all ranks; every rank gets the result.
    pub fn all_reduce(&self, input: &Tensor, op: ReduceOp) -> Result<PendingCollective, Error> {
        ffi::make_tensor("all_reduce", |out| {
            // SAFETY: the pointers outlive the call; the shim takes its own reference to the
            // tensor.
            unsafe { ffi::tm_all_reduce(as_raw(input), op.name().as_ptr(), self.name.as_ptr(), out) }
        })
        .map(PendingCollective)
    }

    /// Combines `input` over all ranks and leaves each with its slice of the first dimension, whose
    /// size must be a multiple of the number of ranks.
    pub fn reduce_scatter(&self, input: &Tensor, op: ReduceOp) -> Result<PendingCollective, Error> {
        ffi::make_tensor("reduce_scatter", |out| {
            let (op, group) = (op.name().as_ptr(), self.name.as_ptr());
            // SAFETY: the pointers outlive the call; the shim takes its own reference to the
            // tensor.
            unsafe { ffi::tm_reduce_scatter(as_raw(input), op, self.world_size, group, out) }
        })
        .map(PendingCollective)
    }

    /// Concatenates the ranks' `input`s (same shape on all) along the first dimension.
    pub fn all_gather(&self, input: &Tensor) -> Result<PendingCollective, Error> {
        ffi::make_tensor("all_gather", |out| {
            // SAFETY: the pointers outlive the call; the shim takes its own reference to the
            // tensor.
            unsafe { ffi::tm_all_gather(as_raw(input), self.world_size, self.name.as_ptr(), out) }
        })
        .map(PendingCollective)
    }

    /// [`Self::all_gather`] into `output`. `output` must have a storage of its own, because
    /// libtorch waits for storages.
    pub fn all_gather_into(&self, input: &Tensor, output: &Tensor) -> Result<PendingCollective, Error> {
        ffi::make_tensor("all_gather", |out| {
            let (input, output, group) = (as_raw(input), as_raw(output), self.name.as_ptr());
            // SAFETY: the pointers outlive the call; the shim takes its own references to the
            // tensors.
            unsafe { ffi::tm_all_gather_into(input, output, self.world_size, group, out) }
        })
        .map(PendingCollective)
    }

    /// Overwrites `tensor` on all ranks with the values of rank `source_rank`.
    pub fn broadcast(&self, tensor: &Tensor, source_rank: i64) -> Result<PendingCollective, Error> {
        ffi::make_tensor("broadcast", |out| {
            // SAFETY: the pointers outlive the call; the shim takes its own reference to the
            // tensor.
            unsafe { ffi::tm_broadcast(as_raw(tensor), source_rank, self.name.as_ptr(), out) }
        })
        .map(PendingCollective)
    }

    /// Swaps `tensor` (same shape on both) with rank `peer`, and waits for that (on a GPU: makes
    /// the current stream wait). Other ranks take no part. Exactly one of the two ranks passes
    /// `sends_first`: it sends before it receives.
    pub fn exchange(&self, tensor: &Tensor, peer: i64, sends_first: bool) -> Result<(), Error> {
        // SAFETY: the pointers outlive the call.
        let error = unsafe { ffi::tm_exchange(as_raw(tensor), peer, sends_first, self.name.as_ptr()) };
        ffi::check("exchange", error)
    }
}

impl PendingCollective {
    /// Waits for the communication (on a GPU: makes the current stream wait) and returns the
    /// result.
    pub fn wait(self) -> Result<Tensor, Error> {
        ffi::make_tensor("wait", |out| {
            // SAFETY: the tensor lives until the call returns.
            unsafe { ffi::tm_wait_tensor(as_raw(&self.0), out) }
        })
    }
}
