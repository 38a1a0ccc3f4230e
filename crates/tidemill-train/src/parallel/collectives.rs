//! Collectives over the ranks of a [`World`]. All ranks must call each of them, in the same order.

use tch::{Kind, Tensor};
use tidemill_torch::{PendingCollective, ReduceOp, guard};

use super::world::World;
use crate::error::Error;

impl World {
    /// The sum of the ranks' tensors.
    ///
    /// # Errors
    /// [`Error::Peer`] if another rank cannot be reached.
    pub fn all_reduce_sum(&self, tensor: Tensor) -> Result<Tensor, Error> {
        match &self.group {
            None => Ok(tensor),
            Some(group) => group
                .all_reduce(&tensor, ReduceOp::Sum)
                .and_then(PendingCollective::wait)
                .map_err(Error::Peer),
        }
    }

    /// The element-wise maximum of the ranks' numbers, over the host group: it waits for no device.
    ///
    /// # Errors
    /// [`Error::Peer`] if another rank cannot be reached.
    pub(crate) fn all_reduce_max<const N: usize>(&self, local: [i64; N]) -> Result<[i64; N], Error> {
        let Some(host_group) = &self.host_group else { return Ok(local) };
        let local = guard(|| Tensor::from_slice(&local))?;
        let reduced = host_group
            .all_reduce(&local, ReduceOp::Max)
            .and_then(PendingCollective::wait)
            .map_err(Error::Peer)?;
        let reduced = guard(|| Vec::<i64>::try_from(&reduced))?;
        let reduced = reduced.ok().and_then(|reduced| <[i64; N]>::try_from(reduced).ok());
        reduced.ok_or_else(|| Error::World("the result of an all-reduce cannot be read".into()))
    }

    /// The partitions of all ranks that share the state, concatenated in their order.
    pub(crate) fn all_gather_partitions(
        &self,
        tensor: &Tensor,
        partition_count: usize,
    ) -> Result<Tensor, Error> {
        match self.shard_group(partition_count) {
            None => Ok(tensor.shallow_clone()),
            Some(group) => group.all_gather(tensor).and_then(PendingCollective::wait).map_err(Error::Peer),
        }
    }

    /// Overwrites a tensor with that of the first rank.
    pub(crate) fn broadcast(&self, tensor: &Tensor) -> Result<(), Error> {
        if let Some(group) = &self.group {
            let _ = group.broadcast(tensor, 0).and_then(PendingCollective::wait).map_err(Error::Peer)?;
        }
        Ok(())
    }

    /// Swaps a tensor with rank `peer`, which must do the same. No other rank takes part.
    pub(crate) fn exchange(&self, tensor: &Tensor, peer: usize) -> Result<(), Error> {
        match &self.group {
            None => Ok(()),
            Some(group) => group.exchange(tensor, peer as i64, self.rank() < peer).map_err(Error::Peer),
        }
    }

    /// The texts of all ranks, in the order of the ranks, over the host group: it waits for no
    /// device.
    ///
    /// # Errors
    /// [`Error::Peer`] if another rank cannot be reached.
    pub fn all_gather_text(&self, text: &str) -> Result<Vec<String>, Error> {
        let Some(host_group) = &self.host_group else { return Ok(vec![text.into()]) };
        let gather = |values: Tensor| {
            host_group.all_gather(&values).and_then(PendingCollective::wait).map_err(Error::Peer)
        };
        let to_numbers = |tensor: Tensor| guard(|| Vec::<i64>::try_from(tensor.to_kind(Kind::Int64)));
        let unreadable = |e: tch::TchError| Error::World(format!("texts of other ranks cannot be read: {e}"));
        let lengths = to_numbers(gather(Tensor::from_slice(&[text.len() as i64]))?)?.map_err(unreadable)?;
        // A collective needs at least one byte.
        let longest = lengths.iter().max().map_or(1, |longest| (*longest as usize).max(1));
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(longest, 0);
        let gathered = gather(guard(|| Tensor::from_slice(&bytes))?)?;
        let gathered = to_numbers(gathered)?.map_err(unreadable)?;
        let texts = gathered.chunks(longest).zip(&lengths).map(|(bytes, length)| {
            let bytes: Vec<u8> = bytes[..*length as usize].iter().map(|byte| *byte as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(texts.collect())
    }
}
