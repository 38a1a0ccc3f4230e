//! Rank and world of this process. The Python package creates the process group and passes these
//! arguments; people do not write them.

use std::path::PathBuf;

use tidemill_train::World;

use crate::error::{Error, Result};
use crate::supervisor::Heartbeat;

/// The position of a process in a process group of torch.distributed.
#[derive(Debug, Clone, clap::Args)]
pub struct RankArgs {
    /// The name of the process group. None for a process that trains alone.
    #[arg(long, hide = true, requires = "host_group")]
    pub process_group: Option<String>,
    /// The name of a second group of the same processes, for tensors on the CPU.
    #[arg(long, hide = true)]
    pub host_group: Option<String>,
    /// The name of a group of this node's ranks, for tensors on the training device. None unless there are
    /// several nodes of several ranks.
    #[arg(long, hide = true, requires = "replica_group")]
    pub node_group: Option<String>,
    /// The name of a group of the ranks that have this rank's place on every node.
    #[arg(long, hide = true)]
    pub replica_group: Option<String>,
    /// The rank of this process.
    #[arg(long, hide = true, default_value_t = 0)]
    pub rank: usize,
    /// The number of ranks.
    #[arg(long, hide = true, default_value_t = 1)]
    pub world_size: usize,
    /// The rank of this process on this machine.
    #[arg(long, hide = true, default_value_t = 0)]
    pub local_rank: usize,
    /// The number of ranks on this machine.
    #[arg(long, hide = true, default_value_t = 1)]
    pub local_world_size: usize,
    /// The number of worker slots on this machine, including those that the supervisor leaves out.
    /// Default: the number of ranks on this machine.
    #[arg(long = "places", hide = true)]
    pub slots: Option<usize>,
    /// The number of consecutive ranks that share a machine, or a part of one. Default: the number
    /// of ranks on this machine. If machines have different numbers of ranks, it must divide all of
    /// them.
    #[arg(long, hide = true)]
    pub ranks_per_node: Option<usize>,
    /// The socket of the supervisor.
    #[arg(long, hide = true)]
    pub supervisor: Option<PathBuf>,
}

impl Default for RankArgs {
    fn default() -> Self {
        Self {
            process_group: None,
            host_group: None,
            node_group: None,
            replica_group: None,
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_world_size: 1,
            slots: None,
            ranks_per_node: None,
            supervisor: None,
        }
    }
}

impl RankArgs {
    /// Whether a launcher started this process as a training worker, also as the only one.
    pub fn has_launcher(&self) -> bool {
        self.process_group.is_some() || self.supervisor.is_some() || std::env::var_os("LOCAL_RANK").is_some()
    }

    /// Connects to the supervisor, if there is one.
    ///
    /// # Errors
    /// If the supervisor is gone.
    pub fn connect_to_supervisor(&self) -> Result<Heartbeat> {
        let Some(supervisor) = &self.supervisor else { return Ok(Heartbeat::default()) };
        Heartbeat::start(supervisor, self.rank)
            .map_err(|source| Error::Start { what: "the connection to the supervisor", source })
    }

    /// Agrees with the other ranks on a result: if it is an error on one rank, it is an error on
    /// all. See [`World::propagate_error`].
    ///
    /// # Errors
    /// The error of this rank, or that of another rank.
    pub fn agree<T>(&self, result: Result<T>) -> Result<T> {
        if self.process_group.is_some() { self.world()?.propagate_error(result) } else { result }
    }

    /// The ranks that train together, as the trainer needs them.
    ///
    /// # Errors
    /// If this process was started as one of several, but there is no process group.
    pub fn world(&self) -> Result<World> {
        if let (Some(group), Some(host_group)) = (&self.process_group, &self.host_group) {
            let ranks_per_node = self.ranks_per_node.unwrap_or(self.local_world_size);
            let world = World::new(group, host_group, self.rank, self.world_size, ranks_per_node)?;
            return Ok(match (&self.node_group, &self.replica_group) {
                (Some(node), Some(replicas)) => world.with_node_groups(node, replicas)?,
                _ => world,
            });
        }
        let processes = std::env::var("WORLD_SIZE").ok().and_then(|size| size.parse().ok()).unwrap_or(1);
        if processes > 1 {
            let message = format!(
                "WORLD_SIZE is {processes}, but this process has no process group and would train alone: start the \
                 Python module, which creates the process group: `torchrun --nproc-per-node {processes} -m tidemill \
                 train`"
            );
            return Err(Error::Arguments(message));
        }
        Ok(World::single_process())
    }
}
