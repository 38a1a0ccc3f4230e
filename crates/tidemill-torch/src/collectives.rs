//! Collectives on a process group that torch.distributed made and registered under a name. They are
//! the functional ones (`_c10d_functional`): a call starts the communication and returns at once;
//! [`PendingCollective::wait`] gives the result.

use crate::{Error, ffi};
use std::ffi::{CStr, CString};
use tch::Tensor;

/// How the ranks' values are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum over ranks. There is no mean, for Gloo has none.
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
    world: i64,
}

/// A collective under way.
#[derive(Debug)]
#[must_use = "the result is not there until `wait` returns"]
pub struct PendingCollective(Tensor);

impl ProcessGroup {
    /// The group registered as `name`, with `world` ranks. The name is looked up at the first call.
    ///
    /// # Errors
    /// If the name holds a NUL byte.
    pub fn new(name: &str, world: i64) -> Result<Self, Error> {
        let name = CString::new(name).map_err(|_| Error::Operation {
            operation: "process group",
            message: format!("the name {name:?} holds a NUL byte"),
        })?;
        Ok(Self { name, world })
    }

    /// The number of ranks.
    pub fn world(&self) -> i64 {
        self.world
    }

    /// Combines `input` (any shape) over all ranks; every rank gets the result.
    pub fn all_reduce(&self, input: &Tensor, op: ReduceOp) -> Result<PendingCollective, Error> {
        ffi::make("all_reduce", |out| {
            // SAFETY: the pointers outlive the call; the shim takes its own reference to the tensor.
            unsafe {
                ffi::tm_all_reduce(input.as_ptr().cast_mut(), op.name().as_ptr(), self.name.as_ptr(), out)
            }
        })
        .map(PendingCollective)
    }

    /// Combines `input` over all ranks and leaves each with its slice of the first dimension, whose
    /// size must be a multiple of the number of ranks.
    pub fn reduce_scatter(&self, input: &Tensor, op: ReduceOp) -> Result<PendingCollective, Error> {
        ffi::make("reduce_scatter", |out| {
            // SAFETY: as in `all_reduce`.
            unsafe {
                ffi::tm_reduce_scatter(
                    input.as_ptr().cast_mut(),
                    op.name().as_ptr(),
                    self.world,
                    self.name.as_ptr(),
                    out,
                )
            }
        })
        .map(PendingCollective)
    }

    /// Concatenates the ranks' `input`s (same shape on all) along the first dimension.
    pub fn all_gather(&self, input: &Tensor) -> Result<PendingCollective, Error> {
        ffi::make("all_gather", |out| {
            // SAFETY: as in `all_reduce`.
            unsafe { ffi::tm_all_gather(input.as_ptr().cast_mut(), self.world, self.name.as_ptr(), out) }
        })
        .map(PendingCollective)
    }

    /// As [`Self::all_gather`], into `output`, which has storage of its own: what is waited for is a storage.
    pub fn all_gather_into(&self, input: &Tensor, output: &Tensor) -> Result<PendingCollective, Error> {
        ffi::make("all_gather", |out| {
            // SAFETY: as in `all_reduce`.
            unsafe {
                ffi::tm_all_gather_into(
                    input.as_ptr().cast_mut(),
                    output.as_ptr().cast_mut(),
                    self.world,
                    self.name.as_ptr(),
                    out,
                )
            }
        })
        .map(PendingCollective)
    }

    /// Overwrites `tensor` with what it is on rank `from`.
    pub fn broadcast(&self, tensor: &Tensor, from: i64) -> Result<PendingCollective, Error> {
        ffi::make("broadcast", |out| {
            // SAFETY: as in `all_reduce`.
            unsafe { ffi::tm_broadcast(tensor.as_ptr().cast_mut(), from, self.name.as_ptr(), out) }
        })
        .map(PendingCollective)
    }

    /// Swaps `tensor` (same shape on both) with rank `peer`, and waits for that (on a GPU: makes the current stream wait). Other
    /// ranks have no part in it. Of the two, one calls with `first`: it sends before it receives.
    pub fn exchange(&self, tensor: &Tensor, peer: i64, first: bool) -> Result<(), Error> {
        // SAFETY: as in `all_reduce`.
        let answer = unsafe { ffi::tm_exchange(tensor.as_ptr().cast_mut(), peer, first, self.name.as_ptr()) };
        ffi::check("exchange", answer)
    }
}

impl PendingCollective {
    /// Waits for the communication (on a GPU: makes the current stream wait) and gives the result.
    pub fn wait(self) -> Result<Tensor, Error> {
        ffi::make("wait", |out| {
            // SAFETY: the tensor lives until the call returns.
            unsafe { ffi::tm_wait(self.0.as_ptr().cast_mut(), out) }
        })
    }
}
