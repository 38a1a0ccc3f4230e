//! Whether and how the weights of a network are sharded (`train.sharding = "full_shard"`).

use tidemill_models::ShardUnits;

use crate::Error;
use crate::config::Sharding;
use crate::train_spec::TrainSpec;

/// The shard units; none if weights are whole on each rank.
///
/// # Errors
/// If the settings do not allow it, or the network has no units.
pub(super) fn shard_units(spec: &TrainSpec) -> Result<ShardUnits, Error> {
    if spec.train.sharding != Sharding::FullShard || spec.world.size() == 1 {
        return Ok(ShardUnits::default());
    }
    for phase in 0..spec.train.phase.len() {
        let (rows, ranks) = (spec.train.phase_global_batch(phase), spec.world.size());
        if rows < ranks {
            let problem = format!(
                "\"full_shard\" needs a row for each rank, but train.global_batch is {rows}, and there are {ranks} ranks"
            );
            return Err(Error::config("train.sharding", problem));
        }
    }
    let units = spec.denoiser.shard_units();
    if units.is_empty() {
        let problem = "\"full_shard\" gathers weights block by block, and the blocks of a PyTorch module are not known; \
                       set train.sharding to \"shard_grad_op\"";
        return Err(Error::config("train.sharding", problem));
    }
    Ok(units)
}
