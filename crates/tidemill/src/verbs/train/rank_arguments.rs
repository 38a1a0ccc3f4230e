//! Which of several processes that train together this is. The Python package, which makes their process group, says so on the
//! command line; people do not.

use std::path::PathBuf;

use tidemill_train::World;

use crate::error::{Error, Result};
use crate::supervisor::Heartbeat;

/// A process's place in a process group of torch.distributed.
#[derive(Debug, Clone, clap::Args)]
pub struct RankArgs {
    /// The group's name; none for a process by itself.
    #[arg(long, hide = true, requires = "host_group")]
    pub process_group: Option<String>,
    /// The name of a second group of the same processes, for tensors on the CPU.
    #[arg(long, hide = true)]
    pub host_group: Option<String>,
    /// Which of the ranks.
    #[arg(long, hide = true, default_value_t = 0)]
    pub rank: usize,
    /// How many ranks there are.
    #[arg(long, hide = true, default_value_t = 1)]
    pub world_size: usize,
    /// Which of the ranks of this machine.
    #[arg(long, hide = true, default_value_t = 0)]
    pub local_rank: usize,
    /// How many of the ranks are on this machine.
    #[arg(long, hide = true, default_value_t = 1)]
    pub local_world_size: usize,
    /// How many places this machine has for ranks, of which some may be left out; as many as there are ranks, if not given.
    #[arg(long, hide = true)]
    pub places: Option<usize>,
    /// How many consecutive ranks have a machine, or part of one, to themselves; as many as are on this one, if not given. Where
    /// machines have different numbers of ranks, it is one that divides all.
    #[arg(long, hide = true)]
    pub ranks_per_node: Option<usize>,
    /// The socket of the process that supervises it.
    #[arg(long, hide = true)]
    pub supervisor: Option<PathBuf>,
}

impl Default for RankArgs {
    fn default() -> Self {
        Self {
            process_group: None,
            host_group: None,
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_world_size: 1,
            places: None,
            ranks_per_node: None,
            supervisor: None,
        }
    }
}

impl RankArgs {
    /// Whether a launcher has started this process to train, be it as the only one.
    pub fn is_given(&self) -> bool {
        self.process_group.is_some() || self.supervisor.is_some() || std::env::var_os("LOCAL_RANK").is_some()
    }

    /// The line to the supervisor, if there is one.
    ///
    /// # Errors
    /// If it is gone.
    pub fn heartbeat(&self) -> Result<Heartbeat> {
        let Some(supervisor) = &self.supervisor else { return Ok(Heartbeat::default()) };
        let gone = |source| Error::Start { what: "the line to the supervisor", source };
        Heartbeat::start(supervisor, self.rank).map_err(gone)
    }

    /// [`World::together`] of the ranks, if this is one.
    ///
    /// # Errors
    /// As there.
    pub fn together<T>(&self, done: Result<T>) -> Result<T> {
        if self.process_group.is_some() { self.world()?.together(done) } else { done }
    }

    /// The ranks, as the trainer knows them.
    ///
    /// # Errors
    /// If this process was started as one of several, and there is no group.
    pub fn world(&self) -> Result<World> {
        if let (Some(group), Some(host)) = (&self.process_group, &self.host_group) {
            return Ok(World::new(
                group,
                host,
                self.rank,
                self.world_size,
                self.ranks_per_node.unwrap_or(self.local_world_size),
            )?);
        }
        let others = std::env::var("WORLD_SIZE").ok().and_then(|size| size.parse().ok()).unwrap_or(1);
        if others > 1 {
            let message = format!(
                "WORLD_SIZE says that {others} processes train together, but each would train by itself: start the \
                 Python module, `torchrun --nproc-per-node {others} -m tidemill train`, which makes their process group"
            );
            return Err(Error::Arguments(message));
        }
        Ok(World::alone())
    }
}
