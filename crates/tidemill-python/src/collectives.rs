//! Collectives from Rust on the process group that Python made, found by its name: the door the sharded trainer goes
//! through. `probe_group` opens it and shows what comes back.

use pyo3::prelude::*;
use tch::{Device, Kind, Tensor};
use tidemill_torch::{Error, Group, ReduceOp};

use crate::error::TidemillError;

/// What `probe_group` returns.
type Probed = (Vec<f32>, Vec<f32>, Vec<f32>);

/// Every rank contributes 0, 1, ..., times its rank plus one. Returns the sum over ranks (all-reduce), this rank's part
/// of it (reduce-scatter), and the parts gathered again (all-gather).
#[pyfunction]
pub fn probe_group(py: Python<'_>, name: &str, rank: i64, world: i64) -> PyResult<Probed> {
    py.detach(|| probe(name, rank, world)).map_err(|e| TidemillError::new_err(e.to_string()))
}

fn probe(name: &str, rank: i64, world: i64) -> Result<Probed, Error> {
    const PER_RANK: i64 = 4;
    let group = Group::new(name, world)?;
    let mine = Tensor::arange(PER_RANK * world, (Kind::Float, Device::Cpu)) * (rank + 1);
    let sum = group.all_reduce(&mine, ReduceOp::Sum)?.wait()?;
    let part = group.reduce_scatter(&mine, ReduceOp::Sum)?.wait()?;
    let gathered = group.all_gather(&part)?.wait()?;
    Ok((values(&sum)?, values(&part)?, values(&gathered)?))
}

fn values(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    Vec::try_from(tensor).map_err(|e: tch::TchError| Error::Torch(e.to_string()))
}
