//! The processes that train together: how many there are, which of them this is, and what they tell each other.

use std::ops::Range;
use std::time::Duration;

use tch::{Kind, Tensor};
use tidemill_store::stream::{Rank, WorldSize};
use tidemill_torch::{PendingCollective, ProcessGroup, ReduceOp, guard};

use crate::checkpoint::differences::{Difference, differences};
use crate::config::Writers;
use crate::error::{Error, RankError};

/// What a rank has to say why it cannot go on, before others end.
const TELLING: Duration = Duration::from_secs(1);

/// The ranks of a run, and this one's place among them.
#[derive(Clone, Debug)]
pub struct World {
    group: Option<ProcessGroup>,
    /// The same ranks, for tensors on the CPU, and with threads of its own: nothing in it waits for what the other has to do.
    host: Option<ProcessGroup>,
    rank: usize,
    size: usize,
    ranks_per_node: usize,
}

impl World {
    /// A process that trains by itself.
    pub fn alone() -> Self {
        Self { group: None, host: None, rank: 0, size: 1, ranks_per_node: 1 }
    }

    /// Rank `rank` of the process group that is registered as `name`, on nodes of `ranks_per_node` consecutive ranks each. `host`
    /// is another group of the same ranks, for tensors on the CPU.
    ///
    /// # Errors
    /// [`Error::World`] if these numbers make no sense.
    pub fn new(
        name: &str,
        host: &str,
        rank: usize,
        size: usize,
        ranks_per_node: usize,
    ) -> Result<Self, Error> {
        if rank >= size || ranks_per_node == 0 || !size.is_multiple_of(ranks_per_node) {
            let message = format!("rank {rank} of {size}, with {ranks_per_node} on each node, cannot be");
            return Err(Error::World(message));
        }
        let (group, host) = (ProcessGroup::new(name, size as i64)?, ProcessGroup::new(host, size as i64)?);
        Ok(Self { group: Some(group), host: Some(host), rank, size, ranks_per_node })
    }

    /// One of several ranks on a node, or several, that say nothing to each other.
    #[cfg(test)]
    pub(crate) fn apart(rank: usize, size: usize) -> Self {
        Self::on_nodes(rank, size, size)
    }

    #[cfg(test)]
    fn on_nodes(rank: usize, size: usize, ranks_per_node: usize) -> Self {
        Self { group: None, host: None, rank, size, ranks_per_node }
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether this is the rank that speaks and writes for all.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// The group, if there are others.
    pub(crate) fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// Whose part of each global batch this rank gets.
    pub(crate) fn seat(&self) -> Result<Rank, Error> {
        Ok(Rank::new(WorldSize::new(self.size as u64)?, self.rank as u64)?)
    }

    /// Rows of this rank in a global batch.
    pub fn share_of(&self, rows: usize) -> usize {
        (self.rank + 1) * rows / self.size - self.first_of(rows)
    }

    /// Place of this rank's first row in a global batch.
    pub fn first_of(&self, rows: usize) -> usize {
        self.rank * rows / self.size
    }

    /// The sum of the ranks' tensors.
    ///
    /// # Errors
    /// [`Error::Peer`].
    pub fn sum(&self, tensor: Tensor) -> Result<Tensor, Error> {
        match &self.group {
            None => Ok(tensor),
            Some(group) => group
                .all_reduce(&tensor, ReduceOp::Sum)
                .and_then(PendingCollective::wait)
                .map_err(Error::Peer),
        }
    }

    /// The largest of the ranks' numbers, each by itself. All of them ask together, and no device is waited for.
    ///
    /// # Errors
    /// [`Error::Peer`].
    pub(crate) fn largest<const N: usize>(&self, here: [i64; N]) -> Result<[i64; N], Error> {
        let Some(host) = &self.host else { return Ok(here) };
        let mine = guard(|| Tensor::from_slice(&here))?;
        let all =
            host.all_reduce(&mine, ReduceOp::Max).and_then(PendingCollective::wait).map_err(Error::Peer)?;
        let all = guard(|| Vec::<i64>::try_from(&all))?;
        let all = all.ok().and_then(|all| <[i64; N]>::try_from(all).ok());
        all.ok_or_else(|| Error::World("what ranks asked each other cannot be read".into()))
    }

    /// The ranks' tensors, one behind the other.
    pub(crate) fn gather(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        match &self.group {
            None => Ok(tensor.shallow_clone()),
            Some(group) => group.all_gather(tensor).and_then(PendingCollective::wait).map_err(Error::Peer),
        }
    }

    /// The ranks that write checkpoints.
    pub(crate) fn writers(&self, writers: Writers) -> Vec<usize> {
        (0..self.size).step_by(self.ranks_per_writer(writers)).collect()
    }

    /// The ranks whose parts this one writes; none if it does not write.
    pub(crate) fn written_by(&self, writers: Writers) -> Range<usize> {
        let each = self.ranks_per_writer(writers);
        if self.rank.is_multiple_of(each) { self.rank..self.rank + each } else { 0..0 }
    }

    fn ranks_per_writer(&self, writers: Writers) -> usize {
        match writers {
            Writers::All => 1,
            Writers::Node => self.ranks_per_node,
            Writers::First => self.size,
        }
    }

    /// Makes a tensor what it is on the first rank.
    pub(crate) fn broadcast(&self, tensor: &Tensor) -> Result<(), Error> {
        if let Some(group) = &self.group {
            let _ = group.broadcast(tensor, 0).and_then(PendingCollective::wait).map_err(Error::Peer)?;
        }
        Ok(())
    }

    /// Swaps a tensor with rank `peer`, which does the same; the others have no part in it.
    pub(crate) fn exchange(&self, tensor: &Tensor, peer: usize) -> Result<(), Error> {
        match &self.group {
            None => Ok(()),
            Some(group) => group.exchange(tensor, peer as i64, self.rank < peer).map_err(Error::Peer),
        }
    }

    /// The two ranks that this one is compared with by what it takes to exchange something with them: those before and behind it
    /// in a ring, on one node of all ranks, else of those with the same place on their nodes, so that the network is between
    /// them. Pairs come by rounds, in each of which a rank has one partner at most; two ranks have only each other.
    pub(crate) fn neighbours(&self) -> Vec<Option<usize>> {
        let nodes = self.size / self.ranks_per_node;
        let (stride, ring) = if nodes > 1 { (self.ranks_per_node, nodes) } else { (1, self.size) };
        let (place, within) = (self.rank / stride, self.rank % stride);
        // Edge `e` of the ring is between places `e` and `e + 1`. Edges that meet are in different rounds.
        let round_of = |edge: usize| match ring {
            2 => edge,
            _ if edge + 1 == ring && !ring.is_multiple_of(2) => 2,
            _ => edge % 2,
        };
        let before = (place + ring - 1) % ring;
        let edges = [(place, (place + 1) % ring), (before, before)];
        let rounds = if ring == 2 { 1 } else { 2 + ring % 2 };
        let partner = |round| edges.into_iter().find(|(edge, _)| round_of(*edge) == round);
        (0..rounds).map(|round| partner(round).map(|(_, other)| other * stride + within)).collect()
    }

    /// What each rank says, by ranks. No device is waited for.
    ///
    /// # Errors
    /// [`Error::Peer`].
    pub fn texts(&self, text: &str) -> Result<Vec<String>, Error> {
        let Some(host) = &self.host else { return Ok(vec![text.into()]) };
        let gather =
            |values: Tensor| host.all_gather(&values).and_then(PendingCollective::wait).map_err(Error::Peer);
        let numbers = |tensor: Tensor| guard(|| Vec::<i64>::try_from(tensor.to_kind(Kind::Int64)));
        let failed = |e: tch::TchError| Error::World(format!("what ranks said cannot be read: {e}"));
        let lengths = numbers(gather(Tensor::from_slice(&[text.len() as i64]))?)?.map_err(failed)?;
        // A tensor of nothing would be nobody's.
        let longest = lengths.iter().max().map_or(1, |longest| (*longest as usize).max(1));
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(longest, 0);
        let all = gather(guard(|| Tensor::from_slice(&bytes))?)?;
        let all = numbers(all)?.map_err(failed)?;
        let said = all.chunks(longest).zip(&lengths).map(|(bytes, length)| {
            let bytes: Vec<u8> = bytes[..*length as usize].iter().map(|byte| *byte as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(said.collect())
    }

    /// What each rank has done by itself; where one failed, none goes on, and that one alone says why. All of them ask together.
    ///
    /// # Errors
    /// This rank's, if it is the first that failed, else [`Error::OtherRank`], or [`Error::Peer`].
    pub fn together<T, E: RankError>(&self, done: Result<T, E>) -> Result<T, E> {
        let failure = done.as_ref().err().map(|error| (error.is_refusal(), error.to_string()));
        let said = self.texts(&serde_json::to_string(&failure).unwrap_or_default());
        let said = match said {
            Ok(said) => said,
            // If the others are gone, what is wrong here may be why.
            Err(lost) => return done.and(Err(lost.into())),
        };
        let failure = |text: &String| serde_json::from_str::<Option<(bool, String)>>(text).ok().flatten();
        let first = said.iter().enumerate().find_map(|(rank, text)| Some((rank, failure(text)?)));
        match first {
            Some((rank, (refused, message))) if rank != self.rank => {
                // A launcher that sees this rank end stops all others.
                std::thread::sleep(TELLING);
                Err(Error::OtherRank { rank, message, refused }.into())
            }
            _ => done,
        }
    }

    /// What the first rank alone does before the first step; where that fails, all ranks fail.
    ///
    /// # Errors
    /// As [`together`](Self::together); of several ranks it refuses: as long as no step was made, to begin again mends nothing.
    pub(crate) fn by_first<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<Option<T>, Error> {
        let refuse = |error: Error| if self.size == 1 { error } else { Error::World(error.to_string()) };
        self.together(self.is_first().then(work).transpose().map_err(refuse))
    }

    /// Makes sure that all ranks were given the same.
    ///
    /// # Errors
    /// [`Error::World`] on the first rank names the first thing in which another differs from it; else as
    /// [`together`](Self::together).
    pub(crate) fn agree(&self, given: &serde_json::Value) -> Result<(), Error> {
        let texts = self.texts(&given.to_string())?;
        let parsed: Vec<serde_json::Value> =
            texts.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
        let differs = |(rank, theirs)| Some((rank, differences(&parsed[0], theirs).into_iter().next()?));
        let differing = parsed.iter().enumerate().skip(1).find_map(differs);
        self.together(differing.map_or(Ok(()), |(rank, Difference { path, first, second })| {
            Err(Error::World(format!(
                "the ranks were not given the same: {path} is {second} on rank {rank}, and {first} on rank 0"
            )))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_two_neighbours_which_have_it_in_the_same_round() {
        for (size, ranks_per_node) in [(2, 2), (3, 3), (4, 4), (7, 7), (8, 4), (6, 2), (12, 3), (5, 1)] {
            let neighbours = |rank| World::on_nodes(rank, size, ranks_per_node).neighbours();
            for rank in 0..size {
                let mut theirs = Vec::new();
                for (round, other) in neighbours(rank).into_iter().enumerate() {
                    let Some(other) = other else { continue };
                    assert_eq!(neighbours(other)[round], Some(rank));
                    assert_eq!(other % ranks_per_node == rank % ranks_per_node, size > ranks_per_node);
                    theirs.push(other);
                }
                theirs.dedup();
                let ring = if size > ranks_per_node { size / ranks_per_node } else { size };
                assert_eq!(theirs.len(), if ring == 2 { 1 } else { 2 }, "{rank} of {size}: {theirs:?}");
            }
        }
    }

    #[test]
    fn ranks_share_a_batch_as_the_stream_deals_it_out() {
        for (size, rows) in [(1, 8), (3, 8), (4, 7), (5, 5)] {
            let share = |rank| World::apart(rank, size).share_of(rows);
            let shares: Vec<usize> = (0..size).map(share).collect();
            assert_eq!(shares.iter().sum::<usize>(), rows);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
        }
    }
}
